//! The size of a terminal, for which nix has no safe call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// Returns the rows and columns of a terminal, see TIOCGWINSZ in ioctl_tty(2).
pub(crate) fn window_size(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes one winsize, to `size`, which outlives it.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((size.ws_row, size.ws_col)) }
}
