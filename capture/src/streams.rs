//! Access to the streams while the capture thread holds them.

use std::fmt;
use std::sync::Arc;

use iof_shm_ring::{Attached, CreateError, ReaderId, ReaderPage, Start, Stream, StreamConfig, StreamStats};

use crate::event::{Event, PushId, SourceId, TargetId};
use crate::ioctl;
use crate::request::{Counted, Gating, Joined, SlowTargets, StreamAnswer, StreamRequest, StreamStep};
use crate::source_table::{EndedStreams, SourceTable};
use crate::targets::Targets;

/// All streams and targets of a capture, as seen by the closure of
/// [`Capture::with_streams`](crate::Capture::with_streams).
pub struct Streams<'a> {
    sources: &'a mut SourceTable,
    targets: &'a Targets,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(sources: &'a mut SourceTable, targets: &'a Targets) -> Self {
        Streams { sources, targets }
    }

    /// Returns whether a target can be fed: it exists, and its pipe has a reader.
    pub fn takes(&self, target: TargetId) -> bool {
        self.targets.takes(target)
    }

    /// Returns the slowest targets of a push. Returns `None` if the push does not exist or is over.
    pub fn lagging(&self, push: PushId) -> Option<SlowTargets> {
        self.targets.lagging(push)
    }

    /// Returns the stream of source `id`. Returns `None` if the source does not exist or was
    /// removed.
    pub fn get_mut(&mut self, id: SourceId) -> Option<Tap<'_>> {
        let index = self.sources.find(id)?;
        self.sources.source_mut(index).map(|source| Tap::of(source.stream_mut()))
    }

    /// Returns the number of bytes that were written or delivered to source `id` so far, bytes that
    /// are still in its pipe or queue included. Returns `None` if the source does not exist.
    pub fn written(&mut self, id: SourceId) -> Option<u64> {
        let index = self.sources.find(id)?;
        let source = self.sources.source_mut(index)?;
        let in_pipe = source.pipe().and_then(|pipe| ioctl::unread(pipe).ok());
        let unread = in_pipe.unwrap_or_else(|| source.queued());
        Some(source.stream().stats().produced.saturating_add(unread))
    }

    /// Performs the steps of a request. Returns the answers of those that have one.
    pub(crate) fn perform(&mut self, steps: Vec<StreamStep>) -> Vec<StreamAnswer> {
        steps.into_iter().filter_map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: StreamStep) -> Option<StreamAnswer> {
        if let StreamStep::Attach { source, .. } = &step
            && let Some(tap) = self.get_mut(*source)
            && step.needs_full_size(tap.stream)
        {
            // Before its first ring is allocated in a size that is too small for such a reader.
            tap.stream.grow();
        }
        Some(match step {
            StreamStep::Attach { source, page, reader, start, gating, remote, .. } => {
                let joined = self.get_mut(source).and_then(|mut tap| {
                    if remote && let Err(error) = tap.stream.allocate() {
                        // Not a warning: any tool could make the engine repeat it.
                        tracing::info!(%error, "a tool does not receive a stream");
                        return None;
                    }
                    let attached = match gating {
                        Gating::Never => tap.attach_non_gating(&page, reader, start),
                        Gating::Keep => tap.attach(&page, reader, start, false),
                        Gating::Block => tap.attach(&page, reader, start, true),
                        Gating::Hold => tap.attach_holder(&page, reader, start),
                    };
                    Some(tap.joined(attached.ok()?))
                });
                StreamAnswer::Joined(joined)
            }
            StreamStep::Follow { source, page, reader, new } => {
                let joined = self.get_mut(source).and_then(|mut tap| {
                    let attached = tap.follow(&page, reader, new)?;
                    Some(tap.joined(attached))
                });
                StreamAnswer::Joined(joined)
            }
            StreamStep::Detach { source, page, reader } => {
                self.get_mut(source)?.detach(&page, reader);
                return None;
            }
            StreamStep::Reconfigure { source, config } => {
                if let Err(error) = self.get_mut(source)?.reconfigure(config) {
                    tracing::error!(%error, "a stream keeps its configuration");
                }
                return None;
            }
            StreamStep::Count { source, readers } => StreamAnswer::Counted(self.get_mut(source).map(|tap| {
                let lags = readers.iter().map(|(page, reader)| tap.lag(page, *reader)).collect();
                Counted { stats: tap.stats(), lags }
            })),
            StreamStep::Takes(target) => StreamAnswer::Takes(self.takes(target)),
            StreamStep::Lagging(push) => StreamAnswer::Lagging(self.lagging(push)),
        })
    }

    /// Returns the ids of all sources, complete or not, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = SourceId> {
        self.sources.ids()
    }
}

