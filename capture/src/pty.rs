//! Pseudo-terminals, see pty(7): one side is a process's terminal, the other is ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use nix::sys::termios::{
    InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr,
};
use nix::unistd::write;

use crate::ioctl;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl WindowSize {
    /// The size of the terminal `file`, see TIOCGWINSZ in ioctl_tty(2). A terminal that does not
    /// know it says 0.
    ///
    /// # Errors
    /// `ENOTTY` if it is none.
    pub fn of(file: impl AsFd) -> io::Result<WindowSize> {
        ioctl::window_size(file.as_fd())
    }
}

impl Default for WindowSize {
    /// 24 lines of 80 characters, which programs take for granted where nothing is known.
    fn default() -> Self {
        WindowSize { rows: 24, columns: 80 }
    }
}

/// A pseudo-terminal for a process. It is set as new terminals are, with one exception: a newline
/// goes out as it is (no ONLCR, see termios(3)), so that what is read is what the process has
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pty {
    /// Its size at first.
    pub size: WindowSize,
    /// Whether what is typed comes back as output, as somebody who sits there expects.
    pub echo: bool,
}

/// The side of a pseudo-terminal that is not the process's. It is non-blocking.
#[derive(Debug)]
pub struct PtyMaster(OwnedFd);

impl PtyMaster {
    /// Changes the size; the terminal's foreground process group gets SIGWINCH, see ioctl_tty(2).
    ///
    /// # Errors
    /// The kernel's word.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        ioctl::set_window_size(self.0.as_fd(), size)
    }

    /// Types `keys`; gives how many were taken.
    ///
    /// # Errors
    /// `EAGAIN` while the terminal has no room, because nobody reads it; `EIO` when nobody has it
    /// open any more.
    pub fn type_keys(&self, keys: &[u8]) -> io::Result<usize> {
        Ok(write(&self.0, keys)?)
    }

    /// The key that at the beginning of a line ends the input of whoever reads it next, see VEOF in
    /// termios(3).
    ///
    /// # Errors
    /// The kernel's word.
    pub fn end_key(&self) -> io::Result<u8> {
        Ok(tcgetattr(&self.0)?.control_chars[SpecialCharacterIndices::VEOF as usize])
    }

    /// Another handle for the same terminal. While there is one, the process's side is not hung up.
    ///
    /// # Errors
    /// When the process has no descriptor left.
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

/// Makes a pseudo-terminal: our side and the process's.
pub(crate) fn open(pty: Pty) -> io::Result<(PtyMaster, OwnedFd)> {
    // Non-blocking, for `type_keys`, and because the io_uring of some kernels waits for a blocking
    // terminal where it is asked to read it, so that nothing else is read meanwhile: Linux 5.12
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
