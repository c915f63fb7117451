//! The state of a job: its ranks, their streams and their exit statuses.

pub(crate) mod endings;
pub(crate) mod rank;
pub(crate) mod signals;
mod there;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, SystemTime};

use iof_capture::{ProcessId, SourceId};
use iof_proto::{Channel, Channels, MpiEvent, Rank};

use crate::count::Count;
use crate::jobs::early_end::{EarlyEnd, EarlyEndPolicy, LastSteps};
use crate::jobs::exit::Exit;
use crate::jobs::nodes::NodeLost;
use crate::jobs::status::{FirstFailure, JobStatus};
use crate::streams::options::StreamOptions;

pub(crate) use self::endings::EndSteps;
pub(crate) use self::rank::{Launching, Place, RankState, SignalReach, StdinAccess};
pub(crate) use self::signals::Receivers;
pub(crate) use self::there::NodePull;
use self::there::Nodes;

/// The progress of a rank in MPI, once it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiPhase {
    /// Between `MPI_Init` and `MPI_Finalize`.
    Inside,
    /// After `MPI_Finalize`.
    Finalized,
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
pub struct JobState {
    /// Its number among all jobs, which distinguishes successive jobs of the same name.
    run: u64,
    /// The options of its streams.
    options: StreamOptions,
    /// The channels that its spawner wants forwarded; `None` if the spawner did not specify any.
    forward: Option<Channels>,
    /// It was spawned or adopted by this engine, even if its local ranks failed to start.
    is_local: bool,
    /// Its local ranks, and those on its other nodes.
    ranks: BTreeMap<Rank, RankState>,
    /// Its other nodes, whose ranks the engine follows through its embedder's edges.
    nodes: Nodes,
    /// Its local ranks that are still being started.
    launching: BTreeMap<Rank, Launching>,
    /// Another engine judges what its ranks do in MPI.
    is_part: bool,
    /// The ranks that have begun MPI, also while they are being started.
    mpi: BTreeMap<Rank, MpiPhase>,
    /// The first local rank that has exited without having begun MPI.
    uninitialized: Option<Rank>,
    /// All local ranks were started, and all ranks of its other nodes.
    started: bool,
    /// The state of its remote ranks.
    remote: RemoteRanks,
    /// The streams of its remote ranks.
    delivered: BTreeMap<(Rank, Channel), SourceId>,
    /// The number of streams in `delivered` that are not complete.
    open_deliveries: usize,
    /// The streams of what was logged to stdout and stderr. [`Rank::UNDEF`] stands for the job as a
    /// whole.
    logged: BTreeMap<(Rank, Channel), SourceId>,
    /// The number of streams in `logged` that are not complete.
    open_logs: usize,
    /// The embedder has released the backlog: no more output is kept for tools that have not
    /// registered yet.
    release_backlog: bool,
    /// The number of ranks in `ranks` that have not exited.
    running: usize,
    /// The number of streams of local ranks that are not complete.
    open_streams: usize,
    /// The time for which streams may stay open after their rank has exited; `None` for no limit.
    grace: Option<Duration>,
    /// The streams that were completed before their end of file.
    cut_off: Vec<(Rank, Channel)>,
    first_failure: FirstFailure,
    early_end_policy: EarlyEndPolicy,
    /// The way in which the engine ended the job early.
    early_end: Option<EarlyEnd>,
    last_steps: LastSteps,
    /// The ends of its ranks, in the order in which they were detected.
    endings: Vec<EndingEntry>,
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
            is_local: true,
            ranks: BTreeMap::new(),
            nodes: Nodes::default(),
            launching: BTreeMap::new(),
            is_part: false,
            mpi: BTreeMap::new(),
            uninitialized: None,
            started: false,
            remote: RemoteRanks::None,
            delivered: BTreeMap::new(),
            open_deliveries: 0,
            logged: BTreeMap::new(),
            open_logs: 0,
            release_backlog: false,
            running: 0,
            open_streams: 0,
            grace,
            cut_off: Vec::new(),
            first_failure: FirstFailure::default(),
            early_end_policy: EarlyEndPolicy::never(),
            early_end: None,
            last_steps: LastSteps::default(),
            endings: Vec::new(),
        }
    }

    /// Returns a job that has remote ranks only.
    pub(crate) fn elsewhere(options: StreamOptions) -> JobState {
        let job = JobState::new(None, options, None);
        JobState { is_local: false, started: true, remote: RemoteRanks::Running, ..job }
    }

    /// Returns the job with its number.
    pub(crate) fn numbered(self, run: u64) -> JobState {
        JobState { run, ..self }
    }

    /// Returns the job with the ranks that are to be started here.
    pub(crate) fn launching_ranks(
        self,
        launching: BTreeMap<Rank, Launching>,
        early_end_policy: EarlyEndPolicy,
    ) -> JobState {
        JobState { launching, early_end_policy, ..self }
    }

    /// Returns the job with ranks elsewhere.
    pub(crate) fn with_remote_ranks(self) -> JobState {
        JobState { remote: RemoteRanks::Running, ..self }
    }

    /// Returns whether this is the remote part of the job whose local part is `local`. It is known
    /// because output of its ranks was delivered before the job was started here. A job has one
    /// local part: tools could not tell the streams of a second start from those of the first.
    pub(crate) fn is_remote_part_of(&self, local: &JobState) -> bool {
        let are_remote = [self.remote, local.remote] == [RemoteRanks::Running; 2] && !self.is_local;
        are_remote
            && local.nodes.is_empty()
            && !self.delivered.keys().any(|(rank, _)| local.launching.contains_key(rank))
    }

    /// Adds the local part of the job.
    pub(crate) fn add_local_part(&mut self, local: JobState) {
        *self = JobState {
            run: self.run,
            delivered: mem::take(&mut self.delivered),
            open_deliveries: self.open_deliveries,
            logged: mem::take(&mut self.logged),
            open_logs: self.open_logs,
            ..local
        };
    }

    /// Returns the number of the job among all jobs.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the options of the job's streams.
    pub(crate) fn options(&self) -> StreamOptions {
        self.options
    }

    /// Returns the channels that the spawner wants forwarded; `None` if it did not specify any.
    pub(crate) fn forward(&self) -> Option<Channels> {
        self.forward
    }

    /// Returns whether no output is kept for tools that have not registered yet.
    pub(crate) fn has_released_backlog(&self) -> bool {
        self.release_backlog
    }

    /// Notes that no more output is kept for tools that have not registered yet.
    pub(crate) fn release_backlog(&mut self) {
        self.release_backlog = true;
    }

    /// Returns the time for which streams may stay open after their rank has exited; `None` for no
    /// limit.
    pub(crate) fn grace(&self) -> Option<Duration> {
        self.grace
    }
}

