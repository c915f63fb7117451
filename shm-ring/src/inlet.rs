//! A ring that another process fills: bytes that flow towards the engine, such as stdin.
//!
//! It is the other way round than a [`Ring`](crate::Ring), and so is trust: the tool writes the
//! bytes and the engine, who made the memory, only reads them. Nothing in that memory is believed.
//! It holds bytes and no words: how far it is filled and emptied goes by messages, which the engine
//! can check. Unsafe is allowed here because bytes that another process may be changing can't be
//! had as a slice.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;

use crate::copy::copy_racy;
use crate::error::{CreateError, OpenError};
use crate::file::{self, Writers};
use crate::layout::MAX_CAPACITY;
use crate::map::{Access, DoubleMap};

/// Bytes that the name of a memory file may have, see memfd_create(2).
const MAX_NAME: usize = 249;

/// Bytes of an inlet that are lent to the kernel. Whoever filled the inlet can change them at any
/// moment.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// Where they are. Valid as long as the [`Inlet`].
    pub ptr: *const u8,
    /// How many.
    pub len: usize,
}

/// The engine's side: memory that it reads and a [`Filler`] fills. Positions count the bytes since
/// the beginning.
///
/// # Example
/// ```
/// use iof_shm_ring::{Filler, Inlet};
/// use std::os::fd::AsFd;
///
/// let inlet = Inlet::create(4096, "stdin")?;
/// // Usually in another process, which was sent the file.
/// // SAFETY: there is no other filler, and `freed` is told the truth.
/// let mut filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned()?) }?;
/// filler.room()[..5].copy_from_slice(b"hello");
/// assert_eq!(filler.fill(5), 5);
/// let mut bytes = [0; 5];
/// inlet.copy(0, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// // Once told how far it was emptied, it has room again.
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
    /// Makes an inlet of `capacity` bytes, rounded up to whole pages, which have their memory from
    /// now on. `label` says what it is in /proc/PID/fd, in some 240 bytes; a NUL ends it.
    ///
    /// # Errors
    /// [`CreateError`]: no bytes or too many, or no memory or descriptor for them.
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
        // Or the filler would be killed by SIGBUS where there is no memory.
        file::populate(&file, 0, capacity).map_err(failed("fallocate"))?;
        file::seal(&file, Writers::Anybody, capacity)?;
        let map = DoubleMap::new(&file, 0, capacity, Access::Read).map_err(failed("mmap"))?;
        Ok(Inlet { map, file, capacity })
    }

    /// Bytes that it holds at most.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The `len` bytes at `position`, or as many as it holds: for the kernel, which copies them.
    pub fn lend(&self, position: u64, len: u64) -> Lent {
        // Both fit a usize, as the map does.
        let offset = position.checked_rem(self.capacity).unwrap_or(0) as usize;
        Lent { ptr: self.map.data().wrapping_add(offset), len: len.min(self.capacity) as usize }
    }

    /// Copies the bytes at `position`, `into.len()` or as many as it holds; gives how many.
    pub fn copy(&self, position: u64, into: &mut [u8]) -> usize {
        let Lent { ptr, len } = self.lend(position, into.len() as u64);
        let into = into.get_mut(..len).unwrap_or_default();
        // SAFETY: the data is mapped twice, back to back, for as long as `self`; `ptr` is within the first
        // copy, and `len` not more than one. So all is mapped and readable. Its pages can't be cut
        // off (sealed).
        unsafe { copy_racy(ptr, into) };
        len
    }
}

/// Gives the memory back, though the filler may keep the file for ever: what it touches then is its
/// own affair.
impl Drop for Inlet {
    fn drop(&mut self) {
        // Fails on kernels without it only (before Linux 3.5).
        let _ = file::depopulate(&self.file, self.capacity);
    }
}

/// The file for the filler.
impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The tool's side: fills what has room.
pub struct Filler {
    map: DoubleMap,
    capacity: usize,
    filled: u64,
    freed: u64,
}

