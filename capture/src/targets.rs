//! All targets and all feeds, by number and by name.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::Inlet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::event::{Event, FeedEnd, FeedId, TargetId};
use crate::feed::Feed;
use crate::slots::Slots;
use crate::target::{Next, Target};

/// The targets, and what is fed to them.
#[derive(Default)]
pub(crate) struct Targets {
    targets: Slots<Target>,
    feeds: Slots<Feed>,
    by_id: HashMap<TargetId, usize>,
    by_feed: HashMap<FeedId, usize>,
}

/// A feed's slowest targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lagging {
    /// Bytes that all targets have taken.
    pub position: u64,
    /// Who has taken no more than that, though there is more.
    pub targets: Vec<Laggard>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laggard {
    /// Who.
    pub target: TargetId,
    /// It does not read. Otherwise another feed, which came before, is not over there.
    pub its_turn: bool,
}

impl Targets {
    pub(crate) fn add(&mut self, id: TargetId, pipe: OwnedFd) -> usize {
        let at = self.targets.insert(Target::new(id, pipe));
        self.by_id.insert(id, at);
        at
    }

    pub(crate) fn find(&self, id: TargetId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn find_feed(&self, id: FeedId) -> Option<usize> {
        self.by_feed.get(&id).copied()
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.targets.numbers()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Target> {
        self.targets.get_mut(at)
    }

    pub(crate) fn feed_mut(&mut self, feed: usize) -> Option<&mut Feed> {
        self.feeds.get_mut(feed)
    }

    /// What to do for a target now.
    pub(crate) fn next(&mut self, at: usize) -> Next<'_> {
        self.targets.get_mut(at).map_or(Next::Nothing, |target| target.next(at, &self.feeds))
    }

    /// Puts a feed behind what its targets have to take before; gives what is to be reported of those that are not there.
    pub(crate) fn begin(
        &mut self,
        id: FeedId,
        inlet: Arc<Inlet>,
        closes: bool,
        targets: &[TargetId],
    ) -> Vec<Event> {
        // Who is named twice has one turn.
        let targets: BTreeSet<TargetId> = targets.iter().copied().collect();
        let found: Vec<usize> = targets.iter().filter_map(|target| self.find(*target)).collect();
        let feed = self.feeds.insert(Feed::new(id, inlet, closes, &found));
        self.by_feed.insert(id, feed);
        for at in &found {
            if let Some(target) = self.targets.get_mut(*at) {
                target.enqueue(feed);
            }
        }
        let gone = targets.iter().filter(|target| self.find(**target).is_none());
        let fed =
            |target: &TargetId| Event::Fed { feed: id, target: *target, delivered: 0, end: FeedEnd::Closed };
        let mut events: Vec<Event> = gone.map(fed).collect();
        events.extend(self.end_feed_if_done(feed));
        events
    }

    /// Ends the turn of the first feed at a target, of which nothing may be in flight; gives what is to be reported.
    pub(crate) fn end_turn(&mut self, at: usize, end: FeedEnd) -> Vec<Event> {
        let Some(target) = self.targets.get_mut(at) else { return Vec::new() };
        let (id, Some(turn)) = (target.id(), target.turn_over()) else { return Vec::new() };
        let Some(feed) = self.feeds.get_mut(turn) else { return Vec::new() };
        let delivered = feed.leave(at);
        let mut events: Vec<Event> = self.news(turn).into_iter().collect();
        if let Some(feed) = self.feeds.get(turn) {
            events.push(Event::Fed { feed: feed.id(), target: id, delivered, end });
        }
        events.extend(self.end_feed_if_done(turn));
        events
    }

    /// Closes the pipe of a target that has nothing in flight; gives what is to be reported. The first feed ends so, and
    /// those behind it find it closed.
    pub(crate) fn end(&mut self, at: usize, end: FeedEnd) -> Vec<Event> {
        let mut events = self.end_turn(at, end);
        while self.targets.get(at).is_some_and(|target| target.turn().is_some()) {
            events.extend(self.end_turn(at, FeedEnd::Closed));
        }
        if let Some(target) = self.targets.remove(at) {
            self.by_id.remove(&target.id());
            events.push(Event::Shut { target: target.id() });
        }
        events
    }

    /// What a feed's pusher is to be told of room, if anything.
    pub(crate) fn news(&mut self, feed: usize) -> Option<Event> {
        let feed = self.feeds.get_mut(feed)?;
        feed.news().map(|position| Event::Freed { feed: feed.id(), position })
    }

    fn end_feed_if_done(&mut self, feed: usize) -> Option<Event> {
        let id = self.feeds.get(feed).filter(|feed| feed.is_done())?.id();
        self.feeds.remove(feed);
        self.by_feed.remove(&id);
        Some(Event::FeedOver { feed: id })
    }

    /// Who holds a feed back.
    pub(crate) fn lagging(&self, id: FeedId) -> Option<Lagging> {
        let number = self.find_feed(id)?;
        let feed = self.feeds.get(number)?;
        let position = feed.freed();
        let laggard = |at: usize| {
            let target = self.targets.get(at)?;
            Some(Laggard { target: target.id(), its_turn: target.turn() == Some(number) })
        };
        Some(Lagging { position, targets: feed.behind(position).filter_map(laggard).collect() })
    }

    /// Whether a target can be fed: it is there, and somebody has the other end of its pipe.
    pub(crate) fn takes(&self, id: TargetId) -> bool {
        let target = self.find(id).and_then(|at| self.targets.get(at));
        target.is_some_and(|target| !is_broken(target.pipe()))
    }

    /// Leaves every inlet mapped for good.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.feeds));
        mem::forget(mem::take(&mut self.targets));
    }
}

/// Whether nobody can read what is written to `pipe`.
fn is_broken(pipe: BorrowedFd<'_>) -> bool {
    // Errors are told without being asked for.
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0)
}

#[cfg(test)]
mod tests;
