//! Signals: what `iof run` and `iof top` take, and how the command stops or ends by one.

use std::process::{self, ExitCode};
use std::{fs, io};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// A signal that came for us.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// It came from the terminal, which sent it to our whole process group.
    pub from_terminal: bool,
}

/// What would end us and leave the ranks behind: it is for them.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// What has another meaning for us: "stop, with the ranks", "a rank may have stopped", "the window
/// has another size".
const OURS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGCHLD, Signal::SIGWINCH];

/// What ends `iof top`, once it has given the terminal back.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that are waited for.
pub struct Signals(SignalFd);

impl Signals {
    /// Takes what is for a job and its launcher. Call it before any thread is started: threads
    /// inherit what it blocks.
    pub fn take() -> io::Result<Signals> {
        // Who started us may have ignored it, which is inherited, and hides how the ranks end.
        by_default(Signal::SIGCHLD)?;
        Signals::block(&PASSED_ON, &OURS)
    }

    /// Takes what ends, stops or continues a command that has the terminal. As for threads, the
    /// same holds.
    pub fn take_ending() -> io::Result<Signals> {
        Signals::block(&ENDING, &[Signal::SIGTSTP, Signal::SIGCONT])
    }

    /// Takes all of `ours`, and of `others` what we were not started to ignore, as by nohup(1).
    fn block(others: &[Signal], ours: &[Signal]) -> io::Result<Signals> {
        let mut set = SigSet::empty();
        let ignored = ignored();
        set.extend(others.iter().copied().filter(|signal| ignored & bit(*signal) == 0));
        set.extend(ours.iter().copied());
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// The next signal; `None` if there can't be one any more.
    pub fn wait(&self) -> Option<Received> {
        loop {
            let info = match self.0.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(nix::Error::EINTR) => continue,
                Err(_) => return None,
            };
            let signal =
                i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())?;
            return Some(Received { signal, from_terminal: info.ssi_code == libc::SI_KERNEL });
        }
    }
}

/// The signals that this process ignores, a bit for each, see proc_pid_status(5); none if that
/// can't be known.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1u64.checked_shl((signal as u32).saturating_sub(1)).unwrap_or(0)
}

/// Stops this process as `signal` would, which is blocked, until it is continued; not at all if
/// nobody is there who could continue it (its process group is orphaned).
pub fn stop_by(signal: Signal) {
    // Neither fails for a signal that there is.
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_block();
}

/// A child that was stopped since the last call, and by what. How children end is somebody else's
/// business.
pub fn next_stopped_child() -> Option<(u32, Signal)> {
    match waitid(Id::All, WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::Stopped(pid, signal)) => Some((u32::try_from(pid.as_raw()).ok()?, signal)),
        _ => None,
    }
}

/// Makes a file that may not become larger (RLIMIT_FSIZE) an error of who writes to it, as one on a
/// full disk is, and not our end. Ranks have the default action again.
pub fn outlive_full_files() {
    // Does not fail for a signal that there is.
    let _ = act(Signal::SIGXFSZ, SigHandler::SigIgn);
}

fn by_default(signal: Signal) -> io::Result<()> {
    act(signal, SigHandler::SigDfl)
}

/// Has the kernel do something with a signal: its default action, or nothing.
fn act(signal: Signal, handler: SigHandler) -> io::Result<()> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: neither of the two runs code of ours, so no handler can be unsafe to run.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

/// Ends this process as `signal` would, so that the shell sees what it expects.
pub fn die_of(signal: Signal) -> ExitCode {
    let _ = by_default(signal);
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
    // Only if the signal is ignored after all.
    process::exit((signal as i32).saturating_add(128))
}
