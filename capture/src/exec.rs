//! Starts a program in a child that shares this process's memory until then.
//!
//! fork(2) copies the list of all maps, and there are several for each ring, so its time grows with
//! each job that is kept. Here, as in posix_spawn(3), the child borrows the memory (`CLONE_VM`)
//! while this thread waits (`CLONE_VFORK`), until it executes its program or fails. (posix_spawn
//! itself can neither set limits nor hand over a terminal.)
//!
//! An emulator such as qemu-user may make a child with a copy of the memory instead. There the
//! reason why nothing is executed does not arrive, and the process is started and exits with status
//! 127.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;

use libc::{c_char, c_int, c_void, rlim_t};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::ioctl;

/// The shell that runs a file which begins with no magic number, as in execvp(3).
const SHELL: &std::ffi::CStr = c"/bin/sh";
/// The child's stack, in units of 16 bytes: it makes some fifteen system calls, one frame deep.
const STACK: usize = 4096;
/// The highest signal number.
const LAST_SIGNAL: c_int = 64;

/// What is to be executed, and with which descriptors.
#[derive(Debug)]
pub(crate) struct ExecPlan<'a> {
    pub program: &'a OsStr,
    pub args: &'a [OsString],
    /// All variables.
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: Option<&'a Path>,
    /// Ours, if `None`. Like the others it is not one of the first three descriptors.
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub stddiag: OwnedFd,
    /// The number that stddiag gets: nothing else of the child has it.
    pub stddiag_number: RawFd,
    pub group: ChildGroup,
    /// The soft and the hard limit on open files, if they change.
    pub files: Option<(rlim_t, rlim_t)>,
}

/// The process group and the session of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildGroup {
    /// Ours.
    Inherit,
    /// A group of its own.
    Own,
    /// A session of its own, whose controlling terminal is its stdin.
    Session,
}

