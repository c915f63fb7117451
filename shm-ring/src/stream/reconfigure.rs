//! Changes of a stream's capacity or policy.
//!
//! No reader is in the way of such a change, so no reader may lose a byte by it. A reader that is
//! due has not read the newest generation yet; another move would cost it all bytes in it. So the
//! move waits for readers that are due, until the newest generation is full. A reader that is still
//! due then is more than a cache behind, and a reader that requested a larger cache has lost
//! nothing yet. A stopped reader thus delays a move by at most one cache of bytes.

use super::{Policy, Stream, StreamConfig};
use crate::error::CreateError;
use crate::offset::Offset;
use crate::sync::{Point, broken};

/// The requested options of a stream.
#[derive(Clone, Copy)]
pub(super) struct PendingConfig {
    pub config: StreamConfig,
    /// Set if the stream had no readers at the time of the request.
    pub unread: bool,
    /// Set if the stream only continues in a ring of the size with which it was created.
    pub grows: bool,
    /// Set if it grows and was refused. [`Stream::grow`] lets it try again.
    pub refused: bool,
}

impl Stream {
    /// Requests another capacity and policy, if they differ from the present ones. The stream will
    /// continue in a new generation with these options. Readers of the present generation follow to
    /// it and lose nothing. A reader that has not followed to the newest generation yet is *due* in
    /// it. The stream moves in the first [`Stream::reserve`] at which all of these are true:
    /// * no reader is due in the newest generation, or that generation is full;
    /// * no reader that may hold the source back is due in it;
    /// * no reader keeps it for later ones ([`Stream::attach_holder`]);
    /// * if only the capacity changes and becomes smaller: at least the new capacity was stored in
    ///   it, or the stream had no readers when this was called;
    /// * the kernel has memory for it, and the budget if this is the capacity with which a stream
    ///   that began smaller was created ([`Growth`](crate::Growth)).
    ///
    /// The new options also take effect when the stream moves because a reader is in the way. Until
    /// then the stream keeps its options.
    ///
    /// # Errors
    /// [`CreateError::Capacity`] if the capacity is 0 or above
    /// [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    pub fn reconfigure(&mut self, config: StreamConfig) -> Result<(), CreateError> {
        let capacity = self.writer.ring().capacity_for(config.capacity)?;
        let config = StreamConfig { capacity, ..config };
        let unread = self.members.is_empty();
        self.is_small = false;
        let now = self.config();
        let changes = config != now || self.has_large_span();
        // The requested size may be the one to which the stream grows anyway, within the budget.
        let grows =
            self.full_size == Some(capacity) && capacity > now.capacity && config.policy == now.policy;
        self.pending = changes.then_some(PendingConfig { config, unread, grows, refused: false });
        Ok(())
    }

    /// Moves to the options that [`Stream::reconfigure`] requested, if no reader loses a byte by
    /// it. The next claim is for `want` bytes.
    pub(super) fn apply_pending(&mut self, want: u64) {
        let can_apply = |wanted: &PendingConfig| !wanted.refused && self.can_apply(*wanted, want);
        let Some(wanted) = self.pending.filter(can_apply) else { return };
        // Without memory, the next claim tries again, unless the stream only grows: a refusal of
        // the kernel is not cheap.
        let applied = self.affords(&wanted) && self.next_generation(wanted.config, 0).is_ok();
        if let Some(pending) = &mut self.pending {
            pending.refused = pending.grows;
        }
        if !applied && self.has_large_span() {
            // A reader that attached while most of the ring was claimed must not lose these bytes.
            // If the kernel refuses this ring as well, the reader loses them, which is a gap.
            let _ = self.next_generation(self.config(), 0);
        }
    }

    fn can_apply(&self, PendingConfig { config, unread, .. }: PendingConfig, want: u64) -> bool {
        if self.members.iter().any(|member| member.holds) {
            return false;
        }
        let now = self.config();
        let shrinks = config.policy == now.policy && config.capacity < now.capacity;
        // Bytes that were never written take no memory: with fewer bytes nothing could be freed,
        // and readers that attach and detach would make the stream move each time.
        if shrinks && !unread && self.writer.tail().since(self.writer.ring().base()) < config.capacity {
            return false;
        }
        let (want, min) = self.claim_sizes(want);
        // If no pinned position limits a claim, the claim may pass the first byte of the generation
        // although the bytes do not.
        let room = if now.policy == Policy::DropOldest { self.writer.ahead(want) } else { min };
        let full = self.writer.ring().base() < self.needed(room);
        let due = self.members.iter().any(|member| member.due) && !broken(Point::DueCheck);
        (full || !due) && !self.has_due_blocker()
    }
}
