//! Cleaning up after a comparison, whatever ends it except SIGKILL: it runs in a child process, and
//! its parent cleans up.

use std::process;
use std::{env, fs};

use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::job::TEMPORARY;
use super::processes;

/// The signals that end a comparison, unless they are ignored at its start, as with nohup(1).
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Continues in a new child process, with its own directory for temporary files.
///
/// The calling process waits until the child has ended or a signal of [`ENDING`] arrives. Then it
/// kills all remaining descendants, removes the directory, and ends in the same way as the child.
/// Must be called before any thread is started.
pub fn run_supervised() {
    // If SIGCHLD was ignored at the start, the exit statuses of children would be lost.
    set_default_action(Signal::SIGCHLD);
    let signals: SigSet =
        ENDING.into_iter().filter(|signal| !ignored(*signal)).chain([Signal::SIGCHLD]).collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
    let directory = tempfile::tempdir().unwrap();
    // Also for the programs that are started: one that is killed, such as a compiler, leaves its files.
    // SAFETY: no other thread has been started, so none reads the environment.
    unsafe { env::set_var(TEMPORARY, directory.path()) };
    // Processes that lose their parent when the child has ended become children of this process.
    prctl::set_child_subreaper(true).unwrap();
    // SAFETY: no other thread has been started, so no lock can be held by a thread that the child
    // does not have.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
            // Launchers and ranks inherit the original mask.
            before.thread_set_mask().unwrap();
            std::mem::forget(directory);
        }
        ForkResult::Parent { child } => {
            let status = wait(child, &signals);
            processes::kill_descendants();
            drop(directory);
            end_like(status)
        }
    }
}

/// Blocks until `child` has ended or an ending signal arrives. Returns the status of the child, or
/// the status that the signal would cause.
fn wait(child: Pid, signals: &SigSet) -> WaitStatus {
    loop {
        let signal = signals.wait().unwrap();
        if signal != Signal::SIGCHLD {
            return WaitStatus::Signaled(child, signal, false);
        }
        // SIGCHLD is also sent when the child has stopped.
        let status = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
        if status != WaitStatus::StillAlive {
            return status;
        }
    }
}

/// Ends this process in the way that `status` describes.
fn end_like(status: WaitStatus) -> ! {
    if let WaitStatus::Exited(_, code) = status {
        process::exit(code);
    }
    let WaitStatus::Signaled(_, signal, _) = status else { unreachable!("{status:?} is not an end") };
    set_default_action(signal);
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_unblock();
    unreachable!("{signal} does not end the process")
}

fn set_default_action(signal: Signal) {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: SIG_DFL installs no handler function. The call fails for SIGKILL, whose action cannot
    // be changed.
    let _ = unsafe { sigaction(signal, &action) };
}

/// Returns whether this process ignores a signal, see proc_pid_status(5).
fn ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal as u32 - 1)) != 0
}
