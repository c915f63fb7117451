//! The double map: a ring or inlet file whose data part is mapped twice, back to back.
//!
//! Unsafe is allowed here because no type of std can express what a map promises about addresses.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::libc::off_t;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Number of memory maps of one [`DoubleMap`].
pub(crate) const MAPS: u64 = 2;
/// The memory maps of all [`DoubleMap`]s. Only a count, so Relaxed suffices.
static IN_USE: AtomicU64 = AtomicU64::new(0);

/// Returns the number of memory maps that the rings and inlets of this process use.
pub fn maps_in_use() -> u64 {
    IN_USE.load(Relaxed)
}

/// A map of `meta` bytes of file head, then of the file's data part twice.
pub(crate) struct DoubleMap {
    start: NonNull<u8>,
    meta: usize,
    len: usize,
}

/// The access that a map allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// For the side that fills the memory: the engine fills a ring, a tool fills an inlet.
    ReadWrite,
    /// For the side that only reads.
    Read,
}

// SAFETY: the map is plain memory owned by this value; any thread may use and unmap it. `ring` and
// `inlet`, which alone hand out its pointers, promise what is done through them.
unsafe impl Send for DoubleMap {}
// SAFETY: as above; `&DoubleMap` only gives out pointers.
unsafe impl Sync for DoubleMap {}

impl DoubleMap {
    /// Maps `file`, which has `meta + data` bytes. Both are multiples of the page size, and `data`
    /// is not 0.
    pub(crate) fn new(file: impl AsFd, meta: u64, data: u64, access: Access) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let size = |n: u64| usize::try_from(n).map_err(|_| too_large());
        let (meta, data) = (size(meta)?, size(data)?);
        let file_len = meta.checked_add(data).and_then(NonZeroUsize::new).ok_or_else(too_large)?;
        let data_len = NonZeroUsize::new(data).ok_or_else(too_large)?;
        let len = file_len.checked_add(data).ok_or_else(too_large)?;

        // SAFETY: a fresh anonymous reservation at an address that the kernel chooses touches no
        // existing map.
        let start = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)? };
        // From here on, dropping `map` releases the reservation.
        IN_USE.fetch_add(MAPS, Relaxed);
        let map = DoubleMap { start: start.cast(), meta, len: len.get() };
        map.place(&file, 0, file_len, 0, access)?;
        map.place(&file, file_len.get(), data_len, meta, access)?;
        // SAFETY: the range is exactly this map. Keeping it out of forked children changes nothing
        // in this process.
        unsafe { madvise(start, len.get(), MmapAdvise::MADV_DONTFORK)? };
        Ok(map)
    }

    /// Maps `len` bytes of the file, from `file_offset` on, at `offset` within the reservation.
    fn place(
        &self,
        file: impl AsFd,
        offset: usize,
        len: NonZeroUsize,
        file_offset: usize,
        access: Access,
    ) -> io::Result<()> {
        let prot = match access {
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            Access::Read => ProtFlags::PROT_READ,
        };
        let address = NonZeroUsize::new(self.start.as_ptr().addr().wrapping_add(offset));
        let file_offset =
            off_t::try_from(file_offset).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the target range lies within the reservation that this value owns (the callers'
        // offsets and lengths add up to `self.len`), so MAP_FIXED replaces nothing but the
        // reservation.
        unsafe { mmap(address, len, prot, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, file, file_offset)? };
        Ok(())
    }

    /// Returns the address of the file head.
    pub(crate) fn head(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the address of the data part; twice the data length is mapped from here on.
    pub(crate) fn data(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.meta)
    }
}

impl Drop for DoubleMap {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value. `ring` lets no pointer
        // outlive it, and `inlet` documents how long its pointers are valid. A failure would leak
        // address space, which no code here could repair.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
        IN_USE.fetch_sub(MAPS, Relaxed);
    }
}
