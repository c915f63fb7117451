//! Ending a job early: when a rank fails, or at a time limit. The decision does no I/O.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iof_capture::Signal;
use iof_proto::{DEFAULT_KILL_WAIT, KillOnBadExit, Rank};

use crate::jobs::exit::{Exit, REQUESTS_TO_END};

/// Exit code of a job that a time limit ended, as that of timeout(1).
pub const TIMEOUT_CODE: i32 = 124;

/// The time for which streams may stay open after SIGKILL. A process that left its rank's group can
/// hold them.
pub const OPEN_AFTER_KILL: Duration = Duration::from_secs(2);

/// The time in which carriers of nodes must exit after they were asked to.
pub const EXIT_AFTER_HANG_UP: Duration = Duration::from_millis(500);

/// Time within which equal requests to end are the same request: 250 ms.
///
/// A signal to a process group, or to all processes of a container, can end a rank before the
/// embedder reads the same signal. If the embedder passes it on
/// (`Job::signal`) within this time, the rank has not failed.
pub const SAME_REQUEST: Duration = Duration::from_millis(250);

/// Why the engine ended a job early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// This rank failed (`JobSpec::kill_on_bad_exit`).
    BadExit(Rank),
    /// This rank has called `MPI_Abort`.
    Abort {
        /// The rank.
        rank: Rank,
        /// The exit code that it specified.
        code: i32,
    },
    /// This rank has exited without `MPI_Init`, in which other ranks wait for it.
    Uninitialized(Rank),
    /// The values that this rank, or others of its node, exchange with those of other nodes are not valid.
    Exchange(Rank),
    /// The job took longer than its `JobSpec::timeout`.
    Timeout,
    /// The job or tool has ended that had the engine start this job.
    ParentEnded,
    /// The embedder has ended the job as one that has failed (`Job::fail`).
    Embedder,
}

impl EndCause {
    /// Returns whether this is an `MPI_Abort` of this rank.
    pub(crate) fn is_abort_of(self, caller: Rank) -> bool {
        matches!(self, EndCause::Abort { rank, .. } if rank == caller)
    }
}

/// The early end of a job by the engine: it has sent SIGTERM to all local ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyEnd {
    /// The cause.
    pub cause: EndCause,
    /// The ranks that had not exited when SIGTERM was sent, in ascending order, without a rank that
    /// called `MPI_Abort`. Empty if a time limit ended a job whose ranks had exited, but had left
    /// children that held their output.
    pub left: Vec<Rank>,
}

/// The next step of an early end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyEndStep {
    /// Send SIGTERM to all ranks.
    Terminate(EndCause),
    /// Send SIGKILL to all ranks.
    Kill,
}

/// A step after SIGKILL of all ranks, for nodes that have not ended. A node may be frozen, or its carrier
/// may not notice that the network is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastStep {
    /// Completes the streams that are still open with the bytes written so far.
    CutOff,
    /// Asks the node's carrier to end.
    HangUp,
    /// Gives up the node, which is lost then.
    GiveUp,
}

/// The steps after SIGKILL of all ranks: the next one, and when it is taken.
#[derive(Debug, Default)]
pub(crate) struct LastSteps(Option<(Instant, LastStep)>);

impl LastSteps {
    /// Notes that the ranks are sent SIGKILL at `now`.
    pub(crate) fn begin(&mut self, now: Instant) {
        let first = now.checked_add(OPEN_AFTER_KILL).map(|time| (time, LastStep::CutOff));
        self.0 = self.0.or(first);
    }

    /// Returns when [`LastSteps::next_step`] is to be called.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.0.map(|(time, _)| time)
    }

    /// Returns the next step if it is due at `now`, and assumes that it is taken.
    pub(crate) fn next_step(&mut self, now: Instant) -> Option<LastStep> {
        let (_, step) = self.0.take_if(|(time, _)| *time <= now)?;
        let next = match step {
            LastStep::CutOff => Some((OPEN_AFTER_KILL, LastStep::HangUp)),
            LastStep::HangUp => Some((EXIT_AFTER_HANG_UP, LastStep::GiveUp)),
            LastStep::GiveUp => None,
        };
        self.0 = next.and_then(|(wait, step)| Some((now.checked_add(wait)?, step)));
        Some(step)
    }
}

