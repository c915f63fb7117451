//! The writer of one ring: claim, let the kernel write, commit.
//!
//! Two disciplines, one code. In a *gated* ring every reader holds from its cursor on, so the
//! writer stops at the slowest. In an *overwriting* ring readers hold only what they borrow, and
//! the writer passes all else. In both the promise is the same: **a byte that a reader holds is
//! never written**. It rests on the hazard-pointer argument: the writer publishes `intent`, fences,
//! and looks at the holds; the reader publishes `hold`, fences, and looks at `intent`. Of two such
//! parties at least one sees the other, and that one gives way.

use std::sync::Arc;

use crate::index::IndexWriter;
use crate::layout::NONE;
use crate::marks::Mark;
use crate::ring::Ring;
use crate::sync::{Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use crate::sync::{Point, broken, fence_at, order_at};
use crate::times::RecentWriter;

/// Bytes claimed ahead at least, if the ring is large enough: fewer fences, at the price of as much
/// cache that late readers don't get.
const CLAIM: u64 = 64 * 1024;
/// A claim ahead takes at most one part in so many of the ring.
const AHEAD_PART: u64 = 8;

/// Why no room could be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A reader holds what would have to be overwritten.
    Held,
    /// There is no room to mark a gap before or behind the next bytes.
    IndexFull,
}

/// Writes one generation.
pub(crate) struct Writer {
    ring: Arc<Ring>,
    tail: u64,
    /// Where the byte at `tail` lies in the data area: kept, because a division for each commit
    /// would cost more than the rest of it.
    offset: u64,
    intent: u64,
    index: IndexWriter,
    recent: RecentWriter,
    /// Bytes dropped, since the stream began.
    dropped: u64,
    /// The part of them that readers can see in the index.
    marked: u64,
    /// When the newest unmarked drop happened.
    drop_time: u64,
    /// Position up to which [`Writer::store`] has seen to it that there is memory.
    populated: u64,
}

