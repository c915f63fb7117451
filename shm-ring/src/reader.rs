//! The reader of one stream: look, borrow in place, consume, follow to the next generation.

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use crate::attach::{Attached, Start};
use crate::doorbell::Ringer;
use crate::error::OpenError;
use crate::index;
use crate::layout::{NONE, Slot};
use crate::reader_page::ReaderPage;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use crate::sync::{Point, broken, fence_at, order_at};
use crate::times;

mod copying;
mod group;

pub use copying::Copied;
pub use group::Grouping;

/// How often a reader that was overtaken looks for the oldest byte before it says "nothing yet".
const CATCH_UP_TRIES: u32 = 8;

/// What a [`Reader`] finds at its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// [`Reader::bytes`] gives bytes, which stay in place until they are consumed or released.
    Bytes,
    /// Bytes are missing here; they are reported once, by this.
    Gap(Gap),
    /// Nothing yet.
    Empty,
    /// Nothing more in this generation: ask the engine for the next one and [`Reader::follow`] it.
    Sealed,
    /// Nothing more, ever: the stream is complete and this reader had its last byte.
    Ended,
    /// Nothing more, ever: the writer has gone without completing the stream, and this reader had
    /// what there was.
    Gone,
}

/// What comes behind the bytes that a [`Reader`] has borrowed, see [`Reader::behind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// More bytes, sooner or later, as far as is known.
    Bytes,
    /// Bytes are missing there.
    Gap,
    /// The next generation, with more bytes.
    Generation,
    /// Nothing: the stream is complete there, or its writer is gone.
    Nothing,
}

/// Bytes that a source produced and this reader will not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How many bytes the source had produced before the first missing one.
    pub offset: u64,
    /// How many are missing.
    pub lost: u64,
}

/// Reads one stream through its rings, one generation after the other.
///
/// Not shared between threads, but may move between them. For every reader, at every moment,
/// `delivered + lost == produced since it began`.
///
/// # Example
/// ```
/// use iof_shm_ring::{Peek, Policy, Start, Stream, StreamConfig, ReaderPage, Reader, doorbell};
/// use std::sync::Arc;
///
/// let page = Arc::new(ReaderPage::create(doorbell()?.0)?);
/// let mut stream = Stream::create(StreamConfig { capacity: 65536, policy: Policy::DropNewest }, "demo")?;
/// let attached = stream.attach(&page, page.take_slot()?, Start::Oldest, false)?;
/// // SAFETY: the stream is ours: it does not detach this reader, nor give its slot to another.
/// let mut reader = unsafe { Reader::new(attached, page, Start::Oldest)? };
///
/// stream.push(b"hello", 0);
/// assert_eq!(reader.peek(), Peek::Bytes);
/// assert_eq!(reader.bytes(), b"hello");
/// reader.consume(5);
/// stream.complete();
/// assert_eq!(reader.peek(), Peek::Ended);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    ring: Arc<Ring>,
    page: Arc<ReaderPage>,
    slot: u32,
    cursor: u64,
    /// Where the byte at the cursor lies in the data area.
    offset: u64,
    /// Bytes up to here are borrowed; the cursor if none are.
    end: u64,
    /// Drops counted into `lost` or before this reader's time.
    dropped_seen: u64,
    /// Index entry to look for gaps from.
    index: u64,
    delivered: u64,
    lost: u64,
    pending: Option<Gap>,
    room: Option<Room>,
    grouping: Option<Grouping>,
    /// When the oldest byte that is held back for grouping was seen.
    seen_at: Option<Instant>,
    /// Once seen, neither the ring nor the slot is touched again: they may be another generation's,
    /// or another reader's, by now.
    sealed: bool,
    writer_gone: bool,
    /// The writer may pass, whatever the ring's discipline.
    non_gating: bool,
    /// Neither borrowing, grouping nor anything pending asks for more than a look at the tail.
    plain: bool,
}

/// How a reader that can hold the writer back tells it that there is room.
struct Room {
    ringer: Arc<Ringer>,
    /// The wish that was answered last; each is answered once.
    answered: u64,
}