/// The decision whether and when a job is ended early.
#[derive(Debug)]
pub struct EarlyEndPolicy {
    kill_on: KillOnBadExit,
    kill_wait: Duration,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Running {
        /// When the job has taken too long; `None` for no limit.
        timeout: Option<Instant>,
        /// Why the job ends with the next step, unless no rank is left.
        cause: Option<EndCause>,
        /// The first rank that each signal which asks to end has ended, and when that is a
        /// failure.
        suspects: BTreeMap<i32, (Rank, Instant)>,
    },
    /// SIGTERM was sent.
    Terminating {
        /// When SIGKILL is sent; `None` if an `Instant` cannot represent the time.
        kill: Option<Instant>,
    },
    /// SIGKILL was sent.
    Killed,
}

impl EarlyEndPolicy {
    /// Creates the policy of a job that starts at `now`.
    pub fn new(
        kill_on: KillOnBadExit,
        kill_wait: Duration,
        limit: Option<Duration>,
        now: Instant,
    ) -> EarlyEndPolicy {
        // A time that an `Instant` can't represent is never reached.
        let timeout = limit.and_then(|limit| now.checked_add(limit));
        let phase = Phase::Running { timeout, cause: None, suspects: BTreeMap::new() };
        EarlyEndPolicy { kill_on, kill_wait, phase }
    }

    /// Creates the policy of a job that is never ended early.
    pub fn never() -> EarlyEndPolicy {
        let phase = Phase::Running { timeout: None, cause: None, suspects: BTreeMap::new() };
        EarlyEndPolicy { kill_on: KillOnBadExit::Never, kill_wait: DEFAULT_KILL_WAIT, phase }
    }

    /// Returns the time between SIGTERM and SIGKILL.
    pub(crate) fn kill_wait(&self) -> Duration {
        self.kill_wait
    }

    /// Notes that a rank has exited at `now`. `requested` specifies that it did so because of a
    /// signal that the engine sent, and `unfinalized` that it did so between `MPI_Init` and
    /// `MPI_Finalize`.
    pub(crate) fn exited(
        &mut self,
        rank: Rank,
        exit: Exit,
        requested: bool,
        unfinalized: bool,
        now: Instant,
    ) {
        let is_bad = match self.kill_on {
            KillOnBadExit::Never => false,
            KillOnBadExit::Signal => exit.signal().is_some() || unfinalized,
            KillOnBadExit::Always => !exit.success(),
        };
        if let Phase::Running { cause: cause @ None, suspects, .. } = &mut self.phase
            && is_bad
            && !requested
        {
            // A handler or a shell exits with this code.
            let request = exit.code().checked_sub(128).filter(|number| asks_to_end(*number));
            match (request, now.checked_add(SAME_REQUEST)) {
                (Some(signal), Some(time)) => drop(suspects.entry(signal).or_insert((rank, time))),
                _ => *cause = Some(EndCause::BadExit(rank)),
            }
        }
    }

    /// Notes that the embedder has sent a signal to all ranks. Ranks that it ended less than
    /// [`SAME_REQUEST`] before have not failed.
    pub(crate) fn signalled(&mut self, signal: Signal) {
        if let Phase::Running { suspects, .. } = &mut self.phase {
            suspects.remove(&signal.number());
        }
    }

    /// Notes that the node of a rank is lost. This ends the job unless no failure does.
    pub(crate) fn lost(&mut self, rank: Rank) {
        if let Phase::Running { cause: cause @ None, .. } = &mut self.phase
            && self.kill_on != KillOnBadExit::Never
        {
            *cause = Some(EndCause::BadExit(rank));
        }
    }

    /// Notes that a rank has exited without `MPI_Init`, in which others wait for it. This ends the
    /// job unless no failure does.
    pub(crate) fn uninitialized(&mut self, rank: Rank) {
        if let Phase::Running { cause: cause @ None, .. } = &mut self.phase
            && self.kill_on != KillOnBadExit::Never
        {
            *cause = Some(EndCause::Uninitialized(rank));
        }
    }

    /// Ends the job because of `end`, whatever failures end it, unless something else does.
    pub(crate) fn end(&mut self, end: EndCause) {
        if let Phase::Running { cause: cause @ None, .. } = &mut self.phase {
            *cause = Some(end);
        }
    }

    /// Notes that a rank has called `MPI_Abort`. The first call counts, also if a rank has failed
    /// before.
    pub(crate) fn aborted(&mut self, rank: Rank, code: i32) {
        if let Phase::Running { cause, .. } = &mut self.phase
            && !matches!(cause, Some(EndCause::Abort { .. }))
        {
            *cause = Some(EndCause::Abort { rank, code });
        }
    }

