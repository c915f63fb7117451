//! Allocation: a growing stream begins without memory, and its first ring is allocated when its
//! first bytes are about to be stored, or when a reader in another process attaches.
//!
//! Until then the stream only owes a ring, and its [`CacheBudget`](crate::CacheBudget) counts the
//! rings that are owed, so that the owner of the streams can keep files and memory maps for them.
//!
//! Without memory, a stream drops bytes or lets its source try again, as [`Stream::without_memory`]
//! specifies. Dropped bytes are counted in a ring that has only control words and an index; as soon
//! as there is memory, the stream continues in the next generation.

use std::sync::Arc;

use super::Stream;
use crate::error::CreateError;
use crate::ring::Shape;
use crate::ring::writer::Writer;

impl Stream {
    /// Returns whether the stream has no memory, because it has stored and dropped nothing.
    pub fn is_unallocated(&self) -> bool {
        self.writer.ring().is_late()
    }

    /// Returns the number of streams with the same budget that have no memory yet, see
    /// [`CacheBudget::owed_rings`](crate::CacheBudget::owed_rings).
    pub fn owed_rings(&self) -> u64 {
        self.budget.as_ref().map_or(0, |budget| budget.owed_rings())
    }

    /// Returns the error with which the kernel refused memory for the first ring, once, and only
    /// for the first such stream of a budget.
    pub fn take_refusal(&mut self) -> Option<CreateError> {
        self.refusal.take()
    }

    /// Allocates the memory of the stream. A reader that attaches afterwards receives a ring with a
    /// file, and so may be in another process. If that reader may not hold the source back, call
    /// [`Stream::grow`] before: the first ring of a stream that is to grow has the configured size,
    /// as far as the budget has room.
    ///
    /// May be called while a span is in use: a stream whose ring has memory for bytes stays as it
    /// is, and no other stream has given a span.
    ///
    /// # Errors
    /// [`CreateError`] if the kernel has no memory or descriptor. The stream remains as it was.
    pub fn allocate(&mut self) -> Result<(), CreateError> {
        if self.writer.ring().has_data() {
            return Ok(());
        }
        let old = Arc::clone(self.writer.ring());
        if !self.complete && !old.is_late() {
            // It has dropped bytes.
            return self.next_generation_as_wanted(0);
        }
        let (base, dropped) = (self.writer.tail(), self.writer.dropped());
        let small = Shape { base, dropped, ..self.first_shape() };
        let capacity = self.first_capacity();
        let ring = match self.new_ring(Shape { capacity, ..small }) {
            Err(_) if capacity > small.capacity => {
                let ring = self.new_ring(small)?;
                // It tries again as after any refused growth.
                self.pending.iter_mut().for_each(|pending| pending.refused = true);
                ring
            }
            created => created?,
        };
        let ring = self.charged(ring);
        if old.is_late() {
            // Readers that attached before find the memory in the ring that they have.
            old.allocate(ring);
            self.writer = Writer::new(old, dropped);
        } else {
            // They have found the end in the ring that they have.
            self.writer = Writer::new(Arc::new(ring), dropped);
            self.writer.end(self.missing);
        }
        self.allocated();
        Ok(())
    }

    /// Notes that the stream has a ring of its present configuration.
    pub(super) fn allocated(&mut self) {
        self.owed = None;
        self.publish_interaction();
        let config = self.config();
        self.pending.take_if(|wanted| wanted.config == config);
    }

    /// Allocates the words that count dropped bytes.
    pub(super) fn allocate_words(&mut self) {
        let ring = Arc::clone(self.writer.ring());
        if ring.is_late() {
            ring.allocate_words(self.first_shape());
            self.writer = Writer::new(ring, 0);
            self.publish_interaction();
        }
    }

    /// Returns the size of the first ring: the configured one if the stream is to grow and the
    /// budget has room.
    fn first_capacity(&self) -> u64 {
        let grows = self.pending.filter(|wanted| wanted.grows && !self.complete && self.affords(wanted));
        grows.map_or(self.writer.ring().capacity(), |wanted| wanted.config.capacity)
    }

    /// Returns the shape of the ring of a stream that has stored nothing.
    fn first_shape(&self) -> Shape<'_> {
        let ring = self.writer.ring();
        let (capacity, generation, overwrite) = (ring.capacity(), ring.generation(), ring.overwrite());
        Shape { capacity, generation, base: 0, dropped: 0, overwrite, label: &self.label }
    }
}
