//! The ends of sources: at once, when their request in flight is answered, or when the bytes of
//! their pipes are read.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Driver;
use crate::backend::{Backend, Token};
use crate::ids::End;
use crate::ioctl;
use crate::source::{Close, Ready, Source};

/// The approximate number of bytes that a terminal buffers for its master at most. A terminal that
/// is to be finished is read up to this number of bytes.
const TERMINAL_BUFFER: u64 = 128 * 1024;

impl<B: Backend> Driver<B> {
    /// Ends a source that has nothing in flight.
    pub(super) fn end(&mut self, index: usize, end: End) {
        let Some(source) = self.sources.table.source_mut(index) else { absent!("source", return) };
        // The bytes that a pipe which was not read to its end still has; `None` if a read would block. At the
        // end of file a pipe is readable without having bytes.
        let is_whole = matches!(end, End::EndOfFile);
        let pipe = source.pipe().filter(|pipe| !is_whole && is_readable(pipe));
        let unread = pipe.map(ioctl::unread);
        let end = match (end, &unread) {
            // The source was closed, but its pipe had no more bytes and no writer.
            (End::Closed, Some(Ok(0))) => End::EndOfFile,
            (end, _) => end,
        };
        let unread = unread.and_then(Result::ok).unwrap_or(0);
        let missing = match &end {
            End::EndOfFile => None,
            End::Closed if !source.is_closing() => None,
            // More may follow: deliveries, or bytes of a pipe whose own thread may be stuck in it.
            End::Closed if source.has_queue() => Some(0),
            End::Closed => Some(unread).filter(|unread| *unread > 0),
            End::Error(_) => Some(unread),
        };
        if let Some(missing) = missing {
            source.break_off(missing);
        }
        if source.pipe().is_some() {
            self.backend.deregister(Token::Source(index));
            self.watched.remove(Token::Source(index));
        }
        let (id, spilled) = (source.id(), source.drop_queued(self.time));
        if !source.is_isolated() {
            self.report_dequeued(id, spilled);
        }
        self.sources.end(index, end);
    }

    /// Closes a source: immediately, or once its request in flight is answered.
    pub(super) fn close(&mut self, index: usize) {
        match self.sources.mark_ready(index).map(|source| source.close()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Source(index)),
            // A source that waited is still in `waiting`. `retry_waiting` runs after the commands
            // and removes it.
            Some(Close::Now) => self.end(index, End::Closed),
            Some(Close::Already) | None => {}
        }
    }

    /// Ends a source once the bytes are read that are in its pipe or queue now. If `missing` bytes
    /// are known to follow, its stream is broken.
    pub(super) fn finish(&mut self, index: usize, missing: Option<u64>) {
        if let (Some(source), Some(missing)) = (self.sources.table.source_mut(index), missing) {
            source.break_off(missing);
        }
        match self.sources.table.source_mut(index).and_then(Source::finish_queue) {
            Some(Ready::Now) => return self.pour(index),
            Some(Ready::Later) => return,
            None => {}
        }
        match self.sources.mark_ready(index).map(|source| source.finish()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Source(index)),
            Some(Close::Now) => {
                // Otherwise it is checked for growth twice a tick if it waits again.
                self.waiting.retain(|waiting| *waiting != index);
                self.measure(index);
            }
            Some(Close::Already) | None => {}
        }
    }

    /// Measures what a source that is to be finished has to read, and reads it, or ends the source.
    /// The source must have nothing in flight.
    pub(super) fn measure(&mut self, index: usize) {
        let Some(source) = self.sources.mark_ready(index) else { absent!("source", return) };
        let terminal = source.is_terminal();
        let unread = match source.pipe().filter(is_readable) {
            // FIONREAD counts only one of a terminal's two queues. The terminal stays readable
            // while it has more.
            Some(_) if terminal => TERMINAL_BUFFER,
            Some(pipe) => unread(pipe),
            None => 0,
        };
        let step = source.measured(unread);
        self.advance(index, step);
    }
}

/// Returns the number of bytes that can be read from `pipe`, or of some of them. A file without
/// FIONREAD counts as empty.
fn unread(pipe: BorrowedFd<'_>) -> u64 {
    // The poll moves the bytes of a terminal to the queue that FIONREAD counts.
    if is_readable(&pipe) { ioctl::unread(pipe).unwrap_or(0) } else { 0 }
}

/// Returns whether a read from `pipe` would return bytes or the end of file now.
fn is_readable(pipe: &BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(*pipe, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0)
}
