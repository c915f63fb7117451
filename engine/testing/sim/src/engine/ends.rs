//! The end that a job must have: its exit status and its early end, from the actions of its ranks.

use std::mem;
use std::process::ExitStatus;
use std::time::Instant;

use iof_capture::Signal;
use iof_core::{EndCause, Exit, JobStatus, REQUEST_LIFETIME, TIMEOUT_CODE};
use iof_proto::{KillOnBadExit, Rank};

use crate::driver::MpiReport;

/// The signals that ask a rank to end.
const REQUESTS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The progress of a rank in MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not begun.
    Before,
    /// It is between `MPI_Init` and `MPI_Finalize`.
    Inside,
    /// It has finalized.
    After,
}

/// The end of a rank.
#[derive(Clone, Copy, Debug)]
struct RankEnd {
    exit: Exit,
    /// `true` if a signal that was sent to it explains a failure; `None` if that is unclear.
    requested: Option<bool>,
    /// Set if it was inside MPI, and not asked to end.
    unfinalized: bool,
}

/// The facts known of a rank.
#[derive(Debug)]
struct RankModel {
    phase: Phase,
    /// Set if it is in the embedder's process group.
    shares_group: bool,
    /// The signals that were sent to it.
    signals: Vec<(Signal, Instant)>,
    end: Option<RankEnd>,
}

/// The facts known of a job.
#[derive(Debug)]
pub struct Ends {
    kill_on: KillOnBadExit,
    /// When its time limit is reached.
    timeout: Option<Instant>,
    ranks: Vec<RankModel>,
    /// The progress in MPI of the rank that is being started.
    starting: Phase,
    /// The ranks that have failed, in this order.
    failed: Vec<Rank>,
    /// The first rank that has called `MPI_Abort`, with its code.
    abort: Option<(Rank, i32)>,
    /// It is to end with its parent.
    parent_ended: bool,
    /// Why the engine has ended the job.
    early_end: Option<EndCause>,
}

impl Ends {
    /// Describes a job without ranks.
    pub fn new(kill_on: KillOnBadExit, timeout: Option<Instant>) -> Ends {
        let (ranks, failed) = (Vec::new(), Vec::new());
        Ends {
            kill_on,
            timeout,
            ranks,
            starting: Phase::Before,
            failed,
            abort: None,
            parent_ended: false,
            early_end: None,
        }
    }

    /// Adds the rank that was being started.
    pub fn add_rank(&mut self, shares_group: bool) {
        let phase = mem::replace(&mut self.starting, Phase::Before);
        let rank = RankModel { phase, shares_group, signals: Vec::new(), end: None };
        self.ranks.push(rank);
    }

    /// Returns how far a rank has come in MPI. The one after the last is being started.
    pub fn phase(&self, rank: usize) -> Phase {
        self.ranks.get(rank).map_or(self.starting, |rank| rank.phase)
    }

    /// Notes a report of a rank about MPI. The one after the last is being started.
    pub fn reported(&mut self, rank: usize, report: MpiReport) {
        let phase = self.ranks.get_mut(rank).map_or(&mut self.starting, |rank| &mut rank.phase);
        match report {
            MpiReport::Initialized => *phase = Phase::Inside,
            MpiReport::Finalized => *phase = Phase::After,
            MpiReport::Aborted(code) => _ = self.abort.get_or_insert((Rank(rank as u32), code)),
        }
    }

    /// Notes that its parent has ended. A job that uses MPI ends only with one that has failed.
    pub fn parent_ended(&mut self, has_failed: bool) {
        let uses_mpi = self.ranks.iter().any(|rank| rank.phase != Phase::Before);
        self.parent_ended |= has_failed || !uses_mpi;
    }

    /// Notes that a signal was sent to a rank.
    pub fn signalled(&mut self, rank: usize, signal: Signal, now: Instant) {
        self.ranks[rank].signals.push((signal, now));
    }

