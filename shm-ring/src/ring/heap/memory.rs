//! The memory of the rings on the heap: how much of it is in use, and whether there is more.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::CreateError;

thread_local! {
    static OF_THIS_THREAD: HeapMemory = HeapMemory::default();
}

/// The memory of the rings that one thread creates on the heap. It counts them until they are
/// freed, and can run out.
#[derive(Clone, Debug, Default)]
pub struct HeapMemory(Arc<State>);

#[derive(Debug)]
struct State {
    rings: AtomicU64,
    bytes: AtomicU64,
    /// The largest ring for which there is memory.
    largest: AtomicU64,
    data_refused: AtomicBool,
}

impl Default for State {
    fn default() -> State {
        let zero = || AtomicU64::new(0);
        State {
            rings: zero(),
            bytes: zero(),
            largest: AtomicU64::new(u64::MAX),
            data_refused: AtomicBool::new(false),
        }
    }
}

impl HeapMemory {
    /// Returns the memory of this thread's rings.
    pub fn of_this_thread() -> HeapMemory {
        OF_THIS_THREAD.with(HeapMemory::clone)
    }

    /// Returns the number of rings that are not freed.
    pub fn rings(&self) -> u64 {
        self.0.rings.load(Relaxed)
    }

    /// Returns the sum of their capacities in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }

    /// Sets whether memory is refused for rings, so that none can be created.
    pub fn refuse_rings(&self, refused: bool) {
        self.refuse_rings_above(if refused { 0 } else { u64::MAX });
    }

    /// Sets the capacity above which no ring can be created.
    pub fn refuse_rings_above(&self, capacity: u64) {
        self.0.largest.store(capacity, Relaxed);
    }

    /// Sets whether memory is refused for bytes, so that those that no kernel call writes cannot be
    /// stored.
    pub fn refuse_data(&self, refused: bool) {
        self.0.data_refused.store(refused, Relaxed);
    }

    pub(in crate::ring) fn is_data_refused(&self) -> bool {
        self.0.data_refused.load(Relaxed)
    }

    pub(super) fn allocate(&self, capacity: u64) -> Result<(), CreateError> {
        if capacity > self.0.largest.load(Relaxed) {
            let source = ErrorKind::OutOfMemory.into();
            return Err(CreateError::Memory { step: "allocation", len: capacity, source });
        }
        self.0.rings.fetch_add(1, Relaxed);
        self.0.bytes.fetch_add(capacity, Relaxed);
        Ok(())
    }

    pub(super) fn freed(&self, capacity: u64) {
        self.0.rings.fetch_sub(1, Relaxed);
        self.0.bytes.fetch_sub(capacity, Relaxed);
    }
}