/// Local ranks.
impl JobState {
    /// Notes the pid of a rank that is being started, and when it began.
    pub(crate) fn note_pid(&mut self, rank: Rank, pid: u32, began: SystemTime) {
        let Some(launching) = self.launching.get_mut(&rank) else { absent!("rank", return) };
        (launching.pid, launching.began) = (pid, Some(began));
    }

    /// Removes and returns a rank that is being started, because it is about to be added.
    pub(crate) fn take_launching(&mut self, rank: Rank) -> Option<Launching> {
        self.launching.remove(&rank)
    }

    /// Adds a rank that runs.
    pub(crate) fn add_rank(&mut self, rank: Rank, state: RankState) {
        self.running.raise(1);
        self.open_streams.raise(state.streams().len());
        self.ranks.insert(rank, state);
    }

    /// Notes that all local ranks are added. Returns whether the job has nothing: no rank, nothing
    /// delivered and nothing logged.
    pub(crate) fn all_registered(&mut self) -> bool {
        self.started = true;
        self.launching.clear();
        self.ranks.is_empty() && self.delivered.is_empty() && self.logged.is_empty()
    }

    /// Removes and returns the local ranks, with all that they left in the job.
    pub(crate) fn take_ranks(&mut self) -> BTreeMap<Rank, RankState> {
        (self.running, self.open_streams) = (0, 0);
        self.first_failure = FirstFailure::default();
        self.cut_off.clear();
        self.endings.clear();
        self.early_end_policy = EarlyEndPolicy::never();
        self.mpi.clear();
        self.uninitialized = None;
        mem::take(&mut self.ranks)
    }

    /// Returns whether local ranks are still being started.
    pub(crate) fn is_starting(&self) -> bool {
        !self.started
    }

    /// Returns a rank that was started here, or that runs on another node of the job.
    pub fn rank(&self, rank: Rank) -> Option<&RankState> {
        self.ranks.get(&rank)
    }

    pub(crate) fn rank_mut(&mut self, rank: Rank) -> Option<&mut RankState> {
        self.ranks.get_mut(&rank)
    }

