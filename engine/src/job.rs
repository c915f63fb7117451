//! A job: its ranks, their streams and their exit statuses.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, thread};

use iof_capture::{Capture, Event, ProcessId, PtyMaster, Signal, Signaller, SourceId, TargetId, WindowSize};
use iof_proto::rendezvous::JobLink;
use iof_proto::{Channel, Channels, Nspace, Rank, StdinUnavailable};

use crate::early_end::{EarlyEnd, EarlyEndPolicy, EndCause, TIMEOUT_CODE};
use crate::endings::EndingEntry;
use crate::exit::{Exit, SentSignals};
use crate::state::{State, Tables};
use crate::stream_options::StreamOptions;

/// The output channels of every rank.
pub(crate) const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// Interval at which [`Job::flush`] polls the positions of readers.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// The state of one local rank.
pub(crate) struct RankState {
    /// In the order of [`CHANNELS`].
    pub streams: [SourceId; CHANNELS.len()],
    pub executable: String,
    /// 0 if the embedder did not specify it.
    pub pid: u32,
    /// `None` if only the embedder can send signals to the rank.
    pub signaller: Option<Signaller>,
    /// The master of the rank's pty, until the rank exits.
    pub pty: Option<PtyMaster>,
    /// The reason why bytes can't be pushed to its stdin; `None` if they can.
    pub stdin_unavailable: Option<StdinUnavailable>,
    /// Only the embedder's own tools may push to its stdin.
    pub own_stdin: bool,
    pub exit: Option<Exit>,
    /// The signals that were sent to the rank.
    pub sent: SentSignals,
    /// The rank failed because of these signals.
    pub exit_requested: bool,
    /// The embedder has reported the exit of the rank.
    pub reported: bool,
}

impl RankState {
    /// Returns the id of the rank's process at the capture. It is the id of the rank's first
    /// stream, which no other rank has.
    pub(crate) fn process(&self) -> ProcessId {
        ProcessId(self.streams[0].0)
    }

    /// Returns whether the rank is in the embedder's process group.
    pub(crate) fn shares_group(&self) -> bool {
        self.signaller.as_ref().is_some_and(|signaller| !signaller.has_group())
    }

    /// Returns the id of the rank's stdin at the capture, which is derived in the same way.
    pub(crate) fn target(&self) -> TargetId {
        TargetId(self.streams[0].0)
    }
}

/// A local rank that is being started.
pub(crate) struct Launching {
    pub executable: String,
    /// 0 if there is no process yet, or the embedder did not specify it.
    pub pid: u32,
}

/// The state of a job's remote ranks: those that are not started or adopted by this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteRanks {
    /// The job has no remote ranks.
    None,
    /// Their output may still be delivered.
    Running,
    /// The host has ended the remote part of the job.
    Ended {
        /// The exit code of the job, if the host specified it.
        exit_code: Option<i32>,
    },
}

/// The state of one job.
pub(crate) struct JobState {
    /// Its number among all jobs, which distinguishes successive jobs of the same name.
    pub run: u64,
    /// The options of its streams.
    pub options: StreamOptions,
    /// The channels that its spawner wants forwarded; `None` if the spawner did not specify any.
    pub forward: Option<Channels>,
    /// It was spawned or adopted by this engine.
    pub is_local: bool,
    /// Its local ranks.
    pub ranks: BTreeMap<Rank, RankState>,
    /// Its local ranks that are still being started.
    pub launching: BTreeMap<Rank, Launching>,
    /// All local ranks were started.
    pub started: bool,
    /// The state of its remote ranks.
    pub remote: RemoteRanks,
    /// The streams of its remote ranks.
    pub delivered: BTreeMap<(Rank, Channel), SourceId>,
    /// The number of streams in `delivered` that are not complete.
    pub open_deliveries: usize,
    /// The streams of what was logged to stdout and stderr. [`Rank::UNDEF`] stands for the job as a
    /// whole.
    pub logged: BTreeMap<(Rank, Channel), SourceId>,
    /// The number of streams in `logged` that are not complete.
    pub open_logs: usize,
    /// The embedder has released the backlog: no more output is kept for tools that have not
    /// registered yet.
    pub release_backlog: bool,
    /// The number of streams of local ranks that are not complete.
    pub open_streams: usize,
    /// The time for which streams may stay open after their rank has exited; `None` for no limit.
    pub grace: Option<Duration>,
    /// The rendezvous entry by which tools find the job, until the job is forgotten or the engine
    /// ends.
    pub entry: Option<JobLink>,
    /// The streams that were completed before their end of file.
    pub cut_off: Vec<(Rank, Channel)>,
    pub first_failure: Option<(Rank, Exit)>,
    /// The exit status, which is set when the job is removed. Handles of the job share it.
    pub final_status: Arc<OnceLock<JobStatus>>,
    pub early_end_policy: EarlyEndPolicy,
    /// How the engine ended the job early.
    pub early_end: Option<EarlyEnd>,
    /// The ends of its local ranks, in the order in which they were detected.
    pub endings: Vec<EndingEntry>,
}

