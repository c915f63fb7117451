//! One source: a pipe, or the deliveries in its place, the stream that its bytes enter, and the
//! request that it needs next. No I/O here: the driver does that, so that every backend drives the
//! same state machine.
//!
//! ```text
//!          next: room             done: n bytes, interrupted
//!     Idle ----------> Reading ---------------------------> Idle
//!          next: no memory yet,   done: readable
//!          (nearly) full
//!          ----------> Polling ---------------------------> Idle, and next(readable)
//!          next: must wait        next
//!          ----------> Waiting ---------------------------> (as from Idle)
//!          next: must pause       done
//!          ----------> Pausing ---------------------------> Idle
//!          next: no reader needs  done
//!          the next bytes
//!          ----------> Collecting ------------------------> Idle
//!     any, once nothing is in flight: end -> Ended
//! ```

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::{Policy, Reserve, Span, Stream, StreamStats};

use self::isolated::IsolatedReader;
use self::queue::DeliveryQueue;
use crate::backend::{Pause, READ_MAX};
use crate::ids::{End, SourceId};

mod ending;
pub(crate) mod isolated;
mod isolation;
pub(crate) mod queue;
mod queued;
mod results;
pub(crate) mod source_table;

/// The largest packet of a pipe in packet mode (O_DIRECT), see pipe(2). A read that asks for fewer
/// bytes loses the rest of the packet without an error.
pub(crate) const PACKET_MAX: usize = libc::PIPE_BUF;

/// Number of checks, one in each pause, after which a stream in a small ring grows if it has waited
/// all the time. With fewer, the streams of many ranks grow while the only reader is busy with the
/// other streams, and then do not fit the processor's cache.
const GROWTH_CHECKS: u32 = 10;

/// The size, in bytes, of a read that is worth a turn: half of what pipes hold by default. Both
/// constants are smaller in tests, so that the streams of the simulation reach them.
const LARGE_READ: usize = if cfg!(test) { PACKET_MAX } else { 32 * 1024 };
/// The number of bytes that last even the nearest reader for a short pause, at up to 130 MB/s.
const BACKLOG: u64 = if cfg!(test) { 1024 } else { 64 * 1024 };

/// The state of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceState {
    /// No request is in flight.
    Idle,
    /// A read into the stream is in flight, so the stream must neither be written nor dropped.
    Reading,
    /// A poll until the pipe is readable is in flight: the stream has no memory yet, or drops the
    /// newest bytes and is full or has no room for a packet, or the pipe is non-blocking and was
    /// empty.
    Polling,
    /// The stream is full and waits for its readers. No request is in flight.
    Waiting,
    /// A pause is in flight: the kernel has no memory for the stream or for a poll, or no process has
    /// the terminal open at the moment.
    Pausing,
    /// A pause is in flight while the pipe collects bytes that no reader can use yet.
    Collecting,
    /// The source has ended, and its pipe is closed.
    Ended,
}

