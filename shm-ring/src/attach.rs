//! What a reader receives from the engine when it attaches: its ring, its id and its start.

use std::fmt;
use std::sync::Arc;

use crate::ring::Ring;

/// The number by which a stream and a reader page know a reader: the number of the page's slot that
/// contains the reader's words.
///
/// It identifies the reader together with the page. A page gives it to another reader once
/// [`ReaderPage::return_slot`](crate::ReaderPage::return_slot) has returned the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(u32);

impl ReaderId {
    /// Returns the number of slots from the first one up to this reader's, for
    /// [`ReaderPage::take_ready`](crate::ReaderPage::take_ready) and
    /// [`ReaderPage::arm`](crate::ReaderPage::arm).
    pub fn slots(self) -> u32 {
        self.0.saturating_add(1)
    }

    /// Returns the number as an index.
    pub(crate) fn index(self) -> usize {
        // The crate needs 64-bit pointers, so no number is cut.
        self.0 as usize
    }
}

impl From<u32> for ReaderId {
    /// Wraps a number that came from another process. No page has a slot for most numbers; the
    /// functions that take an id check that.
    fn from(number: u32) -> Self {
        ReaderId(number)
    }
}

impl From<ReaderId> for u32 {
    fn from(id: ReaderId) -> Self {
        id.0
    }
}

impl fmt::Display for ReaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
pub struct Attached {
    /// The generation to map.
    pub ring: Arc<Ring>,
    /// The reader's id in its reader page.
    pub id: ReaderId,
    /// Position of the reader's first byte.
    pub start: u64,
    /// Bytes of the stream that were dropped before `start`. A reader that starts at [`Start::Now`]
    /// does not count them as lost.
    pub dropped: u64,
    /// Whether the reader is non-gating, under any policy, see
    /// [`Stream::attach_non_gating`](crate::Stream::attach_non_gating).
    pub non_gating: bool,
}
