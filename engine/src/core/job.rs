//! The state of a job: its ranks, their streams and their exit statuses.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use iof_capture::{ProcessId, SourceId, TargetId};
use iof_proto::{Channel, Channels, Rank, StdinUnavailable};

use crate::core::job_status::JobStatus;
use crate::core::stream_options::StreamOptions;
use crate::early_end::{EarlyEnd, EarlyEndPolicy};
use crate::exit::{Exit, SentSignals};

/// The output channels of every rank.
pub(crate) const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// The state of one local rank.
pub(crate) struct RankState {
    /// In the order of [`CHANNELS`].
    pub streams: [SourceId; CHANNELS.len()],
    pub executable: String,
    /// 0 if the embedder did not specify it.
    pub pid: u32,
    pub signals: SignalReach,
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
    /// The channels whose streams are complete.
    pub complete: Channels,
}

/// How far a rank has come in MPI, once it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiPhase {
    /// Between `MPI_Init` and `MPI_Finalize`.
    Inside,
    /// After `MPI_Finalize`.
    Finalized,
}

/// The processes that receive the signals to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalReach {
    /// None: only the embedder can send signals to the rank.
    Nothing,
    Process,
    /// The process group that the rank leads, even after the rank itself has exited.
    Group,
}

impl RankState {
    /// Returns a running rank with these streams.
    pub(crate) fn new(
        streams: [SourceId; CHANNELS.len()],
        Launching { executable, pid }: Launching,
        signals: SignalReach,
        stdin_unavailable: Option<StdinUnavailable>,
        own_stdin: bool,
    ) -> RankState {
        RankState {
            streams,
            executable,
            pid,
            signals,
            stdin_unavailable,
            own_stdin,
            exit: None,
            sent: SentSignals::default(),
            exit_requested: false,
            reported: false,
            complete: Channels::empty(),
        }
    }

    /// Returns whether the rank has exited and only its stddiag is open. Programs that redirect the
    /// output of their children do not know of stddiag, so its end is not waited for.
    pub(crate) fn leaves_stddiag(&self) -> bool {
        self.exit.is_some() && self.complete == (Channels::STDOUT | Channels::STDERR)
    }

    /// Returns the id of the rank's process at the capture. It is the id of the rank's first
    /// stream, which no other rank has.
    pub(crate) fn process(&self) -> ProcessId {
        ProcessId(self.streams[0].0)
    }

    /// Returns whether the rank is in the embedder's process group.
    pub(crate) fn shares_group(&self) -> bool {
        self.signals == SignalReach::Process
    }

    /// Returns the id of the rank's stdin at the capture, which is derived in the same way.
    pub(crate) fn target(&self) -> TargetId {
        TargetId(self.streams[0].0)
    }
}

/// A local rank that is being started.
#[derive(Default)]
pub(crate) struct Launching {
    pub executable: String,
    /// 0 before the process starts, or if the embedder did not specify it.
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
    /// The local ranks that have begun MPI, also while they are being started.
    pub mpi: BTreeMap<Rank, MpiPhase>,
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
    /// The number of local ranks in `ranks` that have not exited.
    pub running: usize,
    /// The number of streams of local ranks that are not complete.
    pub open_streams: usize,
    /// The time for which streams may stay open after their rank has exited; `None` for no limit.
    pub grace: Option<Duration>,
    /// The streams that were completed before their end of file.
    pub cut_off: Vec<(Rank, Channel)>,
    pub first_failure: Option<(Rank, Exit)>,
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
            is_local: true,
            ranks: BTreeMap::new(),
            launching: BTreeMap::new(),
            mpi: BTreeMap::new(),
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
            first_failure: None,
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

    /// Removes and returns the local ranks, with all that they left in the job.
    pub(super) fn take_ranks(&mut self) -> BTreeMap<Rank, RankState> {
        (self.running, self.open_streams) = (0, 0);
        self.first_failure = None;
        self.cut_off.clear();
        self.endings.clear();
        self.early_end_policy = EarlyEndPolicy::never();
        mem::take(&mut self.ranks)
    }

    /// Returns whether all local ranks have exited.
    pub(crate) fn has_exited(&self) -> bool {
        self.started && self.running == 0
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

/// An entry of the list from which [`Endings`] are made.
#[derive(Clone, Copy)]
pub(crate) enum EndingEntry {
    Rank(Rank),
    Early,
}