    /// Notes that the terminal has sent a signal to the ranks in the embedder's process group.
    pub fn signalled_by_terminal(&mut self, signal: Signal, now: Instant) {
        let ranks = self.ranks.iter_mut().filter(|rank| rank.shares_group);
        ranks.for_each(|rank| rank.signals.push((signal, now)));
    }

    /// Notes the end of a rank; `None` if its status is unknown.
    pub fn exited(&mut self, rank: usize, status: Option<ExitStatus>, now: Instant) {
        let number = Rank(rank as u32);
        let RankModel { phase, shares_group, signals, end } = &mut self.ranks[rank];
        let is_old = signals.first().is_some_and(|(_, time)| now - *time >= REQUEST_LIFETIME);
        let asked = signals.iter().any(|(signal, _)| REQUESTS.contains(signal));
        let unfinalized = *phase == Phase::Inside && !asked;
        let exit = match status {
            Some(status) if status.success() && unfinalized => Exit::Unfinalized,
            Some(status) => Exit::Status(status),
            None => Exit::Unknown,
        };
        let requested = match exit.signal() {
            Some(number) => {
                let from_terminal = REQUESTS[..3].iter().any(|signal| signal.number() == number);
                let sent = signals.iter().any(|(signal, _)| signal.number() == number);
                sent || *shares_group && from_terminal
            }
            None => asked,
        };
        *end = Some(RankEnd { exit, requested: (!is_old).then_some(requested), unfinalized });
        self.failed.extend((!exit.success()).then_some(number));
    }

    /// Notes that the ends of the other ranks remain unknown.
    pub fn lost(&mut self, now: Instant) {
        (0..self.ranks.len())
            .filter(|rank| self.ranks[*rank].end.is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|rank| self.exited(rank, None, now));
    }

    /// Returns how a rank has ended.
    pub fn exit(&self, rank: usize) -> Option<Exit> {
        self.end(Rank(rank as u32)).map(|end| end.exit)
    }

    /// Returns whether all ranks have ended.
    pub fn are_known(&self) -> bool {
        self.ranks.iter().all(|rank| rank.end.is_some())
    }

    fn end(&self, rank: Rank) -> Option<RankEnd> {
        self.ranks.get(rank.0 as usize)?.end
    }

    /// Returns whether a rank has failed in a way that ends the job; `None` if that is unclear.
    fn is_bad(&self, rank: Rank) -> Option<bool> {
        let RankEnd { exit, requested, unfinalized } = self.end(rank)?;
        let is_bad = match self.kill_on {
            KillOnBadExit::Never => false,
            KillOnBadExit::Signal => exit.signal().is_some() || unfinalized,
            KillOnBadExit::Always => !exit.success(),
        };
        Some(is_bad && !requested?)
    }

    /// Returns whether a rank has ended without MPI and without a request, so that others may wait
    /// for it there; `None` if that is unclear.
    fn is_missing(&self, rank: &RankModel) -> Option<bool> {
        let RankEnd { exit, requested, .. } = rank.end?;
        let has_ended_before = self.kill_on != KillOnBadExit::Never && rank.phase == Phase::Before;
        Some(has_ended_before && (exit.success() || !requested?))
    }

    /// Checks the status of the job at `now`.
    pub fn check(&mut self, status: &JobStatus, now: Instant) {
        let cause = status.early_end.as_ref().map(|end| end.cause);
        match (self.early_end, cause) {
            (None, Some(cause)) => self.check_cause(cause, now),
            (before, cause) => assert_eq!(before, cause, "the cause of an early end has changed"),
        }
        self.early_end = cause;
        let code = match cause {
            Some(EndCause::Abort { code, .. }) => code,
            Some(EndCause::Timeout) => TIMEOUT_CODE,
            Some(EndCause::Uninitialized(rank)) => {
                status.first_failure.filter(|(failed, _)| *failed == rank).map_or(1, |(_, exit)| exit.code())
            }
            Some(EndCause::BadExit(_) | EndCause::ParentEnded | EndCause::Exchange(_)) | None => {
                status.first_failure.map_or(0, |(_, exit)| exit.code())
            }
            // The simulator's embedder fails no job.
            Some(EndCause::Embedder) => 1,
        };
        assert_eq!(status.code(), code, "the exit code after {cause:?}");
        self.check_failure(status);
    }

