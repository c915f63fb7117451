//! Processes with a pipe on each output channel.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::{pipe2, setsid};

use crate::child::Child;
use crate::limit;
use crate::pty::{Pty, PtyMaster};
use crate::refused::{SpawnError, explain, failed, no_pty, open_stdin};
use crate::{ioctl, pty};

/// The environment variable in which a child finds the number of its stddiag descriptor.
pub const STDDIAG_FD: &str = "IOF_STDDIAG_FD";

/// Where a child's standard input comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    /// From wherever ours does.
    Inherit,
    /// From /dev/null: at its end at once.
    #[default]
    Null,
    /// From a pipe, of which [`Spawned::stdin`] is the other end.
    Pipe,
    /// From this file, which is opened for this process alone. A path that does not begin with a slash begins where we
    /// are.
    File(PathBuf),
}

/// The process group of a process: who is signalled together with it, see setpgid(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessGroup {
    /// Ours. What the terminal sends to us, it sends to the process as well.
    #[default]
    Inherit,
    /// One of its own: its children are signalled with it, and it takes no part in our terminal's job control. If it
    /// reads our terminal it is stopped (SIGTTIN).
    Own,
}

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct ProcessSpec {
    /// A path, or a name to be looked up in the `PATH` that it is going to have. A path that does not begin with a
    /// slash begins at `cwd`.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Added to this process's environment, in place of what has the same name; the last of equal names counts.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts; where we are if `None`.
    pub cwd: Option<PathBuf>,
    /// Its standard input.
    pub stdin: Stdin,
    /// Its process group.
    pub group: ProcessGroup,
    /// A pseudo-terminal for its standard input, stdout and stderr. The process leads a session of its own, whose
    /// controlling terminal this is, so it has a process group of its own as well. With [`Stdin::Null`] its input is
    /// at its end, otherwise, whatever `stdin` says, it is what is typed at [`Spawned::pty`].
    pub pty: Option<Pty>,
}

impl ProcessSpec {
    /// `program` with `args`, our environment, directory and process group, and no standard input.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> ProcessSpec {
        let args = args.into_iter().map(Into::into).collect();
        ProcessSpec { program: program.into(), args, ..ProcessSpec::default() }
    }
}

/// A process that runs, and the read ends of its pipes.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub child: Child,
    /// What is written here it reads from descriptor 0, with [`Stdin::Pipe`] and without a pty.
    pub stdin: Option<OwnedFd>,
    /// What it writes to descriptor 1; to its terminal, if it has a pty.
    pub stdout: OwnedFd,
    /// What it writes to descriptor 2; at its end at once, if it has a pty.
    pub stderr: OwnedFd,
    /// What it writes to the descriptor that [`STDDIAG_FD`] names.
    pub stddiag: OwnedFd,
    /// For typing at its pty, if it has one, and for changing its size.
    pub pty: Option<PtyMaster>,
}

/// The process's ends of its standard files, and ours.
struct Stdio {
    stdin: process::Stdio,
    pushed: Option<OwnedFd>,
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    pty: Option<PtyMaster>,
}

impl Stdio {
    fn pipes(program: &Path, stdin: &Stdin) -> Result<Stdio, SpawnError> {
        let (stdin, pushed) = match stdin {
            Stdin::Inherit => (process::Stdio::inherit(), None),
            Stdin::Null => (process::Stdio::null(), None),
            Stdin::Pipe => {
                let (read, write) = pipe(program)?;
                (read.into(), Some(write))
            }
            Stdin::File(path) => (open_stdin(program, path)?.into(), None),
        };
        Ok(Stdio { stdin, pushed, stdout: pipe(program)?, stderr: pipe(program)?, pty: None })
    }

    fn terminal(program: &Path, stdin: &Stdin, pty: Pty) -> Result<Stdio, SpawnError> {
        let make = || {
            let (master, slave) = pty::open(pty)?;
            if *stdin == Stdin::Null {
                master.type_keys(&[master.end_key()?])?;
            }
            Ok((master.try_clone()?, master.into(), slave.try_clone()?, slave.try_clone()?, slave))
        };
        let (master, ours, stdin, stdout, stderr) = make().map_err(|error| no_pty(program, error))?;
        // Nobody has its other end, so it is at its end.
        let (nothing, _) = pipe(program)?;
        Ok(Stdio {
            stdin: stdin.into(),
            pushed: None,
            stdout: (ours, stdout),
            stderr: (nothing, stderr),
            pty: Some(master),
        })
    }
}

