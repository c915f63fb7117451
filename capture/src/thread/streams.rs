//! Access to the streams while the capture thread holds them.

use std::fmt;

use iof_shm_ring::{Attached, Stream};

use crate::ioctl;
use crate::messages::command::Command;
use crate::messages::event::{Event, PushId, SourceId, TargetId};
use crate::messages::request::{
    Counted, Gating, Joined, SlowTargets, StreamAnswer, StreamRequest, StreamStep,
};
use crate::source::Source;
use crate::source::source_table::{EndedStreams, SourceTable};
use crate::thread::targets::Targets;

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

    /// Returns the stream of source `id`, to read its counters. Returns `None` if the source does not
    /// exist or was removed.
    pub fn get(&self, id: SourceId) -> Option<&Stream> {
        self.sources.source(self.sources.find(id)?).map(Source::stream)
    }

    fn get_mut(&mut self, id: SourceId) -> Option<&mut Stream> {
        let index = self.sources.find(id)?;
        self.sources.source_mut(index).map(Source::stream_mut)
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

    /// Performs steps as a [`Command::Request`] does. Returns the answers of those that have one.
    /// The kernel may be writing into a stream at the same time, so no step writes to one or drops
    /// it. A step allocates memory only for a stream that has none, into which the kernel cannot
    /// write.
    pub fn perform(&mut self, steps: Vec<StreamStep>) -> Vec<StreamAnswer> {
        steps.into_iter().filter_map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: StreamStep) -> Option<StreamAnswer> {
        Some(match step {
            StreamStep::Attach { source, .. } => {
                let stream = self.get_mut(source);
                StreamAnswer::Joined(stream.and_then(|stream| attach(stream, step)))
            }
            StreamStep::Follow { source, page, reader, new } => {
                StreamAnswer::Joined(self.get_mut(source).and_then(|stream| {
                    let attached = stream.follow(&page, reader, new)?;
                    Some(joined(stream, attached))
                }))
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
            StreamStep::Count { source, readers } => StreamAnswer::Counted(self.get(source).map(|stream| {
                let lags = readers.iter().map(|(page, reader)| stream.lag(page, *reader)).collect();
                Counted { stats: stream.stats(), lags }
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
    /// Performs those commands of a batch that need only the streams, as
    /// [`Capture::send`](crate::Capture::send) did before: requests and removals. Returns the
    /// events that follow, and those that stand for the effects of the other commands. No target and
    /// no push is left.
    pub fn perform(&mut self, batch: impl IntoIterator<Item = Command>) -> Vec<Event> {
        let mut events = Vec::new();
        for command in batch {
            match command {
                Command::Request(StreamRequest { id, steps }) => {
                    let answers = Streams::new(&mut self.sources, &Targets::default()).perform(steps);
                    events.extend(id.map(|request| Event::Answered { request, answers }));
                }
                Command::Remove(source) => self.remove(source),
                command => events.append(&mut command.refused()),
            }
        }
        events
    }
}

/// Attaches a reader, see [`StreamStep::Attach`].
fn attach(stream: &mut Stream, step: StreamStep) -> Option<Joined> {
    if step.needs_full_size(stream) {
        // Before its first ring is allocated in a size that is too small for such a reader.
        stream.grow();
    }
    let StreamStep::Attach { page, reader, start, gating, remote, .. } = step else { return None };
    if remote && let Err(error) = stream.allocate() {
        // Not a warning: any tool could make the engine repeat it.
        tracing::info!(%error, "a tool does not receive a stream");
        return None;
    }
    let attached = match gating {
        Gating::Never => stream.attach_non_gating(&page, reader, start),
        Gating::Keep => stream.attach(&page, reader, start, false),
        Gating::Block => stream.attach(&page, reader, start, true),
        Gating::Hold => stream.attach_holder(&page, reader, start),
    };
    Some(joined(stream, attached.ok()?))
}

/// Returns a reader that has just been attached, with the number of its generation.
fn joined(stream: &Stream, attached: Attached) -> Joined {
    Joined { attached, generation: stream.stats().generation }
}

impl fmt::Debug for Streams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("ids", &self.ids().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
