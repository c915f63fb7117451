//! The reader of one stream: peeks, borrows in place, consumes, follows to the next generation.

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, slice};

use self::attach::{Attached, Start};
use crate::error::OpenError;
use crate::layout::{NONE, Slot};
use crate::offset::Offset;
use crate::reader_id::ReaderId;
use crate::reader_page::ReaderPage;
use crate::ring::Ring;
use crate::ring::index;
use crate::ring::interaction::{self, LastRead};
use crate::ring::times;
use crate::sync::{Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use crate::sync::{Point, broken, fence_at, order_at};
use crate::wakeup::doorbell::Ringer;

pub(crate) mod attach;
mod copying;
mod group;
pub(crate) mod inspect;
mod peek;
mod position;

pub use copying::Copied;
pub use group::Grouping;
pub use peek::{Behind, Gap, Peek};
pub use position::CachedLines;

/// A reader of one stream. It reads the generations of the stream one after the other; each is a
/// ring.
///
/// It is not shared between threads, but may be moved between them. At any time, *delivered + lost*
/// equals the number of bytes that the source produced between the reader's start and its cursor.
///
/// # Example
/// ```
/// use iof_shm_ring::{Peek, Policy, Start, Stream, StreamConfig, ReaderPage, Reader, doorbell};
/// use std::sync::Arc;
///
/// let page = Arc::new(ReaderPage::create(doorbell()?.0)?);
/// let mut stream = Stream::create(StreamConfig { capacity: 65536, policy: Policy::DropNewest }, "demo")?;
/// let attached = stream.attach(&page, page.take_slot()?, Start::Oldest, false)?;
/// // SAFETY: this example does not detach the reader or give its slot to another reader.
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
    id: ReaderId,
    cursor: u64,
    /// Offset of the byte at the cursor in the data area.
    offset: u64,
    /// Bytes up to this position are borrowed; equals the cursor if none are.
    end: u64,
    /// Drops that are counted in `lost` or were before this reader's start.
    dropped_seen: u64,
    /// Index entry from which the next gap is searched.
    index: u64,
    delivered: u64,
    lost: u64,
    /// Offset before which bytes are neither delivered nor lost.
    from: u64,
    pending: Option<Gap>,
    room: Option<Room>,
    grouping: Option<Grouping>,
    /// Time at which the oldest byte that grouping withholds was seen.
    seen_at: Option<Instant>,
    /// Set if the seal was seen. From then on neither the ring nor the slot is touched: they may
    /// belong to another generation or another reader.
    sealed: bool,
    writer_gone: bool,
    /// Set if the reader is non-gating, whatever the ring's discipline.
    non_gating: bool,
    /// Set if `peek` needs only the tail and the drops: the reader is gating, does not group, and
    /// has nothing pending.
    plain: bool,
}

