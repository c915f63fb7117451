//! Waits that signals end.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use pyo3::prelude::*;

/// The longest time for which a signal is not noticed that arrives between a check and the wait, or that
/// another thread has closed what waits. A signal that arrives during the wait ends it at once.
pub const CHECK: Duration = Duration::from_secs(1);

/// Blocks, without the GIL, until a descriptor is readable, for `limit` or [`CHECK`] at most, or until
/// a signal arrives.
///
/// # Errors
/// The handler of a signal has raised an exception, such as KeyboardInterrupt.
pub fn wait_readable(py: Python<'_>, fd: BorrowedFd<'_>, limit: Option<Duration>) -> PyResult<()> {
    py.check_signals()?;
    let limit = limit.unwrap_or(CHECK).min(CHECK);
    match py.detach(|| ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], Some(limit.into()), None)) {
        Ok(_) | Err(Errno::EINTR) => py.check_signals(),
        Err(errno) => Err(std::io::Error::from(errno).into()),
    }
}
