//! A ring of marks in shared memory: one writes, others look, and who looks at one that is
//! overwritten notices.

use std::ops::Range;

use crate::layout::Entry;
use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{Point, broken, fence_at, order_at};

/// What the index says of the bytes from one position on, until the next mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Position of the first byte it speaks of.
    pub offset: u64,
    /// When that byte was read from its source, nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub time: u64,
    /// Bytes dropped before `offset`, since the stream began.
    pub dropped: u64,
}

/// Entries, those below `tail` written, those below `head` given up. Entry `i` lies at `i` modulo
/// their number.
pub(crate) struct Marks<'a> {
    pub entries: &'a [Entry],
    pub tail: &'a AtomicU64,
    pub head: &'a AtomicU64,
}

impl<'a> Marks<'a> {
    /// How many there can be at a time.
    pub(crate) fn room(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The memory of entry `i`.
    pub(crate) fn entry(&self, i: u64) -> Option<&'a Entry> {
        let at = usize::try_from(i.checked_rem(self.room())?).ok()?;
        self.entries.get(at)
    }

    /// Writer: gives up the entries below `head`, which may be overwritten from then on.
    pub(crate) fn give_up(&self, head: u64) {
        // The fence in `put` orders it.
        self.head.store(head, Relaxed);
    }

    /// Writer: writes entry `i`, the next one, over one that was given up.
    pub(crate) fn put(&self, i: u64, mark: Mark) {
        let Some(entry) = self.entry(i) else { return };
        // Orders the new `head` (stored by `give_up`) before the words that overwrite an old entry.
        // Partner: the fence in `look`.
        fence_at(Point::EntryFence, Release);
        entry.offset.store(mark.offset, Relaxed);
        entry.time.store(mark.time, Relaxed);
        entry.dropped.store(mark.dropped, Relaxed);
        // Partner: the load of `tail` in `published`.
        self.tail.store(i.wrapping_add(1), order_at(Point::EntryPublished, Release));
    }

    /// Entries that may be read.
    pub(crate) fn published(&self) -> Range<u64> {
        let tail = self.tail.load(Relaxed);
        // Partner: the Release store of `tail` in `put`. (A fence, not an acquire load: read-only maps.)
        fence_at(Point::IndexFence, Acquire);
        let head = self.head.load(Relaxed);
        // At most one ring: a head and tail from a broken file can't make anybody look at more.
        head.max(tail.saturating_sub(self.room()))..tail
    }

    /// Entry `i`, or `None` if it may have been overwritten meanwhile.
    pub(crate) fn look(&self, i: u64) -> Option<Mark> {
        let entry = self.entry(i)?;
        let mark = Mark {
            offset: entry.offset.load(Relaxed),
            time: entry.time.load(Relaxed),
            dropped: entry.dropped.load(Relaxed),
        };
        // If any load above saw a word of a later entry, this fence makes the new `head` visible too.
        // Partner: the Release fence in `put`.
        fence_at(Point::EntryLookFence, Acquire);
        let stands = self.head.load(Relaxed) <= i || broken(Point::EntryLookCheck);
        stands.then_some(mark)
    }

    /// The marks from the newest back to the oldest, or to the first that was overwritten
    /// meanwhile.
    pub(crate) fn newest_first(self) -> impl Iterator<Item = Mark> {
        self.published().rev().map_while(move |i| self.look(i))
    }
}
