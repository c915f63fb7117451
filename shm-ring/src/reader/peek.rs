//! The state at the cursor: bytes, a gap, nothing yet, or an end.

use super::Reader;
use crate::layout::NONE;
use crate::ring::index;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, fence_at};

/// Number of times that an overtaken reader searches for the oldest byte before it reports
/// [`Peek::Empty`].
pub(super) const CATCH_UP_TRIES: u32 = 8;

/// The state at the cursor of a [`Reader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// [`Reader::bytes`] returns bytes, which stay in place until they are consumed or released.
    Bytes,
    /// Bytes are missing here. They are reported only once.
    Gap(Gap),
    /// There is nothing yet.
    Empty,
    /// The reader has read this generation to its end. Request the next one from the engine and
    /// continue in it with [`Reader::follow`].
    Sealed,
    /// The stream is complete, and this reader has consumed its last byte.
    Ended,
    /// The stream has ended, and this reader has consumed its last byte, but the source may have
    /// produced more ([`Stream::break_off`](crate::Stream::break_off)).
    Broken {
        /// The number of further bytes that the source has produced, at least.
        missing: u64,
    },
    /// The writer has ended without completing the stream ([`Reader::set_writer_gone`]), and this
    /// reader has consumed the last byte in the ring.
    Gone,
}

/// The state of the stream behind the bytes that a [`Reader`] borrows, see [`Reader::behind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// More bytes are there, or may still follow.
    Bytes,
    /// A gap.
    Gap,
    /// The end of this generation. More bytes may follow in the next one.
    Generation,
    /// Nothing: the stream is complete there, or its writer has ended.
    Nothing,
}

/// A run of bytes that a source produced and this reader does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Number of bytes that the source had produced before the first missing one.
    pub offset: u64,
    /// Number of missing bytes.
    pub lost: u64,
}

/// The result of [`Reader::find`].
pub(super) enum Found {
    /// Bytes from the cursor to `end`; `cut` if a group cannot grow beyond `end`.
    Bytes {
        end: u64,
        cut: bool,
    },
    Nothing(Peek),
}

/// The shared words at one moment.
pub(super) struct Observed {
    pub(super) tail: u64,
    pub(super) dropped: u64,
    pub(super) sealed: u64,
    pub(super) complete: u64,
}

impl Reader {
    /// Returns the state at the cursor. After [`Peek::Bytes`], [`Reader::bytes`] returns the bytes.
    #[inline]
    pub fn peek(&mut self) -> Peek {
        if self.plain {
            // The common case, small enough to be inlined: bytes in a gating ring, and no gap.
            let now = self.observe();
            if now.tail > self.cursor && now.dropped == self.dropped_seen {
                self.end = now.tail.min(self.cursor.saturating_add(self.ring.capacity()));
                return Peek::Bytes;
            }
        }
        self.peek_carefully()
    }

    /// Returns whether there are bytes, and behind them neither a gap nor an end. Not for readers
    /// that group bytes or do not gate the writer.
    pub fn has_only_bytes(&self) -> bool {
        let now = self.observe();
        self.plain
            && now.tail > self.cursor
            && now.dropped == self.dropped_seen
            && (now.sealed, now.complete) == (NONE, NONE)
    }

    fn peek_carefully(&mut self) -> Peek {
        match self.find(Self::pin_cursor) {
            Found::Bytes { end, cut } => {
                self.end = end;
                if self.is_group(cut) {
                    return Peek::Bytes;
                }
                self.release();
                self.wait_for_group()
            }
            Found::Nothing(peek) => peek,
        }
    }

    /// Finds what is at the cursor. `secure` ensures that the bytes there are not overwritten; it
    /// returns `false` if the writer has claimed them.
    pub(super) fn find(&mut self, secure: fn(&Self) -> bool) -> Found {
        loop {
            match self.find_next(secure) {
                // Both are before the reader's begin.
                Found::Bytes { end, .. } if self.produced() < self.from => self.pass(end),
                Found::Nothing(Peek::Gap(Gap { lost: 0, .. })) => {}
                found => return found,
            }
        }
    }

