//! The table of streams, and the deliveries to those without a pipe.

use std::collections::BTreeMap;

use iof_capture::{SourceId, StreamStep};
use iof_shm_ring::{CreateError, Start};

use crate::core::backlog_holder::BacklogHolder;
use crate::core::delivery::Delivery;
use crate::core::ids::{PageId, PeerId};
use crate::core::resources::Resources;
use crate::core::stream_state::StreamState;
use crate::core::upcall::TakenCallback;

/// All streams, by their ids.
pub(crate) struct StreamTable {
    by_id: BTreeMap<SourceId, StreamState>,
    /// The deliveries of those streams that deliveries fill.
    deliveries: BTreeMap<SourceId, Delivery>,
    backlog_holder: BacklogHolder,
    next: u64,
}

impl StreamTable {
    pub(super) fn new() -> StreamTable {
        let backlog_holder = BacklogHolder::new();
        StreamTable { by_id: BTreeMap::new(), deliveries: BTreeMap::new(), backlog_holder, next: 0 }
    }

    /// Returns an id that no stream has had.
    pub(super) fn next_id(&mut self) -> SourceId {
        let id = SourceId(self.next);
        self.next = self.next.saturating_add(1);
        id
    }

    pub(crate) fn get(&self, source: &SourceId) -> Option<&StreamState> {
        self.by_id.get(source)
    }

    pub(super) fn get_mut(&mut self, source: &SourceId) -> Option<&mut StreamState> {
        self.by_id.get_mut(source)
    }

    /// Returns all streams, in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SourceId, &StreamState)> {
        self.by_id.iter()
    }

    /// Notes that registration `handler` of `peer_id` (all, if `None`) has ended, so it misses
    /// nothing any more.
    pub(super) fn registration_ended(&mut self, peer_id: PeerId, handler: Option<u32>) {
        self.by_id.values_mut().for_each(|stream| stream.registration_ended(peer_id, handler));
    }

    /// Returns whether no stream is left, and no delivery of one.
    #[cfg(feature = "simulation")]
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.deliveries.is_empty()
    }

    /// Adds a stream. Returns the steps that follow after its first readers are attached.
    pub(super) fn add(
        &mut self,
        source: SourceId,
        mut stream: StreamState,
        resources: &dyn Resources,
    ) -> Vec<StreamStep<PageId>> {
        let steps = stream.change(source, (&mut self.backlog_holder, resources), Start::Oldest);
        self.by_id.insert(source, stream);
        steps
    }

    /// Removes a stream, with its deliveries.
    pub(super) fn remove(&mut self, source: SourceId) -> Option<StreamState> {
        self.deliveries.remove(&source);
        self.by_id.remove(&source)
    }

    /// Returns the steps that follow after readers of a stream have joined or left.
    pub(super) fn changes(&mut self, source: SourceId, resources: &dyn Resources) -> Vec<StreamStep<PageId>> {
        let Some(stream) = self.by_id.get_mut(&source) else { return Vec::new() };
        stream.change(source, (&mut self.backlog_holder, resources), Start::Now)
    }

    /// Returns the steps that follow after a reader could not join a stream. It has read nothing,
    /// so a backlog begins with the oldest byte.
    pub(super) fn changes_without_join(
        &mut self,
        source: SourceId,
        resources: &dyn Resources,
    ) -> Vec<StreamStep<PageId>> {
        let Some(stream) = self.by_id.get_mut(&source) else { return Vec::new() };
        stream.change(source, (&mut self.backlog_holder, resources), Start::Oldest)
    }

    /// Removes and returns the reasons why streams have no backlog.
    pub(super) fn take_refused(&mut self) -> Vec<CreateError> {
        self.backlog_holder.take_refused()
    }

    /// Notes that deliveries fill a stream.
    pub(crate) fn open_delivery(&mut self, source: SourceId) {
        self.deliveries.insert(source, Delivery::default());
    }

    /// Returns the deliveries to a stream; `None` if none fill it, or none can any more.
    pub(crate) fn delivery(&mut self, source: SourceId) -> Option<&mut Delivery> {
        self.deliveries.get_mut(&source)
    }

    /// Notes that no delivery to a stream can follow.
    pub(super) fn close_delivery(&mut self, source: SourceId) {
        self.deliveries.remove(&source);
    }

    /// Removes and returns the callbacks of all deliveries that were not reported as taken.
    pub(super) fn take_callbacks(&mut self) -> Vec<TakenCallback> {
        self.deliveries.values_mut().flat_map(|delivery| std::iter::from_fn(|| delivery.pop())).collect()
    }
}
