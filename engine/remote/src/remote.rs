//! The nodes of a job and the edges to them.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use iof_engine::{Edges, Job, LastStep, Node, NodeId, NodeReport, NodeRequest, Signal};
use iof_nodes::ToAgent;
use iof_proto::Nspace;

use crate::carrier::lock;
use crate::cost::AgentCosts;
use crate::edge::Edge;

/// The nodes of a job.
pub(crate) struct Remote {
    pub(crate) nspace: Nspace,
    pub(crate) nodes: Arc<[Node]>,
    /// The job, once the engine knows it.
    pub(crate) job: OnceLock<Job>,
    pub(crate) costs: Arc<Mutex<AgentCosts>>,
    /// The edges, by node. `None` for a node that is lost, or has ended.
    edges: Mutex<Vec<Option<Edge>>>,
}

impl Remote {
    /// Creates the nodes of the job `nspace`, to which there are no edges yet.
    pub(crate) fn new(nspace: Nspace, nodes: &[Node]) -> Remote {
        let edges = Mutex::new(nodes.iter().map(|_| None).collect());
        Remote { nspace, nodes: nodes.into(), job: OnceLock::new(), costs: Arc::default(), edges }
    }

    /// Locks the edges. The engine's tables are not locked after them.
    pub(crate) fn edges(&self) -> MutexGuard<'_, Vec<Option<Edge>>> {
        lock(&self.edges)
    }

    /// Sends a message to all nodes.
    pub(crate) fn send_all(&self, message: &ToAgent) {
        // Messages of this crate to all nodes are within their limits.
        self.edges().iter().flatten().for_each(|edge| drop(edge.send(message)));
    }

    /// Tells all agents that the job has ended. Agents that outlive their carriers would otherwise wait
    /// for others when this process ends. Returns the edges, which end when they are dropped.
    pub(crate) fn close(&self) -> Vec<Edge> {
        self.send_all(&ToAgent::Close);
        mem::take(&mut *self.edges()).into_iter().flatten().collect()
    }

    /// Reports to the engine what has happened at a node.
    pub(crate) fn report(&self, number: usize, report: NodeReport) {
        if let Some(job) = self.job.get() {
            job.report_node(NodeId(number), report);
        }
    }
}

impl Edges for Remote {
    fn send(&self, NodeId(number): NodeId, request: NodeRequest<'_>) {
        let edges = self.edges();
        let Some(Some(edge)) = edges.get(number) else { return };
        let message = match request {
            NodeRequest::Signal(signal) => ToAgent::Signal { signal: signal.number() },
            NodeRequest::SignalRanks(signal, ranks) => {
                ToAgent::SignalRanks { signal: signal.number(), ranks: ranks.into() }
            }
            NodeRequest::Resize(size) => ToAgent::Resize(size),
            NodeRequest::Stdin { call, ranks, bytes } => {
                edge.note_call(call);
                ToAgent::Stdin { call, ranks: ranks.map(Vec::from), bytes: bytes.into() }
            }
            NodeRequest::End(LastStep::CutOff) => ToAgent::CutOff,
            NodeRequest::End(LastStep::HangUp) => return edge.signal_carrier(Signal::TERM),
            NodeRequest::End(LastStep::GiveUp) => return edge.give_up(),
        };
        // At most the ranks of a node and a piece, so the message is within its limits.
        let _ = edge.send(&message);
    }
}
