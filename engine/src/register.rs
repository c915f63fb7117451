//! How a job and its ranks come into the tables, whoever has started them.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use iof_capture::{AddError, Child, PipeId, PtyMaster, SourceId, Stopped};
use iof_proto::rendezvous;
use iof_proto::{Channel, Directives, Nspace, Proc, Rank, StdinUnavailable};
use iof_shm_ring::{CreateError, Stream};
use nix::unistd::isatty;

use crate::engine::Engine;
use crate::job::{CHANNELS, Elsewhere, Job, JobState, Launching, RankState};
use crate::readers::StreamState;
use crate::state::StreamName;
use crate::stream_options::StreamOptions;

/// Files that a rank needs in the engine: three pipes, three rings, its pidfd. A pty is one more.
pub(crate) const FILES_PER_RANK: u64 = 7;
/// Memory maps that a rank needs in the engine: two for each of its three rings, and two more for
/// one reader of each in this process.
pub(crate) const MAPS_PER_RANK: u64 = 12;
/// Files that a job needs for a moment: the last rank's ends of its pipes and what std starts it
/// with, rings on their way to readers in this process.
pub(crate) const TRANSIENT_FDS: u64 = 16;

/// A rank's stdin: the end of a pipe into which it can be pushed, or why that can't be.
pub(crate) enum RankStdin {
    Open(OwnedFd),
    Not(StdinUnavailable),
}

/// A rank that runs.
pub(crate) struct Entry {
    pub rank: Rank,
    /// `None` if the embedder is going to report its end.
    pub child: Option<Child>,
    pub stdin: RankStdin,
    /// Which is only for the embedder to push into.
    pub own_stdin: bool,
    /// In the order of [`CHANNELS`].
    pub pipes: [OwnedFd; CHANNELS.len()],
    pub pty: Option<PtyMaster>,
}

impl Engine {
    /// Takes a name for a job that is to have the ranks of `launching` here, which are known from
    /// now on; `None` if there is a job of that name. One of which output was delivered already
    /// is none if it has ranks elsewhere, which are others.
    pub(crate) fn begin(
        &self,
        nspace: &Nspace,
        grace: Option<Duration>,
        directives: &Directives,
        elsewhere: bool,
        launching: BTreeMap<Rank, Launching>,
    ) -> Option<Job> {
        let mut state = self.tables.lock();
        let options = StreamOptions::of(&self.config).under(directives);
        let mut job = JobState { launching, ..JobState::new(grace, options, directives.forward) };
        if elsewhere {
            job.elsewhere = Elsewhere::Running;
        }
        match state.jobs.get_mut(nspace) {
            // What its ranks elsewhere wrote was here before it.
            Some(known)
                if elsewhere
                    && !known.here
                    && known.elsewhere == Elsewhere::Running
                    && !known.delivered.keys().any(|(rank, _)| job.launching.contains_key(rank)) =>
            {
                job.run = known.run;
                job.elsewhere = known.elsewhere;
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
        })
    }

    /// Has tools find the engine by the name of a job.
    pub(crate) fn announce(&self, nspace: &Nspace) -> Option<rendezvous::JobLink> {
        let announced = self.listener.as_ref()?.announce(nspace);
        announced.inspect_err(|error| tracing::warn!(%error, "a job has no entry")).ok().flatten()
    }

    /// Makes the streams of a rank, in the order of [`CHANNELS`].
    pub(crate) fn streams(
        &self,
        nspace: &Nspace,
        rank: Rank,
        directives: &Directives,
    ) -> Result<[Stream; CHANNELS.len()], CreateError> {
        let config = StreamOptions::of(&self.config).under(directives).config();
        let source = Proc { nspace: nspace.clone(), rank };
        let stream = |channel: Channel| Stream::create(config, &format!("{source} {channel}"));
        let [first, second, third] = CHANNELS;
        Ok([stream(first)?, stream(second)?, stream(third)?])
    }

    /// Attaches who waits for a rank that runs, and has it drained from now on.
    ///
    /// # Errors
    /// The capture thread has ended. The rank's descriptors are closed then.
    pub(crate) fn enter(
        &self,
        nspace: &Nspace,
        entry: Entry,
        mut streams: [Stream; CHANNELS.len()],
    ) -> Result<(), AddError> {
        let Entry { rank, child, stdin, own_stdin, pipes, pty } = entry;
        let source = Proc { nspace: nspace.clone(), rank };
        let mut state = self.tables.lock();
        // Since `begin` there is a job, and it is to have this rank.
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
        let mut entered = RankState {
            streams: ids,
            executable,
            pid,
            signaller,
            pty,
            unopen: None,
            own_stdin,
            exit: None,
            reported: false,
        };
        let (process, target) = (entered.process(), entered.target());
        let pipe = match stdin {
            RankStdin::Open(pipe) => {
                state.stdins.insert(target, source.clone());
                Some(pipe)
            }
            RankStdin::Not(why) => {
                entered.unopen = Some(why);
                None
            }
        };
        let stdin_of = source.clone();
        for ((id, channel), pipe) in ids.into_iter().zip(CHANNELS).zip(&pipes) {
            self.stalls.add(PipeId::Source(id), &source, channel, isatty(pipe).unwrap_or(false));
        }
        state.processes.insert(process, source);
        if let Some(job) = state.jobs.get_mut(nspace) {
            job.open_streams = job.open_streams.saturating_add(ids.len());
            job.ranks.insert(rank, entered);
        }
        // Before its end can be reported.
        if let Some(pipe) = pipe {
            self.stalls.add(PipeId::Target(target), &stdin_of, Channel::Stdin, false);
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
        for ((id, pipe), stream) in sources {
            self.capture.add(id, pipe, stream)?;
        }
        Ok(())
    }

    /// No further rank will come from here. A job without any is forgotten, unless something was
    /// logged to it.
    pub(crate) fn all_entered(&self, job: &Job) {
        let mut state = self.tables.lock();
        if let Some(entered) = state.jobs.get_mut(&job.nspace) {
            entered.started = true;
            entered.launching.clear();
            if entered.ranks.is_empty() && !entered.delivered.is_empty() {
                entered.here = false;
            } else if entered.ranks.is_empty() && entered.logged.is_empty() {
                state.jobs.remove(&job.nspace);
            }
        }
        state.begin_deferred(&self.capture);
        state.announce_complete_registrations(&job.nspace);
        // Its ranks may have ended meanwhile.
        state.announce_end(&job.nspace);
        drop(state);
        self.tables.notify();
        self.tables.reports.wake();
    }
}
