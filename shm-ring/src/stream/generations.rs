//! The generations of a stream: one ring after the other.

use std::sync::Arc;

use super::{Policy, Stream, StreamConfig};
use crate::error::CreateError;
use crate::ring::writer::Writer;
use crate::ring::{Ring, Shape};

impl Stream {
    pub(super) fn config(&self) -> StreamConfig {
        StreamConfig { capacity: self.writer.ring().capacity(), policy: self.policy }
    }

    /// Leaves this generation to the readers that are in the way, and continues in one with the
    /// pending options or, if that fails, with the present ones.
    pub(super) fn move_away(&mut self) -> Result<(), CreateError> {
        self.grow();
        self.next_generation_as_wanted(1)
    }

    /// Continues in a generation with the pending options or, if that fails, with the present ones.
    pub(super) fn next_generation_as_wanted(&mut self, room: u64) -> Result<(), CreateError> {
        let now = self.config();
        let wanted = self.pending.filter(|wanted| self.affords(wanted));
        let config = wanted.map_or(now, |wanted| wanted.config);
        match self.next_generation(config, room) {
            Err(_) if config != now => self.next_generation(now, room),
            moved => moved,
        }
    }

    /// Seals this generation and continues in a fresh one. Readers that are in the way of `room`
    /// bytes stay in the old one; all others are due in the new one.
    pub(super) fn next_generation(&mut self, config: StreamConfig, room: u64) -> Result<(), CreateError> {
        let old = Arc::clone(self.writer.ring());
        let shape = Shape {
            capacity: config.capacity,
            generation: old.generation().saturating_add(1),
            base: self.writer.tail(),
            dropped: self.writer.dropped(),
            overwrite: config.policy == Policy::DropOldest,
            label: &self.label,
        };
        // A spare ring of another size will not be needed again. One that a reader in this process
        // still holds cannot be reused.
        let spare = self.spare.take().filter(|spare| spare.capacity() == config.capacity);
        let ring = match spare.and_then(Arc::into_inner) {
            Some(spare) => spare.reuse(shape),
            None => self.charged(self.new_ring(shape)?),
        };
        let due: Vec<bool> = self
            .members
            .iter()
            .map(|member| self.reads_newest(member) && !self.is_in_the_way(member, room))
            .collect();
        for (member, due) in self.members.iter_mut().zip(due) {
            member.due = due;
        }
        self.writer.seal();
        self.writer = Writer::new(Arc::new(ring), shape.dropped);
        self.policy = config.policy;
        self.span_len = 0;
        self.allocated();
        self.recycle(old);
        Ok(())
    }

    /// Creates a ring. It leaves files for the streams without memory, unless this is the ring that
    /// the stream owes.
    pub(super) fn new_ring(&self, shape: Shape<'_>) -> Result<Ring, CreateError> {
        let ring = (self.new_ring)(shape)?;
        match &self.budget {
            Some(budget) if self.owed.is_none() => budget.check(ring.as_fd(), ring.capacity())?,
            _ => {}
        }
        Ok(ring)
    }

    /// Keeps a ring that no reader reads any more for the next generation, if it has the present
    /// capacity. One spare ring is enough, and never more rings exist than were in use.
    pub(super) fn recycle(&mut self, ring: Arc<Ring>) {
        let rings = self.members.iter().map(|member| &member.ring).chain([self.writer.ring()]);
        let unused = rings.into_iter().all(|used| !Arc::ptr_eq(used, &ring));
        if unused && !self.complete && ring.has_data() && ring.capacity() == self.writer.ring().capacity() {
            self.spare = Some(ring);
        }
    }
}
