//! The table of tools, with an index of their registrations.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::Nspace;

use crate::ids::PeerId;
use crate::tools::peer::Peer;
use crate::tools::registration::{ByJob, Registration};

/// All connected tools.
pub struct Tools {
    peers: BTreeMap<PeerId, Peer>,
    /// The tools' registrations, by the jobs that they name.
    by_job: ByJob,
    next: PeerId,
}

impl Tools {
    /// Returns a table without tools. The first connection gets the number `first`.
    pub(crate) fn new(first: PeerId) -> Tools {
        Tools { peers: BTreeMap::new(), by_job: ByJob::default(), next: first }
    }

    /// Returns a number that no connection has had.
    pub(crate) fn next_id(&mut self) -> PeerId {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        id
    }

    /// Returns a tool.
    pub fn get(&self, id: &PeerId) -> Option<&Peer> {
        self.peers.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(id)
    }

    /// Returns the numbers of all tools, in the order in which they connected.
    pub(crate) fn ids(&self) -> Vec<PeerId> {
        self.peers.keys().copied().collect()
    }

    /// Returns all tools with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerId, &mut Peer)> {
        self.peers.iter_mut().map(|(id, peer)| (*id, peer))
    }

    /// Returns all tools.
    pub fn values(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// Adds a tool, without registrations.
    pub(crate) fn insert(&mut self, id: PeerId, peer: Peer) {
        self.peers.insert(id, peer);
    }

    /// Removes a tool and its registrations.
    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&id)?;
        for (handler, registration) in peer.registrations() {
            self.by_job.remove(id, handler, registration);
        }
        Some(peer)
    }

    /// Returns the number of entries of the index of registrations.
    pub fn indexed(&self) -> usize {
        self.by_job.len()
    }

    /// Removes all tools, because the engine ends.
    pub(crate) fn remove_all(&mut self) {
        self.by_job = ByJob::default();
        self.peers.clear();
    }

    /// Notes that what registrations for a job cover may have changed.
    pub(crate) fn note_change(&mut self, nspace: &Nspace) {
        self.by_job.note_change(nspace);
    }

    /// Returns whether what registrations for a job cover may have changed.
    pub(crate) fn is_changed(&self, nspace: &Nspace) -> bool {
        self.by_job.is_changed(nspace)
    }

    /// Removes and returns the jobs whose registrations have changed.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Nspace> {
        self.by_job.take_changed()
    }

    /// Returns the registrations that name `nspace`, in order.
    pub(crate) fn naming(&self, nspace: &Nspace) -> Vec<(PeerId, u32)> {
        self.by_job.naming(nspace)
    }

    /// Adds a registration of the connected tool `id`.
    pub(crate) fn add_registration(&mut self, id: PeerId, handler: u32, registration: Registration) {
        let Some(peer) = self.peers.get_mut(&id) else { absent!("tool", return) };
        self.by_job.add(id, handler, &registration);
        peer.add_registration(handler, registration);
    }

    /// Removes a registration. Returns `None` if the tool does not have this registration.
    pub(crate) fn remove_registration(&mut self, id: PeerId, handler: u32) -> Option<Registration> {
        let peer = self.peers.get_mut(&id).or_else(|| absent!("tool", None))?;
        let registration = peer.remove_registration(handler)?;
        self.by_job.remove(id, handler, &registration);
        Some(registration)
    }
}
