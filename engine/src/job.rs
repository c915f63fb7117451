//! A job: its ranks, their streams, how they ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use iof_capture::{Capture, Event, ProcessId, PtyMaster, Signaller, SourceId, TargetId, WindowSize};
use iof_proto::rendezvous::JobLink;
use iof_proto::{Channel, Channels, Nspace, Rank, StdinUnavailable};
use nix::sys::signal::Signal;

use crate::exit::Exit;
use crate::state::{State, Tables};
use crate::stream_options::StreamOptions;

/// The channels that every rank has.
pub(crate) const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// How often [`Job::flush`] looks.
const FLUSH_LOOKS: Duration = Duration::from_millis(1);

/// What the engine knows of one rank.
pub(crate) struct RankState {
    /// In the order of [`CHANNELS`].
    pub streams: [SourceId; CHANNELS.len()],
    pub executable: String,
    /// 0 if the embedder did not tell.
    pub pid: u32,
    /// Unless only the embedder can reach it.
    pub signaller: Option<Signaller>,
    /// Until it exits.
    pub pty: Option<PtyMaster>,
    /// Why nothing can be pushed to its stdin; `None` if it can.
    pub stdin_unavailable: Option<StdinUnavailable>,
    /// Only the embedder's own tools may push there.
    pub own_stdin: bool,
    pub exit: Option<Exit>,
    /// The embedder has reported its end.
    pub reported: bool,
}

impl RankState {
    /// Its number at the capture: a rank has streams of its own, so the first one's number names no
    /// other process.
    pub(crate) fn process(&self) -> ProcessId {
        ProcessId(self.streams[0].0)
    }

    /// The number of its stdin at the capture, likewise.
    pub(crate) fn target(&self) -> TargetId {
        TargetId(self.streams[0].0)
    }
}

/// A rank that is being started here.
pub(crate) struct Launching {
    pub executable: String,
    /// 0 if there is no process yet, or the embedder did not tell.
    pub pid: u32,
}

/// What the engine knows of a job's ranks that do not run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// There are none.
    No,
    /// Their output may still be delivered.
    Running,
    /// The host has said that they have ended.
    Over {
        /// And how the job did.
        exit_code: Option<i32>,
    },
}

/// What the engine knows of one job.
pub(crate) struct JobState {
    /// Its number among all jobs: tells the jobs that have one name one after the other apart.
    pub run: u64,
    /// What it wants of its streams.
    pub options: StreamOptions,
    /// The channels that its spawner wants forwarded, if it said anything.
    pub forward: Option<Channels>,
    /// It was spawned or adopted here.
    pub here: bool,
    /// Those of its ranks that run here.
    pub ranks: BTreeMap<Rank, RankState>,
    /// Those that are going to.
    pub launching: BTreeMap<Rank, Launching>,
    /// All of these are there: nothing new will come from here.
    pub started: bool,
    /// Whether it has ranks that do not run here.
    pub elsewhere: Elsewhere,
    /// What they wrote.
    pub delivered: BTreeMap<(Rank, Channel), SourceId>,
    /// Streams of these that are not complete.
    pub open_deliveries: usize,
    /// What was logged to their stdout and stderr; under no rank, to those of the job as a whole.
    pub logged: BTreeMap<(Rank, Channel), SourceId>,
    /// Streams of these that are not complete.
    pub open_logs: usize,
    /// Nobody waits any longer for somebody to register.
    pub release_backlog: bool,
    /// Streams that are not complete.
    pub open_streams: usize,
    pub grace: Option<Duration>,
    /// By which tools find it, until it is forgotten or the engine ends.
    pub entry: Option<JobLink>,
    pub cut_off: Vec<(Rank, Channel)>,
    pub first_failure: Option<(Rank, Exit)>,
}

impl JobState {
    /// Without ranks yet.
    pub(crate) fn new(
        grace: Option<Duration>,
        options: StreamOptions,
        forward: Option<Channels>,
    ) -> JobState {
        JobState {
            // Until it is added to the tables.
            run: 0,
            options,
            forward,
            entry: None,
            here: true,
            ranks: BTreeMap::new(),
            launching: BTreeMap::new(),
            started: false,
            elsewhere: Elsewhere::No,
            delivered: BTreeMap::new(),
            open_deliveries: 0,
            logged: BTreeMap::new(),
            open_logs: 0,
            release_backlog: false,
            open_streams: 0,
            grace,
            cut_off: Vec::new(),
            first_failure: None,
        }
    }

    /// Of which nothing runs here.
    pub(crate) fn elsewhere(options: StreamOptions) -> JobState {
        let job = JobState::new(None, options, None);
        JobState { here: false, started: true, elsewhere: Elsewhere::Running, ..job }
    }

