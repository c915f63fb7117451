//! The start of a job on its nodes: first all agents, then all ranks.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use iof_engine::{App, Engine, JobSpec, Pty, Stdin};
use iof_nodes::{
    AgentSocket, Branch, DropPolicy, NodeFiles, Program, RankStdin, Start, StartRelay, Terminal, ToAgent,
    ToFrontEnd, subtrees, window,
};
use iof_output::FlushTimeout;
use iof_proto::Rank;

use super::carrier::{MAX_STARTS, Template, agent_command};
use super::edge::{Edge, NodeEvent, NumberedEvent};
use super::hosts::Node;
use super::link::DRAIN_LIMIT;
use super::reattach::Reattach;
use super::remote::{RankInfo, Remote};
use crate::args::RendezvousDir;
use crate::error::Failure;
use crate::signal_watch::SignalWatch;
use crate::signals::{ReceivedSignal, asks_again, asks_to_end};

/// The interval at which signals are looked for while agents start.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// What is to be started.
pub struct Launch<'a> {
    pub spec: &'a JobSpec,
    /// The rank with a terminal at which the command's stdin is typed.
    pub typed: Option<Rank>,
    /// Variables for all ranks.
    pub env: Vec<(OsString, OsString)>,
    pub template: &'a Template,
    /// The largest number of edges of this process, and of each relay.
    pub radix: u32,
    /// How carriers that end are replaced, if they are.
    pub reattach: Option<Reattach>,
    pub cache_size: Option<u32>,
    pub cache_total: u64,
    /// How long parts of lines wait at their nodes.
    pub lines: FlushTimeout,
    pub drop: DropPolicy,
    pub hide_launcher: bool,
    pub backend: Option<String>,
    pub rendezvous: RendezvousDir<'a>,
    pub files: Option<NodeFiles>,
}

/// The events of a job whose ranks run.
pub struct NodeEvents {
    pub(super) queue: Receiver<NumberedEvent>,
    /// Events that arrived before all ranks were started.
    pub(super) early: Vec<NumberedEvent>,
    /// Signals for the ranks that arrived before all of them were started.
    pub signals: Vec<ReceivedSignal>,
}

impl Remote {
    /// Starts all agents and, when all of them are ready, all ranks.
    ///
    /// # Errors
    /// A node can't start its ranks, or a signal ends this command. No rank runs on.
    pub fn start(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        engine: &Arc<Engine>,
        signals: &SignalWatch,
    ) -> Result<NodeEvents, Failure> {
        self.note_ranks(launch.spec);
        let (events, queue) = unbounded();
        let started = self.start_agents(launch, engine, (&events, &queue), signals);
        let mut state = self.state();
        if started.is_err() {
            // Agents end their ranks when their edges end.
            let edges: Vec<Edge> = state.edges.iter_mut().filter_map(Option::take).collect();
            edges.iter().for_each(Edge::end_carrier);
            let deadline = Instant::now() + DRAIN_LIMIT;
            edges.iter().filter_map(Edge::linked).for_each(|linked| linked.drain(deadline));
        }
        state.events = Some(events);
        drop(state);
        started.map(|(early, signals)| NodeEvents { queue, early, signals })
    }

