//! The specification of a process: its program, stdin and process group.

use std::ffi::OsString;

use iof_proto::{App, ProcessGroup, Pty, Stdin};

/// A program to start, and its standard input.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// The program, with its arguments, environment and directory. With [`App::merge_stderr`], stderr in
    /// [`Spawned::outputs`](crate::Spawned::outputs) is at the end of file.
    pub app: App,
    /// The standard input.
    pub stdin: Stdin,
    /// The process group.
    pub group: ProcessGroup,
    /// A pseudo-terminal for stdin, stdout and stderr. The child then leads a new session, whose
    /// controlling terminal it is, and so also a new process group. With [`Stdin::Null`], the
    /// terminal's input is at the end of file. With any other `stdin`, the input is what is typed
    /// at [`Spawned::pty`](crate::Spawned::pty).
    pub pty: Option<Pty>,
}

impl ProcessSpec {
    /// Returns a spec of `program` with `args`, with the environment, directory and process group
    /// of this process, and with /dev/null as standard input.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> ProcessSpec {
        App::new(program, args).into()
    }
}

impl From<App> for ProcessSpec {
    fn from(app: App) -> ProcessSpec {
        ProcessSpec { app, stdin: Stdin::default(), group: ProcessGroup::default(), pty: None }
    }
}
