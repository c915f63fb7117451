//! Children that have ended, as reported by waitid(2).
//!
//! nix's function of that name fails for a child that a real-time signal has ended.

use std::io;
use std::mem;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, SystemTime};

use iof_proto::UsedResources;
use nix::sys::wait::{Id, WaitPidFlag};

/// A child that has ended.
pub(crate) struct EndedChild {
    pid: u32,
    pub status: ExitStatus,
    pub used: UsedResources,
}

/// Returns what a child has used that has ended now.
fn used(usage: &libc::rusage) -> UsedResources {
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    let cpu = time(usage.ru_utime).saturating_add(time(usage.ru_stime));
    let peak_memory = u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024);
    UsedResources { ended: now(), cpu, peak_memory }
}

/// Returns the time of day, which can be sent to other processes: not before 1970.
pub(crate) fn now() -> SystemTime {
    SystemTime::now().max(SystemTime::UNIX_EPOCH)
}

/// Calls waitid(2). Returns `None` if no such child has ended.
pub(crate) fn waitid(
    id_type: libc::idtype_t,
    id: libc::id_t,
    options: libc::c_int,
) -> io::Result<Option<EndedChild>> {
    // SAFETY: all zeroes are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: all zeroes are a valid rusage.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    let (to_info, to_usage) = (&raw mut info, &raw mut usage);
    // The function of the C library has no argument for the resources.
    // SAFETY: the call writes one siginfo_t and one rusage, to `info` and `usage`, which outlive it.
    if unsafe { libc::syscall(libc::SYS_waitid, id_type, id, to_info, options, to_usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid(2) sets the fields of a siginfo_t for SIGCHLD, or leaves them zero if no child
    // has ended.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    // Encoded as by wait(2).
    let status = match info.si_code {
        _ if pid == 0 => return Ok(None),
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_KILLED => status,
        libc::CLD_DUMPED => status | 0x80,
        _ => return Ok(None),
    };
    let pid = u32::try_from(pid).map_err(io::Error::other)?;
    Ok(Some(EndedChild { pid, status: ExitStatus::from_raw(status), used: used(&usage) }))
}

/// Blocks until a child of this process has ended, and returns its pid. Does not reap it, so the
/// next call may return the same child.
///
/// # Errors
/// `ECHILD` if this process has no child; [`Interrupted`](io::ErrorKind::Interrupted) if a signal
/// arrived.
pub fn wait_for_child() -> io::Result<u32> {
    let ended = waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT)?;
    // Without WNOHANG, the call returns only with a child.
    ended.map(|ended| ended.pid).ok_or_else(|| io::ErrorKind::Interrupted.into())
}

/// Reaps the child `pid` if it has ended, and returns its exit status. Does not block.
///
/// # Errors
/// `ECHILD` if `pid` is not a child of this process, or was reaped.
pub fn reap(pid: u32) -> io::Result<Option<ExitStatus>> {
    let ended = waitid(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG)?;
    Ok(ended.map(|ended| ended.status))
}

/// Blocks until a child that is about to end has ended, and reaps it. Reaps nothing if another
/// thread has done so or SIGCHLD is ignored.
pub(crate) fn wait_and_reap<'a>(child: impl Fn() -> Id<'a>) {
    while nix::sys::wait::waitid(child(), WaitPidFlag::WEXITED) == Err(nix::errno::Errno::EINTR) {}
}
