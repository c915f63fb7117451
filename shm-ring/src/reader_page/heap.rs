//! A reader page on the heap, for the model checker, Miri and tests.

use std::sync::Mutex;

use super::{FreeSlots, Memory, OwnerSide, ReaderPage};
use crate::doorbell::Ringer;
use crate::layout::PageTable;

pub(super) struct Heap(*mut PageTable);

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` in `ReaderPage::on_heap` and is freed once,
        // here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl ReaderPage {
    /// Creates a reader page on the heap that serves as both sides: for the model checker, Miri and
    /// benchmarks.
    pub fn on_heap(ringer: Ringer) -> ReaderPage {
        let heap = Heap(zeroed_table());
        let owner = OwnerSide {
            ringer,
            file: None,
            free: Mutex::new(FreeSlots { populated: u64::MAX, ..FreeSlots::default() }),
        };
        ReaderPage { table: heap.0, owner: Some(owner), _memory: Memory::Heap(heap) }
    }
}

#[cfg(not(loom))]
fn zeroed_table() -> *mut PageTable {
    // SAFETY: all words of the table are integers, for which zero is valid. (A table built on the
    // stack and moved would need a megabyte there.)
    Box::into_raw(unsafe { Box::<PageTable>::new_zeroed().assume_init() })
}

#[cfg(loom)]
fn zeroed_table() -> *mut PageTable {
    use crate::layout::{PageHead, Slot};
    use crate::sync::AtomicU64;
    let zero = || AtomicU64::new(0);
    Box::into_raw(Box::new(PageTable {
        head: PageHead { magic: zero(), version: zero(), armed: zero() },
        ready: std::array::from_fn(|_| zero()),
        slots: std::array::from_fn(|_| Slot {
            pinned: zero(),
            cursor: zero(),
            threshold: zero(),
            dropped: zero(),
        }),
    }))
}
