//! The exit status of a rank.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use iof_proto::ProcState;

/// The exit status of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The exit status, as wait(2) reports it.
    Status(ExitStatus),
    /// The rank has ended, but its exit status is not available. The embedder ignores SIGCHLD, has
    /// a thread that waits for any child (see waitpid(2)), or adopted a process that is not its
    /// child.
    Unknown,
}

impl Exit {
    /// Returns whether the rank is known to have ended with exit code 0.
    pub fn success(self) -> bool {
        matches!(self, Exit::Status(status) if status.success())
    }

    /// Returns the exit code, or 128 + *n* if signal *n* ended the rank, as shells do. Returns 1 if
    /// the status is unknown.
    pub fn code(self) -> i32 {
        self.known_code().unwrap_or(1)
    }

    /// Returns the same code, or `None` if the status is unknown.
    pub(crate) fn known_code(self) -> Option<i32> {
        let Exit::Status(status) = self else { return None };
        status.code().or(status.signal().map(|signal| signal.saturating_add(128)))
    }
}

/// Returns the PMIx state of a process that ended with `exit`, or is running if that is `None`.
pub(crate) fn proc_state(exit: Option<Exit>) -> ProcState {
    match exit {
        None => ProcState::Running,
        Some(exit) if exit.success() => ProcState::Terminated,
        Some(Exit::Status(status)) if status.signal().is_some() => ProcState::Killed,
        Some(_) => ProcState::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let status = |raw| Exit::Status(ExitStatus::from_raw(raw));
        for (exit, code, state) in [
            (status(0), 0, ProcState::Terminated),
            (status(3 << 8), 3, ProcState::Failed),
            (status(9), 137, ProcState::Killed),
            (Exit::Unknown, 1, ProcState::Failed),
        ] {
            assert_eq!((exit.code(), proc_state(Some(exit))), (code, state), "{exit:?}");
            assert_eq!(exit.success(), code == 0);
        }
        assert_eq!(Exit::Unknown.known_code(), None);
        assert_eq!(proc_state(None), ProcState::Running);
    }
}
