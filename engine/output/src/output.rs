//! Where lines of many streams come together: a file, a pipe, a terminal.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::sys::uio::writev;

use crate::style::Open;

/// Slices that one writev(2) takes.
const IOV_MAX: usize = 1024;

/// A descriptor to which printers write whole lines, of one printer or of several.
///
/// It may be in blocking or non-blocking mode, and stays as it is. As long as there is a copy of
/// it, or one [beside](Output::beside) it that is the same file, others may write there.
#[derive(Clone, Debug)]
pub struct Output {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<Open>>,
    /// One for each output that is this file.
    outputs: Arc<()>,
}

/// The file of an [`Output`], for lines that are no output: messages about it.
///
/// What is written at once, whole lines, comes between two pieces of output. If the file is in the
/// middle of a line, that is ended first.
#[derive(Clone, Debug)]
pub struct Notes {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<Open>>,
}

impl Output {
    /// One for a copy of `file`'s descriptor.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(file: impl AsFd) -> io::Result<Output> {
        let file = Arc::new(file.as_fd().try_clone_to_owned()?);
        Ok(Output { file, open: Arc::default(), outputs: Arc::default() })
    }

    /// One for `file`, which never writes into the middle of this one's lines if both are the same
    /// file, as when stdout and stderr are one terminal.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn beside(&self, file: impl AsFd) -> io::Result<Output> {
        let same = is_same(self.file.as_fd(), file.as_fd());
        let other = Output::new(file)?;
        Ok(if same { Output { file: other.file, ..self.clone() } } else { other })
    }

    /// For messages; they count as none of those who may write there.
    pub fn notes(&self) -> Notes {
        Notes { file: Arc::clone(&self.file), open: Arc::clone(&self.open) }
    }

    /// Whether other printers may write there, too.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.outputs) > 1
    }

    /// Nobody else writes as long as this is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }

    /// Writes all of it.
    pub(crate) fn write(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        write_all(self.file.as_fd(), slices)
    }
}

impl Write for Notes {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut open = lock(&self.open);
        let end: &[u8] = if open.take().is_some() { b"\n" } else { b"" };
        write_all(self.file.as_fd(), &mut [IoSlice::new(end), IoSlice::new(lines)])?;
        Ok(lines.len())
    }

    /// Nothing waits here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    matches!((fstat(one), fstat(other)), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Writes all of `slices` to `file`, and waits for it where that is in non-blocking mode.
pub(crate) fn write_all(file: BorrowedFd<'_>, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let now = slices.get(..IOV_MAX).unwrap_or(slices);
        match writev(file, now) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => wait_writable(file)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Ends when the file's reader reads or goes away.
fn wait_writable(file: BorrowedFd<'_>) -> io::Result<()> {
    match poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
