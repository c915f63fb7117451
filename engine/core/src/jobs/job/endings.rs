//! The ends of a job's ranks, and the early end of the job.

use std::time::{Duration, Instant};

use iof_capture::{Signal, SourceId};
use iof_proto::{MpiEvent, Rank, UsedResources};

use super::{EndingEntry, JobState, MpiPhase, RankState, Receivers};
use crate::count::Count;
use crate::jobs::early_end::{EarlyEnd, EarlyEndStep, EndCause, LastStep};
use crate::jobs::exit::Exit;
use crate::jobs::nodes::{NodeKey, NodeLost};

/// The end of one rank.
#[derive(Clone, Debug)]
pub struct RankExit {
    /// The rank.
    pub rank: Rank,
    /// Its exit status.
    pub exit: Exit,
    /// The pid that it had; 0 if the embedder adopted the rank and did not specify it.
    pub pid: u32,
    /// The program, as the embedder specified it.
    pub executable: String,
    /// The name of its node; `None` for this node.
    pub host: Option<String>,
    /// Set if the rank failed because of a signal that the engine had sent to it: on its own, for
    /// the embedder (`Job::signal`), or for a tool. That signal killed it, or it exited with
    /// another code than 0 after SIGHUP, SIGINT, SIGQUIT or SIGTERM, within `REQUEST_LIFETIME`. A
    /// rank in the embedder's process group is also counted if it was killed by a signal that the
    /// terminal sends to this group. Always `false` for the rank whose `MPI_Abort` ended the job.
    pub requested: bool,
    /// Resources that the rank has used. `None` if its exit status is unknown, the embedder has reported it, or its
    /// node is lost.
    pub used: Option<UsedResources>,
}

/// An item of `Endings`.
#[derive(Clone, Debug)]
pub enum Ending {
    /// A rank has exited.
    Rank(RankExit),
    /// A node of the job is lost, with those of its ranks that had not exited.
    NodeLost(NodeLost),
    /// The engine has begun to end the job early.
    Early(EarlyEnd),
    /// A rank of a part of a job (`JobSpec::mpi_nodes`) has begun, ended or aborted MPI.
    Mpi {
        /// The rank.
        rank: Rank,
        /// The event.
        event: MpiEvent,
    },
}

/// The steps that follow when jobs are ended early.
#[derive(Default)]
pub(crate) struct EndSteps {
    /// Signals, in this order, with their receivers.
    pub signals: Vec<(Signal, Receivers)>,
    /// Streams that are to be completed after
    /// [`OPEN_AFTER_KILL`](crate::jobs::early_end::OPEN_AFTER_KILL) if they are still open.
    pub finish: Vec<SourceId>,
    /// Steps towards the end of nodes.
    pub nodes: Vec<(NodeKey, LastStep)>,
    /// The numbers of the jobs whose time is over.
    pub late: Vec<u64>,
}

impl JobState {
    /// Notes that a local rank has exited at `now`, and what it has used.
    pub(crate) fn exited(&mut self, rank: Rank, exit: (Exit, Option<UsedResources>), now: Instant) {
        self.ended(rank, exit, None, now);
    }

    /// Notes that a rank has exited at `now`, and on another node, that it did so on request.
    pub(super) fn ended(
        &mut self,
        rank: Rank,
        (exit, used): (Exit, Option<UsedResources>),
        requested: Option<bool>,
        now: Instant,
    ) {
        let Some(state) = self.ranks.get_mut(&rank) else { absent!("rank", return) };
        state.used = used;
        let was_asked = state.was_asked_to_end(now) || requested == Some(true);
        let unfinalized = self.mpi.get(&rank) == Some(&MpiPhase::Inside) && !was_asked;
        let exit = if unfinalized && exit.success() { Exit::Unfinalized } else { exit };
        let requested = requested.unwrap_or_else(|| state.is_requested(exit, now));
        self.note_exit(rank, exit, requested);
        self.early_end_policy.exited(rank, exit, requested, unfinalized, now);
        self.endings.push(EndingEntry::Rank(rank));
        let may_be_missed = exit.success() || !requested;
        if may_be_missed && !self.mpi.contains_key(&rank) && self.uninitialized.is_none() {
            self.uninitialized = Some(rank);
            // One that is still being started waits, too.
            let waits = |rank: &Rank| self.ranks.get(rank).is_none_or(|state| state.exit().is_none());
            if self.mpi.iter().any(|(rank, phase)| *phase == MpiPhase::Inside && waits(rank)) {
                self.early_end_policy.uninitialized(rank);
            }
        }
    }

    /// Notes the exit of a rank, and the failure if it is one.
    pub(super) fn note_exit(&mut self, rank: Rank, exit: Exit, requested: bool) {
        let Some(state) = self.ranks.get_mut(&rank) else { absent!("rank", return) };
        if state.exited(exit, requested) {
            self.running.lower(1);
        }
        if !exit.success() {
            self.first_failure.note((rank, exit), requested);
        }
    }

    /// Notes how far a rank has come in MPI, which runs here or on another node.
    pub(crate) fn note_mpi(&mut self, rank: Rank, phase: MpiPhase) {
        if !self.has_local_rank(rank) && !self.ranks.contains_key(&rank) {
            return;
        }
        self.mpi.insert(rank, phase);
        if let Some(missing) = self.uninitialized.filter(|_| phase == MpiPhase::Inside) {
            self.early_end_policy.uninitialized(missing);
        }
    }

    /// Returns the job as a part of one that another engine follows.
    pub(crate) fn into_part(self) -> JobState {
        JobState { is_part: true, ..self }
    }