impl JobState {
    /// Returns a local job without ranks.
    pub(crate) fn new(
        grace: Option<Duration>,
        options: StreamOptions,
        forward: Option<Channels>,
    ) -> JobState {
        JobState {
            // Set when the job is added to the tables.
            run: 0,
            options,
            forward,
            entry: None,
            is_local: true,
            ranks: BTreeMap::new(),
            launching: BTreeMap::new(),
            started: false,
            remote: RemoteRanks::None,
            delivered: BTreeMap::new(),
            open_deliveries: 0,
            logged: BTreeMap::new(),
            open_logs: 0,
            release_backlog: false,
            open_streams: 0,
            grace,
            cut_off: Vec::new(),
            first_failure: None,
            final_status: Arc::default(),
            early_end_policy: EarlyEndPolicy::never(),
            early_end: None,
            endings: Vec::new(),
        }
    }

    /// Returns a job that has remote ranks only.
    pub(crate) fn elsewhere(options: StreamOptions) -> JobState {
        let job = JobState::new(None, options, None);
        JobState { is_local: false, started: true, remote: RemoteRanks::Running, ..job }
    }

    /// Returns whether all local ranks have exited.
    pub(crate) fn has_exited(&self) -> bool {
        self.started && self.ranks.values().all(|rank| rank.exit.is_some())
    }

    /// Returns the exit status of the local ranks so far.
    pub(crate) fn status(&self) -> JobStatus {
        JobStatus {
            first_failure: self.first_failure,
            cut_off: self.cut_off.clone(),
            early_end: self.early_end.clone(),
        }
    }

    /// Returns whether all local ranks have exited and their streams are complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.has_exited() && self.open_streams == 0
    }

    /// Returns whether `rank` is a local rank, which runs or is being started.
    pub(crate) fn has_local_rank(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank) || self.launching.contains_key(&rank)
    }

    /// Returns the ranks that are known: the local ones, and the remote ones with delivered output.
    pub(crate) fn known_ranks(&self) -> impl Iterator<Item = Rank> {
        let local = self.ranks.keys().chain(self.launching.keys());
        local.copied().chain(self.delivered.keys().map(|(rank, _)| *rank))
    }

    /// Returns whether `rank` is among the known ranks.
    pub(crate) fn has_rank(&self, rank: Rank) -> bool {
        let channels = (rank, Channel::Stdin)..=(rank, Channel::Stddiag);
        self.has_local_rank(rank) || self.delivered.range(channels).next().is_some()
    }

    /// Returns whether all ranks are known, so that no stream of a new rank can appear.
    pub(crate) fn all_ranks_known(&self) -> bool {
        self.started && !matches!(self.remote, RemoteRanks::Running)
    }

    /// Returns whether all local and remote ranks have ended and their streams are complete.
    /// Nothing is logged to the job any more then.
    pub(crate) fn is_output_complete(&self) -> bool {
        self.all_ranks_known() && self.is_drained() && self.open_deliveries == 0
    }

    /// Returns whether the streams of what was logged are complete as well.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_output_complete() && self.open_logs == 0
    }

    /// Returns whether all local ranks have exited, their streams are complete, and so are the
    /// streams of what was logged. The latter need not be complete while the job has remote ranks,
    /// because more may be logged.
    pub(crate) fn is_drained_with_logs(&self) -> bool {
        self.is_drained() && (self.open_logs == 0 || !self.is_output_complete())
    }

    /// Returns all streams of the job.
    pub(crate) fn streams(&self) -> Vec<SourceId> {
        let local = self.ranks.values().flat_map(|rank| rank.streams);
        local.chain(self.delivered.values().copied()).chain(self.logged.values().copied()).collect()
    }

    /// Returns the exit code of the job as a whole, if it is known.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let reported = if let RemoteRanks::Ended { exit_code } = self.remote { exit_code } else { None };
        reported.or_else(|| self.is_local.then(|| self.status().code()))
    }
}

