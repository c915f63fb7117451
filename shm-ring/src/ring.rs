//! One ring: control words, index and data of one generation, in a memory file or on the heap.
//!
//! The engine's [`Ring`] is mapped read-write, and only [`Writer`](crate::ring::writer::Writer) writes
//! through it. Readers in the engine's process share it. A reader in another process has a
//! read-only map, through which std defines only relaxed loads of at most eight bytes. All sides
//! use the same relaxed loads with fences, so one implementation serves them and loom checks it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, slice};

use self::marks::Marks;
use crate::error::{CreateError, OpenError};
use crate::layout::{
    self, ControlWords, Entry, LAYOUT_VERSION, MAX_CAPACITY, MIN_CAPACITY, NONE, RING_MAGIC,
};
use crate::memory::budget::MemoryCharge;
use crate::memory::copy::copy_racy;
use crate::memory::file::{self, Writers};
use crate::memory::map::{Access, DoubleMap};
use crate::offset::Offset;
use crate::sync::{Ordering::Relaxed, Ordering::Release, Point, fence_at, order_at};

#[cfg(any(loom, feature = "test-utils"))]
mod heap;
pub(crate) mod index;
pub(crate) mod interaction;
mod late;
pub(crate) mod marks;
pub(crate) mod times;
pub(crate) mod writer;

#[cfg(any(loom, feature = "test-utils"))]
pub use heap::HeapMemory;
use late::{LateMemory, Words};

/// The parameters of a new ring.
#[derive(Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// Size of the data area in bytes, rounded up to whole pages.
    pub capacity: u64,
    /// 0 for a stream's first ring, then counted up.
    pub generation: u64,
    /// Position of the first byte.
    pub base: u64,
    /// Bytes dropped before the first byte.
    pub dropped: u64,
    /// Set if the writer overwrites what no reader borrows, instead of waiting for the readers'
    /// cursors.
    pub overwrite: bool,
    /// Description of the stream; cut after [`MAX_LABEL`] bytes.
    pub label: &'a str,
}

/// One generation of a stream, mapped.
///
/// To send it to a reader, send the file of [`Ring::as_fd`]; the reader opens it with
/// [`Ring::open`].
pub struct Ring {
    place: Place,
    base: u64,
    generation: u64,
    overwrite: bool,
    /// Set if the ring was another generation before.
    reused: bool,
}

/// The place in which a ring has its memory.
enum Place {
    Fixed(Memory),
    /// It is allocated with the first byte.
    Late(LateMemory),
}

/// The memory of a ring.
struct Memory {
    control: *const ControlWords,
    entries: *const Entry,
    entry_count: u64,
    data: *mut u8,
    capacity: u64,
    file: Option<OwnedFd>,
    owner: Owner,
    charge: Option<MemoryCharge>,
}

/// The owner of the memory that the pointers of a [`Memory`] point to.
enum Owner {
    #[expect(dead_code, reason = "held only to be unmapped with the ring")]
    Mapped(DoubleMap),
    #[cfg(any(loom, feature = "test-utils"))]
    RingHeap(std::sync::Arc<heap::RingHeap>),
    /// Control words and index without data.
    #[expect(dead_code, reason = "held only to be freed with the ring")]
    Words(Words),
    /// Words that all rings without memory share, which nothing writes.
    #[cfg(not(loom))]
    Shared,
}