    /// Returns whether another engine judges what its ranks do in MPI.
    pub(crate) fn is_part(&self) -> bool {
        self.is_part
    }

    /// Adds an event of a rank to the endings, if another engine judges it. Returns whether one does.
    pub(crate) fn pass_on(&mut self, rank: Rank, event: MpiEvent) -> bool {
        self.endings.extend(self.is_part.then_some(EndingEntry::Mpi(rank, event)));
        self.is_part
    }

    /// Returns the time between SIGTERM and SIGKILL when the job is ended early.
    pub(crate) fn kill_wait(&self) -> Duration {
        self.early_end_policy.kill_wait()
    }

    /// Ends the job because of `cause`, unless something else does.
    pub(crate) fn end(&mut self, cause: EndCause) {
        self.early_end_policy.end(cause);
    }

    /// Returns whether a rank has called `MPI_Init`.
    pub(crate) fn uses_mpi(&self) -> bool {
        !self.mpi.is_empty()
    }

    /// Notes that the ends of its local ranks remain unknown, and that all of its streams are
    /// complete.
    pub(crate) fn capture_ended(&mut self, now: Instant) {
        let mut local = self.running_ranks();
        local.retain(|rank| self.has_local_rank(*rank));
        local.into_iter().for_each(|rank| self.exited(rank, (Exit::Unknown, None), now));
        self.close_stdin();
        (self.open_streams, self.open_deliveries, self.open_logs) = (0, 0, 0);
    }

    /// Notes that nothing can be pushed to the stdin of its ranks from now on.
    pub(crate) fn close_stdin(&mut self) {
        self.ranks.values_mut().for_each(RankState::close_stdin);
    }

    /// Returns the ranks that have not exited.
    fn running_ranks(&self) -> Vec<Rank> {
        self.ranks().filter(|(_, state)| state.exit().is_none()).map(|(rank, _)| rank).collect()
    }

    /// Notes that the embedder sends a signal to all ranks at `now`.
    pub(crate) fn note_request(&mut self, signal: Signal, now: Instant) {
        self.early_end_policy.signalled(signal);
        if signal == Signal::KILL {
            self.last_steps.begin(now);
        }
    }

    /// Notes that a rank has called `MPI_Abort`.
    pub(crate) fn aborted(&mut self, rank: Rank, code: i32) {
        self.early_end_policy.aborted(rank, code);
    }

    /// Returns whether the `MPI_Abort` of this rank ended the job.
    fn was_aborted_by(&self, rank: Rank) -> bool {
        self.early_end.as_ref().is_some_and(|end| end.cause.is_abort_of(rank))
    }

    /// Notes that the engine ends the job early.
    fn note_early_end(&mut self, end: EarlyEnd) {
        self.early_end = Some(end);
        self.endings.push(EndingEntry::Early);
    }

    /// Returns the ending with this index; `None` if it has not happened.
    pub fn ending(&self, index: usize) -> Option<Ending> {
        match self.endings.get(index)? {
            EndingEntry::Early => self.early_end.clone().map(Ending::Early),
            EndingEntry::Lost(lost) => Some(Ending::NodeLost(lost.clone())),
            EndingEntry::Mpi(rank, event) => Some(Ending::Mpi { rank: *rank, event: *event }),
            EndingEntry::Rank(rank) => {
                let (rank, state) = (*rank, self.ranks.get(rank)?);
                Some(Ending::Rank(RankExit {
                    rank,
                    exit: state.exit()?,
                    pid: state.pid(),
                    executable: state.executable().to_owned(),
                    host: state.node().and_then(|node| self.host(node)).map(str::to_owned),
                    requested: state.is_exit_requested() && !self.was_aborted_by(rank),
                    used: state.used,
                }))
            }
        }
    }
}

impl JobState {
    /// Returns when [`JobState::end_early`] is due.
    pub(crate) fn next_early_end(&self, now: Instant) -> Option<Instant> {
        // Ranks that are still being started would miss the signals.
        let can_end = self.started && !self.is_drained();
        let last_step = self.last_steps.next_time().filter(|_| self.open_nodes().next().is_some());
        self.early_end_policy.next_time(now).into_iter().chain(last_step).min().filter(|_| can_end)
    }

    /// Adds the steps of an early end that are due at `now` to `steps`, and notes that they are
    /// taken.
    pub(crate) fn end_early(&mut self, now: Instant, steps: &mut EndSteps) {
        while self.next_early_end(now).is_some_and(|time| time <= now) {
            match self.early_end_policy.next_step(now, !self.has_exited()) {
                Some(EarlyEndStep::Terminate(cause)) => {
                    steps.late.extend((cause == EndCause::Timeout).then_some(self.run));
                    let mut left = self.running_ranks();
                    left.retain(|rank| !cause.is_abort_of(*rank));
                    self.note_early_end(EarlyEnd { cause, left });
                    // A stopped rank handles SIGTERM only when it continues.
                    for signal in [Signal::TERM, Signal::CONT] {
                        steps.signals.push((signal, self.signal(signal, now, |_, _| true)));
                    }
                }
                Some(EarlyEndStep::Kill) => {
                    steps.signals.push((Signal::KILL, self.signal(Signal::KILL, now, |_, _| true)));
                    steps.finish.extend(self.ranks.values().flat_map(RankState::streams).copied());
                    self.last_steps.begin(now);
                }
                None => {}
            }
            if let Some(step) = self.last_steps.next_step(now) {
                steps.nodes.extend(self.open_nodes().map(|node| ((self.run, node), step)));
            }
        }
    }
}
