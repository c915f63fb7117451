//! The writer of one ring: claims room, lets the kernel write, commits.
//!
//! One implementation serves two disciplines. In a *gating* ring every gating reader pins all bytes
//! from its cursor on, so the writer stops at the slowest. In an *overwriting* ring readers pin
//! only what they borrow, and the writer overwrites everything else. Both make the same promise:
//! **a byte that a reader pins is never written**. It rests on the hazard-pointer argument: the
//! writer publishes its claimed position, fences, and loads the pinned positions; the reader
//! publishes its pinned position, fences, and loads the claimed position. At least one of the two
//! sees the other's store, and gives way.

use std::sync::Arc;

use crate::layout::NONE;
use crate::offset::Offset;
use crate::ring::Ring;
use crate::ring::index::IndexWriter;
use crate::ring::marks::Mark;
use crate::ring::times::RecentWriter;
use crate::sync::{Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use crate::sync::{Point, broken, fence_at, order_at};

/// Least number of bytes to claim ahead, if the ring is large enough. A larger claim needs fewer
/// fences but takes cache from late readers.
const CLAIM: u64 = 64 * 1024;
/// A claim ahead takes at most the ring's capacity divided by this.
const AHEAD_PART: u64 = 8;

/// The reason why no room could be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimError {
    /// A reader pins what would have to be overwritten.
    Pinned,
    /// The index has no room to mark a gap before or behind the next bytes.
    IndexFull,
}

/// The writer of one generation.
pub(crate) struct Writer {
    ring: Arc<Ring>,
    tail: u64,
    /// Offset of the byte at `tail` in the data area. Kept, because a division for each commit
    /// would cost more than the rest of it.
    offset: u64,
    claimed: u64,
    index: IndexWriter,
    recent: RecentWriter,
    /// Bytes dropped, since the stream began.
    dropped: u64,
    /// Bytes dropped that are marked in the index, so that readers can see them.
    marked: u64,
    /// Time of the newest drop.
    drop_time: u64,
    /// Position up to which [`Writer::store`] has allocated the memory.
    populated: u64,
}

