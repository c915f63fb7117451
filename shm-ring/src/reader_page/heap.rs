//! A reader page on the heap, for the model checker, Miri and tests.

use std::sync::Mutex;

use super::{Memory, OwnerSide, ReaderPage};
use crate::layout::PageTable;
use crate::reader_id::ReaderId;
use crate::sync::Ordering::Relaxed;
use crate::wakeup::doorbell::Ringer;

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
            stepper: None,
            file: None,
            populated: Mutex::default(),
            slots: Mutex::default(),
        };
        ReaderPage { table: heap.0, owner: Some(owner), _memory: Memory::Heap(heap) }
    }

    /// Writes `value` to word `word` of a slot, as a hostile tool can: 0 is `pinned`, 1 `cursor`, 2
    /// `threshold`, 3 `dropped`; any other is the flag that is set while the tool sleeps. Does
    /// nothing to a mapped page.
    pub fn overwrite(&self, id: ReaderId, word: u32, value: u64) {
        let Some(slot) = self.slot(id).filter(|_| self.is_on_heap()) else { return };
        let words = [&slot.pinned, &slot.cursor, &slot.threshold, &slot.dropped];
        let armed = &self.table().head.armed;
        let word = words.get(word as usize).copied().unwrap_or(armed);
        word.store(value, Relaxed);
    }

    fn is_on_heap(&self) -> bool {
        matches!(self._memory, Memory::Heap(_))
    }

    /// Sets or clears the ready bit of a slot, as a hostile tool can. Does nothing to a mapped
    /// page.
    pub fn overwrite_ready(&self, id: ReaderId, ready: bool) {
        if let Some((word, bit)) = self.ready_bit(id).filter(|_| self.is_on_heap()) {
            if ready {
                word.fetch_or(bit, Relaxed)
            } else {
                word.fetch_and(!bit, Relaxed)
            };
        }
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
