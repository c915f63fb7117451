//! Many streams at a time: for those who write what comes on, in few calls.
//!
//! Where [`Tool::next`] gives one thing after the other, [`Tool::poll_ready`] names all streams
//! with news. Each is [looked at](Tool::peek) once; the bytes of many are borrowed together, and
//! consumed or left one by one.

use std::time::Instant;

use iof_proto::Missed;
use iof_shm_ring::Gap;

use crate::delivery::{Bytes, Origin, origin};
use crate::error::LostError;
use crate::feed::{Counts, Feed, Item};
use crate::feeds::FeedId;
use crate::tool::{Event, Poll, Tool};

/// What [`Tool::poll_ready`] waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollReady {
    /// Some streams may have news.
    Ready,
    /// The time is over.
    Quiet,
    /// Every stream of every registration is over.
    Done,
}

/// What a stream has, see [`Tool::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// [`Tool::bytes`] gives bytes.
    Bytes,
    /// Bytes are missing here.
    Gap(Gap),
    /// Nothing now.
    Nothing,
    /// It is complete, and all of it was consumed or reported as gaps.
    Complete(Counts),
    /// The engine went away before it was complete.
    Gone(Counts),
    /// Its registration ends, and what there was before was consumed.
    Flushed,
}

impl Tool {
    /// Waits for news, until `deadline` at most (`None`: without end), and puts the streams that
    /// may have some into `streams`. Those that were named before come again until a look found
    /// nothing, or they were [left](Tool::defer).
    ///
    /// It is for bytes: that jobs have ended is not told, callbacks are not called, and streams
    /// that do not come are told of by [`Tool::take_missed`]. Not to be mixed with
    /// [`Tool::next`] and [`Tool::dispatch`].
    ///
    /// # Errors
    /// As [`Tool::next`].
    pub fn poll_ready(
        &mut self,
        deadline: Option<Instant>,
        streams: &mut Vec<FeedId>,
    ) -> Result<PollReady, LostError> {
        streams.clear();
        let poll = self.poll(deadline, Tool::is_drained)?;
        if !self.events.is_empty() {
            let missed = |event| if let Event::Missed { missed, .. } = event { Some(missed) } else { None };
            self.missed.extend(self.events.drain(..).filter_map(missed));
            self.registrations.retain(|_, registration| !registration.is_over());
        }
        streams.extend_from_slice(self.feeds.active());
        Ok(match poll {
            Poll::Ready => PollReady::Ready,
            Poll::Quiet => PollReady::Quiet,
            Poll::Done => PollReady::Done,
        })
    }

    /// Returns streams that do not come because this tool read too few, as in
    /// [`Delivery::Missed`](crate::Delivery), if [`Tool::poll_ready`] has heard of any.
    pub fn take_missed(&mut self) -> Option<Missed> {
        self.missed.pop_front()
    }

    /// What comes next in a stream; a gap or an end is told once.
    pub fn peek(&mut self, stream: FeedId) -> Peeked {
        let Some(feed) = self.feeds.get_mut(stream).filter(|feed| !feed.is_over()) else {
            return Peeked::Nothing;
        };
        match feed.next() {
            Item::Bytes => Peeked::Bytes,
            Item::Gap(gap) => Peeked::Gap(gap),
            Item::Quiet => Peeked::Nothing,
            Item::Ended => Peeked::Complete(feed.counts()),
            Item::Gone => Peeked::Gone(feed.counts()),
            Item::Flushed => Peeked::Flushed,
        }
    }

    /// The bytes that a look found. They may be borrowed together with those of other streams.
    pub fn bytes(&self, stream: FeedId) -> Option<Bytes<'_>> {
        self.feeds.get(stream).map(|feed| Bytes { feed })
    }

    /// Which stream it is.
    pub fn origin(&self, stream: FeedId) -> Option<Origin<'_>> {
        self.feeds.get(stream).map(origin)
    }

    /// Whether a stream stands still although its source may have more: the source has to wait
    /// until a reader makes room, or the stream goes on in a ring that has not come yet.
    pub fn is_stalled(&self, stream: FeedId) -> bool {
        self.feeds.get(stream).is_some_and(Feed::is_stalled)
    }

    /// Consumes the first `n` of the bytes that a look found (at most all), which makes room for
    /// the source. The others come again.
    pub fn consume_from(&mut self, stream: FeedId, n: usize) {
        if let Some(feed) = self.feeds.get_mut(stream) {
            feed.consume(feed.bytes().len().min(n));
            feed.release();
        }
    }

    /// Leaves what a look found where it is: the stream is named again when it has more, or an end.
    pub fn defer(&mut self, stream: FeedId) {
        if let Some(feed) = self.feeds.get_mut(stream) {
            feed.leave();
        }
    }

    /// Has a stream that was left named again by the next [`Tool::poll_ready`], which does not wait
    /// then.
    pub fn rearm(&mut self, stream: FeedId) {
        self.feeds.activate(stream);
    }

    /// Whether all that can still come is of one stream: one channel of one process.
    pub fn has_one_stream(&self) -> bool {
        self.all_announced() && self.feeds.len() <= 1
    }
}
