//! The table of pushes under way, and of those that wait for their job's ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use iof_capture::PushId;
use iof_proto::Proc;

use crate::clients::quotas::Charge;
use crate::count::Count;
use crate::ids::PeerId;
use crate::pushes::push::{Deferred, Push};

/// All pushes, by their ids.
#[derive(Default)]
pub struct Pushes {
    by_id: BTreeMap<PushId, Push>,
    /// Pushes that wait until all ranks of their job are started.
    deferred: Vec<Deferred>,
    next: u64,
    /// The tools whose stdin the host does not take at present.
    flow: StdinFlow,
}

/// The host's readiness to take stdin at present.
#[derive(Default)]
struct StdinFlow {
    all_paused: bool,
    paused: BTreeSet<Proc>,
}

impl Pushes {
    /// Returns an id that no push has had.
    pub(crate) fn next_id(&mut self) -> PushId {
        let id = PushId(self.next);
        self.next.raise(1);
        id
    }

    /// Returns whether the host takes no stdin of `source` at present.
    pub(crate) fn is_paused(&self, source: &Proc) -> bool {
        self.flow.all_paused || self.flow.paused.contains(source)
    }

    /// Notes that the host takes stdin of `source`, or of all tools, no more (`paused`) or again. A
    /// resumption of all tools includes those that were paused by name.
    pub(crate) fn set_flow(&mut self, source: Option<Proc>, paused: bool) {
        match (source, paused) {
            (Some(source), true) => drop(self.flow.paused.insert(source)),
            (Some(source), false) => drop(self.flow.paused.remove(&source)),
            (None, true) => self.flow.all_paused = true,
            (None, false) => self.flow = StdinFlow::default(),
        }
    }

    /// Returns whether tools are paused by name.
    pub(crate) fn has_paused(&self) -> bool {
        !self.flow.paused.is_empty()
    }

    /// Forgets the tools paused by name for which `keep` returns `false`.
    pub(crate) fn retain_paused(&mut self, keep: impl Fn(&Proc) -> bool) {
        self.flow.paused.retain(keep);
    }

    /// Returns a push.
    pub fn get(&self, id: &PushId) -> Option<&Push> {
        self.by_id.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &PushId) -> Option<&mut Push> {
        self.by_id.get_mut(id)
    }

    /// Returns all pushes with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (PushId, &Push)> {
        self.by_id.iter().map(|(id, push)| (*id, push))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PushId, &mut Push)> {
        self.by_id.iter_mut().map(|(id, push)| (*id, push))
    }

    /// Returns all pushes.
    pub fn values(&self) -> impl Iterator<Item = &Push> {
        self.by_id.values()
    }

    pub(crate) fn insert(&mut self, id: PushId, push: Push) {
        self.by_id.insert(id, push);
    }

    pub(crate) fn remove(&mut self, id: PushId) -> Option<Push> {
        self.by_id.remove(&id)
    }

    /// Keeps a request until the ranks of its job are started.
    pub(crate) fn defer(&mut self, request: Deferred) {
        self.deferred.push(request);
    }

    /// Returns the charges of all pushes, including those of deferred requests.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let deferred = self.deferred.iter().map(|deferred| &deferred.charge);
        self.by_id.values().map(|push| &push.charge).chain(deferred)
    }

    /// Returns the deferred requests.
    pub fn deferred(&self) -> impl Iterator<Item = &Deferred> {
        self.deferred.iter()
    }

    /// Removes and returns all deferred requests.
    pub(crate) fn take_deferred(&mut self) -> Vec<Deferred> {
        mem::take(&mut self.deferred)
    }

    /// Drops the deferred requests of a tool that has disconnected. Returns the charges.
    pub(crate) fn forget(&mut self, peer_id: PeerId) -> impl Iterator<Item = Charge> {
        let forgotten = self.deferred.extract_if(.., move |deferred| deferred.peer_id == peer_id);
        forgotten.map(|deferred| deferred.charge)
    }
}
