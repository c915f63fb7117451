//! The table of pushes under way, and of those that wait for their job's ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_capture::PushId;
use iof_proto::Proc;
#[cfg(feature = "simulation")]
use iof_proto::{Failure, PushGranted, PushReport};

use crate::core::client::Client;
use crate::core::ids::PeerId;
use crate::core::push::{Deferred, Push};

/// All pushes, by their ids.
#[derive(Default)]
pub(super) struct Pushes {
    by_id: BTreeMap<PushId, Push>,
    /// Pushes that wait until all ranks of their job are started.
    deferred: Vec<Deferred>,
    next: u64,
    /// The tools whose stdin the host does not take at present.
    flow: StdinFlow,
    #[cfg(feature = "simulation")]
    pub(super) record: PushRecord,
}

/// The answer to a request to push.
#[cfg(feature = "simulation")]
pub(crate) type PushResult = Result<(PushId, PushGranted), Failure>;

/// What was answered and reported since a simulator has taken this record.
#[cfg(feature = "simulation")]
#[derive(Default)]
pub(crate) struct PushRecord {
    /// The answers to requests, each with the tool and its number for the request.
    pub answers: Vec<(PeerId, u32, PushResult)>,
    /// The reports of pushes that have ended, including those whose tools have disconnected.
    pub reports: Vec<(PushId, PushReport)>,
}

/// Whether the host takes stdin at present.
#[derive(Default)]
struct StdinFlow {
    all_paused: bool,
    paused: BTreeSet<Proc>,
}

impl Pushes {
    /// Returns an id that no push has had.
    pub(super) fn next_id(&mut self) -> PushId {
        let id = PushId(self.next);
        self.next = self.next.saturating_add(1);
        id
    }

    /// Returns whether the host takes no stdin of `source` at present.
    pub(super) fn is_paused(&self, source: &Proc) -> bool {
        self.flow.all_paused || self.flow.paused.contains(source)
    }

    /// Notes that the host takes stdin of `source`, or of all tools, no more (`paused`) or again. A
    /// resumption of all tools includes those that were paused by name.
    pub(super) fn set_flow(&mut self, source: Option<Proc>, paused: bool) {
        match (source, paused) {
            (Some(source), true) => drop(self.flow.paused.insert(source)),
            (Some(source), false) => drop(self.flow.paused.remove(&source)),
            (None, true) => self.flow.all_paused = true,
            (None, false) => self.flow = StdinFlow::default(),
        }
    }

    /// Returns whether tools are paused by name.
    pub(super) fn has_paused(&self) -> bool {
        !self.flow.paused.is_empty()
    }

    /// Forgets the tools paused by name for which `keep` returns `false`.
    pub(super) fn retain_paused(&mut self, keep: impl Fn(&Proc) -> bool) {
        self.flow.paused.retain(keep);
    }

    pub(super) fn get(&self, id: &PushId) -> Option<&Push> {
        self.by_id.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &PushId) -> Option<&mut Push> {
        self.by_id.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PushId, &Push)> {
        self.by_id.iter().map(|(id, push)| (*id, push))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PushId, &mut Push)> {
        self.by_id.iter_mut().map(|(id, push)| (*id, push))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Push> {
        self.by_id.values()
    }

    pub(super) fn insert(&mut self, id: PushId, push: Push) {
        self.by_id.insert(id, push);
    }

    pub(super) fn remove(&mut self, id: PushId) -> Option<Push> {
        self.by_id.remove(&id)
    }

    /// Keeps a request until the ranks of its job are started.
    pub(super) fn defer(&mut self, request: Deferred) {
        self.deferred.push(request);
    }

    /// Returns the process and the size of the inlet, in bytes, of each push, including those of
    /// deferred requests. The process is `None` for the embedder's own.
    pub(super) fn inlets(&self) -> impl Iterator<Item = (Option<Client>, u64)> {
        let begun = self.by_id.values().map(|push| (push.client(), push.capacity()));
        begun.chain(self.deferred.iter().map(|deferred| (deferred.client, deferred.capacity)))
    }

    /// Returns the deferred requests.
    #[cfg(feature = "simulation")]
    pub(super) fn deferred(&self) -> impl Iterator<Item = &Deferred> {
        self.deferred.iter()
    }

    /// Returns the number of deferred requests of a tool.
    pub(super) fn deferred_of(&self, peer_id: PeerId) -> usize {
        self.deferred.iter().filter(|deferred| deferred.peer_id == peer_id).count()
    }

    /// Removes and returns all deferred requests.
    pub(super) fn take_deferred(&mut self) -> Vec<Deferred> {
        mem::take(&mut self.deferred)
    }

    /// Drops the deferred requests of a tool that has disconnected.
    pub(super) fn forget(&mut self, peer_id: PeerId) {
        self.deferred.retain(|deferred| deferred.peer_id != peer_id);
    }
}