/// The exit status of a job's local ranks.
#[derive(Clone, Debug, Default)]
pub struct JobStatus {
    /// The rank that failed first, with its exit status; `None` if no rank has failed. A rank fails
    /// if its exit code is not 0, a signal ends it, or its status is [`Exit::Unknown`].
    pub first_failure: Option<(Rank, Exit)>,
    /// The streams that were completed before their end of file: at the end of their rank's grace
    /// period (see [`JobSpec::grace`](crate::JobSpec::grace)), by [`Job::close`], or some time after
    /// the engine killed the ranks.
    pub cut_off: Vec<(Rank, Channel)>,
    /// How the engine ended the job early; `None` if it did not.
    pub early_end: Option<EarlyEnd>,
}

impl JobStatus {
    /// Returns the [exit code](Exit::code) of the rank that failed first, or 0 if no rank failed.
    /// Returns [`TIMEOUT_CODE`] if a time limit ended the job, whatever its ranks returned.
    pub fn code(&self) -> i32 {
        if self.early_end.as_ref().is_some_and(|end| end.cause == EndCause::Timeout) {
            return TIMEOUT_CODE;
        }
        self.first_failure.map_or(0, |(_, exit)| exit.code())
    }
}

impl From<JobStatus> for ExitCode {
    /// Returns [`JobStatus::code`] as the exit code of this process.
    fn from(status: JobStatus) -> ExitCode {
        // wait(2) reports no greater codes than 255.
        ExitCode::from(u8::try_from(status.code()).unwrap_or(u8::MAX))
    }
}

/// A handle of a job. Dropping it does not affect the job, which the engine keeps until the job is
/// [removed](crate::Engine::remove) or the engine ends.
///
/// After the job was removed, the handle returns its exit status, and its other methods have no
/// effect. It does not refer to a later job of the same name.
#[derive(Clone)]
pub struct Job {
    pub(crate) tables: Arc<Tables>,
    /// A weak reference, so that the capture thread ends with the engine.
    pub(crate) capture: Weak<Capture>,
    pub(crate) nspace: Nspace,
    /// Set when the job is removed.
    pub(crate) final_status: Arc<OnceLock<JobStatus>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("nspace", &self.nspace).finish_non_exhaustive()
    }
}

impl Job {
    /// Returns the job's name.
    pub fn nspace(&self) -> &Nspace {
        &self.nspace
    }

    /// Blocks until every local rank has exited and all streams of these ranks are complete,
    /// including streams that a child of a rank holds open and streams of
    /// [logged](crate::Engine::log) messages. Returns the exit status so far if the engine ends
    /// first. Must not be called in an [upcall](crate::Host).
    pub fn wait(&self) -> JobStatus {
        self.wait_until(JobState::is_drained_with_logs)
    }

    /// Blocks until every local rank has exited. More of their output may arrive afterwards.
    /// Returns the exit status so far if the engine ends first. Must not be called in an
    /// [upcall](crate::Host).
    pub fn wait_exit(&self) -> JobStatus {
        self.wait_until(JobState::has_exited)
    }

