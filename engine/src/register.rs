//! Registration of jobs and their ranks in the tables, however they were started.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iof_capture::{AddError, Child, FirstWrites, PipeId, PtyMaster, SourceId, Stopped};
use iof_proto::rendezvous;
use iof_proto::{Channel, Directives, Nspace, Proc, Rank, StdinUnavailable};
use iof_shm_ring::{CreateError, Stream};
use nix::unistd::isatty;

use crate::early_end::EarlyEndPolicy;
use crate::engine::Engine;
use crate::exit::SentSignals;
use crate::job::{CHANNELS, Job, JobState, Launching, RankState, RemoteRanks};
use crate::state::StreamName;
use crate::stream_options::StreamOptions;
use crate::stream_state::StreamState;

/// File descriptors of a rank in the engine: three pipes, three rings and a pidfd. A pty is one
/// more.
pub(crate) const FILES_PER_RANK: u64 = 7;
/// Memory maps of a rank in the engine: two for each of its three rings, and two more for one
/// reader of each ring in this process.
pub(crate) const MAPS_PER_RANK: u64 = 12;
/// File descriptors that a job needs temporarily: the last rank's ends of its pipes, those that std
/// uses to start it, and rings on their way to readers in this process.
pub(crate) const TRANSIENT_FDS: u64 = 16;

/// A rank's stdin: the pipe end that pushes are written to, or the reason why it accepts none.
pub(crate) enum RankStdin {
    Open(OwnedFd),
    Not(StdinUnavailable),
}

/// A running rank that is about to be registered.
pub(crate) struct RunningRank {
    pub rank: Rank,
    /// The child process; `None` if the embedder reports its exit.
    pub child: Option<Child>,
    pub stdin: RankStdin,
    /// Whether only the embedder may push to this stdin.
    pub own_stdin: bool,
    /// In the order of [`CHANNELS`].
    pub pipes: [OwnedFd; CHANNELS.len()],
    pub pty: Option<PtyMaster>,
}

impl Engine {
    /// Reserves `nspace` for a job whose local ranks are `launching`.
    ///
    /// Returns `None` if the name is taken. A job that is known only through output delivered from
    /// other nodes does not take the name if the new job has ranks elsewhere, provided no rank
    /// occurs in both.
    pub(crate) fn begin(
        &self,
        nspace: &Nspace,
        grace: Option<Duration>,
        early_end_policy: EarlyEndPolicy,
        directives: &Directives,
        elsewhere: bool,
        launching: BTreeMap<Rank, Launching>,
    ) -> Option<Job> {
        let mut state = self.tables.lock();
        let options = StreamOptions::of(&self.config).under(directives);
        let job = JobState::new(grace, options, directives.forward);
        let mut job = JobState { launching, early_end_policy, ..job };
        let final_status = Arc::clone(&job.final_status);
        if elsewhere {
            job.remote = RemoteRanks::Running;
        }
        match state.jobs.get_mut(nspace) {
            // Output of its ranks elsewhere was delivered before the job was started here.
            Some(known)
                if elsewhere
                    && !known.is_local
                    && known.remote == RemoteRanks::Running
                    && !known.delivered.keys().any(|(rank, _)| job.launching.contains_key(rank)) =>
            {
                job.run = known.run;
                job.remote = known.remote;
                job.entry = known.entry.take();
                job.delivered = mem::take(&mut known.delivered);
                job.open_deliveries = known.open_deliveries;
                job.logged = mem::take(&mut known.logged);
                job.open_logs = known.open_logs;
                *known = job;
            }
            Some(_) => return None,
            None => {
                job.entry = self.announce(nspace);
                job.run = state.next_run();
                state.jobs.insert(nspace.clone(), job);
            }
        }
        Some(Job {
            tables: Arc::clone(&self.tables),
            capture: Arc::downgrade(&self.capture),
            nspace: nspace.clone(),
            final_status,
        })
    }

    /// Publishes the name of a job, so that tools find the engine by it.
    pub(crate) fn announce(&self, nspace: &Nspace) -> Option<rendezvous::JobLink> {
        let announced = self.listener.as_ref()?.announce(nspace);
        announced.inspect_err(|error| tracing::warn!(%error, "a job has no entry")).ok().flatten()
    }

