//! The start of a job on its nodes: first all agents, then all ranks.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fmt};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use iof_engine::{App, BackendKind, DEFAULT_CACHE_TOTAL, Engine, Interaction, JobSpec, Pty, Stdin};
use iof_nodes::limits::MAX_NODES;
use iof_nodes::{AgentSocket, DropPolicy, NodeFiles, Program, RankStdin, Start, Terminal, ToFrontEnd};
use iof_output::{Audience, FlushTimeout};
use iof_proto::Rank;

use crate::carrier::MAX_STARTS;
use crate::carriers::Carriers;
use crate::edge::{Edge, NodeEvent, NumberedEvent};
use crate::environment;
use crate::error::RemoteStartError;
use crate::link::DRAIN_LIMIT;
use crate::reattach::Reattach;
use crate::remote::{Node, RankInfo, Remote};

/// The interval at which the caller is asked while agents start.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// What is to be started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The job.
    pub spec: &'a JobSpec,
    /// The rank with a terminal at which what is pushed is typed.
    pub typed: Option<Rank>,
    /// Variables for all ranks.
    pub env: Vec<(OsString, OsString)>,
    /// How agents are reached.
    pub carriers: &'a Carriers,
    /// How long a node may be without a connection, if connections are replaced. The agents must be
    /// started with the same time.
    pub reattach: Option<Duration>,
    /// The size of the cache of each stream at its node.
    pub cache_size: Option<u32>,
    /// The sum of the caches of a node up to which they grow.
    pub cache_total: u64,
    /// How long parts of lines wait at their nodes.
    pub lines: FlushTimeout,
    /// The reader of the job's output.
    pub audience: Audience,
    /// What is dropped at a node when a cache is full.
    pub drop: DropPolicy,
    /// Ranks have no variables of another launcher.
    pub hide_launcher: bool,
    /// The backend of the nodes' engines.
    pub backend: Option<BackendKind>,
    /// Where tools find the nodes' engines. A relative path is one of the current directory.
    pub socket: AgentSocket,
    /// The files that the nodes write.
    pub files: Option<NodeFiles>,
}

/// What is being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// Agents. No rank runs.
    Agents,
    /// The ranks. Some may run.
    Ranks,
}

/// The events of a job whose ranks run.
pub struct NodeEvents {
    pub(crate) queue: Receiver<NumberedEvent>,
    /// Events that arrived before all ranks were started.
    pub(crate) early: Vec<NumberedEvent>,
}

impl<'a> Launch<'a> {
    /// Returns the launch of a job with the defaults of `iof run`: ranks have the variables of this
    /// process ([`environment::of_ranks`]), a node is lost with its connection, and nothing is
    /// dropped.
    pub fn new(spec: &'a JobSpec, carriers: &'a Carriers) -> Launch<'a> {
        Launch {
            spec,
            typed: None,
            env: environment::of_ranks(&[]),
            carriers,
            reattach: None,
            cache_size: None,
            cache_total: DEFAULT_CACHE_TOTAL,
            lines: FlushTimeout::default(),
            audience: Audience::Program,
            drop: DropPolicy::None,
            hide_launcher: spec.hide_launcher,
            backend: None,
            socket: AgentSocket::Default,
            files: None,
        }
    }
}

impl fmt::Debug for NodeEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeEvents").finish_non_exhaustive()
    }
}

