//! When bytes were read: the newest reads each have an entry of their own, which the next ones
//! overwrite; of older bytes the index says it, as finely as it has room.
//!
//! Reads less than [`GRAIN`] apart share an entry. So who is less than `RECENT` grains behind,
//! which it is as long as it keeps up, finds times that are older by less than one, however many
//! reads there are and however few bytes they bring; and if they are rarer, the same holds for the
//! last `RECENT` of them, however long ago. No time is ever later than the read.

use std::ops::Range;

use crate::marks::Mark;
use crate::ring::Ring;

/// Reads less than this apart, in nanoseconds, share an entry.
const GRAIN: u64 = 100_000;

/// The writer's side of the newest reads.
pub(crate) struct RecentWriter {
    /// Entries written.
    tail: u64,
    /// Time of the newest entry; at first 1970, when nothing was read.
    time: u64,
}

impl RecentWriter {
    pub(crate) fn new() -> Self {
        RecentWriter { tail: 0, time: 0 }
    }

    /// Whether a read at `time` gets an entry. A clock that was set back is no reason for none.
    pub(crate) fn is_due(&self, time: u64) -> bool {
        time.abs_diff(self.time) >= GRAIN
    }

    /// Notes bytes that are about to be published.
    pub(crate) fn note(&mut self, ring: &Ring, mark: Mark) {
        let recent = ring.recent();
        let next = self.tail.saturating_add(1);
        if next > recent.room() {
            recent.give_up(next.saturating_sub(recent.room()));
        }
        recent.put(self.tail, mark);
        (self.tail, self.time) = (next, mark.time);
    }
}

/// When the byte at `position` was read; `None` if the writer was faster, or nothing says it.
pub(crate) fn time_at(ring: &Ring, position: u64) -> Option<u64> {
    newest_first(ring).find(|mark| mark.offset <= position).map(|mark| mark.time)
}

/// Appends from which of `positions` on, plus `dropped`, bytes were read when, in their order, as
/// far as is known.
pub(crate) fn times_of(ring: &Ring, positions: Range<u64>, dropped: u64, times: &mut Vec<(u64, u64)>) {
    let first = times.len();
    // Where the last one that was appended begins: what else is said of the same byte is said by an
    // earlier mark.
    let mut until = positions.end;
    for mark in newest_first(ring) {
        let from = mark.offset.max(positions.start);
        if from < until {
            times.push((from.saturating_add(dropped), mark.time));
            until = from;
        }
        if mark.offset <= positions.start {
            break;
        }
    }
    times.get_mut(first..).unwrap_or_default().reverse();
}

/// What the index and the entries of the newest reads say, from the end of the stream back.
fn newest_first(ring: &Ring) -> impl Iterator<Item = Mark> {
    let (mut recent, mut index) =
        (ring.recent().newest_first().peekable(), ring.index().newest_first().peekable());
    std::iter::from_fn(move || match (recent.peek(), index.peek()) {
        (Some(read), Some(mark)) if read.offset < mark.offset => index.next(),
        (Some(_), _) => recent.next(),
        (None, _) => index.next(),
    })
}
