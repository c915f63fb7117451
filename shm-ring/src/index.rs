//! The index ring: what the data bytes can't say of themselves, in the order of the stream.
//!
//! An entry says of the bytes from its offset on when they were read and how many bytes were
//! dropped before them. Entries live as long as one of their bytes may be read. While there is
//! plenty of room, each commit has one, and else one for every so many bytes (`times` knows better
//! about the newest); a gap always has an entry of its own, at its exact offset: the writer stores
//! no byte behind which it could not mark one.

use std::ops::Range;

use crate::layout;
use crate::marks::Mark;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, fence_at};

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
    /// Bytes for which there is always one entry, if there are not too many gaps.
    spacing: u64,
    /// Below this offset it is not worth looking for room again: the last look found none.
    full_until: u64,
}

impl IndexWriter {
    pub(crate) fn new(ring: &Ring) -> Self {
        let spacing = layout::spacing(ring.capacity(), ring.index().room());
        IndexWriter { head: 0, tail: 0, last: None, populated: 0, spacing, full_until: 0 }
    }

    /// Whether it is worth noting what begins at `offset`.
    pub(crate) fn is_due(&self, offset: u64) -> bool {
        offset >= self.full_until
    }

    /// Notes bytes that are about to be published, if there is room for it.
    pub(crate) fn note(&mut self, ring: &Ring, floor: u64, mark: Mark) {
        let spaced = self.last.map_or(0, |last| last.offset.saturating_add(self.spacing));
        // A quarter stays free for gaps, which must not go unmarked, and half for entries that keep their
        // distance.
        let quarter = ring.index().room() / 4;
        if mark.offset < spaced {
            if !self.append(ring, floor, mark, quarter.saturating_mul(3)) {
                self.full_until = spaced;
            }
        } else if !self.append(ring, floor, mark, quarter) {
            self.full_until = mark.offset.saturating_add(self.spacing);
        }
    }

    /// Marks that `mark.dropped` bytes are gone before `mark.offset`; `false` if there is no room.
    ///
    /// `last_call` takes the one entry that is kept free for the gap at a stream's end.
    pub(crate) fn gap(&mut self, ring: &Ring, floor: u64, mark: Mark, last_call: bool) -> bool {
        if let Some(last) = self.last.filter(|last| last.offset == mark.offset)
            && let Some(entry) = ring.index().entry(self.tail.wrapping_sub(1))
        {
            // One word changes, so no reader can see half of it. Partner: `Marks::look` loads it.
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
        ring.index().put(self.tail, mark);
        self.tail = self.tail.wrapping_add(1);
        self.last = Some(mark);
        true
    }

    /// Whether bytes may come: a gap behind them could be marked.
    pub(crate) fn can_mark(&mut self, ring: &Ring, floor: u64) -> bool {
        self.has_room(ring, floor, 1)
    }

    /// As [`IndexWriter::can_mark`], without looking for entries to give up or for memory: may say
    /// no too early.
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

    /// Whether the next entry and the one behind it, which is kept for the gap at a stream's end,
    /// have their memory.
    fn has_memory(&self, ring: &Ring) -> bool {
        self.tail.saturating_add(1) < self.populated || self.populated >= ring.index().room()
    }

    /// Whether one more entry would leave `keep_free`.
    fn is_free(&self, ring: &Ring, keep_free: u64) -> bool {
        self.tail.wrapping_sub(self.head).saturating_add(keep_free) < ring.index().room()
    }

    /// The lowest position that the index can tell about.
    pub(crate) fn oldest(&self, ring: &Ring) -> u64 {
        if self.head == 0 {
            ring.base()
        } else {
            ring.index().entry(self.head).map_or(0, |entry| entry.offset.load(Relaxed))
        }
    }

    /// Gives up entries none of whose bytes can be read any more.
    fn retire(&mut self, ring: &Ring, floor: u64) {
        while self.head.wrapping_add(1) < self.tail {
            let next = ring.index().entry(self.head.wrapping_add(1));
            if next.is_none_or(|next| next.offset.load(Relaxed) > floor) {
                break;
            }
            self.head = self.head.wrapping_add(1);
        }
        ring.index().give_up(self.head);
    }
}

/// Bytes dropped before the byte at `position`, since the stream began; `None` if the writer was
/// faster.
pub(crate) fn dropped_at(ring: &Ring, position: u64) -> Option<u64> {
    // While the index is empty, these were all dropped before the ring's first byte.
    let before = ring.control().published.dropped.load(Relaxed);
    // Partner: the Release store of `dropped` in `Writer::mark_gap`: who sees a later drop sees its
    // entry.
    fence_at(Point::BaseFence, Acquire);
    let index = ring.index();
    let entries = index.published();
    if entries.end == 0 {
        return Some(before);
    }
    // The newest that speaks of it; else the entry that told of it was given up.
    let mut marks = entries.rev().map_while(|i| index.look(i));
    marks.find(|mark| mark.offset <= position).map(|mark| mark.dropped)
}

/// The first drop at or after index entry `from` that goes beyond `seen`, if it is below index
/// `tail`.
///
/// Gives the entry to go on from, and the gap's offset and the new drop count.
pub(crate) fn next_gap(ring: &Ring, from: u64, seen: u64) -> (u64, Option<(u64, u64)>) {
    let index = ring.index();
    let Range { start, end: tail } = index.published();
    let mut i = from.max(start);
    while i < tail {
        // An entry that was given up meanwhile tells of bytes before the reader's; those behind it still
        // stand.
        if let Some(mark) = index.look(i)
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
