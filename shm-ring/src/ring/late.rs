//! A ring whose memory is allocated with its first byte.
//!
//! Most streams of a job with many ranks have no bytes, and each ring costs a descriptor, maps and
//! memory. Readers in the engine's process can hold such a ring: it is empty. A reader in another
//! process needs the file, so the ring is allocated before that one attaches.
//!
//! A stream that ends without a byte needs no memory of its own either. If it has dropped bytes for
//! lack of memory, its ring gets control words and an index, but no data: the gap is told there.

use std::marker::PhantomData;
use std::ptr;
#[cfg(not(loom))]
use std::sync::LazyLock;

#[cfg(any(loom, feature = "test-utils"))]
use super::heap_capacity;
use super::{Memory, Owner, Place, Ring, Shape, checked_capacity};
use crate::error::CreateError;
use crate::layout::{self, Claimed, ControlWords, Entry, Identity, NONE, Published};
use crate::memory::file;
use crate::sync::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{Point, order_at};

/// The memory of a ring that may not be allocated yet.
pub(super) struct LateMemory {
    /// From `Box::into_raw`, or null. Set once.
    allocated: AtomicPtr<Memory>,
    /// The memory that readers find until then: an empty ring.
    before: Memory,
    #[cfg(any(loom, feature = "test-utils"))]
    on_heap: bool,
    /// It owns what `allocated` points to.
    _owned: PhantomData<Memory>,
}

impl LateMemory {
    #[inline]
    pub(super) fn get(&self) -> &Memory {
        // Partner: the store in `set`, which comes after the stores of the words.
        let memory = self.allocated.load(order_at(Point::AllocatedLoad, Acquire));
        // SAFETY: `set` has stored a pointer from `Box::into_raw`, which only `drop` frees.
        unsafe { memory.as_ref() }.unwrap_or(&self.before)
    }

    fn is_set(&self) -> bool {
        // Called on the writer's thread, which alone sets it.
        !self.allocated.load(Relaxed).is_null()
    }

    fn set(&self, memory: Memory) {
        debug_assert!(!self.is_set());
        let memory = Box::into_raw(Box::new(memory));
        // Partner: the load in `get`.
        self.allocated.store(memory, order_at(Point::Allocated, Release));
    }

    #[cfg(any(loom, feature = "test-utils"))]
    pub(super) fn is_on_heap(&self) -> bool {
        self.on_heap
    }
}

