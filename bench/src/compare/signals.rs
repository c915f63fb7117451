//! Nothing of a comparison is left, whatever but SIGKILL ends it: it runs in a process of its own, behind which another
//! one cleans up.

use std::fs;
use std::process;

use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::processes;

/// What ends a comparison, unless we were started to ignore it, as by nohup(1).
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Goes on in a new process, with a directory of its own for temporary files. The process that called this stays behind
/// until that has ended or one of [`ENDING`] comes; then it kills all that is left, removes the directory, and ends in the
/// same way. Call it before any thread is started.
pub fn leave_nothing_behind() {
    // Who started us may have it ignored, and then nobody would hear of the ends of children.
    act_by_default(Signal::SIGCHLD);
    let signals: SigSet =
        ENDING.into_iter().filter(|signal| !ignored(*signal)).chain([Signal::SIGCHLD]).collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
    let directory = tempfile::tempdir().unwrap();
    tempfile::env::override_temp_dir(directory.path()).unwrap();
    // What loses its parent when the new process is gone becomes our child.
    prctl::set_child_subreaper(true).unwrap();
    // SAFETY: no other thread has been started, so nothing is locked that only such a thread would unlock.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
            // Ranks and launchers inherit it as it was.
            before.thread_set_mask().unwrap();
            std::mem::forget(directory);
        }
        ForkResult::Parent { child } => {
            let status = wait(child, &signals);
            processes::sweep();
            drop(directory);
            end_like(status)
        }
    }
}

/// Waits for the end of `child`, or a signal that ends it and us: how it ended, or would have.
fn wait(child: Pid, signals: &SigSet) -> WaitStatus {
    loop {
        let signal = signals.wait().unwrap();
        if signal != Signal::SIGCHLD {
            return WaitStatus::Signaled(child, signal, false);
        }
        // It may be that it has only stopped.
        let status = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
        if status != WaitStatus::StillAlive {
            return status;
        }
    }
}

/// Ends this process as that one ended.
fn end_like(status: WaitStatus) -> ! {
    if let WaitStatus::Exited(_, code) = status {
        process::exit(code);
    }
    let WaitStatus::Signaled(_, signal, _) = status else { unreachable!("{status:?} is no end") };
    act_by_default(signal);
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_unblock();
    unreachable!("{signal} does not end us")
}

fn act_by_default(signal: Signal) {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: it runs no code of ours. It fails for SIGKILL, whose action nothing changes.
    let _ = unsafe { sigaction(signal, &action) };
}

/// Whether we were started to ignore a signal, see proc_pid_status(5).
fn ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal as u32 - 1)) != 0
}
