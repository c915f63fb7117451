//! A tool's reader page: a slot for each ring that it reads, a ready bit for each slot, and a flag
//! that is set while the tool sleeps.
//!
//! The tool maps the page writable, so the engine trusts no word of it: it loads a word once and
//! checks the value. The engine never reads an index or a length from here, and what it writes
//! (ready bits, clearing `armed`) matters to the tool alone.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

use self::slots::Slots;
use crate::error::{CreateError, OpenError};
use crate::layout::{LAYOUT_VERSION, PAGE_MAGIC};
use crate::layout::{MAX_SLOTS, PageTable, Slot};
use crate::memory::file::{self, Writers};
use crate::reader_id::ReaderId;
use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, Point, fence_at};
use crate::wakeup::doorbell::Ringer;
use crate::wakeup::stepper::Stepper;

#[cfg(any(loom, feature = "test-utils"))]
mod heap;
pub(crate) mod slots;

/// One tool's shared words, mapped. The engine creates the page, the tool opens it.
pub struct ReaderPage {
    table: *const PageTable,
    /// `None` on the tool's side.
    owner: Option<OwnerSide>,
    _memory: Memory,
}

/// The engine's state of a reader page, in memory that the tool cannot reach.
struct OwnerSide {
    ringer: Ringer,
    stepper: Option<Stepper>,
    file: Option<OwnedFd>,
    /// The end of the part of the file that has memory.
    populated: Mutex<u64>,
    slots: Mutex<Slots>,
}

#[expect(dead_code, reason = "held only to be dropped with the page")]
enum Memory {
    Mapped(MmapRaw),
    #[cfg(any(loom, feature = "test-utils"))]
    Heap(heap::Heap),
}

// SAFETY: `table` points into `_memory`, which lives as long as the reader page; all of its words
// are atomics.
unsafe impl Send for ReaderPage {}
// SAFETY: as above.
unsafe impl Sync for ReaderPage {}

impl fmt::Debug for ReaderPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.owner.is_some() { "engine" } else { "tool" };
        f.debug_struct("ReaderPage").field("side", &side).finish_non_exhaustive()
    }
}

impl ReaderPage {
    /// Creates the reader page of a tool. `ringer` rings the tool's doorbell.
    ///
    /// # Errors
    /// [`CreateError`] if the kernel has no memory or descriptor for it.
    pub fn create(ringer: Ringer) -> Result<ReaderPage, CreateError> {
        let len = layout_len();
        let failed = |step| move |source| CreateError::Memory { step, len, source };
        let fd = file::create(c"iof-reader-page", len)?;
        file::populate(&fd, 0, SLOTS_OFFSET).map_err(failed("fallocate"))?;
        let map = MmapRaw::map_raw(&fd).map_err(failed("mmap"))?;
        file::seal(&fd, Writers::AllHolders, len)?;
        let owner = OwnerSide {
            ringer,
            stepper: None,
            file: Some(fd),
            populated: Mutex::new(SLOTS_OFFSET),
            slots: Mutex::default(),
        };
        let page =
            ReaderPage { table: map.as_ptr().cast(), owner: Some(owner), _memory: Memory::Mapped(map) };
        page.table().head.version.store(LAYOUT_VERSION, Relaxed);
        page.table().head.magic.store(PAGE_MAGIC, Relaxed);
        Ok(page)
    }

    /// Lets the thread that would ring the doorbell of this tool, which is in the same process, do
    /// the tool's step first.
    #[must_use]
    pub fn with_stepper(mut self, stepper: Stepper) -> ReaderPage {
        if let Some(owner) = &mut self.owner {
            owner.stepper = Some(stepper);
        }
        self
    }

    /// Maps the reader page that the engine created for this tool.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not sealed or not a reader page of this version.
    pub fn open(fd: OwnedFd) -> Result<ReaderPage, OpenError> {
        let len = file::check(fd.as_fd(), Writers::AllHolders)?;
        let needed = layout_len();
        if len != needed {
            return Err(OpenError::Size { found: len, needed });
        }
        let map = MmapOptions::new().map_raw(&fd).map_err(|source| OpenError::Map { len, source })?;
        let page = ReaderPage { table: map.as_ptr().cast(), owner: None, _memory: Memory::Mapped(map) };
        let head = &page.table().head;
        for (field, word, expected) in
            [("magic", &head.magic, PAGE_MAGIC), ("version", &head.version, LAYOUT_VERSION)]
        {
            let found = word.load(Relaxed);
            if found != expected {
                return Err(OpenError::Head { field, found });
            }
        }
        Ok(page)
    }

