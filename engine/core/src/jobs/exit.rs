//! The exit status of a rank, and the signals that may be its cause.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use iof_capture::Signal;
use iof_proto::ProcState;

/// Time for which a signal that was sent to a rank explains the rank's failure: 10 minutes after
/// the last one. A program may need a while to save its state.
pub const REQUEST_LIFETIME: Duration = Duration::from_secs(600);

/// The exit status of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The exit status, as wait(2) reports it.
    Status(ExitStatus),
    /// The exit status of the rank is not available. The embedder ignores SIGCHLD, has a thread
    /// that waits for any child (see waitpid(2)), or adopted a process that is not its child. Or
    /// the engine's capture thread has failed, and the rank may still run.
    Unknown,
    /// The rank ended with exit code 0, but between `MPI_Init` and `MPI_Finalize`, so that other
    /// ranks may wait for it.
    Unfinalized,
}

impl Exit {
    /// Returns whether the rank is known to have ended with exit code 0, and not between `MPI_Init`
    /// and `MPI_Finalize`.
    pub fn success(self) -> bool {
        matches!(self, Exit::Status(status) if status.success())
    }

    /// Returns the exit code, or 128 + *n* if signal *n* ended the rank, as shells do. Returns 1 if
    /// the status is unknown, or the rank did not finalize MPI.
    pub fn code(self) -> i32 {
        self.known_code().unwrap_or(1)
    }

    /// Returns the same code, or `None` if the status is unknown.
    pub(crate) fn known_code(self) -> Option<i32> {
        match self {
            Exit::Status(status) => {
                status.code().or(status.signal().map(|signal| signal.saturating_add(128)))
            }
            Exit::Unfinalized => Some(1),
            Exit::Unknown => None,
        }
    }

    /// Returns the number of the signal that killed the rank; `None` if none did, or if the status
    /// is unknown.
    pub fn signal(self) -> Option<i32> {
        if let Exit::Status(status) = self { status.signal() } else { None }
    }
}

impl fmt::Display for Exit {
    /// Formats the status as `exit code 3`, `SIGSEGV`, `signal 34` for a signal without a name,
    /// `unknown exit status`, or `exit code 0 before MPI_Finalize`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.signal(), self.known_code()) {
            _ if *self == Exit::Unfinalized => f.write_str("exit code 0 before MPI_Finalize"),
            (Some(number), _) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "{signal}"),
                Err(_) => write!(f, "signal {number}"),
            },
            (None, Some(code)) => write!(f, "exit code {code}"),
            (None, None) => f.write_str("unknown exit status"),
        }
    }
}

/// Signals after which a program is expected to exit, with any exit code.
pub const REQUESTS_TO_END: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals that were sent to a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentSignals {
    /// A bit for each number.
    sent: u64,
    /// The time of the last one.
    last: Option<Instant>,
}

impl SentSignals {
    /// Signals that a terminal sends to its foreground process group, and that kill by default.
    const FROM_TERMINAL: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::QUIT];

    pub(crate) fn insert(&mut self, signal: Signal, now: Instant) {
        self.sent = self.recent(now) | Self::bit(signal.number());
        self.last = Some(now);
    }

    /// Returns the bits of the signals, unless they were sent too long ago.
    fn recent(self, now: Instant) -> u64 {
        let age = self.last.map(|last| now.saturating_duration_since(last));
        if age.is_some_and(|age| age < REQUEST_LIFETIME) { self.sent } else { 0 }
    }

    /// Returns whether a rank that ended at `now` failed because of these signals. If it
    /// `shares_group` with the embedder, it also receives those of the embedder's terminal.
    pub(crate) fn explains(self, exit: Exit, shares_group: bool, now: Instant) -> bool {
        match exit.signal() {
            Some(number) => {
                let from_terminal = Self::FROM_TERMINAL.iter().any(|signal| signal.number() == number);
                self.recent(now) & Self::bit(number) != 0 || (shares_group && from_terminal)
            }
            None => !exit.success() && self.asks_to_end(now),
        }
    }

    /// Returns the last of [`REQUESTS_TO_END`] that was sent; `None` if none was.
    pub(crate) fn request(self) -> Option<Signal> {
        REQUESTS_TO_END.into_iter().rev().find(|signal| self.sent & Self::bit(signal.number()) != 0)
    }

    /// Returns whether one of the signals asks a program to exit.
    pub(crate) fn asks_to_end(self, now: Instant) -> bool {
        REQUESTS_TO_END.iter().any(|signal| self.recent(now) & Self::bit(signal.number()) != 0)
    }

    fn bit(number: i32) -> u64 {
        u32::try_from(number).ok().and_then(|number| 1u64.checked_shl(number)).unwrap_or(0)
    }
}

/// Returns the PMIx state of a process that ended with `exit`, or is running if that is `None`.
pub(crate) fn proc_state(exit: Option<Exit>) -> ProcState {
    match exit {
        None => ProcState::Running,
        Some(exit) if exit.success() => ProcState::Terminated,
        Some(Exit::Unfinalized) => ProcState::Unfinalized,
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
            (Exit::Unfinalized, 1, ProcState::Unfinalized),
        ] {
            assert_eq!((exit.code(), proc_state(Some(exit))), (code, state), "{exit:?}");
            assert_eq!(exit.success(), code == 0);
        }
        let texts = [3 << 8, 11, 11 | 0x80, 34].map(|raw| status(raw).to_string());
        assert_eq!(texts, ["exit code 3", "SIGSEGV", "SIGSEGV", "signal 34"]);
        assert_eq!(
            (Exit::Unknown.known_code(), Exit::Unknown.to_string()),
            (None, "unknown exit status".into())
        );
        assert_eq!(Exit::Unfinalized.to_string(), "exit code 0 before MPI_Finalize");
        assert_eq!(proc_state(None), ProcState::Running);
    }

    #[test]
    fn sent_signals_explain_exits_that_they_caused() {
        let (code, killed) = (
            |code: i32| Exit::Status(ExitStatus::from_raw(code << 8)),
            |signal: Signal| Exit::Status(ExitStatus::from_raw(signal.number())),
        );
        let now = Instant::now();
        let explains = |sent: SentSignals, exit, shares_group| {
            sent.explains(exit, shares_group, now + REQUEST_LIFETIME / 2)
        };
        let mut sent = SentSignals::default();
        assert!(!explains(sent, killed(Signal::INT), false) && explains(sent, killed(Signal::INT), true));
        assert!(!explains(sent, killed(Signal::TERM), true) && !explains(sent, code(1), true));
        // A program may exit with any code after a signal that asks it to end.
        sent.insert(Signal::USR1, now);
        assert!(explains(sent, killed(Signal::USR1), false) && !explains(sent, code(1), false));
        sent.insert(Signal::TERM, now);
        assert!(explains(sent, code(1), false) && explains(sent, Exit::Unknown, false));
        assert!(!explains(sent, code(0), false) && !explains(sent, killed(Signal::KILL), false));
        // Much later the rank has ended for another reason.
        let late = now + REQUEST_LIFETIME;
        assert!(!sent.explains(killed(Signal::TERM), false, late) && !sent.explains(code(1), false, late));
        sent.insert(Signal::USR1, late);
        assert!(sent.explains(killed(Signal::USR1), false, late) && !sent.explains(code(1), false, late));
    }
}
