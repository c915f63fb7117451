//! Processes that were started: their pidfds, signals to them, and their exit status.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::SystemTime;

use iof_proto::UsedResources;
use nix::sys::signal::{kill, killpg};
use nix::unistd::{Pid, getpgid};

use crate::process::descendants::Descendants;
use crate::process::pidfd;
use crate::process::signal::Signal;
use crate::process::wait;

/// A child of this process that has not been reaped. Dropping it neither ends nor reaps the child.
///
/// Its descriptor is the process's pidfd (pidfd_open(2)), which is readable once the process has
/// ended. Signals sent through it (pidfd_send_signal(2)) never reach another process that reuses
/// the pid.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    signaller: Signaller,
}

/// A handle that sends signals to a process, and to its process group if the process leads one,
/// otherwise to its descendants in the process group of this process. The signals never reach
/// another process that reuses a pid.
#[derive(Clone, Debug)]
pub struct Signaller {
    pidfd: Arc<OwnedFd>,
    pid: u32,
    leads_group: bool,
    /// Empty if the process leads a group.
    descendants: Arc<Descendants>,
    /// When the process was started or adopted.
    began: SystemTime,
}

/// `PIDFD_SIGNAL_PROCESS_GROUP` of Linux 6.9, see pidfd_send_signal(2).
const PROCESS_GROUP: libc::c_uint = 4;

impl Signaller {
    /// Sends `signal` to the process, and to all members of its group if it leads one, see
    /// pidfd_send_signal(2). May be called from any thread.
    ///
    /// A group may have members after its leader has ended. Before Linux 6.9 they cannot be
    /// signalled once the leader was reaped, because another group may have the same number then.
    ///
    /// If the process leads no group, its descendants in the process group of this process receive
    /// the signal, up to [`MAX_SIGNALLED_DESCENDANTS`](crate::MAX_SIGNALLED_DESCENDANTS). They are
    /// found in `/proc` by their parents, so those whose parent ended before the first signal do
    /// not receive it, and none do where `/proc` does not list children (`CONFIG_PROC_CHILDREN`).
    ///
    /// # Errors
    /// `ESRCH` if all of these processes have ended; `EPERM` if the process now runs as another
    /// user.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        if self.leads_group {
            return self.send_alone(signal);
        }
        // Found first, because the signal may end their parents.
        let descendants = self.descendants.find(self.pid, || self.check_not_reaped().is_ok());
        let sent = self.send_alone(signal);
        let count = descendants.iter().filter(|process| process.send(signal)).count();
        if count > 0 { Ok(()) } else { sent }
    }

    /// Sends `signal` to the process or the group that it leads.
    fn send_alone(&self, signal: Signal) -> io::Result<()> {
        let flags = if self.leads_group { PROCESS_GROUP } else { 0 };
        match pidfd::send_signal(self.pidfd.as_fd(), Some(signal), flags) {
            Err(error) if self.leads_group && error.raw_os_error() == Some(libc::EINVAL) => {
                self.send_by_number(signal)
            }
            Err(error) if pidfd::is_refused(&error) => self.send_to_child(signal),
            sent => sent,
        }
    }

    /// Returns whether a process or a group is left that signals can reach. Before Linux 6.9, only the
    /// process counts.
    pub(crate) fn has_targets(&self) -> bool {
        let exists = |flags| match pidfd::send_signal(self.pidfd.as_fd(), None, flags) {
            Err(error) => !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
            Ok(()) => true,
        };
        exists(0) || self.leads_group && exists(PROCESS_GROUP)
    }

    /// Returns the pid of the process, which another one may have once it was reaped.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns when the process was started or adopted.
    pub fn began(&self) -> SystemTime {
        self.began
    }

    /// Returns whether the signals go to a process group that the process leads.
    pub fn has_group(&self) -> bool {
        self.leads_group
    }

    /// Signals by the number of the process or group, for kernels that cannot signal a group
    /// through a pidfd.
    fn send_by_number(&self, signal: Signal) -> io::Result<()> {
        // Fails once the process is reaped. Until then no other process or group can have the
        // number.
        pidfd::send_signal(self.pidfd.as_fd(), None, 0)?;
        self.kill(signal)
    }

    /// Does the same for a child of this process without pidfd_send_signal(2).
    fn send_to_child(&self, signal: Signal) -> io::Result<()> {
        self.check_not_reaped()?;
        self.kill(signal)
    }

    /// Fails with `ESRCH` once the process is reaped, and if it is not a child of this process.
    fn check_not_reaped(&self) -> io::Result<()> {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let waited = wait::waitid(libc::P_PIDFD, pidfd::id_of(&self.pidfd)?, flags);
        waited.map(drop).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
    }

    fn kill(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid.try_into().map_err(io::Error::other)?);
        let (group, signal) = (self.leads_group, signal.to_nix());
        Ok(if group { killpg(pid, signal) } else { kill(pid, signal) }?)
    }
}

