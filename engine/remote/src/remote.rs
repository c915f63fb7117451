//! The nodes of a job and the edges to them.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crossbeam::channel::Sender;
use iof_engine::{Edges, Job, Node, NodeId, NodeReport, NodeRequest, Signal};
use iof_nodes::{ControlError, ToAgent, ToFrontEnd};
use iof_proto::{Failure, Nspace, Status};

use crate::carrier::DRAIN_LIMIT;
use crate::cost::AgentCosts;
use crate::edge::{Edge, NodeEvent, NumberedEvent};

/// The nodes of a job.
pub(crate) struct Remote {
    pub(crate) nspace: Nspace,
    pub(crate) nodes: Arc<[Node]>,
    /// The job, once the engine knows it.
    pub(crate) job: OnceLock<Job>,
    pub(crate) costs: Arc<Mutex<AgentCosts>>,
    state: Mutex<State>,
}

/// What changes while the job runs.
pub(crate) struct State {
    /// The edges, by node. `None` for a node that is lost, or has ended.
    pub(crate) edges: Vec<Option<Edge>>,
    /// The nodes that have neither ended nor are lost.
    pub(crate) open: BTreeSet<usize>,
    /// The queue of the thread that starts the ranks, and then of the one that follows the nodes.
    pub(crate) events: Option<Sender<NumberedEvent>>,
}

impl State {
    /// Returns the edges to the nodes that have neither ended nor are lost.
    pub(crate) fn open_edges(&self) -> impl Iterator<Item = (usize, &Edge)> {
        self.open.iter().filter_map(|number| Some((*number, self.edges.get(*number)?.as_ref()?)))
    }
}

impl Remote {
    /// Creates the nodes of the job `nspace`, to which there are no edges yet.
    pub(crate) fn new(nspace: Nspace, nodes: &[Node]) -> Remote {
        let state = State {
            edges: nodes.iter().map(|_| None).collect(),
            open: (0..nodes.len()).collect(),
            events: None,
        };
        let (job, costs) = (OnceLock::new(), Arc::default());
        Remote { nspace, nodes: nodes.into(), job, costs, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to all nodes.
    pub(crate) fn send_all(&self, message: &ToAgent) {
        // Messages of this crate to all nodes are within their limits.
        self.state().edges.iter().flatten().for_each(|edge| drop(edge.send(message)));
    }

    /// Tells all agents that the job has ended, and ends the edges. Agents that outlive their carriers
    /// would otherwise wait for others when this process ends. A carrier that is missing is waited for.
    pub(crate) fn close(&self) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        self.send_all(&ToAgent::Close);
        let edges = mem::take(&mut self.state().edges);
        edges.iter().flatten().for_each(|edge| edge.drain(deadline));
    }

    /// Notes the pids of the ranks of a node. Called before their output arrives.
    pub(crate) fn note_pids(&self, number: usize, pids: &[u32]) {
        if let Some(job) = self.job.get() {
            job.report_node(NodeId(number), NodeReport::Started { pids: pids.into() });
        }
    }
}

impl Edges for Remote {
    fn send(&self, NodeId(number): NodeId, request: NodeRequest<'_>) {
        let state = self.state();
        let Some(Some(edge)) = state.edges.get(number) else { return };
        // The node's follower may have ended.
        let tell = |event| drop(state.events.as_ref().map(|events| events.send((number, event))));
        let message = match request {
            NodeRequest::Signal(signal) => {
                if signal == Signal::KILL {
                    tell(NodeEvent::Killed);
                }
                ToAgent::Signal { signal: signal.number() }
            }
            NodeRequest::SignalRanks(signal, ranks) => {
                ToAgent::SignalRanks { signal: signal.number(), ranks: ranks.into() }
            }
            NodeRequest::Resize(size) => ToAgent::Resize(size),
            NodeRequest::Stdin { call, ranks, bytes } => {
                let message = ToAgent::Stdin { call, ranks: ranks.map(Vec::from), bytes: bytes.into() };
                match message.frame() {
                    Ok(frame) => edge.push_stdin(call, frame),
                    Err(error) => tell(refused(call, &error)),
                }
                return;
            }
        };
        // At most the ranks of a node, so the message is within its limits.
        let _ = edge.send(&message);
    }
}

/// Returns the answer for a piece of stdin that can't be sent.
fn refused(call: u64, error: &ControlError) -> NodeEvent {
    let answer = Err(Failure::new(Status::ERR_NOT_AVAILABLE, error.to_string()));
    NodeEvent::Message(ToFrontEnd::StdinTaken { call, answer })
}