    /// Creates the streams of a rank, in the order of [`CHANNELS`].
    pub(crate) fn streams(
        &self,
        nspace: &Nspace,
        rank: Rank,
        directives: &Directives,
    ) -> Result<[Stream; CHANNELS.len()], CreateError> {
        let config = StreamOptions::of(&self.config).under(directives).config();
        let source = Proc::new(nspace.clone(), rank);
        let stream = |channel: Channel| Stream::create(config, &format!("{source} {channel}"));
        let [first, second, third] = CHANNELS;
        let mut streams = [stream(first)?, stream(second)?, stream(third)?];
        // Printers write the channels of a rank in the order in which they were read.
        Stream::share_order(&mut streams);
        Ok(streams)
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
        mut streams: [Stream; CHANNELS.len()],
        first_writes: Option<&Arc<Mutex<FirstWrites>>>,
    ) -> Result<(), AddError> {
        let RunningRank { rank, child, stdin, own_stdin, pipes, pty } = rank;
        let source = Proc::new(nspace.clone(), rank);
        let mut state = self.tables.lock();
        // `begin` has created the job and noted this rank.
        let job = state.jobs.get_mut(nspace);
        let (run, options, forward, launching) = job
            .map_or((0, StreamOptions::of(&self.config), None, None), |job| {
                (job.run, job.options, job.forward, job.launching.remove(&rank))
            });
        let Launching { executable, pid } =
            launching.unwrap_or_else(|| Launching { executable: String::new(), pid: 0 });
        let mut ids = [SourceId(0); CHANNELS.len()];
        for ((id, stream), channel) in ids.iter_mut().zip(&mut streams).zip(CHANNELS) {
            let name = StreamName { source: source.clone(), channel, logged: false, run };
            *id = state.add_stream(StreamState::new(name, options, forward), stream);
        }
        let signaller = child.as_ref().map(Child::signaller);
        let mut registered = RankState {
            streams: ids,
            executable,
            pid,
            signaller,
            pty,
            stdin_unavailable: None,
            own_stdin,
            exit: None,
            sent: SentSignals::default(),
            exit_requested: false,
            reported: false,
        };
        let (process, target) = (registered.process(), registered.target());
        let pipe = match stdin {
            RankStdin::Open(pipe) => {
                state.stdins.insert(target, source.clone());
                Some(pipe)
            }
            RankStdin::Not(why) => {
                registered.stdin_unavailable = Some(why);
                None
            }
        };
        let stdin_source = source.clone();
        for ((id, channel), pipe) in ids.into_iter().zip(CHANNELS).zip(&pipes) {
            self.stalls.add(PipeId::Source(id), &source, channel, isatty(pipe).unwrap_or(false));
        }
        state.processes.insert(process, source);
        if let Some(job) = state.jobs.get_mut(nspace) {
            job.open_streams = job.open_streams.saturating_add(ids.len());
            job.ranks.insert(rank, registered);
        }
        // The target is registered before its end can be reported.
        if let Some(pipe) = pipe {
            self.stalls.add(PipeId::Target(target), &stdin_source, Channel::Stdin, false);
            self.capture.add_target(target, pipe).map_err(|_| AddError::Stopped(Stopped))?;
        }
        let has_terminal = isatty(&pipes[0]).unwrap_or(false);
        let mut sources = ids.into_iter().zip(pipes).zip(streams);
        match child {
            Some(child) if has_terminal => {
                if let Some(((id, master), stream)) = sources.next() {
                    self.capture.add_session(id, master, stream, process, child)?;
                }
            }
            Some(child) => self.capture.watch(process, child).map_err(AddError::from)?,
            None => {}
        }
        let mut sources = sources.map(|((id, pipe), stream)| (id, pipe, stream));
        match first_writes {
            Some(first_writes) => self.capture.add_watched(sources, first_writes)?,
            None => sources.try_for_each(|(id, pipe, stream)| self.capture.add(id, pipe, stream))?,
        }
        Ok(())
    }

    /// Records that all local ranks of a job are registered. A job without ranks is removed, unless
    /// something was logged to it or delivered for it.
    pub(crate) fn all_registered(&self, job: &Job) {
        let mut state = self.tables.lock();
        if let Some(job_state) = state.jobs.get_mut(&job.nspace) {
            job_state.started = true;
            job_state.launching.clear();
            if job_state.ranks.is_empty() && !job_state.delivered.is_empty() {
                job_state.is_local = false;
            } else if job_state.ranks.is_empty() && job_state.logged.is_empty() {
                state.jobs.remove(&job.nspace);
            }
        }
        state.schedule_early_end(&job.nspace, Instant::now());
        state.begin_deferred(&self.capture);
        state.announce_complete_registrations(&job.nspace);
        // The ranks may have ended meanwhile.
        state.announce_end(&job.nspace);
        drop(state);
        self.tables.notify();
        self.tables.reports.wake();
    }
}