/// The bell by which a gating reader notifies a waiting writer of room.
struct Room {
    ringer: Arc<Ringer>,
    /// The request that was answered last. Each request is answered once.
    answered: u64,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("ring", &self.ring)
            .field("id", &self.id)
            .field("cursor", &self.cursor)
            .field("borrowed", &self.end.saturating_sub(self.cursor))
            .field("delivered", &self.delivered)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Creates a reader from `given`, the value that [`Stream::attach`](crate::Stream::attach)
    /// returned in the engine for `page` and `start`.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no slot for the reader.
    ///
    /// # Safety
    /// [`Reader::bytes`] lends memory that the engine writes, so the engine must keep its side of
    /// the protocol:
    /// * `given` is what the engine returned for `page`, and no other reader has it.
    /// * Until this reader is dropped, moves by [`Reader::follow`], or returns [`Peek::Sealed`],
    ///   the engine does not [detach](crate::Stream::detach) the slot, give it to
    ///   [another](crate::ReaderPage::return_slot), or move it to [another
    ///   generation](crate::Stream::follow), except that of a complete stream.
    /// * Only its [`Stream`](crate::Stream) writes the ring.
    /// * Nothing writes the file of `page` by its descriptor
    ///   ([`ReaderPage::as_fd`](crate::ReaderPage::as_fd), which is safe to call), or a `page` on
    ///   the heap by `ReaderPage::overwrite` (feature `test-utils`), because this reader publishes
    ///   its pinned position there.
    pub unsafe fn new(given: Attached, page: Arc<ReaderPage>, start: Start) -> Result<Reader, OpenError> {
        // Position and drop count at which the reader's accounting begins.
        let (cursor, dropped_seen) = match start {
            Start::Oldest => (0, 0),
            Start::Now => (given.start, given.dropped),
        };
        let mut reader = Reader {
            ring: Arc::clone(&given.ring),
            page,
            id: given.id,
            cursor,
            offset: 0,
            end: cursor,
            dropped_seen,
            index: 0,
            delivered: 0,
            lost: 0,
            from: 0,
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

    /// Sets the bell that this reader rings when it has made room for which the writer waits.
    ///
    /// Only readers that may hold the source back need one. Several readers may share one.
    pub fn set_room_bell(&mut self, ringer: impl Into<Arc<Ringer>>) {
        self.room = Some(Room { ringer: ringer.into(), answered: NONE });
    }

    /// Makes this reader non-gating from now on, as under drop oldest: it pins only what it
    /// borrows. The writer neither waits for it nor continues in another generation because of it,
    /// except for bytes that it borrows. [`Reader::copy`] borrows nothing.
    pub fn set_non_gating(&mut self) {
        self.non_gating = true;
        self.plain = false;
        self.release();
        if !self.sealed {
            self.notify_of_room(NONE);
        }
    }

    fn pins_only_borrowed(&self) -> bool {
        self.non_gating || self.ring.overwrite()
    }

    /// Records that the writer has ended. The caller learns that in another way, for example from
    /// the connection to the writer. The reader still returns the bytes in the ring; after them it
    /// returns [`Peek::Gone`] instead of [`Peek::Empty`] or [`Peek::Sealed`].
    pub fn set_writer_gone(&mut self) {
        self.writer_gone = true;
    }

    /// Pins the bytes from the cursor on. Returns `false` if the writer has claimed them already.
    fn pin_cursor(&self) -> bool {
        let Some(slot) = self.words() else { return false };
        // Partner: the load in `stream::effective_pin`. Release, although nothing was read under
        // this pinned position yet: a writer that sees it, and not the `NONE` before it, must see
        // the reader's earlier loads done.
        slot.pinned.store(self.cursor, order_at(Point::PinTaken, Release));
        // One of this fence and the one in `Writer::reserve` is first. Either the reader sees the
        // claim, or the writer sees the pinned position.
        fence_at(Point::PinFence, SeqCst);
        let claimed = self.ring.control().claimed.position.load(Relaxed);
        claimed.saturating_sub(self.ring.capacity()) <= self.cursor || broken(Point::PinCheck)
    }

    /// Moves the cursor to `position`, before which `dropped` bytes were dropped, and counts the
    /// skipped bytes as lost.
    fn skip_to(&mut self, position: u64, dropped: u64) -> Gap {
        let offset = self.produced().max(self.from);
        self.cursor = position;
        self.offset = self.ring.offset_of(position);
        self.end = position;
        // A drop that this reader knows already need not be marked yet.
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

    /// Returns the borrowed bytes: contiguous, in place, empty if nothing is borrowed.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.end.since(self.cursor)).unwrap_or(0);
        // SAFETY: `peek` set `end` at most `capacity` beyond the cursor, and that many bytes are
        // mapped from `offset` on. The bytes were written before the tail that `observe` acquired.
        // The writer claims no byte that the slot's pinned position protects. That position has
        // been at or below the cursor since before `end` was set (since `pin_cursor`; in a gating
        // ring since `Stream::attach`), and only `consume`, `release` and `follow`, which need
        // `&mut self`, move it. The caller of `new` promised that the engine keeps to this
        // protocol.
        unsafe { slice::from_raw_parts(self.ring.address(self.offset), len) }
    }

    /// Consumes the first `n` borrowed bytes, or all of them if `n` is greater, as delivered. The
    /// rest stays borrowed.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        let n = (n as u64).min(self.end.since(self.cursor));
        if n == 0 {
            return;
        }
        self.cursor = self.cursor.after(n);
        self.offset = self.ring.advance(self.offset, n);
        self.delivered = self.delivered.after(n);
        let Some(slot) = self.words() else { return };
        slot.cursor.store(self.cursor, Relaxed);
        let pinned = if self.pins_only_borrowed() && self.cursor == self.end { NONE } else { self.cursor };
        // Orders the loads of the bytes before the writer's reuse of their memory. Partner: the
        // Acquire load in `stream::effective_pin`.
        slot.pinned.store(pinned, order_at(Point::PinConsumed, Release));
        self.notify_of_room(pinned);
    }

    /// Wakes a writer that waits for room if `pinned`, which was just published, leaves that room.
    #[inline]
    fn notify_of_room(&mut self, pinned: u64) {
        if let Some(room) = &mut self.room {
            // One of this fence and the one in `Writer::wait_for` is first. Either the reader sees
            // the request, or the writer sees the pinned position.
            fence_at(Point::RoomFence, SeqCst);
            let wanted = self.ring.control().claimed.wanted.load(Relaxed);
            if wanted != NONE && pinned >= wanted && room.answered != wanted {
                room.answered = wanted;
                room.ringer.ring();
            }
        }
    }

    /// Stops borrowing without consuming: the next [`Reader::peek`] returns the bytes again.
    pub fn release(&mut self) {
        self.end = self.cursor;
        if self.pins_only_borrowed()
            && !self.sealed
            && let Some(slot) = self.words()
        {
            // Partner: the Acquire load in `stream::effective_pin`.
            slot.pinned.store(NONE, order_at(Point::PinReleased, Release));
        }
    }

    /// Continues in another generation. The bytes in between are the next gap.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no slot for the new id; the reader does not move.
    ///
    /// # Safety
    /// As for [`Reader::new`]: `given` is what the engine's
    /// [`Stream::follow`](crate::Stream::follow) returned for this reader. The id may be the same
    /// as before.
    pub unsafe fn follow(&mut self, given: Attached) -> Result<(), OpenError> {
        let Attached { ring, id, start, non_gating, .. } = given;
        if self.page.slot(id).is_none() {
            return Err(OpenError::Slot { id });
        }
        // The old slot is not touched: the engine may have given it to another ring.
        self.end = self.cursor;
        self.ring = ring;
        self.id = id;
        self.non_gating |= non_gating;
        self.index = 0;
        self.plain = false;
        self.sealed = false;
        self.release();
        if let Some(room) = &mut self.room {
            room.answered = NONE;
        }
        // If the writer has overwritten the start already, the next `peek` detects it.
        let dropped = index::dropped_at(&self.ring, start).unwrap_or(0);
        let gap = self.skip_to(start, dropped);
        self.pending = (gap.lost > 0).then_some(gap);
        Ok(())
    }

    fn words(&self) -> Option<&Slot> {
        self.page.slot(self.id)
    }

    /// Returns the time at which the byte at the cursor was read from its source, in nanoseconds
    /// since 1970 (`CLOCK_REALTIME`). Bytes that were read together, or less than 0.1 ms apart,
    /// have the same time. For a byte that lies many reads behind the newest one, it may be the
    /// time of an earlier read. Returns `None` if no time is known for the byte.
    pub fn time(&self) -> Option<u64> {
        times::time_at(&self.ring, self.cursor)
    }

    /// Appends the read times of the borrowed bytes to `times`. Each entry stands for a run of
    /// bytes with the same time. It contains the value that [`Reader::produced`] has at the first
    /// byte of the run, and the time that [`Reader::time`] returns for it. Bytes without a known
    /// time have no entry.
    pub fn times(&self, times: &mut Vec<(u64, u64)>) {
        times::times_of(&self.ring, self.cursor..self.end, self.dropped_seen, times);
    }

    /// Returns the newest read of the stream, which may be newer than the borrowed bytes. Returns
    /// `None` if it is unknown, as at the beginning of a generation.
    pub fn last_read(&self) -> Option<LastRead> {
        interaction::last_read(&self.ring)
    }

    /// Returns whether the writer waits at this moment until a gating reader makes room. Returns
    /// `false` once this generation is sealed or the writer is gone.
    pub fn writer_waits(&self) -> bool {
        // Partner: the stores in `Writer::wait_for` and `Writer::stop_waiting`. Relaxed, because no
        // other load depends on it.
        !self.sealed && !self.writer_gone && self.ring.control().claimed.wanted.load(Relaxed) != NONE
    }

    /// Returns the position of the next byte: the number of bytes that were stored before it, in
    /// all generations.
    pub fn position(&self) -> u64 {
        self.cursor
    }

    /// Returns the position behind the newest byte at this moment; `None` once that byte lies in
    /// the next generation.
    pub fn newest(&self) -> Option<u64> {
        if self.sealed {
            return None;
        }
        let now = self.observe();
        (now.sealed == NONE || now.complete != NONE).then_some(now.tail)
    }

    /// Returns this reader's id in its tool's reader page.
    pub fn id(&self) -> ReaderId {
        self.id
    }

    /// Returns the ring that it reads now.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the number of bytes consumed.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the number of lost bytes: those reported as gaps, and those of a gap that the next
    /// [`Reader::peek`] reports.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of bytes that the source had produced before the cursor.
    pub fn produced(&self) -> u64 {
        self.cursor.saturating_add(self.dropped_seen)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A dropped reader pins nothing. The engine frees the slot when it is notified.
        if !self.sealed
            && let Some(slot) = self.words()
        {
            // Partner: the Acquire load in `stream::effective_pin`.
            slot.pinned.store(NONE, order_at(Point::PinDropped, Release));
        }
    }
}