impl Writer {
    /// Writes a ring that was just made, going on after `dropped` bytes of loss.
    pub(crate) fn new(ring: Arc<Ring>, dropped: u64) -> Self {
        let base = ring.base();
        let offset = ring.offset_of(base);
        let index = IndexWriter::new(&ring);
        Writer {
            ring,
            tail: base,
            offset,
            intent: base,
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

    /// Address of the byte at the tail.
    pub(crate) fn at(&self) -> *mut u8 {
        self.ring.at(self.offset)
    }

    /// Bytes that may be written without another look at the readers or the index.
    pub(crate) fn claimed(&self) -> u64 {
        let can_mark = self.marked == self.dropped && self.index.can_surely_mark(&self.ring);
        if can_mark { self.intent.saturating_sub(self.tail) } else { 0 }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The part of [`Writer::dropped`] that readers can see.
    pub(crate) fn marked(&self) -> u64 {
        self.marked
    }

    /// Oldest position that is still in the ring.
    pub(crate) fn floor(&self) -> u64 {
        self.intent.saturating_sub(self.ring.capacity()).max(self.ring.base())
    }

    /// How many bytes a claim for `want` takes, if no reader is in its way.
    pub(crate) fn ahead(&self, want: u64) -> u64 {
        want.max(CLAIM.min(self.ring.capacity() / AHEAD_PART))
    }

    /// Claims room for `want` bytes, or for at least `min`; gives the number.
    ///
    /// `lowest_hold(floor)` gives the lowest position at or above `floor` that a reader holds, else
    /// [`NONE`].
    pub(crate) fn reserve(
        &mut self,
        want: u64,
        min: u64,
        lowest_hold: impl Fn(u64) -> u64,
    ) -> Result<u64, Refused> {
        let capacity = self.ring.capacity();
        let want = want.min(capacity);
        let min = min.min(want);
        let is_marked = self.marked == self.dropped || self.mark_gap(false);
        if !is_marked || !self.index.can_mark(&self.ring, self.floor()) {
            return Err(Refused::IndexFull);
        }
        let claimed = self.intent.saturating_sub(self.tail);
        if claimed >= want {
            return Ok(want);
        }
        let floor = self.floor();
        let mut lowest = lowest_hold(floor);
        // The second round is for a hold that came between the first look and the claim.
        for _ in 0..2 {
            let end = self.tail.saturating_add(self.ahead(want)).min(lowest.saturating_add(capacity));
            if end <= self.intent {
                break;
            }
            let intent = &self.ring.control().claimed.intent;
            // Partner: the load of `intent` in `Reader::hold_here`. Relaxed, the fences order it.
            intent.store(end, Relaxed);
            // Of this fence and the one in `Reader::hold_here` one comes first: either the reader sees our
            // claim or we see its hold.
            fence_at(Point::ClaimFence, SeqCst);
            lowest = lowest_hold(floor);
            if lowest.saturating_add(capacity) >= end || broken(Point::ClaimCheck) {
                self.intent = end;
                break;
            }
            // A reader that saw the claim meanwhile reports a gap it need not have; the sum stays right.
            intent.store(self.intent, Relaxed);
        }
        let claimed = self.intent.saturating_sub(self.tail).min(want);
        if claimed >= min.max(1) { Ok(claimed) } else { Err(Refused::Held) }
    }

    /// Copies `bytes`, which were claimed, to the tail; `false` if the kernel has no memory for
    /// them. (The kernel, when it writes to the tail itself, says so by EFAULT; to us it would
    /// say so by SIGBUS.)
    pub(crate) fn store(&mut self, bytes: &[u8]) -> bool {
        // Once around, and every page has its own.
        let all = self.ring.base().saturating_add(self.ring.capacity());
        let end = self.tail.saturating_add(bytes.len() as u64).min(all);
        if self.populated < end {
            // The pages of a ring that is used again are there, as far as it was filled.
            let end = if self.ring.is_reused() { all } else { end };
            let Some(populated) = self.ring.populate_data(self.populated, end) else { return false };
            self.populated = populated;
        }
        self.ring.store(self.offset, bytes);
        true
    }

    /// Publishes the next `n` bytes, which are written and were claimed, as read at `time`.
    pub(crate) fn commit(&mut self, n: u64, time: u64) {
        let n = n.min(self.intent.saturating_sub(self.tail));
        if n == 0 {
            return;
        }
        let mark = Mark { offset: self.tail, time, dropped: self.dropped };
        if self.recent.is_due(time) {
            self.recent.note(&self.ring, mark);
        }
        if self.index.is_due(self.tail) {
            self.index.note(&self.ring, self.floor(), mark);
        }
        self.tail = self.tail.saturating_add(n);
        self.offset = self.ring.advance(self.offset, n);
        // Publishes the bytes and their entries. Partner: the fence after the load in `Reader::look`.
        self.ring.control().published.tail.store(self.tail, order_at(Point::Tail, Release));
    }

    /// Counts `n` bytes as dropped at the tail.
    pub(crate) fn discard(&mut self, n: u64, time: u64) {
        self.dropped = self.dropped.saturating_add(n);
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

    /// Ends this generation: the stream goes on elsewhere, from `tail`.
    pub(crate) fn seal(&mut self) {
        self.stop_waiting();
        self.give_claim_back();
        // A gap that could not be marked here goes along as the next generation's `dropped`.
        // Partner: the fence after the load in `Reader::look`.
        self.ring.control().published.sealed.store(self.tail, order_at(Point::Sealed, Release));
    }

    /// Ends the stream: what is in the ring is all there will be.
    pub(crate) fn complete(&mut self) {
        self.stop_waiting();
        self.mark_gap(true);
        self.give_claim_back();
        // Partner: the fence after the load in `Reader::look`.
        self.ring.control().published.complete.store(self.tail, order_at(Point::Complete, Release));
    }

    /// Returns what was claimed and not written, now that nothing more will be: late readers get
    /// these old bytes.
    fn give_claim_back(&mut self) {
        // Not below what the index can still tell about.
        let floor = self.tail.saturating_sub(self.ring.capacity()).max(self.index.oldest(&self.ring));
        self.intent = self.intent.min(floor.saturating_add(self.ring.capacity())).max(self.tail);
        // Partner: the load of `intent` in `Reader::hold_here`; who sees the old claim reports a needless
        // gap.
        self.ring.control().claimed.intent.store(self.intent, Relaxed);
    }

    /// Asks readers to say when every hold has reached the position that leaves room for `room`
    /// bytes.
    ///
    /// The caller must look at the holds once more after this, or a reader may have moved
    /// unnoticed.
    pub(crate) fn wait_for(&self, room: u64) {
        let wanted = self.tail.saturating_add(room).saturating_sub(self.ring.capacity());
        // Partner: the load of `wanted` in `Reader::consume`.
        self.ring.control().claimed.wanted.store(wanted, Relaxed);
        // Either the reader's fence in `consume` comes later, and it sees `wanted`, or ours, and we see its
        // hold.
        fence_at(Point::WantedFence, SeqCst);
    }

    /// Takes the wish of [`Writer::wait_for`] back.
    pub(crate) fn stop_waiting(&self) {
        self.ring.control().claimed.wanted.store(NONE, Relaxed);
    }
}