/// Starts a process.
///
/// It has pipes for stdout, stderr and stddiag, or a pty, and no other descriptors of ours unless they were made to be
/// inherited. It stays in our session, unless it has a pty. It starts with no signal blocked, SIGPIPE, SIGCHLD and
/// SIGXFSZ at their defaults, and the soft limit on open files from before [`raise_file_limit`](crate::raise_file_limit). May be called from any
/// thread, by several at once.
///
/// # Errors
/// [`SpawnError`]; nothing runs then.
pub fn spawn(spec: ProcessSpec) -> Result<Spawned, SpawnError> {
    let program = PathBuf::from(&spec.program);
    let stdio = match spec.pty {
        None => Stdio::pipes(&program, &spec.stdin)?,
        Some(pty) => Stdio::terminal(&program, &spec.stdin, pty)?,
    };
    let ((stdout, stdout_child), (stderr, stderr_child)) = (stdio.stdout, stdio.stderr);
    let (stddiag, stddiag_child) = pipe(&program)?;
    // Not among the first three, where std puts the child's other descriptors.
    let stddiag_child = above_stdio(stddiag_child).map_err(|error| failed(&program, "fcntl", error))?;
    let seat = stddiag_seat().unwrap_or(stddiag_child.as_raw_fd());

    let mut command = Command::new(&spec.program);
    command.args(&spec.args).envs(spec.env).env(STDDIAG_FD, seat.to_string());
    command.stdin(stdio.stdin).stdout(stdout_child).stderr(stderr_child);
    let has_pty = spec.pty.is_some();
    let group = if has_pty { ProcessGroup::Own } else { spec.group };
    // Who leads a group can't begin a session.
    if group == ProcessGroup::Own && !has_pty {
        command.process_group(0);
    }
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    let limit = limit::for_children();
    let prepare = move || {
        // Here, in the child alone: inheritable in the parent, whatever other threads start would get it too.
        if stddiag_child.as_raw_fd() == seat {
            fcntl(&stddiag_child, FcntlArg::F_SETFD(FdFlag::empty()))?;
        } else {
            // SAFETY: this runs in the child, between fork and exec.
            unsafe { dup_onto(&stddiag_child, seat) }?;
        }
        if has_pty {
            setsid()?;
            ioctl::control_by_stdin()?;
        }
        // std resets SIGPIPE, but lets the child inherit the mask of the thread that spawns it.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        // A process whose parent ignores SIGCHLD would not learn how its own children ended. SIGXFSZ is ignored by those
        // whose own files may be full.
        for at_its_default in [Signal::SIGCHLD, Signal::SIGXFSZ] {
            // SAFETY: the default action is no code of ours.
            unsafe { signal(at_its_default, SigHandler::SigDfl) }?;
        }
        if let Some((soft, hard)) = limit {
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec `prepare` makes system calls only, which are async-signal-safe; it takes no
    // lock and no memory, nor do the conversions of its errors. It owns all that it uses.
    unsafe { command.pre_exec(prepare) };
    let process = start(&mut command).map_err(|error| explain(&program, spec.cwd.as_deref(), error))?;
    // Closes our copies of the write ends, or the pipes would never end.
    drop(command);
    let child = Child::open(process, group).map_err(|error| failed(&program, "pidfd_open", error))?;
    Ok(Spawned { child, stdin: stdio.pushed, stdout, stderr, stddiag, pty: stdio.pty })
}

fn pipe(program: &Path) -> Result<(OwnedFd, OwnedFd), SpawnError> {
    pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(program, "pipe2", error.into()))
}

/// `Command::spawn`, which waits for a child that could not exec, and panics if it is not the one to be told of its
/// end: where SIGCHLD is ignored, or another thread waits for any child.
fn start(command: &mut Command) -> io::Result<process::Child> {
    let lost = |_| {
        Err(io::Error::other("it failed in the child, and a foreign wait(2) or an ignored SIGCHLD hides why"))
    };
    catch_unwind(AssertUnwindSafe(|| command.spawn())).unwrap_or_else(lost)
}

/// A descriptor number that shells can name (dash knows one digit), held by this process from the first call on, so
/// that in a child stddiag can take its place and nothing else, such as the pipe over which std reports that exec
/// failed, can be there. `None` if all such numbers were taken when it was first asked for.
pub(crate) fn stddiag_seat() -> Option<RawFd> {
    static SEAT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let seat = SEAT.get_or_init(|| {
        let null = File::open("/dev/null").ok()?;
        let seat = above_stdio(null.into()).ok()?;
        (seat.as_raw_fd() <= 9).then_some(seat)
    });
    seat.as_ref().map(AsRawFd::as_raw_fd)
}

/// dup2(2): makes `number` another, inheritable, name of `end`.
///
/// # Safety
/// Nobody else owns `number`: in a child between fork and exec it is the seat.
unsafe fn dup_onto(end: &OwnedFd, number: RawFd) -> io::Result<()> {
    // SAFETY: as the caller promises; it stays open.
    if unsafe { libc::dup2(end.as_raw_fd(), number) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn above_stdio(end: OwnedFd) -> io::Result<OwnedFd> {
    if end.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(end);
    }
    let copy = fcntl(&end, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: fcntl just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