    /// Returns the ranks that were started here, or run on other nodes of the job, in ascending
    /// order.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = (Rank, &RankState)> {
        self.ranks.iter().map(|(rank, state)| (*rank, state))
    }

    /// Returns the highest of these ranks; [`Rank::UNDEF`] if none was.
    pub(crate) fn last_rank(&self) -> Rank {
        self.ranks.keys().next_back().copied().unwrap_or(Rank::UNDEF)
    }

    /// Returns the local ranks that are being started, in ascending order.
    pub(crate) fn launching(&self) -> impl Iterator<Item = (Rank, &Launching)> {
        self.launching.iter().map(|(rank, launching)| (*rank, launching))
    }

    /// Returns the number of its processes that the engine knows.
    pub(crate) fn size(&self) -> u32 {
        let local = self.ranks.len().saturating_add(self.launching.len());
        u32::try_from(local.saturating_add(self.delivered_ranks().len())).unwrap_or(u32::MAX)
    }

    /// Notes that the embedder has reported the exit of a rank. Returns the rank's process; `None`
    /// if the engine detects the exit of this rank, or it was reported before.
    pub(crate) fn report_exit(&mut self, rank: Rank) -> Option<ProcessId> {
        let rank = self.ranks.get_mut(&rank)?;
        if rank.report_exit() { rank.process() } else { None }
    }

    /// Notes that the stream of a local rank is complete, which was `closed` if it did not reach
    /// its end of file. Returns whether it was cut off: it was closed while the rank may have
    /// written more.
    pub(crate) fn stream_completed(&mut self, rank: Rank, channel: Channel, closed: bool) -> bool {
        self.open_streams.lower(1);
        let was_cut_off = self.cut_off.iter().any(|(other, _)| *other == rank);
        let Some(state) = self.ranks.get_mut(&rank) else { absent!("rank", return false) };
        let ends_with_rank = state.left_open().next().is_some() && !was_cut_off;
        state.completed(channel);
        let is_cut_off = closed && !ends_with_rank;
        self.cut_off.extend(is_cut_off.then_some((rank, channel)));
        is_cut_off
    }
}

/// Remote ranks, and what is logged.
impl JobState {
    /// Returns the state of the remote ranks.
    pub(crate) fn remote(&self) -> RemoteRanks {
        self.remote
    }

    /// Returns the remote ranks whose output was delivered, and of which nothing else is known.
    pub(crate) fn delivered_ranks(&self) -> BTreeSet<Rank> {
        let wrote = self.delivered.keys().map(|(rank, _)| *rank);
        wrote.filter(|rank| !self.has_local_rank(*rank) && !self.ranks.contains_key(rank)).collect()
    }

    /// Returns the stream of a remote rank.
    pub(crate) fn delivered_stream(&self, rank: Rank, channel: Channel) -> Option<SourceId> {
        self.delivered.get(&(rank, channel)).copied()
    }

    /// Returns the streams of a local or remote rank.
    pub fn streams_of(&self, rank: Rank) -> Vec<SourceId> {
        let local = self.rank(rank).into_iter().flat_map(RankState::streams).copied();
        let delivered = Channel::OUTPUTS.iter().filter_map(|channel| self.delivered_stream(rank, *channel));
        local.chain(delivered).collect()
    }

    /// Adds the stream of a remote rank.
    pub(crate) fn add_delivered(&mut self, rank: Rank, channel: Channel, stream: SourceId) {
        self.delivered.insert((rank, channel), stream);
        self.open_deliveries.raise(1);
    }

    /// Notes that the stream of a remote rank is complete.
    pub(crate) fn delivery_completed(&mut self) {
        self.open_deliveries.lower(1);
    }

    /// Notes that the remote part of the job has ended. Returns its streams; `None` if it does not
    /// run.
    pub(crate) fn end_remote_ranks(&mut self, exit_code: Option<i32>) -> Option<Vec<SourceId>> {
        if self.remote != RemoteRanks::Running {
            return None;
        }
        self.remote = RemoteRanks::Ended { exit_code };
        Some(self.delivered.values().copied().collect())
    }

    /// Returns the stream of what was logged to a channel of `rank`. [`Rank::UNDEF`] stands for the
    /// job as a whole.
    pub(crate) fn logged_stream(&self, rank: Rank, channel: Channel) -> Option<SourceId> {
        self.logged.get(&(rank, channel)).copied()
    }