/// What [`Reader::find`] found.
enum Found {
    /// Bytes from the cursor to `end`; `cut` if a group can't grow beyond.
    Bytes {
        end: u64,
        cut: bool,
    },
    Nothing(Peek),
}

/// The shared words as of one moment.
struct Look {
    tail: u64,
    dropped: u64,
    sealed: u64,
    complete: u64,
}

impl Reader {
    /// Reads what the engine's [`Stream::attach`](crate::Stream::attach) gave for `reader page`,
    /// which was asked to begin at `start`.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no such slot.
    ///
    /// # Safety
    /// [`Reader::bytes`] lends memory that is the engine's, so the engine has to keep what holds
    /// promise:
    /// * `given` is what it answered for `reader page`, and no other reader has it;
    /// * until this reader is dropped, goes elsewhere by [`Reader::follow`], or says
    ///   [`Peek::Sealed`], it does not [detach](crate::Stream::detach) the slot, give it to
    ///   [another](crate::ReaderPage::return_slot), or move it to [another
    ///   generation](crate::Stream::follow), except that of a complete stream;
    /// * nobody writes the ring but its [`Stream`](crate::Stream);
    /// * nobody writes `reader page`'s file by its descriptor
    ///   ([`ReaderPage::as_fd`](crate::ReaderPage::as_fd), which is safe to call): that is where
    ///   this reader says what it holds.
    pub unsafe fn new(given: Attached, page: Arc<ReaderPage>, start: Start) -> Result<Reader, OpenError> {
        // Where its books begin.
        let (cursor, dropped_seen) = match start {
            Start::Oldest => (0, 0),
            Start::Now => (given.start, given.dropped),
        };
        let mut reader = Reader {
            ring: Arc::clone(&given.ring),
            page,
            slot: given.slot,
            cursor,
            offset: 0,
            end: cursor,
            dropped_seen,
            index: 0,
            delivered: 0,
            lost: 0,
            pending: None,
            room: None,
            grouping: None,
            seen_at: None,
            sealed: false,
            writer_gone: false,
            non_gating: false,
            plain: false,
        };
        // SAFETY: as the caller promises.
        unsafe { reader.follow(given)? };
        Ok(reader)
    }

    /// Makes this reader tell a writer that waits for it, through the engine's `room` bell.
    ///
    /// Only readers that were granted to hold the source back have one, which they may share.
    pub fn tell_room(&mut self, ringer: impl Into<Arc<Ringer>>) {
        self.room = Some(Room { ringer: ringer.into(), answered: NONE });
    }

    /// Lets the writer pass this reader from now on, as it does under drop oldest: it never waits
    /// for it, nor goes on in another generation because of it. Only what is borrowed is held,
    /// and [`Reader::copy`] borrows nothing.
    pub fn set_non_gating(&mut self) {
        self.non_gating = true;
        self.plain = false;
        self.release();
        if !self.sealed {
            self.tell_of_room(NONE);
        }
    }

    fn holds_only_borrowed(&self) -> bool {
        self.non_gating || self.ring.overwrite()
    }

    /// Says that the writer has ended, as whoever started it or is connected to it knows. What is
    /// in the ring is still handed out; where "nothing yet" or "sealed" would follow,
    /// [`Peek::Gone`] does.
    pub fn writer_gone(&mut self) {
        self.writer_gone = true;
    }

    /// What is at the cursor. After [`Peek::Bytes`], [`Reader::bytes`] gives them.
    #[inline]
    pub fn peek(&mut self) -> Peek {
        if self.plain {
            // The common case, small enough to be inlined: bytes in a gated ring, and nothing else to tell.
            let now = self.look();
            if now.tail > self.cursor && now.dropped == self.dropped_seen {
                self.end = now.tail.min(self.cursor.saturating_add(self.ring.capacity()));
                return Peek::Bytes;
            }
        }
        self.peek_carefully()
    }

    fn peek_carefully(&mut self) -> Peek {
        match self.find(Self::hold_here) {
            Found::Bytes { end, cut } => {
                self.end = end;
                if self.is_worth_it(cut) {
                    return Peek::Bytes;
                }
                self.release();
                self.wait_for_group()
            }
            Found::Nothing(peek) => peek,
        }
    }

