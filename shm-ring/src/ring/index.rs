//! The index ring: metadata of the data bytes, in the order of the stream.
//!
//! An entry specifies, for the bytes from its offset on, when they were read and how many bytes
//! were dropped before them. An entry lives as long as one of its bytes may be read. While there is
//! plenty of room, each commit has an entry; otherwise there is one for each `spacing` bytes
//! (`times` has finer times for the newest bytes). A gap always has its own entry, at its exact
//! offset: the writer stores no byte if a gap behind it could not be marked.

use std::ops::Range;

use crate::layout;
use crate::offset::Offset;
use crate::ring::Ring;
use crate::ring::marks::Mark;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, fence_at};

/// The writer's side of the index.
pub(crate) struct IndexWriter {
    /// Oldest entry that is not retired.
    head: u64,
    /// Number of entries written.
    tail: u64,
    /// The newest entry.
    last: Option<Mark>,
    /// Number of entries whose memory is allocated.
    populated: u64,
    /// Bytes for which there is always one entry, unless there are too many gaps.
    spacing: u64,
    /// Below this offset no entry is tried, because the last try found no room.
    full_until: u64,
}

impl IndexWriter {
    pub(crate) fn new(ring: &Ring) -> Self {
        let spacing = layout::spacing(ring.capacity(), ring.index().room());
        IndexWriter { head: 0, tail: 0, last: None, populated: 0, spacing, full_until: 0 }
    }

    /// Returns whether [`IndexWriter::note`] is worth a call for bytes that begin at `offset`.
    pub(crate) fn is_due(&self, offset: u64) -> bool {
        offset >= self.full_until
    }

    /// Writes an entry for bytes that are about to be published, if there is room.
    pub(crate) fn note(&mut self, ring: &Ring, floor: u64, mark: Mark) {
        let spaced = self.last.map_or(0, |last| last.offset.after(self.spacing));
        // A quarter stays free for gaps, which must not go unmarked, and half for entries that are
        // `spacing` bytes apart.
        let quarter = ring.index().room() / 4;
        if mark.offset < spaced {
            if !self.append(ring, floor, mark, quarter.saturating_mul(3)) {
                self.full_until = spaced;
            }
        } else if !self.append(ring, floor, mark, quarter) {
            self.full_until = mark.offset.after(self.spacing);
        }
    }

    /// Marks a gap: `mark.dropped` bytes were dropped before `mark.offset`. Returns `false` if
    /// there is no room.
    ///
    /// `last_call` uses the one entry that is reserved for the gap at the end of the stream.
    pub(crate) fn gap(&mut self, ring: &Ring, floor: u64, mark: Mark, last_call: bool) -> bool {
        if let Some(last) = self.last.filter(|last| last.offset == mark.offset)
            && let Some(entry) = ring.index().entry(self.tail.since(1))
        {
            // One word changes, so no reader can see half of it. Partner: the load in
            // `Marks::load`.
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
        self.tail = self.tail.after(1);
        self.last = Some(mark);
        true
    }

    /// Returns whether bytes may be stored, because a gap behind them could be marked.
    pub(crate) fn can_mark(&mut self, ring: &Ring, floor: u64) -> bool {
        self.has_room(ring, floor, 1)
    }

    /// As [`IndexWriter::can_mark`], without retiring entries or allocating memory. May return
    /// `false` although `can_mark` would return `true`.
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
        // Behind the last free entry no other entry needs memory.
        self.is_free(ring, keep_free) && (self.has_memory(ring) || keep_free == 0)
    }

    /// Returns whether memory is allocated for the next entry and for the one behind it, which is
    /// reserved for the gap at the end of the stream.
    fn has_memory(&self, ring: &Ring) -> bool {
        self.tail.after(1) < self.populated || self.populated >= ring.index().room()
    }

    /// Returns whether `keep_free` entries would be left free after one more.
    fn is_free(&self, ring: &Ring, keep_free: u64) -> bool {
        self.tail.since(self.head).after(keep_free) < ring.index().room()
    }

    /// Returns the lowest position that the index covers.
    pub(crate) fn oldest(&self, ring: &Ring) -> u64 {
        if self.head == 0 {
            ring.base()
        } else {
            ring.index().entry(self.head).map_or(0, |entry| entry.offset.load(Relaxed))
        }
    }

    /// Retires entries none of whose bytes can be read any more.
    fn retire(&mut self, ring: &Ring, floor: u64) {
        while self.head.after(1) < self.tail {
            let next = ring.index().entry(self.head.after(1));
            if next.is_none_or(|next| next.offset.load(Relaxed) > floor) {
                break;
            }
            self.head = self.head.after(1);
        }
        ring.index().retire(self.head);
    }
}

/// Returns the number of bytes dropped before the byte at `position`, since the stream began.
/// Returns `None` if the writer retired its entry meanwhile.
pub(crate) fn dropped_at(ring: &Ring, position: u64) -> Option<u64> {
    // While the index is empty, all of these were dropped before the ring's first byte.
    let before = ring.control().published.dropped.load(Relaxed);
    // Partner: the Release store of `dropped` in `Writer::mark_gap`. A reader that sees a later
    // drop also sees its entry.
    fence_at(Point::BaseFence, Acquire);
    let index = ring.index();
    let entries = index.published();
    if entries.end == 0 {
        return Some(before);
    }
    // The newest entry that covers `position`. If there is none, it was retired.
    let mut marks = entries.rev().map_while(|i| index.load(i));
    marks.find(|mark| mark.offset <= position).map(|mark| mark.dropped)
}

/// Finds the first drop above `seen` in the index, from entry `first_entry` on.
///
/// Returns the entry to continue the search from and, if there is such a drop, its offset and the
/// new drop count.
pub(crate) fn next_gap(ring: &Ring, first_entry: u64, seen: u64) -> (u64, Option<(u64, u64)>) {
    let index = ring.index();
    let Range { start, end: tail } = index.published();
    let mut i = first_entry.max(start);
    while i < tail {
        // An entry that was retired meanwhile covers bytes before the reader's; those behind it are
        // still valid.
        if let Some(mark) = index.load(i)
            && mark.dropped > seen
        {
            return (i, Some((mark.offset, mark.dropped)));
        }
        // The newest entry may still get a gap, so a reader must check it again.
        if i.wrapping_add(1) == tail {
            break;
        }
        i = i.wrapping_add(1);
    }
    (i, None)
}
