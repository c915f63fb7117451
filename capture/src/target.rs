//! One target: a pipe, the pushes that wait for their turn at it, and what it needs next. No I/O
//! here, as in `source`.
//!
//! ```text
//!            next: bytes            done: n bytes, interrupted
//!     Idle ------------> Writing -----------------------------> Idle
//!          next: not now            done: writable
//!          ------------> Polling -----------------------------> Idle
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::Lent;

use crate::event::{PushEnd, TargetId};
use crate::push::{Push, Share};
use crate::slots::Slots;

/// Where a target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is in flight.
    Idle,
    /// A write of bytes of the first push is in flight: that push must stay.
    Writing,
    /// The pipe is non-blocking and said "not now": waits until it is writable.
    Polling,
}

/// What is to be done for a target now.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Write some of these bytes, which stay where they are until [`Target::done`].
    Write(BorrowedFd<'a>, Lent),
    /// Wait until the pipe is writable; then [`Target::done`].
    Poll(BorrowedFd<'a>),
    /// The first push has nothing more for it: [`Target::turn_over`].
    TurnOver,
    /// Nothing, until there is more or something in flight comes back.
    Nothing,
}

/// What came of what was in flight.
#[derive(Debug)]
pub(crate) enum Done {
    /// So many bytes of the first push were written; ask for what is next.
    Written(usize),
    /// The target is to be closed for this reason, after so many bytes.
    Close(usize, PushEnd),
}

/// The write end of one pipe, and who waits to write into it.
pub(crate) struct Target {
    id: TargetId,
    pipe: Arc<OwnedFd>,
    /// The numbers of pushes, in the order of their turns.
    turns: VecDeque<usize>,
    state: State,
    /// It is to be closed when nothing is in flight any more, for this reason.
    closing: Option<PushEnd>,
    /// The pipe said so, see [`State::Polling`].
    not_now: bool,
}

impl Target {
    pub(crate) fn new(id: TargetId, pipe: OwnedFd) -> Target {
        Target {
            id,
            pipe: Arc::new(pipe),
            turns: VecDeque::new(),
            state: State::Idle,
            closing: None,
            not_now: false,
        }
    }

    pub(crate) fn id(&self) -> TargetId {
        self.id
    }

    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// The same, to be kept while it is in use elsewhere.
    pub(crate) fn shared_pipe(&self) -> &Arc<OwnedFd> {
        &self.pipe
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.state != State::Idle
    }

    /// Puts a push behind those that wait.
    pub(crate) fn enqueue(&mut self, push: usize) {
        self.turns.push_back(push);
    }

    /// Whose turn it is.
    pub(crate) fn turn(&self) -> Option<usize> {
        self.turns.front().copied()
    }

    /// Ends the first push's turn, of which nothing may be in flight; gives which that was.
    pub(crate) fn turn_over(&mut self) -> Option<usize> {
        debug_assert!(!self.in_flight());
        self.turns.pop_front()
    }

    /// What to do now, for the target that has this number.
    pub(crate) fn next(&mut self, number: usize, pushes: &Slots<Push>) -> Next<'_> {
        if self.in_flight() {
            return Next::Nothing;
        }
        if mem::take(&mut self.not_now) {
            self.state = State::Polling;
            return Next::Poll(self.pipe.as_fd());
        }
        let Some(push) = self.turn().and_then(|turn| pushes.get(turn)) else { return Next::Nothing };
        match push.share(number) {
            Share::Nothing => Next::Nothing,
            Share::All => Next::TurnOver,
            Share::Bytes(bytes) => {
                self.state = State::Writing;
                Next::Write(self.pipe.as_fd(), bytes)
            }
        }
    }

    /// What was in flight came back.
    pub(crate) fn done(&mut self, result: io::Result<usize>) -> Done {
        let was = mem::replace(&mut self.state, State::Idle);
        let written = match &result {
            Ok(n) if was == State::Writing => *n,
            _ => 0,
        };
        let closing = self.closing.take();
        let end = match result {
            // Never told by pipes; asking again and again would be no answer.
            Ok(0) if was == State::Writing && closing.is_none() => {
                Some(PushEnd::Error(io::ErrorKind::WriteZero.into()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => Some(PushEnd::Closed),
            _ if closing.is_some() => closing,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.not_now = true;
                None
            }
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Some(PushEnd::Error(error)),
            _ => None,
        };
        end.map_or(Done::Written(written), |end| Done::Close(written, end))
    }

    /// Asks for the end. If something is in flight, that is to be cancelled first, and
    /// [`Target::done`] gives the end then, with what was written; the first reason counts.
    /// Otherwise gives the reason back: the end can come now.
    pub(crate) fn close(&mut self, end: PushEnd) -> Result<(), PushEnd> {
        if !self.in_flight() {
            return Err(end);
        }
        self.closing.get_or_insert(end);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
