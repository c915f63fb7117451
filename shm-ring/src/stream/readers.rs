//! The readers of a stream: they attach, follow it to its newest generation, are woken, and detach.

use std::cell::Cell;
use std::sync::Arc;

use super::Stream;
use super::member::Member;
use crate::error::CreateError;
use crate::layout::NONE;
use crate::reader::attach::{Attached, Start};
use crate::reader_id::ReaderId;
use crate::reader_page::ReaderPage;
use crate::sync::Ordering::Relaxed;

/// A new reader of a generation and the position at which it starts.
struct Placement {
    page: Arc<ReaderPage>,
    id: ReaderId,
    start: u64,
}

impl Stream {
    /// Attaches a reader that starts at `start`. Its words are in the slot of `page` that
    /// [`ReaderPage::take_slot`] returned as `id`.
    ///
    /// `may_block` lets the reader hold the source back while the policy is
    /// [`Policy::Block`](crate::Policy::Block). Grant it only to a reader that must never lose a
    /// byte.
    ///
    /// For a reader in another process, call [`Stream::allocate`] before.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no slot for `id`.
    pub fn attach(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
        may_block: bool,
    ) -> Result<Attached, CreateError> {
        if !may_block {
            self.grow();
        }
        let start = self.position(start);
        self.join(Placement { page: Arc::clone(page), id, start }, may_block, false)
    }

    /// Attaches a non-gating reader, whatever the policy: it pins only what it borrows, loses the
    /// oldest bytes if it is too slow, and so costs the other readers nothing. It reads the stream
    /// as under [`Policy::DropOldest`](crate::Policy::DropOldest).
    ///
    /// # Errors
    /// As [`Stream::attach`].
    pub fn attach_non_gating(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
    ) -> Result<Attached, CreateError> {
        self.grow();
        let start = self.position(start);
        self.join(Placement { page: Arc::clone(page), id, start }, false, true)
    }

    /// Attaches a reader that keeps the bytes from `start` on for a later reader, for which the
    /// source waits as for one with `may_block`. The stream stays in this generation until the
    /// reader is detached, so that the later reader, which joins the newest generation, finds the
    /// bytes there.
    ///
    /// # Errors
    /// As [`Stream::attach`].
    pub fn attach_holder(
        &mut self,
        page: &Arc<ReaderPage>,
        id: ReaderId,
        start: Start,
    ) -> Result<Attached, CreateError> {
        if self.writer.is_untouched() {
            // It could not do so later.
            self.grow();
        }
        let attached = self.attach(page, id, start, true)?;
        self.members.last_mut().into_iter().for_each(|member| member.holds = true);
        Ok(attached)
    }

    fn position(&self, start: Start) -> u64 {
        match start {
            Start::Oldest => self.writer.floor(),
            Start::Now => self.writer.tail(),
        }
    }

    fn join(
        &mut self,
        placement: Placement,
        may_block: bool,
        non_gating: bool,
    ) -> Result<Attached, CreateError> {
        let Placement { page, id, start } = placement;
        let words = page.slot(id).ok_or(CreateError::Slots)?;
        let ring = Arc::clone(self.writer.ring());
        words.cursor.store(start, Relaxed);
        words.threshold.store(1, Relaxed);
        // At worst too low, which costs one needless wake-up.
        words.dropped.store(0, Relaxed);
        // Before the reader gets the slot; sending it its id orders these stores.
        words.pinned.store(if ring.overwrite() || non_gating { NONE } else { start }, Relaxed);
        self.members.push(Member {
            page,
            id,
            ring: Arc::clone(&ring),
            may_block,
            non_gating,
            holds: false,
            due: false,
            has_ready: Cell::new(false),
        });
        let dropped = self.writer.dropped();
        Ok(Attached { ring, id, start, dropped, non_gating })
    }

