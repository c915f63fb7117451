//! Processes with a pipe on each output channel.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use crate::child::Child;
use crate::exec::{self, ChildGroup, ExecPlan};
use crate::pty::{Pty, PtyMaster};
use crate::spawn_error::{SpawnError, explain, failed, no_pty, open_stdin};
use crate::{limit, pty};

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
    /// From this file, which is opened for this process alone. A path that does not begin with a
    /// slash begins where we are.
    File(PathBuf),
}

/// The process group of a process: who is signalled together with it, see setpgid(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessGroup {
    /// Ours. What the terminal sends to us, it sends to the process as well.
    #[default]
    Inherit,
    /// One of its own: its children are signalled with it, and it takes no part in our terminal's
    /// job control. If it reads our terminal it is stopped (SIGTTIN).
    Own,
}

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct ProcessSpec {
    /// A path, or a name to be looked up in the `PATH` that it is going to have. A path that does
    /// not begin with a slash begins at `cwd`.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Added to this process's environment, in place of what has the same name; the last of equal
    /// names counts.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts; where we are if `None`.
    pub cwd: Option<PathBuf>,
    /// Its standard input.
    pub stdin: Stdin,
    /// Its process group.
    pub group: ProcessGroup,
    /// A pseudo-terminal for its standard input, stdout and stderr. The process leads a session of
    /// its own, whose controlling terminal this is, so it has a process group of its own as
    /// well. With [`Stdin::Null`] its input is at its end, otherwise, whatever `stdin` says, it
    /// is what is typed at [`Spawned::pty`].
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
    /// Ours if `None`.
    stdin: Option<OwnedFd>,
    pushed: Option<OwnedFd>,
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    pty: Option<PtyMaster>,
}

impl Stdio {
    fn pipes(program: &Path, stdin: &Stdin) -> Result<Stdio, SpawnError> {
        let (stdin, pushed) = match stdin {
            Stdin::Inherit => (None, None),
            Stdin::Null => {
                let null =
                    File::open("/dev/null").map_err(|error| failed(program, "open /dev/null", error))?;
                (Some(null.into()), None)
            }
            Stdin::Pipe => {
                let (read, write) = pipe(program)?;
                (Some(read), Some(write))
            }
            Stdin::File(path) => (Some(open_stdin(program, path)?.into()), None),
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
            stdin: Some(stdin),
            pushed: None,
            stdout: (ours, stdout),
            stderr: (nothing, stderr),
            pty: Some(master),
        })
    }
}

/// Starts a process.
///
/// It has pipes for stdout, stderr and stddiag, or a pty, and no other descriptors of ours unless
/// they were made to be inherited. It stays in our session, unless it has a pty. It starts with no
/// signal blocked, SIGPIPE, SIGCHLD and SIGXFSZ at their defaults, and the soft limit on open files
/// from before [`raise_file_limit`](crate::raise_file_limit). May be called from any thread, by
/// several at once.
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
    // None among the first three, which each becomes.
    let above = |end| above_stdio(end).map_err(|error| failed(&program, "fcntl", error));
    let stddiag_child = above(stddiag_child)?;
    let seat = reserve_stddiag_fd().unwrap_or(stddiag_child.as_raw_fd());
    let mut env: BTreeMap<OsString, OsString> = env::vars_os().collect();
    env.extend(spec.env);
    env.insert(STDDIAG_FD.into(), seat.to_string().into());
    let group = match spec.group {
        // Who leads a group can't begin a session.
        _ if spec.pty.is_some() => ChildGroup::Session,
        ProcessGroup::Own => ChildGroup::Own,
        ProcessGroup::Inherit => ChildGroup::Inherit,
    };
    let plan = ExecPlan {
        program: &spec.program,
        args: &spec.args,
        env,
        cwd: spec.cwd.as_deref(),
        stdin: stdio.stdin.map(above).transpose()?,
        stdout: above(stdout_child)?,
        stderr: above(stderr_child)?,
        stddiag: stddiag_child,
        stddiag_number: seat,
        group,
        files: limit::for_children(),
    };
    // This closes our copies of the write ends, or the pipes would never end.
    let started = exec::start(plan);
    let (pid, pidfd) = started.map_err(|error| explain(&program, spec.cwd.as_deref(), error))?;
    let child = Child::started(pid, pidfd, group != ChildGroup::Inherit);
    Ok(Spawned { child, stdin: stdio.pushed, stdout, stderr, stddiag, pty: stdio.pty })
}

fn pipe(program: &Path) -> Result<(OwnedFd, OwnedFd), SpawnError> {
    pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(program, "pipe2", error.into()))
}

/// A descriptor number that shells can name (dash knows one digit), held by this process from the
/// first call on, so that in a child stddiag can take its place and nothing else is there. `None`
/// if all such numbers were taken when it was first asked for.
pub(crate) fn reserve_stddiag_fd() -> Option<RawFd> {
    static SEAT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let seat = SEAT.get_or_init(|| {
        let null = File::open("/dev/null").ok()?;
        let seat = above_stdio(null.into()).ok()?;
        (seat.as_raw_fd() <= 9).then_some(seat)
    });
    seat.as_ref().map(AsRawFd::as_raw_fd)
}

fn above_stdio(end: OwnedFd) -> io::Result<OwnedFd> {
    if end.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(end);
    }
    let copy = fcntl(&end, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: fcntl just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
