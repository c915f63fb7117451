//! One target: a pipe, the reader of the stream that is fed to it, and what it needs next. No I/O here, as in `source`.
//!
//! ```text
//!            next: bytes            done: n bytes, interrupted
//!     Idle ------------> Writing -----------------------------> Idle
//!          next: not now            done: writable
//!          ------------> Polling -----------------------------> Idle
//!          next: sealed             follow
//!          ------------> Sealed ------------------------------> Idle
//!     any, once nothing is in flight: end
//! ```

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use iof_shm_ring::{Attached, Peek, Reader};

use crate::event::{FeedEnd, TargetId};

/// Bytes that one write offers at most: what a pipe holds by default, see pipe(7).
const WRITE_MAX: usize = 64 * 1024;

/// Where a target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is in flight.
    Idle,
    /// A write of the borrowed bytes is in flight: the reader must neither consume nor move.
    Writing,
    /// The pipe is non-blocking and said "not now": waits until it is writable.
    Polling,
    /// The stream moved on, and this reader had all that there is here.
    Sealed,
}

/// What is to be done for a target now.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Write some of these bytes, which stay as they are until [`Target::done`].
    Write(BorrowedFd<'a>, &'a [u8]),
    /// Wait until the pipe is writable; then [`Target::done`].
    Poll(BorrowedFd<'a>),
    /// Report that the stream moved on; then [`Target::follow`], or [`Target::close`].
    Sealed,
    /// Drop the target, which closes the pipe, and report this.
    End(FeedEnd),
    /// Nothing, until there is news or something in flight comes back.
    Nothing,
}

/// What closing a target takes.
#[derive(Debug)]
pub(crate) enum Close {
    /// Cancel what is in flight: [`Target::done`] then gives the end.
    Cancel,
    /// Nothing is in flight: drop the target and report this.
    Now(FeedEnd),
}

/// The write end of one pipe, and what flows into it.
pub(crate) struct Target {
    id: TargetId,
    pipe: OwnedFd,
    reader: Reader,
    state: State,
    closing: bool,
    /// The pipe said so, see [`State::Polling`].
    not_now: bool,
}

impl Target {
    pub(crate) fn new(id: TargetId, pipe: OwnedFd, mut reader: Reader) -> Target {
        // Nobody here would look again when a group is due.
        reader.group(None);
        Target { id, pipe, reader, state: State::Idle, closing: false, not_now: false }
    }

    pub(crate) fn id(&self) -> TargetId {
        self.id
    }

    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn in_flight(&self) -> bool {
        matches!(self.state, State::Writing | State::Polling)
    }

    /// What to do now. Gaps are counted by the reader.
    pub(crate) fn next(&mut self) -> Next<'_> {
        if self.state != State::Idle {
            return Next::Nothing;
        }
        if mem::take(&mut self.not_now) {
            self.state = State::Polling;
            return Next::Poll(self.pipe.as_fd());
        }
        loop {
            match self.reader.peek() {
                Peek::Bytes => break,
                Peek::Gap(_) => {}
                Peek::Empty => return Next::Nothing,
                Peek::Sealed => {
                    self.state = State::Sealed;
                    return Next::Sealed;
                }
                Peek::Ended => return Next::End(FeedEnd::Complete),
                Peek::Gone => return Next::End(FeedEnd::CutOff),
            }
        }
        self.state = State::Writing;
        let bytes = self.reader.bytes();
        Next::Write(self.pipe.as_fd(), bytes.get(..WRITE_MAX).unwrap_or(bytes))
    }

    /// What was in flight came back; gives what ended it, if it is to be dropped now.
    pub(crate) fn done(&mut self, result: io::Result<usize>) -> Option<FeedEnd> {
        let was = self.state;
        if !self.in_flight() {
            return None;
        }
        self.state = State::Idle;
        if was == State::Writing
            && let Ok(n) = result
        {
            self.reader.consume(n);
        }
        match result {
            // Never told by pipes; asking again and again would be no answer.
            Ok(0) if was == State::Writing && !self.closing => {
                Some(FeedEnd::Error(io::ErrorKind::WriteZero.into()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => Some(FeedEnd::Closed),
            _ if self.closing => Some(FeedEnd::Stopped),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.not_now = true;
                None
            }
            Err(error) => Some(FeedEnd::Error(error)),
        }
    }

    /// Goes on in another generation; an error if the area has no such slot.
    ///
    /// # Safety
    /// As for [`Reader::follow`]. Nothing happens unless [`Next::Sealed`] was the last that was to be done.
    pub(crate) unsafe fn follow(&mut self, given: Attached) -> Option<FeedEnd> {
        if self.state != State::Sealed {
            return None;
        }
        self.state = State::Idle;
        // SAFETY: as the caller promises.
        let followed = unsafe { self.reader.follow(given) };
        followed.err().map(|error| FeedEnd::Error(io::Error::other(error)))
    }

    /// Asks for the end, with what was written.
    pub(crate) fn close(&mut self) -> Close {
        self.closing = true;
        match self.state {
            State::Writing | State::Polling => Close::Cancel,
            State::Idle => Close::Now(FeedEnd::Stopped),
            State::Sealed => Close::Now(FeedEnd::CutOff),
        }
    }
}

#[cfg(test)]
mod tests;
