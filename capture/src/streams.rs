//! What a caller may do with the streams while the capture thread holds them.

use std::sync::Arc;

use iof_shm_ring::{Area, Attached, CreateError, Start, Stream, StreamStats};

use crate::desk::Desk;
use crate::event::SourceId;

/// All streams of a capture, seen from [`Capture::with_streams`](crate::Capture::with_streams).
pub struct Streams<'a> {
    desk: &'a mut Desk,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(desk: &'a mut Desk) -> Self {
        Streams { desk }
    }

    /// The stream of source `id`; `None` if there is none, or it was removed.
    pub fn get_mut(&mut self, id: SourceId) -> Option<Tap<'_>> {
        let at = self.desk.find(id)?;
        self.desk.source_mut(at).map(|source| Tap { stream: source.stream_mut() })
    }

    /// The sources, complete or not, in no order.
    pub fn ids(&self) -> impl Iterator<Item = SourceId> {
        self.desk.ids()
    }
}

/// One stream, as far as others than the capture thread may touch it: readers come and go. The kernel may be
/// writing into it at this very moment, so it can neither be written nor taken away.
pub struct Tap<'a> {
    stream: &'a mut Stream,
}

impl Tap<'_> {
    /// Adds a reader, see [`Stream::attach`]. A complete stream takes readers as well.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the area has no such slot.
    pub fn attach(
        &mut self,
        area: &Arc<Area>,
        slot: u32,
        start: Start,
        may_block: bool,
    ) -> Result<Attached, CreateError> {
        self.stream.attach(area, slot, start, may_block)
    }

    /// Moves a reader to the newest generation, see [`Stream::follow`].
    pub fn follow(&mut self, area: &Arc<Area>, slot: u32, new_slot: u32) -> Option<Attached> {
        self.stream.follow(area, slot, new_slot)
    }

    /// Forgets a reader, see [`Stream::detach`]; `false` if there is none.
    pub fn detach(&mut self, area: &Arc<Area>, slot: u32) -> bool {
        self.stream.detach(area, slot)
    }

    /// Bytes that a reader is behind by its own word, see [`Stream::lag`].
    pub fn lag(&self, area: &Arc<Area>, slot: u32) -> Option<u64> {
        self.stream.lag(area, slot)
    }

    /// The counters, see [`Stream::stats`].
    pub fn stats(&self) -> StreamStats {
        self.stream.stats()
    }

    /// The readers that are in an older generation, see [`Stream::left_behind`].
    pub fn left_behind(&self) -> Vec<(Arc<Area>, u32)> {
        self.stream.left_behind()
    }
}
