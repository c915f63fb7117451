//! A ring on the heap, for the model checker, Miri and tests, which do not support shared maps, and
//! for the simulator, which counts them.

use std::sync::Arc;

use super::late::{zeroed_control, zeroed_entry};
use super::{Memory, Owner, Place, Ring, Shape, heap_capacity};
use crate::error::CreateError;
use crate::layout::{self, ControlWords, Entry};

mod memory;

pub use memory::HeapMemory;

/// A ring's parts on the heap, as raw pointers, because moving a `Box` invalidates pointers derived
/// from it.
pub(super) struct RingHeap {
    control: *mut ControlWords,
    entries: *mut [Entry],
    data: *mut [u8],
    memory: HeapMemory,
}

// SAFETY: as for `Ring` below, whose memory it is.
unsafe impl Send for RingHeap {}
// SAFETY: as above.
unsafe impl Sync for RingHeap {}

impl RingHeap {
    /// Repeats the `n` bytes written at `start` in the other half, as a double map would show them.
    pub(super) fn mirror(&self, start: *mut u8, n: usize) {
        let data: *mut u8 = self.data.cast();
        let half = self.data.len() / 2;
        let before_seam = n.min(half.saturating_sub(start.addr().wrapping_sub(data.addr())));
        // SAFETY: `Ring::address` keeps `start` in the first half, and `Writer::commit`, the only
        // caller, limits `n` to the claimed bytes, at most as many as fit into one half. So the
        // bytes before the seam have their twins in the second half, and those behind it at the
        // beginning of the first one, below `start`. As they are claimed, no reader borrows them.
        unsafe {
            start.wrapping_add(half).copy_from_nonoverlapping(start, before_seam);
            data.copy_from_nonoverlapping(data.wrapping_add(half), n.saturating_sub(before_seam));
        }
    }

    /// Returns the memory that this ring is counted in.
    pub(super) fn memory(&self) -> &HeapMemory {
        &self.memory
    }
}

impl Drop for RingHeap {
    fn drop(&mut self) {
        self.memory.freed(self.data.len() as u64 / 2);
        // SAFETY: all three pointers came from `Box::into_raw` in `Ring::on_heap` and are freed
        // once, here.
        unsafe {
            drop(Box::from_raw(self.control));
            drop(Box::from_raw(self.entries));
            drop(Box::from_raw(self.data));
        }
    }
}

impl Ring {
    /// Creates a ring on the heap, for the model checker and Miri, which do not support shared
    /// maps.
    pub(crate) fn on_heap(shape: Shape<'_>) -> Result<Ring, CreateError> {
        let capacity = heap_capacity(shape.capacity)?;
        let memory = HeapMemory::of_this_thread();
        memory.allocate(capacity)?;
        let entry_count = if capacity < layout::MIN_CAPACITY { 8 } else { layout::entries_for(capacity) };
        let twice = usize::try_from(capacity.saturating_mul(2)).unwrap_or(usize::MAX);
        let heap = RingHeap {
            control: Box::into_raw(Box::new(zeroed_control())),
            entries: Box::into_raw((0..entry_count).map(|_| zeroed_entry()).collect()),
            data: Box::into_raw(vec![0u8; twice].into_boxed_slice()),
            memory,
        };
        let ring = Ring::with_memory(Memory::on_heap(Arc::new(heap), entry_count), shape);
        ring.initialise(shape);
        Ok(ring)
    }

    /// Returns a second view of a ring on the heap, like another map of a file, for the model
    /// checker.
    pub fn beside(&self) -> Option<Ring> {
        let memory = self.memory();
        let Owner::RingHeap(heap) = &memory.owner else { return None };
        Some(Ring { place: Place::Fixed(Memory::on_heap(Arc::clone(heap), memory.entry_count)), ..*self })
    }

    /// Returns whether the ring has its memory on the heap, or will have it there.
    pub(super) fn is_on_heap(&self) -> bool {
        match &self.place {
            Place::Fixed(memory) => matches!(memory.owner, Owner::RingHeap(_)),
            Place::Late(late) => late.is_on_heap(),
        }
    }
}

impl Memory {
    fn on_heap(heap: Arc<RingHeap>, entry_count: u64) -> Memory {
        Memory {
            control: heap.control,
            entries: heap.entries.cast(),
            entry_count,
            data: heap.data.cast(),
            capacity: heap.data.len() as u64 / 2,
            file: None,
            owner: Owner::RingHeap(heap),
            charge: None,
        }
    }
}