/// Starts a process; returns its pid and its pidfd. It starts with no signal blocked, and SIGPIPE,
/// SIGCHLD and SIGXFSZ at their defaults.
///
/// # Errors
/// `InvalidInput` for a zero byte in a string, and what clone(2), execve(2) or a call between the
/// two fails with. Nothing runs then.
pub(crate) fn start(plan: ExecPlan<'_>) -> io::Result<(u32, OwnedFd)> {
    let strings = Strings::from_plan(&plan)?;
    let argv = pointers(&strings.args);
    let mut shell_argv: Vec<*const c_char> = vec![SHELL.as_ptr(), ptr::null()];
    shell_argv.extend(argv.iter().skip(1));
    let envp = pointers(&strings.env);
    let mut image = ChildImage {
        plan: &plan,
        paths: &strings.paths,
        cwd: strings.cwd.as_ref(),
        argv: &argv,
        shell_argv: &mut shell_argv,
        envp: &envp,
        errno: 0,
    };
    let mut stack = vec![0u128; STACK];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // No handler of this process may run in the child, which has its memory.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: `become_program` gets `image`, and a stack of its own, to itself: this thread goes on
    // when it has executed its program or exited. It takes no lock and no memory. `pidfd` outlives
    // the call, which writes it.
    let pid = unsafe {
        let none = ptr::null_mut::<c_void>();
        let image = (&raw mut image).cast::<c_void>();
        libc::clone(become_program, top.cast(), flags, image, &raw mut pidfd, none, none)
    };
    let cloned = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
    // Fails for bad arguments only.
    let _ = mask.thread_set_mask();
    let number = Pid::from_raw(cloned?);
    if pidfd < 0 {
        // Fails only if it has ended.
        let _ = kill(number, Signal::SIGKILL);
        reap(|| Id::Pid(number));
        let why = "clone(2) returned no pidfd: run on Linux 5.2 or newer, or on an emulator that supports CLONE_PIDFD";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    // SAFETY: the kernel just made it (close-on-exec), and nobody else knows it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match image.errno {
        0 => Ok((u32::try_from(number.as_raw()).map_err(io::Error::other)?, pidfd)),
        errno => {
            reap(|| Id::PIDFd(pidfd.as_fd()));
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Waits until a child that is about to end has ended, and reaps it, unless that was done by
/// another thread, or SIGCHLD is ignored.
fn reap<'a>(child: impl Fn() -> Id<'a>) {
    while waitid(child(), WaitPidFlag::WEXITED) == Err(Errno::EINTR) {}
}

/// What execve(2) is given.
struct Strings {
    /// Where the program may be, in the order of trying.
    paths: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
    cwd: Option<CString>,
}

impl Strings {
    fn from_plan(plan: &ExecPlan<'_>) -> io::Result<Strings> {
        let text = |text: &OsStr| Ok(CString::new(text.as_bytes())?);
        let args = std::iter::once(plan.program).chain(plan.args.iter().map(OsString::as_os_str));
        let variable = |(name, value): (&OsString, &OsString)| {
            let mut text = name.clone();
            text.push("=");
            text.push(value);
            Ok(CString::new(text.into_vec())?)
        };
        Ok(Strings {
            paths: paths(plan)?,
            args: args.map(text).collect::<io::Result<_>>()?,
            env: plan.env.iter().map(variable).collect::<io::Result<_>>()?,
            cwd: plan.cwd.map(|cwd| text(cwd.as_os_str())).transpose()?,
        })
    }
}

/// Where the program may be: a path as it is, a name in each directory of the child's `PATH`.
fn paths(plan: &ExecPlan<'_>) -> io::Result<Vec<CString>> {
    let program = plan.program.as_bytes();
    if program.is_empty() || program.contains(&b'/') {
        return Ok(vec![CString::new(program)?]);
    }
    let path =
        plan.env.get(OsStr::new("PATH")).map_or(OsStr::new(crate::spawn_error::DEFAULT_PATH), |path| path);
    let candidate = |directory: std::path::PathBuf| {
        Ok(CString::new(directory.join(plan.program).into_os_string().into_vec())?)
    };
    env::split_paths(path).map(candidate).collect()
}

/// The strings as C has them, with a null at the end.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// What the child works with, in its parent's memory.
struct ChildImage<'a> {
    plan: &'a ExecPlan<'a>,
    paths: &'a [CString],
    cwd: Option<&'a CString>,
    argv: &'a [*const c_char],
    /// The shell, the path of the script, and its arguments.
    shell_argv: &'a mut [*const c_char],
    envp: &'a [*const c_char],
    /// Why nothing was executed.
    errno: c_int,
}

/// The child, from its first instruction on. Everything here is async-signal-safe.
extern "C" fn become_program(image: *mut c_void) -> c_int {
    // SAFETY: `start` hands its `ChildImage` to this child alone, and waits.
    let image = unsafe { &mut *image.cast::<ChildImage<'_>>() };
    let failed = match prepare(image) {
        Ok(()) => execute(image),
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    image.errno = failed;
    // SAFETY: ends the child, without the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Makes the process what its program expects.
fn prepare(image: &ChildImage<'_>) -> io::Result<()> {
    let plan = image.plan;
    reset_signals();
    let stdin = plan.stdin.as_ref().map(|stdin| (stdin, libc::STDIN_FILENO));
    let others = [(&plan.stdout, libc::STDOUT_FILENO), (&plan.stderr, libc::STDERR_FILENO)];
    for (end, number) in stdin.into_iter().chain(others).chain([(&plan.stddiag, plan.stddiag_number)]) {
        become_number(end.as_raw_fd(), number)?;
    }
    if let Some(cwd) = image.cwd {
        // SAFETY: a string that ends with a zero.
        checked(unsafe { libc::chdir(cwd.as_ptr()) })?;
    }
    match plan.group {
        ChildGroup::Inherit => {}
        // SAFETY: plain numbers.
        ChildGroup::Own => checked(unsafe { libc::setpgid(0, 0) })?,
        ChildGroup::Session => {
            // SAFETY: no arguments.
            checked(unsafe { libc::setsid() })?;
            ioctl::control_by_stdin()?;
        }
    }
    if let Some((soft, hard)) = plan.files {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: the call reads one rlimit, `limit`, which outlives it.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    // The last thing: from here on signals end the process.
    Ok(nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Removes this process's handlers, and what it ignores that its children must not: a process whose
/// parent ignores SIGCHLD would not learn how its own children ended, and std ignores SIGPIPE.
/// SIGXFSZ is ignored by those whose own files may be full.
fn reset_signals() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: zeroes are an action, the default one without flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one action, to `action`. It fails for numbers of no signal.
        let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
        let unwanted = match action.sa_sigaction {
            libc::SIG_DFL => false,
            libc::SIG_IGN => matches!(signal, libc::SIGPIPE | libc::SIGCHLD | libc::SIGXFSZ),
            _ => true,
        };
        if known && unwanted {
            // SAFETY: as above.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the call reads one action, `default`.
            unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
        }
    }
}

/// Makes `number` the inheritable name of what `end` names.
fn become_number(end: RawFd, number: RawFd) -> io::Result<()> {
    // SAFETY: plain numbers. The table of descriptors is the child's own, where none but the plan's
    // matter.
    let done =
        unsafe { if end == number { libc::fcntl(end, libc::F_SETFD, 0) } else { libc::dup2(end, number) } };
    checked(done)
}

/// Executes the first of the paths that can be, as execvp(3) does; returns why none can.
fn execute(image: &mut ChildImage<'_>) -> c_int {
    let mut denied = false;
    let mut errno = libc::ENOENT;
    for path in image.paths {
        errno = exec(path.as_ptr(), image.argv, image.envp);
        if errno == libc::ENOEXEC {
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

/// execve(2); returns why it failed.
fn exec(path: *const c_char, argv: &[*const c_char], envp: &[*const c_char]) -> c_int {
    // SAFETY: strings that end with a zero, and lists of such that end with a null.
    unsafe { libc::execve(path, argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
