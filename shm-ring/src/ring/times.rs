//! Read times: the newest reads have entries of their own, which later reads overwrite. For older
//! bytes the index has times, as finely as its room allows.
//!
//! Reads less than [`GRAIN`] apart share an entry. So for a reader that is less than `RECENT`
//! grains behind, the time of each byte is too early by less than one grain, however many reads
//! there are and however few bytes each brings. If reads are rarer, the same holds for the last
//! `RECENT` of them, however old they are. A time is never later than the read.
//!
//! A read also has its own entry if another stream was read since the stream's previous read, and
//! both are in one [read order](crate::Stream::share_order). While such streams alternate within a
//! grain, the entries reach back less far. They show the order of the reads, however close they
//! are.

use std::ops::Range;
use std::sync::Arc;

use crate::layout::{self, NONE};
use crate::offset::Offset;
use crate::ring::Ring;
use crate::ring::marks::Mark;
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// Reads closer together than this share an entry, in nanoseconds.
const GRAIN: u64 = 100_000;

/// The writer's side of the newest reads.
pub(crate) struct RecentWriter {
    /// Number of entries written.
    tail: u64,
    /// Time of the newest entry; 0 (1970) before the first read.
    time: u64,
}

impl RecentWriter {
    pub(crate) fn new() -> Self {
        RecentWriter { tail: 0, time: 0 }
    }

    /// Returns whether a read at `time` gets an entry. It also does after the clock was set back.
    pub(crate) fn is_due(&self, time: u64) -> bool {
        time.abs_diff(self.time) >= GRAIN
    }

    /// Writes an entry for bytes that are about to be published.
    pub(crate) fn note(&mut self, ring: &Ring, mark: Mark) {
        let recent = ring.recent();
        let next = self.tail.after(1);
        if next > recent.room() {
            recent.retire(next.since(recent.room()));
        }
        recent.put(self.tail, mark);
        (self.tail, self.time) = (next, mark.time);
    }
}

/// The part of a stream in an order of reads that several streams share.
pub(crate) struct ReadTurn {
    /// The number of the stream that was read last. Relaxed: one thread writes all the streams, and
    /// a thread that takes them over synchronizes with it.
    newest: Arc<AtomicU64>,
    /// The number of this stream.
    own: u64,
}

impl ReadTurn {
    /// Returns the parts of `count` streams in a new order.
    pub(crate) fn order(count: u64) -> impl Iterator<Item = ReadTurn> {
        let newest = Arc::new(AtomicU64::new(NONE));
        (0..count).map(move |own| ReadTurn { newest: Arc::clone(&newest), own })
    }

    /// Returns what tells this order from others.
    pub(crate) fn order_id(&self) -> usize {
        Arc::as_ptr(&self.newest).addr()
    }

    /// Records a read of this stream. Returns whether the read before it was of another stream.
    pub(crate) fn take(&self) -> bool {
        let alternates = self.newest.load(Relaxed) != self.own;
        if alternates {
            self.newest.store(self.own, Relaxed);
        }
        alternates
    }
}

/// Returns the time at which the byte at `position` was read; `None` if no entry covers it, or if
/// the writer overwrote that entry meanwhile.
pub(crate) fn time_at(ring: &Ring, position: u64) -> Option<u64> {
    newest_first(ring).find(|(mark, _)| mark.offset <= position).map(|(mark, _)| mark.time)
}

/// Appends the known read times of the bytes at `positions`, in order: the first byte of each run,
/// as position plus `dropped`, and the run's time.
pub(crate) fn times_of(ring: &Ring, positions: Range<u64>, dropped: u64, times: &mut Vec<(u64, u64)>) {
    let first = times.len();
    // First position of the run that was appended last. A mark for the same byte is older, so it is
    // ignored.
    let mut until = positions.end;
    for (mark, _) in newest_first(ring) {
        let run_start = mark.offset.max(positions.start);
        if run_start < until {
            times.push((run_start.saturating_add(dropped), mark.time));
            until = run_start;
        }
        if mark.offset <= positions.start {
            break;
        }
    }
    times.get_mut(first..).unwrap_or_default().reverse();
}

/// Returns the first of `positions` that may have been read at or after `time`, or if `surely`, that
/// was; their end if there is none.
pub(crate) fn first_read(ring: &Ring, positions: Range<u64>, time: u64, surely: bool) -> u64 {
    let spacing = layout::spacing(ring.capacity(), ring.index().room());
    let (mut first, mut until) = (positions.end, positions.end);
    let mut next: Option<Mark> = None;
    for (mark, is_recent) in newest_first(ring) {
        let run_start = mark.offset.max(positions.start);
        if run_start < until {
            // The index skips reads only if its next mark is not near, or is that of a gap.
            let skips = next.is_none_or(|next| {
                next.offset.saturating_sub(mark.offset) >= spacing || next.dropped > mark.dropped
            });
            let newest = mark.time.saturating_add(if is_recent { GRAIN } else { 0 });
            let may_reach = first == until && (newest > time || skips && !is_recent);
            if mark.time >= time || may_reach && !surely {
                first = run_start;
            }
            until = run_start;
        }
        if mark.offset <= positions.start {
            return first;
        }
        next = if is_recent { next } else { Some(mark) };
    }
    // The times of the oldest bytes are not known.
    if first == until && !surely { positions.start } else { first }
}

/// Returns the marks of the index and of the newest reads, from the end of the stream back, and for
/// each whether reads that share it are less than [`GRAIN`] later.
fn newest_first(ring: &Ring) -> impl Iterator<Item = (Mark, bool)> {
    let (mut recent, mut index) =
        (ring.recent().newest_first().peekable(), ring.index().newest_first().peekable());
    std::iter::from_fn(move || match (recent.peek(), index.peek()) {
        (Some(read), Some(mark)) if read.offset < mark.offset => index.next().map(|mark| (mark, true)),
        (Some(_), _) => recent.next().map(|mark| (mark, true)),
        (None, _) => index.next().map(|mark| (mark, false)),
    })
}
