//! The actions of a launcher: it starts jobs, reports what their ranks do, signals them, delivers
//! output of remote ranks, and removes jobs.

use std::time::{Duration, SystemTime};

use iof_capture::{Command, ProcessId, Signal, SourceId, StreamRequest, TargetId};
use iof_core::{
    DeliverError, DeliveredBytes, DeliveredEnd, EarlyEndPolicy, HandleOp, Input, JobId, JobState, JobStatus,
    LastStep, Launching, NodeId, NodeReport, RegisteredRank, SignalReach, StdinAccess,
};
use iof_proto::{
    Channel, Directives, KillOnBadExit, MpiEvent, Node, Nspace, Proc, Rank, StdinUnavailable, StreamPull,
};
use iof_shm_ring::Stream;

use super::{SimulatedEngine, limit_checks};

/// A job that begins.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its name.
    pub nspace: Nspace,
    /// The number of its local ranks.
    pub ranks: u32,
    /// Set if it has remote ranks, too.
    pub elsewhere: bool,
    /// The time for which streams may stay open after the exit of their rank.
    pub grace: Option<Duration>,
    /// The time that it may take.
    pub timeout: Option<Duration>,
    /// The failures of a rank that end it.
    pub kill_on_bad_exit: KillOnBadExit,
    /// The options of its streams.
    pub directives: Directives,
}

/// The tools that can push to a rank's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankStdin {
    /// It can.
    Open,
    /// Only the embedder's own tools can.
    Own,
    /// It is not open.
    Closed,
}

/// Who signals a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankSignals {
    /// The embedder alone, which also reports its exit.
    OfEmbedder,
    /// The engine: its process.
    ToProcess,
    /// The engine: the process group that it leads.
    ToGroup,
}

/// A report of a rank about MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiReport {
    /// It has called `MPI_Init`.
    Initialized,
    /// It has called `MPI_Finalize`.
    Finalized,
    /// It has called `MPI_Abort` with this code.
    Aborted(i32),
}

/// A request of the engine to another node.
#[allow(missing_docs, reason = "as in `NodeRequest`")]
#[derive(Clone, Debug)]
pub enum SentToNode {
    /// A signal, with the ranks that have not exited.
    Signal(Signal, Vec<Rank>),
    Stdin {
        call: u64,
        ranks: Option<Vec<Rank>>,
        bytes: Vec<u8>,
    },
    End(LastStep),
    Pull(Vec<StreamPull>),
    EndPulls(Vec<u32>),
    Modex {
        call: u64,
        rank: Rank,
    },
}

/// Output of a remote rank.
#[derive(Clone, Debug)]
pub struct Output {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their position, if it is known.
    pub offset: Option<u64>,
    /// The end of the stream after them.
    pub end: OutputEnd,
}

/// The end of a remote rank's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputEnd {
    /// It does not.
    Open,
    /// With all bytes.
    Complete,
    /// At least this number of bytes is missing.
    Broken(u64),
}

/// A rank that was added, as the capture is to know it.
#[derive(Debug)]
pub struct AddedRank {
    /// Its process.
    pub process: ProcessId,
    /// Its stdin.
    pub target: TargetId,
    /// Its streams, in the order of [`Channel::OUTPUTS`].
    pub sources: Vec<(SourceId, Stream, Option<StreamRequest>)>,
}

impl SimulatedEngine {
    /// Reserves the name of a job, whose ranks are local unless there are `nodes`. Returns the number
    /// of its run, unless the name is taken.
    pub fn begin(&mut self, new: &NewJob, nodes: &[Node]) -> Option<u64> {
        let NewJob { nspace, ranks, elsewhere, grace, timeout, kill_on_bad_exit, directives } = new;
        let kill_wait = Duration::from_secs(1);
        let launching = || match nodes {
            [] => Launching::default(),
            _ => Launching { stdin: StdinAccess::All, ..Launching::default() },
        };
        let new = iof_core::NewJob {
            nspace,
            grace: *grace,
            early_end_policy: EarlyEndPolicy::new(*kill_on_bad_exit, kill_wait, *timeout, self.now),
            directives,
            elsewhere: *elsewhere,
            is_part: false,
            launching: (0..*ranks).map(|rank| (Rank(rank), launching())).collect(),
            nodes,
            is_direct: !nodes.is_empty(),
        };
        Some(self.core.begin_job(new)?.run)
    }

