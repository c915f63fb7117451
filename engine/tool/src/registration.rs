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
    /// It goes on when its jobs have ended.
    persistent: bool,
    jobs: BTreeMap<Nspace, Job>,
}

/// How far the end of a registration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It does not end.
    No,
    /// What is there is handed out. More may be on its way: the answer to this request comes behind
    /// every ring that the engine had announced when the registration was to end.
    Awaiting(u32),
    /// What was there when it was to end is here and is handed out.
    Flushing,
    /// The engine was asked to end it, by this request.
    Asked(u32),
}

/// A name of a job, and the jobs that have it one after the other.
#[derive(Default)]
struct Job {
    /// Those whose end was not told, by the engine's number.
    runs: BTreeMap<u64, Run>,
    /// The last one whose end was told; 0 if there was none.
    told: u64,
}

/// One job.
#[derive(Default)]
struct Run {
    /// Streams that were announced and are not over.
    open: usize,
    /// The engine said that it is over, with this exit code.
    end: Option<End>,
}

/// What the engine says of a job's end.
#[derive(Clone, Copy)]
struct End {
    exit_code: Option<i32>,
    /// Earlier jobs of the name that have ended and are not told of.
    skipped: u64,
}

/// How a job has ended.
#[derive(Debug)]
pub(crate) struct JobEnd {
    pub run: u64,
    pub exit_code: Option<i32>,
    pub skipped: u64,
}

impl Registration {
    pub(crate) fn new(pull: &Pull, callback: Option<Callback>) -> Registration {
        Registration {
            start: if pull.backlog { Start::Oldest } else { Start::Now },
            announced: false,
            callback,
            closing: Closing::No,
            persistent: pull.persistent,
            jobs: pull.procs.iter().map(|proc| (proc.nspace.clone(), Job::default())).collect(),
        }
    }

    /// Notes that a stream of a job was announced.
    pub(crate) fn opened(&mut self, nspace: &Nspace, run: u64) {
        if let Some(job) = self.jobs.get_mut(nspace) {
            let run = job.runs.entry(run).or_default();
            run.open = run.open.saturating_add(1);
        }
    }

    /// Notes that a stream of a job is over.
    pub(crate) fn closed(&mut self, nspace: &Nspace, run: u64) {
        if let Some(run) = self.jobs.get_mut(nspace).and_then(|job| job.runs.get_mut(&run)) {
            run.open = run.open.saturating_sub(1);
        }
    }

    /// Notes that a job is over, as the engine says.
    pub(crate) fn ended(&mut self, nspace: &Nspace, run: u64, exit_code: Option<i32>, skipped: u64) {
        if let Some(job) = self.jobs.get_mut(nspace).filter(|job| run > job.told) {
            job.runs.entry(run).or_default().end.get_or_insert(End { exit_code, skipped });
        }
    }

    /// Returns how the oldest job of this name has ended whose end was not told, once all of its
    /// streams are over.
    pub(crate) fn take_end(&mut self, nspace: &Nspace) -> Option<JobEnd> {
        let job = self.jobs.get_mut(nspace).filter(|_| self.closing == Closing::No)?;
        loop {
            let (&run, first) = job.runs.first_key_value().filter(|(_, run)| run.open == 0)?;
            let end = first.end;
            // An end that is not told comes with a later one.
            if end.is_none() && !job.runs.values().any(|run| run.end.is_some()) {
                return None;
            }
            job.runs.remove(&run);
            job.told = run;
            if let Some(End { exit_code, skipped }) = end {
                return Some(JobEnd { run, exit_code, skipped });
            }
        }
    }

    /// Whether no stream is left that was announced.
    pub(crate) fn is_drained(&self) -> bool {
        self.jobs.values().flat_map(|job| job.runs.values()).all(|run| run.open == 0)
    }

    /// Whether all there is to tell of it was told.
    pub(crate) fn is_over(&self) -> bool {
        !self.persistent && self.closing == Closing::No && self.jobs.values().all(|job| job.told > 0)
    }

    /// Whether streams of it were still to be announced, and are missing now that nothing more
    /// comes.
    pub(crate) fn misses_streams(&self) -> bool {
        !self.persistent && !self.has_all_streams()
    }

    /// Whether no further stream will be announced.
    pub(crate) fn has_all_streams(&self) -> bool {
        !self.persistent && (self.announced || self.is_over())
    }
}
