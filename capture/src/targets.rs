//! All targets and all pushes, by number and by name.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use iof_shm_ring::Inlet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::event::{Event, PushEnd, PushId, TargetId};
use crate::push::Push;
use crate::slots::Slots;
use crate::target::{Next, Target};

/// The targets, and what is fed to them.
#[derive(Default)]
pub(crate) struct Targets {
    targets: Slots<Target>,
    pushes: Slots<Push>,
    by_id: HashMap<TargetId, usize>,
    by_push: HashMap<PushId, usize>,
}

/// A push's slowest targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowTargets {
    /// Bytes that all targets have taken.
    pub position: u64,
    /// Who has taken no more than that, though there is more.
    pub targets: Vec<SlowTarget>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowTarget {
    /// Who.
    pub target: TargetId,
    /// Whose turn it is there. If it is the lagging push itself, the target does not read;
    /// otherwise that push came before and is not over.
    pub turn: PushId,
}

impl Targets {
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

    /// What to do for a target now.
    pub(crate) fn next(&mut self, index: usize) -> Next<'_> {
        self.targets.get_mut(index).map_or(Next::Nothing, |target| target.next(index, &self.pushes))
    }

    /// Puts a push behind what its targets have to take before; gives what is to be reported of
    /// those that are not there.
    pub(crate) fn begin(
        &mut self,
        id: PushId,
        inlet: Arc<Inlet>,
        closes: bool,
        targets: &[TargetId],
    ) -> Vec<Event> {
        // Who is named twice has one turn.
        let targets: BTreeSet<TargetId> = targets.iter().copied().collect();
        let found: Vec<usize> = targets.iter().filter_map(|target| self.find(*target)).collect();
        let push = self.pushes.insert(Push::new(id, inlet, closes, &found));
        self.by_push.insert(id, push);
        for index in &found {
            if let Some(target) = self.targets.get_mut(*index) {
                target.enqueue(push);
            }
        }
        let gone = targets.iter().filter(|target| self.find(**target).is_none());
        let fed =
            |target: &TargetId| Event::Fed { push: id, target: *target, delivered: 0, end: PushEnd::Closed };
        let mut events: Vec<Event> = gone.map(fed).collect();
        events.extend(self.end_push_if_done(push));
        events
    }

    /// Ends the turn of the first push at a target, of which nothing may be in flight; gives what
    /// is to be reported.
    pub(crate) fn end_turn(&mut self, index: usize, end: PushEnd) -> Vec<Event> {
        let Some(target) = self.targets.get_mut(index) else { return Vec::new() };
        let (id, Some(turn)) = (target.id(), target.turn_over()) else { return Vec::new() };
        let Some(push) = self.pushes.get_mut(turn) else { return Vec::new() };
        let delivered = push.remove_target(index);
        let mut events: Vec<Event> = self.take_credit(turn).into_iter().collect();
        if let Some(push) = self.pushes.get(turn) {
            events.push(Event::Fed { push: push.id(), target: id, delivered, end });
        }
        events.extend(self.end_push_if_done(turn));
        events
    }

    /// Closes the pipe of a target that has nothing in flight; gives what is to be reported. The
    /// first push ends so, and those behind it find it closed.
    pub(crate) fn end(&mut self, index: usize, end: PushEnd) -> Vec<Event> {
        let mut events = self.end_turn(index, end);
        while self.targets.get(index).is_some_and(|target| target.turn().is_some()) {
            events.extend(self.end_turn(index, PushEnd::Closed));
        }
        if let Some(target) = self.targets.remove(index) {
            self.by_id.remove(&target.id());
            events.push(Event::Shut { target: target.id() });
        }
        events
    }

    /// What a push's pusher is to be told of room, if anything.
    pub(crate) fn take_credit(&mut self, push: usize) -> Option<Event> {
        let push = self.pushes.get_mut(push)?;
        push.take_credit().map(|position| Event::Freed { push: push.id(), position })
    }

    fn end_push_if_done(&mut self, push: usize) -> Option<Event> {
        let id = self.pushes.get(push).filter(|push| push.is_done())?.id();
        self.pushes.remove(push);
        self.by_push.remove(&id);
        Some(Event::PushOver { push: id })
    }

    /// Who holds a push back.
    pub(crate) fn lagging(&self, id: PushId) -> Option<SlowTargets> {
        let number = self.find_push(id)?;
        let push = self.pushes.get(number)?;
        let position = push.freed();
        let laggard = |index: usize| {
            let target = self.targets.get(index)?;
            let turn = self.pushes.get(target.turn()?)?.id();
            Some(SlowTarget { target: target.id(), turn })
        };
        Some(SlowTargets { position, targets: push.behind(position).filter_map(laggard).collect() })
    }

    /// Whether a target can be fed: it is there, and somebody has the other end of its pipe.
    pub(crate) fn takes(&self, id: TargetId) -> bool {
        let target = self.find(id).and_then(|index| self.targets.get(index));
        target.is_some_and(|target| !is_broken(target.pipe()))
    }

    /// Leaves every inlet mapped for good.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.pushes));
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
