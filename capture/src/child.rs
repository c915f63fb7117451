//! Processes that were started: their pidfds, signals to them, how they ended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{self, ExitStatus};
use std::sync::Arc;

use nix::sys::signal::Signal;

/// A process that was started, until somebody waits for it. Dropping it neither ends nor reaps it.
///
/// As a descriptor it is the process's pidfd (pidfd_open(2)): readable when it has ended, and safe to send signals
/// to (pidfd_send_signal(2)), whatever became of the pid.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    pidfd: Arc<OwnedFd>,
}

/// Sends signals to one process, whatever became of its pid: once it was reaped they reach nobody.
#[derive(Clone, Debug)]
pub struct Signaller(Arc<OwnedFd>);

impl Signaller {
    /// Sends `signal`, see pidfd_send_signal(2). From any thread.
    ///
    /// # Errors
    /// `ESRCH` if the process was reaped, `EPERM` if it has become another user's.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: plain numbers and a null pointer, which the call takes for "no details", in; no memory out.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as libc::c_int, none, 0)
        };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Child {
    /// Gets the pidfd; without one the process is ended again.
    pub(crate) fn open(mut process: process::Child) -> io::Result<Child> {
        let pid = libc::pid_t::try_from(process.id()).map_err(io::Error::other)?;
        // SAFETY: plain numbers in, a new descriptor or -1 out. The child is not reaped yet, so the pid is its.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match libc::c_int::try_from(pidfd) {
            // SAFETY: the kernel just made it (close-on-exec), and nobody else knows it.
            Ok(fd) if fd >= 0 => Ok(Child { process, pidfd: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }) }),
            _ => {
                let error = io::Error::last_os_error();
                let _ = process.kill();
                let _ = process.wait();
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// For signals to it, also when somebody else watches it.
    pub fn signaller(&self) -> Signaller {
        Signaller(Arc::clone(&self.pidfd))
    }

    /// How it ended, if it did; reaps it.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
