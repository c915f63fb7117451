//! The table of streams, and the deliveries to those without a pipe.

use std::collections::BTreeMap;

use iof_capture::{SourceId, StreamStep};
use iof_shm_ring::{CreateError, Start};

use crate::count::Count;
use crate::ids::{PageId, PeerId};
use crate::resources::Resources;
use crate::streams::backlog_holder::BacklogHolder;
use crate::streams::delivery::DeliveryState;
use crate::streams::state::StreamState;
use crate::upcall::TakenCallback;

/// All streams, by their ids.
pub struct StreamTable {
    by_id: BTreeMap<SourceId, StreamState>,
    /// The deliveries of those streams that deliveries fill.
    deliveries: BTreeMap<SourceId, DeliveryState>,
    backlog_holder: BacklogHolder,
    next: u64,
}

impl StreamTable {
    pub(crate) fn new() -> StreamTable {
        let backlog_holder = BacklogHolder::new();
        StreamTable { by_id: BTreeMap::new(), deliveries: BTreeMap::new(), backlog_holder, next: 0 }
    }

    /// Returns an id that no stream has had.
    pub(crate) fn next_id(&mut self) -> SourceId {
        let id = SourceId(self.next);
        self.next.raise(1);
        id
    }

    /// Returns a stream.
    pub fn get(&self, source: &SourceId) -> Option<&StreamState> {
        self.by_id.get(source)
    }

    pub(crate) fn get_mut(&mut self, source: &SourceId) -> Option<&mut StreamState> {
        self.by_id.get_mut(source)
    }

    /// Returns all streams, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&SourceId, &StreamState)> {
        self.by_id.iter()
    }

    /// Notes that registration `handler` of `peer_id` (all, if `None`) has ended, so it misses
    /// nothing any more.
    pub(crate) fn registration_ended(&mut self, peer_id: PeerId, handler: Option<u32>) {
        self.by_id.values_mut().for_each(|stream| stream.registration_ended(peer_id, handler));
    }

    /// Returns whether no stream is left, and no delivery of one.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.deliveries.is_empty()
    }

    /// Adds a stream. Returns the steps that follow after its first readers are attached.
    pub(crate) fn add(
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
    pub(crate) fn remove(&mut self, source: SourceId) -> Option<StreamState> {
        self.deliveries.remove(&source);
        self.by_id.remove(&source)
    }

    /// Returns the steps that follow after readers of a stream have joined or left.
    pub(crate) fn changes(&mut self, source: SourceId, resources: &dyn Resources) -> Vec<StreamStep<PageId>> {
        let Some(stream) = self.by_id.get_mut(&source) else { absent!("stream", return Vec::new()) };
        stream.change(source, (&mut self.backlog_holder, resources), Start::Now)
    }

    /// Returns the steps that follow after a reader could not join a stream. It has read nothing,
    /// so a backlog begins with the oldest byte.
    pub(crate) fn changes_without_join(
        &mut self,
        source: SourceId,
        resources: &dyn Resources,
    ) -> Vec<StreamStep<PageId>> {
        let Some(stream) = self.by_id.get_mut(&source) else { absent!("stream", return Vec::new()) };
        stream.change(source, (&mut self.backlog_holder, resources), Start::Oldest)
    }

    /// Removes and returns the reasons why streams have no backlog.
    pub(crate) fn take_refused(&mut self) -> Vec<CreateError> {
        self.backlog_holder.take_refused()
    }

    /// Notes that deliveries fill a stream. Returns them: none yet.
    pub(crate) fn open_delivery(&mut self, source: SourceId) -> &mut DeliveryState {
        self.deliveries.entry(source).or_default()
    }

    /// Returns the deliveries to a stream; `None` if none fill it, or none can any more.
    pub(crate) fn delivery(&mut self, source: SourceId) -> Option<&mut DeliveryState> {
        self.deliveries.get_mut(&source)
    }

    /// Notes that no delivery to a stream can follow.
    pub(crate) fn close_delivery(&mut self, source: SourceId) {
        self.deliveries.remove(&source);
    }

    /// Removes and returns the callbacks of all deliveries that were not reported as taken.
    pub(crate) fn take_callbacks(&mut self) -> Vec<TakenCallback> {
        self.deliveries.values_mut().flat_map(|delivery| std::iter::from_fn(|| delivery.pop())).collect()
    }
}