impl EndedStreams {
    /// Performs `request`, as [`Capture::request`](crate::Capture::request) did before. Returns the
    /// event that reports the answers, if the request has an id. No target and no push is left.
    pub fn perform(&mut self, StreamRequest { id, steps }: StreamRequest) -> Option<Event> {
        let answers = Streams::new(&mut self.sources, &Targets::default()).perform(steps);
        Some(Event::Answered { request: id?, answers })
    }
}

/// Limited access to one stream: readers can be attached and detached, and counters read. The
/// kernel may be writing into the stream at the same time, so a tap can neither write to it nor
/// drop it. It allocates memory only for a stream that has none, into which the kernel cannot
/// write.
pub struct Tap<'a> {
    stream: &'a mut Stream,
}

impl<'a> Tap<'a> {
    /// Returns access to a stream that has not been added to a capture yet.
    pub fn of(stream: &'a mut Stream) -> Tap<'a> {
        Tap { stream }
    }

    /// Returns a reader that has just been attached, with the number of its generation.
    fn joined(&self, attached: Attached) -> Joined {
        Joined { attached, generation: self.stats().generation }
    }

    /// Changes capacity and policy as soon as nothing is in flight, see [`Stream::reconfigure`].
    ///
    /// # Errors
    /// [`CreateError::Capacity`].
    pub fn reconfigure(&mut self, config: StreamConfig) -> Result<(), CreateError> {
        self.stream.reconfigure(config)
    }

    /// Attaches a reader, see [`Stream::attach`]. A complete stream accepts readers as well.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no slot for `id`.
    pub fn attach(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
        may_block: bool,
    ) -> Result<Attached, CreateError> {
        self.stream.attach(page, id, start, may_block)
    }

    /// Attaches a non-gating reader, see [`Stream::attach_non_gating`].
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no slot for `id`.
    pub fn attach_non_gating(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
    ) -> Result<Attached, CreateError> {
        self.stream.attach_non_gating(page, id, start)
    }

    /// Attaches a reader that keeps bytes for later ones, see [`Stream::attach_holder`].
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no slot for `id`.
    pub fn attach_holder(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
    ) -> Result<Attached, CreateError> {
        self.stream.attach_holder(page, id, start)
    }

    /// Moves a reader to the newest generation, see [`Stream::follow`].
    pub fn follow(&mut self, page: &Arc<ReaderPage>, id: ReaderId, new_id: ReaderId) -> Option<Attached> {
        self.stream.follow(page, id, new_id)
    }

    /// Detaches a reader, see [`Stream::detach`]. Returns `false` if it is not attached.
    pub fn detach(&mut self, page: &Arc<ReaderPage>, id: ReaderId) -> bool {
        self.stream.detach(page, id)
    }

    /// Returns the number of bytes that a reader is behind, according to its own slot, see
    /// [`Stream::lag`].
    pub fn lag(&self, page: &Arc<ReaderPage>, id: ReaderId) -> Option<u64> {
        self.stream.lag(page, id)
    }

    /// Returns the stream's counters, see [`Stream::stats`].
    pub fn stats(&self) -> StreamStats {
        self.stream.stats()
    }

    /// Returns the readers that are still in an older generation, see [`Stream::left_behind`].
    pub fn left_behind(&self) -> Vec<(Arc<ReaderPage>, ReaderId)> {
        self.stream.left_behind()
    }
}

impl fmt::Debug for Streams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("ids", &self.ids().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Tap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
