//! The ranks of a job on its other nodes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use iof_capture::SourceId;
use iof_proto::{Channel, Channels, Node, NodeStream, Rank, StreamPull, UsedResources};

use super::{EndingEntry, JobState, RankState, RemoteRanks};
use crate::count::Count;
use crate::jobs::exit::Exit;
use crate::jobs::nodes::{NodeId, NodeLost};

/// The other nodes of a job.
#[derive(Default)]
pub(super) struct Nodes {
    /// By their ids.
    states: Vec<NodeState>,
    /// The embedder's printers have the output in another way than by rings.
    is_direct: bool,
    /// The pulls of streams that registrations cover.
    pulled: BTreeMap<(Rank, Channel), NodePull>,
    last_pull: u32,
}

/// The pull of a stream of a node.
#[derive(Clone, Copy)]
pub(crate) struct NodePull {
    pub number: u32,
    /// The stream can't have a ring.
    pub is_missed: bool,
    /// The bytes of such a stream, once all of them have arrived.
    pub missed: Option<u64>,
    /// All that the node had cached when it was pulled has been delivered. Readers that begin with the newest
    /// byte are attached there.
    pub is_marked: bool,
    /// That is in the ring.
    pub is_current: bool,
}

struct NodeState {
    host: String,
    /// The number of its ranks.
    ranks: usize,
    phase: Phase,
    /// In the order of their ranks and channels.
    streams: Vec<NodeStream>,
}

enum Phase {
    Starting,
    /// The ranks were started, and the node may still send output of them.
    Running,
    /// All ranks of the node have exited, and it has sent all their output.
    Ended,
    Lost,
}

impl Nodes {
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns the nodes that have started their ranks, and neither ended nor are lost.
    pub(super) fn open(&self) -> impl Iterator<Item = NodeId> {
        let nodes = (0..).map(NodeId).zip(&self.states);
        nodes.filter(|(_, node)| matches!(node.phase, Phase::Running)).map(|(id, _)| id)
    }
}

impl JobState {
    /// Returns the job with ranks on these other nodes, which are to be started there.
    /// With `is_direct`, the embedder's printers have the output in another way than by rings.
    pub(crate) fn on_nodes(self, nodes: &[Node], is_direct: bool) -> JobState {
        let mut job = JobState { remote: RemoteRanks::Running, ..self };
        for (id, node) in (0..).map(NodeId).zip(nodes) {
            for rank in &node.ranks {
                let launching = job.launching.remove(rank).unwrap_or_default();
                job.add_rank(*rank, RankState::there(id, launching));
            }
            let (host, ranks) = (node.host.clone(), node.ranks.len());
            job.nodes.states.push(NodeState { host, ranks, phase: Phase::Starting, streams: Vec::new() });
        }
        job.nodes.is_direct = is_direct;
        job
    }

    /// Returns whether the engine follows ranks of the job on other nodes.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns whether the job has remote ranks that only the host knows.
    pub(crate) fn has_ranks_of_host(&self) -> bool {
        self.remote == RemoteRanks::Running && self.nodes.is_empty()
    }

