//! The parts that a reader receives from the engine when it attaches: its ring, its id and its
//! start.

use std::sync::Arc;

use crate::reader_id::ReaderId;
use crate::ring::Ring;

/// The position at which a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest byte in the cache. The bytes before it are reported as the first gap.
    Oldest,
    /// Behind the newest byte. Earlier bytes are neither reported to this reader nor counted as
    /// lost.
    Now,
}

/// All that a reader needs: to attach a reader in another process, send it the ring's file and the
/// other fields.
#[derive(Clone, Debug)]
pub struct Attached<R = Arc<Ring>> {
    /// The generation to map.
    pub ring: R,
    /// The reader's id in its reader page.
    pub id: ReaderId,
    /// Position of the reader's first byte.
    pub start: u64,
    /// Bytes of the stream that were dropped before `start`. A reader that starts at [`Start::Now`]
    /// does not count them as lost.
    pub dropped: u64,
    /// Set if the reader is non-gating, under any policy, see
    /// [`Stream::attach_non_gating`](crate::Stream::attach_non_gating).
    pub non_gating: bool,
}

impl Attached {
    /// Returns the ring apart from the rest.
    pub fn without_ring(self) -> (Attached<()>, Arc<Ring>) {
        let Attached { ring, id, start, dropped, non_gating } = self;
        (Attached { ring: (), id, start, dropped, non_gating }, ring)
    }
}
