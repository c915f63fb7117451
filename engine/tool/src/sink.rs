//! A sink: a registration whose bytes go to a file descriptor, straight from the rings.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use iof_proto::{Channel, Proc};
use iof_shm_ring::Gap;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::writev;

use crate::error::LostError;
use crate::feed::Item;
use crate::feeds::FeedId;
use crate::tool::{Poll, Tool};

/// Slices in one write: far below IOV_MAX, and more hardly saves anything.
const MAX_SLICES: usize = 64;
/// Bytes in one write, about: what a reader could take at once, so that no feed waits long for its turn.
const MAX_BYTES: usize = 1 << 20;

/// Why a sink ended before its registrations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The file can't be written; `BrokenPipe` if its reader has gone.
    #[error("writing: {0}")]
    Write(io::Error),
    /// The engine has ended or spoke nonsense.
    #[error(transparent)]
    Lost(#[from] LostError),
    /// The sink's thread died, which it never should.
    #[error("the sink's thread died")]
    Died,
}

/// What a sink did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkReport {
    /// Bytes written.
    pub written: u64,
    /// Bytes reported as gaps.
    pub lost: u64,
    /// Streams that the engine left without completing them.
    pub unfinished: u64,
}

/// Writes everything that a tool pulls to a file descriptor, on a thread of its own.
///
/// The order within each source and channel is kept; whole batches of different sources follow each other. The
/// descriptor may be in blocking or non-blocking mode, and stays as it is.
pub struct Sink {
    thread: JoinHandle<Result<SinkReport, SinkError>>,
}

impl Sink {
    /// Starts writing what `tool`'s registrations bring to `file`. `on_gap` is called on the sink's thread for
    /// every gap, at its place in the stream.
    ///
    /// # Errors
    /// When the process has no descriptors or threads left.
    pub fn start(
        tool: Tool,
        file: impl AsFd,
        on_gap: impl FnMut(&Proc, Channel, Gap) + Send + 'static,
    ) -> io::Result<Sink> {
        let file = file.as_fd().try_clone_to_owned()?;
        let writer = Writer { tool, file, on_gap, report: SinkReport::default() };
        let thread = thread::Builder::new().name("iof-sink".into()).spawn(move || writer.run())?;
        Ok(Sink { thread })
    }

    /// Waits until all that the registrations bring is written.
    ///
    /// # Errors
    /// [`SinkError`]: what could not be written, and why.
    pub fn join(self) -> Result<SinkReport, SinkError> {
        self.thread.join().unwrap_or(Err(SinkError::Died))
    }
}

struct Writer<F> {
    tool: Tool,
    file: OwnedFd,
    on_gap: F,
    report: SinkReport,
}

impl<F: FnMut(&Proc, Channel, Gap)> Writer<F> {
    fn run(mut self) -> Result<SinkReport, SinkError> {
        while self.tool.poll(None, Tool::is_drained)? != Poll::Done {
            // A sink is for bytes: when its streams are complete, it is.
            self.tool.events.clear();
            let active = self.tool.feeds.active().to_vec();
            for chunk in active.chunks(MAX_SLICES) {
                let with_bytes = self.look(chunk);
                self.write(&with_bytes)?;
            }
        }
        Ok(self.report)
    }

    /// Looks at each feed once, reports its gaps, and names those that have bytes.
    fn look(&mut self, feeds: &[FeedId]) -> Vec<FeedId> {
        let mut with_bytes = Vec::with_capacity(feeds.len());
        for &id in feeds {
            let Some(feed) = self.tool.feeds.get_mut(id) else { continue };
            match feed.next() {
                Item::Bytes => with_bytes.push(id),
                Item::Gap(gap) => {
                    self.report.lost = self.report.lost.saturating_add(gap.lost);
                    (self.on_gap)(feed.source(), feed.channel(), gap);
                }
                Item::Gone => self.report.unfinished = self.report.unfinished.saturating_add(1),
                Item::Quiet | Item::Ended | Item::Flushed => {}
            }
        }
        with_bytes
    }

    /// Writes the bytes of `feeds` in place, as many as one call takes; what is left comes with the next look.
    fn write(&mut self, feeds: &[FeedId]) -> Result<(), SinkError> {
        let mut slices = Vec::with_capacity(feeds.len());
        let mut room = MAX_BYTES;
        for feed in feeds.iter().filter_map(|id| self.tool.feeds.get(*id)) {
            let bytes = feed.bytes();
            let now = bytes.get(..room).unwrap_or(bytes);
            room = room.saturating_sub(now.len());
            slices.push(IoSlice::new(now));
        }
        if slices.is_empty() {
            return Ok(());
        }
        let written = loop {
            match writev(&self.file, &slices) {
                Ok(written) => break written,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait_writable()?,
                Err(errno) => return Err(SinkError::Write(errno.into())),
            }
        };
        self.report.written = self.report.written.saturating_add(written as u64);
        let mut left = written;
        for id in feeds {
            let Some(feed) = self.tool.feeds.get_mut(*id) else { continue };
            let n = feed.bytes().len().min(left);
            feed.consume(n);
            feed.release();
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Ends when the file's reader reads or goes away.
    fn wait_writable(&self) -> Result<(), SinkError> {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(SinkError::Write(errno.into())),
        }
    }
}