    /// Notes the pid of a rank that is being started.
    pub fn note_pid(&mut self, proc: &Proc, pid: u32) {
        self.core.note_pid(&proc.nspace, proc.rank, pid, SystemTime::UNIX_EPOCH);
    }

    /// Adds a rank that runs.
    pub fn add_rank(
        &mut self,
        proc: &Proc,
        stdin: RankStdin,
        signals: RankSignals,
        streams: Vec<Stream>,
    ) -> Option<AddedRank> {
        let added = self.register_rank(proc, stdin, signals)?;
        let sources = added.streams.into_iter().zip(streams);
        let sources = sources.map(|((id, first), stream)| (id, stream, self.memory.with_pages(first)));
        Some(AddedRank { process: added.process, target: added.target, sources: sources.collect() })
    }

    /// Adds a rank that runs, but which the capture does not take, because it has ended. Returns
    /// its process and its streams.
    pub fn add_lost_rank(
        &mut self,
        proc: &Proc,
        stdin: RankStdin,
        signals: RankSignals,
    ) -> Option<(ProcessId, [SourceId; Channel::OUTPUTS.len()])> {
        let RegisteredRank { streams, process, .. } = self.register_rank(proc, stdin, signals)?;
        let ids = streams.each_ref().map(|(id, _)| *id);
        let firsts = streams.into_iter().filter_map(|(_, first)| self.memory.with_pages(first));
        self.reports.extend(firsts.flat_map(|first| Command::Request(first).refused()));
        Some((process, ids))
    }

    fn register_rank(
        &mut self,
        proc: &Proc,
        stdin: RankStdin,
        signals: RankSignals,
    ) -> Option<RegisteredRank> {
        let signals = match signals {
            RankSignals::OfEmbedder => SignalReach::Nothing,
            RankSignals::ToProcess => SignalReach::Process,
            RankSignals::ToGroup => SignalReach::Group,
        };
        let stdin = match stdin {
            RankStdin::Open => StdinAccess::All,
            RankStdin::Own => StdinAccess::Own,
            RankStdin::Closed => StdinAccess::None(StdinUnavailable::NotOpen),
        };
        let behind = limit_checks::tools_behind(&self.core);
        let added = self.core.register_rank(&proc.nspace, proc.rank, signals, stdin).ok()?;
        let sources = added.streams.each_ref().map(|(source, _)| *source);
        limit_checks::check_not_attached(&self.core, &behind, &sources);
        self.note_commands();
        added.streams.iter().for_each(|(_, first)| self.note_first(first));
        Some(added)
    }

    /// Removes the ranks of a job because another one can't be started.
    pub fn withdraw_ranks(&mut self, nspace: &Nspace) {
        self.core.withdraw_ranks(nspace);
    }

    /// Records that all local ranks of a job were added.
    pub fn all_registered(&mut self, nspace: &Nspace) {
        self.core.all_registered(nspace, self.now);
    }

    /// Delivers output of a remote rank. Returns its stream. The callback with this number follows.
    ///
    /// # Errors
    /// It was not accepted.
    pub fn deliver(
        &mut self,
        from: &Proc,
        channel: Channel,
        Output { bytes, offset, end }: Output,
        number: u64,
    ) -> Result<SourceId, DeliverError> {
        let end = match end {
            OutputEnd::Open => None,
            OutputEnd::Complete => Some(DeliveredEnd::Complete),
            OutputEnd::Broken(missing) => Some(DeliveredEnd::Broken(missing)),
        };
        let bytes = DeliveredBytes { from, channel, bytes, offset, time: None, input: None, end };
        self.core.deliver(bytes, self.callback(number))
    }

    /// Forgets the last delivery to a stream, because the capture has not taken it.
    pub fn withdraw_delivery(&mut self, stream: SourceId) {
        self.core.withdraw_delivery(stream);
    }

    /// Ends the remote part of a job.
    pub fn end_job(&mut self, nspace: &Nspace, exit_code: Option<i32>) -> bool {
        self.core.job_named(nspace).is_some() && self.core.end_job(nspace, exit_code)
    }

    /// Notes a report of a rank about MPI.
    pub fn report_mpi(&mut self, nspace: &Nspace, run: u64, rank: Rank, report: MpiReport) {
        let event = match report {
            MpiReport::Initialized => MpiEvent::Initialized,
            MpiReport::Finalized => MpiEvent::Finalized,
            MpiReport::Aborted(code) => MpiEvent::Aborted { code },
        };
        self.handle(Input::Mpi { job: JobId { nspace: nspace.clone(), run }, rank, event });
    }

