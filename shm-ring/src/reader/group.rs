//! Returning bytes in groups: a reader with grouping gets its bytes when there are enough of them,
//! or after a time.

use std::time::{Duration, Instant};

use super::{Peek, Reader};
use crate::offset::Offset;
use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, Point, fence_at};

/// The conditions under which [`Reader::peek`] returns bytes: the buffering of output that RFC0025
/// specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// Number of bytes that form a group (`PMIX_IOF_BUFFERING_SIZE`); at most half of the ring.
    pub bytes: u64,
    /// Time since its first byte was seen, after which a smaller group is returned
    /// (`PMIX_IOF_BUFFERING_TIME`); `None` for no limit.
    pub time: Option<Duration>,
}

impl Reader {
    /// Returns bytes in groups from now on, or at once if `grouping` is `None`. A gap, the end of a
    /// generation or the end of the stream ends a group early, so no byte is withheld for ever.
    pub fn group(&mut self, grouping: Option<Grouping>) {
        self.grouping = grouping;
        self.plain = false;
        self.seen_at = None;
        self.set_threshold(1);
    }

    /// Returns the time by which [`Reader::peek`] must be called again to get withheld bytes.
    /// Returns `None` if nothing is withheld, or if the group has no time limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.seen_at?.checked_add(self.grouping?.time?)
    }

    /// Returns whether the borrowed bytes are a group. `cut` means that it cannot grow.
    pub(super) fn is_group(&mut self, cut: bool) -> bool {
        let Some(grouping) = self.grouping else { return true };
        let enough = grouping.bytes.min(self.ring.capacity() / 2);
        let in_time = || self.deadline().is_none_or(|deadline| Instant::now() < deadline);
        let complete = cut || self.end.since(self.cursor) >= enough || !in_time();
        if complete && self.seen_at.take().is_some() {
            // The next byte starts the next group.
            self.set_threshold(1);
        }
        complete
    }

    /// Withholds bytes that are too few for a group. The writer need not wake the reader before
    /// there are enough.
    pub(super) fn wait_for_group(&mut self) -> Peek {
        let Some(grouping) = self.grouping else { return Peek::Empty };
        if self.seen_at.is_none() {
            self.seen_at = Some(Instant::now());
            self.set_threshold(grouping.bytes.min(self.ring.capacity() / 2));
        }
        Peek::Empty
    }

    /// Requests a wake-up for `bytes` bytes. After a decrease the caller must peek again before it
    /// sleeps, because the writer may have applied the old threshold meanwhile. (For an increase
    /// the fence in `ReaderPage::arm` is enough.)
    fn set_threshold(&self, bytes: u64) {
        // The slot in the next generation starts with 1.
        let Some(slot) = self.words().filter(|_| !self.sealed) else { return };
        // Partner: the load in `Stream::is_wakeup_due`.
        slot.threshold.store(bytes, Relaxed);
        // One of this fence and the first one in `notify` is first. Either the writer sees the
        // threshold, or the reader's next peek sees the writer's bytes.
        fence_at(Point::ThresholdFence, SeqCst);
    }
}
