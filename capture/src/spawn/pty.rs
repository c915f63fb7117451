//! Pseudo-terminals, see pty(7): the slave is a process's terminal, the caller holds the master.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use iof_proto::{Pty, WindowSize};
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, unlockpt};
use nix::sys::termios::{
    InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::write;

use crate::ioctl;

/// The largest number of bytes of a line of data that a terminal gets at a time. In canonical mode
/// it cuts a line of more than 4095 bytes, see termios(3).
const LINE_PIECE: usize = 1024;

/// A converter from input to the keys that type it at a terminal.
#[derive(Debug, Default)]
pub struct InputKeys {
    /// The number of bytes that the terminal has not passed on to the process, because it waits for
    /// the end of their line.
    held: usize,
}

impl InputKeys {
    /// Returns the keys that type `input` at the terminal. These are its bytes, except at a terminal
    /// for [data](Pty::data) in canonical mode. Characters that would edit the line are quoted
    /// there, and a long line is passed on in pieces.
    ///
    /// # Errors
    /// The kernel's error, see tcgetattr(3).
    pub fn of(&mut self, input: &[u8], master: &PtyMaster) -> io::Result<Vec<u8>> {
        let Termios { local_flags, control_chars, .. } = tcgetattr(&master.file)?;
        let cuts = master.is_data && local_flags.contains(LocalFlags::ICANON);
        let key = |index: SpecialCharacterIndices| control_chars[index as usize];
        let quotes =
            cuts && local_flags.contains(LocalFlags::IEXTEN) && key(SpecialCharacterIndices::VLNEXT) != 0;
        let mut keys = Vec::with_capacity(input.len());
        for &byte in input {
            if quotes && byte != b'\n' && (byte == b'\r' || control_chars.contains(&byte)) {
                keys.push(key(SpecialCharacterIndices::VLNEXT));
            }
            keys.push(byte);
            let ends_line = byte == b'\n' || (byte == b'\r' && !quotes);
            self.held = if ends_line { 0 } else { self.held.saturating_add(1) };
            if cuts && self.held >= LINE_PIECE {
                // Within a line, this key only passes on what was typed before.
                keys.push(key(SpecialCharacterIndices::VEOF));
                self.held = 0;
            }
        }
        Ok(keys)
    }

    /// Returns the keys that end the input.
    ///
    /// # Errors
    /// The kernel's error, see tcgetattr(3).
    pub fn end(&self, master: &PtyMaster) -> io::Result<Vec<u8>> {
        // Within a line, the first end key only ends the line.
        Ok(vec![master.end_key()?; if self.held == 0 { 1 } else { 2 }])
    }
}

/// The master side of a pseudo-terminal, in non-blocking mode.
#[derive(Debug)]
pub struct PtyMaster {
    file: OwnedFd,
    is_data: bool,
}

impl PtyMaster {
    /// Changes the size. The terminal's foreground process group gets SIGWINCH, see ioctl_tty(2).
    ///
    /// # Errors
    /// The kernel's error, see ioctl_tty(2).
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        ioctl::set_window_size(self.file.as_fd(), (size.rows, size.columns))
    }

    /// Types `keys` at the terminal. Returns how many bytes the terminal took.
    ///
    /// # Errors
    /// `EAGAIN` while the terminal has no room because no process reads it, `EIO` when no process
    /// has the terminal open any more.
    pub fn type_keys(&self, keys: &[u8]) -> io::Result<usize> {
        Ok(write(&self.file, keys)?)
    }

    /// Returns the end-of-file key. Typed at the beginning of a line, it ends the input of the
    /// process that reads next, see VEOF in termios(3).
    ///
    /// # Errors
    /// The kernel's error, see tcgetattr(3).
    pub fn end_key(&self) -> io::Result<u8> {
        Ok(tcgetattr(&self.file)?.control_chars[SpecialCharacterIndices::VEOF as usize])
    }

    /// Returns another handle to the same terminal. The terminal is not hung up while a handle is
    /// open.
    ///
    /// # Errors
    /// The kernel's error if this process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<PtyMaster> {
        Ok(PtyMaster { file: self.file.try_clone()?, ..*self })
    }
}

impl AsFd for PtyMaster {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<PtyMaster> for OwnedFd {
    fn from(master: PtyMaster) -> OwnedFd {
        master.file
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
    if pty.data {
        settings.local_flags.remove(LocalFlags::ISIG);
        settings.input_flags.remove(InputFlags::IXON);
    }
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    let master = PtyMaster { file: master.into(), is_data: pty.data };
    master.resize(pty.size)?;
    Ok((master, slave))
}
