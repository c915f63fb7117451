//! Pseudo-terminals, see pty(7): the slave is a process's terminal, the caller holds the master.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use nix::sys::termios::{
    InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr,
};
use nix::unistd::write;

use crate::ioctl;

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let (rows, columns) = ioctl::window_size(file.as_fd())?;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pty {
    /// The initial size.
    pub size: WindowSize,
    /// Whether input is echoed as output, as an interactive user expects.
    pub echo: bool,
}

/// The master side of a pseudo-terminal, in non-blocking mode.
#[derive(Debug)]
pub struct PtyMaster(OwnedFd);

impl PtyMaster {
    /// Changes the size. The terminal's foreground process group gets SIGWINCH, see ioctl_tty(2).
    ///
    /// # Errors
    /// The kernel's error, see ioctl_tty(2).
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        ioctl::set_window_size(self.0.as_fd(), (size.rows, size.columns))
    }

    /// Types `keys` at the terminal. Returns how many bytes the terminal took.
    ///
    /// # Errors
    /// `EAGAIN` while the terminal has no room because no process reads it, `EIO` when no process
    /// has the terminal open any more.
    pub fn type_keys(&self, keys: &[u8]) -> io::Result<usize> {
        Ok(write(&self.0, keys)?)
    }

    /// Returns the end-of-file key. Typed at the beginning of a line, it ends the input of the
    /// process that reads next, see VEOF in termios(3).
    ///
    /// # Errors
    /// The kernel's error, see tcgetattr(3).
    pub fn end_key(&self) -> io::Result<u8> {
        Ok(tcgetattr(&self.0)?.control_chars[SpecialCharacterIndices::VEOF as usize])
    }

    /// Returns another handle to the same terminal. The terminal is not hung up while a handle is
    /// open.
    ///
    /// # Errors
    /// The kernel's error if this process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<PtyMaster> {
        self.0.try_clone().map(PtyMaster)
    }
}

impl AsFd for PtyMaster {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PtyMaster> for OwnedFd {
    fn from(master: PtyMaster) -> OwnedFd {
        master.0
    }
}

/// Opens a pseudo-terminal and returns its master and its slave.
pub(crate) fn open(pty: Pty) -> io::Result<(PtyMaster, OwnedFd)> {
    // Non-blocking, for `type_keys`, and because the io_uring of some kernels blocks the submitting
    // thread in a read from a blocking terminal, so that nothing else is read meanwhile: Linux 5.12
    // does (liburing issue 354), 6.18 does not.
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let master = posix_openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl::open_slave(master.as_fd())?;
    let mut settings = tcgetattr(&slave)?;
    settings.output_flags.remove(OutputFlags::ONLCR);
    settings.input_flags.insert(InputFlags::IUTF8);
    settings.local_flags.set(LocalFlags::ECHO, pty.echo);
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    let master = PtyMaster(master.into());
    master.resize(pty.size)?;
    Ok((master, slave))
}