    /// Notes how a rank ended.
    pub(crate) fn exited(&mut self, rank: Rank, exit: Exit) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.exit = Some(exit);
            // Or its children's terminal would not be hung up when its stream is closed.
            state.pty = None;
        }
        if !exit.success() && self.first_failure.is_none() {
            self.first_failure = Some((rank, exit));
        }
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.started && self.ranks.values().all(|rank| rank.exit.is_some())
    }

    pub(crate) fn status(&self) -> JobStatus {
        JobStatus { first_failure: self.first_failure, cut_off: self.cut_off.clone() }
    }

    /// Its ranks here have ended, and all that they wrote was read.
    pub(crate) fn is_over(&self) -> bool {
        self.has_exited() && self.open_streams == 0
    }

    /// Whether this rank runs here, or is going to.
    pub(crate) fn has_here(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank) || self.launching.contains_key(&rank)
    }

    /// Those that anybody knows of.
    pub(crate) fn known_ranks(&self) -> impl Iterator<Item = Rank> {
        let here = self.ranks.keys().chain(self.launching.keys());
        here.copied().chain(self.delivered.keys().map(|(rank, _)| *rank))
    }

    /// Whether it has this rank, as far as anybody knows.
    pub(crate) fn has_rank(&self, rank: Rank) -> bool {
        let channels = (rank, Channel::Stdin)..=(rank, Channel::Stddiag);
        self.has_here(rank) || self.delivered.range(channels).next().is_some()
    }

    /// All its ranks are known: nothing new will come.
    pub(crate) fn is_whole(&self) -> bool {
        self.started && !matches!(self.elsewhere, Elsewhere::Running)
    }

    /// All its ranks have ended, here and elsewhere, and all that they wrote is here: nothing is
    /// logged any more.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_whole() && self.is_over() && self.open_deliveries == 0
    }

    /// And all that was logged is, too.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_silent() && self.open_logs == 0
    }

    /// Its ranks here have ended, and all that they wrote and that was logged was read; while it
    /// has others elsewhere, more may be logged.
    pub(crate) fn is_over_with_logs(&self) -> bool {
        self.is_over() && (self.open_logs == 0 || !self.is_silent())
    }

    /// All its streams, here and elsewhere.
    pub(crate) fn streams(&self) -> Vec<SourceId> {
        let here = self.ranks.values().flat_map(|rank| rank.streams);
        here.chain(self.delivered.values().copied()).chain(self.logged.values().copied()).collect()
    }

    /// How the whole of it ended, as far as anybody knows.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let told = if let Elsewhere::Over { exit_code } = self.elsewhere { exit_code } else { None };
        told.or_else(|| self.here.then(|| self.status().code()))
    }
}

/// How a job ended.
#[derive(Clone, Debug, Default)]
pub struct JobStatus {
    /// The rank that failed first, and how; `None` if all ended with 0. A rank of which nobody
    /// knows how it ended has failed.
    pub first_failure: Option<(Rank, Exit)>,
    /// The streams that were not at their end when their rank's grace was over, see
    /// [`JobSpec::grace`](crate::JobSpec::grace), or when they were [closed](Job::close). All
    /// others had their end of file.
    pub cut_off: Vec<(Rank, Channel)>,
}

impl JobStatus {
    /// The exit code of the rank that failed first, 0 if none did.
    pub fn code(&self) -> i32 {
        self.first_failure.map_or(0, |(_, exit)| exit.code())
    }
}

/// A running job. Dropping it changes nothing: the engine knows the job until the engine ends.
#[derive(Clone)]
pub struct Job {
    pub(crate) tables: Arc<Tables>,
    /// Not held, so that it ends with the engine.
    pub(crate) capture: Weak<Capture>,
    pub(crate) nspace: Nspace,
}

impl Job {
    /// The job's name.
    pub fn nspace(&self) -> &Nspace {
        &self.nspace
    }

    /// Waits until every rank that runs here has exited and every stream of theirs is complete, be
    /// it by a grandchild that held it. From any thread.
    pub fn wait(&self) -> JobStatus {
        self.wait_until(JobState::is_over_with_logs)
    }

    /// Waits until every rank that runs here has exited; there may still be output to come.
    pub fn wait_exit(&self) -> JobStatus {
        self.wait_until(JobState::has_exited)
    }

