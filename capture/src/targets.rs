//! All targets, and the area through which they hear of news: what a tool has, on the capture thread.

use std::collections::HashMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use iof_shm_ring::{Area, Reader, Ringer};

use crate::event::{Event, FeedEnd, TargetId};
use crate::slots::Slots;
use crate::target::Target;

/// The targets by number, by name and by slot.
pub(crate) struct Targets {
    area: Arc<Area>,
    /// Of the capture's own bell, which is also the area's.
    ringer: Arc<Ringer>,
    targets: Slots<Target>,
    by_id: HashMap<TargetId, usize>,
    by_slot: HashMap<u32, usize>,
    /// The slots that were ever used lie below.
    slots: u32,
}

impl Targets {
    pub(crate) fn new(area: Arc<Area>, ringer: Arc<Ringer>) -> Targets {
        Targets {
            area,
            ringer,
            targets: Slots::default(),
            by_id: HashMap::new(),
            by_slot: HashMap::new(),
            slots: 0,
        }
    }

    pub(crate) fn add(&mut self, id: TargetId, pipe: OwnedFd, reader: Reader) -> usize {
        let at = self.targets.insert(Target::new(id, pipe, reader));
        self.by_id.insert(id, at);
        self.sit_down(at);
        at
    }

    /// Takes note of the slot of a target.
    pub(crate) fn sit_down(&mut self, at: usize) {
        let Some(slot) = self.targets.get(at).map(|target| target.reader().slot()) else { return };
        self.by_slot.insert(slot, at);
        self.slots = self.slots.max(slot.saturating_add(1));
    }

    /// Forgets the slot of a target, which is about to get another one or to go.
    pub(crate) fn stand_up(&mut self, at: usize) {
        if let Some(target) = self.targets.get(at) {
            self.by_slot.remove(&target.reader().slot());
        }
    }

    pub(crate) fn find(&self, id: TargetId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.targets.numbers()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Target> {
        self.targets.get_mut(at)
    }

    /// Closes the pipe of a target that has nothing in flight and lets its slot go; gives what is to be reported.
    pub(crate) fn end(&mut self, at: usize, end: FeedEnd) -> Option<Event> {
        self.stand_up(at);
        let target = self.targets.remove(at)?;
        self.by_id.remove(&target.id());
        let reader = target.reader();
        Some(Event::Fed { target: target.id(), delivered: reader.delivered(), lost: reader.lost(), end })
    }

    /// The targets that had news since the last call.
    pub(crate) fn take_news(&self) -> Vec<usize> {
        let mut news = Vec::new();
        self.area.take_ready(self.slots, |slot| news.extend(self.by_slot.get(&slot)));
        news
    }

    /// Has the bell ring for news, also for such that came since [`Targets::take_news`].
    pub(crate) fn arm(&self) {
        if !self.is_empty() && !self.area.arm(self.slots) {
            self.ringer.ring();
        }
    }

    /// No need to ring: we are awake.
    pub(crate) fn disarm(&self) {
        if !self.is_empty() {
            self.area.disarm();
        }
    }

    /// Leaves every ring mapped, and held, for good.
    pub(crate) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.targets));
    }
}
