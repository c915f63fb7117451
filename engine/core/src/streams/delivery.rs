//! A stream that is filled by deliveries.

use std::collections::VecDeque;

use crate::count::Count;
use crate::upcall::TakenCallback;

/// Largest number of delivered bytes of one stream that wait for room in its ring, while a reader
/// with `Grant::Block` holds the stream back. Beyond it,
/// `Engine::deliver` fails with
/// `DeliverError::Full`.
pub const MAX_DELIVERED: u64 = 4 << 20;

/// Bytes that a delivery counts for at least.
const MIN_DELIVERY_COST: u64 = 256;

/// A delivery that the stream is not known to have taken as a whole.
struct WaitingDelivery {
    /// Bytes that it counts for.
    cost: u64,
    taken: TakenCallback,
}

/// The state of a stream that is filled by deliveries.
#[derive(Default)]
pub(crate) struct DeliveryState {
    waiting: VecDeque<WaitingDelivery>,
    /// The sum of the costs in `waiting`.
    cost: u64,
    /// The bytes that were delivered or lost before.
    position: u64,
    /// The number of deliveries in `waiting` up to the last one of what a node had cached.
    cached: Option<usize>,
    /// The last byte of the stream was delivered.
    pub(crate) complete: bool,
}

impl DeliveryState {
    /// Counts a delivery of `bytes` bytes, which is about to be handed to the capture thread. The
    /// end of the stream (`is_end`) is never refused for lack of room.
    ///
    /// # Errors
    /// Too many bytes wait already. Returns their number.
    pub(crate) fn queue(&mut self, bytes: usize, is_end: bool, taken: TakenCallback) -> Result<(), u64> {
        let cost = (bytes as u64).max(MIN_DELIVERY_COST);
        if self.cost > 0 && !is_end && self.cost.saturating_add(cost) > MAX_DELIVERED {
            return Err(self.cost);
        }
        self.cost.raise(cost);
        self.waiting.push_back(WaitingDelivery { cost, taken });
        Ok(())
    }

    /// Returns the position behind all deliveries: the number of bytes that were delivered or lost.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Moves the position on by `bytes`, which were delivered or lost.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.position = self.position.saturating_add(bytes);
    }

    /// Forgets the last delivery, which was not handed over.
    pub(crate) fn withdraw(&mut self) {
        if let Some(WaitingDelivery { cost, .. }) = self.waiting.pop_back() {
            self.cost.lower(cost);
        }
    }

    /// Notes that the deliveries so far contain all that was cached when the stream was pulled of its
    /// node.
    pub(crate) fn note_cached(&mut self) {
        self.cached.get_or_insert(self.waiting.len());
    }

    /// Returns, once, whether these deliveries were taken.
    pub(crate) fn take_cached(&mut self) -> bool {
        self.cached.take_if(|left| *left == 0).is_some()
    }

    pub(crate) fn pop(&mut self) -> Option<TakenCallback> {
        let WaitingDelivery { cost, taken } = self.waiting.pop_front()?;
        self.cached = self.cached.map(|left| left.saturating_sub(1));
        self.cost.lower(cost);
        Some(taken)
    }
}
