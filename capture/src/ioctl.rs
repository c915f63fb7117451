//! What is asked of descriptors by ioctl(2), for which nix has no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that can be read from `file` at once, see FIONREAD in ioctl(2), pipe(7) and unix(7).
pub(crate) fn unread(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int, to `bytes`, which outlives it.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(bytes).unwrap_or(0)) }
}
