//! Output of ranks that run elsewhere: the host brings it, and it goes into rings like those of
//! ranks that run here (`PMIx_server_IOF_deliver`, RFC0025).

use std::collections::VecDeque;

use iof_capture::{AddError, Capture, SourceId};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure, Info, InfoValue, Nspace, Proc, Status};
use iof_shm_ring::{CreateError, Stream};

use crate::engine::Engine;
use crate::error::MAX_RANKS;
use crate::host::Upcall;
use crate::job::{Elsewhere, JobState};
use crate::readers::StreamState;
use crate::state::{State, StreamName};
use crate::stream_options::StreamOptions;

/// Bytes of one stream that were delivered and that a reader with the grant to block keeps out of
/// its ring: beyond these, [`Engine::deliver`] refuses more.
pub const MAX_DELIVERED: u64 = 4 << 20;

/// What a delivery costs at least, however few its bytes.
const DELIVERY_COST: u64 = 256;

/// Why bytes were not delivered. None of them were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// A required piece of metadata means nothing here, or has a value of the wrong type.
    #[error(transparent)]
    Metadata(Failure),
    /// Not one process, or not an output channel.
    #[error(
        "{from} {channel} is no output of a process: name a rank below {MAX_RANKS}, and stdout, stderr or stddiag"
    )]
    NoSource {
        /// Whose.
        from: Proc,
        /// Which.
        channel: Channel,
    },
    /// The rank runs here.
    #[error(
        "{0} runs here, and the engine captures its output itself: deliver what comes from other nodes only"
    )]
    Captured(Proc),
    /// All ranks of the job run here.
    #[error("all ranks of {0} run here: start it with `elsewhere` if it has others")]
    AllHere(Nspace),
    /// The stream was completed before, or its job ended.
    #[error("the {channel} of {from} is complete: deliver nothing after {complete}", complete = key::PMIX_IOF_COMPLETE)]
    Complete {
        /// Whose.
        from: Proc,
        /// Which.
        channel: Channel,
    },
    /// A reader holds the stream back.
    #[error(
        "{waiting} bytes of the stream wait for a reader, of {MAX_DELIVERED} at most: deliver again when some were taken"
    )]
    Full {
        /// How many.
        waiting: u64,
    },
    /// There is no memory for a ring.
    #[error(transparent)]
    Ring(#[from] CreateError),
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] AddError),
}

impl DeliverError {
    /// As PMIx puts it: [`Status::ERR_IOF_XOFF`] means that it may work later,
    /// [`Status::ERR_IOF_COMPLETE`] that nothing is wanted any more.
    pub fn status(&self) -> Status {
        match self {
            DeliverError::Metadata(failure) => failure.status,
            DeliverError::NoSource { .. } | DeliverError::Captured(_) | DeliverError::AllHere(_) => {
                Status::ERR_BAD_PARAM
            }
            DeliverError::Complete { .. } => Status::ERR_IOF_COMPLETE,
            DeliverError::Full { .. } => Status::ERR_IOF_XOFF,
            DeliverError::Ring(_) => Status::ERR_OUT_OF_RESOURCE,
            DeliverError::Capture(_) => Status::ERR_IOF_FAILURE,
        }
    }
}

/// What the host wants to be called when its bytes are no longer required.
pub(crate) type Taken = Box<dyn FnOnce() + Send>;

/// A delivery that its stream has not taken whole, as far as we know.
struct Waiting {
    cost: u64,
    taken: Taken,
}

/// A stream that is filled by deliveries.
#[derive(Default)]
pub(crate) struct Delivery {
    waiting: VecDeque<Waiting>,
    /// What these cost together.
    cost: u64,
    /// Its last byte was delivered.
    complete: bool,
}

impl Delivery {
    /// Sends bytes on their way; in any case if it `is_end`.
    ///
    /// # Errors
    /// Too many wait already.
    pub(crate) fn put(
        &mut self,
        capture: &Capture,
        stream: SourceId,
        bytes: Vec<u8>,
        time: Option<u64>,
        is_end: bool,
        taken: Taken,
    ) -> Result<(), DeliverError> {
        let cost = (bytes.len() as u64).max(DELIVERY_COST);
        if self.cost > 0 && !is_end && self.cost.saturating_add(cost) > MAX_DELIVERED {
            return Err(DeliverError::Full { waiting: self.cost });
        }
        capture.deliver(stream, bytes, time).map_err(AddError::from)?;
        self.push(cost, taken);
        Ok(())
    }

