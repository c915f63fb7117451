//! Growth: a stream begins in a small ring and continues in one of its configured size.
//!
//! A small ring stays in the processor's cache, which makes bulk output of many sources cheaper. It
//! is enough while every reader may hold the source back, because such a reader loses nothing. The
//! next generation has the configured size when
//! * a reader attaches that may not hold the source back, or the policy changes;
//! * the owner of the stream calls [`Stream::grow`], because the source has waited for long.
//!
//! A stream without readers has its configured size before its first byte.

use std::mem;
use std::sync::Arc;

use super::{Policy, Stream, StreamConfig};
use crate::error::CreateError;
use crate::memory::budget::{CacheBudget, MemoryCharge, OwedRing};
use crate::ring::{Ring, Shape};
use crate::stream::reconfigure::PendingConfig;
use crate::sync::{Point, broken};

/// Largest claim of a small ring, in bytes. A read of a pipe returns no more by default.
const SMALL_CLAIM: u64 = 64 * 1024;

/// The sizes and the budget of a stream that grows.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Size of the first ring in bytes. Without effect if it is not below the configured capacity,
    /// or under a policy other than [`Policy::Block`].
    pub first: u64,
    /// The budget of all rings. A stream does not grow beyond it (streams that grow at the same
    /// moment on different threads may exceed it), but its first ring and further rings of the same
    /// size are always created.
    pub budget: Arc<CacheBudget>,
}

impl Stream {
    /// Creates a stream as [`Stream::create`] does, whose first ring has `growth.first` bytes only
    /// and is allocated by the first [`Stream::reserve`], or by [`Stream::allocate`].
    ///
    /// # Errors
    /// [`CreateError`] if the capacity is 0 or above [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    pub fn create_growing(config: StreamConfig, growth: &Growth, label: &str) -> Result<Stream, CreateError> {
        Stream::growing(config, growth, label, &Kind::MAPPED)
    }

    /// Creates such a stream on the heap.
    ///
    /// # Errors
    /// As [`Stream::create`].
    #[cfg(any(loom, feature = "test-utils"))]
    pub fn growing_on_heap(config: StreamConfig, growth: &Growth) -> Result<Stream, CreateError> {
        Stream::growing(config, growth, "", &Kind::ON_HEAP)
    }

    fn growing(
        config: StreamConfig,
        growth: &Growth,
        label: &str,
        kind: &Kind,
    ) -> Result<Stream, CreateError> {
        let grows = config.policy == Policy::Block && growth.first < config.capacity;
        let capacity = if grows { growth.first } else { config.capacity };
        let mut stream = Stream::with(StreamConfig { capacity, ..config }, label, kind.late)?;
        stream.new_ring = kind.new;
        stream.owed = Some(OwedRing::new(&growth.budget));
        stream.budget = Some(Arc::clone(&growth.budget));
        if grows {
            stream.full_size = Some(stream.writer.ring().capacity_for(config.capacity)?);
            stream.is_small = true;
        }
        Ok(stream)
    }

    /// Returns whether the stream is in a small ring, and no reader needs a larger one.
    pub fn is_small(&self) -> bool {
        self.is_small && !self.complete
    }

    /// Returns whether [`Stream::grow`] may have an effect: the stream is small, or the budget or
    /// the kernel had no memory when it was to grow.
    pub fn may_grow(&self) -> bool {
        !self.complete && (self.is_small || self.pending.is_some_and(|pending| pending.refused))
    }

    /// Lets a stream that is in a small ring continue in one of its configured size, in one of the
    /// next calls of [`Stream::reserve`]. A stream without memory begins in a ring of that size. If
    /// the budget or the kernel has no memory for it then, the stream tries again only after
    /// another call of this, or of a method that attaches a reader that may not hold the source
    /// back, or when it moves because a reader is in the way.
    pub fn grow(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.refused = false;
        }
        if !mem::take(&mut self.is_small) || self.complete {
            return;
        }
        let Some(capacity) = self.full_size else { return };
        let config = StreamConfig { capacity, policy: self.policy };
        self.pending = Some(PendingConfig { config, unread: false, grows: true, refused: false });
    }

    /// Returns the greatest number of bytes that a reader of the present ring receives at a time if
    /// it
    /// [groups](crate::Grouping) them.
    pub fn largest_group(&self) -> u64 {
        self.writer.ring().capacity() / 2
    }

    /// Returns whether the budget has memory for `wanted`.
    pub(super) fn affords(&self, wanted: &PendingConfig) -> bool {
        let budget = self.budget.as_ref().filter(|_| wanted.grows);
        budget.is_none_or(|budget| budget.has_room(wanted.config.capacity))
    }

    /// Returns the greatest number of bytes that one claim takes. The larger a claim, the fewer
    /// bytes a late reader finds. So claims of a small ring are large only while reads fill them.
    pub(super) fn largest_claim(&self) -> u64 {
        let capacity = self.writer.ring().capacity();
        if self.is_small() && self.filled { capacity.min(SMALL_CLAIM) } else { self.claim_part() }
    }

    /// Returns whether the last span was larger than a usual claim. It may be a whole small ring.
    /// The next claim would then overwrite bytes that a reader which may not hold the source back
    /// had no time to read.
    pub(super) fn has_large_span(&self) -> bool {
        self.span_len > self.claim_part() && !broken(Point::LargeSpan)
    }

    /// Withdraws what a large claim has left in a small ring whose source has no more bytes for
    /// now, so that late readers find the bytes there.
    pub(super) fn trim_claim(&mut self) {
        if self.is_small() && !self.filled && self.has_large_span() {
            self.writer.trim_claim(self.claim_part());
        }
    }

    /// Returns the usual greatest number of bytes that one claim takes.
    pub(super) fn claim_part(&self) -> u64 {
        (self.writer.ring().capacity() / super::CLAIM_PART).max(1)
    }

    /// Counts a new ring against the budget.
    pub(super) fn charged(&self, ring: Ring) -> Ring {
        let charge = self.budget.as_ref().map(|budget| MemoryCharge::new(budget, ring.capacity()));
        ring.with_charge(charge)
    }
}

/// The functions that create the rings of a growing stream.
struct Kind {
    /// Creates the first ring, without memory.
    late: fn(Shape<'_>) -> Result<Ring, CreateError>,
    /// Creates the others, and the memory of the first one.
    new: fn(Shape<'_>) -> Result<Ring, CreateError>,
}

impl Kind {
    const MAPPED: Kind = Kind { late: Ring::late, new: Ring::create };
    #[cfg(any(loom, feature = "test-utils"))]
    const ON_HEAP: Kind = Kind { late: Ring::late_on_heap, new: Ring::on_heap };
}
