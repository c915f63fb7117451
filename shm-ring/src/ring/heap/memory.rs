//! The memory of the rings on the heap: how much of it is in use, and whether there is more.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::CreateError;

thread_local! {
    static OF_THIS_THREAD: HeapMemory = HeapMemory::default();
}

/// The memory of the rings that one thread creates on the heap. It counts them until they are freed,
/// and can run out.
#[derive(Clone, Debug, Default)]
pub struct HeapMemory(Arc<State>);

#[derive(Debug, Default)]
struct State {
    rings: AtomicU64,
    bytes: AtomicU64,
    rings_refused: AtomicBool,
    data_refused: AtomicBool,
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
        self.0.rings_refused.store(refused, Relaxed);
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
        if self.0.rings_refused.load(Relaxed) {
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
