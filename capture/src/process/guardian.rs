//! The guardian: a process that ends the processes of a launcher that was killed.
//!
//! A launcher that SIGKILL ends cannot end its processes, and what they have started. Its guardian
//! has a pidfd of each of them, through which no other process or group that reuses a number is
//! signalled. It acts at the end of file of a socket, whose other end the launcher has, and each
//! child until it executes its program. A child passes its pidfd before that. So the guardian knows
//! all of them when it acts, even if the launcher is killed while it starts one.
//!
//! `PR_SET_PDEATHSIG` (prctl(2)) does not do this: it signals a process when the *thread* that has
//! started it ends, and its children never.

use std::io::{self, IoSliceMut, stdin};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_uint;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::Id;

use crate::process::child::Child;
use crate::process::signal::Signal;
use crate::process::{pidfd, wait};

/// The time for which a start waits for a guardian that does not read, such as a stopped one.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// The time between SIGTERM and SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// The interval at which the guardian receives processes, and checks whether all have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The least number of processes among which the guardian looks for those that have ended.
const MIN_FORGET: usize = 64;

/// The guardian of this process. Dropping it ends the guardian, which then signals nothing.
#[derive(Debug)]
pub struct Guardian {
    socket: UnixStream,
    process: Child,
    /// Set once a process could not be reported. Relaxed: a child sets it in the memory of its
    /// parent, which reads it when clone(2) has returned.
    lost: AtomicBool,
}

/// A pidfd as a control message of sendmsg(2), see cmsg(3).
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    pidfd: RawFd,
}

impl Guardian {
    /// Starts a guardian: `program`, whose only argument is `guardian`, and which calls [`guard`].
    /// It has a process group of its own, and none of the files of this process.
    ///
    /// # Errors
    /// The program cannot be executed, or this process can have no further process or file.
    pub fn start(program: &Path) -> io::Result<Guardian> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(REPORT_LIMIT))?;
        let mut command = Command::new(program);
        command.arg0("iof").arg("guardian").process_group(0);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut started = command.spawn()?;
        drop(command);
        let process = match Child::adopt(started.id()) {
            Ok(process) => process,
            Err(error) => {
                // It ends with the socket.
                drop(socket);
                let _ = started.wait();
                return Err(error);
            }
        };
        Ok(Guardian { socket, process, lost: AtomicBool::new(false) })
    }

    /// Returns whether a process could not be reported. This and all later ones are not guarded.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Reports the calling process, a child that shares its parent's memory. `pidfd` is its own if it
    /// shares its parent's descriptor table. If `leads_group`, it is going to lead a process group.
    /// Allocates nothing.
    pub(crate) fn report(&self, pidfd: Option<RawFd>, leads_group: bool) {
        // SAFETY: the call has no arguments.
        let pid = unsafe { libc::getpid() };
        let report = || {
            let opened = if pidfd.is_none() { Some(pidfd::open(pid.unsigned_abs())?) } else { None };
            let pidfd = pidfd.or(opened.as_ref().map(AsRawFd::as_raw_fd)).unwrap_or(-1);
            self.pass(pidfd, if leads_group { pid.wrapping_neg() } else { pid })
        };
        if !self.is_lost() && report().is_err() {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Passes a pidfd. `target` is its process or group as for kill(2).
    fn pass(&self, pidfd: RawFd, mut target: libc::pid_t) -> io::Result<()> {
        // SAFETY: all zeroes are a valid message and a valid control message.
        let (mut message, mut rights): (libc::msghdr, Rights) = unsafe { mem::zeroed() };
        rights.pidfd = pidfd;
        rights.header.cmsg_level = libc::SOL_SOCKET;
        rights.header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: the call only computes.
        rights.header.cmsg_len = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as c_uint) } as _;
        let mut part = libc::iovec { iov_base: (&raw mut target).cast(), iov_len: size_of_val(&target) };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of_val(&rights) as _;
        // SAFETY: the message refers to `part` with `target`, and to `rights`, which outlive the call.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.signaller().send(Signal::KILL);
        wait::wait_and_reap(|| Id::PIDFd(self.process.as_fd()));
    }
}

