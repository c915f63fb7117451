//! Starts processes with a pipe on each output channel.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use iof_proto::{App, Channel, ProcessGroup, Pty, Stdin};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use self::environment::BaseEnvironment;
use self::exec::{ChildGroup, ExecPlan};
use self::first_writes::FirstWrites;
use self::process_spec::ProcessSpec;
use self::pty::PtyMaster;
use self::seats::SEATS;
use self::spawn_error::{SpawnError, failed, no_pty, open_stdin, spawn_failed};
use crate::process::child::Child;
use crate::process::guardian::Guardian;
use crate::process::limit;

pub(crate) mod environment;
pub(crate) mod exec;
pub(crate) mod first_writes;
pub(crate) mod process_spec;
pub(crate) mod processors;
pub(crate) mod program;
pub(crate) mod pty;
pub(crate) mod seats;
pub(crate) mod spawn_error;

/// A process that was started, and this process's ends of its pipes.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub child: Child,
    /// The write end of the pipe at descriptor 0, with [`Stdin::Pipe`] and without a pty.
    pub stdin: Option<OwnedFd>,
    /// The read ends of the pipes of its output channels, in the order of [`Channel::OUTPUTS`]. With
    /// a pty, that of stdout is the pty's master. With a pty or
    /// [`App::merge_stderr`](iof_proto::App::merge_stderr), that of stderr is at the end of file.
    pub outputs: Vec<OwnedFd>,
    /// The pty's master, for typing and for changing the size.
    pub pty: Option<PtyMaster>,
}

/// A file that a process inherits besides those of its channels.
#[derive(Debug)]
pub struct PassedFile {
    /// The file. This process's descriptor, which has the close-on-exec flag, is closed at the
    /// start.
    pub file: OwnedFd,
    /// The environment variable that tells the process the number of the file.
    pub variable: OsString,
}

/// Both ends of a child's standard files.
struct Stdio {
    /// The child's end; `None` to inherit this process's stdin.
    stdin: Option<OwnedFd>,
    /// The write end of the child's stdin, if that is a pipe.
    stdin_writer: Option<OwnedFd>,
    /// The read end and the child's end.
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    pty: Option<PtyMaster>,
}