    /// Returns the nodes of the job that have started their ranks, and neither ended nor are lost.
    pub fn open_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.open()
    }

    /// Returns the name of a node.
    pub(crate) fn host(&self, node: NodeId) -> Option<&str> {
        self.nodes.states.get(node.0).map(|node| node.host.as_str())
    }

    /// Returns the number of ranks of a node.
    pub(crate) fn ranks_of(&self, node: NodeId) -> usize {
        self.nodes.states.get(node.0).map_or_else(|| absent!("node", 0), |node| node.ranks)
    }

    fn set_phase(&mut self, node: NodeId, phase: Phase) {
        if let Some(node) = self.nodes.states.get_mut(node.0) {
            node.phase = phase;
        }
    }

    /// Notes that a node has started its ranks, with these pids in the order of the ranks. Returns
    /// whether all nodes have. The time limit of the job then begins.
    pub(crate) fn node_started(&mut self, node: NodeId, pids: &[u32], began: SystemTime) -> bool {
        let ranks = self.ranks.values_mut().filter(|state| state.node() == Some(node));
        ranks.zip(pids).for_each(|(state, pid)| state.note_pid(*pid, began));
        self.set_phase(node, Phase::Running);
        !self.nodes.states.iter().any(|node| matches!(node.phase, Phase::Starting))
    }

    /// Notes that a rank on another node has exited, there on request if that is `requested`.
    pub(crate) fn exited_there(
        &mut self,
        rank: Rank,
        exit: (Exit, Option<UsedResources>),
        requested: bool,
        now: Instant,
    ) {
        if self.rank(rank).is_none_or(|state| state.node().is_none() || state.exit().is_some()) {
            return;
        }
        self.ended(rank, exit, Some(requested), now);
    }

    /// Notes that all ranks of a node have exited, and that it has sent all their output, with these
    /// streams completed before their end of file.
    pub(crate) fn node_over(&mut self, node: NodeId, cut_off: Vec<(Rank, Channel)>) {
        self.cut_off.extend(cut_off);
        self.set_phase(node, Phase::Ended);
    }

    /// Notes that a node is lost at `now`. The exits of its ranks remain unknown: most likely they
    /// were killed. What ends ranks on request may end their node, such as a SIGTERM to the carriers
    /// as well.
    pub(crate) fn node_lost(&mut self, node: NodeId, lost: NodeLost, now: Instant) {
        for rank in &lost.ranks {
            if let Some(state) = self.ranks.get(rank).filter(|state| state.node() == Some(node)) {
                let requested = state.is_requested(Exit::Unknown, now);
                self.note_exit(*rank, Exit::Unknown, requested);
                if !requested {
                    self.early_end_policy.lost(*rank);
                }
            }
        }
        self.set_phase(node, Phase::Lost);
        self.endings.push(EndingEntry::Lost(lost));
    }

    /// Returns whether a node has neither ended nor is lost.
    pub(crate) fn is_open(&self, node: NodeId) -> bool {
        let node = self.nodes.states.get(node.0);
        node.is_some_and(|node| matches!(node.phase, Phase::Starting | Phase::Running))
    }

    /// Returns whether a node is lost.
    pub(crate) fn is_lost(&self, node: NodeId) -> bool {
        self.nodes.states.get(node.0).is_some_and(|node| matches!(node.phase, Phase::Lost))
    }
}

/// The streams of ranks on other nodes whose output has no rings here.
impl JobState {
    /// Returns whether the embedder's printers have the output of other nodes in another way than by
    /// rings.
    pub(crate) fn is_direct(&self) -> bool {
        self.nodes.is_direct
    }

    /// Notes how far the streams of a node have come.
    pub(crate) fn note_streams(&mut self, node: NodeId, streams: Vec<NodeStream>) {
        if let Some(node) = self.nodes.states.get_mut(node.0) {
            node.streams = streams;
        }
    }

    /// Returns what is known about all streams.
    pub(crate) fn node_streams(&self) -> impl Iterator<Item = NodeStream> {
        self.nodes.states.iter().flat_map(|node| node.streams.iter().copied())
    }

    /// Returns what is known about a stream.
    pub(crate) fn node_stream(&self, rank: Rank, channel: Channel) -> NodeStream {
        let node = self.rank(rank).and_then(RankState::node).and_then(|node| self.nodes.states.get(node.0));
        let streams = node.map(|node| node.streams.as_slice()).unwrap_or_default();
        let index = streams.binary_search_by_key(&(rank, channel), |found| (found.rank, found.channel));
        let found = index.ok().and_then(|index| streams.get(index)).copied();
        found.unwrap_or(NodeStream { rank, channel, produced: 0, lost: 0, ended: false, missing: None })
    }

