//! A stream: the newest generation with its writer, the readers, and what to do when a reader is in
//! the way.
//!
//! **The stream moves, not the reader's bytes.** When a reader that may not hold the source back is
//! in the way, the generation is sealed and the stream goes on in a fresh one. Readers that kept up
//! are *due* in the new one from its first byte; the laggard keeps the old one to itself and comes
//! along when it has drained it.

use std::cell::Cell;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attach::{Attached, Start};
use crate::error::CreateError;
use crate::layout::NONE;
use crate::reader_page::ReaderPage;
use crate::ring::{Ring, Shape};
use crate::sync::{Ordering::Relaxed, Point, broken};
use crate::writer::{Refused, Writer};

mod member;
mod reconfigure;
#[cfg(all(test, not(loom)))]
mod tests;

use member::{Member, Newest, effective_hold, lowest_hold};
use reconfigure::Wanted;

/// No claim takes more than one part in so many of the ring: what is claimed is lost to late
/// readers, and a source that waits for readers is not woken before there is room for so much.
const CLAIM_PART: u64 = 4;
/// Looks at holds that change under our eyes before the stream moves away from them.
const CLAIM_TRIES: u32 = 4;

/// What happens when a cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// New bytes are dropped until there is room (`PMIX_IOF_DROP_NEWEST`, the RFC's default).
    DropNewest,
    /// The oldest bytes make room (`PMIX_IOF_DROP_OLDEST`).
    DropOldest,
    /// The source waits for the readers that were granted to hold it back; for all others as
    /// `DropNewest`.
    Block,
}

/// How a stream is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Bytes of cache (`PMIX_IOF_CACHE_SIZE`), rounded up to whole pages.
    pub capacity: u64,
    /// What happens when it is full.
    pub policy: Policy,
}

/// Room in the ring for the next bytes.
#[derive(Debug)]
pub struct Span {
    /// Where they go. Valid until the next call that changes the stream, and as long as the stream
    /// lives: who hands it to the kernel keeps the stream, untouched, until the kernel is done.
    /// What is written here is to be committed: under drop oldest the oldest bytes lay here,
    /// and what was not committed counts as them.
    pub ptr: *mut u8,
    /// How many may be written.
    pub len: usize,
}

/// The answer of [`Stream::reserve`].
#[derive(Debug)]
pub enum Reserve {
    /// Write here, then [`Stream::commit`].
    Ready(Span),
    /// Full, and the newest bytes are to go: read them away and [`Stream::discard`] them.
    Discard,
    /// Full, and the source is to wait: a reader rings the room bell when there is room. Ask again
    /// as well when a reader was detached or came along to another generation.
    Wait,
    /// Full, a reader that must lose nothing could go on, and the kernel has no memory or
    /// descriptor for another generation beside those of the others: ask again in a moment.
    Later,
}

/// A stream's counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes that the source wrote, as far as they were read.
    pub produced: u64,
    /// Bytes that a tool attaching now would get from the cache.
    pub cached: u64,
    /// Bytes dropped instead of stored.
    pub dropped: u64,
    /// The newest generation's number.
    pub generation: u64,
    /// Whether the stream is complete.
    pub complete: bool,
}

/// Where a reader has its words, and where it starts.
struct Place {
    page: Arc<ReaderPage>,
    slot: u32,
    start: u64,
}

/// The output of one source on one channel.
///
/// Not shared between threads, but may move between them.
pub struct Stream {
    writer: Writer,
    policy: Policy,
    members: Vec<Member>,
    complete: bool,
    /// The ring may say that its writer waits.
    waiting: bool,
    label: String,
    /// Comes into force when nothing is in flight and no reader loses a byte by it.
    wanted: Option<Wanted>,
    /// A generation that its last reader gave back: the next one costs no page faults.
    spare: Option<Ring>,
    new_ring: fn(Shape<'_>) -> Result<Ring, CreateError>,
}

impl Stream {
    /// Makes a stream in shared memory. `label` says what it is to who looks at its rings from
    /// outside, in at most [`MAX_LABEL`](crate::MAX_LABEL) bytes.
    ///
    /// # Errors
    /// [`CreateError`] for a capacity of 0 or beyond [`MAX_CAPACITY`](crate::MAX_CAPACITY), or when
    /// the kernel has no memory or descriptors.
    pub fn create(config: StreamConfig, label: &str) -> Result<Stream, CreateError> {
        Stream::with(config, label, Ring::create)
    }