// SAFETY: the pointers point into what `owner` owns, which moves with the memory and is unmapped
// only with it. All shared words are atomics; data bytes are touched only under the protocol of the
// writer and the readers (`writer`, `reader`).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("generation", &self.generation)
            .field("base", &self.base)
            .field("capacity", &self.capacity())
            .field("overwrite", &self.overwrite)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Creates a ring in a sealed memory file.
    pub(crate) fn create(shape: Shape<'_>) -> Result<Ring, CreateError> {
        let capacity = checked_capacity(shape.capacity, file::page_size())?;
        let entries = layout::entries_for(capacity);
        let meta = layout::meta_len(entries, file::page_size());
        let len = meta.saturating_add(capacity);
        let fd = file::create(c"iof-ring", len)?;
        // The control words must never fault for lack of memory. Index pages are populated as they
        // are used.
        file::populate(&fd, 0, size_of::<ControlWords>() as u64).map_err(|source| CreateError::Memory {
            step: "fallocate",
            len,
            source,
        })?;
        let map = DoubleMap::new(&fd, meta, capacity, Access::ReadWrite)
            .map_err(|source| CreateError::Memory { step: "mmap", len, source })?;
        file::seal(&fd, Writers::ExistingMaps, len)?;
        let ring = Ring::with_memory(Memory::mapped(map, capacity, entries, Some(fd)), shape);
        ring.initialise(shape);
        Ok(ring)
    }

    /// Maps a ring that the engine sent. An invalid file can neither cause a fault nor a read out
    /// of bounds.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not sealed, has another size than its head specifies, or is not
    /// a ring of this version.
    ///
    /// # Example
    /// ```
    /// use std::fs::File;
    /// use iof_shm_ring::{OpenError, Ring};
    /// let not_a_ring = File::open("/proc/self/exe").unwrap();
    /// assert!(matches!(Ring::open(not_a_ring.into()), Err(OpenError::Seals { .. })));
    /// ```
    pub fn open(fd: OwnedFd) -> Result<Ring, OpenError> {
        let len = file::check(fd.as_fd(), Writers::ExistingMaps)?;
        let page = file::page_size();
        let shortest = layout::meta_len(1, page).saturating_add(page);
        if len < shortest {
            return Err(OpenError::Size { found: len, needed: shortest });
        }
        let head = Head::read(&fd, page)?;
        let meta = layout::meta_len(head.entries, page);
        let needed = meta.saturating_add(head.capacity);
        if needed != len {
            return Err(OpenError::Size { found: len, needed });
        }
        let map = DoubleMap::new(&fd, meta, head.capacity, Access::Read)
            .map_err(|source| OpenError::Map { len, source })?;
        Ok(Ring {
            // A reader with thousands of rings has no descriptors to spare, and the map is enough.
            place: Place::Fixed(Memory::mapped(map, head.capacity, head.entries, None)),
            base: head.base,
            generation: head.generation,
            overwrite: head.overwrite != 0,
            reused: false,
        })
    }

    fn with_memory(memory: Memory, shape: Shape<'_>) -> Ring {
        let Shape { base, generation, overwrite, .. } = shape;
        Ring { place: Place::Fixed(memory), base, generation, overwrite, reused: false }
    }

    /// Returns the ring with its part of a budget.
    pub(crate) fn with_charge(mut self, charge: Option<MemoryCharge>) -> Ring {
        if let Place::Fixed(memory) = &mut self.place {
            memory.charge = charge;
        }
        self
    }

    /// Makes a ring without users into another generation of the same stream. Its pages stay
    /// allocated.
    pub(crate) fn reuse(mut self, shape: Shape<'_>) -> Ring {
        // No reader uses it, but an inspector may be loading its words. Orders this store before
        // the words that follow. Partner: the last fence in `inspect::load_words`.
        self.control().identity.generation.store(NONE, Relaxed);
        fence_at(Point::ReuseFence, Release);
        self.base = shape.base;
        self.generation = shape.generation;
        self.overwrite = shape.overwrite;
        self.reused = true;
        self.initialise(shape);
        self
    }

    fn initialise(&self, shape: Shape<'_>) {
        let (identity, published, claimed) =
            (&self.control().identity, &self.control().published, &self.control().claimed);
        identity.capacity.store(self.capacity(), Relaxed);
        identity.entries.store(self.memory().entry_count, Relaxed);
        identity.base.store(shape.base, Relaxed);
        identity.overwrite.store(u64::from(shape.overwrite), Relaxed);
        identity.writer_pid.store(u64::from(std::process::id()), Relaxed);
        let mut label = shape.label.as_bytes().chunks(8);
        for word in &identity.label {
            let mut bytes = [0u8; 8];
            for (byte, source) in bytes.iter_mut().zip(label.next().unwrap_or_default()) {
                *byte = *source;
            }
            word.store(u64::from_ne_bytes(bytes), Relaxed);
        }
        published.tail.store(shape.base, Relaxed);
        published.index_tail.store(0, Relaxed);
        published.dropped.store(shape.dropped, Relaxed);
        published.sealed.store(NONE, Relaxed);
        published.complete.store(NONE, Relaxed);
        published.missing.store(0, Relaxed);
        published.recent_tail.store(0, Relaxed);
        published.interaction.store(0, Relaxed);
        published.given_time.store(0, Relaxed);
        claimed.position.store(shape.base, Relaxed);
        claimed.index_head.store(0, Relaxed);
        claimed.wanted.store(NONE, Relaxed);
        claimed.recent_head.store(0, Relaxed);
        identity.version.store(LAYOUT_VERSION, Relaxed);
        identity.magic.store(RING_MAGIC, Relaxed);
        // Readers get these words only through the file or an `Arc`, and handing either over orders
        // them. An inspector of a ring that is reused needs the Release. Partner: the fence in
        // `inspect::generation`.
        identity.generation.store(shape.generation, order_at(Point::Reused, Release));
    }

    #[inline]
    fn memory(&self) -> &Memory {
        match &self.place {
            Place::Fixed(memory) => memory,
            Place::Late(late) => late.get(),
        }
    }

    /// Returns the control words.
    #[inline]
    pub(crate) fn control(&self) -> &ControlWords {
        // SAFETY: `control` points to a live `ControlWords` for as long as the memory lives, which is as
        // long as `self`. `create`, `on_heap`, `open` and `late` ensure that, `open` after checking
        // the file's size. All its words are atomics.
        unsafe { &*self.memory().control }
    }

    /// Returns the index ring.
    pub(crate) fn index(&self) -> Marks<'_> {
        let ControlWords { published, claimed, .. } = self.control();
        Marks { entries: self.entries(), tail: &published.index_tail, head: &claimed.index_head }
    }

    /// Returns the entries of the newest reads.
    pub(crate) fn recent(&self) -> Marks<'_> {
        let ControlWords { published, claimed, recent, .. } = self.control();
        Marks { entries: recent, tail: &published.recent_tail, head: &claimed.recent_head }
    }

    /// Returns the memory of the index ring.
    pub(crate) fn entries(&self) -> &[Entry] {
        let Memory { entries, entry_count, .. } = self.memory();
        let count = usize::try_from(*entry_count).unwrap_or(0);
        // SAFETY: as for `control`: the memory has `entry_count` entries there.
        unsafe { slice::from_raw_parts(*entries, count) }
    }

    /// Allocates the memory of index entry `i` and its neighbours, so that writing them cannot
    /// fault. Returns the number of entries that have their memory now, or `None` if the kernel has
    /// no memory.
    pub(crate) fn populate_entries(&self, i: u64) -> Option<u64> {
        if let Some(file) = &self.memory().file {
            let (head, size, page) =
                (size_of::<ControlWords>() as u64, size_of::<Entry>() as u64, file::page_size());
            // The page in which entry `i` ends. All pages before it have their memory already.
            let end = layout::round_up(head.saturating_add(i.saturating_add(1).saturating_mul(size)), page);
            if end > page {
                let start = end.saturating_sub(page.saturating_mul(2));
                file::populate(file, start, end.saturating_sub(start)).ok()?;
            }
            return Some(end.saturating_sub(head) / size);
        }
        let _ = i;
        Some(self.memory().entry_count)
    }

    /// Allocates the memory of the bytes at positions from `start` to `end`, at most a capacity
    /// apart, so that storing them cannot fault. Returns the position up to which all bytes have
    /// their memory now, or `None` if the kernel has no memory.
    pub(crate) fn populate_data(&self, start: u64, end: u64) -> Option<u64> {
        let memory = self.memory();
        #[cfg(any(loom, feature = "test-utils"))]
        if let Owner::RingHeap(heap) = &memory.owner
            && heap.memory().is_data_refused()
        {
            return None;
        }
        let Some(file) = &memory.file else { return Some(end) };
        let meta = layout::meta_len(memory.entry_count, file::page_size());
        let (offset, len) = (self.offset_of(start), end.since(start));
        let until_seam = len.min(memory.capacity.saturating_sub(offset));
        for (offset, len) in [(offset, until_seam), (0, len.saturating_sub(until_seam))] {
            if len > 0 {
                file::populate(file, meta.saturating_add(offset), len).ok()?;
            }
        }
        Some(layout::round_up(end, file::page_size()))
    }

    /// Returns the offset of the byte at `position` in the data area.
    pub(crate) fn offset_of(&self, position: u64) -> u64 {
        position % self.capacity()
    }

    /// Returns the offset of the byte `n` behind the one at `offset`; `n` is at most the capacity.
    pub(crate) fn advance(&self, offset: u64, n: u64) -> u64 {
        let offset = offset.wrapping_add(n);
        if offset >= self.capacity() { offset.wrapping_sub(self.capacity()) } else { offset }
    }

    /// Returns the address of the byte at `offset` of the data area; `capacity` bytes are mapped
    /// from there on.
    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.capacity());
        // `offset` is below `capacity`, which fitted in a `usize` when the ring was mapped.
        self.memory().data.wrapping_add(offset as usize)
    }

    /// Copies `bytes`, at most `capacity`, to `offset` of the data area. The writer must have
    /// claimed that range.
    pub(crate) fn store(&self, offset: u64, bytes: &[u8]) {
        let start = self.address(offset);
        // SAFETY: `capacity` bytes are mapped from `start` on. The writer (the only caller) has
        // claimed them, so no reader pins them, and `bytes` is borrowed from other memory.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Shows the `n` bytes written at `offset` in both halves of a ring on the heap, which has no
    /// double map. The writer must have claimed them.
    #[cfg(any(loom, feature = "test-utils"))]
    pub(crate) fn mirror(&self, offset: u64, n: u64) {
        if let Owner::RingHeap(heap) = &self.memory().owner {
            heap.mirror(self.address(offset), usize::try_from(n).unwrap_or(0));
        }
    }

    /// Copies at most `capacity` bytes from `position` on into `buffer`, while the writer may be
    /// overwriting them. The copy is valid only if the claimed position shows afterwards that they
    /// were not overwritten.
    pub(crate) fn copy(&self, position: u64, buffer: &mut [u8]) {
        let len = buffer.len().min(usize::try_from(self.capacity()).unwrap_or(usize::MAX));
        if let Some(buffer) = buffer.get_mut(..len).filter(|_| self.has_data()) {
            // SAFETY: `capacity` bytes are mapped and readable from that address on, and `buffer`
            // is at most that long.
            unsafe { copy_racy(self.address(self.offset_of(position)), buffer) };
        }
    }

    /// Returns the capacity in bytes. A ring without memory has the capacity that it will have at
    /// least.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.memory().capacity
    }

    /// Returns the generation: 0 for the first ring of a stream, then counted up.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the position of this generation's first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns whether the writer overwrites what no reader borrows at the moment (drop oldest).
    pub fn overwrite(&self) -> bool {
        self.overwrite
    }

    /// Returns the capacity of another ring of this kind if it is created for `requested` bytes.
    pub(crate) fn capacity_for(&self, requested: u64) -> Result<u64, CreateError> {
        #[cfg(any(loom, feature = "test-utils"))]
        if self.is_on_heap() {
            return heap_capacity(requested);
        }
        checked_capacity(requested, file::page_size())
    }

    /// Returns whether the ring has memory for bytes. A ring without has no bytes.
    pub(crate) fn has_data(&self) -> bool {
        match self.memory().owner {
            Owner::Mapped(_) => true,
            #[cfg(any(loom, feature = "test-utils"))]
            Owner::RingHeap(_) => true,
            Owner::Words(_) => false,
            #[cfg(not(loom))]
            Owner::Shared => false,
        }
    }

    /// Returns whether the ring was another generation before.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Returns the ring's file, to be sent to readers; `None` for a ring that was itself received,
    /// lies on the heap or has no memory yet.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory().file.as_ref().map(AsFd::as_fd)
    }
}