    /// Returns the ranks whose streams can be pulled of their nodes.
    pub(crate) fn ranks_to_pull(&self) -> impl Iterator<Item = Rank> {
        let can_pull = |node: NodeId| {
            self.nodes.states.get(node.0).is_some_and(|node| !matches!(node.phase, Phase::Starting))
        };
        let ranks = self.ranks().filter(|_| self.is_direct());
        ranks.filter(move |(_, state)| state.node().is_some_and(can_pull)).map(|(rank, _)| rank)
    }

    /// Returns whether all ranks are on other nodes, and each stream of these `channels` has a ring here if its rank
    /// `is_covered`.
    pub(crate) fn has_rings(&self, channels: Channels, mut is_covered: impl FnMut(Rank) -> bool) -> bool {
        let has_ring =
            |rank| channels.outputs().all(|channel| self.delivered_stream(rank, channel).is_some());
        // Rings are added in about the order of the ranks, so a missing one is found at once.
        let mut ranks = self.ranks().rev().map(|(rank, _)| rank);
        self.has_nodes() && self.started && !ranks.any(|rank| is_covered(rank) && !has_ring(rank))
    }

    /// Returns the pulls of streams.
    pub(crate) fn pulled(&self) -> &BTreeMap<(Rank, Channel), NodePull> {
        &self.nodes.pulled
    }

    /// Returns the pull of a stream.
    pub(crate) fn pull_of(&self, rank: Rank, channel: Channel) -> Option<NodePull> {
        self.nodes.pulled.get(&(rank, channel)).copied()
    }

    /// Ends the pulls of streams that are not `wanted`. Returns each with its node and its stream here,
    /// which is no longer one of the job.
    pub(crate) fn end_pulls(
        &mut self,
        wanted: &BTreeSet<(Rank, Channel)>,
    ) -> Vec<(NodeId, u32, Option<SourceId>)> {
        let ended = self.nodes.pulled.extract_if(.., |stream, _| !wanted.contains(stream));
        let ended: Vec<_> = ended.collect();
        let ended = ended.into_iter().filter_map(|((rank, channel), NodePull { number, .. })| {
            let node = self.rank(rank)?.node()?;
            Some((node, number, self.delivered.remove(&(rank, channel))))
        });
        ended.collect()
    }

    /// Begins the pulls of streams that are `wanted`, and returns those that are new.
    pub(crate) fn begin_pulls(&mut self, wanted: BTreeSet<(Rank, Channel)>) -> Vec<(NodeId, StreamPull)> {
        let mut begun = Vec::new();
        for (rank, channel) in wanted {
            let Some(node) = self.rank(rank).and_then(RankState::node) else { absent!("node", continue) };
            if let Entry::Vacant(entry) = self.nodes.pulled.entry((rank, channel)) {
                self.nodes.last_pull.raise(1);
                let number = self.nodes.last_pull;
                entry.insert(NodePull {
                    number,
                    is_missed: false,
                    missed: None,
                    is_marked: false,
                    is_current: false,
                });
                begun.push((node, StreamPull { number, rank, channel }));
            }
        }
        begun
    }

    /// Notes that all that a node had cached of a stream when it was pulled has been delivered. Returns `false`
    /// if that is known, or no tool pulls the stream.
    pub(crate) fn mark_pull(&mut self, rank: Rank, channel: Channel) -> bool {
        let pull = self.nodes.pulled.get_mut(&(rank, channel)).filter(|pull| !pull.is_marked);
        pull.map(|pull| pull.is_marked = true).is_some()
    }

    /// Notes that all that a node had cached of a stream when it was pulled has arrived.
    pub(crate) fn pull_is_current(&mut self, rank: Rank, channel: Channel) {
        if let Some(pull) = self.nodes.pulled.get_mut(&(rank, channel)) {
            pull.is_current = true;
        }
    }

    /// Notes that a pulled stream can't have a ring, and at its end how many bytes it had.
    pub(crate) fn miss_pull(&mut self, rank: Rank, channel: Channel, produced: Option<u64>) {
        if let Some(pull) = self.nodes.pulled.get_mut(&(rank, channel)) {
            (pull.is_missed, pull.missed) = (true, produced);
        }
    }
}
