//! The resources that the core needs of the driver at once.

use std::collections::{BTreeMap, VecDeque};

use iof_capture::{PushId, SourceId};
use iof_proto::{Failure, Nspace};
use iof_shm_ring::{CreateError, ReaderId, Slots, StreamConfig};

use crate::ids::{PageId, PeerId};

/// The memory that the engine shares with tools, and facts about this node. The driver holds what
/// is created here until the core queues the command that uses or drops it. No method blocks.
pub trait Resources: Send {
    /// Allocates the memory of a slot of a reader page.
    ///
    /// # Errors
    /// Too little memory is left.
    fn prepare_slot(&self, page: PageId, slot: ReaderId) -> Result<(), CreateError>;

    /// Creates the inlet of a push of `tool`. Returns its capacity, which may be rounded up.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn create_inlet(&self, push: PushId, tool: PeerId, capacity: u64) -> Result<u64, Failure>;

    /// Creates a stream of logged messages.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn create_log_stream(&self, source: SourceId, config: StreamConfig, label: &str) -> Result<(), Failure>;

    /// Creates a stream of a remote rank's output.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn create_delivered_stream(
        &self,
        source: SourceId,
        config: StreamConfig,
        label: &str,
    ) -> Result<(), CreateError>;

    /// Returns whether this node has a syslog now.
    fn has_syslog(&self) -> bool;
}

/// The slots of a reader page.
#[derive(Debug)]
pub(crate) struct PageSlots {
    page: PageId,
    slots: Slots,
    /// The slots that are reserved for streams of jobs whose ranks are being started.
    reserved: BTreeMap<Nspace, VecDeque<ReaderId>>,
}

impl PageSlots {
    /// Returns `limit` free slots of `page`.
    pub(crate) fn new(page: PageId, limit: usize) -> PageSlots {
        PageSlots { page, slots: Slots::new(limit), reserved: BTreeMap::new() }
    }

    pub(crate) fn page(&self) -> PageId {
        self.page
    }

    /// Takes a slot for one more reader.
    ///
    /// # Errors
    /// All slots are taken, or too little memory is left.
    pub(crate) fn take(&mut self, resources: &dyn Resources) -> Result<ReaderId, CreateError> {
        let id = self.slots.take().ok_or(CreateError::Slots)?;
        resources.prepare_slot(self.page, id).inspect_err(|_| self.slots.put_back(id))?;
        Ok(id)
    }

    /// Reserves a slot for a reader of a stream of `nspace` that is added later.
    ///
    /// # Errors
    /// As [`PageSlots::take`].
    pub(crate) fn reserve(&mut self, nspace: &Nspace, resources: &dyn Resources) -> Result<(), CreateError> {
        let id = self.take(resources)?;
        self.reserved.entry(nspace.clone()).or_default().push_back(id);
        Ok(())
    }

    /// Returns a slot that is reserved for the streams of `nspace`; `None` if none is left.
    pub(crate) fn take_reserved(&mut self, nspace: &Nspace) -> Option<ReaderId> {
        self.reserved.get_mut(nspace)?.pop_front()
    }

    /// Frees the slot that was reserved last for `nspace`.
    pub(crate) fn cancel_reservation(&mut self, nspace: &Nspace) {
        let last = self.reserved.get_mut(nspace).and_then(VecDeque::pop_back);
        last.into_iter().for_each(|id| self.slots.put_back(id));
    }

    /// Frees the slots that are still reserved for `nspace`.
    pub(crate) fn release_reserved(&mut self, nspace: &Nspace) {
        self.reserved.remove(nspace).into_iter().flatten().for_each(|id| self.slots.put_back(id));
    }

    /// Returns the slot of a reader that has stopped using it. Does nothing for a slot that is not
    /// taken.
    pub(crate) fn put_back(&mut self, id: ReaderId) {
        self.slots.put_back(id);
    }
}