impl Remote {
    /// Starts all agents and, when all of them are ready, all ranks. Meanwhile `is_interrupted` is
    /// called several times a second.
    ///
    /// # Errors
    /// A node can't start its ranks, or `is_interrupted` has returned `true`. No rank runs on.
    pub fn start(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        engine: &Arc<Engine>,
        is_interrupted: &mut dyn FnMut(StartStep) -> bool,
    ) -> Result<NodeEvents, RemoteStartError> {
        self.check_ranks(launch.spec)?;
        self.check_reattach(launch)?;
        self.note_ranks(launch.spec);
        let (events, queue) = unbounded();
        let started = self.start_agents(launch, engine, (&events, &queue), is_interrupted);
        if started.is_err() {
            // Agents end their ranks when their edges end.
            let edges: Vec<Edge> = self.state().edges.iter_mut().filter_map(Option::take).collect();
            edges.iter().for_each(Edge::end_carrier);
            let deadline = Instant::now() + DRAIN_LIMIT;
            edges.iter().flat_map(|edge| &edge.linked).for_each(|linked| linked.link.drain(deadline));
        }
        self.state().events = Some(events);
        started.map(|early| NodeEvents { queue, early })
    }

    /// Checks what would otherwise be found on the nodes, or not at all.
    fn check_ranks(&self, spec: &JobSpec) -> Result<(), RemoteStartError> {
        let ranks: u64 = spec.apps.iter().map(|app| u64::from(app.nprocs)).sum();
        let mut placed: Vec<Rank> = self.nodes.iter().flat_map(|node| node.ranks.iter().copied()).collect();
        placed.sort_unstable();
        let is_rank = |(rank, number): (&Rank, u64)| u64::from(rank.0) == number;
        if placed.len() as u64 != ranks || !placed.iter().zip(0..).all(is_rank) {
            return Err(RemoteStartError::Ranks { placed: placed.len(), ranks });
        }
        if self.nodes.len() > MAX_NODES {
            return Err(RemoteStartError::Nodes { nodes: self.nodes.len(), limit: MAX_NODES });
        }
        if spec.needs_mpi() {
            return Err(RemoteStartError::Mpi);
        }
        let is_elsewhere = |stdin: &Stdin| matches!(stdin, Stdin::Null | Stdin::Pipe | Stdin::File(_));
        match spec.stdin.iter().find(|(_, stdin)| !is_elsewhere(stdin)) {
            Some((rank, _)) => Err(RemoteStartError::Stdin(*rank)),
            None => Ok(()),
        }
    }

    /// Checks that connections can be replaced if they are to be.
    fn check_reattach(&self, launch: &Launch<'_>) -> Result<(), RemoteStartError> {
        let can_replace = launch.carriers.can_link() && launch.socket != AgentSocket::None;
        if launch.reattach.is_some() && !can_replace {
            return Err(RemoteStartError::Reattach);
        }
        Ok(())
    }