    /// Notes that the embedder has reported the exit of a rank. Returns the rank's process if the
    /// report counts.
    pub fn report_exit(&mut self, nspace: &Nspace, run: u64, rank: Rank) -> Option<ProcessId> {
        self.core.report_exit(&JobId { nspace: nspace.clone(), run }, rank)
    }

    /// Signals the ranks of a job, or only those that lead process groups. Returns them.
    pub fn signal_job(
        &mut self,
        nspace: &Nspace,
        run: u64,
        signal: Signal,
        groups_only: bool,
    ) -> Vec<ProcessId> {
        self.core.signal_job(&JobId { nspace: nspace.clone(), run }, signal, groups_only, self.now).processes
    }

    /// Signals all ranks of a job. Returns those on its other nodes.
    pub fn signal_nodes(&mut self, nspace: &Nspace, run: u64, signal: Signal) -> Vec<(NodeId, Vec<Rank>)> {
        let job = JobId { nspace: nspace.clone(), run };
        let there = self.core.signal_job(&job, signal, false, self.now).there;
        there.into_iter().map(|((_, node), ranks)| (node, ranks)).collect()
    }

    /// Returns what the engine has sent to other nodes on its own since the last call.
    pub fn take_sent_to_nodes(&mut self) -> Vec<(NodeId, SentToNode)> {
        let mut sent = Vec::new();
        for op in self.core.take_handle_ops() {
            match op {
                HandleOp::Signal { receivers, signal, .. } => {
                    let there = receivers.there.into_iter();
                    sent.extend(there.map(|((_, node), ranks)| (node, SentToNode::Signal(signal, ranks))));
                }
                HandleOp::Stdin { push, nodes, piece } => {
                    let bytes = self.memory.copy(push, piece);
                    sent.extend(nodes.into_iter().map(|((_, node), ranks)| {
                        let ranks = ranks.map(|ranks| ranks.to_vec());
                        (node, SentToNode::Stdin { call: push.0, ranks, bytes: bytes.clone() })
                    }));
                }
                HandleOp::EndNode { node: (_, node), step } => sent.push((node, SentToNode::End(step))),
                HandleOp::Pull { node: (_, node), pulls } => sent.push((node, SentToNode::Pull(pulls))),
                HandleOp::Modex { node: (_, node), call, rank } => {
                    sent.push((node, SentToNode::Modex { call, rank }));
                }
                HandleOp::EndPulls { node: (_, node), pulls } => {
                    sent.push((node, SentToNode::EndPulls(pulls)));
                }
                op => drop(self.perform(op)),
            }
        }
        sent
    }

    /// Handles a report of another node of a job.
    pub fn report_node(&mut self, nspace: &Nspace, run: u64, node: NodeId, report: NodeReport) {
        self.handle(Input::Node { job: JobId { nspace: nspace.clone(), run }, node, report });
    }

    /// Returns whether all ranks of a job have exited.
    pub fn has_exited(&self, nspace: &Nspace) -> bool {
        self.core.job_named(nspace).is_some_and(JobState::has_exited)
    }

    /// Returns the exit status of a job so far.
    pub fn status(&self, nspace: &Nspace) -> Option<JobStatus> {
        self.core.job_named(nspace).map(JobState::status)
    }

    /// Returns the pid of a rank.
    pub fn pid(&self, proc: &Proc) -> Option<u32> {
        Some(self.core.job_named(&proc.nspace)?.rank(proc.rank)?.pid())
    }

    /// Releases the backlog of a job.
    pub fn release_backlog(&mut self, nspace: &Nspace) {
        let Some(run) = self.core.job_named(nspace).map(JobState::run) else { return };
        self.core.release_backlog_of(&JobId { nspace: nspace.clone(), run });
    }

    /// Removes a job that has ended. Returns whether it was removed. Panics if the engine keeps more
    /// for slow tools than the limits allow.
    pub fn remove(&mut self, nspace: &Nspace) -> bool {
        let readers = limit_checks::readers(&self.core);
        let is_removed = self.core.remove_job(nspace).is_some();
        if is_removed {
            limit_checks::check_shed(&self.core);
        }
        // Readers of removed streams remain, unless their rings are dropped.
        self.reached.note("shed", limit_checks::readers(&self.core) < readers);
        is_removed
    }

    /// Returns whether a job has ended; `None` if it is not in the tables.
    pub fn job(&self, nspace: &Nspace) -> Option<bool> {
        self.core.job_named(nspace).map(JobState::has_ended)
    }
}
