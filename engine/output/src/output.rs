//! The destination that lines of many streams share: a file, a pipe or a terminal.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::sys::uio::writev;

use crate::style::OpenLine;

/// The largest number of slices that one writev(2) takes.
const IOV_MAX: usize = 1024;
/// The largest number of bytes in one write to an output whose writes are watched. A larger write
/// to a slow reader would take long although the reader makes progress.
const WATCHED_WRITE: usize = 4096;

/// A file, pipe or terminal to which one or several printers write whole lines.
///
/// Its descriptor may be in blocking or non-blocking mode, which is not changed. An output counts
/// as shared while a clone of it exists, or another output of the same file that [`Output::beside`]
/// created. A printer of a shared output writes a part of a line only if its end is late (see
/// [`FlushTimeout`](crate::FlushTimeout)).
#[derive(Clone, Debug)]
pub struct Output {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<OpenLine>>,
    /// A counter of the outputs of this file: each holds one reference.
    shared: Arc<()>,
    watch: Option<WriteWatch>,
}

/// Shows whether a write to an [`Output`] is blocked, see [`Output::watch_writes`].
#[derive(Clone, Debug, Default)]
pub struct WriteWatch(Arc<Mutex<Option<Instant>>>);

impl WriteWatch {
    /// Returns when the present write of at most 4 KiB began; `None` if nothing is being written.
    ///
    /// While the same time is returned, the output has not accepted these bytes.
    pub fn blocked_since(&self) -> Option<Instant> {
        *lock(&self.0)
    }

    /// Writes all bytes of `slices`, in writes of at most [`WATCHED_WRITE`] bytes.
    fn write_all(&self, file: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let pieces = slices.iter().flat_map(|slice| slice.chunks(WATCHED_WRITE));
        let written = pieces.into_iter().try_for_each(|piece| {
            *lock(&self.0) = Some(Instant::now());
            write_all(file, &mut [IoSlice::new(piece)])
        });
        *lock(&self.0) = None;
        written
    }
}

/// A writer of a program's own messages to the file of an [`Output`].
///
/// Each call of [`Write::write`] must pass whole lines. They are not mixed with the lines of
/// printers: if a printer has written a part of a line, that line is ended first. A call blocks
/// until the lines are written.
#[derive(Clone, Debug)]
pub struct Notes {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<OpenLine>>,
    watch: Option<WriteWatch>,
}

impl Output {
    /// Creates an output that writes to a duplicate of `file`'s descriptor.
    ///
    /// # Errors
    /// Fails if the process can open no further descriptor.
    pub fn new(file: impl AsFd) -> io::Result<Output> {
        let file = Arc::new(file.as_fd().try_clone_to_owned()?);
        Ok(Output { file, open: Arc::default(), shared: Arc::default(), watch: None })
    }

    /// Watches the writes to this output from now on, by which a program can notice a reader that
    /// accepts nothing. Clones, [notes](Output::notes) and outputs of the [same
    /// file](Output::beside) that are created later are watched, too.
    /// Watched bytes are written in pieces of at most 4 KiB, which costs more system calls.
    pub fn watch_writes(&mut self) -> WriteWatch {
        self.watch.get_or_insert_default().clone()
    }

    /// Creates an output for `file`. If `file` is the same file as that of this output, as when
    /// stdout and stderr are one terminal, neither output writes into the middle of the other's
    /// lines.
    ///
    /// # Errors
    /// Fails if the process can open no further descriptor.
    pub fn beside(&self, file: impl AsFd) -> io::Result<Output> {
        let same = is_same(self.file.as_fd(), file.as_fd());
        let other = Output::new(file)?;
        Ok(if same { Output { file: other.file, ..self.clone() } } else { other })
    }

    /// Returns whether `other` writes to the same file and was created from this output by
    /// [`Output::beside`] or by cloning. One [`Printer`](crate::Printer) should then write the
    /// streams of both, because only streams of one printer are written in the order in which they
    /// were read.
    pub fn is_same_file(&self, other: &Output) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }

    /// Creates a writer for the program's own messages. It does not make the output count as
    /// shared.
    pub fn notes(&self) -> Notes {
        Notes { file: Arc::clone(&self.file), open: Arc::clone(&self.open), watch: self.watch.clone() }
    }

    /// Returns whether other printers may write to the file, too.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Locks the file: no other output or message is written to it while the guard exists.
    pub(crate) fn lock(&self) -> MutexGuard<'_, OpenLine> {
        lock(&self.open)
    }

    /// Writes all bytes of `slices`. Blocks until they are written.
    pub(crate) fn write(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        write(self.file.as_fd(), self.watch.as_ref(), slices)
    }
}

impl Write for Notes {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut open = lock(&self.open);
        let end: &[u8] = if open.take().is_some() { b"\n" } else { b"" };
        let slices = &mut [IoSlice::new(end), IoSlice::new(lines)];
        write(self.file.as_fd(), self.watch.as_ref(), slices)?;
        Ok(lines.len())
    }

    /// Does nothing: messages are not buffered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    matches!((fstat(one), fstat(other)), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn write(file: BorrowedFd<'_>, watch: Option<&WriteWatch>, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    match watch {
        Some(watch) => watch.write_all(file, slices),
        None => write_all(file, slices),
    }
}

/// Writes all bytes of `slices` to `file`. Blocks until they are written, also in non-blocking
/// mode.
pub(crate) fn write_all(file: BorrowedFd<'_>, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let batch = slices.get(..IOV_MAX).unwrap_or(slices);
        match writev(file, batch) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => wait_writable(file)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Blocks until `file` can be written or its reader has gone.
fn wait_writable(file: BorrowedFd<'_>) -> io::Result<()> {
    match poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
