//! One pipe, or what is delivered in its place, the stream it flows into, and what it needs next.
//! No I/O here: whoever drives it does that, so that every backend drives the same machine.
//!
//! ```text
//!            next: room             done: n bytes, interrupted
//!     Idle ------------> Reading ------------------------------> Idle
//!          next: (nearly) full    done: readable
//!          ------------> Polling ------------------------------> Idle, and next(readable)
//!          next: must wait        next
//!          ------------> Waiting ------------------------------> (as from Idle)
//!          next: later, hung up    done
//!          ------------> Pausing ------------------------------> Idle
//!     any, once nothing is in flight: end -> Ended
//! ```

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::{Policy, Reserve, Span, Stream};
use nix::unistd::isatty;

use crate::event::{End, SourceId};
use crate::isolated::{IsolatedReader, ThreadId};
use crate::queue::{AfterPour, DeliveryQueue, Dequeued};

/// Bytes that one read asks for at most: what a pipe holds by default, see pipe(7).
pub const READ_MAX: usize = 64 * 1024;
/// Bytes that a write to a pipe in packet mode (O_DIRECT) puts together at most, see pipe(2): a
/// read that asks for fewer loses the rest, and nobody says so.
pub(crate) const PACKET_MAX: usize = libc::PIPE_BUF;

/// Where a source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is in flight.
    Idle,
    /// A read into the stream is in flight: the stream must neither be written nor dropped.
    Reading,
    /// The stream is full, or has no room for a packet, and drops the newest, or the pipe said "not
    /// now": waits until the pipe is readable.
    Polling,
    /// The stream is full and waits for its readers; nothing is in flight.
    Waiting,
    /// The kernel has no memory for the stream, or nobody has the terminal open at the moment; a
    /// pause is in flight.
    Pausing,
    /// No more bytes, ever; the pipe is closed.
    Ended,
}

/// What is to be done for a source now.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Read from the pipe into the span; then [`Source::done`].
    Read(BorrowedFd<'a>, Span),
    /// Wait until the pipe is readable; then [`Source::done`].
    Poll(BorrowedFd<'a>),
    /// Read the pipe, which is readable, into anywhere else; then [`Source::drained`].
    Drain(BorrowedFd<'a>),
    /// Read the pipe, which is readable, into [`PACKET_MAX`] bytes of memory; then
    /// [`Source::fetched`].
    Fetch(BorrowedFd<'a>),
    /// Call [`Source::next`] again when a reader may have made room.
    Wait,
    /// Let some time pass; then [`Source::done`].
    Pause,
    /// Nothing: something is in flight already, or the source has ended.
    Nothing,
}

/// What follows from something that was done.
#[derive(Debug)]
pub(crate) enum Step {
    /// Ask [`Source::next`], with this as its argument.
    Go { readable: bool },
    /// Say by [`Source::measured`] how much there is in the pipe: it is to be read to there.
    Measure,
    /// Call [`Source::end`] and report it.
    End(End),
}

/// What closing or finishing a source takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Cancel what is in flight: [`Source::done`] then says how to go on.
    Cancel,
    /// Nothing is in flight: [`Source::end`], or, to finish, [`Step::Measure`].
    Now,
    /// It is about to end, or has ended.
    Already,
}

/// How far a source has come that is to end with what its pipe has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// What its pipe has is not known: a request was in flight when it was asked, and may have
    /// taken some of it.
    Asked,
    /// So many bytes are wanted of it, at most.
    Wanted(u64),
}

/// Whether a queue can be poured.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Call [`Source::pour`].
    Now,
    /// It waits for room or time already.
    Later,
}

/// Where bytes come from.
enum Input {
    Pipe(Arc<OwnedFd>),
    Queue(DeliveryQueue),
    /// A pipe that a thread of its own reads, and what that has read.
    Isolated(DeliveryQueue, IsolatedReader),
    /// Nowhere any more.
    Ended,
}

/// Where bytes come from, and the stream that they flow into.
pub(crate) struct Source {
    id: SourceId,
    input: Input,
    stream: Stream,
    state: State,
    closing: bool,
    finish: Option<Finish>,
    /// The pipe is to be read by a thread of its own once nothing is in flight.
    isolating: bool,
    /// The kernel had no memory for bytes that the pipe has.
    no_memory: bool,
    /// The pipe has nothing and does not wait by itself: it is non-blocking, on a kernel that takes
    /// it at its word.
    not_now: bool,
    /// Somebody may open the terminal again when nobody has it open.
    reopenable: bool,
    /// Nobody has the terminal open at the moment.
    hung_up: bool,
    /// Readers have something to see since the last [`Source::take_ready`].
    news: bool,
}

