//! The reading of streams without a connection, for simulators.

use std::sync::Arc;

use iof_shm_ring::{Attached, Grouping, OpenError, ReaderId, ReaderPage, Ring, Ringer, Start};

use crate::batch_reader::{self, Peeked};
pub use crate::feed::StreamInfo;
use crate::feed::{Counts, Feed, reader};
use crate::feeds::{FeedId, Feeds, Settled};

/// The streams that a tool reads, as [`Tool`](crate::Tool) keeps them. The caller carries the
/// messages.
#[derive(Default)]
pub struct ReadingSide {
    feeds: Feeds,
}

/// A stream that is announced to a tool.
#[derive(Debug)]
pub struct NewStream {
    /// The handler of the registration.
    pub handler: u32,
    /// What the stream is.
    pub stream: StreamInfo,
    /// The first ring.
    pub ring: Attached,
    /// Where the registration starts.
    pub start: Start,
    /// The bell to ring when there is room.
    pub room: Option<Arc<Ringer>>,
    /// How the bytes are grouped.
    pub grouping: Option<Grouping>,
}

/// What a tool sends to the engine after it has read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The readers that request the next generation of their streams.
    pub follow: Vec<ReaderId>,
    /// The readers that have drained their streams, and no longer use their slots. Each with the
    /// handler of its registration and its stream.
    pub drained: Vec<(ReaderId, u32, StreamInfo)>,
}

impl std::fmt::Debug for ReadingSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadingSide").field("streams", &self.feeds.len()).finish_non_exhaustive()
    }
}

impl ReadingSide {
    /// Takes the first ring of a stream: what a tool does when a ring is announced to it.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no slot for the reader.
    ///
    /// # Safety
    /// As for [`Reader::new`](iof_shm_ring::Reader::new), where [`Requests::follow`] and
    /// [`Requests::drained`] are what releases a slot.
    pub unsafe fn add(&mut self, page: &Arc<ReaderPage>, stream: NewStream) -> Result<(), OpenError> {
        let NewStream { handler, stream, ring, start, room, grouping } = stream;
        self.feeds.use_slot(ring.id);
        let mut reader = reader(ring, Arc::clone(page), start)?;
        if let Some(room) = room {
            reader.set_room_bell(room);
        }
        if grouping.is_some() {
            reader.group(grouping);
        }
        self.feeds.add(Feed::new(handler, stream, reader));
        Ok(())
    }

    /// Takes a further ring of the stream whose reader is `old`.
    ///
    /// # Safety
    /// As for [`Reader::follow`](iof_shm_ring::Reader::follow).
    pub unsafe fn follow(&mut self, old: ReaderId, ring: Attached) {
        self.feeds.use_slot(ring.id);
        self.feeds.next_generation(old, ring);
    }

    /// Activates the streams whose ready bits are set, and those whose groups are due.
    pub fn take_ready(&mut self, page: &ReaderPage) {
        self.feeds.take_ready(page);
        self.feeds.take_due();
    }

    /// Returns whether a group of bytes is withheld until a time.
    pub fn has_due(&self) -> bool {
        self.feeds.next_due().is_some()
    }

    /// Returns the streams that may have something to read.
    pub fn active(&self) -> Vec<FeedId> {
        self.feeds.active().to_vec()
    }

    /// See [`BatchReader::peek`](crate::BatchReader::peek).
    pub fn peek(&mut self, stream: FeedId) -> Peeked {
        batch_reader::peek(&mut self.feeds, stream)
    }

    /// Returns the bytes that [`ReadingSide::peek`] found.
    pub fn bytes(&self, stream: FeedId) -> &[u8] {
        self.feeds.get(stream).map_or(&[], Feed::bytes)
    }

    /// Returns the positions and times of these bytes, see
    /// [`Reader::times`](iof_shm_ring::Reader::times).
    pub fn times(&self, stream: FeedId) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        self.feeds.get(stream).inspect(|feed| feed.times(&mut times));
        times
    }

    /// See [`BatchReader::consume`](crate::BatchReader::consume). With `release`, the remaining
    /// bytes are not borrowed any longer.
    pub fn consume(&mut self, stream: FeedId, n: usize, release: bool) {
        if let Some(feed) = self.feeds.get_mut(stream) {
            feed.consume(feed.bytes().len().min(n));
            if release {
                feed.release();
            }
        }
    }

    /// See [`BatchReader::defer`](crate::BatchReader::defer).
    pub fn defer(&mut self, stream: FeedId) {
        if let Some(feed) = self.feeds.get_mut(stream) {
            feed.defer();
        }
    }

    /// See [`BatchReader::rearm`](crate::BatchReader::rearm).
    pub fn rearm(&mut self, stream: FeedId) {
        self.feeds.activate(stream);
    }

    /// Ends the streams of a registration at their present positions, see
    /// [`Tool::deregister`](crate::Tool::deregister). Returns the number of stored bytes that are
    /// still to be read, as far as they are in the rings that the streams read now.
    pub fn flush(&mut self, handler: u32) -> u64 {
        self.feeds.flush(handler);
        self.feeds.unread(handler)
    }

    /// Records that the engine has ended.
    pub fn engine_gone(&mut self) {
        self.feeds.engine_gone();
    }

    /// Drops the streams that were read to their ends, and returns what is to be sent.
    pub fn settle(&mut self) -> Requests {
        let Settled { drained, over, .. } = self.feeds.settle();
        let drained_streams =
            over.iter().map(|feed| (feed.reader_id(), feed.handler(), feed.info())).collect();
        Requests { follow: drained, drained: drained_streams }
    }

    /// Announces that the tool is about to sleep, see [`ReaderPage::arm`].
    pub fn arm(&self, page: &ReaderPage) -> bool {
        page.arm(self.feeds.slots())
    }

    /// Returns the handler of a stream's registration, and the stream's counters.
    pub fn counts(&self, stream: FeedId) -> Option<(u32, Counts)> {
        self.feeds.get(stream).map(|feed| (feed.handler(), feed.counts()))
    }

    /// Returns the identity of a stream.
    pub fn info(&self, stream: FeedId) -> Option<StreamInfo> {
        self.feeds.get(stream).map(Feed::info)
    }

    /// Calls `each` with every ring that is mapped for these streams.
    pub fn rings(&self, each: impl FnMut(&Ring)) {
        self.feeds.rings().for_each(each);
    }

    /// Returns whether no stream is left.
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty()
    }
}
