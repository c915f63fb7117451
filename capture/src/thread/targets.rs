//! All targets and all pushes, by index and by id.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::Inlet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::messages::event::{Event, PushEnd, PushId, TargetId};
use crate::messages::request::{SlowTarget, SlowTargets};
use crate::slots::Slab;
use crate::target::push::Push;
use crate::target::{Target, TargetAction};

/// The targets, and the pushes that feed them.
#[derive(Default)]
pub(crate) struct Targets {
    targets: Slab<Target>,
    pushes: Slab<Push>,
    by_id: HashMap<TargetId, usize>,
    by_push: HashMap<PushId, usize>,
}

impl Targets {
    /// Adds a target and returns its index.
    pub(crate) fn add(&mut self, id: TargetId, pipe: OwnedFd) -> usize {
        let index = self.targets.insert(Target::new(id, pipe));
        self.by_id.insert(id, index);
        index
    }

    pub(crate) fn find(&self, id: TargetId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn find_push(&self, id: PushId) -> Option<usize> {
        self.by_push.get(&id).copied()
    }

    pub(crate) fn indices(&self) -> Vec<usize> {
        self.targets.indices()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Target> {
        self.targets.get_mut(index)
    }

    pub(crate) fn push_mut(&mut self, push: usize) -> Option<&mut Push> {
        self.pushes.get_mut(push)
    }

    /// Returns the next action for a target.
    pub(crate) fn next(&mut self, index: usize) -> TargetAction<'_> {
        self.targets.get_mut(index).map_or(TargetAction::Nothing, |target| target.next(index, &self.pushes))
    }

    /// Adds a push and enqueues it at its targets. Returns the events for targets that do not
    /// exist.
    pub(crate) fn begin(
        &mut self,
        id: PushId,
        inlet: Arc<Inlet>,
        closes: bool,
        targets: &[TargetId],
    ) -> Vec<Event> {
        // A set, so that a target that is named twice has one turn.
        let targets: BTreeSet<TargetId> = targets.iter().copied().collect();
        let found: Vec<usize> = targets.iter().filter_map(|target| self.find(*target)).collect();
        let push = self.pushes.insert(Push::new(id, inlet, closes, &found));
        self.by_push.insert(id, push);
        for index in &found {
            let Some(target) = self.targets.get_mut(*index) else { absent!("target", continue) };
            target.enqueue(push);
        }
        let missing = targets.iter().filter(|target| self.find(**target).is_none());
        let fed =
            |target: &TargetId| Event::Fed { push: id, target: *target, delivered: 0, end: PushEnd::Closed };
        let mut events: Vec<Event> = missing.map(fed).collect();
        events.extend(self.end_push_if_done(push));
        events
    }

    /// Ends the turn of the first push at a target, and returns the events. The target may have no
    /// request in flight.
    pub(crate) fn end_turn(&mut self, index: usize, end: PushEnd) -> Vec<Event> {
        let Some(target) = self.targets.get_mut(index) else { absent!("target", return Vec::new()) };
        let (id, Some(turn)) = (target.id(), target.turn_over()) else { return Vec::new() };
        let Some(push) = self.pushes.get_mut(turn) else { absent!("push", return Vec::new()) };
        let fed = Event::Fed { push: push.id(), target: id, delivered: push.remove_target(index), end };
        let mut events: Vec<Event> = self.take_credit(turn).into_iter().collect();
        events.push(fed);
        events.extend(self.end_push_if_done(turn));
        events
    }

    /// Closes the pipe of a target that has nothing in flight, and returns the events. The first
    /// push's turn ends with `end`, that of the pushes after it with [`PushEnd::Closed`].
    pub(crate) fn end(&mut self, index: usize, end: PushEnd) -> Vec<Event> {
        let mut events = self.end_turn(index, end);
        while self.targets.get(index).is_some_and(|target| target.turn().is_some()) {
            events.extend(self.end_turn(index, PushEnd::Closed));
        }
        let Some(target) = self.targets.remove(index) else { absent!("target", return events) };
        self.by_id.remove(&target.id());
        events.push(Event::Shut { target: target.id() });
        events
    }

    /// Returns the event that reports free room in a push's inlet, if one is due.
    pub(crate) fn take_credit(&mut self, push: usize) -> Option<Event> {
        let push = self.pushes.get_mut(push)?;
        push.take_credit().map(|position| Event::Freed { push: push.id(), position })
    }

    /// Removes a push without remaining targets, and returns the event.
    fn end_push_if_done(&mut self, push: usize) -> Option<Event> {
        let id = self.pushes.get(push).filter(|push| push.is_done())?.id();
        self.pushes.remove(push);
        self.by_push.remove(&id);
        Some(Event::PushOver { push: id })
    }

    /// Returns the targets that hold a push back, see
    /// [`Streams::lagging`](crate::Streams::lagging).
    pub(crate) fn lagging(&self, id: PushId) -> Option<SlowTargets> {
        let push = self.pushes.get(self.find_push(id)?)?;
        let position = push.freed();
        let slow_target = |index: usize| {
            let target = self.targets.get(index)?;
            let turn = self.pushes.get(target.turn()?)?.id();
            Some(SlowTarget { target: target.id(), turn })
        };
        Some(SlowTargets { position, targets: push.behind(position).filter_map(slow_target).collect() })
    }

    /// Returns whether a target can be fed: it exists, and its pipe has a reader.
    pub(crate) fn takes(&self, id: TargetId) -> bool {
        let target = self.find(id).and_then(|index| self.targets.get(index));
        target.is_some_and(|target| !is_broken(target.pipe()))
    }

    /// Leaks all targets and pushes, so that every inlet stays mapped for the rest of the process.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.pushes));
        mem::forget(mem::take(&mut self.targets));
    }
}

/// Returns whether `pipe` has no reader.
fn is_broken(pipe: BorrowedFd<'_>) -> bool {
    // poll(2) reports errors without being asked for them.
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0)
}

#[cfg(test)]
mod tests;