    fn check_cause(&self, cause: EndCause, now: Instant) {
        let is_right = match (self.abort, cause) {
            (Some((rank, code)), cause) => cause == EndCause::Abort { rank, code },
            (None, EndCause::Abort { .. } | EndCause::Exchange(_) | EndCause::Embedder) => false,
            (None, EndCause::BadExit(rank)) => {
                self.is_bad(rank) == Some(true) || self.end(rank).is_some_and(|end| end.requested.is_none())
            }
            (None, EndCause::Uninitialized(rank)) => self
                .ranks
                .get(rank.0 as usize)
                .is_some_and(|rank| rank.end.is_some() && self.is_missing(rank) != Some(false)),
            (None, EndCause::ParentEnded) => self.parent_ended,
            (None, EndCause::Timeout) => self.timeout.is_some_and(|timeout| timeout <= now),
        };
        assert!(is_right, "a job was ended because of {cause:?}: {self:?}");
    }

    /// Checks the failure that counts: the first one that was not requested. If all were, the first
    /// one whose exit status is known, or the first one.
    fn check_failure(&self, status: &JobStatus) {
        let Some((rank, exit)) = status.first_failure else {
            assert!(self.failed.is_empty(), "a job has failed: {self:?}");
            return;
        };
        let end = self.end(rank).expect("the end of a rank that has failed");
        let is_clear =
            self.failed.iter().all(|rank| self.end(*rank).is_some_and(|end| end.requested.is_some()));
        if is_clear {
            assert_eq!(exit, end.exit, "the exit of rank {rank}: {self:?}");
            let counts = |rank: &&Rank| self.end(**rank).is_some_and(|end| end.requested == Some(false));
            let is_known = |rank: &&Rank| self.end(**rank).is_some_and(|end| end.exit != Exit::Unknown);
            let first = self.failed.iter().find(counts).or(self.failed.iter().find(is_known));
            assert_eq!(first.or(self.failed.first()), Some(&rank), "the failure that counts: {self:?}");
        }
    }

    /// Checks that a job which is to end early was ended, once time has passed and its ranks are
    /// started.
    pub fn check_ended(&self, now: Instant) {
        let left = |rank: &RankModel| rank.end.is_none();
        if self.early_end.is_some() || !self.ranks.iter().any(left) {
            return;
        }
        assert_eq!(self.abort, None, "an abort has not ended a job: {self:?}");
        assert!(!self.parent_ended, "the end of its parent has not ended a job: {self:?}");
        let is_late = self.timeout.is_some_and(|timeout| timeout <= now);
        assert!(!is_late, "a time limit has not ended a job: {self:?}");
        let waits = |rank: &RankModel| left(rank) && rank.phase == Phase::Inside;
        let waits =
            self.ranks.iter().any(waits) && self.ranks.iter().any(|rank| self.is_missing(rank) == Some(true));
        assert!(!waits, "a rank waits for one that has ended: {self:?}");
        // A failure that looks like a request to end counts a little later.
        let looks_requested = |exit: Exit| REQUESTS.iter().any(|signal| exit.code() == 128 + signal.number());
        let is_bad = |rank: &&Rank| {
            self.is_bad(**rank) == Some(true)
                && self.end(**rank).is_some_and(|end| !looks_requested(end.exit))
        };
        assert_eq!(self.failed.iter().find(is_bad), None, "a failure has not ended a job: {self:?}");
    }
}
