//! The steps of the child in its parent's memory until it executes the program: system calls alone.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int, c_uint, c_void};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::plan::{ChildGroup, ExecPlan};
use crate::ioctl;
use crate::spawn::program::{SCRIPT_HEAD, is_binary};
use crate::spawn::seats::SEATS;

/// The shell that runs a file without a magic number, as in execvp(3).
pub(super) const SHELL: &CStr = c"/bin/sh";
/// The highest signal number.
const LAST_SIGNAL: c_int = 64;

/// The numbers of the child's files in the table with which it starts.
pub(super) type Ends = [Option<RawFd>; SEATS];

/// The descriptor table with which a child starts.
#[derive(Clone, Copy)]
pub(super) enum Table {
    /// A copy of that of this process.
    Copied,
    /// That of this process, until the child copies the descriptors below this number.
    /// It copies them in whole units of `unit`, and closes the rest.
    Shared { copied: c_uint, unit: c_uint },
}

/// The child's working data, in the memory of its parent.
pub(super) struct ChildImage<'a> {
    pub plan: &'a ExecPlan<'a>,
    pub ends: Ends,
    pub table: Table,
    pub paths: &'a [CString],
    pub cwd: Option<&'a CString>,
    pub argv: &'a [*const c_char],
    /// The shell, the path of the script, and its arguments.
    pub shell_argv: &'a mut [*const c_char],
    pub envp: &'a [*const c_char],
    /// Set while the child leaves the shared descriptor table, which may fail or kill it. An
    /// atomic, so that the store is made before the call. Relaxed: the parent reads it when
    /// clone(2) has returned.
    pub leaving: AtomicBool,
    /// The error number if the program was not executed, otherwise 0.
    pub errno: c_int,
    /// The child's pidfd in the table of its parent. The kernel sets it before the child runs.
    pub pidfd: RawFd,
}

