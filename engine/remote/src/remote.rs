//! The ranks of a job on other nodes: signals, stdin and queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam::channel::Sender;
use iof_capture::{check_files, check_maps};
use iof_engine::{Exit, HostReply, JobStatus, QueryReply, Signal, StdinPush, WindowSize};
use iof_nodes::{StdinOutcome, StdinRanks, ToAgent};
use iof_proto::query::key;
use iof_proto::{Found, Nspace, Proc, ProcInfo, ProcState, Query, Rank, Status, Value};

use crate::cost::AgentCosts;
use crate::edge::{Edge, NodeEvent, NumberedEvent};
use crate::error::RemoteLimitError;
use crate::link::DRAIN_LIMIT;

/// Descriptors of the front end for each rank and each edge, and maps for each rank.
const FILES_PER_RANK: u64 = 4;
const FILES_PER_EDGE: u64 = 4;
const MAPS_PER_RANK: u64 = 12;
/// Descriptors of the front end apart from these.
const OTHER_FILES: u64 = 64;

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name by which carriers are started.
    pub host: String,
    /// The ranks that run on the node.
    pub ranks: BTreeSet<Rank>,
}

/// The ranks of a job on other nodes.
pub struct Remote {
    pub(crate) nspace: Nspace,
    /// The nodes.
    pub nodes: Arc<[Node]>,
    state: Mutex<State>,
}

/// What changes while the job runs.
#[derive(Default)]
pub(crate) struct State {
    /// The edges, by node. `None` for a node that is lost, or has ended.
    pub(crate) edges: Vec<Option<Edge>>,
    pub(crate) ranks: BTreeMap<Rank, RankInfo>,
    /// Whether the agents were told to start the ranks. Before that, an agent takes another message
    /// for an error of the front end.
    has_let_go: bool,
    /// The nodes that have neither ended nor are lost.
    pub(crate) open: BTreeSet<usize>,
    pub(crate) status: JobStatus,
    /// The pieces of stdin that some nodes have not answered.
    pub(crate) calls: BTreeMap<u64, StdinCall>,
    next_call: u64,
    /// What forwarding has cost the agents that are over.
    pub(crate) costs: AgentCosts,
    /// For the thread that follows the ranks, once they are started.
    pub(crate) events: Option<Sender<NumberedEvent>>,
}

/// A rank that was started.
#[derive(Default)]
pub(crate) struct RankInfo {
    /// The number of the node.
    pub(crate) node: usize,
    pub(crate) pid: u32,
    pub(crate) exit: Option<Exit>,
    pub(crate) executable: String,
}

/// A piece of stdin that some nodes have not answered.
pub(crate) struct StdinCall {
    nodes: BTreeSet<usize>,
    /// The best outcome so far: taken, or refused for a reason, or closed.
    outcome: StdinOutcome,
    reply: HostReply,
}

impl StdinCall {
    /// Notes the answer of a node. Returns whether all nodes have answered.
    pub(crate) fn answered(&mut self, node: usize, outcome: &StdinOutcome) -> bool {
        if self.nodes.remove(&node)
            && (self.outcome == StdinOutcome::Closed || *outcome == StdinOutcome::Taken)
        {
            self.outcome = outcome.clone();
        }
        self.nodes.is_empty()
    }

    pub(crate) fn reply(self) {
        match self.outcome {
            StdinOutcome::Taken => self.reply.grant(),
            StdinOutcome::Closed => {
                self.reply.deny(Status::ERR_IOF_COMPLETE, "these ranks have ended or closed their stdin");
            }
            StdinOutcome::Failed(failure) => self.reply.deny(failure.status, failure.reason),
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Remote { nspace, nodes, .. } = self;
        f.debug_struct("Remote").field("nspace", nspace).field("nodes", nodes).finish_non_exhaustive()
    }
}

impl State {
    /// Returns the edges to the nodes that have neither ended nor are lost.
    pub(crate) fn open_edges(&self) -> impl Iterator<Item = (usize, &Edge)> {
        self.open.iter().filter_map(|number| Some((*number, self.edges.get(*number)?.as_ref()?)))
    }

