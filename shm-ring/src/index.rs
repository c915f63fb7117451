//! The index ring: what the data bytes can't say of themselves, in the order of the stream.
//!
//! An entry says of the bytes from its offset on when they were read and how many bytes were dropped before
//! them. Entries live as long as one of their bytes may be read. When there is no room, commits share an entry
//! and time gets coarser; a gap always has an entry of its own, at its exact offset: the writer stores no byte
//! behind which it could not mark one.

use std::ops::Range;

use crate::layout::BYTES_PER_ENTRY;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
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

/// The writer's side.
pub(crate) struct IndexWriter {
    /// Oldest entry that must stay.
    head: u64,
    /// Entries written.
    tail: u64,
    /// Offset and drop count of the newest entry.
    last: Option<Mark>,
    /// Entries that have their memory.
    populated: u64,
    /// Below this offset it is not worth looking for room again: the last look found none.
    full_until: u64,
}

impl IndexWriter {
    pub(crate) fn new() -> Self {
        IndexWriter { head: 0, tail: 0, last: None, populated: 0, full_until: 0 }
    }

    /// Whether it is worth noting what begins at `offset`.
    pub(crate) fn is_due(&self, offset: u64) -> bool {
        offset >= self.full_until
    }

    /// Notes bytes that are about to be published, if there is room for it.
    pub(crate) fn note(&mut self, ring: &Ring, floor: u64, mark: Mark) {
        // A quarter stays free for gaps, which must not go unmarked.
        if !self.append(ring, floor, mark, ring.entries().len() as u64 / 4) {
            self.full_until = mark.offset.saturating_add(BYTES_PER_ENTRY);
        }
    }

    /// Marks that `mark.dropped` bytes are gone before `mark.offset`; `false` if there is no room.
    ///
    /// `last_call` takes the one entry that is kept free for the gap at a stream's end.
    pub(crate) fn gap(&mut self, ring: &Ring, floor: u64, mark: Mark, last_call: bool) -> bool {
        if let Some(last) = self.last.filter(|last| last.offset == mark.offset)
            && let Some(entry) = entry_of(ring, self.tail.wrapping_sub(1))
        {
            // One word changes, so no reader can see half of it. Partner: `look` loads it.
            entry.dropped.store(mark.dropped, Relaxed);
            self.last = Some(Mark { dropped: mark.dropped, ..last });
            return true;
        }
        self.append(ring, floor, mark, u64::from(!last_call))
    }

    fn append(&mut self, ring: &Ring, floor: u64, mark: Mark, keep_free: u64) -> bool {
        if !self.has_room(ring, floor, keep_free) {
            return false;
        }
        let Some(entry) = entry_of(ring, self.tail) else { return false };
        // Orders the new `index_head` (stored by `retire`) before the words that overwrite an old entry.
        // Partner: the fence in `look`.
        fence_at(Point::EntryFence, Release);
        entry.offset.store(mark.offset, Relaxed);
        entry.time.store(mark.time, Relaxed);
        entry.dropped.store(mark.dropped, Relaxed);
        self.tail = self.tail.wrapping_add(1);
        // Partner: the load of `index_tail` in `published`.
        ring.control().published.index_tail.store(self.tail, order_at(Point::EntryPublished, Release));
        self.last = Some(mark);
        true
    }

    /// Whether bytes may come: a gap behind them could be marked.
    pub(crate) fn can_mark(&mut self, ring: &Ring, floor: u64) -> bool {
        self.has_room(ring, floor, 1)
    }

    /// As [`IndexWriter::can_mark`], without looking for entries to give up or for memory: may say no too early.
    pub(crate) fn can_surely_mark(&self, ring: &Ring) -> bool {
        self.is_free(ring, 1) && self.has_memory(ring)
    }

    fn has_room(&mut self, ring: &Ring, floor: u64, keep_free: u64) -> bool {
        if !self.is_free(ring, keep_free) {
            self.retire(ring, floor);
        }
        if !self.has_memory(ring) {
            self.populated = ring.populate_entries(self.populated).unwrap_or(self.populated);
        }
        // Who takes the last one leaves none to have memory.
        self.is_free(ring, keep_free) && (self.has_memory(ring) || keep_free == 0)
    }

    /// Whether the next entry and the one behind it, which is kept for the gap at a stream's end, have their memory.
    fn has_memory(&self, ring: &Ring) -> bool {
        self.tail.saturating_add(1) < self.populated || self.populated >= ring.entries().len() as u64
    }

    /// Whether one more entry would leave `keep_free`.
    fn is_free(&self, ring: &Ring, keep_free: u64) -> bool {
        self.tail.wrapping_sub(self.head).saturating_add(keep_free) < ring.entries().len() as u64
    }