    /// Looks at the cursor; `secure` makes sure that the bytes there are not overwritten, or says
    /// that they are.
    fn find(&mut self, secure: fn(&Self) -> bool) -> Found {
        if let Some(gap) = self.pending.take() {
            return Found::Nothing(Peek::Gap(gap));
        }
        if self.sealed {
            return Found::Nothing(self.unless_gone(Peek::Sealed));
        }
        self.plain = self.grouping.is_none() && !self.holds_only_borrowed();
        let now = self.look();
        if now.tail <= self.cursor && now.dropped <= self.dropped_seen {
            return Found::Nothing(self.at_end(&now));
        }
        if self.holds_only_borrowed()
            && let Some(peek) = self.catch_up(secure)
        {
            return Found::Nothing(peek);
        }
        // A group that can't grow is handed out as it is.
        let mut cut = now.complete != NONE || now.sealed != NONE || self.writer_gone;
        let mut end = now.tail;
        if now.dropped > self.dropped_seen {
            let (index, gap) = index::next_gap(&self.ring, self.index, self.dropped_seen);
            self.index = index;
            if let Some((offset, dropped)) = gap {
                if offset <= self.cursor {
                    self.release();
                    return Found::Nothing(Peek::Gap(self.skip_to(self.cursor, dropped)));
                }
                end = end.min(offset);
                cut = true;
            }
        }
        // Never more than is mapped, whatever a broken file says.
        let end = end.min(self.cursor.saturating_add(self.ring.capacity()));
        if end > self.cursor {
            return Found::Bytes { end, cut };
        }
        self.release();
        Found::Nothing(self.unless_gone(Peek::Empty))
    }

    #[inline]
    fn look(&self) -> Look {
        let published = &self.ring.control().published;
        let (sealed, complete) = (published.sealed.load(Relaxed), published.complete.load(Relaxed));
        let tail = published.tail.load(Relaxed);
        // Partner: the Release stores in `Writer::commit`, `Writer::seal` and `Writer::complete`: who sees
        // a byte or an end sees the drops before it. (A fence, not acquire loads, because std
        // defines only relaxed loads on read-only maps.)
        fence_at(Point::LookFence, Acquire);
        // Nothing goes by this alone: the bytes behind a gap, if we see them, bring its entry with them.
        let dropped = published.dropped.load(Relaxed);
        Look { tail, dropped, sealed, complete }
    }

    fn at_end(&mut self, now: &Look) -> Peek {
        self.release();
        if now.complete <= self.cursor {
            Peek::Ended
        } else if now.sealed <= self.cursor {
            self.sealed = true;
            self.plain = false;
            self.unless_gone(Peek::Sealed)
        } else {
            self.unless_gone(Peek::Empty)
        }
    }

    fn unless_gone(&self, peek: Peek) -> Peek {
        if self.writer_gone { Peek::Gone } else { peek }
    }

    /// Holds from the cursor on; `false` if the writer claimed these bytes already.
    fn hold_here(&self) -> bool {
        let Some(slot) = self.words() else { return false };
        // Partner: the load in `stream::effective_hold`. Release, although nothing was read under this hold
        // yet: a writer that sees it, and not the `NONE` before it, must see our earlier reads
        // done.
        slot.hold.store(self.cursor, order_at(Point::HoldTaken, Release));
        // Of this fence and the one in `Writer::reserve` one comes first: either we see the claim or the
        // writer sees our hold.
        fence_at(Point::HoldFence, SeqCst);
        let intent = self.ring.control().claimed.intent.load(Relaxed);
        intent.saturating_sub(self.ring.capacity()) <= self.cursor || broken(Point::HoldCheck)
    }

    /// Makes sure of the bytes at the cursor by `secure`. If the writer passed them, goes on at the
    /// oldest byte and says what that skips; [`Peek::Empty`] if the writer is faster time and
    /// again, and will have news.
    fn catch_up(&mut self, secure: fn(&Self) -> bool) -> Option<Peek> {
        for _ in 0..CATCH_UP_TRIES {
            if secure(self) {
                return None;
            }
            self.release();
            let intent = self.ring.control().claimed.intent.load(Relaxed);
            let oldest = intent.saturating_sub(self.ring.capacity()).max(self.ring.base()).max(self.cursor);
            if let Some(dropped) = index::dropped_at(&self.ring, oldest) {
                let gap = self.skip_to(oldest, dropped);
                // Nothing was skipped if the writer took its claim back meanwhile.
                if gap.lost > 0 {
                    return Some(Peek::Gap(gap));
                }
            }
        }
        self.release();
        Some(self.unless_gone(Peek::Empty))
    }