    fn send_all(&self, message: &ToAgent) {
        // Messages of this module are within their limits.
        self.edges.iter().flatten().for_each(|edge| drop(edge.send(message)));
    }
}

impl Remote {
    /// Creates the ranks of the job `nspace` on these nodes. None runs yet.
    pub fn new(nspace: Nspace, nodes: Vec<Node>) -> Remote {
        let state = State {
            edges: nodes.iter().map(|_| None).collect(),
            open: (0..nodes.len()).collect(),
            ..State::default()
        };
        Remote { nspace, nodes: nodes.into(), state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that this process can have the rings of all ranks, and its edges. Returns the number
    /// of further files that it may open.
    pub fn check(&self) -> Result<u64, RemoteLimitError> {
        let ranks = self.nodes.iter().map(|node| node.ranks.len() as u64).sum::<u64>();
        let files = ranks.saturating_mul(FILES_PER_RANK);
        let files = files.saturating_add((self.nodes.len() as u64).saturating_mul(FILES_PER_EDGE));
        check_maps(ranks.saturating_mul(MAPS_PER_RANK))
            .map_err(|maps| RemoteLimitError::Maps { ranks, maps })?;
        check_files(files.saturating_add(OTHER_FILES))
            .map_err(|files| RemoteLimitError::Files { ranks, files })
    }

    /// Lets all agents start their ranks, which can be sent signals from now on.
    pub(crate) fn let_go(&self) {
        let mut state = self.state();
        state.has_let_go = true;
        state.send_all(&ToAgent::Go);
    }

    /// Sends a message to all nodes once they start their ranks.
    pub(crate) fn send_all(&self, message: &ToAgent) {
        let state = self.state();
        if state.has_let_go {
            state.send_all(message);
        }
    }

    /// Tells all agents that the job has ended, and ends the edges whose carriers may be replaced.
    /// Their agents would otherwise wait for other carriers when this process ends. A carrier that is
    /// missing is waited for.
    pub(crate) fn close(&self) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        let linked: Vec<_> = {
            let state = self.state();
            state.edges.iter().flatten().filter_map(|edge| edge.linked.clone()).collect()
        };
        self.send_all(&ToAgent::Close);
        // What sends over an edge ends with the last of these.
        self.state().edges.iter_mut().for_each(|edge| drop(edge.take_if(|edge| edge.linked.is_some())));
        linked.iter().for_each(|linked| linked.link.drain(deadline));
    }

    /// Changes the size of the ranks' terminals. Has no effect before the ranks are started.
    pub fn resize_ptys(&self, size: WindowSize) {
        self.send_all(&ToAgent::Resize(size));
    }

    /// Returns what forwarding has cost the agents that are over.
    pub fn costs(&self) -> AgentCosts {
        self.state().costs.clone()
    }

    /// Sends a signal to all ranks. Has no effect before the ranks are started.
    pub fn signal(&self, signal: Signal) {
        if let Some(events) = &self.state().events {
            // Before what the signal causes. The follower may have ended.
            let _ = events.send((usize::MAX, NodeEvent::Signalled(signal)));
        }
        self.send_all(&ToAgent::Signal { signal: signal.number() });
    }

    /// Sends a signal of a tool to the ranks among `procs`. Returns the number of those that run,
    /// which is 0 before the ranks are started.
    pub fn signal_ranks(&self, procs: &[Proc], signal: Signal) -> usize {
        let state = self.state();
        if !state.has_let_go {
            return 0;
        }
        let is_meant =
            |rank: &Rank| procs.iter().any(|proc| proc.rank == *rank || proc.rank == Rank::WILDCARD);
        let mut by_node: BTreeMap<usize, Vec<Rank>> = BTreeMap::new();
        for (rank, info) in state.ranks.iter().filter(|(rank, info)| info.exit.is_none() && is_meant(rank)) {
            by_node.entry(info.node).or_default().push(*rank);
        }
        let mut count = 0usize;
        for (number, ranks) in by_node {
            if let Some(Some(edge)) = state.edges.get(number) {
                count = count.saturating_add(ranks.len());
                // At most the ranks of a node, so the message is within its limits.
                let _ = edge.send(&ToAgent::SignalRanks { signal: signal.number(), ranks });
            }
        }
        count
    }

    /// Notes the pids of the ranks of a node. Called before their output arrives.
    pub(crate) fn note_pids(&self, number: usize, pids: &[u32]) {
        let Some(node) = self.nodes.get(number) else { return };
        let mut state = self.state();
        for (rank, pid) in node.ranks.iter().zip(pids) {
            if let Some(info) = state.ranks.get_mut(rank) {
                info.pid = *pid;
            }
        }
    }

    /// Returns the status of the job, as far as it is known.
    pub(crate) fn status(&self) -> JobStatus {
        self.state().status.clone()
    }

    /// Returns the status of the job if all ranks have exited.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        let state = self.state();
        let has_exited = state.ranks.values().all(|rank| rank.exit.is_some());
        has_exited.then(|| state.status.clone())
    }