    fn start_agents(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        engine: &Arc<Engine>,
        (events, queue): (&Sender<NumberedEvent>, &Receiver<NumberedEvent>),
        is_interrupted: &mut dyn FnMut(StartStep) -> bool,
    ) -> Result<Vec<NumberedEvent>, RemoteStartError> {
        let reattach =
            launch.reattach.map(|limit| Reattach::new(launch.carriers.clone(), limit, self.nodes.len()));
        let mut nodes = self.nodes.iter().enumerate();
        let (mut starting, mut ready, mut started) = (BTreeSet::new(), 0usize, 0usize);
        let mut early = Vec::new();
        while started < self.nodes.len() {
            while starting.len() < MAX_STARTS
                && let Some((number, node)) = nodes.next()
            {
                let edge = self.start_edge((number, node), (launch, &reattach), engine, events)?;
                starting.insert(number);
                if let Some(place) = self.state().edges.get_mut(number) {
                    *place = Some(edge);
                }
            }
            let step = if ready < self.nodes.len() { StartStep::Agents } else { StartStep::Ranks };
            if is_interrupted(step) {
                return Err(RemoteStartError::Interrupted);
            }
            let (number, event) = match queue.recv_timeout(ASK_INTERVAL) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(RemoteStartError::NoAgents),
            };
            let host = || self.nodes.get(number).map(|node| node.host.clone()).unwrap_or_default();
            match event {
                NodeEvent::Greeted => {
                    starting.remove(&number);
                    self.prepare(number, launch)?;
                }
                NodeEvent::Message(ToFrontEnd::Ready) => {
                    ready = ready.saturating_add(1);
                    if ready == self.nodes.len() {
                        self.let_go();
                    }
                }
                NodeEvent::Message(ToFrontEnd::Started { .. }) => started = started.saturating_add(1),
                NodeEvent::Message(ToFrontEnd::Failed { reason, is_usage }) => {
                    return Err(RemoteStartError::Refused { host: host(), reason, is_usage });
                }
                NodeEvent::Lost { reason, .. } => {
                    return Err(RemoteStartError::Lost { host: host(), reason });
                }
                event => early.push((number, event)),
            }
        }
        Ok(early)
    }

    /// Starts the agent of the node with this number.
    fn start_edge(
        self: &Arc<Self>,
        (number, node): (usize, &Node),
        (launch, reattach): (&Launch<'_>, &Option<Reattach>),
        engine: &Arc<Engine>,
        events: &Sender<NumberedEvent>,
    ) -> Result<Edge, RemoteStartError> {
        let (host, edges) = (&node.host, self.nodes.len());
        let not_started = |error| RemoteStartError::Carrier { host: host.clone(), error };
        // With `reattach`, the agent, which may be the carrier's process, outlives this process for a while.
        let guardian = if reattach.is_none() { engine.guardian() } else { None };
        let carrier = launch.carriers.start(host, None, edges, false, guardian.as_deref());
        engine.check_guardian();
        let carrier = carrier.map_err(not_started)?;
        let linked = reattach.as_ref().map(|reattach| reattach.edge(host));
        Ok(Edge::start((carrier, linked), (number, node), (self, engine), events)?)
    }

    /// Lets an agent that has greeted prepare the start of its ranks.
    fn prepare(&self, number: usize, launch: &Launch<'_>) -> Result<(), RemoteStartError> {
        let Some(node) = self.nodes.get(number) else { return Ok(()) };
        let start = start_of(launch, node)?;
        match self.state().edges.get(number) {
            Some(Some(edge)) => Ok(edge.prepare(start)?),
            _ => Ok(()),
        }
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

/// Returns the stdin of a rank that this process sends: who answers the rank, of which `audience` sees
/// the output. Tools may see it, too, so an output that nobody reads makes no difference.
fn forwarded(interaction: Interaction, audience: Audience) -> RankStdin {
    match (interaction, audience) {
        (Interaction::None, _) => RankStdin::Forwarded,
        (Interaction::Typed, Audience::Person) => RankStdin::Keyed,
        _ => RankStdin::Answered,
    }
}

/// Returns what the agent of a node is to start.
fn start_of(launch: &Launch<'_>, node: &Node) -> Result<Start, RemoteStartError> {
    let own = env::current_dir().map_err(RemoteStartError::Directory)?;
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
        Stdin::Pipe => Some((rank, forwarded(spec.interaction(rank), launch.audience))),
        Stdin::File(path) => Some((rank, RankStdin::File(absolute(path)))),
        _ => None,
    });
    let pty = |rank: Rank| spec.ptys.get(&rank).or_else(|| spec.ptys.get(&Rank::WILDCARD));
    let terminal = |Pty { size, echo, .. }: Pty| Terminal { rows: size.rows, columns: size.columns, echo };
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
        max_line_time: launch.lines.max_time.map(millis),
        cache_size: launch.cache_size,
        cache_total: launch.cache_total,
        drop: launch.drop,
        grace: spec.grace.map(millis),
        kill_wait: millis(spec.kill_wait),
        hide_launcher: launch.hide_launcher,
        backend: launch.backend.map(|backend| backend.to_string()),
        socket: match &launch.socket {
            AgentSocket::In(directory) => AgentSocket::In(absolute(Path::new(directory))),
            socket => socket.clone(),
        },
        files: launch.files.clone(),
    })
}