/// Waits for the end of the launcher whose [`Guardian`] this process is, and then ends its
/// processes and the process groups that it has given them: by SIGTERM and SIGCONT, and two seconds
/// later by SIGKILL. Its stdin is the socket to the launcher. Closes all other files but stdout and
/// stderr, so it must be called first, in a process that blocks all signals.
///
/// # Safety
/// Nothing in the process owns a descriptor but stdin, stdout and stderr, as at its start.
///
/// # Errors
/// Stdin is not a socket.
pub unsafe fn guard() -> io::Result<()> {
    // SAFETY: the arguments are numbers. By the contract of this function, nothing owns what is closed.
    unsafe { libc::syscall(libc::SYS_close_range, libc::STDERR_FILENO + 1, c_uint::MAX, 0) };
    let (mut guarded, mut limit): (Vec<Child>, _) = (Vec::new(), MIN_FORGET);
    while let Some(process) = receive()? {
        let is_full = process.is_none();
        guarded.extend(process);
        if is_full || guarded.len() >= limit {
            guarded.retain(|process| process.signaller().has_targets());
            limit = guarded.len().saturating_mul(2).max(MIN_FORGET);
        }
    }
    let send = |signal| guarded.iter().for_each(|process| drop(process.signaller().send(signal)));
    [Signal::TERM, Signal::CONT].into_iter().for_each(send);
    let killed_at = Instant::now() + KILL_WAIT;
    while guarded.iter().any(|process| process.signaller().has_targets()) && Instant::now() < killed_at {
        thread::sleep(CHECK_INTERVAL);
    }
    send(Signal::KILL);
    // They may have changed their groups.
    guarded.iter().for_each(|process| drop(pidfd::send_signal(process.as_fd(), Some(Signal::KILL), 0)));
    Ok(())
}

/// Receives a process from stdin. Returns `None` at the end of file, and no process if this process
/// has too many files open.
fn receive() -> io::Result<Option<Option<Child>>> {
    let mut target = [0; size_of::<libc::pid_t>()];
    let mut control = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    loop {
        let mut parts = [IoSliceMut::new(&mut target)];
        let received = match recvmsg::<()>(stdin().as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(Errno::EAGAIN) => {
                // A signal only ends the wait early. A start of many ranks wakes this process seldom.
                let _ = poll(&mut [PollFd::new(stdin().as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
                thread::sleep(CHECK_INTERVAL);
                continue;
            }
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let pidfd = received.cmsgs().ok().into_iter().flatten().find_map(|message| match message {
            // SAFETY: the kernel has just opened the descriptor for this process.
            ControlMessageOwned::ScmRights(fds) => Some(unsafe { OwnedFd::from_raw_fd(*fds.first()?) }),
            _ => None,
        });
        let target = libc::pid_t::from_ne_bytes(target);
        return Ok(Some(pidfd.map(|pidfd| Child::started(target.unsigned_abs(), pidfd, target < 0))));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{ProcessSpec, Spawner};

    /// Starts processes with a program as their guardian until it is lost.
    fn start_until_lost(program: &str) {
        let guardian = Arc::new(Guardian::start(Path::new(program)).unwrap());
        let spawner = Spawner::new().guarded_by(Some(Arc::clone(&guardian)));
        while !guardian.is_lost() {
            let child = spawner.spawn(ProcessSpec::new("true", [""; 0]), None).unwrap().child;
            wait::wait_and_reap(|| Id::PIDFd(child.as_fd()));
        }
    }

    #[test]
    fn processes_start_without_a_guardian_that_has_ended() {
        start_until_lost("true");
    }

    #[test]
    fn processes_start_without_a_guardian_that_reads_nothing() {
        // It writes its argument to /dev/null.
        start_until_lost("yes");
    }
}
