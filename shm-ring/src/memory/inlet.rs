//! Memory that another process fills: bytes that flow towards the engine, such as stdin.
//!
//! The direction is opposite to that of a [`Ring`](crate::Ring), and so is the trust: the tool
//! writes the bytes, and the engine, which created the memory, only reads them. The engine trusts
//! nothing in that memory. It contains bytes and no control words: the two sides exchange positions
//! by messages, which the engine can check. Unsafe is allowed here because bytes that another
//! process may be changing cannot be borrowed as a slice.

use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;

use crate::error::{CreateError, OpenError};
use crate::layout::MAX_CAPACITY;
use crate::memory::copy::copy_racy;
use crate::memory::file::{self, Writers};
use crate::memory::map::{Access, DoubleMap};

/// Maximum length of a memory file's name in bytes, see memfd_create(2).
const MAX_NAME: usize = 249;

/// Bytes of an inlet that are lent to the kernel. The filler can change them at any moment.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// Address of the bytes. Valid as long as the [`Inlet`].
    pub ptr: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// The engine's side of an inlet: memory that the engine reads and a [`Filler`] fills. A position
/// is the number of bytes that were filled before it.
///
/// # Example
/// ```
/// use iof_shm_ring::{Filler, Inlet};
/// use std::os::fd::AsFd;
///
/// let inlet = Inlet::create(4096, "stdin")?;
/// // Usually in another process, which received the file.
/// // SAFETY: there is no other filler, and `freed` gets the engine's positions.
/// let mut filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned()?) }?;
/// filler.room()[..5].copy_from_slice(b"hello");
/// assert_eq!(filler.fill(5), 5);
/// let mut bytes = [0; 5];
/// inlet.copy(0, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// // The filler has room again once it knows how far the inlet was emptied.
/// assert!(filler.freed(5));
/// assert_eq!(filler.room().len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Inlet {
    map: DoubleMap,
    file: OwnedFd,
    capacity: u64,
}

impl Inlet {
    /// Creates an inlet of `capacity` bytes, rounded up to whole pages, and allocates its memory.
    /// `label` describes it in /proc/PID/fd; it ends at a NUL or after about 240 bytes.
    ///
    /// # Errors
    /// Returns [`CreateError`] if `capacity` is 0 or above [`MAX_CAPACITY`](crate::MAX_CAPACITY),
    /// or if the kernel has no memory or descriptor for the inlet.
    pub fn create(capacity: u64, label: &str) -> Result<Inlet, CreateError> {
        let asked = capacity;
        if asked == 0 || asked > MAX_CAPACITY {
            return Err(CreateError::Capacity { asked });
        }
        let capacity = asked.next_multiple_of(file::page_size());
        let failed = |step| move |source| CreateError::Memory { step, len: capacity, source };
        let name = format!("iof-inlet {label}");
        let name: Vec<u8> = name.bytes().take_while(|byte| *byte != 0).take(MAX_NAME).collect();
        let file = file::create(&CString::new(name).unwrap_or_default(), capacity)?;
        // Without this the filler would be killed by SIGBUS if there is no memory.
        file::populate(&file, 0, capacity).map_err(failed("fallocate"))?;
        file::seal(&file, Writers::AllHolders, capacity)?;
        let map = DoubleMap::new(&file, 0, capacity, Access::Read).map_err(failed("mmap"))?;
        Ok(Inlet { map, file, capacity })
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the `len` bytes at `position`, at most [`capacity`](Inlet::capacity), to be lent to
    /// the kernel, which copies them.
    pub fn lend(&self, position: u64, len: u64) -> Lent {
        // Both fit in a usize, because the map does.
        let offset = position.checked_rem(self.capacity).unwrap_or(0) as usize;
        Lent { ptr: self.map.data().wrapping_add(offset), len: len.min(self.capacity) as usize }
    }

    /// Copies the bytes at `position` into `buffer`, at most [`capacity`](Inlet::capacity), and
    /// returns their number.
    pub fn copy(&self, position: u64, buffer: &mut [u8]) -> usize {
        let Lent { ptr, len } = self.lend(position, buffer.len() as u64);
        let buffer = buffer.get_mut(..len).unwrap_or_default();
        // SAFETY: the data is mapped twice, back to back, for as long as `self` lives. `ptr` points
        // into the first map, and `len` is at most its length, so the whole range is mapped and
        // readable. The file cannot shrink, because it is sealed.
        unsafe { copy_racy(ptr, buffer) };
        len
    }
}

/// Frees the memory, even if the filler keeps the file open. What the filler touches afterwards
/// does not affect the engine.
impl Drop for Inlet {
    fn drop(&mut self) {
        // Fails only on kernels without this call (before Linux 3.5).
        let _ = file::depopulate(&self.file, self.capacity);
    }
}

/// The file to send to the filler.
impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for Inlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// The tool's side of an inlet: fills the free part of the memory.
pub struct Filler {
    map: DoubleMap,
    capacity: usize,
    filled: u64,
    freed: u64,
}

impl fmt::Debug for Filler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filler")
            .field("capacity", &self.capacity)
            .field("filled", &self.filled)
            .field("freed", &self.freed)
            .finish_non_exhaustive()
    }
}