    fn find_next(&mut self, secure: fn(&Self) -> bool) -> Found {
        if let Some(gap) = self.pending.take() {
            return Found::Nothing(Peek::Gap(gap));
        }
        if self.sealed {
            return Found::Nothing(self.unless_gone(Peek::Sealed));
        }
        self.plain = self.grouping.is_none() && !self.pins_only_borrowed() && self.produced() >= self.from;
        let now = self.observe();
        if now.tail <= self.cursor && now.dropped <= self.dropped_seen {
            return Found::Nothing(self.check_end(&now));
        }
        if self.pins_only_borrowed()
            && let Some(peek) = self.catch_up(secure)
        {
            return Found::Nothing(peek);
        }
        // A group that cannot grow is returned as it is.
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
        // Never more than is mapped, even if the file is invalid.
        let end = end.min(self.cursor.saturating_add(self.ring.capacity()));
        if end > self.cursor {
            return Found::Bytes { end, cut };
        }
        self.release();
        Found::Nothing(self.unless_gone(Peek::Empty))
    }

    #[inline]
    pub(super) fn observe(&self) -> Observed {
        let published = &self.ring.control().published;
        let (sealed, complete) = (published.sealed.load(Relaxed), published.complete.load(Relaxed));
        let tail = published.tail.load(Relaxed);
        // Partner: the Release stores in `Writer::commit`, `Writer::seal` and `Writer::end`. A
        // reader that sees a byte or an end sees the drops before it. (A fence, not acquire loads,
        // because std defines only relaxed loads on read-only maps.)
        fence_at(Point::ObserveFence, Acquire);
        // This load needs no ordering of its own: the bytes behind a gap, if the reader sees them,
        // make the gap's entry visible.
        let dropped = published.dropped.load(Relaxed);
        Observed { tail, dropped, sealed, complete }
    }

    fn check_end(&mut self, now: &Observed) -> Peek {
        self.release();
        if now.complete <= self.cursor {
            // Ordered by the fence in `observe`. Partner: the store in `Writer::end`.
            match self.ring.control().published.missing.load(Relaxed) {
                0 => Peek::Ended,
                word => Peek::Broken { missing: word.saturating_sub(1) },
            }
        } else if now.sealed <= self.cursor {
            self.sealed = true;
            self.plain = false;
            self.unless_gone(Peek::Sealed)
        } else {
            self.unless_gone(Peek::Empty)
        }
    }

    pub(super) fn unless_gone(&self, peek: Peek) -> Peek {
        if self.writer_gone { Peek::Gone } else { peek }
    }

    /// Secures the bytes at the cursor with `secure`. If the writer has overwritten them, the
    /// reader continues at the oldest byte and returns the gap. Returns [`Peek::Empty`] if the
    /// writer was faster in each of several tries; it then sets the ready bit again.
    fn catch_up(&mut self, secure: fn(&Self) -> bool) -> Option<Peek> {
        for _ in 0..CATCH_UP_TRIES {
            if secure(self) {
                return None;
            }
            self.release();
            let claimed = self.ring.control().claimed.position.load(Relaxed);
            let oldest = claimed.saturating_sub(self.ring.capacity()).max(self.ring.base()).max(self.cursor);
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

    /// Returns what follows the borrowed bytes, as known at this moment.
    pub fn behind(&self) -> Behind {
        let now = self.observe();
        if now.dropped > self.dropped_seen {
            let next_gap = || index::next_gap(&self.ring, self.index, self.dropped_seen).1;
            // The fence in the first search makes the entry of the seen drops visible, and the
            // bytes before them; the second search finds it. Partner: the Release store of
            // `dropped` in `Writer::mark_gap`.
            let position = next_gap().or_else(next_gap).map(|(offset, _)| offset);
            let position = position.unwrap_or_else(|| self.ring.control().published.tail.load(Relaxed));
            return if position <= self.end { Behind::Gap } else { Behind::Bytes };
        }
        if self.sealed || now.tail > self.end {
            Behind::Bytes
        } else if now.complete <= self.end {
            Behind::Nothing
        } else if now.sealed <= self.end {
            // The reader may have the next one already, even if its writer has ended.
            Behind::Generation
        } else if self.writer_gone {
            Behind::Nothing
        } else {
            Behind::Bytes
        }
    }
}