    /// Returns the next step that is due at `now`, and assumes that it is done. `ranks_left`
    /// specifies that some ranks have not exited; otherwise a failure has nothing to end.
    pub(crate) fn next_step(&mut self, now: Instant, ranks_left: bool) -> Option<EarlyEndStep> {
        match &mut self.phase {
            Phase::Running { timeout, cause, suspects } => {
                let failed = suspects.extract_if(.., |_, (_, time)| *time <= now);
                let failed = failed.map(|(_, failed)| failed).min_by_key(|(_, time)| *time);
                let failed = failed.map(|(rank, _)| EndCause::BadExit(rank));
                let is_told = |cause: &EndCause| matches!(cause, EndCause::Abort { .. } | EndCause::Embedder);
                let has_effect = |cause: &EndCause| ranks_left || is_told(cause);
                let cause = cause.take().or(failed).filter(has_effect);
                let is_late = || timeout.is_some_and(|timeout| timeout <= now).then_some(EndCause::Timeout);
                let cause = cause.or_else(is_late)?;
                self.phase = Phase::Terminating { kill: now.checked_add(self.kill_wait) };
                Some(EarlyEndStep::Terminate(cause))
            }
            Phase::Terminating { kill: Some(kill) } if *kill <= now => {
                self.phase = Phase::Killed;
                Some(EarlyEndStep::Kill)
            }
            Phase::Terminating { .. } | Phase::Killed => None,
        }
    }

    /// Returns when [`EarlyEndPolicy::next_step`] is to be called: `now` if a step is due.
    pub(crate) fn next_time(&self, now: Instant) -> Option<Instant> {
        match &self.phase {
            Phase::Running { cause: Some(_), .. } => Some(now),
            Phase::Running { timeout, suspects, .. } => {
                suspects.values().map(|(_, time)| *time).chain(*timeout).min()
            }
            Phase::Terminating { kill } => *kill,
            Phase::Killed => None,
        }
    }
}

