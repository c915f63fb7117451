//! All feeds of a tool: which of them may have something to read, and when held-back bytes are due.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;
use std::{fmt, mem};

use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_shm_ring::{Attached, ReaderId, ReaderPage};

use crate::direct::DirectItem;
use crate::session::feed::{Feed, StreamInfo};

/// The id of one stream of one registration of a tool. It may be reused once the stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(usize);

impl FeedId {
    /// Returns the id as a number, which is less than the largest number of streams that the tool
    /// has had at a time.
    pub fn index(self) -> usize {
        self.0
    }
}

/// The feeds that have not ended.
#[derive(Default)]
pub struct Feeds {
    feeds: Vec<Option<Feed>>,
    /// The empty entries of `feeds`.
    free: Vec<FeedId>,
    /// The number of feeds that were added.
    added: u64,
    /// The feeds by the ids of their readers in their newest rings.
    by_reader: HashMap<ReaderId, FeedId>,
    /// The feeds without rings, which are of one job.
    direct: HashMap<(Rank, Channel), FeedId>,
    /// The number of slots from the first to the last one used so far.
    slots: u32,
    /// The feeds that may have something to read.
    active: Vec<FeedId>,
    /// When to check again the feeds that hold bytes back.
    due: BTreeSet<(Instant, FeedId)>,
}

impl fmt::Debug for Feeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeds").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The result of [`Feeds::settle`].
pub(crate) struct Settled {
    /// The readers of drained rings whose next generation must be requested from the engine.
    pub drained: Vec<ReaderId>,
    /// The feeds that were read to their end and have been removed.
    pub over: Vec<Feed>,
    /// The registrations of feeds that have delivered what was cached, once for each.
    pub current: Vec<u32>,
    /// The bytes consumed since the last call.
    pub read: u64,
    /// The largest part of a ring that a feed has consumed of them, in percent.
    pub percent: u64,
}

impl Feeds {
    pub(crate) fn get(&self, id: FeedId) -> Option<&Feed> {
        self.feeds.get(id.0).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: FeedId) -> Option<&mut Feed> {
        self.feeds.get_mut(id.0).and_then(Option::as_mut)
    }