    /// Returns the exit status, or `None` if a local rank has not exited. Does not block.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        let state = self.tables.lock();
        match self.state(&state) {
            Some(job) => job.has_exited().then(|| job.status()),
            None => self.final_status.get().cloned(),
        }
    }

    /// Blocks until the job has `reached` a state, is removed, or the engine ends.
    fn wait_until(&self, reached: impl Fn(&JobState) -> bool) -> JobStatus {
        let mut state = self.tables.lock();
        loop {
            match self.state(&state) {
                Some(job) if !reached(job) && !state.stopping => {}
                Some(job) => return job.status(),
                None => return self.final_status.get().cloned().unwrap_or_default(),
            }
            state = self.tables.wait(state);
        }
    }

    /// Returns the state of the job, unless it was removed.
    pub(crate) fn state<'a>(&self, state: &'a State) -> Option<&'a JobState> {
        if self.final_status.get().is_some() { None } else { state.jobs.get(&self.nspace) }
    }

    /// Returns the state of the job, unless it was removed.
    fn state_mut<'a>(&self, state: &'a mut State) -> Option<&'a mut JobState> {
        if self.final_status.get().is_some() { None } else { state.jobs.get_mut(&self.nspace) }
    }

    /// Reports to the engine that a rank has exited, which was adopted with
    /// [`Process::Reported`](crate::Process::Reported). Returns `false` if the rank was not adopted
    /// in this way, or its exit was reported before.
    pub fn report_exit(&self, rank: Rank, exit: Exit) -> bool {
        let mut state = self.tables.lock();
        let Some(rank_state) = self.state_mut(&mut state).and_then(|job| job.ranks.get_mut(&rank)) else {
            return false;
        };
        if rank_state.signaller.is_some() || mem::replace(&mut rank_state.reported, true) {
            return false;
        }
        let process = rank_state.process();
        drop(state);
        let status = match exit {
            Exit::Status(status) => Ok(status),
            Exit::Unknown => Err(io::Error::other("the embedder reported an unknown status")),
        };
        self.tables.reports.send(Event::Exited { process, status });
        true
    }

    /// Sends `signal` to every local rank. If a rank leads a process group, the whole group
    /// receives the signal, even if the rank itself has exited and left children in the group.
    /// Before Linux 6.9, the children of an exited rank do not receive it. Returns the number of
    /// ranks and groups that were signalled.
    pub fn signal(&self, signal: Signal) -> usize {
        self.send(signal, |_| true)
    }

    /// Sends `signal` to the ranks that lead process groups, and to their groups. An embedder calls
    /// this for signals that it received from its terminal: the other ranks are in its own group
    /// and received the signal already. Returns the number of groups that were signalled.
    pub fn signal_groups(&self, signal: Signal) -> usize {
        if let Some(job) = self.state_mut(&mut self.tables.lock()) {
            job.note_signal_of_terminal(signal);
        }
        self.send(signal, Signaller::has_group)
    }

    /// Sends `signal` to the ranks for which `is_wanted`. Returns their number.
    fn send(&self, signal: Signal, is_wanted: impl Fn(&Signaller) -> bool) -> usize {
        let mut state = self.tables.lock();
        self.state_mut(&mut state).map_or(0, |job| job.signal(signal, |_, signaller| is_wanted(signaller)))
    }

    /// Completes an output stream of a local rank with the bytes written so far. Later writes to it
    /// raise SIGPIPE. Readers receive the bytes and then the end of the stream. Returns `false` if
    /// the job has no such local rank, `channel` is stdin, the stream was complete already, or the
    /// engine has ended.
    pub fn close(&self, rank: Rank, channel: Channel) -> bool {
        let Some(capture) = self.capture.upgrade() else { return false };
        let index = CHANNELS.iter().position(|output| *output == channel);
        let state = self.tables.lock();
        let rank = self.state(&state).and_then(|job| job.ranks.get(&rank));
        let Some(&id) = rank.zip(index).and_then(|(rank, index)| rank.streams.get(index)) else {
            return false;
        };
        drop(state);
        let open = capture.with_streams(|streams| Some(!streams.get_mut(id)?.stats().complete));
        matches!(open, Ok(Some(true))) && capture.finish(id).is_ok()
    }

    /// Stops keeping the first output for tools that have not registered yet. Before this call, a
    /// stream that no registration reads keeps its first bytes in two cases. Under
    /// [`Policy::DropNewest`](iof_shm_ring::Policy::DropNewest) it drops the bytes that do not fit.
    /// Under [`Policy::Block`](iof_shm_ring::Policy::Block), with a directive such as
    /// `PMIX_FWD_STDOUT` for its channel, its rank waits. After this call such a stream keeps its
    /// newest bytes, and its rank does not wait. A launcher calls this when it no longer waits for
    /// the tool for which it spawned the job.
    pub fn release_backlog(&self) {
        let Some(capture) = self.capture.upgrade() else { return };
        let mut state = self.tables.lock();
        if let Some(job) = self.state_mut(&mut state) {
            job.release_backlog = true;
        }
        let ids = self.streams(&state);
        state.release_backlog(&capture, &ids);
    }

    /// Blocks until the engine has read all bytes that the ranks wrote before the call, and the
    /// embedder's own readers ([`Engine::attach`](crate::Engine::attach)) have consumed them. Other
    /// tools can then read these bytes from the rings. Returns `false` if that did not happen
    /// within `timeout` (`None`: without limit), or the engine has ended. Must not be called in an
    /// [upcall](crate::Host).
    pub fn flush(&self, timeout: Option<Duration>) -> bool {
        let streams = self.streams(&self.tables.lock());
        self.flush_streams(&streams, timeout)
    }

    /// Blocks as [`Job::flush`] does, but only for the output of one local rank.
    pub fn flush_rank(&self, rank: Rank, timeout: Option<Duration>) -> bool {
        let state = self.tables.lock();
        let rank = self.state(&state).and_then(|job| job.ranks.get(&rank));
        let streams = rank.map(|rank| rank.streams.to_vec()).unwrap_or_default();
        drop(state);
        self.flush_streams(&streams, timeout)
    }

    fn flush_streams(&self, streams: &[SourceId], timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(mut wanted) = self.written(streams) else { return false };
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
            // Readers do not notify the engine of their progress, so it is polled.
            thread::sleep(FLUSH_INTERVAL);
        }
    }

    /// Returns how many bytes were written to each of the streams `ids` by now.
    fn written(&self, ids: &[SourceId]) -> Option<Vec<(SourceId, u64)>> {
        let capture = self.capture.upgrade()?;
        let written = capture
            .with_streams(|streams| ids.iter().filter_map(|id| Some((*id, streams.written(*id)?))).collect());
        written.ok()
    }

    /// Returns all streams of the job.
    fn streams(&self, state: &State) -> Vec<SourceId> {
        self.state(state).map(JobState::streams).unwrap_or_default()
    }

    /// Returns a handle of the pty of `rank`, through which the embedder types input; `None` if the
    /// rank has no pty or has exited. The rank's terminal is hung up when the engine ends and no
    /// handle exists any more.
    ///
    /// # Errors
    /// The process can open no further descriptor.
    pub fn pty(&self, rank: Rank) -> io::Result<Option<PtyMaster>> {
        let state = self.tables.lock();
        let job = self.state(&state);
        job.and_then(|job| job.ranks.get(&rank)?.pty.as_ref()).map(PtyMaster::try_clone).transpose()
    }

    /// Changes the window size of the ptys of all ranks. The foreground process group of each pty
    /// receives SIGWINCH. Returns the number of ptys that were changed.
    pub fn resize_ptys(&self, size: WindowSize) -> usize {
        let state = self.tables.lock();
        let Some(job) = self.state(&state) else { return 0 };
        let ptys = job.ranks.values().filter_map(|rank| rank.pty.as_ref());
        ptys.filter(|pty| pty.resize(size).is_ok()).count()
    }

    /// Returns the running rank whose process has the id `pid`, if there is one.
    pub fn rank_of_process(&self, pid: u32) -> Option<Rank> {
        let state = self.tables.lock();
        let job = state.jobs.get(&self.nspace)?;
        let runs_as = |rank: &RankState| rank.pid == pid && rank.exit.is_none();
        job.ranks.iter().find(|(_, rank)| runs_as(rank)).map(|(rank, _)| *rank)
    }

    /// Returns the rank that leads the process group `group`, if there is one.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        let state = self.tables.lock();
        let job = self.state(&state)?;
        let leads =
            |rank: &RankState| rank.pid == group && rank.signaller.as_ref().is_some_and(Signaller::has_group);
        job.ranks.iter().find(|(_, rank)| leads(rank)).map(|(rank, _)| *rank)
    }
}