impl Child {
    /// Adopts a child that other code in this process has started and not reaped. If the child
    /// leads a process group, signals go to the whole group, otherwise as [`Signaller::send`]
    /// specifies.
    ///
    /// # Errors
    /// `ESRCH` if the process does not exist, or another error of pidfd_open(2).
    pub fn adopt(pid: u32) -> io::Result<Child> {
        Child::from_parts(pid, pidfd::open(pid)?)
    }

    /// Adopts a child by its pidfd, as [`Child::adopt`] does by its pid.
    ///
    /// # Errors
    /// `EBADF` if the descriptor is not a pidfd, `ESRCH` if the process was reaped.
    pub fn adopt_pidfd(pidfd: OwnedFd) -> io::Result<Child> {
        pidfd::send_signal(pidfd.as_fd(), None, 0)?;
        let pid = pidfd::pid_of(pidfd.as_fd())?;
        Child::from_parts(pid, pidfd)
    }

    fn from_parts(pid: u32, pidfd: OwnedFd) -> io::Result<Child> {
        let own = Pid::from_raw(pid.try_into().map_err(io::Error::other)?);
        Ok(Child::started(pid, pidfd, getpgid(Some(own)) == Ok(own)))
    }

    /// Wraps a child. `leads_group` tells whether it leads a process group.
    pub(crate) fn started(pid: u32, pidfd: OwnedFd, leads_group: bool) -> Child {
        let (pidfd, began) = (Arc::new(pidfd), wait::now());
        Child { pid, signaller: Signaller { pidfd, pid, leads_group, descendants: Arc::default(), began } }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a handle that sends signals to the child. It stays valid when the child is watched
    /// by a capture or dropped.
    pub fn signaller(&self) -> Signaller {
        self.signaller.clone()
    }

    /// Reaps the child if it has ended, and returns its exit status and what it has used. Does not block.
    ///
    /// # Errors
    /// `ECHILD` if the child was reaped before.
    pub fn try_wait(&self) -> io::Result<Option<(ExitStatus, UsedResources)>> {
        let flags = libc::WEXITED | libc::WNOHANG;
        let ended = wait::waitid(libc::P_PIDFD, pidfd::id_of(&self.signaller.pidfd)?, flags)?;
        Ok(ended.map(|ended| (ended.status, ended.used)))
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signaller.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use iof_proto::ProcessGroup;
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::spawn::process_spec::ProcessSpec;
    use crate::spawn::{Spawned, spawn};

    /// Runs `script` in a process group of its own and waits until the group's leader has ended.
    /// The leader is not reaped.
    fn run_until_leader_ends(script: &str) -> (Child, std::fs::File) {
        let spec = ProcessSpec { group: ProcessGroup::Own, ..ProcessSpec::new("/bin/sh", ["-c", script]) };
        let Spawned { child, outputs, .. } = spawn(spec).unwrap();
        wait_until_ended(&child);
        (child, outputs.into_iter().next().unwrap().into())
    }

    /// Waits until the process has ended, without reaping it.
    fn wait_until_ended(child: &Child) {
        poll(&mut [PollFd::new(child.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
    }

    #[test]
    fn the_exit_status_names_a_real_time_signal() {
        let (child, _output) = run_until_leader_ends("kill -35 $$");
        assert_eq!(child.try_wait().unwrap().and_then(|(status, _)| status.signal()), Some(35));
    }

    #[test]
    fn the_resources_of_a_child_are_known_once_it_is_reaped() {
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let (child, _output) = run_until_leader_ends(script);
        let (_, used) = child.try_wait().unwrap().unwrap();
        assert!(used.cpu > std::time::Duration::from_millis(1) && used.peak_memory > 100_000, "{used:?}");
        assert!(used.ended > child.signaller().began(), "{used:?}");
    }

    const LEAVE_A_CHILD: &str = "sleep 1000 &";

    /// A way to signal a group.
    type SendFn = Box<dyn Fn(Signal) -> io::Result<()>>;

    /// Returns the ways to signal the child's group: through the pidfd, by number for kernels that
    /// do not support the first, and by number where the system call is refused.
    fn ways_to_send(child: &Child) -> [SendFn; 3] {
        let [first, second, third] = [child.signaller(), child.signaller(), child.signaller()];
        [
            Box::new(move |signal| first.send(signal)),
            Box::new(move |signal| second.send_by_number(signal)),
            Box::new(move |signal| third.send_to_child(signal)),
        ]
    }

    #[test]
    fn a_signal_reaches_the_group_after_its_leader_has_ended() {
        for way in [0, 1, 2] {
            let (child, mut stdout) = run_until_leader_ends(LEAVE_A_CHILD);
            ways_to_send(&child)[way](Signal::KILL).unwrap();
            assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "no process holds the pipe");
            assert!(child.try_wait().unwrap().unwrap().0.success(), "the leader had ended before");
        }
    }

    #[test]
    fn after_its_leader_was_reaped_a_signal_reaches_the_group_only_through_the_pidfd() {
        let (child, mut stdout) = run_until_leader_ends(LEAVE_A_CHILD);
        child.try_wait().unwrap().unwrap();
        let [by_pidfd, by_number, to_child] = ways_to_send(&child);
        for send in [by_number, to_child] {
            assert_eq!(send(Signal::KILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
        if pidfd::send_signal(child.signaller.pidfd.as_fd(), None, PROCESS_GROUP).is_ok() {
            by_pidfd(Signal::KILL).unwrap();
            assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "no process holds the pipe");
        } else {
            // The kernel cannot signal the group. The test must not leave it behind.
            assert_eq!(by_pidfd(Signal::KILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
            child.signaller.kill(Signal::KILL).unwrap();
        }
    }

    #[test]
    fn signalling_a_group_without_members_fails_with_esrch() {
        let (child, _) = run_until_leader_ends("exit 0");
        child.try_wait().unwrap().unwrap();
        for send in ways_to_send(&child) {
            assert_eq!(send(Signal::KILL).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }

    /// Starts `script` in the process group of this process. Returns its output up to `lines`
    /// lines.
    fn start_in_own_group(script: &str, lines: usize) -> (Child, Vec<String>, BufReader<std::fs::File>) {
        let Spawned { child, outputs, .. } = spawn(ProcessSpec::new("/bin/sh", ["-c", script])).unwrap();
        let mut stdout = BufReader::new(outputs.into_iter().next().unwrap().into());
        let lines = stdout.by_ref().lines().take(lines).map(Result::unwrap).collect();
        (child, lines, stdout)
    }

    #[test]
    fn a_signal_reaches_the_descendants_in_the_group_of_this_process_and_no_others() {
        let script = "setsid sh -c 'echo $$; exec sleep 1000' & sh -c 'sleep 1000 & echo ready; wait' & wait";
        let (child, lines, mut stdout) = start_in_own_group(script, 2);
        let other: i32 = lines.iter().find_map(|line| line.parse().ok()).unwrap();
        let command = || std::fs::read(format!("/proc/{other}/cmdline")).unwrap();
        // It is also empty while a process begins another program.
        while !command().starts_with(b"sleep") {
            std::thread::yield_now();
        }
        child.signaller().send(Signal::TERM).unwrap();
        wait_until_ended(&child);
        assert!(!command().is_empty(), "the process in another session has received the signal");
        kill(Pid::from_raw(other), Signal::KILL.to_nix()).unwrap();
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "no process holds the pipe");
    }

    #[test]
    fn a_descendant_that_outlives_its_parents_also_receives_the_next_signal() {
        let script = "sh -c '(trap \"\" TERM; echo ready; exec sleep 1000) & wait' & wait";
        let (child, _, mut stdout) = start_in_own_group(script, 1);
        let signaller = child.signaller();
        signaller.send(Signal::TERM).unwrap();
        wait_until_ended(&child);
        child.try_wait().unwrap().unwrap();
        signaller.send(Signal::KILL).unwrap();
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "no process holds the pipe");
    }
}
