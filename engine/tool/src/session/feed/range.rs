//! The part of a stream that a feed delivers, if it is not all of it.

use iof_proto::Position;
use iof_shm_ring::{CachedLines, Reader};

use super::{Feed, Input, State};

/// The limits of what a feed delivers that were not found in its ring yet.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Range {
    /// The number of lines before the end of what is cached with which it begins. Nothing is delivered
    /// before all of that is in the ring.
    lines: Option<u64>,
    /// The time of the first read that is delivered.
    since: Option<u64>,
    /// The time of the first read that is not delivered.
    until: Option<u64>,
    /// The position of that read.
    pub(super) end: Option<u64>,
    /// The position up to which bytes were cached, until they are consumed.
    mark: Option<u64>,
}

impl Feed {
    /// Sets the part that is delivered.
    pub(crate) fn limit(&mut self, from: Position, until: Option<u64>) {
        self.range.until = until;
        if let Position::Time(time) = from {
            self.range.since = Some(time);
        }
    }

    /// Waits for [`Feed::find_lines`] if where it begins depends on all that was cached.
    pub(crate) fn await_cached(&mut self, from: Position) {
        if let Position::Lines(count @ 1..) = from {
            self.range.lines = Some(count);
        }
    }

    /// Makes the stream begin at an offset, see [`Reader::begin_at`].
    pub(crate) fn begin_at(&mut self, offset: u64) {
        if let Input::Ring(reader) = &mut self.input {
            reader.begin_at(offset);
        }
    }

    /// Makes the stream end behind the newest byte that is in the ring. If that lies in a later generation, the
    /// stream goes on.
    pub(crate) fn end_here(&mut self) {
        let stored = self.reader().map(Reader::stored).filter(|end| *end > self.position());
        self.range.end = self.reader().and_then(Reader::newest).or(stored);
    }

    /// Returns the cached lines before the end of the feed from the newest back, see [`Reader::cached_lines`].
    pub(crate) fn cached_lines(&self) -> Option<CachedLines<'_>> {
        self.reader().map(|reader| reader.cached_lines(self.end().unwrap_or(u64::MAX)))
    }

    /// Makes the stream begin with the lines that it has waited for.
    pub(crate) fn find_lines(&mut self) {
        let Some(count) = self.range.lines.take() else { return };
        // The first item is the end.
        let index = usize::try_from(count).unwrap_or(usize::MAX);
        if let Some((offset, _)) = self.cached_lines().and_then(|mut lines| lines.nth(index)) {
            self.begin_at(offset);
        }
    }

    /// Notes that all that was cached is in the ring. Returns whether some of it is not consumed.
    pub(crate) fn mark(&mut self) -> bool {
        self.range.mark = self.reader().map(Reader::stored).filter(|stored| *stored > self.position());
        self.range.mark.is_some()
    }

    /// Returns, once, whether all that was in the ring at the [mark](Feed::mark) is consumed.
    pub(crate) fn take_current(&mut self) -> bool {
        let (position, is_over) = (self.position(), self.state == State::Over);
        self.range.mark.take_if(|mark| is_over || position >= *mark).is_some()
    }

    /// Returns whether nothing is delivered yet.
    pub(super) fn awaits_lines(&self) -> bool {
        self.range.lines.is_some()
    }

    /// Applies the times to what is in the ring.
    pub(super) fn apply_times(&mut self) {
        let Input::Ring(reader) = &mut self.input else { return };
        self.range.since.take_if(|since| reader.begin_since(*since));
        if let Some(end) = self.range.until.and_then(|until| reader.end_before(until)) {
            (self.range.until, self.range.end) = (None, self.range.end.into_iter().chain([end]).min());
        }
    }
}
