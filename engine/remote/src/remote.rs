//! The nodes of a job and the edges to them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use iof_engine::{
    DeliveredBytes, DeliveredEnd, Edges, Job, LastStep, Node, NodeId, NodeReport, NodeRequest, Signal,
};
use iof_nodes::{BrokenPull, StreamKey, ToAgent};
use iof_proto::{InputState, Nspace, Proc, Rank};

use crate::carrier::lock;
use crate::cost::AgentCosts;
use crate::edge::Edge;
use crate::output::DirectOutput;

/// The nodes of a job.
pub(crate) struct Remote {
    pub(crate) nspace: Nspace,
    pub(crate) nodes: Arc<[Node]>,
    /// The job, once the engine knows it.
    pub(crate) job: OnceLock<Job>,
    pub(crate) costs: Mutex<AgentCosts>,
    /// The printers of the job; `None` if the output goes into rings.
    pub(crate) output: Option<Arc<DirectOutput>>,
    /// The edges, by node. `None` for a node that is lost, or has ended.
    edges: Mutex<Vec<Option<Edge>>>,
}

/// A piece of a stream: bytes, its end, or what it lacks before its offset.
pub(crate) struct OutputPiece {
    pub stream: StreamKey,
    pub offset: u64,
    pub time: Option<u64>,
    pub input: Option<InputState>,
    pub bytes: Vec<u8>,
    pub end: Option<DeliveredEnd>,
}

/// Returns a piece without bytes.
pub(crate) fn piece(stream: StreamKey, offset: u64, end: Option<DeliveredEnd>) -> OutputPiece {
    OutputPiece { stream, offset, time: None, input: None, bytes: Vec::new(), end }
}

/// Returns the end of a pulled stream whose rest does not arrive.
pub(crate) fn broken_piece(broken: &BrokenPull) -> OutputPiece {
    piece(broken.stream, broken.position, Some(DeliveredEnd::Broken(broken.missing)))
}

impl Remote {
    /// Creates the nodes of the job `nspace`, to which there are no edges yet.
    pub(crate) fn new(nspace: Nspace, nodes: &[Node], output: Option<Arc<DirectOutput>>) -> Remote {
        let edges = Mutex::new(nodes.iter().map(|_| None).collect());
        Remote { nspace, nodes: nodes.into(), job: OnceLock::new(), costs: Mutex::default(), output, edges }
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

    /// Tells all agents by this message that the job has ended. Agents that outlive their carriers would
    /// otherwise wait for others when this process ends. Returns the edges.
    pub(crate) fn close(&self, message: &ToAgent) -> Vec<Edge> {
        self.send_all(message);
        self.edges().iter().flatten().cloned().collect()
    }

    /// Delivers a piece of the output of the nodes, or of this pull.
    ///
    /// # Errors
    /// The engine can't take it.
    pub(crate) fn deliver(
        &self,
        pull: u32,
        piece: OutputPiece,
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        let OutputPiece { stream: StreamKey { rank, channel }, offset, time, input, bytes, end } = piece;
        let from = Proc { nspace: self.nspace.clone(), rank };
        // Output follows the start.
        let Some(job) = self.job.get() else { return Ok(()) };
        let bytes = DeliveredBytes { from: &from, channel, bytes, offset: Some(offset), time, input, end };
        let delivered = job.deliver_pulled(pull, bytes, taken);
        delivered.map_err(|error| format!("{channel} of rank {rank}: {error}"))
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
            NodeRequest::Modex { call, rank } => ToAgent::Modex { call, rank },
            NodeRequest::Resize(size) => ToAgent::Resize(size),
            NodeRequest::Stdin { call, ranks, bytes } => {
                edge.note_call(call);
                ToAgent::Stdin { call, ranks: ranks.map(Vec::from), bytes: bytes.into() }
            }
            // At most the streams of a node, so the messages are within their limits.
            NodeRequest::Pull(pulls) => return drop(edge.pull(pulls)),
            NodeRequest::EndPulls(pulls) => return drop(edge.end_pulls(pulls)),
            NodeRequest::End(LastStep::CutOff) => ToAgent::CutOff,
            NodeRequest::End(LastStep::HangUp) => return edge.signal_carrier(Signal::TERM),
            NodeRequest::End(LastStep::GiveUp) => return edge.give_up(),
        };
        // At most the ranks of a node and a piece, so the message is within its limits.
        let _ = edge.send(&message);
    }

    fn is_written(&self, rank: Option<Rank>) -> bool {
        self.output.as_ref().is_none_or(|output| output.unwritten(rank) == 0)
    }
}