impl Source {
    pub(crate) fn new(id: SourceId, pipe: OwnedFd, stream: Stream) -> Source {
        Source::of(id, Input::Pipe(Arc::new(pipe)), stream)
    }

    /// Without a pipe.
    pub(crate) fn open(id: SourceId, stream: Stream) -> Source {
        Source::of(id, Input::Queue(DeliveryQueue::default()), stream)
    }

    fn of(id: SourceId, input: Input, stream: Stream) -> Source {
        Source {
            id,
            input,
            stream,
            state: State::Idle,
            closing: false,
            finish: None,
            isolating: false,
            no_memory: false,
            not_now: false,
            reopenable: false,
            hung_up: false,
            news: false,
        }
    }

    pub(crate) fn id(&self) -> SourceId {
        self.id
    }

    /// The pipe, until the end.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        if let Input::Pipe(pipe) = &self.input { Some(pipe.as_fd()) } else { None }
    }

    /// The same, to be kept while it is in use elsewhere.
    pub(crate) fn shared_pipe(&self) -> Option<Arc<OwnedFd>> {
        if let Input::Pipe(pipe) = &self.input { Some(Arc::clone(pipe)) } else { None }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// For readers to come and go only: a read into the stream may be in flight.
    pub(crate) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Whether this is a terminal that somebody may open again when nobody has it open.
    pub(crate) fn set_reopenable(&mut self, reopenable: bool) {
        self.reopenable = reopenable;
    }

    /// Whether something is in flight.
    pub(crate) fn in_flight(&self) -> bool {
        matches!(self.state, State::Reading | State::Polling | State::Pausing)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether readers have something to see since the last call: bytes, a gap, a new generation,
    /// the end.
    pub(crate) fn take_ready(&mut self) -> bool {
        mem::take(&mut self.news)
    }

    /// What to do now; `readable` if the pipe is known to have bytes or to be at its end.
    pub(crate) fn next(&mut self, readable: bool) -> Next<'_> {
        if self.in_flight() {
            return Next::Nothing;
        }
        let Input::Pipe(pipe) = &self.input else { return Next::Nothing };
        let pipe = pipe.as_fd();
        if mem::take(&mut self.hung_up) {
            self.state = State::Pausing;
            return Next::Pause;
        }
        if mem::take(&mut self.not_now) && !readable {
            self.state = State::Polling;
            return Next::Poll(pipe);
        }
        if self.no_memory {
            let waits = matches!(self.stream.without_memory(), Reserve::Later);
            // Polled for first: whether it was the pipe's bytes that had no room is not known.
            self.no_memory = !waits && !readable;
            self.state = if waits { State::Pausing } else { State::Polling };
            return match (waits, readable) {
                (true, _) => Next::Pause,
                (false, false) => Next::Poll(pipe),
                (false, true) => {
                    self.state = State::Idle;
                    Next::Drain(pipe)
                }
            };
        }
        let generation = self.stream.stats().generation;
        let reserve = self.stream.reserve(READ_MAX);
        self.news |= self.stream.stats().generation != generation;
        let drops_newest = self.stream.policy() == Policy::DropNewest;
        match reserve {
            Reserve::Ready(span) if span.len >= PACKET_MAX || !drops_newest => {
                self.state = State::Reading;
                Next::Read(pipe, span)
            }
            // Polled for first: room may come before the next bytes do.
            Reserve::Ready(_) | Reserve::Discard if !readable => {
                self.state = State::Polling;
                Next::Poll(pipe)
            }
            Reserve::Ready(_) => {
                self.state = State::Idle;
                Next::Fetch(pipe)
            }
            Reserve::Discard => {
                self.state = State::Idle;
                Next::Drain(pipe)
            }
            Reserve::Wait => {
                self.state = State::Waiting;
                Next::Wait
            }
            Reserve::Later => {
                self.state = State::Pausing;
                Next::Pause
            }
        }
    }

    /// What was in flight came back at `time`: a read with its bytes, a poll, or a pause.
    pub(crate) fn done(&mut self, result: io::Result<usize>, time: u64) -> Step {
        match mem::replace(&mut self.state, State::Idle) {
            State::Reading => {
                if let Ok(n @ 1..) = result {
                    self.stream.commit(n, time);
                    self.news = true;
                }
                match result {
                    Err(error) if lacks_memory(&error) && !self.closing => {
                        self.no_memory = true;
                        if self.finish.is_some() { Step::Measure } else { Step::Go { readable: false } }
                    }
                    result => self.after(result),
                }
            }
            State::Polling if result.is_err() || self.closing => self.after(result),
            // However the pause came to its end.
            State::Pausing if self.closing => Step::End(End::Closed),
            State::Polling | State::Pausing if self.finish == Some(Finish::Asked) => Step::Measure,
            State::Polling => Step::Go { readable: true },
            State::Pausing => Step::Go { readable: false },
            // Nothing was in flight.
            other => {
                self.state = other;
                Step::Go { readable: false }
            }
        }
    }

    /// Bytes were read away at `time`.
    pub(crate) fn drained(&mut self, result: io::Result<usize>, time: u64) -> Step {
        if let Ok(n @ 1..) = result {
            self.stream.discard(n as u64, time);
            self.news = true;
        }
        self.after(result)
    }

    /// `bytes` were read at `time`: as many as there is room for are stored.
    pub(crate) fn fetched(&mut self, result: io::Result<&[u8]>, time: u64) -> Step {
        if let Ok(bytes @ [_, ..]) = result {
            let taken = self.stream.push(bytes, time);
            // The pipe does not take them back.
            if let rest @ 1.. = bytes.len().saturating_sub(taken) {
                self.stream.discard(rest as u64, time);
            }
            self.news = true;
        }
        self.after(result.map(<[u8]>::len))
    }

    fn after(&mut self, result: io::Result<usize>) -> Step {
        match result {
            Ok(0) => Step::End(End::EndOfFile),
            _ if self.closing => Step::End(End::Closed),
            Ok(bytes) => match &mut self.finish {
                Some(finish) => {
                    if let Finish::Wanted(wanted) = finish {
                        *wanted = wanted.saturating_sub(bytes as u64);
                    }
                    Step::Measure
                }
                None => Step::Go { readable: false },
            },
            // It was cancelled, and goes on in another thread.
            Err(error) if self.isolating && is_for_now(&error) => Step::Go { readable: false },
            Err(error) if self.finish == Some(Finish::Asked) && is_for_now(&error) => {
                self.not_now = error.kind() == io::ErrorKind::WouldBlock;
                Step::Measure
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Go { readable: false },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.not_now = true;
                Step::Go { readable: false }
            }
            // How a pty's master learns that nobody has the slave open any more, see read(2).
            Err(error) if error.raw_os_error() == Some(libc::EIO) && self.is_terminal() => {
                if !self.reopenable || self.finish.is_some() {
                    return Step::End(End::EndOfFile);
                }
                self.hung_up = true;
                Step::Go { readable: false }
            }
            Err(error) => Step::End(End::Error(error)),
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.pipe().is_some_and(|pipe| isatty(pipe).unwrap_or(false))
    }

    /// Asks for a thread of its own to read the pipe; terminals, which do not block, need none.
    pub(crate) fn isolate(&mut self) -> Close {
        if self.closing || self.pipe().is_none() || self.is_terminal() {
            return Close::Already;
        }
        self.isolating = true;
        if self.in_flight() { Close::Cancel } else { Close::Now }
    }

    /// Whether a thread is to read the pipe from now on.
    pub(crate) fn can_be_isolated(&self) -> bool {
        self.isolating && !self.in_flight()
    }

    /// Has the pipe read by `isolated` from now on, or, if there is no thread to be had, as before.
    /// Nothing may be in flight.
    pub(crate) fn isolated(&mut self, isolated: Option<IsolatedReader>) -> Step {
        self.isolating = false;
        self.state = State::Idle;
        match isolated {
            Some(isolated) => {
                if self.finish.is_some() {
                    isolated.finish();
                }
                self.input = Input::Isolated(DeliveryQueue::default(), isolated);
                Step::Go { readable: false }
            }
            // The read that it was asked during was cancelled, and nothing would cancel another.
            None if self.finish.is_some() => Step::Measure,
            None => Step::Go { readable: false },
        }
    }

    /// Whether what `thread` has found is for this source.
    pub(crate) fn is_read_by(&self, thread: &ThreadId) -> bool {
        matches!(&self.input, Input::Isolated(_, isolated) if isolated.is(thread))
    }

    /// Whether a thread of its own reads the pipe.
    pub(crate) fn is_isolated(&self) -> bool {
        matches!(self.input, Input::Isolated(..))
    }

    /// Has that thread go on if all that it found is in the stream.
    pub(crate) fn go_on_isolated(&self) {
        if let Input::Isolated(queue, isolated) = &self.input
            && queue.is_empty()
        {
            isolated.go_on();
        }
    }

    /// Whether its bytes come in deliveries.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(self.input, Input::Queue(_) | Input::Isolated(..))
    }

    /// Returns the bytes that were delivered, or read by a thread of its own, and are not in the
    /// stream.
    pub(crate) fn queued(&self) -> u64 {
        match &self.input {
            Input::Queue(queue) => queue.unread(),
            Input::Isolated(queue, isolated) => queue.unread().saturating_add(isolated.untaken()),
            Input::Pipe(_) | Input::Ended => 0,
        }
    }

    fn ready(&self) -> Ready {
        if self.state == State::Idle { Ready::Now } else { Ready::Later }
    }

    /// Takes a delivery; `None` if there are none to be taken, or no more.
    pub(crate) fn deliver(&mut self, bytes: Vec<u8>, time: u64) -> Option<Ready> {
        let Input::Queue(queue) = &mut self.input else { return None };
        queue.push(bytes, time).then(|| self.ready())
    }

    /// Takes what `thread` has read at `time`; `None` if that does not read for this source.
    pub(crate) fn take_read(&mut self, thread: &ThreadId, bytes: Vec<u8>, time: u64) -> Option<Ready> {
        let Input::Isolated(queue, isolated) = &mut self.input else { return None };
        if !isolated.is(thread) {
            return None;
        }
        isolated.take(bytes.len());
        queue.push(bytes, time).then(|| self.ready())
    }

    /// No delivery will follow, but for what a thread of its own finds in the pipe now; `None` if
    /// it is a pipe, or has ended.
    pub(crate) fn finish_queue(&mut self) -> Option<Ready> {
        match &mut self.input {
            Input::Queue(queue) => queue.finish(),
            Input::Isolated(_, isolated) => {
                isolated.finish();
                return Some(Ready::Later);
            }
            Input::Pipe(_) | Input::Ended => return None,
        }
        Some(self.ready())
    }

    /// Moves what was delivered into the stream, as far as it goes.
    pub(crate) fn pour(&mut self) -> (Dequeued, AfterPour) {
        if self.state == State::Pausing {
            return (Dequeued::default(), AfterPour::Nothing);
        }
        let (Input::Queue(queue) | Input::Isolated(queue, _)) = &mut self.input else {
            return (Dequeued::default(), AfterPour::Nothing);
        };
        let before = (self.stream.stats().generation, self.stream.stats().produced);
        let (taken, then) = queue.pour(&mut self.stream);
        self.news |= before != (self.stream.stats().generation, self.stream.stats().produced);
        self.state = match then {
            AfterPour::Wait => State::Waiting,
            AfterPour::Pause => State::Pausing,
            AfterPour::Nothing | AfterPour::End => State::Idle,
        };
        (taken, then)
    }

    /// Gives up what was delivered, or read by a thread of its own, and is not in the stream: it
    /// counts as dropped at `time`.
    pub(crate) fn drop_queued(&mut self, time: u64) -> Dequeued {
        let (Input::Queue(queue) | Input::Isolated(queue, _)) = &mut self.input else {
            return Dequeued::default();
        };
        let taken = queue.drop_queued(&mut self.stream);
        if let Input::Isolated(_, isolated) = &self.input
            && let untaken @ 1.. = isolated.untaken()
        {
            self.stream.discard(untaken, time);
        }
        taken
    }

    /// Asks for the end once what the pipe has now is read. Asked twice, the first time counts.
    pub(crate) fn finish(&mut self) -> Close {
        if self.closing || self.finish.is_some() || self.has_ended() {
            return Close::Already;
        }
        self.finish = Some(Finish::Asked);
        if self.in_flight() { Close::Cancel } else { Close::Now }
    }

    /// Nothing is in flight, and the pipe has `unread` bytes, or some that were read or flushed by
    /// then less.
    pub(crate) fn measured(&mut self, unread: u64) -> Step {
        let wanted = match self.finish {
            Some(Finish::Wanted(wanted)) => wanted.min(unread),
            _ => unread,
        };
        self.finish = Some(Finish::Wanted(wanted));
        if wanted == 0 { Step::End(End::Closed) } else { Step::Go { readable: false } }
    }

    /// Asks for the end, with what the stream has.
    pub(crate) fn close(&mut self) -> Close {
        self.closing = true;
        match self.state {
            State::Reading | State::Polling | State::Pausing => Close::Cancel,
            State::Idle | State::Waiting => Close::Now,
            State::Ended => Close::Already,
        }
    }

    /// Closes the pipe and completes the stream. Nothing may be in flight.
    pub(crate) fn end(&mut self) {
        self.input = Input::Ended;
        self.state = State::Ended;
        self.stream.complete();
        self.news = true;
    }
}

/// Whether a read that failed so may bring bytes another time: it was cancelled, interrupted, or
/// there were none.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        || error.raw_os_error() == Some(libc::ECANCELED)
}

/// Whether a read failed because there is no memory for its bytes, where it was to put them or in
/// the kernel.
fn lacks_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EFAULT | libc::ENOMEM))
}

#[cfg(test)]
mod tests;