    /// Passes a piece of stdin to the nodes of its targets.
    pub fn push_stdin(&self, push: &StdinPush, bytes: &[u8], reply: HostReply) {
        let mut state = self.state();
        if state.ranks.is_empty() {
            return reply.deny(Status::ERR_NOT_AVAILABLE, "the ranks are not started");
        }
        let (call, mut pieces) = (state.next_call, Vec::new());
        for (number, edge) in state.open_edges() {
            let Some(ranks) = self.targets(number, push) else { continue };
            match (ToAgent::Stdin { call, ranks, bytes: bytes.to_vec() }).frame() {
                Ok(frame) => pieces.push((number, edge, frame)),
                Err(error) => return reply.deny(Status::ERR_NOT_AVAILABLE, error.to_string()),
            }
        }
        if pieces.is_empty() {
            return reply.deny(Status::ERR_IOF_COMPLETE, "all ranks of these nodes have ended");
        }
        let nodes = pieces.iter().map(|(number, ..)| *number).collect();
        pieces.into_iter().for_each(|(_, edge, frame)| edge.push_stdin(call, frame));
        state.next_call = call.saturating_add(1);
        state.calls.insert(call, StdinCall { nodes, outcome: StdinOutcome::Closed, reply });
    }

    /// Returns the ranks of a node to which `push` goes; `None` if it goes to none.
    fn targets(&self, number: usize, push: &StdinPush) -> Option<StdinRanks> {
        let ranks = &self.nodes.get(number)?.ranks;
        if push.targets.iter().any(|target| target.rank == Rank::WILDCARD) {
            return Some(StdinRanks::All);
        }
        let some = push.targets.iter().map(|target| target.rank).filter(|rank| ranks.contains(rank));
        let some: BTreeSet<Rank> = some.collect();
        (!some.is_empty()).then_some(StdinRanks::Some(some.into_iter().collect()))
    }

    /// Answers queries for the processes of this job.
    pub fn query(&self, queries: &[Query], reply: QueryReply) {
        let wants = |query: &Query| query.keys.iter().any(|name| name == key::PMIX_QUERY_PROC_TABLE);
        let found = queries.iter().enumerate().filter(|(_, query)| wants(query)).map(|(number, _)| Found {
            query: u32::try_from(number).unwrap_or(u32::MAX),
            key: key::PMIX_QUERY_PROC_TABLE.into(),
            value: Value::Procs(self.procs()),
        });
        reply.answer(found.collect());
    }

    fn procs(&self) -> Vec<ProcInfo> {
        let state = self.state();
        let info = |(rank, info): (&Rank, &RankInfo)| ProcInfo {
            proc: Proc { nspace: self.nspace.clone(), rank: *rank },
            pid: info.pid,
            host: self.nodes.get(info.node).map(|node| node.host.clone()).unwrap_or_default(),
            executable: info.executable.clone(),
            state: proc_state(info.exit),
            exit_code: info.exit.filter(|exit| *exit != Exit::Unknown).map(Exit::code),
        };
        state.ranks.iter().map(info).collect()
    }
}

fn proc_state(exit: Option<Exit>) -> ProcState {
    match exit {
        None => ProcState::Running,
        Some(exit) if exit.success() => ProcState::Terminated,
        Some(exit) if exit.signal().is_some() => ProcState::Killed,
        Some(_) => ProcState::Failed,
    }
}
