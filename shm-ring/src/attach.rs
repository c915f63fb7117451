//! What passes from the writer's side to a reader when it comes: where it starts, and what it gets.

use std::sync::Arc;

use crate::ring::Ring;

/// Where a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest byte in the cache; what was before it is reported as the first gap.
    Oldest,
    /// Behind the newest byte; what was before is none of this reader's business.
    Now,
}

/// What a reader needs to read: send it the ring's file, the slot and the start.
#[derive(Clone)]
pub struct Attached {
    /// The generation to map.
    pub ring: Arc<Ring>,
    /// The slot that was given.
    pub slot: u32,
    /// Position of its first byte.
    pub start: u64,
    /// Bytes that were dropped before it: a reader that starts [now](Start::Now) has nothing to do
    /// with them.
    pub dropped: u64,
    /// The writer passes this reader, whatever the ring's discipline: see
    /// [`Stream::attach_non_gating`](crate::Stream::attach_non_gating).
    pub non_gating: bool,
}
