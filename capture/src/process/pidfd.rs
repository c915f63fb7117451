//! Handles of processes: pidfd_open(2), and signals through them.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::process::signal::Signal;

/// Calls pidfd_open(2).
pub(crate) fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the arguments are numbers. The call returns a new descriptor or -1.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match libc::c_int::try_from(pidfd) {
        // SAFETY: the kernel has just created the descriptor (close-on-exec), and nothing else owns
        // it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the process id of a pidfd, see proc_pid_fdinfo(5).
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // The field is -1 if the process was reaped.
    pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Calls pidfd_send_signal(2). Without a signal, only checks whether one could be sent.
pub(crate) fn send_signal(
    pidfd: BorrowedFd<'_>,
    signal: Option<Signal>,
    flags: libc::c_uint,
) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    let signal = signal.map_or(0, Signal::number);
    // SAFETY: the arguments are numbers and a null pointer, which means "no siginfo". The call
    // writes no memory.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, flags) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether pidfd_send_signal(2) may have been refused by a seccomp filter.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// Returns the number of a pidfd as an id for waitid(2).
pub(crate) fn id_of(pidfd: &OwnedFd) -> io::Result<libc::id_t> {
    pidfd.as_raw_fd().try_into().map_err(io::Error::other)
}
