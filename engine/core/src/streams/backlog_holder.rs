//! The slots of the backlog holder.

use iof_shm_ring::{CreateError, MAX_SLOTS, ReaderId};

use crate::ids::PageId;
use crate::resources::{PageSlots, Resources};

/// The slots of the backlog holder, which reads the streams that no registration reads.
pub(crate) struct BacklogHolder {
    slots: PageSlots,
    /// Why streams have no backlog, since the last report.
    refused: Vec<CreateError>,
}

impl BacklogHolder {
    pub(crate) fn new() -> BacklogHolder {
        BacklogHolder { slots: PageSlots::new(PageId::BacklogHolder, MAX_SLOTS), refused: Vec::new() }
    }

    pub(crate) fn page(&self) -> PageId {
        self.slots.page()
    }

    /// Takes a slot. Returns `None` if all slots are taken or too little memory is left.
    pub(crate) fn take(&mut self, resources: &dyn Resources) -> Option<ReaderId> {
        self.slots.take(resources).map_err(|error| self.refused.push(error)).ok()
    }

    /// Returns a slot.
    pub(crate) fn put_back(&mut self, id: ReaderId) {
        self.slots.put_back(id);
    }

    /// Removes and returns the reasons why slots were refused.
    pub(crate) fn take_refused(&mut self) -> Vec<CreateError> {
        std::mem::take(&mut self.refused)
    }
}
