//! Calls of ioctl(2) for which nix has no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the number of bytes that can be read from `file` without waiting, see FIONREAD in
/// ioctl(2), pipe(7) and unix(7).
pub(crate) fn unread(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int, to `bytes`, which outlives it.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Changes the rows and columns of a terminal, see TIOCSWINSZ in ioctl_tty(2).
pub(crate) fn set_window_size(terminal: BorrowedFd<'_>, (rows, columns): (u16, u16)) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one winsize, `size`, which outlives it.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Opens the slave side of a pseudo-terminal without using its path, see TIOCGPTPEER in
/// ioctl_tty(2).
pub(crate) fn open_slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the argument is a number. The call returns a new descriptor or -1.
    let slave = checked(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}

/// Makes the terminal on descriptor 0 the controlling terminal of the calling process, which must
/// lead a session without one, see TIOCSCTTY in ioctl_tty(2). Async-signal-safe.
pub(crate) fn control_by_stdin() -> io::Result<()> {
    // SAFETY: the arguments are numbers.
    checked(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) }).map(drop)
}
