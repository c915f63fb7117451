//! Starts a program in a child that shares this process's memory until it executes the program.
//!
//! fork(2) copies the list of all memory maps. Each ring has several, so its time grows with each
//! job that the engine keeps. Here, as in posix_spawn(3), the child borrows the memory (`CLONE_VM`)
//! while the calling thread waits (`CLONE_VFORK`), until the child executes its program or fails.
//! posix_spawn itself can neither set limits nor set a controlling terminal. Where possible, the
//! child does not copy the descriptor table either, see [`seats`](crate::spawn::seats).
//!
//! An emulator such as qemu-user may create a child with a copy of the memory instead. Then the
//! reason for a failure does not arrive: the process counts as started and exits with status 127.

use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::AtomicBool;

use libc::{c_char, c_uint, c_void};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::Id;
use nix::unistd::Pid;

use self::image::{ChildImage, Ends, SHELL, Table, become_program};
pub(crate) use self::plan::{ChildGroup, ExecPlan};
use crate::process::wait::wait_and_reap;
use crate::spawn::seats::{self, SEATS, Seated};

mod image;
mod plan;

/// The size of the child's stack, in units of 16 bytes. The child calls system calls through a few
/// small frames, and neither recurses nor formats.
const STACK_UNITS: usize = 4096;

/// The reason why a child did not execute its program.
enum NotStarted {
    /// The child cannot start with a shared descriptor table. If `refused`, the kernel or a seccomp
    /// filter refuses it to all children.
    Table { refused: bool },
    /// The error of clone(2), execve(2) or a call between the two.
    Error(io::Error),
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
    match start_with_shared_table(&plan, &strings) {
        Some(Ok(started)) => return Ok(started),
        Some(Err(NotStarted::Error(error))) => return Err(error),
        Some(Err(NotStarted::Table { refused: true })) => seats::refused(),
        Some(Err(NotStarted::Table { refused: false })) | None => {}
    }
    let ends = files(&plan).map(|file| file.map(AsRawFd::as_raw_fd));
    start_in(&plan, &strings, ends, Table::Copied).map_err(|error| match error {
        NotStarted::Error(error) => error,
        NotStarted::Table { .. } => io::ErrorKind::Unsupported.into(),
    })
}

/// Returns the files of the child.
fn files<'a>(plan: &'a ExecPlan<'_>) -> [Option<&'a OwnedFd>; SEATS] {
    plan.ends.each_ref().map(|end| end.as_ref().map(|(file, _)| file))
}

/// Starts a process that does not copy the whole descriptor table. Returns `None` if that is not
/// possible.
fn start_with_shared_table(
    plan: &ExecPlan<'_>,
    strings: &Strings,
) -> Option<Result<(u32, OwnedFd), NotStarted>> {
    let mut above = plan.above_inheritable?;
    let seated = Seated::new(files(plan))?;
    for seat in seated.numbers {
        above = above.max(seat.saturating_add(1));
    }
    // A seat without a file has /dev/null, and the child gets nothing from it.
    let ends = seated.numbers.map(Some);
    let copied = c_uint::try_from(above).ok()?;
    Some(start_in(plan, strings, ends, Table::Shared { copied, unit: seats::copy_unit() }))
}

