//! The specification of a process: its program, environment, stdin and process group.

use std::ffi::OsString;
use std::path::PathBuf;

use iof_proto::{ProcessGroup, Pty, Stdin};

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
