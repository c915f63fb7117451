//! What a caller may do with the streams while the capture thread holds them.

use std::sync::Arc;

use iof_shm_ring::{Attached, CreateError, ReaderPage, Start, Stream, StreamConfig, StreamStats};

use crate::event::{PushId, SourceId, TargetId};
use crate::ioctl;
use crate::sources::Sources;
use crate::targets::{SlowTargets, Targets};

/// All streams and targets of a capture, seen from
/// [`Capture::with_streams`](crate::Capture::with_streams).
pub struct Streams<'a> {
    sources: &'a mut Sources,
    targets: &'a Targets,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(sources: &'a mut Sources, targets: &'a Targets) -> Self {
        Streams { sources, targets }
    }

    /// Whether what is fed to a target can reach somebody: it is there, and its pipe has a reader.
    pub fn takes(&self, target: TargetId) -> bool {
        self.targets.takes(target)
    }

    /// Who holds a push back; `None` if there is none of this name, or it is over.
    pub fn lagging(&self, push: PushId) -> Option<SlowTargets> {
        self.targets.lagging(push)
    }

    /// The stream of source `id`; `None` if there is none, or it was removed.
    pub fn get_mut(&mut self, id: SourceId) -> Option<Tap<'_>> {
        let index = self.sources.find(id)?;
        self.sources.source_mut(index).map(|source| Tap::of(source.stream_mut()))
    }

    /// Bytes that the source `id` has written so far, read or still in its pipe, or that were
    /// delivered to it; `None` if there is no such source.
    pub fn written(&mut self, id: SourceId) -> Option<u64> {
        let index = self.sources.find(id)?;
        let source = self.sources.source_mut(index)?;
        let in_pipe = source.pipe().and_then(|pipe| ioctl::unread(pipe).ok());
        let unread = in_pipe.unwrap_or_else(|| source.queued());
        Some(source.stream().stats().produced.saturating_add(unread))
    }

    /// The sources, complete or not, in no order.
    pub fn ids(&self) -> impl Iterator<Item = SourceId> {
        self.sources.ids()
    }
}

/// One stream, as far as others than the capture thread may touch it: readers come and go. The
/// kernel may be writing into it at this very moment, so it can neither be written nor taken away.
pub struct Tap<'a> {
    stream: &'a mut Stream,
}

impl<'a> Tap<'a> {
    /// The same for a stream that is still to be added.
    pub fn of(stream: &'a mut Stream) -> Tap<'a> {
        Tap { stream }
    }

    /// Changes capacity and policy when nothing is in flight, see [`Stream::reconfigure`].
    ///
    /// # Errors
    /// [`CreateError::Capacity`].
    pub fn reconfigure(&mut self, config: StreamConfig) -> Result<(), CreateError> {
        self.stream.reconfigure(config)
    }

    /// Adds a reader, see [`Stream::attach`]. A complete stream takes readers as well.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no such slot.
    pub fn attach(
        &mut self,
        page: &Arc<ReaderPage>,
        slot: u32,
        start: Start,
        may_block: bool,
    ) -> Result<Attached, CreateError> {
        self.stream.attach(page, slot, start, may_block)
    }

    /// Adds a reader that the writer passes, see [`Stream::attach_non_gating`].
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no such slot.
    pub fn attach_non_gating(
        &mut self,
        page: &Arc<ReaderPage>,
        slot: u32,
        start: Start,
    ) -> Result<Attached, CreateError> {
        self.stream.attach_non_gating(page, slot, start)
    }

    /// Moves a reader to the newest generation, see [`Stream::follow`].
    pub fn follow(&mut self, page: &Arc<ReaderPage>, slot: u32, new_slot: u32) -> Option<Attached> {
        self.stream.follow(page, slot, new_slot)
    }

    /// Forgets a reader, see [`Stream::detach`]; `false` if there is none.
    pub fn detach(&mut self, page: &Arc<ReaderPage>, slot: u32) -> bool {
        self.stream.detach(page, slot)
    }

    /// Bytes that a reader is behind by its own word, see [`Stream::lag`].
    pub fn lag(&self, page: &Arc<ReaderPage>, slot: u32) -> Option<u64> {
        self.stream.lag(page, slot)
    }

    /// The counters, see [`Stream::stats`].
    pub fn stats(&self) -> StreamStats {
        self.stream.stats()
    }

    /// The readers that are in an older generation, see [`Stream::left_behind`].
    pub fn left_behind(&self) -> Vec<(Arc<ReaderPage>, u32)> {
        self.stream.left_behind()
    }
}