    /// Returns the ids of the feeds.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FeedId> {
        (0..self.feeds.len()).map(FeedId).filter(|id| self.get(*id).is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the feeds that may have something to read and were not found quiet since.
    pub(crate) fn active(&self) -> &[FeedId] {
        &self.active
    }

    /// Returns the number of slots from the first to the last one in use.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Records that the engine uses the slot of `id`.
    pub(crate) fn use_slot(&mut self, id: ReaderId) {
        self.slots = self.slots.max(id.slots());
    }

    pub(crate) fn add(&mut self, feed: Feed) {
        self.added = self.added.saturating_add(1);
        let id = self.free.pop().unwrap_or_else(|| {
            self.feeds.push(None);
            FeedId(self.feeds.len().saturating_sub(1))
        });
        match feed.reader_id() {
            Some(reader) => self.by_reader.insert(reader, id),
            None => self.direct.insert((feed.source().rank, feed.channel()), id),
        };
        let Some(entry) = self.feeds.get_mut(id.0) else {
            return debug_assert!(false, "a feed has no place");
        };
        *entry = Some(feed);
        // Bytes may have been written before the engine could set this reader's ready bit.
        self.activate(id);
    }

    /// Adds an item of a stream of `nspace` without rings, which belongs to the registration
    /// `handler`.
    pub(crate) fn push_direct(
        &mut self,
        (handler, nspace): (u32, &Nspace),
        (rank, channel): (Rank, Channel),
        item: DirectItem,
    ) {
        if !self.direct.contains_key(&(rank, channel)) {
            let source = Proc { nspace: nspace.clone(), rank };
            self.add(Feed::direct(handler, StreamInfo { source, channel, logged: false, run: 0 }));
        }
        let id = self.direct.get(&(rank, channel)).copied();
        let Some((id, feed)) = id.and_then(|id| Some((id, self.get_mut(id)?))) else {
            return debug_assert!(false, "a stream without rings has no feed");
        };
        feed.push(item);
        self.activate(id);
    }

    /// Queues the next ring of the feed whose reader is `old`. Drops the ring if that feed has
    /// ended.
    pub(crate) fn next_generation(&mut self, old: ReaderId, next: Attached) {
        let Some(id) = self.by_reader.remove(&old) else { return };
        self.by_reader.insert(next.id, id);
        let Some(feed) = self.get_mut(id) else { return debug_assert!(false, "a reader has no feed") };
        feed.push_next(next);
        self.activate(id);
    }

    /// Activates the feeds whose ready bits are set in `page`, and clears these bits.
    pub(crate) fn take_ready(&mut self, page: &ReaderPage) {
        page.take_ready(self.slots, |reader| {
            if let Some(&id) = self.by_reader.get(&reader) {
                activate(&mut self.feeds, &mut self.active, id);
            }
        });
    }

    /// Activates the feeds that have held bytes back until their deadline.
    pub(crate) fn take_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(time, _)| *time <= now) {
            self.due.pop_first();
            if let Some(feed) = self.get_mut(id) {
                feed.due = None;
            }
            self.activate(id);
        }
    }

    /// Returns the earliest of these deadlines.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Removes feeds that were read to their end, and deactivates those that were found quiet or
    /// deferred.
    pub(crate) fn settle(&mut self) -> Settled {
        let mut settled =
            Settled { drained: Vec::new(), over: Vec::new(), current: Vec::new(), read: 0, percent: 0 };
        let mut active = mem::take(&mut self.active);
        active.retain(|&id| {
            let Some(feed) = self.get_mut(id) else { return false };
            settled.drained.extend(feed.take_drained());
            settled.current.extend(feed.take_current().then_some(feed.handler()));
            let (read, percent) = feed.take_read();
            settled.read = settled.read.saturating_add(read);
            settled.percent = settled.percent.max(percent);
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

    /// Returns whether each active feed has bytes and nothing else to read.
    pub(crate) fn have_only_bytes(&self) -> bool {
        self.active.iter().all(|id| self.get(*id).is_some_and(Feed::has_only_bytes))
    }

    /// Deactivates all feeds: a step has consumed all bytes.
    pub(crate) fn settle_step(&mut self) {
        for id in mem::take(&mut self.active) {
            if let Some(feed) = self.get_mut(id) {
                // They do not count for the sleeps of the tool's owner.
                feed.take_read();
                feed.active = false;
            }
        }
    }

    fn note_due(&mut self, id: FeedId) {
        let Some(feed) = self.get_mut(id) else { return debug_assert!(false, "a quiet feed has ended") };
        let due = feed.deadline();
        let previous = mem::replace(&mut feed.due, due);
        if previous != due {
            if let Some(previous) = previous {
                self.due.remove(&(previous, id));
            }
            self.due.extend(due.map(|time| (time, id)));
        }
    }

    fn remove(&mut self, id: FeedId) -> Option<Feed> {
        let feed = self.feeds.get_mut(id.0)?.take()?;
        match feed.reader_id() {
            Some(reader) => self.by_reader.remove(&reader),
            None => self.direct.remove(&(feed.source().rank, feed.channel())),
        };
        if let Some(due) = feed.due {
            self.due.remove(&(due, id));
        }
        self.free.push(id);
        Some(feed)
    }

    /// Returns the number of feeds that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.by_reader.len().saturating_add(self.direct.len())
    }

    /// Returns the number of feeds so far.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    pub(crate) fn activate(&mut self, id: FeedId) {
        activate(&mut self.feeds, &mut self.active, id);
    }

    /// Activates all feeds of a registration.
    pub(crate) fn activate_all(&mut self, handler: u32) {
        self.for_each(|feed| feed.handler() == handler);
    }

    /// Notes that the rings have all that was cached for `handler`. If it `reports`, returns the number of feeds
    /// that have not delivered it yet: [`Settled::current`] reports each of them once.
    pub(crate) fn cached(&mut self, handler: u32, reports: bool) -> usize {
        let mut count = 0usize;
        self.for_each(|feed| {
            let matches = feed.handler() == handler;
            if matches {
                feed.find_lines();
                count = count.saturating_add(usize::from(reports && feed.mark()));
            }
            matches
        });
        count
    }

    /// Ends the feeds of `handler` at the present positions of their streams.
    pub(crate) fn flush(&mut self, handler: u32) {
        self.for_each(|feed| {
            let matches = feed.handler() == handler;
            if matches {
                feed.flush();
            }
            matches
        });
    }

    /// Records for every feed that the engine writes nothing any more.
    pub(crate) fn engine_gone(&mut self) {
        self.for_each(|feed| {
            feed.find_lines();
            feed.engine_gone();
            true
        });
    }

    /// Returns the number of bytes that the feeds of `handler` have not read in their present
    /// rings.
    #[cfg(feature = "test-utils")]
    pub(crate) fn unread(&self, handler: u32) -> u64 {
        let feeds = self.feeds.iter().flatten().filter(|feed| feed.handler() == handler);
        feeds.map(Feed::unread).sum()
    }

    /// Returns the rings of all feeds, those included that follow later.
    #[cfg(feature = "test-utils")]
    pub(crate) fn rings(&self) -> impl Iterator<Item = &iof_shm_ring::Ring> {
        self.feeds.iter().flatten().flat_map(Feed::rings)
    }

    /// Calls `change` with each feed, and activates those for which it returns true.
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
