//! Processes that were started: their pidfds, signals to them, how they ended.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid};

/// A child of this process, until somebody waits for it. Dropping it neither ends nor reaps it.
///
/// As a descriptor it is the process's pidfd (pidfd_open(2)): readable when it has ended, and safe
/// to send signals to (pidfd_send_signal(2)), whatever became of the pid.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    signaller: Signaller,
}

/// Sends signals to a process, or to its process group if it has one of its own, whatever became of
/// its pid.
#[derive(Clone, Debug)]
pub struct Signaller {
    pidfd: Arc<OwnedFd>,
    /// The number of its own group, which is its pid.
    group: Option<Pid>,
}

/// `PIDFD_SIGNAL_PROCESS_GROUP` of Linux 6.9, see pidfd_send_signal(2).
const PROCESS_GROUP: libc::c_uint = 4;

impl Signaller {
    /// Sends `signal` to the process, or to all members of its own group, see pidfd_send_signal(2).
    /// From any thread.
    ///
    /// A group may have members when its process has ended. Before Linux 6.9 they are out of reach
    /// once the process was reaped: then nothing keeps another group from having its number.
    ///
    /// # Errors
    /// `ESRCH` if there is nobody left, `EPERM` if it has become another user's.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let Some(group) = self.group else { return self.send_with(Some(signal), 0) };
        match self.send_with(Some(signal), PROCESS_GROUP) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.send_by_number(signal, group),
            sent => sent,
        }
    }

    /// Whether it signals a process group of its own.
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// For kernels that cannot signal a group by a pidfd.
    fn send_by_number(&self, signal: Signal, group: Pid) -> io::Result<()> {
        // Until it is reaped the number is its own.
        self.send_with(None, 0)?;
        Ok(killpg(group, signal)?)
    }

    /// pidfd_send_signal(2); without a signal it only finds out whether one could be sent.
    fn send_with(&self, signal: Option<Signal>, flags: libc::c_uint) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        let signal = signal.map_or(0, |signal| signal as libc::c_int);
        // SAFETY: plain numbers and a null pointer, which the call takes for "no details", in; no memory
        // out.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), signal, none, flags)
        };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Child {
    /// Takes over a child that somebody else in this process has started and not waited for yet. If
    /// it leads a process group by now, signals go to all of that.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, the kernel's word if there is no descriptor for it.
    pub fn adopt(pid: u32) -> io::Result<Child> {
        Child::of(pid, pidfd_open(pid)?)
    }

    /// The same for a child of which there is a pidfd already.
    ///
    /// # Errors
    /// `EBADF` if it is no pidfd, `ESRCH` if the process was waited for.
    pub fn adopt_pidfd(pidfd: OwnedFd) -> io::Result<Child> {
        let signaller = Signaller { pidfd: Arc::new(pidfd), group: None };
        signaller.send_with(None, 0)?;
        let pidfd = Arc::into_inner(signaller.pidfd).ok_or(io::ErrorKind::Other)?;
        let pid = pid_of(pidfd.as_fd())?;
        Child::of(pid, pidfd)
    }

    fn of(pid: u32, pidfd: OwnedFd) -> io::Result<Child> {
        let own = Pid::from_raw(pid.try_into().map_err(io::Error::other)?);
        let group = (getpgid(Some(own)) == Ok(own)).then_some(own);
        Ok(Child { pid, signaller: Signaller { pidfd: Arc::new(pidfd), group } })
    }

    /// A child that was just started; `leads` if it has a process group of its own.
    pub(crate) fn started(pid: u32, pidfd: OwnedFd, leads: bool) -> Child {
        let number = pid.try_into().ok().map(Pid::from_raw).filter(|_| leads);
        Child { pid, signaller: Signaller { pidfd: Arc::new(pidfd), group: number } }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// For signals to it, also when somebody else watches it.
    pub fn signaller(&self) -> Signaller {
        self.signaller.clone()
    }

    /// How it ended, if it did; reaps it.
    pub(crate) fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        match waitid(Id::PIDFd(self.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG)? {
            // As wait(2) encodes them.
            WaitStatus::Exited(_, code) => Ok(Some(ExitStatus::from_raw((code & 0xff) << 8))),
            WaitStatus::Signaled(_, signal, dumped) => {
                let dumped = if dumped { 0x80 } else { 0 };
                Ok(Some(ExitStatus::from_raw(signal as i32 | dumped)))
            }
            _ => Ok(None),
        }
    }
}

/// pidfd_open(2).
fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: plain numbers in, a new descriptor or -1 out.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match libc::c_int::try_from(pidfd) {
        // SAFETY: the kernel just made it (close-on-exec), and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process of a pidfd, see proc_pid_fdinfo(5).
fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    // It says -1 of one that was waited for.
    pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signaller.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::spawn::{ProcessGroup, ProcessSpec, Spawned, spawn};

    /// Runs `script` in a process group of its own until its first process has ended, which is not
    /// reaped.
    fn ended(script: &str) -> (Child, std::fs::File) {
        let spec = ProcessSpec { group: ProcessGroup::Own, ..ProcessSpec::new("/bin/sh", ["-c", script]) };
        let Spawned { child, stdout, .. } = spawn(spec).unwrap();
        poll(&mut [PollFd::new(child.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        (child, stdout.into())
    }

    const LEAVES_A_CHILD: &str = "sleep 1000 &";

    /// Both ways: the second is for kernels that do not know the first.
    fn sends(child: &Child) -> [Box<dyn Fn(Signal) -> io::Result<()>>; 2] {
        let (first, second) = (child.signaller(), child.signaller());
        let group = second.group.unwrap();
        [
            Box::new(move |signal| first.send(signal)),
            Box::new(move |signal| second.send_by_number(signal, group)),
        ]
    }

    #[test]
    fn a_group_is_reached_when_its_leader_has_ended() {
        for way in [0, 1] {
            let (child, mut stdout) = ended(LEAVES_A_CHILD);
            sends(&child)[way](Signal::SIGKILL).unwrap();
            assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "nobody holds the pipe any more");
            assert!(child.try_wait().unwrap().unwrap().success(), "it had ended already");
        }
    }

    #[test]
    fn a_group_is_reached_when_its_leader_was_reaped_unless_the_kernel_has_only_its_number() {
        let (child, mut stdout) = ended(LEAVES_A_CHILD);
        child.try_wait().unwrap().unwrap();
        let [by_pidfd, by_number] = sends(&child);
        assert_eq!(by_number(Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        if child.signaller.send_with(None, PROCESS_GROUP).is_ok() {
            by_pidfd(Signal::SIGKILL).unwrap();
            assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "nobody holds the pipe any more");
        } else {
            // Whoever it is that got no signal, no test may leave it behind.
            assert_eq!(by_pidfd(Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
            killpg(child.signaller.group.unwrap(), Signal::SIGKILL).unwrap();
        }
    }

    #[test]
    fn a_group_that_is_gone_is_nobody() {
        let (child, _) = ended("exit 0");
        child.try_wait().unwrap().unwrap();
        for send in sends(&child) {
            assert_eq!(send(Signal::SIGKILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
