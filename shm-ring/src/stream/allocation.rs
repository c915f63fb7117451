//! Allocation: a growing stream begins without memory, and its first ring is allocated when its
//! first bytes are about to be stored, or when a reader in another process attaches.
//!
//! Without memory, a stream drops bytes or lets its source try again, as [`Stream::without_memory`]
//! specifies. Dropped bytes are counted in a ring that has only control words and an index; as soon
//! as there is memory, the stream continues in the next generation.

use std::sync::Arc;

use super::Stream;
use crate::error::CreateError;
use crate::ring::Shape;
use crate::writer::Writer;

impl Stream {
    /// Returns whether the stream has no memory, because it has stored and dropped nothing.
    pub fn is_unallocated(&self) -> bool {
        self.writer.ring().is_late()
    }

    /// Allocates the memory of the stream. A reader that attaches afterwards receives a ring with a
    /// file, and so may be in another process. If that reader may not hold the source back, call
    /// [`Stream::grow`] before.
    ///
    /// # Errors
    /// [`CreateError`] if the kernel has no memory or descriptor. The stream remains as it was.
    pub fn allocate(&mut self) -> Result<(), CreateError> {
        if self.writer.ring().has_data() {
            return Ok(());
        }
        let (old, config) = (Arc::clone(self.writer.ring()), self.config());
        if !self.complete && !old.is_late() {
            return self.next_generation(config, 0);
        }
        let (base, dropped) = (self.writer.tail(), self.writer.dropped());
        let shape = Shape { base, dropped, ..self.first_shape() };
        let ring = self.charged((self.new_ring)(shape)?);
        if old.is_late() {
            // Readers that attached before find the memory in the ring that they have.
            old.allocate(ring);
            self.writer = Writer::new(old, dropped);
        } else {
            // They have found the end in the ring that they have.
            self.writer = Writer::new(Arc::new(ring), dropped);
            self.writer.complete();
        }
        Ok(())
    }

    /// Allocates the words that count dropped bytes.
    pub(super) fn allocate_words(&mut self) {
        let ring = Arc::clone(self.writer.ring());
        if ring.is_late() {
            ring.allocate_words(self.first_shape());
            self.writer = Writer::new(ring, 0);
        }
    }

    /// Returns the shape of the ring of a stream that has stored nothing.
    fn first_shape(&self) -> Shape<'_> {
        let ring = self.writer.ring();
        let (capacity, generation, overwrite) = (ring.capacity(), ring.generation(), ring.overwrite());
        Shape { capacity, generation, base: 0, dropped: 0, overwrite, label: &self.label }
    }
}