    /// Moves to `position`, before which `dropped` bytes were dropped, and counts what that skips.
    fn skip_to(&mut self, position: u64, dropped: u64) -> Gap {
        let offset = self.produced();
        self.cursor = position;
        self.offset = self.ring.offset_of(position);
        self.end = position;
        // A drop that this reader knows of need not be marked yet.
        self.dropped_seen = self.dropped_seen.max(dropped);
        self.seen_at = None;
        let lost = self.produced().saturating_sub(offset);
        self.lost = self.lost.saturating_add(lost);
        if let Some(slot) = self.words() {
            slot.cursor.store(position, Relaxed);
            slot.dropped.store(self.dropped_seen, Relaxed);
        }
        Gap { offset, lost }
    }

    /// The borrowed bytes: contiguous, in place, empty if nothing is borrowed.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.end.saturating_sub(self.cursor)).unwrap_or(0);
        // SAFETY: `peek` set `end` at most `capacity` beyond the cursor, and that many bytes are mapped
        // from `at` on. The bytes were written before the tail that `look` acquired, and the writer
        // claims none that our slot's hold protects: it has stood at or below the cursor since
        // before `end` was set (`hold_here`; in a gated ring since `Stream::attach`), and only
        // `consume`, `release` and `follow`, which need `&mut self`, move it. That the engine keeps
        // to it is what the caller of `new` promised.
        unsafe { slice::from_raw_parts(self.ring.at(self.offset), len) }
    }

    /// Gives back the first `n` borrowed bytes (at most all) as delivered; the rest stays borrowed.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        let n = (n as u64).min(self.end.saturating_sub(self.cursor));
        if n == 0 {
            return;
        }
        self.cursor = self.cursor.saturating_add(n);
        self.offset = self.ring.advance(self.offset, n);
        self.delivered = self.delivered.saturating_add(n);
        let Some(slot) = self.words() else { return };
        slot.cursor.store(self.cursor, Relaxed);
        let hold = if self.holds_only_borrowed() && self.cursor == self.end { NONE } else { self.cursor };
        // Our loads of the bytes come before the writer's reuse of them. Partner: the Acquire load in
        // `stream::effective_hold`.
        slot.hold.store(hold, order_at(Point::HoldConsumed, Release));
        self.tell_of_room(hold);
    }

    /// Wakes a writer that waits for room, if `hold`, which was just published, leaves it.
    #[inline]
    fn tell_of_room(&mut self, hold: u64) {
        if let Some(room) = &mut self.room {
            // Either the writer's fence in `Writer::wait_for` comes later, and it sees our hold, or ours, and
            // we see its wish.
            fence_at(Point::RoomFence, SeqCst);
            let wanted = self.ring.control().claimed.wanted.load(Relaxed);
            if wanted != NONE && hold >= wanted && room.answered != wanted {
                room.answered = wanted;
                room.ringer.ring();
            }
        }
    }

    /// Stops borrowing without consuming: the bytes come again with the next [`Reader::peek`].
    pub fn release(&mut self) {
        self.end = self.cursor;
        if self.holds_only_borrowed()
            && !self.sealed
            && let Some(slot) = self.words()
        {
            // Partner: the Acquire load in `stream::effective_hold`.
            slot.hold.store(NONE, order_at(Point::HoldReleased, Release));
        }
    }

    /// Goes on in another generation; what lies between is the next gap.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no such slot; the reader stays where it is.
    ///
    /// # Safety
    /// As for [`Reader::new`]: `given` is what the engine's
    /// [`Stream::follow`](crate::Stream::follow) gave for this reader; the slot may be the one
    /// it has.
    pub unsafe fn follow(&mut self, given: Attached) -> Result<(), OpenError> {
        let Attached { ring, slot, start, non_gating, .. } = given;
        if self.page.slot(slot).is_none() {
            return Err(OpenError::Slot { slot });
        }
        // The old slot is not touched: the engine may have given it to another ring by now.
        self.end = self.cursor;
        self.ring = ring;
        self.slot = slot;
        self.non_gating |= non_gating;
        self.index = 0;
        self.plain = false;
        self.sealed = false;
        self.release();
        if let Some(room) = &mut self.room {
            room.answered = NONE;
        }
        // A start that the writer has passed already is found out by the next `peek`.
        let dropped = index::dropped_at(&self.ring, start).unwrap_or(0);
        let gap = self.skip_to(start, dropped);
        self.pending = (gap.lost > 0).then_some(gap);
        Ok(())
    }

    fn words(&self) -> Option<&Slot> {
        self.page.slot(self.slot)
    }

    /// When the byte at the cursor was read from its source, nanoseconds since 1970
    /// (`CLOCK_REALTIME`), if it is there. Bytes that were read together have one time, and so
    /// have those read less than 0.1 ms later; those of a reader that is many reads behind may
    /// have that of an earlier read, some bytes before. `None` before the first that has one.
    pub fn time(&self) -> Option<u64> {
        times::time_at(&self.ring, self.cursor)
    }

    /// When the borrowed bytes were read from their source: appends from how many bytes of the
    /// source on it was when, in their order, as [`Reader::time`] would say it. Nothing is said
    /// of bytes before the first whose time is known.
    pub fn times(&self, times: &mut Vec<(u64, u64)>) {
        times::times_of(&self.ring, self.cursor..self.end, self.dropped_seen, times);
    }

    /// What comes behind the borrowed bytes, as of now. That there are more is not told from that
    /// there may be.
    pub fn behind(&self) -> Behind {
        let now = self.look();
        if now.dropped > self.dropped_seen {
            let next_gap = || index::next_gap(&self.ring, self.index, self.dropped_seen).1;
            // The fence in the first look makes the entry of the drops that we saw visible, and the bytes
            // before them; the second finds it. Partner: the Release store of `dropped` in
            // `Writer::mark_gap`.
            let at = next_gap().or_else(next_gap).map(|(offset, _)| offset);
            let at = at.unwrap_or_else(|| self.ring.control().published.tail.load(Relaxed));
            return if at <= self.end { Behind::Gap } else { Behind::Bytes };
        }
        if self.sealed || now.tail > self.end {
            Behind::Bytes
        } else if now.complete <= self.end || self.writer_gone {
            Behind::Nothing
        } else if now.sealed <= self.end {
            Behind::Generation
        } else {
            Behind::Bytes
        }
    }

    /// Whether the writer waits, as of now, until a reader that can hold it back makes room.
    /// `false` once this generation is sealed or the writer is gone.
    pub fn writer_waits(&self) -> bool {
        // Partner: the stores in `Writer::wait_for` and `Writer::stop_waiting`. Relaxed: nothing else is
        // read because of it.
        !self.sealed && !self.writer_gone && self.ring.control().claimed.wanted.load(Relaxed) != NONE
    }

    /// The position of the next byte: how many were stored before it, in all generations.
    pub fn position(&self) -> u64 {
        self.cursor
    }

    /// The position behind the newest byte, as of now; `None` once that lies in the next
    /// generation.
    pub fn newest(&self) -> Option<u64> {
        if self.sealed {
            return None;
        }
        let now = self.look();
        (now.sealed == NONE || now.complete != NONE).then_some(now.tail)
    }

    /// This reader's slot in its tool's reader page.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The ring it reads now.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Bytes consumed.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes reported as gaps, or about to be.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes that the source had produced before the cursor.
    pub fn produced(&self) -> u64 {
        self.cursor.saturating_add(self.dropped_seen)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A reader that is gone holds nothing; the engine drops the slot when it learns of it.
        if !self.sealed
            && let Some(slot) = self.words()
        {
            // Partner: the Acquire load in `stream::effective_hold`.
            slot.hold.store(NONE, order_at(Point::HoldDropped, Release));
        }
    }
}
