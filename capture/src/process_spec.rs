//! The specification of a process: its program, environment, stdin and process group.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::pty::Pty;

/// The standard input of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    /// The standard input of this process.
    Inherit,
    /// /dev/null, which is at the end of file.
    #[default]
    Null,
    /// A pipe, whose write end is [`Spawned::stdin`](crate::Spawned::stdin).
    Pipe,
    /// A file, which is opened separately for each child. A relative path starts at the current
    /// directory of this process.
    File(PathBuf),
}

/// The process group of a child: the processes that are signalled together with it, see setpgid(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessGroup {
    /// The group of this process. Signals that the terminal sends to this process also reach the
    /// child.
    #[default]
    Inherit,
    /// A new group, led by the child. The child's own children are signalled with it, and the group
    /// is in the background of this process's terminal. A child that reads that terminal is stopped
    /// (SIGTTIN).
    Own,
}

/// A program to start, with its arguments, environment and standard input.
#[derive(Clone, Debug, Default)]
pub struct ProcessSpec {
    /// The program: a path, or a name to look up in the child's `PATH`. A relative path starts at
    /// `cwd`.
    pub program: OsString,
    /// The arguments, without the program's own name.
    pub args: Vec<OsString>,
    /// Variables that are added to this process's environment or replace variables in it. If a name
    /// occurs more than once, the last value is used.
    pub env: Vec<(OsString, OsString)>,
    /// The directory in which the child starts; the current directory of this process if `None`.
    pub cwd: Option<PathBuf>,
    /// The standard input.
    pub stdin: Stdin,
    /// The process group.
    pub group: ProcessGroup,
    /// A pseudo-terminal for stdin, stdout and stderr. The child then leads a new session, whose
    /// controlling terminal it is, and so also a new process group. With [`Stdin::Null`], the
    /// terminal's input is at the end of file. With any other `stdin`, the input is what is typed
    /// at [`Spawned::pty`](crate::Spawned::pty).
    pub pty: Option<Pty>,
    /// Whether stderr is the pipe of stdout, as with `2>&1` in a shell, so that both are read in
    /// the order of the writes. [`Spawned::stderr`](crate::Spawned::stderr) is then at the end of
    /// file. With a pty this is so in any case.
    pub merge_stderr: bool,
}

impl ProcessSpec {
    /// Returns a spec of `program` with `args`, with the environment, directory and process group
    /// of this process, and with /dev/null as standard input.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> ProcessSpec {
        let args = args.into_iter().map(Into::into).collect();
        ProcessSpec { program: program.into(), args, ..ProcessSpec::default() }
    }
}