impl Writer {
    /// Creates the writer of a new ring. `dropped` bytes were dropped before the ring's first byte.
    pub(crate) fn new(ring: Arc<Ring>, dropped: u64) -> Self {
        let base = ring.base();
        let offset = ring.offset_of(base);
        let index = IndexWriter::new(&ring);
        Writer {
            ring,
            tail: base,
            offset,
            claimed: base,
            index,
            recent: RecentWriter::new(),
            dropped,
            marked: dropped,
            drop_time: 0,
            populated: base,
        }
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the address of the byte at the tail.
    pub(crate) fn tail_address(&self) -> *mut u8 {
        self.ring.address(self.offset)
    }

    /// Returns the number of bytes that may be written without checking the readers or the index
    /// again.
    pub(crate) fn claimed_bytes(&self) -> u64 {
        let can_mark = self.marked == self.dropped && self.index.can_surely_mark(&self.ring);
        if can_mark { self.claimed.since(self.tail) } else { 0 }
    }

    /// Returns whether nothing was stored, dropped or claimed since the stream began.
    pub(crate) fn is_untouched(&self) -> bool {
        self.claimed == 0 && self.dropped == 0 && self.ring.generation() == 0
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the part of [`Writer::dropped`] that readers can see.
    pub(crate) fn marked(&self) -> u64 {
        self.marked
    }

    /// Returns the oldest position that is still in the ring.
    pub(crate) fn floor(&self) -> u64 {
        self.claimed.saturating_sub(self.ring.capacity()).max(self.ring.base())
    }

    /// Returns the number of bytes that a claim for `want` takes if no reader is in its way.
    pub(crate) fn ahead(&self, want: u64) -> u64 {
        want.max(CLAIM.min(self.ring.capacity() / AHEAD_PART))
    }

    /// Claims room for `want` bytes, or for at least `min`, and returns the number.
    ///
    /// `lowest_pin(floor)` returns the lowest position at or above `floor` that a reader pins, else
    /// [`NONE`].
    pub(crate) fn reserve(
        &mut self,
        want: u64,
        min: u64,
        lowest_pin: impl Fn(u64) -> u64,
    ) -> Result<u64, ClaimError> {
        let capacity = self.ring.capacity();
        let want = want.min(capacity);
        let min = min.min(want);
        let is_marked = self.marked == self.dropped || self.mark_gap(false);
        if !is_marked || !self.index.can_mark(&self.ring, self.floor()) {
            return Err(ClaimError::IndexFull);
        }
        let claimed_bytes = self.claimed.since(self.tail);
        if claimed_bytes >= want {
            return Ok(want);
        }
        let floor = self.floor();
        let mut lowest = lowest_pin(floor);
        // The second round is for a pinned position that was published between the first load and
        // the claim.
        for _ in 0..2 {
            let end = self.tail.after(self.ahead(want)).min(lowest.saturating_add(capacity));
            if end <= self.claimed {
                break;
            }
            let shared = &self.ring.control().claimed.position;
            // Partner: the load of the claimed position in `Reader::pin_cursor`. Relaxed, because
            // the fences order it.
            shared.store(end, Relaxed);
            // One of this fence and the one in `Reader::pin_cursor` is first. Either the reader
            // sees the claim, or the writer sees the pinned position.
            fence_at(Point::ClaimFence, SeqCst);
            lowest = lowest_pin(floor);
            if lowest.saturating_add(capacity) >= end || broken(Point::ClaimCheck) {
                self.claimed = end;
                break;
            }
            // A reader that saw the claim meanwhile reports a gap that it could have avoided; the
            // sum stays right.
            shared.store(self.claimed, Relaxed);
        }
        let claimed_bytes = self.claimed.since(self.tail).min(want);
        if claimed_bytes >= min.max(1) { Ok(claimed_bytes) } else { Err(ClaimError::Pinned) }
    }

    /// Copies `bytes`, which were claimed, to the tail. Returns `false` if the kernel has no memory
    /// for them. (When the kernel itself writes to the tail, lack of memory gives EFAULT; for this
    /// process it would be SIGBUS.)
    pub(crate) fn store(&mut self, bytes: &[u8]) -> bool {
        // After one capacity, every page has its memory.
        let whole = self.ring.base().after(self.ring.capacity());
        let end = self.tail.after(bytes.len() as u64).min(whole);
        if self.populated < end {
            // The pages of a reused ring are allocated up to where it was filled.
            let end = if self.ring.is_reused() { whole } else { end };
            let Some(populated) = self.ring.populate_data(self.populated, end) else { return false };
            self.populated = populated;
        }
        self.ring.store(self.offset, bytes);
        true
    }

    /// Publishes the next `n` bytes, which were claimed and are written, as read at `time`. If
    /// `alternates`, they do not share the time of the bytes before them.
    pub(crate) fn commit(&mut self, n: u64, time: u64, alternates: bool) {
        let n = n.min(self.claimed.since(self.tail));
        if n == 0 {
            return;
        }
        let mark = Mark { offset: self.tail, time, dropped: self.dropped };
        if alternates || self.recent.is_due(time) {
            self.recent.note(&self.ring, mark);
        }
        if self.index.is_due(self.tail) {
            self.index.note(&self.ring, self.floor(), mark);
        }
        #[cfg(any(loom, feature = "test-utils"))]
        self.ring.mirror(self.offset, n);
        self.tail = self.tail.after(n);
        self.offset = self.ring.advance(self.offset, n);
        // Publishes the bytes and their entries. Partner: the fence after the load in
        // `Reader::observe`.
        self.ring.control().published.tail.store(self.tail, order_at(Point::Tail, Release));
    }

    /// Counts `n` bytes as dropped at the tail.
    pub(crate) fn discard(&mut self, n: u64, time: u64) {
        self.dropped = self.dropped.after(n);
        self.drop_time = time;
        self.mark_gap(false);
    }

    fn mark_gap(&mut self, last_call: bool) -> bool {
        let mark = Mark { offset: self.tail, time: self.drop_time, dropped: self.dropped };
        let marked = self.marked == self.dropped || self.index.gap(&self.ring, self.floor(), mark, last_call);
        if marked {
            self.marked = self.dropped;
            // Publishes the gap's entry. Partner: the fence after the load in `index::dropped_at`.
            self.ring.control().published.dropped.store(self.dropped, Release);
        }
        marked
    }

    /// Seals this generation: the stream continues in another one, from `tail` on.
    pub(crate) fn seal(&mut self) {
        self.stop_waiting();
        self.give_claim_back();
        // A gap that could not be marked here is passed to the next generation as its `dropped`.
        // Partner: the fence after the load in `Reader::observe`.
        self.ring.control().published.sealed.store(self.tail, order_at(Point::Sealed, Release));
    }

    /// Ends the stream: no byte follows those in the ring. `missing` is the number of bytes that
    /// are known to be missing if the stream is broken.
    pub(crate) fn end(&mut self, missing: Option<u64>) {
        self.stop_waiting();
        self.mark_gap(true);
        self.give_claim_back();
        let word = missing.map_or(0, |missing| missing.saturating_add(1));
        // Published by the next store. Partner: the load in `Reader::check_end`.
        self.ring.control().published.missing.store(word, Relaxed);
        // Partner: the fence after the load in `Reader::observe`.
        self.ring.control().published.complete.store(self.tail, order_at(Point::Complete, Release));
    }

    /// Withdraws the claim of bytes that will not be written, so that late readers get the old
    /// bytes there.
    fn give_claim_back(&mut self) {
        self.trim_claim(0);
    }

    /// Withdraws the claim of all bytes but the next `rest`. None of the others may have been
    /// written.
    pub(crate) fn trim_claim(&mut self, rest: u64) {
        // Not below the positions that the index still covers.
        let end = self.tail.after(rest);
        let floor = end.saturating_sub(self.ring.capacity()).max(self.index.oldest(&self.ring));
        self.claimed = self.claimed.min(floor.after(self.ring.capacity())).max(self.tail);
        // Partner: the load of the claimed position in `Reader::pin_cursor`. A reader that sees the
        // old claim reports a gap that it could have avoided.
        self.ring.control().claimed.position.store(self.claimed, Relaxed);
    }

    /// Requests room: asks the readers to ring when every pinned position leaves room for `room`
    /// bytes.
    ///
    /// The caller must load the pinned positions again after this, because a reader may have moved
    /// before it could see the request.
    pub(crate) fn wait_for(&self, room: u64) {
        let wanted = self.tail.after(room).saturating_sub(self.ring.capacity());
        // Partner: the load of `wanted` in `Reader::notify_of_room`.
        self.ring.control().claimed.wanted.store(wanted, Relaxed);
        // One of this fence and the one in `Reader::notify_of_room` is first. Either the reader
        // sees `wanted`, or the writer sees its pinned position.
        fence_at(Point::WantedFence, SeqCst);
    }

    /// Withdraws the request of [`Writer::wait_for`].
    pub(crate) fn stop_waiting(&self) {
        self.ring.control().claimed.wanted.store(NONE, Relaxed);
    }
}
