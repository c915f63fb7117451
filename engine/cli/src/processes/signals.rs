//! Signals: those that `iof run` and `iof top` handle, and the ways to stop or end by a signal.

use std::os::fd::AsFd;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, io};

use iof_engine::SAME_REQUEST;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// A signal that this process received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedSignal {
    pub signal: Signal,
    /// The terminal sent the signal to the whole process group of this process, as with Ctrl-C.
    pub from_terminal: bool,
    pub received_at: Instant,
}

impl ReceivedSignal {
    /// Returns `true` if this is the same signal as `last`, received less than `limit` later. Each
    /// signal from the terminal is a key of its own.
    pub fn repeats(&self, last: ReceivedSignal, limit: Duration) -> bool {
        !self.from_terminal
            && self.signal == last.signal
            && self.received_at.duration_since(last.received_at) < limit
    }
}

/// The signals that `iof run` passes on to the ranks. By default they would end the command and
/// leave the ranks running.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that `iof run` handles: stop together with the ranks (SIGTSTP), take the keyboard
/// again after a stop (SIGCONT), look for stopped ranks (SIGCHLD), and adopt the new size of the
/// window (SIGWINCH).
const HANDLED: [Signal; 4] = [Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGCHLD, Signal::SIGWINCH];

/// The signals that ask a process to end. They end `iof top`, after it has restored the terminal, and
/// `iof gateway`.
pub const REQUESTS_TO_END: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Returns whether a signal asks a process to end.
pub fn asks_to_end(signal: Signal) -> bool {
    REQUESTS_TO_END.contains(&signal)
}

/// Returns whether a signal asks to end once more, after those of `before`.
pub fn asks_again(received: ReceivedSignal, before: &[ReceivedSignal]) -> bool {
    let is_first =
        |before: &ReceivedSignal| asks_to_end(before.signal) && !received.repeats(*before, SAME_REQUEST);
    asks_to_end(received.signal) && before.iter().any(is_first)
}

/// A set of blocked signals, to wait for.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals that `iof run` handles or passes on. Call it before a thread is started,
    /// because threads inherit the mask.
    pub fn take() -> io::Result<Signals> {
        // A parent that ignores SIGCHLD passes this on, and it would hide the exit codes of ranks.
        set_default(Signal::SIGCHLD)?;
        Signals::block(&PASSED_ON, &HANDLED)
    }

    /// Blocks the signals that end, stop or continue `iof top`. Call it before a thread is started,
    /// because threads inherit the mask.
    pub fn take_ending() -> io::Result<Signals> {
        Signals::block(&REQUESTS_TO_END, &[Signal::SIGTSTP, Signal::SIGCONT])
    }

    /// Blocks the signals that end `iof gateway`. Call it before a thread is started, because
    /// threads inherit the mask.
    pub fn take_fatal() -> io::Result<Signals> {
        Signals::block(&REQUESTS_TO_END, &[])
    }

    /// Blocks all signals in `always`, and those in `unless_ignored` that this process did not
    /// inherit as ignored, as under nohup(1).
    fn block(unless_ignored: &[Signal], always: &[Signal]) -> io::Result<Signals> {
        let mut set = SigSet::empty();
        let ignored = ignored();
        set.extend(unless_ignored.iter().copied().filter(|signal| ignored & bit(*signal) == 0));
        set.extend(always.iter().copied());
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Blocks until the next signal, at most for `limit`. Returns `None` after this time.
    pub fn wait_for(&self, limit: Duration) -> Option<ReceivedSignal> {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(ready) if ready > 0 => self.wait(),
            _ => None,
        }
    }

    /// Blocks until a signal can be read. Returns `false` if the signals cannot be read any more.
    pub fn wait_until_ready(&self) -> bool {
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::Error::EINTR) => {}
                Err(_) => return false,
                Ok(_) => return fds[0].revents().is_some_and(|ready| ready.contains(PollFlags::POLLIN)),
            }
        }
    }

    /// Blocks until the next signal. Returns `None` if the signals cannot be read any more.
    pub fn wait(&self) -> Option<ReceivedSignal> {
        while self.wait_until_ready() {
            // Before the signal is taken, so that one sent after that is never counted as earlier.
            let received_at = Instant::now();
            let info = match self.0.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(nix::Error::EINTR) => continue,
                Err(_) => return None,
            };
            let signal =
                i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())?;
            // The kernel sends SIGHUP to the leader of the session only.
            let from_terminal = info.ssi_code == libc::SI_KERNEL && signal != Signal::SIGHUP;
            return Some(ReceivedSignal { signal, from_terminal, received_at });
        }
        None
    }
}

/// Returns the mask of the signals that this process ignores, see proc_pid_status(5); 0 if it
/// cannot be read.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1u64.checked_shl((signal as u32).saturating_sub(1)).unwrap_or(0)
}

/// Stops this process by `signal`, which must be blocked, until the process is continued. In an
/// orphaned process group, where no shell could continue it, the process does not stop.
pub fn stop_by(signal: Signal) {
    // These calls do not fail for a valid signal.
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_block();
}

/// Returns a child that was stopped since the last call, and the signal that stopped it. Exits of
/// children are not consumed.
pub fn next_stopped_child() -> Option<(u32, Signal)> {
    match waitid(Id::All, WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::Stopped(pid, signal)) => Some((u32::try_from(pid.as_raw()).ok()?, signal)),
        _ => None,
    }
}

/// Ignores SIGXFSZ. A write beyond the file size limit (RLIMIT_FSIZE) then fails with an error, as
/// on a full disk, instead of ending this process. Ranks have the default action again.
pub fn ignore_file_size_limit() {
    // The call does not fail for a valid signal.
    let _ = set_action(Signal::SIGXFSZ, SigHandler::SigIgn);
}

fn set_default(signal: Signal) -> io::Result<()> {
    set_action(signal, SigHandler::SigDfl)
}

/// Sets the action of a signal to `SIG_DFL` or `SIG_IGN`.
fn set_action(signal: Signal, handler: SigHandler) -> io::Result<()> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: `SIG_DFL` and `SIG_IGN`, the only actions set here, run no code of this process, so
    // no handler can be unsafe to run.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

/// Lets each signal that ends this process by default end it again, as long as this thread runs.
pub fn unblock() {
    // The call does not fail for valid signals.
    let _ = REQUESTS_TO_END.into_iter().collect::<SigSet>().thread_unblock();
}

/// Ends this process by `signal`, so that the shell sees the signal as the cause.
pub fn end_by(signal: Signal) -> ExitCode {
    raise_default(signal);
    // Reached only if the signal did not end the process.
    process::exit(exit_code(signal))
}

/// Ends this process by `signal` as [`end_by`] does, but runs nothing at exit: that may wait for a
/// lock that another thread holds, such as one that stalls in dlopen(3).
pub fn exit_by(signal: Signal) -> ! {
    raise_default(signal);
    // The first process of a container, such as this one may be, ignores the signal.
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(exit_code(signal)) }
}

/// Sends `signal` to this thread, with its default action.
fn raise_default(signal: Signal) {
    let _ = set_default(signal);
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
}

/// Returns the exit code that a shell shows for a process that `signal` has ended.
fn exit_code(signal: Signal) -> i32 {
    (signal as i32).saturating_add(128)
}
