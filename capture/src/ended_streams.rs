//! The streams that a capture thread leaves when it ends.

use std::fmt;
use std::mem;

use crate::event::{Event, SourceId};
use crate::request::StreamRequest;
use crate::sources::Sources;
use crate::streams::Streams;
use crate::targets::Targets;

/// The streams of a capture that has ended. All of them are complete, and readers can still be
/// attached to them, moved to their last generations, and detached.
///
/// Dropping it drops the streams. Readers keep their mappings. If the kernel has not answered a
/// read into a stream, the memory of all streams stays mapped until the process ends.
#[derive(Default)]
pub struct EndedStreams {
    sources: Sources,
    /// The kernel may still write to the memory of a stream.
    in_flight: bool,
}

impl EndedStreams {
    pub(crate) fn new(sources: Sources, in_flight: bool) -> EndedStreams {
        EndedStreams { sources, in_flight }
    }

    /// Performs `request`, as [`Capture::request`](crate::Capture::request) did before. Returns the
    /// event that reports the answers, if the request has an id. No target and no push is left.
    pub fn perform(&mut self, StreamRequest { id, steps }: StreamRequest) -> Option<Event> {
        let answers = Streams::new(&mut self.sources, &Targets::default()).perform(steps);
        Some(Event::Answered { request: id?, answers })
    }

    /// Drops a stream, as [`Capture::remove`](crate::Capture::remove) did before.
    pub fn remove(&mut self, id: SourceId) {
        // The memory of any of them may be the one that the kernel still uses.
        if !self.in_flight {
            self.sources.remove_ended(id);
        }
    }

    /// Drops the streams for which `keep` returns `false`.
    pub fn retain(&mut self, keep: impl Fn(SourceId) -> bool) {
        let ids: Vec<SourceId> = self.sources.ids().filter(|id| !keep(*id)).collect();
        ids.into_iter().for_each(|id| self.remove(id));
    }
}

impl Drop for EndedStreams {
    fn drop(&mut self) {
        if mem::take(&mut self.in_flight) {
            self.sources.leak();
        }
    }
}

impl fmt::Debug for EndedStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndedStreams").field("streams", &self.sources.ids().count()).finish_non_exhaustive()
    }
}