impl Filler {
    /// Maps an inlet that the engine has made and sent.
    ///
    /// # Errors
    /// [`OpenError`]: this is none, or there is no memory for the map.
    ///
    /// # Safety
    /// The file was sent by its engine for this filler alone: there is no other, in this process or
    /// elsewhere, and nobody else writes it. What [`Filler::freed`] is told is the engine's
    /// word.
    pub unsafe fn open(inlet: OwnedFd) -> Result<Filler, OpenError> {
        let len = file::check(inlet.as_fd(), Writers::Anybody)?;
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

    /// Where bytes may be put now, in one piece; empty if there is no room.
    pub fn room(&mut self) -> &mut [u8] {
        let used = usize::try_from(self.filled.saturating_sub(self.freed)).unwrap_or(self.capacity);
        let offset = self.filled.checked_rem(self.capacity as u64).unwrap_or(0) as usize;
        let (at, len) = (self.map.data().wrapping_add(offset), self.capacity.saturating_sub(used));
        // SAFETY: mapped readable and writable for as long as `self`, twice, back to back: `at` is within
        // the first copy and `len` not more than one, so no byte is in the slice twice. The engine
        // reads what is filled and not freed, by its own map; what is here is neither, by its own
        // word, and there is no other filler, as `open` was promised. `self` is borrowed for as
        // long as the slice.
        unsafe { slice::from_raw_parts_mut(at, len) }
    }

    /// Hands over the first `bytes` of the room, or all of it if that is less; gives how many. They
    /// are the engine's until it has freed them.
    pub fn fill(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.room().len());
        self.filled = self.filled.saturating_add(bytes as u64);
        bytes
    }

    /// Bytes handed over so far.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// The engine is done with everything before `position`; `false` if that can't be, and nothing
    /// changes.
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
        // SAFETY: there is no other.
        let filler = unsafe { Filler::open(inlet.as_fd().try_clone_to_owned().unwrap()) }.unwrap();
        (inlet, filler)
    }

    #[test]
    fn bytes_arrive_in_order_all_the_way_round_and_the_room_is_what_is_free() {
        let (inlet, mut filler) = pair();
        let capacity = inlet.capacity();
        let (mut sent, mut taken) = (0u64, 0u64);
        for step in [1u64, 4000, 4096, 4095, 17, 2048, 4096] {
            let room = filler.room();
            assert_eq!(room.len() as u64, capacity - (sent - taken));
            let n = room.len().min(step as usize);
            for (at, byte) in (sent..).zip(&mut room[..n]) {
                *byte = (at % 251) as u8;
            }
            assert_eq!(filler.fill(n), n);
            sent += n as u64;
            let mut bytes = vec![0; (sent - taken).min(step) as usize];
            assert_eq!(inlet.copy(taken, &mut bytes), bytes.len());
            assert!((taken..).zip(&bytes).all(|(at, byte)| *byte == (at % 251) as u8), "from {taken} on");
            taken += bytes.len() as u64;
            assert!(filler.freed(taken));
        }
        assert!(sent > 2 * capacity);
    }

    #[test]
    fn no_more_is_filled_than_there_is_room_and_no_more_freed_than_was_filled() {
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
    fn an_inlet_that_goes_gives_its_memory_back_though_the_filler_stays() {
        let (inlet, mut filler) = pair();
        let kept = File::from(inlet.as_fd().try_clone_to_owned().unwrap());
        filler.room().fill(1);
        assert!(kept.metadata().unwrap().blocks() > 0);
        drop(inlet);
        assert_eq!(kept.metadata().unwrap().blocks(), 0);
        // What is touched now is the filler's own affair, and no fault.
        assert!(filler.room().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn sizes_that_cannot_be_and_files_that_are_no_inlets_are_refused() {
        assert!(matches!(Inlet::create(0, ""), Err(CreateError::Capacity { asked: 0 })));
        assert!(matches!(Inlet::create(u64::MAX, ""), Err(CreateError::Capacity { .. })));
        let unsealed = file::create(c"test", 4096).unwrap();
        // SAFETY: nothing is opened.
        let refused = |file| unsafe { Filler::open(file) }.map(drop);
        assert!(matches!(refused(unsealed), Err(OpenError::Unsealed { .. })));
        let odd = file::create(c"test", 4097).unwrap();
        file::seal(&odd, Writers::Anybody, 4097).unwrap();
        assert!(matches!(refused(odd), Err(OpenError::Size { found: 4097, .. })));
        let empty = file::create(c"test", 0).unwrap();
        file::seal(&empty, Writers::Anybody, 0).unwrap();
        assert!(matches!(refused(empty), Err(OpenError::Size { found: 0, .. })));
    }
}
