//! Moves to another capacity or policy.
//!
//! No reader is in the way then, so no reader may lose a byte by the move. A reader that is due has
//! not read the newest generation yet; another move would cost it all of that. So the move waits
//! for readers that are due, until the newest generation is full: a reader that is still due then
//! is more than a cache behind, and a reader that asked for a larger cache has lost nothing yet. A
//! stopped reader thus delays a move by one cache of bytes at most.

use super::{Policy, Stream, StreamConfig};
use crate::error::CreateError;
use crate::sync::{Point, broken};

/// What a stream is to become.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub config: StreamConfig,
    /// The stream had no readers when this was asked for.
    pub unread: bool,
}

impl Stream {
    /// Changes capacity and policy, if they are others: the stream goes on in a generation of the
    /// new kind, and every reader of the newest is due there from its first byte. The stream
    /// moves in the first [`Stream::reserve`] in which
    /// * no reader is due in the newest generation, or that is full;
    /// * no reader that holds the source back is due in it;
    /// * at least the new capacity was stored in it, if only the capacity changes and becomes
    ///   smaller, unless the stream has no readers;
    /// * the kernel has memory for it.
    ///
    /// It takes the new kind as well when it moves because a reader is in the way. Until then it
    /// stays as it is.
    ///
    /// # Errors
    /// [`CreateError::Capacity`] for a capacity of 0 or beyond
    /// [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    pub fn reconfigure(&mut self, config: StreamConfig) -> Result<(), CreateError> {
        let capacity = self.writer.ring().capacity_for(config.capacity)?;
        let config = StreamConfig { capacity, ..config };
        let unread = self.members.is_empty();
        self.wanted = (config != self.config()).then_some(Wanted { config, unread });
        Ok(())
    }

    /// Moves to what [`Stream::reconfigure`] asked for, if no reader loses a byte by it. The next
    /// claim is for `want` bytes.
    pub(super) fn apply_wanted(&mut self, want: u64) {
        if let Some(wanted) = self.wanted
            && self.may_become(wanted, want)
        {
            // Without memory, the next claim tries again.
            let _ = self.next_generation(wanted.config, 0);
        }
    }

    fn may_become(&self, Wanted { config, unread }: Wanted, want: u64) -> bool {
        let now = self.config();
        let shrinks = config.policy == now.policy && config.capacity < now.capacity;
        // What was not written takes no memory: with fewer bytes there would be nothing to give back, and
        // readers that come and go would make the stream move each time.
        if shrinks
            && !unread
            && self.writer.tail().saturating_sub(self.writer.ring().base()) < config.capacity
        {
            return false;
        }
        let (want, min) = self.claim_sizes(want);
        // Where no hold is in the way of a claim, the claim passes the first byte of the generation, and
        // not the bytes.
        let room = if now.policy == Policy::DropOldest { self.writer.ahead(want) } else { min };
        let full = self.writer.ring().base() < self.needed(room);
        let due = self.members.iter().any(|member| member.due) && !broken(Point::DueCheck);
        (full || !due) && !self.awaits_a_blocker()
    }
}
