//! Signals that are sent to ranks.

use std::fmt;
use std::str::FromStr;

use nix::sys::signal;

/// A standard signal, see signal(7).
///
/// ```
/// use iof_capture::Signal;
///
/// assert_eq!("term".parse(), Ok(Signal::TERM));
/// assert_eq!(Signal::TERM.to_string(), "SIGTERM");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(signal::Signal);

/// A text or number that is not a standard signal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown signal '{0}': expected a name such as TERM or SIGTERM, or the number of a standard signal (1 to 31)"
)]
pub struct SignalError(String);

impl Signal {
    /// SIGHUP: the terminal was closed.
    pub const HUP: Signal = Signal(signal::SIGHUP);
    /// SIGINT: Ctrl-C.
    pub const INT: Signal = Signal(signal::SIGINT);
    /// SIGQUIT: Ctrl-\.
    pub const QUIT: Signal = Signal(signal::SIGQUIT);
    /// SIGKILL: ends a process, which cannot prevent it.
    pub const KILL: Signal = Signal(signal::SIGKILL);
    /// SIGUSR1: for programs' own use.
    pub const USR1: Signal = Signal(signal::SIGUSR1);
    /// SIGUSR2: for programs' own use.
    pub const USR2: Signal = Signal(signal::SIGUSR2);
    /// SIGTERM: asks a process to end.
    pub const TERM: Signal = Signal(signal::SIGTERM);
    /// SIGCONT: continues a stopped process.
    pub const CONT: Signal = Signal(signal::SIGCONT);
    /// SIGSTOP: stops a process, which cannot prevent it.
    pub const STOP: Signal = Signal(signal::SIGSTOP);
    /// SIGTSTP: Ctrl-Z.
    pub const TSTP: Signal = Signal(signal::SIGTSTP);
    /// SIGWINCH: the window's size has changed.
    pub const WINCH: Signal = Signal(signal::SIGWINCH);

    /// Returns the signal's number.
    pub fn number(self) -> i32 {
        self.0 as i32
    }

    pub(crate) fn to_nix(self) -> signal::Signal {
        self.0
    }
}

impl TryFrom<i32> for Signal {
    type Error = SignalError;

    /// Returns the signal with this number.
    ///
    /// # Errors
    /// Fails for numbers that are not standard signals; real-time signals are not supported.
    fn try_from(number: i32) -> Result<Signal, SignalError> {
        signal::Signal::try_from(number).map(Signal).map_err(|_| SignalError(number.to_string()))
    }
}

impl FromStr for Signal {
    type Err = SignalError;

    /// Parses a number or a name, with or without `SIG`, in either case.
    fn from_str(text: &str) -> Result<Signal, SignalError> {
        if let Ok(number) = text.parse::<i32>() {
            return Signal::try_from(number);
        }
        let upper = text.to_ascii_uppercase();
        let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        name.parse().map(Signal).map_err(|_| SignalError(text.to_owned()))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.as_str())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// Blocks signals on the calling thread, so that the embedder's threads handle them, see signal(7).
/// Signals that a fault of this thread raises stay unblocked, so that the process's handlers run.
///
/// SIGPIPE is blocked as well. The kernel sends it to the thread that wrote to a pipe without
/// readers, not to the process (see write(2)). On this thread it stays pending until the thread
/// ends. The same holds with io_uring: the writer is this thread, or a kernel worker, which blocks
/// all signals except SIGKILL and SIGSTOP.
pub(crate) fn leave_signals_to_others() {
    let mut signals = signal::SigSet::all();
    for fault in [signal::SIGSEGV, signal::SIGBUS, signal::SIGFPE, signal::SIGILL, signal::SIGTRAP] {
        signals.remove(fault);
    }
    // Fails only for invalid arguments.
    let _ = signals.thread_block();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_or_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(text.parse(), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "SIG", "TERMINATE", "0", "-1", "99", "4294967311"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
    }
}