impl Memory {
    /// Returns the memory in `map`, with `entry_count` entries of the index.
    fn mapped(map: DoubleMap, capacity: u64, entry_count: u64, file: Option<OwnedFd>) -> Memory {
        Memory {
            control: map.head().cast(),
            entries: map.head().wrapping_add(size_of::<ControlWords>()).cast(),
            entry_count,
            data: map.data(),
            capacity,
            file,
            owner: Owner::Mapped(map),
            charge: None,
        }
    }
}

fn checked_capacity(requested: u64, page: u64) -> Result<u64, CreateError> {
    if requested == 0 || requested > MAX_CAPACITY {
        return Err(CreateError::Capacity { asked: requested });
    }
    Ok(layout::round_up(requested.max(MIN_CAPACITY), page))
}

/// The model checker, and tests of all states, use smaller rings than any other user.
#[cfg(any(loom, feature = "test-utils"))]
fn heap_capacity(requested: u64) -> Result<u64, CreateError> {
    if cfg!(loom) || (1..=8).contains(&requested) { Ok(requested) } else { checked_capacity(requested, 1) }
}

/// The head of a file from another process, read once through the kernel and checked.
struct Head {
    capacity: u64,
    entries: u64,
    generation: u64,
    base: u64,
    overwrite: u64,
}

impl Head {
    fn read(fd: &OwnedFd, page: u64) -> Result<Head, OpenError> {
        let mut bytes = [0u8; 56];
        let read = nix::sys::uio::pread(fd, &mut bytes, 0)
            .map_err(|errno| OpenError::Map { len: 56, source: errno.into() })?;
        if read != bytes.len() {
            return Err(OpenError::Size { found: read as u64, needed: 56 });
        }
        let mut words = [0u64; 7];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*chunk);
        }
        let [magic, version, capacity, entries, generation, base, overwrite] = words;
        let invalid = |field, found| Err(OpenError::Head { field, found });
        if magic != RING_MAGIC {
            return invalid("magic", magic);
        }
        if version != LAYOUT_VERSION {
            return invalid("version", version);
        }
        if capacity == 0 || capacity > MAX_CAPACITY || !capacity.is_multiple_of(page) {
            return invalid("capacity", capacity);
        }
        if entries != layout::entries_for(capacity) {
            return invalid("entries", entries);
        }
        Ok(Head { capacity, entries, generation, base, overwrite })
    }
}
