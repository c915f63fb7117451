//! The progress of the writes to an output, by which a program can notice a reader that accepts
//! nothing.

use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The largest number of bytes in one write to a watched output. A larger write to a slow reader
/// would show no progress for long. A regular file has no reader, and takes all bytes in one write.
pub(crate) const WATCHED_WRITE: usize = 64 << 10;
/// The same for an output that is watched closely.
const CLOSELY_WATCHED_WRITE: usize = 4 << 10;
/// The same for a regular file that is watched closely. Its system may be slow, but has no reader.
pub(crate) const CLOSELY_WATCHED_FILE: usize = 512 << 10;

/// Shows the progress of the writes to an output or to the files of a printer.
///
/// Created by [`Output::watch_writes`](crate::Output::watch_writes), or as a part of
/// [`Files`](crate::Files). Clones show the same output.
#[derive(Clone, Debug, Default)]
pub struct WriteWatch(Arc<Mutex<WatchState>>);

/// The progress of the writes to an output, as [`WriteWatch::progress`] returns it.
#[derive(Clone, Debug, Default)]
pub struct WriteProgress {
    /// The number of steps that were completed: parts of writes, and openings of files.
    pub steps: u64,
    /// Set if a step is under way.
    pub is_busy: bool,
    /// The bytes that were accepted of the write under way, with tags and markup.
    pub accepted: u64,
    /// The file that is being written or opened, if the output is the files of a printer.
    pub path: Option<Arc<Path>>,
}

#[derive(Debug, Default)]
struct WatchState {
    progress: WriteProgress,
    is_close: bool,
    is_stopped: bool,
    /// The number of steps under way, one within the other.
    depth: usize,
    /// The watches of single files that were not taken yet.
    files: Vec<WriteWatch>,
}

impl WriteWatch {
    /// Returns the progress so far. While an output is busy and its steps do not change, it accepts
    /// nothing.
    pub fn progress(&self) -> WriteProgress {
        lock(&self.0).progress.clone()
    }

    /// Writes in pieces of at most 4 KiB from now on, in a regular file 512 KiB, so that a slow reader
    /// shows progress. Before, pieces have up to 64 KiB, or any size in a regular file, which costs
    /// fewer system calls.
    pub fn watch_closely(&self) {
        lock(&self.0).is_close = true;
    }

    /// Lets printers write nothing more than what they are writing, because the process is about to
    /// end: their threads stand still from now on. The last line is whole once the output is not busy.
    pub fn stop(&self) {
        lock(&self.0).is_stopped = true;
    }

    /// Returns whether printers may write nothing more.
    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.0).is_stopped
    }

    /// Returns the watches of single files that were created since the last call. A file that has
    /// accepted nothing for a moment gets a watch of its own, because other files are written
    /// meanwhile.
    pub fn take_files(&self) -> Vec<WriteWatch> {
        mem::take(&mut lock(&self.0).files)
    }

    /// Returns whether both are watches of the same output.
    pub(crate) fn is_same(&self, other: &WriteWatch) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Creates the watch of a single file, which [`WriteWatch::take_files`] returns.
    pub(crate) fn add_file(&self) -> WriteWatch {
        let file = WriteWatch::default();
        lock(&self.0).files.push(file.clone());
        file
    }

    /// Notes that a step begins. It ends when the returned value is dropped.
    pub(crate) fn begin(&self, path: Option<&Arc<Path>>) -> Busy<'_> {
        let mut state = lock(&self.0);
        if state.depth == 0 {
            state.progress.accepted = 0;
            state.progress.path = path.cloned();
        }
        state.depth = state.depth.saturating_add(1);
        state.progress.is_busy = true;
        Busy(self)
    }

    /// Notes that a printer begins to write whole lines. Does not return once the output is stopped.
    pub(crate) fn begin_lines(&self, path: Option<&Arc<Path>>) -> Busy<'_> {
        let busy = self.begin(path);
        // Either this is seen, or who has stopped the output sees that it is busy.
        if !self.is_stopped() {
            return busy;
        }
        drop(busy);
        loop {
            thread::park();
        }
    }

    /// Returns the largest number of bytes of one write, to a regular file or to another output.
    pub(crate) fn largest_write(&self, is_file: bool) -> usize {
        match (lock(&self.0).is_close, is_file) {
            (true, true) => CLOSELY_WATCHED_FILE,
            (true, false) => CLOSELY_WATCHED_WRITE,
            (false, true) => usize::MAX,
            (false, false) => WATCHED_WRITE,
        }
    }
}

/// A step under way.
pub(crate) struct Busy<'a>(&'a WriteWatch);

impl Busy<'_> {
    /// Notes that a part of a write was accepted.
    pub(crate) fn accepted(&self, bytes: usize) {
        let progress = &mut lock(&self.0.0).progress;
        progress.accepted = progress.accepted.saturating_add(bytes as u64);
        progress.steps = progress.steps.wrapping_add(1);
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.depth = state.depth.saturating_sub(1);
        state.progress.steps = state.progress.steps.wrapping_add(1);
        state.progress.is_busy = state.depth > 0;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write;

    use crate::Output;

    #[test]
    fn a_regular_file_takes_all_bytes_in_one_write_unless_it_is_watched_closely() {
        let mut output = Output::new(tempfile::tempfile().unwrap()).unwrap();
        let watch = output.watch_writes();
        let mut notes = output.notes();
        let bytes = vec![b'x'; 1 << 20];
        notes.write_all(&bytes).unwrap();
        // One part of a write, and its end.
        assert_eq!(watch.progress().steps, 2);
        watch.watch_closely();
        notes.write_all(&bytes).unwrap();
        assert_eq!(watch.progress().steps, 2 + 2 + 1);
    }
}