impl Stdio {
    fn pipes(program: &Path, stdin: &Stdin, merge_stderr: bool) -> Result<Stdio, SpawnError> {
        let (stdin, stdin_writer) = match stdin {
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
        let (stdout, mut stderr) = (pipe(program)?, pipe(program)?);
        if merge_stderr {
            // Closes the write end of the other pipe, which is then at the end of file.
            stderr.1 = stdout.1.try_clone().map_err(|error| failed(program, "fcntl", error))?;
        }
        Ok(Stdio { stdin, stdin_writer, stdout, stderr, pty: None })
    }

    fn terminal(program: &Path, stdin: &Stdin, pty: Pty) -> Result<Stdio, SpawnError> {
        let open = || {
            let (master, slave) = pty::open(pty)?;
            if *stdin == Stdin::Null {
                master.type_keys(&[master.end_key()?])?;
            }
            Ok((master.try_clone()?, master.into(), slave.try_clone()?, slave.try_clone()?, slave))
        };
        let (master, output, stdin, stdout, stderr) = open().map_err(|error| no_pty(program, error))?;
        // The write end is closed here, so the pipe is at the end of file.
        let (empty, _) = pipe(program)?;
        Ok(Stdio {
            stdin: Some(stdin),
            stdin_writer: None,
            stdout: (output, stdout),
            stderr: (empty, stderr),
            pty: Some(master),
        })
    }
}

/// Starts a process as a [`Spawner`] does, but with a copy of the descriptor table: to find out
/// which descriptors it inherits pays only for many processes.
///
/// # Errors
/// [`SpawnError`]. No process runs then.
pub fn spawn(spec: ProcessSpec) -> Result<Spawned, SpawnError> {
    let environment = BaseEnvironment::current();
    Spawner { environment, above_inheritable: None, first_writes: None, guardian: None }.spawn(spec, None)
}

/// Starts a process besides the ranks, such as one that connects to another node: with these standard
/// files. It leads a process group of its own, which `guardian`
/// ends if this process is killed. Otherwise it starts as with a [`Spawner`].
///
/// # Errors
/// The error of clone(2), execve(2) or a call between the two. No process runs then.
pub fn spawn_helper(app: &App, files: [OwnedFd; 3], guardian: Option<&Guardian>) -> io::Result<Child> {
    let environment = BaseEnvironment::current();
    let mut ends = [const { None }; SEATS];
    for ((end, file), number) in ends.iter_mut().zip(files).zip(0..) {
        *end = Some((above_stdio(file)?, number));
    }
    let plan = ExecPlan {
        app,
        env: environment.with(app.env.iter().cloned())?,
        ends,
        group: ChildGroup::Own,
        files: limit::for_children(),
        guardian,
        above_inheritable: None,
    };
    let (pid, pidfd) = exec::start(plan)?;
    Ok(Child::started(pid, pidfd, true))
}

/// Starts processes, all with the environment that this process has when the spawner is created.
///
/// Each process has a pipe for each output channel, or a pty for stdout and stderr. It also
/// inherits the descriptors that had no close-on-exec flag when the spawner was created, and
/// perhaps others that have none at the start. It stays in the session of this process, unless it
/// has a pty. It starts with no signal blocked, with the default actions of SIGPIPE, SIGCHLD and
/// SIGXFSZ, and with the soft limit on open files from before
/// [`raise_file_limit`](crate::raise_file_limit). May be used from several threads at once.
///
/// While it executes its program, a process shares the descriptor table of this process. If the
/// environment variable `IOF_SPAWN_TABLE` is `copied`, or the kernel refuses to share it, it starts
/// with a copy of the table instead, which takes longer if this process has many open files.
#[derive(Debug)]
pub struct Spawner {
    environment: BaseEnvironment,
    above_inheritable: Option<RawFd>,
    first_writes: Option<FirstWrites>,
    guardian: Option<Arc<Guardian>>,
}

impl Default for Spawner {
    fn default() -> Self {
        Spawner::new()
    }
}

impl Spawner {
    /// Creates a spawner.
    pub fn new() -> Spawner {
        seats::reserve();
        Spawner {
            environment: BaseEnvironment::current(),
            above_inheritable: seats::above_inheritable(),
            first_writes: None,
            guardian: None,
        }
    }

    /// Creates a spawner that watches the pipes of each process from before its start, for
    /// [`Command::Add`](crate::Command::Add).
    pub fn watching(first_writes: Option<FirstWrites>) -> Spawner {
        Spawner { first_writes, ..Spawner::new() }
    }

    /// Returns the watch on the pipes; `None` if the spawner does not watch them.
    pub fn first_writes(&self) -> Option<&FirstWrites> {
        self.first_writes.as_ref()
    }

    /// Lets `guardian` end the processes, and the process groups that they lead, if this process is
    /// killed.
    pub fn guarded_by(self, guardian: Option<Arc<Guardian>>) -> Spawner {
        Spawner { guardian, ..self }
    }

    /// Hides variables of this process's environment from the processes: all whose names
    /// `is_hidden` selects.
    pub fn hiding(mut self, is_hidden: impl Fn(&OsStr) -> bool) -> Spawner {
        self.environment.hide(is_hidden);
        self
    }