/// Starts a process with this descriptor table, in which it has `ends`.
fn start_in(
    plan: &ExecPlan<'_>,
    strings: &Strings,
    ends: Ends,
    table: Table,
) -> Result<(u32, OwnedFd), NotStarted> {
    let argv = pointers(&strings.args);
    let mut shell_argv: Vec<*const c_char> = vec![SHELL.as_ptr(), ptr::null()];
    shell_argv.extend(argv.iter().skip(1));
    let envp = pointers(plan.env.texts());
    let mut image = ChildImage {
        plan,
        ends,
        table,
        paths: &strings.paths,
        cwd: strings.cwd.as_ref(),
        argv: &argv,
        shell_argv: &mut shell_argv,
        envp: &envp,
        leaving: AtomicBool::new(false),
        errno: 0,
        pidfd: -1,
    };
    let mut stack = vec![0u128; STACK_UNITS];
    let top = stack.as_mut_ptr_range().end;
    let files = if is_shared(table) { libc::CLONE_FILES } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | files | libc::SIGCHLD;
    // No signal handler of this process may run in the child, because the child shares the memory.
    // Two signals of the C library cannot be blocked like this, and it sends them to its own
    // threads only.
    let mask = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_SETMASK)
        .map_err(|error| NotStarted::Error(error.into()))?;
    // SAFETY: `become_program` has exclusive access to `image` and to its own stack, because this
    // thread resumes only when the child has executed its program or exited. It takes no lock and
    // allocates no memory. While it shares the descriptor table, it changes none of its
    // descriptors. The call writes `image.pidfd` before the child runs.
    let pid = unsafe {
        let none = ptr::null_mut::<c_void>();
        let image = &raw mut image;
        let pidfd = &raw mut (*image).pidfd;
        libc::clone(become_program, top.cast(), flags, image.cast(), pidfd, none, none)
    };
    let pidfd = image.pidfd;
    let cloned = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
    // Fails only for invalid arguments.
    let _ = mask.thread_set_mask();
    let number = Pid::from_raw(cloned.map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM) => NotStarted::Error(error),
        // A filter may refuse these flags. If the error has another reason, the next attempt has it
        // too.
        _ if is_shared(table) => NotStarted::Table { refused: true },
        _ => NotStarted::Error(error),
    })?);
    // SAFETY: the kernel has just created the descriptor (close-on-exec), and nothing else owns it.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
    started(number, pidfd, image.leaving.into_inner(), image.errno)
}

fn is_shared(table: Table) -> bool {
    matches!(table, Table::Shared { .. })
}

/// Returns the pid and the pidfd of a child that has executed its program. Reaps another one: one
/// that failed with `errno` or, while it was `leaving` a shared table, was killed.
fn started(
    number: Pid,
    pidfd: Option<OwnedFd>,
    leaving: bool,
    errno: i32,
) -> Result<(u32, OwnedFd), NotStarted> {
    let Some(pidfd) = pidfd else {
        // Fails only if the child has ended.
        let _ = kill(number, Signal::SIGKILL);
        wait_and_reap(|| Id::Pid(number));
        let message = "clone(2) returned no pidfd: run on Linux 5.2 or newer, or on an emulator that supports CLONE_PIDFD";
        return Err(NotStarted::Error(io::Error::new(io::ErrorKind::Unsupported, message)));
    };
    match errno {
        // A seccomp filter has killed the child for the call.
        0 if leaving => {
            wait_and_reap(|| Id::PIDFd(pidfd.as_fd()));
            Err(NotStarted::Table { refused: true })
        }
        0 => {
            let pid = u32::try_from(number.as_raw());
            Ok((pid.map_err(|error| NotStarted::Error(io::Error::other(error)))?, pidfd))
        }
        errno => {
            wait_and_reap(|| Id::PIDFd(pidfd.as_fd()));
            let refused = matches!(errno, libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL);
            let error = NotStarted::Error(io::Error::from_raw_os_error(errno));
            Err(if leaving { NotStarted::Table { refused } } else { error })
        }
    }
}

/// The arguments of execve(2) and chdir(2) as C strings.
struct Strings {
    /// The candidate paths of the program, in the order in which they are tried.
    paths: Vec<CString>,
    args: Vec<CString>,
    cwd: Option<CString>,
}

impl Strings {
    fn from_plan(plan: &ExecPlan<'_>) -> io::Result<Strings> {
        let text = |text: &OsStr| Ok(CString::new(text.as_bytes())?);
        let args = std::iter::once(&plan.app.program).chain(&plan.app.args);
        Ok(Strings {
            paths: paths(plan)?,
            args: args.map(|arg| text(arg)).collect::<io::Result<_>>()?,
            cwd: plan.app.cwd.as_ref().map(|cwd| text(cwd.as_os_str())).transpose()?,
        })
    }
}

