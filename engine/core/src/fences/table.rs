//! The fences that some nodes have entered, and others have not.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::{FencePurpose, Mpi, Rank};

use crate::clients::client::Requester;
use crate::clients::quotas::Charge;
use crate::jobs::nodes::{NodeId, NodeKey};

/// The key of a fence among those that are open.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FenceKey {
    /// The jobs by their numbers, with the ranks that take part; none for all of a job.
    pub members: BTreeMap<u64, Vec<Rank>>,
    pub purpose: FencePurpose,
    /// The name of the group that they construct, if they do.
    pub group: Option<String>,
}

/// The values with which a node has entered a fence.
pub(crate) struct NodeEntry {
    pub requester: Requester,
    pub data: Vec<u8>,
    pub charge: Charge,
}

/// A fence that a node has entered.
pub(crate) struct Fence {
    mpi: Mpi,
    /// The nodes that have not entered.
    awaited: BTreeSet<NodeKey>,
    /// Those that have.
    pub entries: BTreeMap<NodeKey, NodeEntry>,
    /// A node wants a number for the group.
    pub with_context: bool,
}

/// The reason why a node can't enter a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterError {
    /// It has entered already, or none of its ranks takes part.
    NotAwaited,
    /// Another node has entered by another protocol.
    Protocol,
}

/// The fences that some nodes have entered, and others have not.
#[derive(Default)]
pub struct Fences {
    open: BTreeMap<FenceKey, Fence>,
    /// The requests to nodes for what their ranks have put, by their numbers.
    modexes: BTreeMap<u64, Modex>,
    last_modex: u64,
}

/// A request for what a rank of a node has put.
pub(crate) struct Modex {
    pub owner: NodeKey,
    pub requester: Requester,
    pub charge: Charge,
}

impl Fences {
    /// Returns the nodes that a fence waits for, if a node has entered it.
    pub(crate) fn awaited(&self, key: &FenceKey) -> Option<&BTreeSet<NodeKey>> {
        self.open.get(key).map(|fence| &fence.awaited)
    }

    /// Returns the nodes that the fences of a job wait for.
    pub(crate) fn awaited_by(&self, run: u64) -> BTreeSet<NodeKey> {
        let of_job = self.open.iter().filter(|(key, _)| key.members.contains_key(&run));
        of_job.flat_map(|(_, fence)| &fence.awaited).copied().collect()
    }

    /// Opens a fence that waits for these nodes.
    pub(crate) fn open(&mut self, key: FenceKey, mpi: Mpi, awaited: BTreeSet<NodeKey>) {
        self.open.insert(key, Fence { mpi, awaited, entries: BTreeMap::new(), with_context: false });
    }

    /// Checks that a node can enter a fence that is open.
    pub(crate) fn check(&self, key: &FenceKey, node: NodeKey, mpi: Mpi) -> Result<(), EnterError> {
        match self.open.get(key) {
            Some(fence) if fence.mpi != mpi => Err(EnterError::Protocol),
            Some(fence) if fence.awaited.contains(&node) => Ok(()),
            _ => Err(EnterError::NotAwaited),
        }
    }

    /// Lets a node enter a fence that waits for it, of a group with a number if it is `with_context`. Returns the
    /// fence if it was the last one.
    pub(crate) fn enter(
        &mut self,
        key: &FenceKey,
        node: NodeKey,
        entry: NodeEntry,
        with_context: bool,
    ) -> Option<Fence> {
        let fence = self.open.get_mut(key).or_else(|| absent!("fence", None))?;
        fence.with_context |= with_context;
        fence.awaited.remove(&node);
        fence.entries.insert(node, entry);
        if fence.awaited.is_empty() { self.open.remove(key) } else { None }
    }

    /// Removes and returns the fences of a job that wait for a node, or all of the job.
    pub(crate) fn remove(&mut self, run: u64, node: Option<NodeId>) -> Vec<(FenceKey, Fence)> {
        let waits = |fence: &Fence| node.is_none_or(|node| fence.awaited.contains(&(run, node)));
        self.open.extract_if(.., |key, fence| key.members.contains_key(&run) && waits(fence)).collect()
    }

    /// Adds a request to a node. Returns its number.
    pub(crate) fn add_modex(&mut self, modex: Modex) -> u64 {
        self.last_modex = self.last_modex.wrapping_add(1);
        self.modexes.insert(self.last_modex, modex);
        self.last_modex
    }

    /// Removes and returns a request that its node has answered.
    pub(crate) fn take_modex(&mut self, number: u64, owner: NodeKey) -> Option<Modex> {
        self.modexes.get(&number).filter(|modex| modex.owner == owner)?;
        self.modexes.remove(&number)
    }

    /// Removes and returns the requests to a node of a job, or to all of them.
    pub(crate) fn remove_modexes(&mut self, run: u64, node: Option<NodeId>) -> Vec<Modex> {
        let waits = |modex: &Modex| modex.owner.0 == run && node.is_none_or(|node| modex.owner.1 == node);
        self.modexes.extract_if(.., |_, modex| waits(modex)).map(|(_, modex)| modex).collect()
    }

    /// Returns the charges for what waits for nodes.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let entries = self.open.values().flat_map(|fence| fence.entries.values()).map(|entry| &entry.charge);
        entries.chain(self.modexes.values().map(|modex| &modex.charge))
    }
}