    /// Makes a stream on the heap: for the model checker, Miri and benches.
    ///
    /// # Errors
    /// As [`Stream::create`].
    #[doc(hidden)]
    pub fn on_heap(config: StreamConfig) -> Result<Stream, CreateError> {
        Stream::with(config, "", Ring::on_heap)
    }

    fn with(
        config: StreamConfig,
        label: &str,
        new_ring: fn(Shape<'_>) -> Result<Ring, CreateError>,
    ) -> Result<Stream, CreateError> {
        let overwrite = config.policy == Policy::DropOldest;
        let shape = Shape { capacity: config.capacity, generation: 0, base: 0, dropped: 0, overwrite, label };
        let writer = Writer::new(Arc::new(new_ring(shape)?), 0);
        Ok(Stream {
            writer,
            policy: config.policy,
            members: Vec::new(),
            complete: false,
            waiting: false,
            label: label.to_owned(),
            wanted: None,
            spare: None,
            new_ring,
        })
    }

    /// Whether a reader that holds the source back is still in the generation before this one: yet
    /// another would cost it what is in this one.
    fn awaits_a_blocker(&self) -> bool {
        self.blockers().any(|member| member.due)
    }

    /// The readers that hold the source back, and so must lose nothing.
    fn blockers(&self) -> impl Iterator<Item = &Member> {
        let block = self.policy == Policy::Block;
        self.members.iter().filter(move |member| block && member.may_block)
    }

    /// What to do when there is no memory for bytes that have room: [`Reserve::Later`] if a reader
    /// holds the source back, and else [`Reserve::Discard`].
    pub fn without_memory(&self) -> Reserve {
        if self.blockers().next().is_some() { Reserve::Later } else { Reserve::Discard }
    }

    /// Makes room for up to `want` bytes, by the stream's policy.
    #[inline]
    pub fn reserve(&mut self, want: usize) -> Reserve {
        if self.wanted.is_none() && self.writer.claimed() >= want as u64 && want > 0 && !self.complete {
            return Reserve::Ready(self.span(want as u64));
        }
        self.reserve_carefully(want)
    }

    fn reserve_carefully(&mut self, want: usize) -> Reserve {
        if self.complete {
            return Reserve::Discard;
        }
        self.apply_wanted(want as u64);
        let (want, min) = self.claim_sizes(want as u64);
        if self.writer.claimed() >= want {
            return Reserve::Ready(self.span(want));
        }
        for _ in 0..CLAIM_TRIES {
            let refused = match self.claim(want, min) {
                Ok(len) => return Reserve::Ready(self.span(len)),
                Err(refused) => refused,
            };
            if self.must_wait(min) {
                return Reserve::Wait;
            }
            let behind = self.members.iter().filter(|member| self.in_the_way(member, min)).count();
            // Who keeps an older generation to itself has no part in this one.
            let here = self.members.iter().filter(|member| member.due || self.reads_newest(member)).count();
            if behind == here && behind > 0 && self.policy != Policy::DropOldest {
                return Reserve::Discard;
            }
            if behind > 0 || refused == Refused::IndexFull {
                break;
            }
        }
        if self.awaits_a_blocker() {
            return Reserve::Wait;
        }
        // Somebody is in the way while others keep up, or plays with its hold, or the index is full.
        if self.move_away().is_err() {
            return self.without_memory();
        }
        let (want, min) = self.claim_sizes(want);
        // Nobody holds anything in a fresh ring but its first byte.
        self.claim(want, min).map_or(Reserve::Discard, |len| Reserve::Ready(self.span(len)))
    }

    /// How many bytes to claim where `want` would do, and how few are worth a claim.
    fn claim_sizes(&self, want: u64) -> (u64, u64) {
        let want = want.clamp(1, (self.writer.ring().capacity() / CLAIM_PART).max(1));
        let min = match self.policy {
            Policy::DropNewest => 1,
            // A claim that a borrowed slice cuts short is not worth a read: better a fresh generation.
            Policy::DropOldest => want,
            // Not woken for every byte.
            Policy::Block => want,
        };
        (want, min)
    }

    /// Whether a reader that may hold the source back does; it will ring the room bell then.
    fn must_wait(&mut self, room: u64) -> bool {
        if !self.is_held_back(room) {
            return false;
        }
        self.waiting = true;
        self.writer.wait_for(room);
        // A reader may have moved before it could see the wish.
        broken(Point::WantedCheck) || self.is_held_back(room)
    }

    fn is_held_back(&self, room: u64) -> bool {
        self.blockers().any(|member| self.in_the_way(member, room))
    }

    fn in_the_way(&self, member: &Member, room: u64) -> bool {
        effective_hold(member, self.newest(), self.writer.floor()) < self.needed(room)
    }

    /// The position below which the next `room` bytes overwrite.
    fn needed(&self, room: u64) -> u64 {
        self.writer.tail().saturating_add(room).saturating_sub(self.writer.ring().capacity())
    }

    fn span(&mut self, len: u64) -> Span {
        if self.waiting {
            self.waiting = false;
            self.writer.stop_waiting();
        }
        Span { ptr: self.writer.at(), len: usize::try_from(len).unwrap_or(0) }
    }

    fn claim(&mut self, want: u64, min: u64) -> Result<u64, Refused> {
        let newest = self.newest();
        let members = &self.members;
        self.writer.reserve(want, min, |floor| lowest_hold(members, newest, floor))
    }

    fn newest(&self) -> Newest {
        let ring = self.writer.ring();
        Newest { generation: ring.generation(), base: ring.base(), overwrite: ring.overwrite() }
    }

    fn reads_newest(&self, member: &Member) -> bool {
        member.ring.generation() == self.writer.ring().generation()
    }

    /// Publishes the `n` bytes written into the last [`Span`], read from the source at `time`
    /// (nanoseconds since 1970).
    pub fn commit(&mut self, n: usize, time: u64) {
        if !self.complete {
            self.writer.commit(n as u64, time);
        }
    }

    /// Counts `n` bytes of the source, read at `time` and not stored, as dropped.
    pub fn discard(&mut self, n: u64, time: u64) {
        if !self.complete {
            self.writer.discard(n, time);
        }
    }

    /// Stores `bytes` as far as the policy lets it and drops the rest; gives how many it took,
    /// stored or dropped: all, unless the source has to wait or to ask again later.
    pub fn push(&mut self, bytes: &[u8], time: u64) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut reserve = self.reserve(rest.len());
            if let Reserve::Ready(span) = &reserve {
                let (now, later) = rest.split_at(span.len.min(rest.len()));
                if self.writer.store(now) {
                    self.commit(now.len(), time);
                    rest = later;
                    continue;
                }
                reserve = self.without_memory();
            }
            if matches!(reserve, Reserve::Discard) {
                self.discard(rest.len() as u64, time);
                rest = &[];
            }
            break;
        }
        bytes.len().saturating_sub(rest.len())
    }

