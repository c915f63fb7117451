//! One target: a pipe, the pushes that wait for their turn at it, and the request that it needs
//! next. No I/O here, as in `source`.
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

use self::push::{Push, Share};
use crate::ids::{PushEnd, TargetId};
use crate::slots::Slab;

pub(crate) mod push;

/// The state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    /// No request is in flight.
    Idle,
    /// A write of the first push's bytes is in flight, so that push must not be dropped.
    Writing,
    /// The pipe is non-blocking and was full: a poll until it is writable is in flight.
    Polling,
}

/// The next action for a target.
#[derive(Debug)]
pub(crate) enum TargetAction<'a> {
    /// Write some of these bytes, which stay in place until [`Target::done`].
    Write(BorrowedFd<'a>, Lent),
    /// Wait until the pipe is writable, then call [`Target::done`].
    Poll(BorrowedFd<'a>),
    /// The first push has no more bytes for the target: call [`Target::turn_over`].
    TurnOver,
    /// Do nothing until there are more bytes or the request in flight is answered.
    Nothing,
}

/// The result of a request that was in flight.
#[derive(Debug)]
pub(crate) enum Done {
    /// This many bytes of the first push were written. Call [`Target::next`].
    Written(usize),
    /// This many bytes were written, and the target is to be closed for this reason.
    Close(usize, PushEnd),
}

/// The write end of one pipe, and the pushes that have or wait for their turn at it.
pub(crate) struct Target {
    id: TargetId,
    pipe: Arc<OwnedFd>,
    /// The indices of the pushes, in the order of their turns.
    turns: VecDeque<usize>,
    state: TargetState,
    /// The reason for which the target is to be closed once nothing is in flight.
    closing: Option<PushEnd>,
    /// Set if the pipe was full at the last write, see [`TargetState::Polling`].
    would_block: bool,
}

impl Target {
    pub(crate) fn new(id: TargetId, pipe: OwnedFd) -> Target {
        Target {
            id,
            pipe: Arc::new(pipe),
            turns: VecDeque::new(),
            state: TargetState::Idle,
            closing: None,
            would_block: false,
        }
    }

    pub(crate) fn id(&self) -> TargetId {
        self.id
    }

    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Returns the pipe, to be shared with the watchdog.
    pub(crate) fn shared_pipe(&self) -> &Arc<OwnedFd> {
        &self.pipe
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.state != TargetState::Idle
    }

    /// Adds a push after those that wait.
    pub(crate) fn enqueue(&mut self, push: usize) {
        self.turns.push_back(push);
    }

    /// Returns the push that has its turn.
    pub(crate) fn turn(&self) -> Option<usize> {
        self.turns.front().copied()
    }

    /// Ends the first push's turn and returns the push. No request may be in flight.
    pub(crate) fn turn_over(&mut self) -> Option<usize> {
        debug_assert!(!self.in_flight());
        self.turns.pop_front()
    }

    /// Returns the next action. `index` is this target's index.
    pub(crate) fn next(&mut self, index: usize, pushes: &Slab<Push>) -> TargetAction<'_> {
        if self.in_flight() {
            return TargetAction::Nothing;
        }
        if mem::take(&mut self.would_block) {
            self.state = TargetState::Polling;
            return TargetAction::Poll(self.pipe.as_fd());
        }
        let Some(push) = self.turn().and_then(|turn| pushes.get(turn)) else { return TargetAction::Nothing };
        match push.share(index) {
            Share::Nothing => TargetAction::Nothing,
            Share::All => TargetAction::TurnOver,
            Share::Bytes(bytes) => {
                self.state = TargetState::Writing;
                TargetAction::Write(self.pipe.as_fd(), bytes)
            }
        }
    }

    /// Takes the answer to the request in flight.
    pub(crate) fn done(&mut self, result: io::Result<usize>) -> Done {
        let state = mem::replace(&mut self.state, TargetState::Idle);
        let written = match &result {
            Ok(n) if state == TargetState::Writing => *n,
            _ => 0,
        };
        let closing = self.closing.take();
        let end = match result {
            // Pipes never return 0. Writing again could loop for ever.
            Ok(0) if state == TargetState::Writing && closing.is_none() => {
                Some(PushEnd::Error(io::ErrorKind::WriteZero.into()))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => Some(PushEnd::Closed),
            _ if closing.is_some() => closing,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.would_block = true;
                None
            }
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Some(PushEnd::Error(error)),
            _ => None,
        };
        end.map_or(Done::Written(written), |end| Done::Close(written, end))
    }

    /// Closes the target for the reason `end`. If a request is in flight, returns `Ok`: the caller
    /// cancels the request, and [`Target::done`] then returns the end, with the bytes that were
    /// written. If this is called repeatedly, the first reason counts. If nothing is in flight,
    /// returns the reason as `Err`: the caller ends the target now.
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