    /// Moves the reader `id` of `page` to the newest generation, in which it is `new_id`. Returns
    /// `None`, and leaves the slot of `new_id` unused, if there is no such reader or slot, or if
    /// the reader is in the newest generation already.
    ///
    /// A reader that found [`Peek::Sealed`](crate::Peek::Sealed) and requested the move no longer
    /// accesses its slot, so `new_id` may be the same. A reader that did not request the move may
    /// be moved only if the stream is complete, and only to another slot.
    pub fn follow(&mut self, page: &Arc<ReaderPage>, id: ReaderId, new_id: ReaderId) -> Option<Attached> {
        page.slot(new_id)?;
        let index = self.members.iter().position(|m| m.id == id && Arc::ptr_eq(&m.page, page))?;
        if self.reads_newest(self.members.get(index)?) {
            return None;
        }
        let Member { page, ring, may_block, non_gating, due, .. } = self.members.swap_remove(index);
        self.recycle(ring);
        let start = if due { self.writer.ring().base() } else { self.writer.floor() };
        let start = start.max(self.writer.floor());
        self.join(Placement { page, id: new_id, start }, may_block, non_gating).ok()
    }

    /// Detaches the reader `id` of `page`. Returns `false` if there is none.
    pub fn detach(&mut self, page: &Arc<ReaderPage>, id: ReaderId) -> bool {
        let index = self.members.iter().position(|m| m.id == id && Arc::ptr_eq(&m.page, page));
        let member = index.map(|index| self.members.swap_remove(index));
        member.map(|member| self.recycle(member.ring)).is_some()
    }

    /// Sets the ready bit of every reader whose wake-up threshold is met. A SeqCst fence must lie
    /// between the updates and this call.
    pub(crate) fn mark_ready(&self) {
        for member in &self.members {
            // Never cleared here, because a stream may be listed twice.
            if self.is_wakeup_due(member) && member.page.mark_ready(member.id) {
                member.has_ready.set(true);
            }
        }
    }

    /// Rings the doorbells of sleeping tools whose readers [`Stream::mark_ready`] marked. A SeqCst
    /// fence must lie between the two calls.
    pub(crate) fn wake(&self) {
        for member in self.members.iter().filter(|member| member.has_ready.take()) {
            member.page.ring_if_armed(member.id);
        }
    }

    /// Returns whether `member` must be woken: it has reached its threshold, a gap or an end.
    fn is_wakeup_due(&self, member: &Member) -> bool {
        if self.complete || !self.reads_newest(member) {
            return true;
        }
        let Some(words) = member.page.slot(member.id) else { return false };
        // The tool's words, each loaded once. A false value affects only the tool's own wake-ups.
        if words.dropped.load(Relaxed) < self.writer.marked() {
            return true;
        }
        // Partner of `threshold`: the store and fence in `Reader::set_threshold`.
        let pending = self.writer.tail().saturating_sub(words.cursor.load(Relaxed));
        pending >= words.threshold.load(Relaxed)
    }

    /// Returns the number of bytes that no reader has consumed yet, by the cursors that the readers
    /// publish. Returns 0 if no reader may hold the source back, and if the newest bytes have to
    /// [alternate](Stream::share_order) with those of another stream.
    pub fn backlog(&self) -> u64 {
        if self.alternates || self.blockers().next().is_none() {
            return 0;
        }
        // The tools' words, each loaded once. A false value affects only when bytes are read.
        // Partner: the stores in `Reader::consume`. Relaxed, because nothing else depends on the
        // value.
        let cursors = self.members.iter().filter_map(|member| member.page.slot(member.id));
        let nearest = cursors.map(|slot| slot.cursor.load(Relaxed)).max();
        nearest.map_or(0, |nearest| self.writer.tail().saturating_sub(nearest))
    }

    /// Returns the number of bytes between the cursor, as the reader publishes it, and the newest
    /// byte; `None` if there is no such reader.
    pub fn lag(&self, page: &Arc<ReaderPage>, id: ReaderId) -> Option<u64> {
        let member = self.members.iter().find(|m| m.id == id && Arc::ptr_eq(&m.page, page))?;
        let cursor = member.page.slot(id)?.cursor.load(Relaxed);
        Some(self.writer.tail().saturating_sub(cursor))
    }
}
