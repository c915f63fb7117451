//! The exit status of a job.

use std::process::ExitCode;

use iof_capture::Signal;
use iof_proto::{Channel, Rank};

use crate::jobs::early_end::{EarlyEnd, EndCause, TIMEOUT_CODE};
use crate::jobs::exit::Exit;

/// The exit status of a job's ranks: the local ones, and those on its other nodes.
#[derive(Clone, Debug, Default)]
pub struct JobStatus {
    /// The rank that failed first, with its exit status; `None` if no rank has failed. A rank fails
    /// if its exit code is not 0, a signal ends it, or its status is [`Exit::Unknown`] or
    /// [`Exit::Unfinalized`]. Ranks that ended on request count only
    /// if no other rank has failed.
    pub first_failure: Option<(Rank, Exit)>,
    /// The signal that asked this rank to end, if it failed on another node because of one. Of several it is the last
    /// one of SIGHUP, SIGINT, SIGQUIT and SIGTERM.
    pub request: Option<Signal>,
    /// The streams that were completed before their end of file: at the end of their rank's grace
    /// period (see `JobSpec::grace`), by
    /// `Job::close`, or some time after the engine killed the ranks. A stddiag
    /// that ends with its rank is not among them.
    pub cut_off: Vec<(Rank, Channel)>,
    /// The way in which the engine ended the job early; `None` if it did not.
    pub early_end: Option<EarlyEnd>,
    /// A node was lost, so output of its ranks may be missing although they have exited.
    pub has_lost_node: bool,
}

impl JobStatus {
    /// Returns the [exit code](Exit::code) of the rank that failed first. If its exit status is unknown because its
    /// node was lost after signal *n* had asked it to end, returns 128 + *n*. If no rank failed, returns 1
    /// if a node was lost, otherwise 0.
    /// Whatever its ranks returned, returns [`TIMEOUT_CODE`] if a time limit ended the job, and the
    /// code of `MPI_Abort` if a rank aborted it. If a rank has exited without `MPI_Init` while
    /// others waited for it, returns its exit code, or 1 if that is 0. Returns 1 if the embedder has
    /// ended the job by `Job::fail`.
    pub fn code(&self) -> i32 {
        match self.early_end.as_ref().map(|end| end.cause) {
            Some(EndCause::Timeout) => TIMEOUT_CODE,
            Some(EndCause::Abort { code, .. }) => code,
            Some(EndCause::Embedder) => 1,
            Some(EndCause::Uninitialized(rank)) => {
                let own = self.first_failure.filter(|(failed, _)| *failed == rank);
                own.map_or(1, |(_, exit)| exit.code())
            }
            // Ranks may exit with 0 after the SIGTERM.
            Some(EndCause::Exchange(_)) => self.first_failure.map_or(1, |(_, exit)| exit.code()),
            Some(EndCause::BadExit(_) | EndCause::ParentEnded) | None => {
                self.first_failure.map_or(self.has_lost_node.into(), |(_, exit)| self.code_of(exit))
            }
        }
    }

    fn code_of(&self, exit: Exit) -> i32 {
        let request = || self.request.map(|signal| signal.number().saturating_add(128));
        exit.known_code().or_else(request).unwrap_or(exit.code())
    }
}

/// The failure of a job's ranks that counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstFailure {
    failure: Option<(Rank, Exit)>,
    requested: bool,
}

impl FirstFailure {
    /// Notes that a rank has failed, and whether it ended on request.
    /// Among ranks that did, those with a known exit status come first.
    pub(crate) fn note(&mut self, failure: (Rank, Exit), requested: bool) {
        let was_unknown = self.failure.is_some_and(|(_, exit)| exit == Exit::Unknown);
        let is_better = !requested || (was_unknown && failure.1 != Exit::Unknown);
        if self.failure.is_none() || (self.requested && is_better) {
            *self = FirstFailure { failure: Some(failure), requested };
        }
    }

    /// Returns the same rank, if it ended on request.
    pub(crate) fn requested(self) -> Option<Rank> {
        self.failure.filter(|_| self.requested).map(|(rank, _)| rank)
    }

    /// Returns the first rank that failed, with its exit status. Ranks that ended on request count
    /// only if no other rank has failed.
    pub(crate) fn get(self) -> Option<(Rank, Exit)> {
        self.failure
    }
}

impl From<JobStatus> for ExitCode {
    /// Returns [`JobStatus::code`] as the exit code of this process.
    fn from(status: JobStatus) -> ExitCode {
        // wait(2) reports no greater codes than 255.
        ExitCode::from(u8::try_from(status.code()).unwrap_or(u8::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_failure_counts_before_ends_on_request_and_those_before_unknown_ones() {
        let (unknown, request, crash) = (
            ((Rank(0), Exit::Unknown), true),
            ((Rank(1), Exit::Status(ExitStatus::from_raw(Signal::TERM.number()))), true),
            ((Rank(2), Exit::Status(ExitStatus::from_raw(Signal::KILL.number()))), false),
        );
        for (failures, first) in [
            (&[unknown][..], 0),
            (&[unknown, ((Rank(3), Exit::Unknown), true)], 0),
            (&[unknown, request], 1),
            (&[request, unknown], 1),
            (&[request, crash, unknown], 2),
            (&[unknown, crash, request], 2),
        ] {
            let mut failure = FirstFailure::default();
            failures.iter().for_each(|(failed, requested)| failure.note(*failed, *requested));
            assert_eq!(failure.get().map(|(rank, _)| rank), Some(Rank(first)), "{failures:?}");
        }
    }
}
