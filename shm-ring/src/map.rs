//! The double map: a ring or inlet file whose data part lies twice, back to back, in the address
//! space.
//!
//! Unsafe is allowed here because mapping is a promise about addresses that no type of std can
//! express.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::libc::off_t;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// `meta` bytes of file head, then the file's data part twice.
pub(crate) struct DoubleMap {
    start: NonNull<u8>,
    meta: usize,
    len: usize,
}

/// What the map may be used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// By whoever fills it: the engine a ring, a tool an inlet.
    ReadWrite,
    /// By all others.
    Read,
}

// SAFETY: the map is plain memory owned by this value; it may be used and unmapped from any thread.
// What is done through its pointers is promised by `ring` and `inlet`, which alone hand them out.
unsafe impl Send for DoubleMap {}
// SAFETY: as above; `&DoubleMap` only gives out pointers.
unsafe impl Sync for DoubleMap {}

impl DoubleMap {
    /// Maps `file`, which has `meta + data` bytes, both multiples of the page size, and some data.
    pub(crate) fn new(file: impl AsFd, meta: u64, data: u64, access: Access) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let size = |n: u64| usize::try_from(n).map_err(|_| too_large());
        let (meta, data) = (size(meta)?, size(data)?);
        let file_len = meta.checked_add(data).and_then(NonZeroUsize::new).ok_or_else(too_large)?;
        let data_len = NonZeroUsize::new(data).ok_or_else(too_large)?;
        let len = file_len.checked_add(data).ok_or_else(too_large)?;

        // SAFETY: a fresh anonymous reservation at an address of the kernel's choice touches nothing of
        // ours.
        let start = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)? };
        // From here on, dropping `map` gives the reservation back.
        let map = DoubleMap { start: start.cast(), meta, len: len.get() };
        map.place(&file, 0, file_len, 0, access)?;
        map.place(&file, file_len.get(), data_len, meta, access)?;
        // SAFETY: the range is exactly this map; keeping it out of forked children changes nothing for us.
        unsafe { madvise(start, len.get(), MmapAdvise::MADV_DONTFORK)? };
        Ok(map)
    }

    /// Maps `len` bytes of the file from `file_offset` on at `offset` within the reservation.
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
        let at = NonZeroUsize::new(self.start.as_ptr().addr().wrapping_add(offset));
        let from = off_t::try_from(file_offset).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the target range lies within the reservation this value owns (the callers' offsets and
        // lengths add up to `self.len`), so MAP_FIXED replaces nothing but the reservation.
        unsafe { mmap(at, len, prot, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, file, from)? };
        Ok(())
    }

    /// First byte of the file head.
    pub(crate) fn head(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// First byte of the data part; twice the data length is mapped from here.
    pub(crate) fn data(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.meta)
    }
}

impl Drop for DoubleMap {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value; `ring` lets nobody keep a
        // pointer beyond it, and whoever has one from `inlet` was told how long it is valid.
        // Failure would leak address space, which nobody could mend here.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