impl Filler {
    /// Maps an inlet that the engine created and sent.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the file is not an inlet, or if there is no memory for the map.
    ///
    /// # Safety
    /// The engine sent the file for this filler alone: there is no other filler, in this process or
    /// elsewhere, and nothing else writes the file. The positions passed to [`Filler::freed`] come
    /// from the engine.
    pub unsafe fn open(inlet: OwnedFd) -> Result<Filler, OpenError> {
        let len = file::check(inlet.as_fd(), Writers::AllHolders)?;
        let capacity = usize::try_from(len)
            .ok()
            .filter(|len| *len > 0 && len.is_multiple_of(file::page_size() as usize));
        let Some(capacity) = capacity else {
            return Err(OpenError::Size { found: len, needed: len.next_multiple_of(file::page_size()) });
        };
        let map = DoubleMap::new(&inlet, 0, len, Access::ReadWrite)
            .map_err(|source| OpenError::Map { len, source })?;
        Ok(Filler { map, capacity, filled: 0, freed: 0 })
    }

    /// Returns the room for the next bytes, in one piece. It is empty if nothing is free.
    pub fn room(&mut self) -> &mut [u8] {
        let used = usize::try_from(self.filled.saturating_sub(self.freed)).unwrap_or(self.capacity);
        let offset = self.filled.checked_rem(self.capacity as u64).unwrap_or(0) as usize;
        let (start, len) = (self.map.data().wrapping_add(offset), self.capacity.saturating_sub(used));
        // SAFETY: the data is mapped readable and writable for as long as `self` lives, twice, back
        // to back. `start` points into the first map and `len` is at most its length, so no byte is
        // in the slice twice. The engine reads only bytes that are filled and not freed, through
        // its own map. This range is neither, by the engine's own messages, and there is no other
        // filler, as the caller of `open` promised. `self` is borrowed for as long as the slice.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    /// Hands over the first `bytes` bytes of the room, or all of the room if it is smaller, and
    /// returns their number. The engine may read them until [`Filler::freed`] frees them.
    pub fn fill(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.room().len());
        self.filled = self.filled.saturating_add(bytes as u64);
        bytes
    }

    /// Returns the number of bytes handed over so far.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// Records that the engine has read everything before `position`, so that the room there can be
    /// filled again. Returns `false`, and changes nothing, if `position` is below the last one or
    /// beyond the filled bytes.
    pub fn freed(&mut self, position: u64) -> bool {
        let possible = (self.freed..=self.filled).contains(&position);
        if possible {
            self.freed = position;
        }
        possible
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn pair() -> (Inlet, Filler) {
        let inlet = Inlet::create(1, "test").unwrap();
        // SAFETY: there is no other filler.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        (inlet, filler)
    }

    #[test]
    fn bytes_arrive_in_order_across_the_seam_and_room_is_the_free_part() {
        let (inlet, mut filler) = pair();
        let capacity = inlet.capacity();
        let (mut sent, mut taken) = (0u64, 0u64);
        for step in [1u64, 4000, 4096, 4095, 17, 2048, 4096] {
            let room = filler.room();
            assert_eq!(room.len() as u64, capacity - (sent - taken));
            let n = room.len().min(step as usize);
            for (position, byte) in (sent..).zip(&mut room[..n]) {
                *byte = (position % 251) as u8;
            }
            assert_eq!(filler.fill(n), n);
            sent += n as u64;
            let mut bytes = vec![0; (sent - taken).min(step) as usize];
            assert_eq!(inlet.copy(taken, &mut bytes), bytes.len());
            assert!(
                (taken..).zip(&bytes).all(|(position, byte)| *byte == (position % 251) as u8),
                "from {taken} on"
            );
            taken += bytes.len() as u64;
            assert!(filler.freed(taken));
        }
        assert!(sent > 2 * capacity);
    }

    #[test]
    fn fill_is_bounded_by_the_room_and_freed_by_the_filled_bytes() {
        let (inlet, mut filler) = pair();
        let capacity = inlet.capacity();
        assert_eq!(filler.fill(usize::MAX) as u64, capacity);
        assert!(filler.room().is_empty());
        assert_eq!(filler.fill(1), 0);
        assert!(!filler.freed(capacity + 1));
        assert!(filler.freed(10) && !filler.freed(9));
        assert_eq!(filler.room().len(), 10);
        assert_eq!(inlet.lend(capacity - 1, u64::MAX).len as u64, capacity);
    }

    #[test]
    fn a_dropped_inlet_frees_its_memory_although_the_filler_remains() {
        let (inlet, mut filler) = pair();
        let kept = File::from(inlet.as_fd().try_clone_to_owned().unwrap());
        filler.room().fill(1);
        assert!(kept.metadata().unwrap().blocks() > 0);
        drop(inlet);
        assert_eq!(kept.metadata().unwrap().blocks(), 0);
        // Touching the memory now affects the filler alone, and does not fault.
        assert!(filler.room().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn invalid_sizes_and_files_that_are_not_inlets_are_rejected() {
        assert!(matches!(Inlet::create(0, ""), Err(CreateError::Capacity { asked: 0 })));
        assert!(matches!(Inlet::create(u64::MAX, ""), Err(CreateError::Capacity { .. })));
        let unsealed = file::create(c"test", 4096).unwrap();
        // SAFETY: every `open` fails.
        let open_error = |file| unsafe { Filler::open(file) }.map(drop);
        assert!(matches!(open_error(unsealed), Err(OpenError::Unsealed { .. })));
        let odd = file::create(c"test", 4097).unwrap();
        file::seal(&odd, Writers::AllHolders, 4097).unwrap();
        assert!(matches!(open_error(odd), Err(OpenError::Size { found: 4097, .. })));
        let empty = file::create(c"test", 0).unwrap();
        file::seal(&empty, Writers::AllHolders, 0).unwrap();
        assert!(matches!(open_error(empty), Err(OpenError::Size { found: 0, .. })));
    }
}
