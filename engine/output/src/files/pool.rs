//! The threads of a printer that write files which may accept nothing for long.
//!
//! A file moves to a thread together with the bytes that it did not accept at once, and comes back
//! when they are written. The printer writes other files meanwhile. If no further thread can be
//! created, files wait for the present ones.
//!
//! A printer that ends without an error has all files back. After an error, a thread whose FIFO or
//! device accepts nothing gives it up within a second. A thread that is inside a call of the kernel
//! cannot be ended: while it opens a FIFO without a reader, or writes a regular file that hangs. It
//! owns this one file until the call returns or the process exits.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::entry::{FileEntry, WriteMode};
use super::{FileId, MAX_OPEN_FILES};
use crate::format::style::OpenLine;
use crate::watch::lock;

/// The threads, at most [`MAX_OPEN_FILES`], and the files that they have.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: Sender<FileJob>,
    queue: Arc<Mutex<Receiver<FileJob>>>,
    done: Receiver<WrittenFile>,
    done_sender: Sender<WrittenFile>,
    /// Readable when a file may have come back.
    event: Arc<EventFd>,
    threads: usize,
    /// The number of files that the threads have.
    count: usize,
}

/// A file that a thread opens if necessary, and writes.
#[derive(Debug)]
pub(super) struct FileJob {
    pub id: FileId,
    pub entry: FileEntry,
    pub bytes: Vec<u8>,
    /// The line that the file is in the middle of after these bytes.
    pub line: OpenLine,
    pub mode: WriteMode,
}

/// A file that a thread has written, with the result.
pub(super) type WrittenFile = (FileId, FileEntry, io::Result<()>);

impl Pool {
    /// Creates a pool without threads.
    ///
    /// # Errors
    /// Fails if the process can open no further descriptor.
    pub fn new() -> io::Result<Pool> {
        let (jobs, queue) = channel();
        let (done_sender, done) = channel();
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (queue, event) = (Arc::new(Mutex::new(queue)), Arc::new(event));
        Ok(Pool { jobs, queue, done, done_sender, event, threads: 0, count: 0 })
    }

    /// Returns the descriptor that is readable when [`Pool::take`] may return a file.
    pub fn event(&self) -> Arc<EventFd> {
        Arc::clone(&self.event)
    }

    /// Passes a file to a thread, or writes it if there is none and none can be created.
    pub(super) fn submit(&mut self, mut job: FileJob) {
        job.entry.owner = Some(Arc::downgrade(&self.event));
        self.count = self.count.saturating_add(1);
        if self.threads < self.count.min(MAX_OPEN_FILES) {
            let (queue, done) = (Arc::clone(&self.queue), self.done_sender.clone());
            let event = Arc::downgrade(&self.event);
            let work = move || work(&queue, &done, &event);
            let started = thread::Builder::new().name("iof-file".into()).spawn(work).is_ok();
            self.threads = self.threads.saturating_add(usize::from(started));
        }
        // Neither channel is ever disconnected: this holds the other ends.
        if self.threads == 0 {
            let _ = self.done_sender.send(job.run());
        } else {
            let _ = self.jobs.send(job);
        }
    }

    /// Returns a file that has come back. If `waits`, blocks until there is one.
    pub(super) fn take(&mut self, waits: bool) -> Option<WrittenFile> {
        let done = if waits {
            self.done.recv().ok()
        } else {
            // The event comes after the file, so it is reset before the files are looked for.
            let _ = self.event.read();
            self.done.try_recv().ok()
        };
        self.count = self.count.saturating_sub(usize::from(done.is_some()));
        done
    }
}

impl FileJob {
    fn run(self) -> WrittenFile {
        let FileJob { id, mut entry, bytes, line, mode } = self;
        let watch = entry.watch.clone();
        let _busy = watch.as_ref().map(|watch| watch.begin(Some(&entry.path)));
        let put = AssertUnwindSafe(|| entry.put(&mut [IoSlice::new(&bytes)], line, mode));
        let died = |_| Err(io::Error::other("the thread that writes it panicked"));
        let written = catch_unwind(put).unwrap_or_else(died);
        (id, entry, written)
    }
}

/// Writes one file after the other until the pool is dropped.
fn work(queue: &Mutex<Receiver<FileJob>>, done: &Sender<WrittenFile>, event: &Weak<EventFd>) {
    let next = || lock(queue).recv();
    while let Ok(job) = next()
        && done.send(job.run()).is_ok()
    {
        // A full event is readable as well.
        event.upgrade().map(|event| event.write(1));
    }
}
