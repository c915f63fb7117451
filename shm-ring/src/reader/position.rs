//! The start of a reader within the cached bytes: at an offset, at the first read from a time on, or
//! at one of the last lines.

use super::{Gap, Reader};
use crate::offset::Offset;
use crate::ring::{index, times};

/// The number of bytes that are searched for newlines at a time.
const CHUNK: usize = 4096;

impl Gap {
    /// Returns the part of the gap from `offset` on.
    fn after(self, offset: u64) -> Gap {
        let end = self.offset.saturating_add(self.lost);
        let offset = self.offset.max(offset).min(end);
        Gap { offset, lost: end.since(offset) }
    }
}

impl Reader {
    /// Makes this reader begin at `offset`, the number of bytes that the source produced before:
    /// earlier bytes are neither returned nor counted as delivered or lost. A later offset is waited
    /// for. To be called before the first byte is consumed; borrowed bytes are released.
    pub fn begin_at(&mut self, offset: u64) {
        self.release();
        (self.from, self.plain) = (offset, false);
        if let Some(gap) = self.pending.take() {
            let rest = gap.after(offset);
            self.lost = self.lost.since(gap.lost.since(rest.lost));
            self.pending = (rest.lost > 0).then_some(rest);
        }
    }

    /// Returns the offset at which this reader begins, see [`Reader::begin_at`].
    pub fn begin(&self) -> u64 {
        self.from
    }

    /// Consumes bytes from the cursor up to `end` without counting them, as far as they are before
    /// the reader's begin.
    pub(super) fn pass(&mut self, end: u64) {
        let count = self.from.saturating_sub(self.produced()).min(end.since(self.cursor));
        let delivered = self.delivered;
        self.end = self.cursor.after(count);
        self.consume(usize::try_from(count).unwrap_or(usize::MAX));
        self.delivered = delivered;
    }

    /// Makes this reader begin with the first byte, from the cursor on, that may have been read at or
    /// after `time`, in nanoseconds since 1970, or behind the newest byte if there is none. Returns
    /// whether there is one. It is too early where several reads share a time, and never too late.
    /// Bytes that are missing immediately before it are reported.
    pub fn begin_since(&mut self, time: u64) -> bool {
        let Some((position, tail)) = self.first_read(time, false) else { return false };
        if position > self.cursor {
            self.begin_at(self.offset_before(position));
        }
        position < tail
    }

    /// Returns the position of the first byte, from the cursor on, that was surely read at or after
    /// `time`.
    pub fn end_before(&self, time: u64) -> Option<u64> {
        self.first_read(time, true).filter(|(position, tail)| position < tail).map(|(position, _)| position)
    }

    /// Returns the position of the first byte that may have been read at or after `time`, or if
    /// `surely`, that was, and the position behind the newest byte; `None` without bytes.
    fn first_read(&self, time: u64, surely: bool) -> Option<(u64, u64)> {
        // The times of the bytes were stored before the tail.
        let tail = self.stored();
        let found = || (times::first_read(&self.ring, self.cursor..tail, time, surely), tail);
        (tail > self.cursor).then(found)
    }

    /// Returns the offset of the byte at `position`, or of the first of those that are missing
    /// immediately before it.
    fn offset_before(&self, position: u64) -> u64 {
        let dropped = index::dropped_at(&self.ring, position.saturating_sub(1));
        // Without its entry, the offset is only too early.
        position.saturating_add(dropped.map_or(self.dropped_seen, |dropped| dropped.max(self.dropped_seen)))
    }

    /// Returns the position behind the newest byte of this generation.
    pub fn stored(&self) -> u64 {
        if self.sealed { self.cursor } else { self.observe().tail }
    }

    /// Returns the lines from the cursor on that are stored at this moment in this generation, from the
    /// newest before the position `end` back.
    pub fn cached_lines(&self, end: u64) -> CachedLines<'_> {
        CachedLines { reader: self, next: Next::End(end), chunk: Vec::new(), chunk_start: u64::MAX }
    }
}

/// The offset behind the newest byte of a [`Reader`] before a position, and then those of its lines from the newest back:
/// the offset of the first byte, and the time at which that was read, as far as it is known. The oldest
/// line may be the end of a longer one, and its offset is where the reader begins.
#[derive(Debug)]
pub struct CachedLines<'a> {
    reader: &'a Reader,
    next: Next,
    chunk: Vec<u8>,
    /// The position of the bytes in `chunk`.
    chunk_start: u64,
}

/// The next item of [`CachedLines`].
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The offset behind the newest byte before this position.
    End(u64),
    /// The line that ends at this position.
    LineBefore(u64),
    Nothing,
}

impl CachedLines<'_> {
    /// Returns the position behind the last newline before `end`, or `None` if there is none.
    fn line_start(&mut self, mut end: u64) -> Option<u64> {
        let Reader { ring, cursor, .. } = self.reader;
        while end > *cursor {
            if self.chunk_start >= end {
                let start = end.saturating_sub(CHUNK as u64).max(*cursor);
                self.chunk.resize(usize::try_from(end.since(start)).unwrap_or(0), 0);
                ring.copy(start, &mut self.chunk);
                self.chunk_start = start;
                self.reader.is_unclaimed(start).then_some(())?;
            }
            let len = usize::try_from(end.since(self.chunk_start)).unwrap_or(0);
            let bytes = self.chunk.get(..len).unwrap_or(&self.chunk);
            if let Some(index) = bytes.iter().rposition(|byte| *byte == b'\n') {
                return Some(self.chunk_start.after(index as u64).after(1));
            }
            end = self.chunk_start;
        }
        None
    }
}

impl Iterator for CachedLines<'_> {
    type Item = (u64, Option<u64>);

    fn next(&mut self) -> Option<(u64, Option<u64>)> {
        let reader = self.reader;
        let end = match self.next {
            Next::End(end) => {
                let stored = reader.stored().min(end);
                if stored <= reader.cursor {
                    self.next = Next::Nothing;
                    return Some((reader.produced(), None));
                }
                self.next = Next::LineBefore(stored);
                return Some((reader.offset_before(stored), None));
            }
            Next::LineBefore(end) => end,
            Next::Nothing => return None,
        };
        // The newline at the end belongs to the line.
        let Some(start) = self.line_start(end.saturating_sub(1)) else {
            self.next = Next::Nothing;
            return Some((reader.from, times::time_at(&reader.ring, reader.cursor)));
        };
        self.next = Next::LineBefore(start);
        // What is missing before the line may be its beginning.
        Some((reader.offset_before(start), times::time_at(&reader.ring, start)))
    }
}