/// The entry point of the child. Calls only async-signal-safe functions.
pub(super) extern "C" fn become_program(image: *mut c_void) -> c_int {
    // SAFETY: `start_in` passes its `ChildImage` to this child only, and waits.
    let image = unsafe { &mut *image.cast::<ChildImage<'_>>() };
    let errno = match prepare(image) {
        Ok(()) => execute(image),
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    image.errno = errno;
    // SAFETY: the call ends the child, without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Sets up signals, descriptors, directory, process group and limits for the program.
fn prepare(image: &mut ChildImage<'_>) -> io::Result<()> {
    let plan = image.plan;
    reset_signals();
    if let Some(guardian) = plan.guardian {
        let pidfd = matches!(image.table, Table::Shared { .. }).then_some(image.pidfd);
        guardian.report(pidfd, plan.group != ChildGroup::Inherit);
    }
    if let Table::Shared { copied, unit } = image.table {
        image.leaving.store(true, Ordering::Relaxed);
        leave_table(copied, unit)?;
        image.leaving.store(false, Ordering::Relaxed);
    }
    for (end, planned) in image.ends.into_iter().zip(&plan.ends) {
        if let (Some(end), Some((_, number))) = (end, planned) {
            become_number(end, *number)?;
        }
    }
    if let Some(cwd) = image.cwd {
        // SAFETY: the string ends with a zero byte.
        checked(unsafe { libc::chdir(cwd.as_ptr()) })?;
    }
    match plan.group {
        ChildGroup::Inherit => {}
        // SAFETY: the arguments are numbers.
        ChildGroup::Own => checked(unsafe { libc::setpgid(0, 0) })?,
        ChildGroup::Session => {
            // SAFETY: the call has no arguments.
            checked(unsafe { libc::setsid() })?;
            ioctl::control_by_stdin()?;
        }
    }
    if plan.group != ChildGroup::Inherit {
        discard_stop_signals();
    }
    if let Some((soft, hard)) = plan.files {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: the call reads one rlimit, `limit`, which outlives it.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    // Last, because from here on signals act on the process.
    Ok(nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Resets signals with a handler, and ignored signals that a child must not ignore, to their
/// default actions. A child that ignores SIGCHLD could not read the exit status of its own
/// children. The Rust runtime ignores SIGPIPE. A process whose own files may reach their size limit
/// ignores SIGXFSZ.
fn reset_signals() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: all zeroes are a valid action: the default action without flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one action, to `action`. It fails for invalid signal numbers.
        let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
        let must_reset = match action.sa_sigaction {
            libc::SIG_DFL => false,
            libc::SIG_IGN => matches!(signal, libc::SIGPIPE | libc::SIGCHLD | libc::SIGXFSZ),
            _ => true,
        };
        if known && must_reset {
            // SAFETY: as above.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the call reads one action, `default`.
            unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
        }
    }
}

/// Discards stop signals that the terminal sent to the old process group of this process. What
/// continues that group does not continue this process, and the parent would wait for ever.
fn discard_stop_signals() {
    for signal in [libc::SIGTTIN, libc::SIGTTOU, libc::SIGTSTP] {
        // SAFETY: all zeroes are a valid action; without flags, `SIG_IGN` is one, too.
        let (mut ignore, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        ignore.sa_sigaction = libc::SIG_IGN;
        // SAFETY: the calls read and write these two actions. To ignore a signal discards a pending
        // one, also while it is blocked (sigaction(2)). The calls fail only for invalid numbers.
        unsafe {
            libc::sigaction(signal, &raw const ignore, &raw mut old);
            libc::sigaction(signal, &raw const old, ptr::null_mut());
        }
    }
}

/// Leaves the descriptor table of the parent for one with the descriptors below `copied`, which are
/// copied in whole units of `unit`.
fn leave_table(copied: c_uint, unit: c_uint) -> io::Result<()> {
    let close = |from: c_uint, flags: c_uint| {
        // SAFETY: the arguments are numbers. The calls close descriptors only in the new table.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, from, c_uint::MAX, flags) };
        if closed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let unit = unit.max(1);
    close(copied.div_ceil(unit).saturating_mul(unit), libc::CLOSE_RANGE_UNSHARE)?;
    close(copied, 0)
}

/// Makes `number` an inheritable descriptor of the file of `end`.
fn become_number(end: RawFd, number: RawFd) -> io::Result<()> {
    // SAFETY: the arguments are numbers. The child has its own descriptor table, in which only the
    // descriptors of the plan are used.
    let done =
        unsafe { if end == number { libc::fcntl(end, libc::F_SETFD, 0) } else { libc::dup2(end, number) } };
    checked(done)
}

/// Executes the first candidate path that can be executed, as execvp(3) does. Returns the error
/// number if none can.
fn execute(image: &mut ChildImage<'_>) -> c_int {
    let mut denied = false;
    let mut errno = libc::ENOENT;
    for path in image.paths {
        errno = exec(path.as_ptr(), image.argv, image.envp);
        if errno == libc::ENOEXEC {
            if is_binary_file(path) {
                return errno;
            }
            if let Some(script) = image.shell_argv.get_mut(1) {
                *script = path.as_ptr();
            }
            return exec(SHELL.as_ptr(), image.shell_argv, image.envp);
        }
        match errno {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return errno,
        }
    }
    if denied { libc::EACCES } else { errno }
}

/// Returns whether a file that the kernel cannot execute is not a script either. Does not allocate:
/// the parent's memory is shared.
fn is_binary_file(path: &CStr) -> bool {
    let mut head = [0u8; SCRIPT_HEAD];
    // SAFETY: the path ends with a zero byte, and the read writes at most the length of `head`. The
    // descriptor belongs to this function, which closes it in the child's own table.
    let length = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC);
        let length = libc::read(file, head.as_mut_ptr().cast(), head.len());
        libc::close(file);
        length
    };
    is_binary(usize::try_from(length).ok().and_then(|length| head.get(..length)).unwrap_or_default())
}

/// Calls execve(2), which returns only if it fails. Returns the error number.
fn exec(path: *const c_char, argv: &[*const c_char], envp: &[*const c_char]) -> c_int {
    // SAFETY: all strings end with a zero byte, and both lists end with a null pointer.
    unsafe { libc::execve(path, argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
