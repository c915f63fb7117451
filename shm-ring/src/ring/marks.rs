//! A ring of marks in shared memory. One party writes; the others read, and detect when a mark is
//! overwritten while they read it.

use std::ops::Range;

use crate::layout::Entry;
use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{Point, broken, fence_at, order_at};

/// The metadata of the bytes from one position on, until the next mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Position of the first byte that the mark covers.
    pub offset: u64,
    /// Time at which that byte was read from its source, in nanoseconds since 1970
    /// (`CLOCK_REALTIME`).
    pub time: u64,
    /// Bytes dropped before `offset`, since the stream began.
    pub dropped: u64,
}

/// A view of entries: those below `tail` are written, those below `head` are retired. Entry `i`
/// lies at index `i` modulo their number.
pub(crate) struct Marks<'a> {
    pub entries: &'a [Entry],
    pub tail: &'a AtomicU64,
    pub head: &'a AtomicU64,
}

impl<'a> Marks<'a> {
    /// Returns the number of entries that fit at a time.
    pub(crate) fn room(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns the memory of entry `i`.
    pub(crate) fn entry(&self, i: u64) -> Option<&'a Entry> {
        let index = usize::try_from(i.checked_rem(self.room())?).ok()?;
        self.entries.get(index)
    }

    /// Retires the entries below `head`, which may be overwritten from then on. Called by the
    /// writer.
    pub(crate) fn retire(&self, head: u64) {
        // Ordered by the fence in `put`.
        self.head.store(head, Relaxed);
    }

    /// Writes entry `i`, the next one, over a retired one. Called by the writer.
    pub(crate) fn put(&self, i: u64, mark: Mark) {
        let Some(entry) = self.entry(i) else { return };
        // Orders the new `head` (stored by `retire`) before the words that overwrite an old entry.
        // Partner: the fence in `load`.
        fence_at(Point::EntryFence, Release);
        entry.offset.store(mark.offset, Relaxed);
        entry.time.store(mark.time, Relaxed);
        entry.dropped.store(mark.dropped, Relaxed);
        // Partner: the load of `tail` in `published`.
        self.tail.store(i.wrapping_add(1), order_at(Point::EntryPublished, Release));
    }

    /// Returns the range of entries that may be read.
    pub(crate) fn published(&self) -> Range<u64> {
        let tail = self.tail.load(Relaxed);
        // Partner: the Release store of `tail` in `put`. (A fence, not an acquire load: read-only
        // maps.)
        fence_at(Point::IndexFence, Acquire);
        let head = self.head.load(Relaxed);
        // At most one ring of entries: a head and tail from a broken file cannot make a caller read
        // more.
        head.max(tail.saturating_sub(self.room()))..tail
    }

    /// Loads entry `i`. Returns `None` if it may have been overwritten meanwhile.
    pub(crate) fn load(&self, i: u64) -> Option<Mark> {
        let entry = self.entry(i)?;
        let mark = Mark {
            offset: entry.offset.load(Relaxed),
            time: entry.time.load(Relaxed),
            dropped: entry.dropped.load(Relaxed),
        };
        // If any load above saw a word of a later entry, this fence makes the new `head` visible,
        // too. Partner: the Release fence in `put`.
        fence_at(Point::EntryLoadFence, Acquire);
        let valid = self.head.load(Relaxed) <= i || broken(Point::EntryLoadCheck);
        valid.then_some(mark)
    }

    /// Returns the marks from the newest back to the oldest, or to the first that was overwritten
    /// meanwhile.
    pub(crate) fn newest_first(self) -> impl Iterator<Item = Mark> {
        self.published().rev().map_while(move |i| self.load(i))
    }
}