    /// Ends the stream, after its last byte. Nothing changes it any more: whatever is written or
    /// dropped later does not count.
    pub fn complete(&mut self) {
        if !self.complete {
            self.complete = true;
            self.spare = None;
            self.writer.complete();
        }
    }

    /// Adds a reader that starts at `start` and has `slot` of `reader page` for its words.
    ///
    /// `may_block` lets it hold the source back while the policy is [`Policy::Block`]; grant it
    /// only to who must never lose a byte.
    ///
    /// # Errors
    /// [`CreateError::Slots`] if the reader page has no such slot.
    pub fn attach(
        &mut self,
        page: &Arc<ReaderPage>,
        slot: u32,
        start: Start,
        may_block: bool,
    ) -> Result<Attached, CreateError> {
        let start = self.position(start);
        self.join(Place { page: Arc::clone(page), slot, start }, may_block, false)
    }

    /// Adds a reader that the writer passes, whatever the policy: it holds only what it borrows,
    /// loses the oldest bytes when it is too slow, and so costs nobody else anything. As if
    /// everybody read under [`Policy::DropOldest`].
    ///
    /// # Errors
    /// As [`Stream::attach`].
    pub fn attach_non_gating(
        &mut self,
        page: &Arc<ReaderPage>,
        slot: u32,
        start: Start,
    ) -> Result<Attached, CreateError> {
        let start = self.position(start);
        self.join(Place { page: Arc::clone(page), slot, start }, false, true)
    }