    /// Returns the streams of what was logged.
    pub(crate) fn logged_streams(&self) -> impl Iterator<Item = SourceId> {
        self.logged.values().copied()
    }

    /// Adds the stream of what is logged to a channel of `rank`.
    pub(crate) fn add_logged(&mut self, rank: Rank, channel: Channel, stream: SourceId) {
        self.logged.insert((rank, channel), stream);
        self.open_logs.raise(1);
    }

    /// Notes that a stream of what was logged is complete.
    pub(crate) fn log_completed(&mut self) {
        self.open_logs.lower(1);
    }
}

/// Queries of the parts of the job that are complete.
impl JobState {
    /// Returns whether all ranks have exited that were started here or run on other nodes of the job.
    pub fn has_exited(&self) -> bool {
        self.started && self.running == 0
    }

    /// Returns the exit status of these ranks so far.
    pub fn status(&self) -> JobStatus {
        let requested = self.first_failure.requested().and_then(|rank| self.rank(rank));
        let requested = requested.filter(|state| state.node().is_some());
        JobStatus {
            first_failure: self.first_failure.get(),
            request: requested.and_then(RankState::request),
            cut_off: self.cut_off.clone(),
            early_end: self.early_end.clone(),
            has_lost_node: self.endings.iter().any(|ending| matches!(ending, EndingEntry::Lost(_))),
        }
    }

    /// Returns whether all these ranks have exited and their streams are complete.
    pub fn is_drained(&self) -> bool {
        self.has_exited() && self.open_streams == 0 && (self.nodes.is_empty() || self.is_delivered())
    }

    /// Returns whether the remote part of the job has ended and its streams are complete.
    fn is_delivered(&self) -> bool {
        self.remote != RemoteRanks::Running && self.open_deliveries == 0
    }

    /// Returns whether `rank` is a local rank, which runs or is being started.
    pub(crate) fn has_local_rank(&self, rank: Rank) -> bool {
        self.rank(rank).is_some_and(|rank| rank.node().is_none()) || self.launching.contains_key(&rank)
    }

    /// Returns the ranks that are known: those started here or on other nodes of the job, and those
    /// with delivered output, possibly twice.
    pub(crate) fn known_ranks(&self) -> impl Iterator<Item = Rank> {
        let started = self.ranks.keys().chain(self.launching.keys());
        started.copied().chain(self.delivered.keys().map(|(rank, _)| *rank))
    }

    /// Returns whether `rank` is among the known ranks.
    pub(crate) fn has_rank(&self, rank: Rank) -> bool {
        self.has_local_rank(rank)
            || self.ranks.contains_key(&rank)
            || Channel::OUTPUTS.iter().any(|channel| self.delivered_stream(rank, *channel).is_some())
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
    pub fn has_ended(&self) -> bool {
        self.is_output_complete() && self.open_logs == 0
    }

    /// Returns whether all local ranks have exited, their streams are complete, and so are the
    /// streams of what was logged. The latter need not be complete while the job has remote ranks,
    /// because more may be logged.
    pub fn is_drained_with_logs(&self) -> bool {
        self.is_drained() && (self.open_logs == 0 || !self.is_output_complete())
    }

    /// Returns all streams of the job.
    pub fn streams(&self) -> Vec<SourceId> {
        let local = self.ranks.values().flat_map(RankState::streams).copied();
        local.chain(self.delivered.values().copied()).chain(self.logged.values().copied()).collect()
    }

    /// Returns the first rank that failed, and its exit status.
    pub(crate) fn first_failure(&self) -> Option<(Rank, Exit)> {
        self.first_failure.get()
    }

    /// Panics if the counts of open streams exceed the streams.
    pub fn check(&self) {
        assert!(self.open_deliveries <= self.delivered.len());
        assert!(self.open_logs <= self.logged.len());
        assert!(self.open_streams <= Channel::OUTPUTS.len() * self.ranks.len());
    }

    /// Returns the exit code of the job as a whole, if it is known.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let reported = if let RemoteRanks::Ended { exit_code } = self.remote { exit_code } else { None };
        // Without ranks of its own, the job has no exit code of its own.
        let has_own = self.is_local && !self.ranks.is_empty();
        reported.or_else(|| has_own.then(|| self.status().code()))
    }
}

/// An entry of the list from which `Endings` are made.
enum EndingEntry {
    Rank(Rank),
    Lost(NodeLost),
    Early,
    Mpi(Rank, MpiEvent),
}
