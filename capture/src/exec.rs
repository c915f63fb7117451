//! Starts a program in a child that shares this process's memory until it executes the program.
//!
//! fork(2) copies the list of all memory maps. Each ring has several, so its time grows with each
//! job that the engine keeps. Here, as in posix_spawn(3), the child borrows the memory (`CLONE_VM`)
//! while the calling thread waits (`CLONE_VFORK`), until the child executes its program or fails.
//! posix_spawn itself can neither set limits nor set a controlling terminal.
//!
//! An emulator such as qemu-user may create a child with a copy of the memory instead. Then the
//! reason for a failure does not arrive: the process counts as started and exits with status 127.

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

/// The shell that runs a file without a magic number, as in execvp(3).
const SHELL: &std::ffi::CStr = c"/bin/sh";
/// The size of the child's stack, in units of 16 bytes. The child makes about fifteen system calls,
/// one frame deep.
const STACK_UNITS: usize = 4096;
/// The highest signal number.
const LAST_SIGNAL: c_int = 64;

/// The program to execute, its environment and its descriptors.
#[derive(Debug)]
pub(crate) struct ExecPlan<'a> {
    pub program: &'a OsStr,
    pub args: &'a [OsString],
    /// The whole environment.
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: Option<&'a Path>,
    /// Inherited if `None`. Like the other descriptors, it is not one of the numbers 0 to 2.
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub stddiag: OwnedFd,
    /// The number that stddiag gets in the child. No other inherited descriptor has it.
    pub stddiag_number: RawFd,
    pub group: ChildGroup,
    /// The soft and the hard limit on open files; `None` leaves them unchanged.
    pub files: Option<(rlim_t, rlim_t)>,
}

/// The process group and the session of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildGroup {
    /// The group of this process.
    Inherit,
    /// A new group, which the child leads.
    Own,
    /// A new session, which the child leads and whose controlling terminal is the child's stdin.
    Session,
}

/// Starts a process and returns its pid and its pidfd. Blocks until the child has executed its
/// program. The process starts with no signal blocked, and with the default actions of SIGPIPE,
/// SIGCHLD and SIGXFSZ.
///
/// # Errors
/// `InvalidInput` if a string contains a zero byte, or the error of clone(2), execve(2) or a call
/// between the two. No process runs then.
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
    let mut stack = vec![0u128; STACK_UNITS];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // No signal handler of this process may run in the child, because the child shares the memory.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: `become_program` has exclusive access to `image` and to its own stack, because this
    // thread resumes only when the child has executed its program or exited. It takes no lock and
    // allocates no memory. `pidfd` outlives the call, which writes it.
    let pid = unsafe {
        let none = ptr::null_mut::<c_void>();
        let image = (&raw mut image).cast::<c_void>();
        libc::clone(become_program, top.cast(), flags, image, &raw mut pidfd, none, none)
    };
    let cloned = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
    // Fails only for invalid arguments.
    let _ = mask.thread_set_mask();
    let number = Pid::from_raw(cloned?);
    if pidfd < 0 {
        // Fails only if the child has ended.
        let _ = kill(number, Signal::SIGKILL);
        reap(|| Id::Pid(number));
        let message = "clone(2) returned no pidfd: run on Linux 5.2 or newer, or on an emulator that supports CLONE_PIDFD";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    // SAFETY: the kernel has just created the descriptor (close-on-exec), and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match image.errno {
        0 => Ok((u32::try_from(number.as_raw()).map_err(io::Error::other)?, pidfd)),
        errno => {
            reap(|| Id::PIDFd(pidfd.as_fd()));
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Blocks until a child that is about to end has ended, and reaps it. Reaps nothing if another
/// thread has done so or SIGCHLD is ignored.
fn reap<'a>(child: impl Fn() -> Id<'a>) {
    while waitid(child(), WaitPidFlag::WEXITED) == Err(Errno::EINTR) {}
}

/// The arguments of execve(2) and chdir(2) as C strings.
struct Strings {
    /// The candidate paths of the program, in the order in which they are tried.
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

/// Returns the candidate paths of the program: a path as it is, or a name in each directory of the
/// child's `PATH`.
fn paths(plan: &ExecPlan<'_>) -> io::Result<Vec<CString>> {
    let program = plan.program.as_bytes();
    if program.is_empty() || program.contains(&b'/') {
        return Ok(vec![CString::new(program)?]);
    }
    let path = plan.env.get(OsStr::new("PATH")).map_or(OsStr::new(crate::program::DEFAULT_PATH), |path| path);
    let candidate = |directory: std::path::PathBuf| {
        Ok(CString::new(directory.join(plan.program).into_os_string().into_vec())?)
    };
    env::split_paths(path).map(candidate).collect()
}

/// Returns pointers to the strings, with a null pointer at the end.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The child's working data, in the memory of its parent.
struct ChildImage<'a> {
    plan: &'a ExecPlan<'a>,
    paths: &'a [CString],
    cwd: Option<&'a CString>,
    argv: &'a [*const c_char],
    /// The shell, the path of the script, and its arguments.
    shell_argv: &'a mut [*const c_char],
    envp: &'a [*const c_char],
    /// The error number if the program was not executed, otherwise 0.
    errno: c_int,
}

/// The entry point of the child. Calls only async-signal-safe functions.
extern "C" fn become_program(image: *mut c_void) -> c_int {
    // SAFETY: `start` passes its `ChildImage` to this child only, and waits.
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
fn prepare(image: &ChildImage<'_>) -> io::Result<()> {
    let plan = image.plan;
    reset_signals();
    let stdin = plan.stdin.as_ref().map(|stdin| (stdin, libc::STDIN_FILENO));
    let others = [(&plan.stdout, libc::STDOUT_FILENO), (&plan.stderr, libc::STDERR_FILENO)];
    for (end, number) in stdin.into_iter().chain(others).chain([(&plan.stddiag, plan.stddiag_number)]) {
        become_number(end.as_raw_fd(), number)?;
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

/// Calls execve(2), which returns only if it fails. Returns the error number.
fn exec(path: *const c_char, argv: &[*const c_char], envp: &[*const c_char]) -> c_int {
    // SAFETY: all strings end with a zero byte, and both lists end with a null pointer.
    unsafe { libc::execve(path, argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
