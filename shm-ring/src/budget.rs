//! The sum of the sizes of rings, and the limit up to which streams grow.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering::Relaxed};

/// A count of the bytes of all rings that were created with it, and the limit up to which streams
/// grow ([`Growth`](crate::Growth)). Streams may be on different threads.
#[derive(Debug)]
pub struct CacheBudget {
    limit: u64,
    /// Only a count, so Relaxed suffices.
    used: AtomicU64,
}

impl CacheBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> CacheBudget {
        CacheBudget { limit, used: AtomicU64::new(0) }
    }

    /// Returns the sum of the sizes of all rings that exist, in bytes. A ring exists until its
    /// stream and all readers in this process have left it.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns whether a ring of `bytes` bytes may be added to let a stream grow.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }
}

/// The part of a budget that one ring uses.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<CacheBudget>,
    bytes: u64,
}

impl Charge {
    pub(crate) fn new(budget: &Arc<CacheBudget>, bytes: u64) -> Charge {
        budget.used.fetch_add(bytes, Relaxed);
        Charge { budget: Arc::clone(budget), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}
