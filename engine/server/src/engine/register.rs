//! Registration of jobs and their ranks in the tables, however they were started.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use iof_capture::{Child, Command, FirstWrites, NewProcess, NewSource, PipeId, PtyMaster, Stopped};
use iof_core::{JobId, NewJob, RegisteredRank, SignalReach, StdinAccess};
use iof_proto::{Channel, Directives, Nspace, Proc, Rank};
use iof_shm_ring::{CreateError, Growth, Interaction, Stream};
use nix::unistd::isatty;

use crate::control::starter::Starter;
use crate::job::Job;
use crate::tables::files::is_memory_limited;
use crate::tables::handles::{JobEnd, RankHandles};

/// A running rank that is about to be registered.
pub(crate) struct RunningRank {
    pub rank: Rank,
    /// The child process; `None` if the embedder reports its exit.
    pub child: Option<Child>,
    /// The pipe end that pushes are written to, if tools have access to its stdin.
    pub stdin: Option<OwnedFd>,
    pub access: StdinAccess,
    /// In the order of [`Channel::OUTPUTS`].
    pub pipes: Vec<OwnedFd>,
    pub pty: Option<PtyMaster>,
}

impl Starter {
    /// Adds a job whose local ranks are being launched. Returns `None` if its name is taken, see
    /// [`Core::begin_job`](iof_core::Core::begin_job).
    pub(crate) fn begin(&self, new: NewJob<'_>) -> Option<Job> {
        let mut tables = self.tables.lock();
        let id = tables.begin_job(new)?;
        let end = tables.handles().end_of_job(&id);
        Some(self.handle(id, end))
    }

    /// Returns a handle of the present job of this name. It may be one whose ranks are all remote,
    /// which is known when output of its ranks was delivered.
    pub(crate) fn job(&self, nspace: &Nspace) -> Option<Job> {
        let mut tables = self.tables.lock();
        let id = JobId { nspace: nspace.clone(), run: tables.job_named(nspace)?.run() };
        let end = tables.handles().end_of_job(&id);
        Some(self.handle(id, end))
    }

    fn handle(&self, id: JobId, end: Arc<OnceLock<JobEnd>>) -> Job {
        Job { tables: Arc::clone(&self.tables), capture: Arc::downgrade(&self.capture), id, end }
    }

    /// Creates the streams of a rank in a job with `ranks` ranks, in the order of [`Channel::OUTPUTS`].
    pub(crate) fn streams(
        &self,
        nspace: &Nspace,
        rank: Rank,
        directives: &Directives,
        ranks: u64,
        interaction: Interaction,
    ) -> Result<Vec<Stream>, CreateError> {
        let options = self.config.options().under(directives);
        let growth = Growth { first: options.first_size(ranks), budget: Arc::clone(&self.caches) };
        let config = options.config();
        let source = Proc::new(nspace.clone(), rank);
        let stream = |channel: Channel| {
            let mut stream = Stream::create_growing(config, &growth, &format!("{source} {channel}"))?;
            stream.set_interaction(interaction);
            Ok(stream)
        };
        let mut streams: Vec<_> = Channel::OUTPUTS.into_iter().map(stream).collect::<Result<_, _>>()?;
        // Printers write the channels of a rank in the order in which they were read.
        Stream::share_order(&mut streams);
        if is_memory_limited() {
            // The job must not start if its rings do not fit, or its ranks would wait without end.
            streams.iter_mut().try_for_each(Stream::allocate)?;
        }
        Ok(streams)
    }

    /// Reserves what the embedder's own gating readers need for the streams of `ranks`, which are
    /// registered later: no rank may run whose output one of them misses.
    /// [`Starter::all_registered`] frees what is left.
    ///
    /// # Errors
    /// Returns the rank for which too little memory or too few slots are left.
    pub(crate) fn reserve_readers(
        &self,
        nspace: &Nspace,
        mut ranks: impl Iterator<Item = Rank>,
    ) -> Result<(), (Rank, CreateError)> {
        let mut tables = self.tables.lock();
        ranks.try_for_each(|rank| tables.reserve_readers_of(nspace, rank).map_err(|source| (rank, source)))
    }

    /// Registers a running rank: attaches the registered readers and starts to drain its output.
    /// Pipes that have bytes already are read in the order of `first_writes`.
    ///
    /// # Errors
    /// Fails if the capture thread has ended. The rank's descriptors are closed then.
    pub(crate) fn register_rank(
        &self,
        nspace: &Nspace,
        rank: RunningRank,
        streams: Vec<Stream>,
        first_writes: Option<&FirstWrites>,
    ) -> Result<(), Stopped> {
        let RunningRank { rank, child, stdin, access, pipes, pty } = rank;
        let signaller = child.as_ref().map(Child::signaller);
        let signals = match &signaller {
            None => SignalReach::Nothing,
            Some(signaller) if signaller.has_group() => SignalReach::Group,
            Some(_) => SignalReach::Process,
        };
        let source = Proc::new(nspace.clone(), rank);
        let mut tables = self.tables.lock();
        if let Some(signaller) = &signaller {
            tables.note_pid(nspace, rank, signaller.pid(), signaller.began());
        }
        let registered = tables.register_rank(nspace, rank, signals, access)?;
        let RegisteredRank { streams: ids, process, target } = registered;
        tables.handles().add_rank(process, RankHandles { signaller, pty });
        for (((id, _), channel), pipe) in ids.iter().zip(Channel::OUTPUTS).zip(&pipes) {
            self.stalls.add(PipeId::Source(*id), &source, channel, isatty(pipe).unwrap_or(false));
        }
        if stdin.is_some() {
            self.stalls.add(PipeId::Target(target), &source, Channel::Stdin, false);
        }
        // The target is registered before its end can be reported. These commands carry pipes, so
        // they are sent here. None is queued before them: the queue is empty when the tables are
        // locked.
        let target = stdin.map(|pipe| Command::AddTarget { target, pipe });
        let memory = &self.tables.memory;
        let sources = ids.into_iter().zip(streams).zip(pipes).map(|(((id, first), stream), pipe)| {
            // The page of a tool exists as long as the tool is connected.
            NewSource { id, pipe, stream, first: memory.with_pages(first) }
        });
        let process = child.map(|child| (process, child));
        let (sources, first_writes) = (sources.collect(), first_writes.cloned());
        let added = Command::Add(NewProcess { process, sources, first_writes });
        // The engine never uses an id twice.
        self.capture.send(target.into_iter().chain([added])).map_err(|refused| {
            refused.into_events().into_iter().for_each(|event| self.tables.reports.send(event));
            Stopped
        })
    }

    /// Records that all local ranks of a job are registered.
    pub(crate) fn all_registered(&self, job: &Job) {
        self.tables.lock().all_registered(job.nspace(), Instant::now());
        self.tables.notify();
        self.tables.reports.wake();
    }
}