    fn table(&self) -> &PageTable {
        // SAFETY: `table` points to a whole `PageTable` in `_memory` for as long as `self` lives.
        // `create` and `open` checked the file's size, which its seals keep. All words of the table
        // are atomics.
        unsafe { &*self.table }
    }

    /// Returns the reader page's file, to be sent to its tool; `None` on the tool's side.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.owner.as_ref().and_then(|owner| owner.file.as_ref()).map(AsFd::as_fd)
    }

    /// Returns the words of a reader.
    pub(crate) fn slot(&self, id: ReaderId) -> Option<&Slot> {
        self.table().slots.get(id.index())
    }

    // Engine's side.

    /// Allocates the memory of a slot, unless it has some. Needed before the first use of a slot
    /// from
    /// [`Slots::take`] of an owner that keeps [`Slots`] apart from the page.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the page has no such slot, [`CreateError::Memory`] if the kernel
    /// has no memory.
    pub fn prepare_slot(&self, id: ReaderId) -> Result<(), CreateError> {
        let Some(owner) = self.owner.as_ref().filter(|_| id.index() < MAX_SLOTS) else {
            return Err(CreateError::Slots);
        };
        let Some(fd) = &owner.file else { return Ok(()) };
        let mut populated = owner.populated.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = slots_end(id).saturating_sub(*populated);
        if missing > 0 {
            let len = missing.next_multiple_of(file::page_size());
            let failed = |source| CreateError::Memory { step: "fallocate", len, source };
            file::populate(fd, *populated, len).map_err(failed)?;
            *populated = populated.saturating_add(len);
        }
        Ok(())
    }

    /// Takes a slot for one more reader, and returns the reader's id.
    /// [`Stream::attach`](crate::Stream::attach) initialises the slot's words.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if [`MAX_SLOTS`] slots are taken, [`CreateError::Memory`] if the
    /// kernel has no memory.
    pub fn take_slot(&self) -> Result<ReaderId, CreateError> {
        let Some(owner) = &self.owner else { return Err(CreateError::Slots) };
        let mut slots = owner.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let id = slots.take().ok_or(CreateError::Slots)?;
        self.prepare_slot(id).inspect_err(|_| slots.put_back(id))?;
        Ok(id)
    }

    /// Returns the slot of a reader that no longer uses it, in constant time. Does nothing for a
    /// slot that is not taken.
    pub fn return_slot(&self, id: ReaderId) {
        if let Some(owner) = &self.owner {
            owner.slots.lock().unwrap_or_else(PoisonError::into_inner).put_back(id);
        }
    }

    /// Sets the ready bit of a reader. Returns `false` if it was set already. A SeqCst fence must
    /// lie between the ring's update and this call.
    pub(crate) fn mark_ready(&self, id: ReaderId) -> bool {
        let Some((word, bit)) = self.ready_bit(id) else { return false };
        // If the bit is already set, the tool has not taken it yet and reads the ring after it has
        // (the fences of `notify` and `take_ready` order the update before that read). Nor does the
        // tool sleep without a wake-up: the thread that set the bit ensured that.
        word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Returns whether the ready bit of a reader is set.
    fn is_marked(&self, id: ReaderId) -> bool {
        // If it is not, whichever thread took it reads the ring after that, as in `mark_ready`.
        self.ready_bit(id).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    fn ready_bit(&self, id: ReaderId) -> Option<(&crate::sync::AtomicU64, u64)> {
        let word = self.table().ready.get(id.index() / 64)?;
        Some((word, 1u64 << (id.index() % 64)))
    }

    /// Rings the doorbell for the reader `id` if the tool sleeps, unless the tool's step leaves
    /// nothing to do. A SeqCst fence must lie between `mark_ready` and this call.
    pub(crate) fn ring_if_armed(&self, id: ReaderId) {
        let armed = &self.table().head.armed;
        let stepper = self.owner.as_ref().and_then(|owner| owner.stepper.as_ref());
        if let Some(stepper) = stepper
            && armed.load(Relaxed) == 1
        {
            // A step takes the ready bits of all readers. If it has left bytes, it has rung
            // already.
            if !self.is_marked(id) || stepper.step() {
                return;
            }
        }
        // Partner: the store in `arm`. The load avoids the exclusive access in the common case. The
        // exchange disarms only the sleep for which it rings, not a later one.
        if armed.load(Relaxed) == 1
            && armed.compare_exchange(1, 0, Relaxed, Relaxed).is_ok()
            && let Some(owner) = &self.owner
        {
            owner.ringer.ring();
        }
    }

    // Tool's side.

    /// Takes the ready bits of the first `slots` slots ([`ReaderId::slots`]): calls `each` with
    /// every reader whose ready bit was set since the last call.
    pub fn take_ready(&self, slots: u32, mut each: impl FnMut(ReaderId)) {
        for (base, word) in (0u32..slots).step_by(64).zip(&self.table().ready) {
            let wanted = bits_below(slots, base);
            if word.load(Relaxed) & wanted == 0 {
                continue;
            }
            // Partner: `fetch_or` in `mark_ready`; the fences around both order the updates.
            let mut bits = word.fetch_and(!wanted, Relaxed) & wanted;
            // A later update sets its bit again. The caller's next read of the ring sees the
            // updates whose bits were taken here. Partner: the first fence of `notify`.
            fence_at(Point::TakeFence, SeqCst);
            while bits != 0 {
                each(base.saturating_add(bits.trailing_zeros()).into());
                bits &= bits.wrapping_sub(1);
            }
        }
    }

    /// Announces that the tool, which uses the first `slots` slots, is about to sleep on its
    /// doorbell. Returns `false` if a ready bit is set, so that the tool must not sleep.
    ///
    /// To sleep without missing an update: [take](ReaderPage::take_ready) the ready bits; peek each
    /// ring that had one until it returns [`Peek::Empty`](crate::Peek::Empty) (or an end); then
    /// arm. If that returns `true`, wait until the doorbell is readable, then
    /// [disarm](ReaderPage::disarm) and [silence](crate::Bell::silence) it. A tool that takes a bit
    /// must peek that ring once more before it sleeps, and so must a tool that changed a reader's
    /// [grouping](crate::Reader::group).
    pub fn arm(&self, slots: u32) -> bool {
        // Partner: the load in `ring_if_armed`.
        self.table().head.armed.store(1, Relaxed);
        // One of this fence and the engine's second fence in `notify` is first. Either the engine
        // sees `armed`, or the tool sees the ready bits.
        fence_at(Point::ArmFence, SeqCst);
        let mut words = (0u32..slots).step_by(64).zip(&self.table().ready);
        let idle = words.all(|(base, word)| word.load(Relaxed) & bits_below(slots, base) == 0);
        if !idle {
            self.disarm();
        }
        idle
    }

    /// Cancels [`ReaderPage::arm`], after waking up.
    pub fn disarm(&self) {
        self.table().head.armed.store(0, Relaxed);
    }
}

/// Returns the bits of the ready word beginning with slot `base` that stand for slots below
/// `slots`.
fn bits_below(slots: u32, base: u32) -> u64 {
    1u64.checked_shl(slots.saturating_sub(base)).map_or(u64::MAX, |bit| bit.wrapping_sub(1))
}

/// Returns the size of a reader page file in bytes: the table, in whole pages.
fn layout_len() -> u64 {
    crate::layout::round_up(size_of::<PageTable>() as u64, file::page_size())
}

/// Offset of the first slot in the file.
const SLOTS_OFFSET: u64 = std::mem::offset_of!(PageTable, slots) as u64;

/// Returns the offset in the file behind the slot of `id`.
fn slots_end(id: ReaderId) -> u64 {
    SLOTS_OFFSET.saturating_add(u64::from(id.slots()).saturating_mul(size_of::<Slot>() as u64))
}