impl Drop for LateMemory {
    fn drop(&mut self) {
        let memory = self.allocated.load(Relaxed);
        if !memory.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `set`. No reference is left, because
            // `get` lends it no longer than `self`.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

impl Ring {
    /// Creates a ring without memory.
    pub(crate) fn late(shape: Shape<'_>) -> Result<Ring, CreateError> {
        let capacity = checked_capacity(shape.capacity, file::page_size())?;
        Ok(Ring::without_memory(Shape { capacity, ..shape }))
    }

    /// Creates such a ring whose memory will be on the heap.
    #[cfg(any(loom, feature = "test-utils"))]
    pub(crate) fn late_on_heap(shape: Shape<'_>) -> Result<Ring, CreateError> {
        let capacity = heap_capacity(shape.capacity)?;
        let mut ring = Ring::without_memory(Shape { capacity, ..shape });
        if let Place::Late(late) = &mut ring.place {
            late.on_heap = true;
        }
        Ok(ring)
    }

    fn without_memory(shape: Shape<'_>) -> Ring {
        let Shape { capacity, base, generation, overwrite, .. } = shape;
        let late = LateMemory {
            allocated: AtomicPtr::new(ptr::null_mut()),
            before: Memory::empty(false, capacity),
            #[cfg(any(loom, feature = "test-utils"))]
            on_heap: false,
            _owned: PhantomData,
        };
        Ring { place: Place::Late(late), base, generation, overwrite, reused: false }
    }

    /// Returns whether the ring has no memory yet, and so nothing may be written to it.
    pub(crate) fn is_late(&self) -> bool {
        matches!(&self.place, Place::Late(late) if !late.is_set())
    }

    /// Gives a ring without memory that of `ring`, a new ring for the same bytes and generation.
    /// Its capacity may be larger.
    pub(crate) fn allocate(&self, ring: Ring) {
        if let (Place::Late(late), Place::Fixed(memory)) = (&self.place, ring.place)
            && !late.is_set()
        {
            late.set(memory);
        }
    }

    /// Gives a ring without memory control words and an index, but no data.
    pub(crate) fn allocate_words(&self, shape: Shape<'_>) {
        let words = Words::new();
        let ring = Ring::with_memory(words.into_memory(shape.capacity), shape);
        ring.initialise(shape);
        self.allocate(ring);
    }

    /// Ends a ring without memory, which has no bytes and no gap.
    pub(crate) fn end_empty(&self) {
        let memory = Memory::empty(true, self.capacity());
        self.allocate(Ring { place: Place::Fixed(memory), ..*self });
    }
}

impl Memory {
    /// Returns the memory of a ring without bytes or gaps, whose stream has ended or not.
    #[cfg(not(loom))]
    fn empty(ended: bool, capacity: u64) -> Memory {
        static EMPTY: LazyLock<ControlWords> = LazyLock::new(|| empty_control(NONE));
        static ENDED: LazyLock<ControlWords> = LazyLock::new(|| empty_control(0));
        let control: &ControlWords = if ended { &ENDED } else { &EMPTY };
        Memory {
            control,
            entries: ptr::dangling(),
            entry_count: 0,
            data: ptr::dangling_mut(),
            capacity,
            file: None,
            owner: Owner::Shared,
            charge: None,
        }
    }

    /// As above. The model checker allows no statics.
    #[cfg(loom)]
    fn empty(ended: bool, capacity: u64) -> Memory {
        let memory = Words::new().into_memory(capacity);
        // SAFETY: the words are on the heap and live as long as the memory.
        let control = unsafe { &*memory.control };
        control.published.sealed.store(NONE, Relaxed);
        control.published.complete.store(if ended { 0 } else { NONE }, Relaxed);
        control.claimed.wanted.store(NONE, Relaxed);
        memory
    }
}

/// Control words and index of a ring without data, on the heap, as raw pointers, because moving a
/// `Box` invalidates pointers derived from it.
pub(super) struct Words {
    control: *mut ControlWords,
    entries: *mut [Entry],
}

impl Words {
    fn new() -> Words {
        let entries = layout::entries_for(0);
        Words {
            control: Box::into_raw(Box::new(zeroed_control())),
            entries: Box::into_raw((0..entries).map(|_| zeroed_entry()).collect()),
        }
    }

    fn into_memory(self, capacity: u64) -> Memory {
        Memory {
            control: self.control,
            entries: self.entries.cast(),
            entry_count: self.entries.len() as u64,
            data: ptr::dangling_mut(),
            capacity,
            file: None,
            owner: Owner::Words(self),
            charge: None,
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: both pointers came from `Box::into_raw` in `new` and are freed once, here.
        unsafe {
            drop(Box::from_raw(self.control));
            drop(Box::from_raw(self.entries));
        }
    }
}

#[cfg(not(loom))]
fn empty_control(complete: u64) -> ControlWords {
    let control = zeroed_control();
    control.published.sealed.store(NONE, Relaxed);
    control.published.complete.store(complete, Relaxed);
    control.claimed.wanted.store(NONE, Relaxed);
    control
}

pub(super) fn zeroed_control() -> ControlWords {
    let zero = || AtomicU64::new(0);
    ControlWords {
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
            missing: zero(),
            interaction: zero(),
            given_time: zero(),
        },
        claimed: Claimed { position: zero(), index_head: zero(), wanted: zero(), recent_head: zero() },
        recent: std::array::from_fn(|_| zeroed_entry()),
    }
}

pub(super) fn zeroed_entry() -> Entry {
    Entry { offset: AtomicU64::new(0), time: AtomicU64::new(0), dropped: AtomicU64::new(0) }
}