    /// How it ended, if every rank has exited by now.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        let state = self.tables.lock();
        state.jobs.get(&self.nspace).filter(|job| job.has_exited()).map(JobState::status)
    }

    fn wait_until(&self, reached: impl Fn(&JobState) -> bool) -> JobStatus {
        let mut state = self.tables.lock();
        loop {
            match state.jobs.get(&self.nspace) {
                Some(job) if !reached(job) && !state.stopping => {}
                job => return job.map(JobState::status).unwrap_or_default(),
            }
            state = self.tables.wait(state);
        }
    }

    /// Says how a rank ended that was adopted with [`Process::Reported`](crate::Process::Reported).
    /// Once for each; gives `false` if this is not one of those, or was said already.
    pub fn report_exit(&self, rank: Rank, exit: Exit) -> bool {
        let mut state = self.tables.lock();
        let Some(entered) = state.jobs.get_mut(&self.nspace).and_then(|job| job.ranks.get_mut(&rank)) else {
            return false;
        };
        if entered.signaller.is_some() || mem::replace(&mut entered.reported, true) {
            return false;
        }
        let process = entered.process();
        drop(state);
        let status = match exit {
            Exit::Status(status) => Ok(status),
            Exit::Unknown => Err(io::Error::other("the embedder does not know")),
        };
        self.tables.reports.send(Event::Exited { process, status });
        true
    }

    /// Sends `signal` to every rank: to its whole process group if it has one of its own, also when
    /// the rank itself has ended and left children there (before Linux 6.9 these are out of
    /// reach). Gives how many there were.
    pub fn signal(&self, signal: Signal) -> usize {
        self.send(signal, |_| true)
    }

    /// Sends `signal` to the ranks that have process groups of their own. For signals that the
    /// terminal sent to the embedder: the others are in its group, so they have them already.
    pub fn signal_groups(&self, signal: Signal) -> usize {
        self.send(signal, Signaller::has_group)
    }

    fn send(&self, signal: Signal, to: impl Fn(&Signaller) -> bool) -> usize {
        let state = self.tables.lock();
        let Some(job) = state.jobs.get(&self.nspace) else { return 0 };
        let reachable = |rank: &&RankState| {
            let Some(signaller) = &rank.signaller else { return false };
            (rank.exit.is_none() || signaller.has_group()) && to(signaller) && signaller.send(signal).is_ok()
        };
        job.ranks.values().filter(reachable).count()
    }

    /// Ends a stream of the job with what was written to it by now: whoever writes later gets
    /// SIGPIPE. Readers have what came before, and then its end. `false` if the job has no such
    /// stream here, or it was complete.
    pub fn close(&self, rank: Rank, channel: Channel) -> bool {
        let Some(capture) = self.capture.upgrade() else { return false };
        let at = CHANNELS.iter().position(|of| *of == channel);
        let state = self.tables.lock();
        let rank = state.jobs.get(&self.nspace).and_then(|job| job.ranks.get(&rank));
        let Some(&id) = rank.zip(at).and_then(|(rank, at)| rank.streams.get(at)) else { return false };
        drop(state);
        let open = capture.with_streams(|streams| Some(!streams.get_mut(id)?.stats().complete));
        matches!(open, Ok(Some(true))) && capture.finish(id).is_ok()
    }

    /// Keeps no output any more for who has not registered yet: streams that nobody reads go on as
    /// if somebody read them. For a launcher that waits no longer for the tool for which it
    /// spawned the job.
    pub fn release_backlog(&self) {
        let Some(capture) = self.capture.upgrade() else { return };
        let mut state = self.tables.lock();
        if let Some(job) = state.jobs.get_mut(&self.nspace) {
            job.release_backlog = true;
        }
        let ids = self.streams(&state);
        state.release_backlog(&capture, &ids);
    }

    /// Waits until everything that the ranks have written by now was read, and was consumed by the
    /// embedder's own readers ([`Engine::attach`](crate::Engine::attach)); tools from outside
    /// have it before them then. `false` if that was not so after `timeout`, or the engine has
    /// ended.
    pub fn flush(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(mut wanted) = self.written() else { return false };
        loop {
            let Some(capture) = self.capture.upgrade() else { return false };
            if !self.tables.lock().retain_unflushed(&capture, &mut wanted) {
                return false;
            }
            drop(capture);
            if wanted.is_empty() {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            // Readers tell nobody how far they are: they are looked at.
            thread::sleep(FLUSH_LOOKS);
        }
    }

    /// What each of the job's streams has written by now.
    fn written(&self) -> Option<Vec<(SourceId, u64)>> {
        let capture = self.capture.upgrade()?;
        let ids = self.streams(&self.tables.lock());
        let written = capture
            .with_streams(|streams| ids.iter().filter_map(|id| Some((*id, streams.written(*id)?))).collect());
        written.ok()
    }

    fn streams(&self, state: &State) -> Vec<SourceId> {
        state.jobs.get(&self.nspace).map(JobState::streams).unwrap_or_default()
    }

    /// A handle of the pty of `rank`, to type there; `None` if it has none, or has exited. While
    /// there is a handle, the rank does not hear that the engine has ended.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pty(&self, rank: Rank) -> io::Result<Option<PtyMaster>> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace);
        job.and_then(|job| job.ranks.get(&rank)?.pty.as_ref()).map(PtyMaster::try_clone).transpose()
    }

    /// Changes the size of all ranks' ptys; the processes in their foreground get SIGWINCH. Gives
    /// how many there were.
    pub fn resize(&self, size: WindowSize) -> usize {
        let state = self.tables.lock();
        let Some(job) = state.jobs.get(&self.nspace) else { return 0 };
        let ptys = job.ranks.values().filter_map(|rank| rank.pty.as_ref());
        ptys.filter(|pty| pty.resize(size).is_ok()).count()
    }

    /// The rank that leads the process group `group`.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace)?;
        let leads =
            |rank: &RankState| rank.pid == group && rank.signaller.as_ref().is_some_and(Signaller::has_group);
        job.ranks.iter().find(|(_, rank)| leads(rank)).map(|(rank, _)| *rank)
    }
}