    fn start_agents(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        engine: &Arc<Engine>,
        (events, queue): (&Sender<NumberedEvent>, &Receiver<NumberedEvent>),
        signals: &SignalWatch,
    ) -> Result<(Vec<NumberedEvent>, Vec<ReceivedSignal>), Failure> {
        let command =
            agent_command(launch.reattach.as_ref().map(Reattach::limit)).map_err(Failure::running)?;
        let mut subtrees = subtrees(0..self.nodes.len() as u32, launch.radix).into_iter().peekable();
        // By node. What stands here has not greeted.
        let mut edges: Vec<Option<Edge>> = Vec::new();
        let (mut starting, mut ready, mut started) = (BTreeSet::new(), 0usize, 0usize);
        let (mut early, mut for_ranks) = (Vec::new(), Vec::new());
        while started < self.nodes.len() {
            while let Some(subtree) = subtrees.next_if(|_| starting.len() < MAX_STARTS) {
                let edge = self.start_edge(subtree.clone(), (launch, &command), engine, events)?;
                let numbers = subtree.start as usize..subtree.end as usize;
                starting.insert(numbers.start);
                if let Some(place) = self.state().edges.get_mut(numbers.start) {
                    *place = Some(edge.clone());
                }
                edges.extend(numbers.map(|number| Some(edge.to(number))));
            }
            while let Some(received) = signals.wait_for(Duration::ZERO) {
                if ready < self.nodes.len() && asks_to_end(received.signal) {
                    return Err(Failure::Signal(received.signal));
                }
                if ready == self.nodes.len() {
                    hold(received, &mut for_ranks)?;
                }
            }
            let (number, event) = match queue.recv_timeout(SIGNAL_INTERVAL) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::running("the agents are gone")),
            };
            let host = self.nodes.get(number).map_or("", |node| node.host.as_str());
            match event {
                NodeEvent::Greeted => {
                    starting.remove(&number);
                    if let Some(edge) = edges.get_mut(number).and_then(Option::take) {
                        self.prepare(number, edge, (launch, &command))?;
                    }
                }
                NodeEvent::Message(ToFrontEnd::Ready) => {
                    ready = ready.saturating_add(1);
                    if ready == self.nodes.len() {
                        self.send_all(&ToAgent::Go);
                    }
                }
                NodeEvent::Message(ToFrontEnd::Started { .. }) => started = started.saturating_add(1),
                NodeEvent::Message(ToFrontEnd::Failed { reason, is_usage: true }) => {
                    return Err(Failure::Usage(format!("{host}: {reason}")));
                }
                NodeEvent::Message(ToFrontEnd::Failed { reason, .. }) => {
                    return Err(Failure::Running(format!("{host}: {reason}")));
                }
                NodeEvent::Lost { reason, .. } => {
                    return Err(Failure::Running(format!("cannot start ranks on {host}: {reason}")));
                }
                event => early.push((number, event)),
            }
        }
        Ok((early, for_ranks))
    }

    /// Starts the agent of the first of these nodes, with an edge to all of them.
    fn start_edge(
        self: &Arc<Self>,
        subtree: Range<u32>,
        (launch, command): (&Launch<'_>, &OsStr),
        engine: &Arc<Engine>,
        events: &Sender<NumberedEvent>,
    ) -> Result<Edge, Failure> {
        let numbers = subtree.start as usize..subtree.end as usize;
        let nodes = self.nodes.get(numbers.clone()).unwrap_or_default();
        let host = nodes.first().map_or("", |node| node.host.as_str());
        let not_started = |error: io::Error| {
            Failure::Usage(format!("cannot start an agent on {host}: {error} (see --rsh)"))
        };
        let edges = self.nodes.len().min(launch.radix as usize);
        let carrier = launch.template.start(host, command, edges).map_err(not_started)?;
        let linked = launch.reattach.as_ref().map(|reattach| reattach.edge(host, edges));
        let window = window(self.nodes.len());
        let branch = Branch::new(nodes.iter().map(|node| &node.ranks), launch.radix, window);
        Edge::start((carrier, linked), (numbers.start, branch), (self, engine), events)
    }

    /// Lets an agent that has greeted prepare the start of its ranks, and start the agents behind
    /// it.
    fn prepare(
        &self,
        number: usize,
        edge: Edge,
        (launch, command): (&Launch<'_>, &OsStr),
    ) -> Result<(), Failure> {
        let Some(node) = self.nodes.get(number) else { return Ok(()) };
        edge.greet();
        let children = edge.children(&self.nodes);
        if !children.is_empty() {
            let (rsh, agent) = (launch.template.words().to_vec(), command.to_owned());
            edge.send(&ToAgent::Relay(StartRelay { rsh, agent, children }))?;
        }
        edge.send(&ToAgent::Start(Box::new(start_of(launch, node)?)))?;
        if let Some(place) = self.state().edges.get_mut(number) {
            *place = Some(edge);
        }
        Ok(())
    }

    /// Notes the ranks that are to be started, so that their hosts are known before their output.
    fn note_ranks(&self, spec: &JobSpec) {
        let nodes = self.nodes.iter().enumerate();
        let ranks = nodes.flat_map(|(number, node)| node.ranks.iter().map(move |rank| (*rank, number)));
        let info = |(rank, node): (Rank, usize)| {
            (rank, RankInfo { node, pid: 0, exit: None, executable: executable(spec, rank.0) })
        };
        self.state().ranks = ranks.map(info).collect();
    }

    /// Notes the pids of the ranks of a node. Called before their output arrives.
    pub(super) fn note_pids(&self, number: usize, pids: &[u32]) {
        let Some(node) = self.nodes.get(number) else { return };
        let mut state = self.state();
        for (rank, pid) in node.ranks.iter().zip(pids) {
            if let Some(info) = state.ranks.get_mut(rank) {
                info.pid = *pid;
            }
        }
    }
}

/// Keeps a signal that arrived when ranks already ran, until all agents have told that theirs do.
///
/// # Errors
/// A second signal that asks to end: an agent may not answer.
fn hold(received: ReceivedSignal, for_ranks: &mut Vec<ReceivedSignal>) -> Result<(), Failure> {
    if asks_again(received, for_ranks) {
        return Err(Failure::Signal(received.signal));
    }
    if !for_ranks.iter().any(|before| before.signal == received.signal) {
        for_ranks.push(received);
    }
    Ok(())
}

/// Returns the program of a rank, as the user wrote it.
fn executable(spec: &JobSpec, rank: u32) -> String {
    let mut end = 0u32;
    let mut apps = spec.apps.iter();
    let app = apps.find(|app| {
        end = end.saturating_add(app.nprocs);
        rank < end
    });
    app.map(|app| app.program.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns what the agent of a node is to start.
fn start_of(launch: &Launch<'_>, node: &Node) -> Result<Start, Failure> {
    let own = env::current_dir().map_err(Failure::running)?;
    let absolute = |path: &Path| own.join(path).into_os_string();
    let program = |app: &App| Program {
        nprocs: app.nprocs,
        program: app.program.clone(),
        args: app.args.clone(),
        env: app.env.clone(),
        cwd: absolute(app.cwd.as_deref().unwrap_or(Path::new(""))),
        merge_stderr: app.merge_stderr,
    };
    let spec = launch.spec;
    let stdin = node.ranks.iter().copied().filter_map(|rank| match spec.stdin.get(&rank)? {
        Stdin::Pipe if launch.typed == Some(rank) => Some((rank, RankStdin::Typed)),
        Stdin::Pipe => Some((rank, RankStdin::Forwarded)),
        Stdin::File(path) => Some((rank, RankStdin::File(absolute(path)))),
        _ => None,
    });
    let pty = |rank: Rank| spec.ptys.get(&rank).or_else(|| spec.ptys.get(&Rank::WILDCARD));
    let terminal = |Pty { size, echo }: Pty| Terminal { rows: size.rows, columns: size.columns, echo };
    let ptys = node.ranks.iter().filter_map(|rank| Some((*rank, terminal(*pty(*rank)?))));
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Start {
        nspace: spec.nspace.clone(),
        programs: spec.apps.iter().map(program).collect(),
        env: launch.env.clone(),
        ranks: node.ranks.clone(),
        stdin: stdin.collect(),
        ptys: ptys.collect(),
        max_line: u32::try_from(launch.lines.max_line).unwrap_or(u32::MAX),
        max_line_time: millis(launch.lines.max_time),
        cache_size: launch.cache_size,
        cache_total: launch.cache_total,
        drop: launch.drop,
        grace: spec.grace.map(millis),
        kill_wait: millis(spec.kill_wait),
        hide_launcher: launch.hide_launcher,
        backend: launch.backend.clone(),
        socket: match launch.rendezvous {
            RendezvousDir::None => AgentSocket::None,
            RendezvousDir::Default => AgentSocket::Default,
            RendezvousDir::Is(directory) => AgentSocket::In(absolute(directory)),
        },
        files: launch.files.clone(),
    })
}
