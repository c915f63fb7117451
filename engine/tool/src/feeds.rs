//! All feeds of a tool: which of them have news, and when which is to be looked at again.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::Instant;

use iof_shm_ring::{Attached, ReaderPage};

use crate::feed::Feed;

/// Names one stream of one registration of a tool, until it is over. Then another may get the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(usize);

impl FeedId {
    /// The number: lower than the most streams that the tool has had at a time.
    pub fn index(self) -> usize {
        self.0
    }
}

/// The feeds that are not over.
#[derive(Default)]
pub(crate) struct Feeds {
    feeds: Vec<Option<Feed>>,
    /// Places that are empty.
    free: Vec<FeedId>,
    /// By the slot of a feed's newest ring.
    by_slot: HashMap<u32, FeedId>,
    /// Slots below this were ever used.
    slots: u32,
    /// Those that may have news.
    active: Vec<FeedId>,
    /// When to look again at feeds that hold bytes back.
    due: BTreeSet<(Instant, FeedId)>,
}

/// What [`Feeds::settle`] found.
pub(crate) struct Settled {
    /// The slots of rings for whose next generation the engine must be asked.
    pub ask: Vec<u32>,
    /// Feeds that were read to their end, and are no more.
    pub over: Vec<Feed>,
    /// Bytes that were consumed since it was called before.
    pub read: u64,
    /// Of one feed that was a large part of its ring.
    pub large: bool,
}

impl Feeds {
    pub(crate) fn get(&self, id: FeedId) -> Option<&Feed> {
        self.feeds.get(id.0).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: FeedId) -> Option<&mut Feed> {
        self.feeds.get_mut(id.0).and_then(Option::as_mut)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }

    /// Those that had news and were not found quiet since.
    pub(crate) fn active(&self) -> &[FeedId] {
        &self.active
    }

    /// Slots below this are in use.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Notes that the engine uses `slot`.
    pub(crate) fn use_slot(&mut self, slot: u32) {
        self.slots = self.slots.max(slot.saturating_add(1));
    }

    pub(crate) fn add(&mut self, feed: Feed) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.feeds.push(None);
            FeedId(self.feeds.len().saturating_sub(1))
        });
        self.by_slot.insert(feed.slot(), id);
        if let Some(place) = self.feeds.get_mut(id.0) {
            *place = Some(feed);
        }
        // There may be news from before the engine knew whom to tell.
        self.activate(id);
    }

    /// Gives the feed at slot `old` its next ring. One that nobody waits for any more is dropped.
    pub(crate) fn next_generation(&mut self, old: u32, next: Attached) {
        let Some(id) = self.by_slot.remove(&old) else { return };
        self.by_slot.insert(next.slot, id);
        if let Some(feed) = self.get_mut(id) {
            feed.push_next(next);
        }
        self.activate(id);
    }

    /// Notes which feeds have news, by the reader page's word.
    pub(crate) fn take_ready(&mut self, page: &ReaderPage) {
        page.take_ready(self.slots, |slot| {
            if let Some(&id) = self.by_slot.get(&slot) {
                activate(&mut self.feeds, &mut self.active, id);
            }
        });
    }

    /// Notes which feeds have held bytes back for long enough.
    pub(crate) fn take_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            if let Some(feed) = self.get_mut(id) {
                feed.due = None;
            }
            self.activate(id);
        }
    }

    /// When [`Feeds::take_due`] finds the next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Forgets feeds that were read to their end or to where they are quiet.
    pub(crate) fn settle(&mut self) -> Settled {
        let mut settled = Settled { ask: Vec::new(), over: Vec::new(), read: 0, large: false };
        let mut active = mem::take(&mut self.active);
        active.retain(|&id| {
            let Some(feed) = self.get_mut(id) else { return false };
            settled.ask.extend(feed.ask());
            let (read, large) = feed.take_read();
            settled.read = settled.read.saturating_add(read);
            settled.large |= large;
            feed.active = !feed.is_settled();
            let active = feed.active && !feed.is_over();
            if feed.is_over() {
                settled.over.extend(self.remove(id));
            } else if !active {
                self.note_due(id);
            }
            active
        });
        self.active = active;
        settled
    }

    fn note_due(&mut self, id: FeedId) {
        let Some(feed) = self.feeds.get_mut(id.0).and_then(Option::as_mut) else { return };
        let due = feed.deadline();
        let was = mem::replace(&mut feed.due, due);
        if was != due {
            if let Some(was) = was {
                self.due.remove(&(was, id));
            }
            self.due.extend(due.map(|at| (at, id)));
        }
    }

    fn remove(&mut self, id: FeedId) -> Option<Feed> {
        let feed = self.feeds.get_mut(id.0)?.take()?;
        self.by_slot.remove(&feed.slot());
        if let Some(due) = feed.due {
            self.due.remove(&(due, id));
        }
        self.free.push(id);
        Some(feed)
    }

    /// How many are not over.
    pub(crate) fn len(&self) -> usize {
        self.by_slot.len()
    }

    pub(crate) fn activate(&mut self, id: FeedId) {
        activate(&mut self.feeds, &mut self.active, id);
    }

    /// Has all feeds of a registration looked at again.
    pub(crate) fn activate_all(&mut self, handler: u32) {
        self.for_each(|feed| feed.handler() == handler);
    }

    /// Ends the feeds of `handler` where their streams are now.
    pub(crate) fn flush(&mut self, handler: u32) {
        self.for_each(|feed| {
            let of_it = feed.handler() == handler;
            if of_it {
                feed.flush();
            }
            of_it
        });
    }

    /// The engine writes nothing any more.
    pub(crate) fn engine_gone(&mut self) {
        self.for_each(|feed| {
            feed.engine_gone();
            true
        });
    }

    /// Does `change` to each, and looks anew at those for which it gives `true`.
    fn for_each(&mut self, mut change: impl FnMut(&mut Feed) -> bool) {
        for id in (0..self.feeds.len()).map(FeedId) {
            if self.get_mut(id).is_some_and(&mut change) {
                self.activate(id);
            }
        }
    }
}

fn activate(feeds: &mut [Option<Feed>], active: &mut Vec<FeedId>, id: FeedId) {
    let Some(feed) = feeds.get_mut(id.0).and_then(Option::as_mut) else { return };
    feed.wake();
    if !feed.active {
        feed.active = true;
        active.push(id);
    }
}