/// Returns whether a signal asks a program to end.
fn asks_to_end(number: i32) -> bool {
    REQUESTS_TO_END.iter().any(|signal| signal.number() == number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn code(code: i32) -> Exit {
        Exit::Status(ExitStatus::from_raw(code << 8))
    }

    fn killed() -> Exit {
        Exit::Status(ExitStatus::from_raw(Signal::KILL.number()))
    }

    fn policy(kill_on: KillOnBadExit, timeout: Option<u64>, now: Instant) -> EarlyEndPolicy {
        EarlyEndPolicy::new(kill_on, Duration::from_secs(2), timeout.map(Duration::from_secs), now)
    }

    #[test]
    fn only_the_selected_failures_end_the_job() {
        let now = Instant::now();
        for (kill_on, ends) in [
            (KillOnBadExit::Never, [false, false, false, false]),
            (KillOnBadExit::Signal, [false, false, false, true]),
            (KillOnBadExit::Always, [false, true, true, true]),
        ] {
            for (exit, ends) in [code(0), code(3), Exit::Unknown, killed()].into_iter().zip(ends) {
                let mut policy = policy(kill_on, None, now);
                policy.exited(Rank(4), exit, false, false, now);
                assert_eq!(policy.next_time(now), ends.then_some(now), "{kill_on:?} {exit:?}");
                let step = ends.then_some(EarlyEndStep::Terminate(EndCause::BadExit(Rank(4))));
                assert_eq!(policy.next_step(now, true), step, "{kill_on:?} {exit:?}");
            }
        }
    }

    #[test]
    fn a_requested_exit_and_the_exit_of_the_last_rank_do_not_end_the_job() {
        let now = Instant::now();
        let mut policy = policy(KillOnBadExit::Always, Some(5), now);
        policy.exited(Rank(0), killed(), true, false, now);
        assert_eq!(policy.next_step(now, true), None);
        policy.exited(Rank(1), killed(), false, false, now);
        assert_eq!(policy.next_step(now, false), None);
        // The time limit still applies: a child of a rank may hold the output.
        let late = now + Duration::from_secs(5);
        assert_eq!(policy.next_time(now), Some(late));
        assert_eq!(policy.next_step(late, false), Some(EarlyEndStep::Terminate(EndCause::Timeout)));
    }

    #[test]
    fn an_abort_ends_the_job_whatever_the_policy_is() {
        let now = Instant::now();
        for kill_on in [KillOnBadExit::Never, KillOnBadExit::Signal, KillOnBadExit::Always] {
            let mut policy = policy(kill_on, None, now);
            policy.exited(Rank(0), killed(), false, false, now);
            policy.aborted(Rank(1), 7);
            policy.aborted(Rank(2), 8);
            let abort = EarlyEndStep::Terminate(EndCause::Abort { rank: Rank(1), code: 7 });
            assert_eq!(policy.next_step(now, false), Some(abort), "{kill_on:?}");
        }
    }

    #[test]
    fn a_lost_node_ends_the_job_unless_no_failure_does() {
        let now = Instant::now();
        for (kill_on, ends) in
            [(KillOnBadExit::Never, false), (KillOnBadExit::Signal, true), (KillOnBadExit::Always, true)]
        {
            let mut policy = policy(kill_on, None, now);
            policy.lost(Rank(3));
            let step = ends.then_some(EarlyEndStep::Terminate(EndCause::BadExit(Rank(3))));
            assert_eq!(policy.next_step(now, true), step, "{kill_on:?}");
        }
    }

    #[test]
    fn a_rank_that_leaves_mpi_without_its_end_ends_the_job() {
        let now = Instant::now();
        for (kill_on, ends) in
            [(KillOnBadExit::Never, false), (KillOnBadExit::Signal, true), (KillOnBadExit::Always, true)]
        {
            for exit in [Exit::Unfinalized, code(3)] {
                let mut policy = policy(kill_on, None, now);
                policy.exited(Rank(0), exit, false, true, now);
                assert_eq!(policy.next_step(now, true).is_some(), ends, "{kill_on:?} {exit:?}");
            }
        }
    }

    #[test]
    fn the_ranks_are_killed_once_after_the_kill_wait() {
        let now = Instant::now();
        let mut policy = policy(KillOnBadExit::Signal, Some(1), now);
        policy.exited(Rank(0), killed(), false, false, now);
        assert_eq!(policy.next_step(now, true), Some(EarlyEndStep::Terminate(EndCause::BadExit(Rank(0)))));
        // Neither further failures nor the time limit change the end that has begun.
        policy.exited(Rank(1), killed(), false, false, now);
        let kill = now + Duration::from_secs(2);
        assert_eq!(policy.next_step(now + Duration::from_secs(1), true), None);
        assert_eq!(policy.next_time(now), Some(kill));
        assert_eq!(policy.next_step(kill, true), Some(EarlyEndStep::Kill));
        assert_eq!((policy.next_step(kill, true), policy.next_time(kill)), (None, None));
    }

    #[test]
    fn times_that_cannot_be_represented_are_never_reached() {
        let now = Instant::now();
        let mut policy = EarlyEndPolicy::new(KillOnBadExit::Signal, Duration::MAX, Some(Duration::MAX), now);
        assert_eq!(policy.next_time(now), None);
        policy.exited(Rank(0), killed(), false, false, now);
        assert!(policy.next_step(now, true).is_some());
        assert_eq!(policy.next_time(now), None);
    }

    #[test]
    fn a_rank_killed_by_a_signal_that_the_embedder_then_passes_on_has_not_failed() {
        let now = Instant::now();
        let term = Exit::Status(ExitStatus::from_raw(Signal::TERM.number()));
        let late = now + SAME_REQUEST;
        for kill_on in [KillOnBadExit::Signal, KillOnBadExit::Always] {
            for (sent, fails) in [(None, true), (Some(Signal::INT), true), (Some(Signal::TERM), false)] {
                let mut policy = policy(kill_on, None, now);
                policy.exited(Rank(3), term, false, false, now);
                policy.exited(Rank(4), term, false, false, late);
                assert_eq!((policy.next_step(now, true), policy.next_time(now)), (None, Some(late)));
                sent.into_iter().for_each(|signal| policy.signalled(signal));
                let step = fails.then_some(EarlyEndStep::Terminate(EndCause::BadExit(Rank(3))));
                assert_eq!(policy.next_time(now), fails.then_some(late), "{sent:?}");
                assert_eq!(policy.next_step(late, true), step, "{sent:?}");
            }
        }
        // So does a rank that has handled the signal.
        let mut handled = policy(KillOnBadExit::Always, None, now);
        handled.exited(Rank(3), Exit::Status(ExitStatus::from_raw(143 << 8)), false, false, now);
        assert_eq!((handled.next_step(now, true), handled.next_time(now)), (None, Some(late)));
        handled.signalled(Signal::TERM);
        assert_eq!(handled.next_step(late, true), None);
        // Another failure ends the job at once, and nothing is left to end after the last rank.
        let mut running = policy(KillOnBadExit::Signal, None, now);
        running.exited(Rank(3), term, false, false, now);
        running.exited(Rank(4), killed(), false, false, now);
        assert_eq!(running.next_step(now, true), Some(EarlyEndStep::Terminate(EndCause::BadExit(Rank(4)))));
        let mut ended = policy(KillOnBadExit::Signal, None, now);
        ended.exited(Rank(0), term, false, false, now);
        assert_eq!((ended.next_step(late, false), ended.next_time(late)), (None, None));
    }
}