/// The next action for a source.
#[derive(Debug)]
pub(crate) enum SourceAction<'a> {
    /// Read from the pipe into the span, then call [`Source::done`].
    Read(BorrowedFd<'a>, Span),
    /// Wait until the pipe is readable, then call [`Source::done`].
    Poll(BorrowedFd<'a>),
    /// Read bytes from the pipe, which is readable, and discard them, then call
    /// [`Source::drained`].
    Drain(BorrowedFd<'a>),
    /// Find out whether the pipe, which is readable, is at its end, then call [`Source::probed`].
    Probe(BorrowedFd<'a>),
    /// Read from the pipe, which is readable, into the span at once, then call [`Source::done`].
    ReadNow(BorrowedFd<'a>, Span),
    /// Read the pipe, which is readable, into a buffer of [`PACKET_MAX`] bytes, then call
    /// [`Source::fetched`].
    Fetch(BorrowedFd<'a>),
    /// Call [`Source::next`] again when a reader may have made room.
    Wait,
    /// Pause, then call [`Source::done`].
    Pause(Pause),
    /// Do nothing: a request is in flight already, or the source has ended.
    Nothing,
}

/// The step that follows an action.
#[derive(Debug)]
pub(crate) enum Step {
    /// Call [`Source::next`] with this argument.
    Go { readable: bool },
    /// Measure how many bytes the pipe has, and call [`Source::measured`]. The source reads that
    /// many bytes and ends.
    Measure,
    /// Call [`Source::end`] and report the end.
    End(End),
}

/// The action that closing, finishing or isolating a source requires.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Cancel the request in flight. [`Source::done`] then returns the next step.
    Cancel,
    /// Proceed, because nothing is in flight: call [`Source::end`], or, to finish, do
    /// [`Step::Measure`].
    Now,
    /// Do nothing: the source is about to end, or has ended.
    Already,
}

/// The progress of a source that is to end once it has read what its pipe has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// The number of bytes in the pipe is unknown, because a request was in flight that may have
    /// read some of them.
    Requested,
    /// At most this many bytes remain to be read.
    Wanted(u64),
}

/// The readiness of a queue to be poured into its stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Call [`Source::pour`].
    Now,
    /// Do nothing: the queue already waits for room or for a pause.
    Later,
}

/// The origin of a source's bytes.
enum Input {
    Pipe(Arc<OwnedFd>),
    Queue(DeliveryQueue),
    /// A pipe with a thread of its own, and the queue of bytes that the thread has read.
    Isolated(DeliveryQueue, IsolatedReader),
    /// None, because the source has ended.
    Ended,
}

/// One process on one channel: the origin of the bytes, and the stream that they enter.
pub(crate) struct Source {
    id: SourceId,
    input: Input,
    stream: Stream,
    state: SourceState,
    closing: bool,
    finish: Option<Finish>,
    /// The bytes that are known to be missing at the end, if the stream is broken.
    missing: Option<u64>,
    /// Set if the pipe moves to a thread of its own once nothing is in flight.
    isolating: bool,
    /// Set if the kernel had no memory for bytes that the pipe has.
    no_memory: bool,
    /// Set if the pipe is empty and a read would not wait, because the pipe is non-blocking and the
    /// kernel honours that.
    would_block: bool,
    /// Set if a process may open the terminal again when no process has it open.
    reopenable: bool,
    /// Set if the pipe, which is readable, was found not to be at its end.
    has_bytes: bool,
    /// Set if the next request is to wait: no process has the terminal open at the moment, or the kernel
    /// had no memory for a poll.
    must_pause: bool,
    /// Number of successive calls of [`Source::check_growth`] at which the stream has waited
    /// without a break.
    starved: u32,
    /// Set if the last read was small and no pause has followed it.
    may_collect: bool,
    /// Set if the stream has changed for its readers since the last [`Source::take_ready`].
    is_ready: bool,
    /// The number of the stream's generation that [`Source::take_moved`] has returned last.
    generation: u64,
}

impl Source {
    pub(crate) fn new(id: SourceId, pipe: OwnedFd, stream: Stream) -> Source {
        Source::with_input(id, Input::Pipe(Arc::new(pipe)), stream)
    }

    /// Creates a source without a pipe.
    pub(crate) fn open(id: SourceId, stream: Stream) -> Source {
        Source::with_input(id, Input::Queue(DeliveryQueue::default()), stream)
    }

    fn with_input(id: SourceId, input: Input, stream: Stream) -> Source {
        Source {
            id,
            input,
            stream,
            state: SourceState::Idle,
            closing: false,
            finish: None,
            missing: None,
            isolating: false,
            no_memory: false,
            would_block: false,
            reopenable: false,
            has_bytes: false,
            must_pause: false,
            starved: 0,
            may_collect: false,
            is_ready: false,
            generation: 0,
        }
    }

    pub(crate) fn id(&self) -> SourceId {
        self.id
    }

    /// Returns the pipe, or `None` if the source has none, is isolated or has ended.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        if let Input::Pipe(pipe) = &self.input { Some(pipe.as_fd()) } else { None }
    }

    /// Returns the pipe as [`Source::pipe`] does, to be shared with another thread.
    pub(crate) fn shared_pipe(&self) -> Option<Arc<OwnedFd>> {
        if let Input::Pipe(pipe) = &self.input { Some(Arc::clone(pipe)) } else { None }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the stream, only for attaching and detaching readers and for [`Stream::allocate`]: a
    /// read into it may be in flight.
    pub(crate) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Sets whether this is a terminal that a process may open again when no process has it open.
    pub(crate) fn set_reopenable(&mut self, reopenable: bool) {
        self.reopenable = reopenable;
    }

    /// Returns whether a request is in flight.
    pub(crate) fn in_flight(&self) -> bool {
        use SourceState::{Collecting, Pausing, Polling, Reading};
        matches!(self.state, Reading | Polling | Pausing | Collecting)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == SourceState::Ended
    }

    /// Returns whether the stream has changed for its readers since the last call: bytes, a gap, a
    /// new generation or the end.
    pub(crate) fn take_ready(&mut self) -> bool {
        mem::take(&mut self.is_ready)
    }

    /// Returns the number of the newest generation if the stream has moved to it since the last
    /// call and is not complete.
    pub(crate) fn take_moved(&mut self) -> Option<u64> {
        let StreamStats { generation, complete, .. } = self.stream.stats();
        let before = mem::replace(&mut self.generation, generation);
        (generation > before && !complete).then_some(generation)
    }

    /// Returns the next action. `readable` tells that the pipe has bytes or is at the end of file.
    pub(crate) fn next(&mut self, readable: bool) -> SourceAction<'_> {
        if self.in_flight() || self.pipe().is_none() {
            return SourceAction::Nothing;
        }
        let before_room = self.before_room(readable);
        let Input::Pipe(pipe) = &self.input else { return SourceAction::Nothing };
        let pipe = pipe.as_fd();
        if let Some(state) = before_room {
            self.state = state;
            return match state {
                SourceState::Pausing => SourceAction::Pause(Pause::Long),
                SourceState::Polling => SourceAction::Poll(pipe),
                _ => SourceAction::Drain(pipe),
            };
        }
        let is_first = self.stream.is_unallocated();
        if is_first && !mem::take(&mut self.has_bytes) {
            return SourceAction::Probe(pipe);
        }
        let reserve = reserve(&mut self.stream, &mut self.is_ready);
        if !matches!(reserve, Reserve::Wait) {
            self.starved = 0;
        }
        let drops_newest = self.stream.policy() == Policy::DropNewest;
        match reserve {
            // No reader needs the next bytes yet. Line by line, each read would wake this thread
            // for a few of them.
            Reserve::Ready(_)
                if mem::take(&mut self.may_collect)
                    && self.finish.is_none()
                    && self.stream.backlog() >= BACKLOG =>
            {
                self.state = SourceState::Collecting;
                SourceAction::Pause(Pause::Short)
            }
            Reserve::Ready(span) if span.len >= PACKET_MAX || !drops_newest => {
                self.state = SourceState::Reading;
                // Read first bytes at once, because pipes are read in the order in which they
                // became readable.
                if is_first { SourceAction::ReadNow(pipe, span) } else { SourceAction::Read(pipe, span) }
            }
            // Poll first, because readers may make room before the next bytes arrive.
            Reserve::Ready(_) | Reserve::Discard if !readable => {
                self.state = SourceState::Polling;
                SourceAction::Poll(pipe)
            }
            Reserve::Ready(_) => {
                self.state = SourceState::Idle;
                SourceAction::Fetch(pipe)
            }
            Reserve::Discard => {
                self.state = SourceState::Idle;
                SourceAction::Drain(pipe)
            }
            Reserve::Wait => {
                self.state = SourceState::Waiting;
                SourceAction::Wait
            }
            Reserve::Later => {
                self.state = SourceState::Pausing;
                SourceAction::Pause(Pause::Long)
            }
        }
    }

    /// Returns the state of a source that is not to ask its stream for room: it pauses or polls, or
    /// is [`SourceState::Idle`] and discards the bytes of its pipe.
    fn before_room(&mut self, readable: bool) -> Option<SourceState> {
        if mem::take(&mut self.must_pause) {
            return Some(SourceState::Pausing);
        }
        if mem::take(&mut self.would_block) && !readable {
            return Some(SourceState::Polling);
        }
        if self.no_memory {
            let waits = matches!(self.stream.without_memory(), Reserve::Later);
            // Poll first, because it is unknown whether the pipe has the bytes that had no memory.
            self.no_memory = !waits && !readable;
            return Some(match (waits, readable) {
                (true, _) => SourceState::Pausing,
                (false, false) => SourceState::Polling,
                (false, true) => SourceState::Idle,
            });
        }
        // Nothing is allocated for a pipe that never has bytes.
        (self.stream.is_unallocated() && !readable).then_some(SourceState::Polling)
    }

    /// Returns whether the source waits for its readers and its stream may grow, so that it is to
    /// be checked by [`Source::check_growth`].
    pub(crate) fn waits_to_grow(&self) -> bool {
        self.state == SourceState::Waiting && self.stream.may_grow()
    }

    /// Lets the stream grow if it has waited for many checks without a break and `allowed`, which
    /// it then lowers, is not 0. A growth that is refused is tried again after as many checks.
    pub(crate) fn check_growth(&mut self, allowed: &mut u64) {
        if self.waits_to_grow() {
            self.starved = self.starved.saturating_add(1);
            if self.starved > GROWTH_CHECKS && *allowed > 0 {
                *allowed = allowed.saturating_sub(1);
                self.starved = 0;
                self.stream.grow();
            }
        }
    }

    /// Returns the pipe, which collects bytes, and room for them, to read them before the pause is
    /// over. Call [`Source::caught_up`] with the result. Returns `None` if the stream has no room, or
    /// if the end or the isolation of the source was requested.
    pub(crate) fn catch_up(&mut self) -> Option<(BorrowedFd<'_>, Span)> {
        let Input::Pipe(pipe) = &self.input else { return None };
        let is_collecting = self.state == SourceState::Collecting;
        if !is_collecting || self.closing || self.isolating || self.finish.is_some() {
            return None;
        }
        match reserve(&mut self.stream, &mut self.is_ready) {
            // A smaller one may cut a packet.
            Reserve::Ready(span) if span.len >= PACKET_MAX => Some((pipe.as_fd(), span)),
            _ => None,
        }
    }
}

/// Reserves room for a read. Sets `is_ready` if the stream has moved to a new generation.
fn reserve(stream: &mut Stream, is_ready: &mut bool) -> Reserve {
    let generation = stream.stats().generation;
    let reserve = stream.reserve(READ_MAX);
    *is_ready |= stream.stats().generation != generation;
    log_refusal(stream);
    reserve
}

/// Logs why a stream has no memory for its first bytes.
fn log_refusal(stream: &mut Stream) {
    if let Some(error) = stream.take_refusal() {
        tracing::warn!(stream = stream.label(), %error, "no memory for the first bytes of a stream, and perhaps of others");
    }
}

#[cfg(test)]
mod tests;
