//! The ranks of a job on its other nodes.

use std::time::Instant;

use iof_proto::{Channel, Rank};

use super::{EndingEntry, JobState, RankState, RemoteRanks};
use crate::jobs::exit::Exit;
use crate::jobs::nodes::{Node, NodeId, NodeLost};

/// The other nodes of a job, by their ids.
#[derive(Default)]
pub(super) struct Nodes(Vec<NodeState>);

struct NodeState {
    host: String,
    /// The number of its ranks.
    ranks: usize,
    phase: Phase,
}

enum Phase {
    Starting,
    /// The ranks were started, and the node may still send output of them.
    Running,
    /// All ranks of the node have exited, and it has sent all their output. Or it is lost.
    Ended,
}

impl Nodes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes that have started their ranks, and neither ended nor are lost.
    pub(super) fn open(&self) -> impl Iterator<Item = NodeId> {
        let nodes = (0..).map(NodeId).zip(&self.0);
        nodes.filter(|(_, node)| matches!(node.phase, Phase::Running)).map(|(id, _)| id)
    }
}

impl JobState {
    /// Returns the job with ranks on these other nodes, which are to be started there.
    pub(crate) fn on_nodes(self, nodes: &[Node]) -> JobState {
        let mut job = JobState { remote: RemoteRanks::Running, ..self };
        for (id, node) in (0..).map(NodeId).zip(nodes) {
            for rank in &node.ranks {
                let launching = job.launching.remove(rank).unwrap_or_default();
                job.add_rank(*rank, RankState::there(id, launching));
            }
            let (host, ranks) = (node.host.clone(), node.ranks.len());
            job.nodes.0.push(NodeState { host, ranks, phase: Phase::Starting });
        }
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
        self.nodes.0.get(node.0).map(|node| node.host.as_str())
    }

    /// Returns the number of ranks of a node.
    pub(crate) fn ranks_of(&self, node: NodeId) -> usize {
        self.nodes.0.get(node.0).map_or(0, |node| node.ranks)
    }

    fn set_phase(&mut self, node: NodeId, phase: Phase) {
        if let Some(node) = self.nodes.0.get_mut(node.0) {
            node.phase = phase;
        }
    }

    /// Notes that a node has started its ranks, with these pids in the order of the ranks. Returns
    /// whether all nodes have. The time limit of the job then begins.
    pub(crate) fn node_started(&mut self, node: NodeId, pids: &[u32]) -> bool {
        let ranks = self.ranks.values_mut().filter(|state| state.node() == Some(node));
        ranks.zip(pids).for_each(|(state, pid)| state.note_pid(*pid));
        self.set_phase(node, Phase::Running);
        !self.nodes.0.iter().any(|node| matches!(node.phase, Phase::Starting))
    }

    /// Notes that a rank on another node has exited, there on request if that is `requested`.
    pub(crate) fn exited_there(&mut self, rank: Rank, exit: Exit, requested: bool, now: Instant) {
        if self.rank(rank).is_none_or(|state| state.node().is_none() || state.exit().is_some()) {
            return;
        }
        self.note_exit(rank, exit, requested);
        self.early_end_policy.exited(rank, exit, requested, false, now);
        self.endings.push(EndingEntry::Rank(rank));
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
            }
        }
        if let Some(rank) = lost.ranks.first() {
            self.early_end_policy.lost(*rank);
        }
        self.set_phase(node, Phase::Ended);
        self.endings.push(EndingEntry::Lost(lost));
    }
}
