//! Handing bytes out in groups: a reader that asked for it gets its bytes when there are enough, or
//! in time.

use std::time::{Duration, Instant};

use super::{Peek, Reader};
use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, Point, fence_at};

/// When bytes are worth handing out: the RFC's buffering of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// As soon as there are so many (`PMIX_IOF_BUFFERING_SIZE`); half the ring at most.
    pub bytes: u64,
    /// Or as soon as the first of them was seen so long ago (`PMIX_IOF_BUFFERING_TIME`); `None`:
    /// never for that.
    pub time: Option<Duration>,
}

impl Reader {
    /// Hands bytes out in groups from now on (`None`: as they come). A gap, the end of a generation
    /// or of the stream ends a group early, so nothing is ever stuck.
    pub fn group(&mut self, grouping: Option<Grouping>) {
        self.grouping = grouping;
        self.plain = false;
        self.seen_at = None;
        self.ask_for(1);
    }

    /// When bytes that are held back for grouping are to be handed out: call [`Reader::peek`] again
    /// by then. `None` if none are, or only more bytes will do.
    pub fn deadline(&self) -> Option<Instant> {
        self.seen_at?.checked_add(self.grouping?.time?)
    }

    /// Whether the borrowed bytes are a group; `cut` if they are all that can become one.
    pub(super) fn is_worth_it(&mut self, cut: bool) -> bool {
        let Some(grouping) = self.grouping else { return true };
        let enough = grouping.bytes.min(self.ring.capacity() / 2);
        let in_time = || self.deadline().is_none_or(|deadline| Instant::now() < deadline);
        let worth_it = cut || self.end.saturating_sub(self.cursor) >= enough || !in_time();
        if worth_it && self.seen_at.take().is_some() {
            // The next byte starts the next group.
            self.ask_for(1);
        }
        worth_it
    }

    /// Bytes are there, but not enough: the writer need not wake us before there are.
    pub(super) fn wait_for_group(&mut self) -> Peek {
        let Some(grouping) = self.grouping else { return Peek::Empty };
        if self.seen_at.is_none() {
            self.seen_at = Some(Instant::now());
            self.ask_for(grouping.bytes.min(self.ring.capacity() / 2));
        }
        Peek::Empty
    }

    /// Asks to be woken for so many bytes. Who asks for fewer than before must look again before it
    /// sleeps: the writer may have gone by the old number meanwhile. (`ReaderPage::arm` has the
    /// fence for more than before.)
    fn ask_for(&self, bytes: u64) {
        // The next generation's slot begins with 1.
        let Some(slot) = self.words().filter(|_| !self.sealed) else { return };
        // Partner: the load in `Stream::is_worth_telling`.
        slot.threshold.store(bytes, Relaxed);
        // Either the fence in `notify` comes later, and the writer sees this, or ours, and our next look
        // sees its bytes.
        fence_at(Point::AskFence, SeqCst);
    }
}