/// Returns the candidate paths of the program: a path as it is, or a name in each directory of the
/// child's `PATH`.
fn paths(plan: &ExecPlan<'_>) -> io::Result<Vec<CString>> {
    let program = plan.app.program.as_bytes();
    if program.is_empty() || program.contains(&b'/') {
        return Ok(vec![CString::new(program)?]);
    }
    let path = plan.env.get("PATH").unwrap_or(OsStr::new(crate::spawn::program::DEFAULT_PATH));
    let candidate = |directory: std::path::PathBuf| {
        Ok(CString::new(directory.join(&plan.app.program).into_os_string().into_vec())?)
    };
    env::split_paths(path).map(candidate).collect()
}

/// Returns pointers to the strings, with a null pointer at the end.
fn pointers<'a>(strings: impl IntoIterator<Item = &'a CString>) -> Vec<*const c_char> {
    strings.into_iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::RawFd;

    use iof_proto::App;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::unistd::pipe;

    use super::*;
    use crate::spawn::environment::BaseEnvironment;

    /// Runs a script by `start`, and returns its output. `above_inheritable` is as in [`ExecPlan`].
    fn output(
        script: &str,
        above_inheritable: RawFd,
        start: impl Fn(ExecPlan<'_>) -> io::Result<(u32, OwnedFd)>,
    ) -> String {
        let ((stdout, child_stdout), (_, child_stderr)) = (pipe().unwrap(), pipe().unwrap());
        let (_, child_stddiag) = pipe().unwrap();
        let mut ends = [const { None }; SEATS];
        let files = [(child_stdout, 1), (child_stderr, 2), (child_stddiag, 9)];
        ends.iter_mut().skip(1).zip(files).for_each(|(end, file)| *end = Some(file));
        let base = BaseEnvironment::current();
        let (_, pidfd) = start(ExecPlan {
            app: &App::new("/bin/sh", ["-c", script]),
            env: base.with([]).unwrap(),
            ends,
            group: ChildGroup::Own,
            files: None,
            guardian: None,
            above_inheritable: Some(above_inheritable),
        })
        .unwrap();
        let mut text = String::new();
        File::from(stdout).read_to_string(&mut text).unwrap();
        wait_and_reap(|| Id::PIDFd(pidfd.as_fd()));
        text
    }

    #[test]
    fn a_child_with_a_shared_table_gets_its_ends_and_the_inheritable_descriptors_alone() {
        let null = File::open("/dev/null").unwrap();
        let duplicate = |arg| {
            // SAFETY: fcntl has just created the descriptor, and nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(fcntl(&null, arg).unwrap()) }
        };
        let inherited = duplicate(FcntlArg::F_DUPFD(100));
        let closed = duplicate(FcntlArg::F_DUPFD_CLOEXEC(100));
        // `None` if the tests are run with `IOF_SPAWN_TABLE=copied`.
        let Some(above) = seats::above_inheritable() else { return };
        assert!(above > inherited.as_raw_fd(), "{above}");
        let test = |fd: RawFd| format!("[ -e /proc/self/fd/{fd} ] && echo {fd}; ");
        let script = [test(9), test(inherited.as_raw_fd()), test(closed.as_raw_fd())].concat();
        let expected = format!("9\n{}\n", inherited.as_raw_fd());
        let shared = |plan: ExecPlan<'_>| {
            let strings = Strings::from_plan(&plan)?;
            // Other tests may have the seats at the moment.
            let started = std::iter::repeat_with(|| start_with_shared_table(&plan, &strings));
            started.flatten().next().unwrap().map_err(|_| io::Error::other("not started"))
        };
        assert_eq!(output(&script, above, shared), expected);
        assert_eq!(output(&script, above, start), expected);
    }
}
