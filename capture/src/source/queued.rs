//! Sources without a pipe of their own: bytes that were delivered, or that the thread of an
//! isolated pipe has read, wait in a queue and are poured into the stream.

use super::{Input, Ready, Source, SourceState, log_refusal};
use crate::source::isolated::ThreadId;
use crate::source::queue::{AfterPour, Dequeued, SourceBytes};

impl Source {
    /// Returns whether `thread` reads this source's pipe.
    pub(crate) fn is_read_by(&self, thread: &ThreadId) -> bool {
        matches!(&self.input, Input::Isolated(_, reader) if reader.is(thread))
    }

    /// Returns whether a thread of its own reads the pipe.
    pub(crate) fn is_isolated(&self) -> bool {
        matches!(self.input, Input::Isolated(..))
    }

    /// Lets the thread of an isolated source read again if the stream has all bytes that it read.
    pub(crate) fn go_on_isolated(&self) {
        if let Input::Isolated(queue, reader) = &self.input
            && queue.is_empty()
        {
            reader.go_on();
        }
    }

    /// Returns whether the bytes arrive through a queue.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(self.input, Input::Queue(_) | Input::Isolated(..))
    }

    /// Returns the number of bytes that were delivered, or read by a thread of its own, and are not
    /// in the stream.
    pub(crate) fn queued(&self) -> u64 {
        match &self.input {
            Input::Queue(queue) => queue.unread(),
            Input::Isolated(queue, reader) => queue.unread().saturating_add(reader.untaken()),
            Input::Pipe(_) | Input::Ended => 0,
        }
    }

    /// Returns whether the queue can be poured now.
    fn ready(&self) -> Ready {
        if self.state == SourceState::Idle { Ready::Now } else { Ready::Later }
    }

    /// Queues a delivery, with `now` as its time unless it has one. Returns `None`, and drops it,
    /// if the source has a pipe, is finished or has ended.
    pub(crate) fn deliver(&mut self, delivery: SourceBytes, now: u64) -> Option<Ready> {
        let Input::Queue(queue) = &mut self.input else { return None };
        queue.push(delivery, now).then(|| self.ready())
    }

    /// Queues the bytes that `thread` has read at `time`. Returns `None`, and drops them, if it
    /// does not read this source's pipe.
    pub(crate) fn take_read(&mut self, thread: &ThreadId, bytes: Vec<u8>, time: u64) -> Option<Ready> {
        let Input::Isolated(queue, reader) = &mut self.input else { return None };
        if !reader.is(thread) {
            return None;
        }
        reader.take(bytes.len());
        queue.push(bytes.into(), time).then(|| self.ready())
    }

    /// Finishes the queue: no delivery will follow, except for the bytes that a thread of its own
    /// still reads from the pipe. Returns `None` if the source has no queue.
    pub(crate) fn finish_queue(&mut self) -> Option<Ready> {
        match &mut self.input {
            Input::Queue(queue) => queue.finish(),
            Input::Isolated(_, reader) => {
                reader.finish();
                return Some(Ready::Later);
            }
            Input::Pipe(_) | Input::Ended => return None,
        }
        Some(self.ready())
    }

    /// Moves queued bytes into the stream until the queue is empty or the stream takes no more.
    pub(crate) fn pour(&mut self) -> (Dequeued, AfterPour) {
        if self.state == SourceState::Pausing {
            return (Dequeued::default(), AfterPour::Nothing);
        }
        let (Input::Queue(queue) | Input::Isolated(queue, _)) = &mut self.input else {
            return (Dequeued::default(), AfterPour::Nothing);
        };
        let before = (self.stream.stats().generation, self.stream.stats().produced);
        let (dequeued, after_pour) = queue.pour(&mut self.stream);
        log_refusal(&mut self.stream);
        self.is_ready |= before != (self.stream.stats().generation, self.stream.stats().produced);
        self.state = match after_pour {
            AfterPour::Wait => SourceState::Waiting,
            AfterPour::Pause => SourceState::Pausing,
            AfterPour::Nothing | AfterPour::End => SourceState::Idle,
        };
        if self.state != SourceState::Waiting {
            self.starved = 0;
        }
        (dequeued, after_pour)
    }

    /// Discards the bytes that were delivered, or read by a thread of its own, and are not in the
    /// stream. The stream counts them as dropped at `time`.
    pub(crate) fn drop_queued(&mut self, time: u64) -> Dequeued {
        let (Input::Queue(queue) | Input::Isolated(queue, _)) = &mut self.input else {
            return Dequeued::default();
        };
        let dequeued = queue.drop_queued(&mut self.stream);
        if let Input::Isolated(_, reader) = &self.input
            && let untaken @ 1.. = reader.untaken()
        {
            self.stream.discard(untaken, time);
        }
        dequeued
    }
}