    fn position(&self, start: Start) -> u64 {
        match start {
            Start::Oldest => self.writer.floor(),
            Start::Now => self.writer.tail(),
        }
    }

    fn join(&mut self, at: Place, may_block: bool, non_gating: bool) -> Result<Attached, CreateError> {
        let Place { page, slot, start } = at;
        let words = page.slot(slot).ok_or(CreateError::Slots)?;
        let ring = Arc::clone(self.writer.ring());
        words.cursor.store(start, Relaxed);
        words.threshold.store(1, Relaxed);
        // Too few at worst: it is told once too often then.
        words.dropped.store(0, Relaxed);
        // Before the reader learns of the slot; sending it the slot's number orders these.
        words.hold.store(if ring.overwrite() || non_gating { NONE } else { start }, Relaxed);
        self.members.push(Member {
            page,
            slot,
            ring: Arc::clone(&ring),
            may_block,
            non_gating,
            due: false,
            has_ready: Cell::new(false),
        });
        let dropped = self.writer.dropped();
        Ok(Attached { ring, slot, start, dropped, non_gating })
    }

    /// Moves the reader at `slot` of `reader page` to `new_slot` in the newest generation. `None`
    /// if there is no such reader or slot, or it is in the newest generation already;
    /// `new_slot` is unused then.
    ///
    /// A reader that asked for it, because it found [`Peek::Sealed`](crate::Peek::Sealed), is done
    /// with its slot: `new_slot` may be the same. Other readers may be moved if the stream is
    /// complete, to another slot.
    pub fn follow(&mut self, page: &Arc<ReaderPage>, slot: u32, new_slot: u32) -> Option<Attached> {
        page.slot(new_slot)?;
        let at = self.members.iter().position(|m| m.slot == slot && Arc::ptr_eq(&m.page, page))?;
        if self.reads_newest(self.members.get(at)?) {
            return None;
        }
        let Member { page, ring, may_block, non_gating, due, .. } = self.members.swap_remove(at);
        self.give_back(ring);
        let start = if due { self.writer.ring().base() } else { self.writer.floor() };
        let start = start.max(self.writer.floor());
        self.join(Place { page, slot: new_slot, start }, may_block, non_gating).ok()
    }

    /// Forgets the reader at `slot` of `reader page`; `false` if there is none.
    pub fn detach(&mut self, page: &Arc<ReaderPage>, slot: u32) -> bool {
        let at = self.members.iter().position(|m| m.slot == slot && Arc::ptr_eq(&m.page, page));
        let member = at.map(|at| self.members.swap_remove(at));
        member.map(|member| self.give_back(member.ring)).is_some()
    }

    /// Sets the ready bit of every reader to whom the news are worth a look. A SeqCst fence must
    /// lie between the news and this.
    pub(crate) fn mark_ready(&self) {
        for member in &self.members {
            // Never taken back here: a stream may be named twice.
            if self.is_worth_telling(member) && member.page.mark_ready(member.slot) {
                member.has_ready.set(true);
            }
        }
    }

    /// Wakes the tools of readers that were marked ready just now and sleep. A SeqCst fence must
    /// lie between the two.
    pub(crate) fn wake(&self) {
        for member in self.members.iter().filter(|member| member.has_ready.take()) {
            member.page.ring_if_armed();
        }
    }

