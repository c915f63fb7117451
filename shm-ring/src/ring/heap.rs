//! A ring on the heap, for the model checker, Miri and tests, which do not support shared maps.

use std::sync::Arc;

use super::{Memory, Ring, Shape, checked_capacity};
use crate::error::CreateError;
use crate::layout::{self, Control, Entry};
use crate::sync::AtomicU64;

/// A ring's parts on the heap, as raw pointers, because moving a `Box` invalidates pointers derived
/// from it.
pub(super) struct Heap {
    control: *mut Control,
    entries: *mut [Entry],
    data: *mut [u8],
}

// SAFETY: as for `Ring` below, whose memory it is.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Repeats the bytes stored at `start` in the other half, as a double map would show them.
    pub(super) fn mirror(&self, start: *mut u8, bytes: &[u8]) {
        let data: *mut u8 = self.data.cast();
        let len = self.data.len();
        let twin = start.addr().wrapping_sub(data.addr()).wrapping_add(len / 2) % len.max(1);
        let (first, rest) = bytes.split_at(bytes.len().min(len.wrapping_sub(twin)));
        // SAFETY: `first` ends at or below the length of `data`, and `rest`, which is shorter than
        // half of it, begins at 0. Both ranges are claimed, like the bytes that they repeat, and
        // `bytes` is borrowed from other memory.
        unsafe {
            data.wrapping_add(twin).copy_from_nonoverlapping(first.as_ptr(), first.len());
            data.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
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
        let capacity = capacity(shape.capacity)?;
        let entry_count = if cfg!(loom) { 8 } else { layout::entries_for(capacity) };
        let twice = usize::try_from(capacity.saturating_mul(2)).unwrap_or(usize::MAX);
        let heap = Heap {
            control: Box::into_raw(Box::new(zeroed_control())),
            entries: Box::into_raw((0..entry_count).map(|_| zeroed_entry()).collect()),
            data: Box::into_raw(vec![0u8; twice].into_boxed_slice()),
        };
        let ring = Ring {
            control: heap.control,
            entries: heap.entries.cast(),
            data: heap.data.cast(),
            capacity,
            entry_count,
            base: shape.base,
            generation: shape.generation,
            overwrite: shape.overwrite,
            reused: false,
            file: None,
            memory: Memory::Heap(Arc::new(heap)),
        };
        ring.initialise(shape);
        Ok(ring)
    }

    /// Returns a second view of a ring on the heap, like another map of a file, for the model
    /// checker.
    pub fn beside(&self) -> Option<Ring> {
        let Memory::Heap(heap) = &self.memory else { return None };
        Some(Ring { memory: Memory::Heap(Arc::clone(heap)), file: None, ..*self })
    }
}

/// The model checker uses smaller rings than any other user.
pub(super) fn capacity(requested: u64) -> Result<u64, CreateError> {
    if cfg!(loom) { Ok(requested) } else { checked_capacity(requested, 1) }
}

fn zeroed_control() -> Control {
    use crate::layout::{Claimed, Identity, Published};
    let zero = || AtomicU64::new(0);
    Control {
        identity: Identity {
            magic: zero(),
            version: zero(),
            capacity: zero(),
            entries: zero(),
            generation: zero(),
            base: zero(),
            overwrite: zero(),
            writer_pid: zero(),
            label: std::array::from_fn(|_| zero()),
        },
        published: Published {
            tail: zero(),
            index_tail: zero(),
            dropped: zero(),
            sealed: zero(),
            complete: zero(),
            recent_tail: zero(),
        },
        claimed: Claimed { position: zero(), index_head: zero(), wanted: zero(), recent_head: zero() },
        recent: std::array::from_fn(|_| zeroed_entry()),
    }
}

fn zeroed_entry() -> Entry {
    Entry { offset: AtomicU64::new(0), time: AtomicU64::new(0), dropped: AtomicU64::new(0) }
}
