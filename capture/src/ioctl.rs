//! What is asked of descriptors by ioctl(2), for which nix has no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::pty::WindowSize;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Bytes that can be read from `file` at once, see FIONREAD in ioctl(2), pipe(7) and unix(7).
pub(crate) fn unread(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int, to `bytes`, which outlives it.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// The size of a terminal, see TIOCGWINSZ in ioctl_tty(2).
pub(crate) fn window_size(terminal: BorrowedFd<'_>) -> io::Result<WindowSize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes one winsize, to `size`, which outlives it.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// Changes the size of a terminal, see TIOCSWINSZ in ioctl_tty(2).
pub(crate) fn set_window_size(terminal: BorrowedFd<'_>, size: WindowSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one winsize, `size`, which outlives it.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Opens the other side of a pseudo-terminal, without looking for its name, see TIOCGPTPEER in
/// ioctl_tty(2).
pub(crate) fn open_slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a plain number in, a new descriptor or -1 out.
    let slave = checked(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}

/// Makes the terminal on descriptor 0 the controlling terminal of the caller, who leads a session
/// that has none, see TIOCSCTTY in ioctl_tty(2). Async-signal-safe.
pub(crate) fn control_by_stdin() -> io::Result<()> {
    // SAFETY: plain numbers.
    checked(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) }).map(drop)
}