    /// Whether `member` is to be woken: it has as many bytes before it as it asked for, a gap, or
    /// an end.
    fn is_worth_telling(&self, member: &Member) -> bool {
        if self.complete || !self.reads_newest(member) {
            return true;
        }
        let Some(words) = member.page.slot(member.slot) else { return false };
        // The tool's words, each loaded once; a lie costs the tool its own wake-ups.
        if words.dropped.load(Relaxed) < self.writer.marked() {
            return true;
        }
        // Partner of `threshold`: the store and fence in `Reader::ask_for`.
        let pending = self.writer.tail().saturating_sub(words.cursor.load(Relaxed));
        pending >= words.threshold.load(Relaxed)
    }

    /// Bytes between the reader's cursor and the newest byte, by its own word; `None` if there is
    /// no such reader.
    pub fn lag(&self, page: &Arc<ReaderPage>, slot: u32) -> Option<u64> {
        let member = self.members.iter().find(|m| m.slot == slot && Arc::ptr_eq(&m.page, page))?;
        let cursor = member.page.slot(slot)?.cursor.load(Relaxed);
        Some(self.writer.tail().saturating_sub(cursor))
    }

    /// The slots of readers that still read an older generation of this (complete) stream.
    pub fn left_behind(&self) -> Vec<(Arc<ReaderPage>, u32)> {
        let old = self.members.iter().filter(|member| !self.reads_newest(member));
        old.map(|member| (Arc::clone(&member.page), member.slot)).collect()
    }

    /// What happens when it is full.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The counters.
    pub fn stats(&self) -> StreamStats {
        StreamStats {
            produced: self.writer.tail().saturating_add(self.writer.dropped()),
            cached: self.writer.tail().saturating_sub(self.writer.floor()),
            dropped: self.writer.dropped(),
            generation: self.writer.ring().generation(),
            complete: self.complete,
        }
    }

    fn config(&self) -> StreamConfig {
        StreamConfig { capacity: self.writer.ring().capacity(), policy: self.policy }
    }

    /// Leaves the readers that are in the way this generation, and goes on in one that is as the
    /// stream is to be, or at least as it is.
    fn move_away(&mut self) -> Result<(), CreateError> {
        let now = self.config();
        let config = self.wanted.map_or(now, |wanted| wanted.config);
        self.next_generation(config, 1).or_else(|_| self.next_generation(now, 1))
    }

    /// Seals this generation and goes on in a fresh one; who is in the way of `room` bytes stays
    /// behind, all others are due.
    fn next_generation(&mut self, config: StreamConfig, room: u64) -> Result<(), CreateError> {
        let old = Arc::clone(self.writer.ring());
        let shape = Shape {
            capacity: config.capacity,
            generation: old.generation().saturating_add(1),
            base: self.writer.tail(),
            dropped: self.writer.dropped(),
            overwrite: config.policy == Policy::DropOldest,
            label: &self.label,
        };
        let ring = match self.spare.take_if(|spare| spare.capacity() == config.capacity) {
            Some(spare) => spare.reuse(shape),
            None => (self.new_ring)(shape)?,
        };
        // One of another size will not be wanted again.
        self.spare = None;
        let due: Vec<bool> = self
            .members
            .iter()
            .map(|member| self.reads_newest(member) && !self.in_the_way(member, room))
            .collect();
        for (member, due) in self.members.iter_mut().zip(due) {
            member.due = due;
        }
        self.writer.seal();
        self.writer = Writer::new(Arc::new(ring), shape.dropped);
        self.policy = config.policy;
        self.wanted.take_if(|wanted| wanted.config == config);
        self.give_back(old);
        Ok(())
    }

    /// Keeps a generation that nobody uses any more for the next one, if it is of the size that is
    /// in use. One is enough, and no more than were in use.
    fn give_back(&mut self, ring: Arc<Ring>) {
        if !self.complete
            && ring.capacity() == self.writer.ring().capacity()
            && let Some(ring) = Arc::into_inner(ring)
        {
            self.spare = Some(ring);
        }
    }
}
