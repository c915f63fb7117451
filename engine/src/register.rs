//! Registration of jobs and their ranks in the tables, however they were started.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iof_capture::{
    AddError, Child, Event, FirstWrites, NewStream, PipeId, ProcessId, PtyMaster, SourceId, Stopped,
};
use iof_proto::{Channel, Directives, Nspace, Proc, Rank, StdinUnavailable, rendezvous};
use iof_shm_ring::{CreateError, Stream};
use nix::unistd::isatty;

use crate::core::commands::answered;
use crate::core::ids::StreamName;
use crate::core::job::{CHANNELS, JobState, Launching, RankState, RemoteRanks};
use crate::core::stream_options::StreamOptions;
use crate::core::stream_state::StreamState;
use crate::early_end::EarlyEndPolicy;
use crate::engine::Engine;
use crate::exit::SentSignals;
use crate::job::Job;

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
                state.jobs.get_or_add(nspace, || job);
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
        streams: [Stream; CHANNELS.len()],
        first_writes: Option<&Arc<Mutex<FirstWrites>>>,
    ) -> Result<(), AddError> {
        let RunningRank { rank, child, stdin, own_stdin, pipes, pty } = rank;
        let source = Proc::new(nspace.clone(), rank);
        let mut state = self.tables.lock();
        if !state.has_capture {
            return Err(Stopped.into());
        }
        // `begin` has created the job and noted this rank.
        let job = state.jobs.get_mut(nspace);
        let (run, options, forward, launching) = job
            .map_or((0, StreamOptions::of(&self.config), None, None), |job| {
                (job.run, job.options, job.forward, job.launching.remove(&rank))
            });
        let Launching { executable, pid } =
            launching.unwrap_or_else(|| Launching { executable: String::new(), pid: 0 });
        let mut ids = [SourceId(0); CHANNELS.len()];
        let mut new_streams = Vec::with_capacity(CHANNELS.len());
        for ((id, stream), channel) in ids.iter_mut().zip(streams).zip(CHANNELS) {
            let name = StreamName { source: source.clone(), channel, logged: false, run };
            let (new_id, new_stream) = state.add_stream(StreamState::new(name, options, forward), stream);
            *id = new_id;
            new_streams.push(new_stream);
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
            RankStdin::Open(pipe) => Some(pipe),
            RankStdin::Not(why) => {
                registered.stdin_unavailable = Some(why);
                None
            }
        };
        for ((id, channel), pipe) in ids.into_iter().zip(CHANNELS).zip(&pipes) {
            self.stalls.add(PipeId::Source(id), &source, channel, isatty(pipe).unwrap_or(false));
        }
        if pipe.is_some() {
            self.stalls.add(PipeId::Target(target), &source, Channel::Stdin, false);
        }
        state.jobs.add_rank(source, registered, pipe.is_some());
        let requests = new_streams.iter().filter_map(|stream| answered(stream.first.as_ref()));
        let unanswered: Vec<Event> = requests.collect();
        // The target is registered before its end can be reported.
        let added = pipe.map_or(Ok(()), |pipe| {
            self.capture.add_target(target, pipe).map_err(|_| AddError::Stopped(Stopped))
        });
        // These commands carry pipes, so they are sent here. None is queued before them: the queue is
        // empty when the tables are locked.
        let sources =
            ids.into_iter().zip(pipes).zip(new_streams).map(|((id, pipe), stream)| (id, pipe, stream));
        let sent = added.and_then(|()| self.send_sources(process, child, sources, first_writes));
        if sent.is_err() {
            unanswered.into_iter().for_each(|event| self.tables.reports.send(event));
        }
        sent
    }

    /// Hands the output of a rank to the capture thread.
    fn send_sources(
        &self,
        process: ProcessId,
        child: Option<Child>,
        mut sources: impl Iterator<Item = (SourceId, OwnedFd, NewStream)>,
        first_writes: Option<&Arc<Mutex<FirstWrites>>>,
    ) -> Result<(), AddError> {
        let mut first = sources.next();
        let has_terminal = first.as_ref().is_some_and(|(_, pipe, _)| isatty(pipe).unwrap_or(false));
        match child {
            Some(child) if has_terminal => {
                if let Some((id, master, stream)) = first.take() {
                    self.capture.add_session(id, master, stream, process, child)?;
                }
            }
            Some(child) => self.capture.watch(process, child).map_err(AddError::from)?,
            None => {}
        }
        let mut sources = first.into_iter().chain(sources);
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
        state.jobs.schedule_early_end(&job.nspace, Instant::now());
        state.begin_deferred();
        state.announce_complete_registrations(&job.nspace);
        // The ranks may have ended meanwhile.
        state.announce_end(&job.nspace);
        drop(state);
        self.tables.notify();
        self.tables.reports.wake();
    }
}