    /// Starts a process, which inherits `passed`. Blocks until it has executed its program.
    ///
    /// # Errors
    /// [`SpawnError`]. No process runs then.
    pub fn spawn(&self, spec: ProcessSpec, passed: Option<PassedFile>) -> Result<Spawned, SpawnError> {
        let app = &spec.app;
        let program = PathBuf::from(&app.program);
        let stdio = match spec.pty {
            None => Stdio::pipes(&program, &spec.stdin, app.merge_stderr)?,
            Some(pty) => Stdio::terminal(&program, &spec.stdin, pty)?,
        };
        let (stdout, stderr) = (stdio.stdout, stdio.stderr);
        // Each with its number in the child, unless that is its own one, and the variable of the number.
        let stdio_files = [stdio.stdin, Some(stdout.1), Some(stderr.1)].into_iter().zip(0..);
        let mut files: Vec<(OwnedFd, Option<RawFd>, Option<OsString>)> =
            stdio_files.filter_map(|(file, number)| Some((file?, Some(number), None))).collect();
        let mut outputs = vec![stdout.0, stderr.0];
        for (channel, number) in Channel::FURTHER.into_iter().zip(reserve_channel_fds()) {
            let (output, child) = pipe(&program)?;
            outputs.push(output);
            files.push((child, number, Some(channel.variable().into())));
        }
        files
            .extend(passed.map(|PassedFile { file, variable }| (file, seats::last_number(), Some(variable))));
        if let Some(first_writes) = &self.first_writes {
            outputs.iter().for_each(|pipe| first_writes.watch(pipe.as_fd()));
        }
        let (mut ends, mut numbers) = ([const { None }; SEATS], Vec::new());
        for (end, (file, number, variable)) in ends.iter_mut().zip(files) {
            // No descriptor may have one of the numbers 0 to 2, which the child overwrites one after
            // the other.
            let file = above_stdio(file).map_err(|error| failed(&program, "fcntl", error))?;
            let number = number.unwrap_or(file.as_raw_fd());
            numbers.extend(variable.map(|variable| (variable, OsString::from(number.to_string()))));
            *end = Some((file, number));
        }
        let cwd = app.cwd.as_deref();
        let env = self.environment.with(app.env.iter().cloned().chain(numbers));
        let group = match spec.group {
            // setsid(2) fails for the leader of a group, and creates a group anyway.
            _ if spec.pty.is_some() => ChildGroup::Session,
            ProcessGroup::Own => ChildGroup::Own,
            ProcessGroup::Inherit => ChildGroup::Inherit,
        };
        let plan = ExecPlan {
            app,
            env: env.map_err(|error| spawn_failed(&program, cwd, error.into()))?,
            ends,
            group,
            files: limit::for_children(),
            guardian: self.guardian.as_deref(),
            above_inheritable: self.above_inheritable,
        };
        // This closes this process's copies of the child's ends. Otherwise the pipes would never
        // end.
        let started = exec::start(plan);
        let (pid, pidfd) = started.map_err(|error| spawn_failed(&program, cwd, error))?;
        let child = Child::started(pid, pidfd, group != ChildGroup::Inherit);
        Ok(Spawned { child, stdin: stdio.stdin_writer, outputs, pty: stdio.pty })
    }
}

fn pipe(program: &Path) -> Result<(OwnedFd, OwnedFd), SpawnError> {
    pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(program, "pipe2", error.into()))
}

/// Reserves a descriptor number for each of [`Channel::FURTHER`] that shells can name (dash supports
/// one digit), and returns them. This process keeps the numbers in use from the first call on, so that
/// in a child the channels can take their places and no other inherited descriptor has them. A number
/// is `None` if all such numbers were in use at the first call.
pub fn reserve_channel_fds() -> [Option<RawFd>; Channel::FURTHER.len()] {
    static RESERVED: OnceLock<[Option<OwnedFd>; Channel::FURTHER.len()]> = OnceLock::new();
    let reserve = |_| {
        let null = File::open("/dev/null").ok()?;
        let reserved = above_stdio(null.into()).ok()?;
        (reserved.as_raw_fd() <= 9).then_some(reserved)
    };
    let reserved = RESERVED.get_or_init(|| Channel::FURTHER.map(reserve));
    reserved.each_ref().map(|number| number.as_ref().map(AsRawFd::as_raw_fd))
}

/// Moves a descriptor above the numbers 0 to 2, if it has one of them.
fn above_stdio(end: OwnedFd) -> io::Result<OwnedFd> {
    if end.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(end);
    }
    let copy = fcntl(&end, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: fcntl has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