    /// The lowest position that the index can tell about.
    pub(crate) fn oldest(&self, ring: &Ring) -> u64 {
        if self.head == 0 {
            ring.base()
        } else {
            entry_of(ring, self.head).map_or(0, |entry| entry.offset.load(Relaxed))
        }
    }

    /// Gives up entries none of whose bytes can be read any more.
    fn retire(&mut self, ring: &Ring, floor: u64) {
        while self.head.wrapping_add(1) < self.tail {
            let next = entry_of(ring, self.head.wrapping_add(1));
            if next.is_none_or(|next| next.offset.load(Relaxed) > floor) {
                break;
            }
            self.head = self.head.wrapping_add(1);
        }
        ring.control().claimed.index_head.store(self.head, Relaxed);
    }
}

fn entry_of(ring: &Ring, i: u64) -> Option<&crate::layout::Entry> {
    let slots = ring.entries().len() as u64;
    let at = usize::try_from(i.checked_rem(slots)?).ok()?;
    ring.entries().get(at)
}

/// Entries that may be read.
pub(crate) fn published(ring: &Ring) -> Range<u64> {
    let tail = ring.control().published.index_tail.load(Relaxed);
    // Partner: the Release store of `index_tail` in `append`. (A fence, not an acquire load: read-only maps.)
    fence_at(Point::IndexFence, Acquire);
    let head = ring.control().claimed.index_head.load(Relaxed);
    // At most one index ring: a head and tail from a broken file can't make anybody look at more.
    head.max(tail.saturating_sub(ring.entries().len() as u64))..tail
}

/// Entry `i`, or `None` if it may have been overwritten meanwhile.
pub(crate) fn look(ring: &Ring, i: u64) -> Option<Mark> {
    let entry = entry_of(ring, i)?;
    let mark = Mark {
        offset: entry.offset.load(Relaxed),
        time: entry.time.load(Relaxed),
        dropped: entry.dropped.load(Relaxed),
    };
    // If any load above saw a word of a later entry, this fence makes the new `index_head` visible too.
    // Partner: the Release fence in `append`.
    fence_at(Point::EntryLookFence, Acquire);
    let stands = ring.control().claimed.index_head.load(Relaxed) <= i || broken(Point::EntryLookCheck);
    stands.then_some(mark)
}

/// Bytes dropped before the byte at `position`, since the stream began; `None` if the writer was faster.
pub(crate) fn dropped_at(ring: &Ring, position: u64) -> Option<u64> {
    // While the index is empty, these were all dropped before the ring's first byte.
    let before = ring.control().published.dropped.load(Relaxed);
    // Partner: the Release store of `dropped` in `Writer::mark_gap`: who sees a later drop sees its entry.
    fence_at(Point::BaseFence, Acquire);
    let entries = published(ring);
    if entries.end == 0 {
        return Some(before);
    }
    // Else the entry that told of it was given up.
    mark_at(ring, entries, position).map(|mark| mark.dropped)
}

/// When the byte at `position` was read; `None` if the writer was faster, or the index does not say.
pub(crate) fn time_at(ring: &Ring, position: u64) -> Option<u64> {
    mark_at(ring, published(ring), position).map(|mark| mark.time)
}

/// Appends from which of `positions` on, plus `dropped`, bytes were read when, in their order, as far as the index says.
pub(crate) fn times_of(ring: &Ring, positions: Range<u64>, dropped: u64, times: &mut Vec<(u64, u64)>) {
    let first = times.len();
    for i in published(ring).rev() {
        let Some(mark) = look(ring, i) else { break };
        if mark.offset < positions.end {
            times.push((mark.offset.max(positions.start).saturating_add(dropped), mark.time));
        }
        if mark.offset <= positions.start {
            break;
        }
    }
    times.get_mut(first..).unwrap_or_default().reverse();
}

/// The newest of `entries` that speaks of the byte at `position`.
fn mark_at(ring: &Ring, entries: Range<u64>, position: u64) -> Option<Mark> {
    for i in entries.rev() {
        let mark = look(ring, i)?;
        if mark.offset <= position {
            return Some(mark);
        }
    }
    None
}

/// The first drop at or after index entry `from` that goes beyond `seen`, if it is below index `tail`.
///
/// Gives the entry to go on from, and the gap's offset and the new drop count.
pub(crate) fn next_gap(ring: &Ring, from: u64, seen: u64) -> (u64, Option<(u64, u64)>) {
    let Range { start, end: tail } = published(ring);
    let mut i = from.max(start);
    while i < tail {
        // An entry that was given up meanwhile tells of bytes before the reader's; those behind it still stand.
        if let Some(mark) = look(ring, i)
            && mark.dropped > seen
        {
            return (i, Some((mark.offset, mark.dropped)));
        }
        // The newest entry may still grow a gap, so a reader must come back to it.
        if i.wrapping_add(1) == tail {
            break;
        }
        i = i.wrapping_add(1);
    }
    (i, None)
}