    fn push(&mut self, cost: u64, taken: Taken) {
        self.cost = self.cost.saturating_add(cost);
        self.waiting.push_back(Waiting { cost, taken });
    }

    fn pop(&mut self) -> Option<Taken> {
        let Waiting { cost, taken } = self.waiting.pop_front()?;
        self.cost = self.cost.saturating_sub(cost);
        Some(taken)
    }
}

/// What comes with the bytes.
#[derive(Default)]
struct Metadata {
    complete: bool,
    time: Option<u64>,
}

impl Metadata {
    fn read(infos: &[Info]) -> Result<Metadata, Failure> {
        let mut read = Metadata::default();
        for Info { key, value, required } in infos {
            match (key.as_str(), value) {
                (key::PMIX_IOF_COMPLETE, InfoValue::Bool(complete)) => read.complete = *complete,
                (key::IOF_TIME, InfoValue::Number(time)) => read.time = Some(*time),
                (key::PMIX_IOF_COMPLETE | key::IOF_TIME, _) if *required => {
                    let reason = format!("{key} has a value of the wrong type");
                    return Err(Failure { status: Status::ERR_BAD_PARAM, reason });
                }
                _ if *required => {
                    let reason = format!("{key:?} means nothing for what is delivered: do not require it");
                    return Err(Failure { status: Status::ERR_NOT_SUPPORTED, reason });
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Engine {
    /// Takes output that the host has received from another node (`PMIx_server_IOF_deliver`):
    /// whoever registered for it reads it like that of ranks that run here, and for who
    /// registers later it is kept on the same options: those of its job, or of the engine if
    /// that starts no ranks of it.
    ///
    /// `infos` says more: [`PMIX_IOF_COMPLETE`](key::PMIX_IOF_COMPLETE), that the stream ends with
    /// these bytes (there may be none); [`IOF_TIME`](key::IOF_TIME), when they were read from
    /// their source. Others are ignored, if not required.
    ///
    /// Does not wait. `taken` runs once when the bytes are in the ring, or were dropped as the
    /// policy has it, or the engine has ended; on the engine's control thread, with the same
    /// rules as [upcalls](crate::Host). Where a reader with the grant to block holds the stream
    /// back, that takes a while: then [`MAX_DELIVERED`] bytes wait at most, but one delivery
    /// always may, and the end without bytes. Deliveries to one stream are taken in their order.
    ///
    /// # Errors
    /// [`DeliverError`]; `taken` is dropped without being run.
    ///
    /// # Example
    /// ```
    /// use iof_engine::{Config, Engine, Grant, Rendezvous};
    /// use iof_output::{Options, Output, Printer};
    /// use iof_proto::directive::{Info, key};
    /// use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
    /// use iof_tool::Pull;
    ///
    /// let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// let nspace = Nspace::new("far")?;
    /// let rank = Proc { nspace: nspace.clone(), rank: Rank(7) };
    /// engine.deliver(&rank, Channel::Stdout, b"hello\n".to_vec(), &[], || {})?;
    /// engine.deliver(&rank, Channel::Stdout, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})?;
    /// engine.end_job(&nspace, Some(0));
    /// let mut tool = engine.attach("terminal", Grant::Block)?;
    /// tool.pull(&Pull::new(vec![rank], Channels::STDOUT))?;
    /// let output = Output::new(std::io::stdout())?;
    /// let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;
    /// assert_eq!(printer.join()?.written, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deliver(
        &self,
        from: &Proc,
        channel: Channel,
        bytes: Vec<u8>,
        infos: &[Info],
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeliverError> {
        let Metadata { complete, time } = Metadata::read(infos).map_err(DeliverError::Metadata)?;
        if channel == Channel::Stdin || from.rank.0 >= MAX_RANKS {
            return Err(DeliverError::NoSource { from: from.clone(), channel });
        }
        // Held until all is sent to the capture, so that deliveries keep their order.
        let mut state = self.tables.lock();
        let stream = self.delivered(&mut state, from, channel)?;
        let Some(delivery) = state.deliveries.get_mut(&stream) else {
            return Err(DeliverError::Complete { from: from.clone(), channel });
        };
        // The end alone comes once.
        let is_end = complete && bytes.is_empty();
        if delivery.complete {
            return Err(DeliverError::Complete { from: from.clone(), channel });
        }
        delivery.put(&self.capture, stream, bytes, time, is_end, Box::new(taken))?;
        if complete {
            delivery.complete = true;
            // A capture that has ended since has completed it.
            let _ = self.capture.finish(stream);
        }
        Ok(())
    }

    /// The ranks of `nspace` that run elsewhere have ended, and all that they wrote was delivered:
    /// their streams are completed, and once those of the ranks that run here have ended, too,
    /// tools are told that the job has, with `exit_code`; without one, with that of the ranks
    /// that run here, if there are any. Also for a job of which the engine has not heard
    /// before. `false` if it was said before, or all ranks run here.
    pub fn end_job(&self, nspace: &Nspace, exit_code: Option<i32>) -> bool {
        let mut state = self.tables.lock();
        let job = self.job_elsewhere(&mut state, nspace);
        if !matches!(job.elsewhere, Elsewhere::Running) {
            return false;
        }
        job.elsewhere = Elsewhere::Over { exit_code };
        let streams: Vec<SourceId> = job.delivered.values().copied().collect();
        for stream in streams {
            if let Some(delivery) = state.deliveries.get_mut(&stream) {
                delivery.complete = true;
            }
            // A stream that is complete stays as it is, and so do all if the capture has ended.
            let _ = self.capture.finish(stream);
        }
        state.announce_complete_registrations(nspace);
        state.announce_end(nspace);
        drop(state);
        self.tables.reports.wake();
        true
    }

    /// A job; if nobody has spoken of it yet, one that runs elsewhere.
    fn job_elsewhere<'a>(&self, state: &'a mut State, nspace: &Nspace) -> &'a mut JobState {
        let run = if state.jobs.contains_key(nspace) { 0 } else { state.next_run() };
        let new = || {
            let job = JobState::elsewhere(StreamOptions::of(&self.config));
            JobState { run, entry: self.announce(nspace), ..job }
        };
        state.jobs.entry(nspace.clone()).or_insert_with(new)
    }

    /// The stream of a rank that runs elsewhere, made at its first delivery.
    fn delivered(&self, state: &mut State, from: &Proc, channel: Channel) -> Result<SourceId, DeliverError> {
        let job = self.job_elsewhere(state, &from.nspace);
        if job.has_here(from.rank) {
            return Err(DeliverError::Captured(from.clone()));
        }
        if let Some(stream) = job.delivered.get(&(from.rank, channel)) {
            return Ok(*stream);
        }
        match job.elsewhere {
            Elsewhere::No => return Err(DeliverError::AllHere(from.nspace.clone())),
            Elsewhere::Over { .. } => return Err(DeliverError::Complete { from: from.clone(), channel }),
            Elsewhere::Running => {}
        }
        let mut stream = Stream::create(job.options.config(), &format!("{from} {channel}"))?;
        let name = StreamName { source: from.clone(), channel, logged: false, run: job.run };
        let mut new = StreamState::new(name, job.options, job.forward);
        new.release_backlog = job.release_backlog;
        let id = state.add_stream(new, &mut stream);
        if let Some(job) = state.jobs.get_mut(&from.nspace) {
            job.delivered.insert((from.rank, channel), id);
            job.open_deliveries = job.open_deliveries.saturating_add(1);
        }
        state.deliveries.insert(id, Delivery::default());
        // Its ring is on its way to who registered for it.
        self.tables.reports.wake();
        self.capture.open(id, stream)?;
        Ok(id)
    }
}

impl State {
    /// The next `count` deliveries to `stream` were taken: their host is to be told.
    pub(crate) fn taken(&mut self, stream: SourceId, count: usize) {
        let Some(delivery) = self.deliveries.get_mut(&stream) else { return };
        let taken = std::iter::from_fn(|| delivery.pop()).take(count);
        self.upcalls.extend(taken.map(Upcall::Taken));
    }

    /// All that nobody takes any more, because the engine ends.
    pub(crate) fn untaken(&mut self) -> Vec<Taken> {
        let unsaid = std::mem::take(&mut self.upcalls).into_iter().filter_map(Upcall::taken);
        let waiting = self.deliveries.values_mut().flat_map(|delivery| std::iter::from_fn(|| delivery.pop()));
        unsaid.chain(waiting).collect()
    }

    /// A rank that runs elsewhere has one stream more that is complete, if `stream` is one; whether
    /// it is.
    pub(crate) fn delivered_all(&mut self, stream: SourceId, nspace: &Nspace) -> bool {
        let Some(delivery) = self.deliveries.get_mut(&stream) else { return false };
        delivery.complete = true;
        if let Some(job) = self.jobs.get_mut(nspace) {
            job.open_deliveries = job.open_deliveries.saturating_sub(1);
        }
        true
    }
}
