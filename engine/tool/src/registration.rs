//! What a tool has registered for, and how much of it is over.

use std::collections::BTreeMap;

use iof_proto::Nspace;
use iof_shm_ring::Start;

use crate::delivery::Delivery;
use crate::tool::Pull;

/// What is called with what comes.
pub(crate) type Callback = Box<dyn FnMut(&Delivery<'_>) + Send>;

/// One registration.
pub(crate) struct Registration {
    pub start: Start,
    /// All of its sources are known.
    pub announced: bool,
    /// If what comes is not for [`Tool::next`](crate::Tool::next) to return.
    pub callback: Option<Callback>,
    pub closing: Closing,
    jobs: BTreeMap<Nspace, Job>,
}

/// How far the end of a registration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It does not end.
    No,
    /// What is there is handed out. More may be on its way: the answer to this request comes behind every ring that the
    /// engine had announced when the registration was to end.
    Awaiting(u32),
    /// What was there when it was to end is here and is handed out.
    Flushing,
    /// The engine was asked to end it, by this request.
    Asked(u32),
}

/// One of its jobs.
#[derive(Default)]
struct Job {
    /// Streams that were announced and are not over.
    open: usize,
    end: JobEnd,
}

#[derive(Default)]
enum JobEnd {
    #[default]
    Unknown,
    /// The engine said that it is over.
    Known(Option<i32>),
    Told,
}

impl Registration {
    pub(crate) fn new(pull: &Pull, callback: Option<Callback>) -> Registration {
        Registration {
            start: if pull.backlog { Start::Oldest } else { Start::Now },
            announced: false,
            callback,
            closing: Closing::No,
            jobs: pull.procs.iter().map(|proc| (proc.nspace.clone(), Job::default())).collect(),
        }
    }

    /// A stream of `nspace` was announced.
    pub(crate) fn opened(&mut self, nspace: &Nspace) {
        if let Some(job) = self.jobs.get_mut(nspace) {
            job.open = job.open.saturating_add(1);
        }
    }

    /// A stream of `nspace` is over.
    pub(crate) fn closed(&mut self, nspace: &Nspace) {
        if let Some(job) = self.jobs.get_mut(nspace) {
            job.open = job.open.saturating_sub(1);
        }
    }

    /// The engine says that `nspace` is over.
    pub(crate) fn ended(&mut self, nspace: &Nspace, exit_code: Option<i32>) {
        if let Some(job @ Job { end: JobEnd::Unknown, .. }) = self.jobs.get_mut(nspace) {
            job.end = JobEnd::Known(exit_code);
        }
    }

    /// How `nspace` has ended, once, when all of its streams are over.
    pub(crate) fn take_end(&mut self, nspace: &Nspace) -> Option<Option<i32>> {
        let job = self.jobs.get_mut(nspace).filter(|job| job.open == 0 && self.closing == Closing::No)?;
        let JobEnd::Known(exit_code) = job.end else { return None };
        job.end = JobEnd::Told;
        Some(exit_code)
    }

    /// Whether no stream is left that was announced.
    pub(crate) fn is_drained(&self) -> bool {
        self.jobs.values().all(|job| job.open == 0)
    }

    /// Whether all there is to tell of it was told.
    pub(crate) fn is_over(&self) -> bool {
        self.closing == Closing::No && self.jobs.values().all(|job| matches!(job.end, JobEnd::Told))
    }

    /// Whether no further stream will be announced.
    pub(crate) fn has_all_streams(&self) -> bool {
        self.announced || self.is_over()
    }
}
