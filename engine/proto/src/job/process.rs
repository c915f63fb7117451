//! The stdin, the process group and the pseudo-terminal of a process that is to be started.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::job::path;
use crate::job::window_size::window_size;

/// The standard input of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// The standard input of this process.
    Inherit,
    /// /dev/null, which is at the end of file.
    #[default]
    Null,
    /// A pipe, whose write end the starter has.
    Pipe,
    /// A file, which is opened separately for each child. A relative path starts at the current
    /// directory of this process.
    File(#[serde(with = "path")] PathBuf),
}

/// The process group of a child: the processes that are signalled together with it, see setpgid(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// The number of lines.
    pub rows: u16,
    /// The number of characters in a line.
    pub columns: u16,
}

impl WindowSize {
    /// Returns the size of the terminal `file`, see TIOCGWINSZ in ioctl_tty(2). Both numbers are 0
    /// if the terminal does not know its size.
    ///
    /// # Errors
    /// `ENOTTY` if `file` is not a terminal.
    pub fn of(file: impl AsFd) -> io::Result<WindowSize> {
        let (rows, columns) = window_size(file.as_fd())?;
        Ok(WindowSize { rows, columns })
    }
}

impl Default for WindowSize {
    /// Returns 24 lines of 80 characters, which programs assume when the size is unknown.
    fn default() -> Self {
        WindowSize { rows: 24, columns: 80 }
    }
}

/// The settings of a pseudo-terminal for a process. They are those of a new terminal, with one
/// exception: newlines are not translated on output (no ONLCR, see termios(3)), so that the bytes
/// that are read are the bytes that the process has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// The initial size.
    pub size: WindowSize,
    /// `true` if input is echoed as output, as an interactive user expects.
    pub echo: bool,
    /// Marks input as data, which the process is to read unchanged: control characters neither send
    /// signals nor stop the output (no ISIG and IXON, see termios(3)), and `InputKeys` quotes them.
    pub data: bool,
}
