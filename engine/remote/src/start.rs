//! The start of a job on its nodes: first all agents, then all ranks.

mod agents;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fmt, mem};

use crossbeam::channel::unbounded;
use iof_capture::{check_files, check_maps};
use iof_engine::{
    DEFAULT_CACHE_TOTAL, Engine, Interaction, Job, JobSpec, KillOnBadExit, Node, Policy, Pty, Rendezvous,
    Signal, Stdin, mpi_nodes, own_interaction,
};
use iof_nodes::limits::{MAX_DIALS, MAX_NODES};
use iof_nodes::{NodeConfig, NodeStart, ToAgent};
use iof_output::{Audience, FlushTimeout, PrintReport};
use iof_proto::{Channel, Mpi, Rank, Relative};
use iof_tool::DirectInput;

use self::agents::AgentStarts;
pub use self::agents::{StartProgress, StartStep};
use crate::carrier::DRAIN_LIMIT;
use crate::carriers::Carriers;
use crate::cost::AgentCosts;
use crate::edge::Edge;
use crate::environment;
use crate::error::{RemoteLimitError, RemoteStartError};
use crate::follower::FilesCallback;
use crate::output::DirectOutput;
use crate::relatives::Relatives;
use crate::remote::Remote;

/// The default time limit of a start.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Descriptors of the front end for each rank and each edge, and maps for each rank.
const FILES_PER_RANK: u64 = Channel::OUTPUTS.len() as u64 + 1;
const FILES_PER_EDGE: u64 = 5;
const MAPS_PER_RANK: u64 = 4 * Channel::OUTPUTS.len() as u64;
/// Descriptors of the front end apart from these, with those of connections without a proof.
const OTHER_FILES: u64 = 64 + MAX_DIALS as u64;

/// A job to be started, and the settings of its start.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The job. What is pushed to a rank with [`Stdin::Inherit`] is typed at its terminal.
    pub spec: &'a JobSpec,
    /// The way in which agents are reached.
    pub carriers: &'a Carriers,
    /// The time for which a node may be without a connection, if connections are replaced. The
    /// agents must be started with the same time.
    pub reattach: Option<Duration>,
    /// The time after which a node is lost if nothing arrives from it, although its agent reports once
    /// a second; `None` for no limit.
    pub node_timeout: Option<Duration>,
    /// The time until all ranks must run, if that of the job is not shorter; `None` for no limit. The default is
    /// [`START_TIMEOUT`].
    pub start_timeout: Option<Duration>,
    /// The number of agents that start at once, at least 1. The default is [`Carriers::starts`].
    pub starts: usize,
    /// The reader of the job's output.
    pub audience: Audience,
    /// The printers of the job, which get the output without rings; `None` to put the output of each
    /// rank into a ring of the engine. With printers, tools can read it, too: a stream has a ring while
    /// one does.
    pub printers: Option<Vec<DirectInput>>,
    /// The settings of the nodes.
    pub config: NodeConfig,
    /// The jobs whose ranks may connect to those of this one by PMIx. It is one of them once its ranks run.
    pub relatives: Relatives,
}

/// A job whose ranks run on other nodes.
#[derive(Clone)]
pub struct RemoteJob {
    /// The job of the front end's engine.
    pub job: Job,
    remote: Arc<Remote>,
}

impl fmt::Debug for RemoteJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteJob").field("job", &self.job).finish_non_exhaustive()
    }
}

/// The starts of all agents: what is the same on all nodes, and what differs by rank.
struct Starts {
    start: NodeStart,
    stdin: BTreeMap<Rank, Stdin>,
    own_stdin: BTreeSet<Rank>,
    interactions: BTreeMap<Rank, Interaction>,
    ptys: BTreeMap<Rank, Pty>,
}

impl<'a> Launch<'a> {
    /// Returns the launch of a job with the defaults of `iof run`: ranks have the variables of this
    /// process ([`environment::of_ranks`]), a node is lost with its connection, and nothing is
    /// dropped.
    pub fn new(spec: &'a JobSpec, carriers: &'a Carriers) -> Launch<'a> {
        let FlushTimeout { max_line, max_time } = FlushTimeout::default();
        let config = NodeConfig {
            env: environment::of_ranks(&[]),
            cache_size: None,
            cache_total: DEFAULT_CACHE_TOTAL,
            policy: Policy::Block,
            max_line,
            max_line_time: max_time,
            backend: None,
            rendezvous: Rendezvous::Agent(None),
            files: None,
        };
        Launch {
            spec,
            carriers,
            reattach: None,
            node_timeout: None,
            start_timeout: Some(START_TIMEOUT),
            starts: carriers.starts(),
            audience: Audience::Program,
            printers: None,
            config,
            relatives: Relatives::default(),
        }
    }
}

impl Launch<'_> {
    /// Starts an agent on each node and, when all of them are ready, the ranks. Each rank of the job
    /// runs on one of the nodes. `engine` receives their output, so its readers should be attached
    /// before. Blocks until all ranks run. Meanwhile `is_interrupted` is called several times a
    /// second. `files` is called for each node that writes files, once these are complete or can't be
    /// written, which ends the job: with the host, and what was written or the reason.
    ///
    /// The nodes determine `local` and `elsewhere` of the job.
    ///
    /// # Errors
    /// A node can't start its ranks or does not do so in time, this process can't have their output,
    /// or `is_interrupted` has returned `true`. No rank runs on.
    pub fn start(
        &self,
        engine: &Arc<Engine>,
        nodes: &[Node],
        is_interrupted: &mut dyn FnMut(&StartProgress<'_>) -> bool,
        files: impl FnMut(String, Result<PrintReport, String>) + Send + 'static,
    ) -> Result<RemoteJob, RemoteStartError> {
        check(nodes, self.printers.is_none())?;
        let printers = self.printers.clone();
        let output = printers.map(|printers| Arc::new(DirectOutput::new(printers, self.spec.nprocs())));
        let remote = Arc::new(Remote::new(self.spec.nspace.clone(), nodes, output));
        let job = remote.start(self, engine, is_interrupted, Box::new(files))?;
        Ok(RemoteJob { job, remote })
    }
}

impl RemoteJob {
    /// Returns the number of bytes that have arrived, and that the printers have not written.
    pub fn unwritten(&self) -> u64 {
        self.remote.output.as_ref().map_or(0, |output| output.unwritten(None))
    }

    /// Lets the agents end, also those that would wait for other connections, although output may be
    /// missing: this process is about to end. Blocks until they know that, for two seconds at most.
    pub fn hang_up(&self) {
        let edges = self.remote.close(&ToAgent::HangUp);
        let deadline = Instant::now() + DRAIN_LIMIT;
        edges.iter().for_each(|edge| edge.drain(deadline));
    }

    /// Returns what forwarding has cost the agents that are over.
    pub fn costs(&self) -> AgentCosts {
        self.remote.costs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Checks that this process can have the edges of a job, and the rings of its ranks if it `has_rings`. Returns the
/// number of further files that it may open.
///
/// # Errors
/// The limit that is too low.
pub fn check(nodes: &[Node], has_rings: bool) -> Result<u64, RemoteLimitError> {
    let ranks = nodes.iter().map(|node| node.ranks.len() as u64).sum::<u64>();
    let rings = if has_rings { ranks } else { 0 };
    let files = rings.saturating_mul(FILES_PER_RANK);
    let files = files.saturating_add((nodes.len() as u64).saturating_mul(FILES_PER_EDGE));
    check_maps(rings.saturating_mul(MAPS_PER_RANK)).map_err(|maps| RemoteLimitError::Maps { ranks, maps })?;
    check_files(files.saturating_add(OTHER_FILES)).map_err(|files| RemoteLimitError::Files { ranks, files })
}

impl Remote {
    /// Starts all agents and, when all of them are ready, all ranks. Follows the nodes then.
    ///
    /// # Errors
    /// As [`Launch::start`].
    pub(crate) fn start(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        engine: &Arc<Engine>,
        is_interrupted: &mut dyn FnMut(&StartProgress<'_>) -> bool,
        files: FilesCallback,
    ) -> Result<Job, RemoteStartError> {
        self.check_ranks(launch.spec)?;
        self.check_reattach(launch)?;
        let mut starts = Starts::of(launch, &self.nodes)?;
        let edges = Arc::<Remote>::clone(self);
        let job = engine.begin_on_nodes(launch.spec, &self.nodes, edges, self.output.is_some())?;
        self.job.get_or_init(|| job.clone());
        // The engine refuses a name that is taken: another relative with this name has ended.
        let relative = starts.relative();
        if let Some(nodes) = &mut starts.start.spec.mpi_nodes {
            let introduced = relative.iter().flat_map(|own| launch.relatives.introduce(own, self));
            nodes.relatives = introduced.collect();
        }
        let started = self.start_agents(launch, &starts, engine, is_interrupted, files);
        match (&started, starts.start.spec.mpi_nodes, relative) {
            (Ok(_), Some(nodes), Some(own)) => launch.relatives.started(&own, self, &nodes.relatives),
            (Err(_), _, Some(own)) => launch.relatives.withdraw(own),
            _ => {}
        }
        if started.is_err() {
            engine.withdraw_from_nodes(&job);
        }
        started.map(|()| job)
    }

    /// Starts all agents and ranks.
    fn start_agents(
        self: &Arc<Self>,
        launch: &Launch<'_>,
        starts: &Starts,
        engine: &Arc<Engine>,
        is_interrupted: &mut dyn FnMut(&StartProgress<'_>) -> bool,
        files: FilesCallback,
    ) -> Result<(), RemoteStartError> {
        let (events, queue) = unbounded();
        let started = AgentStarts::new(self, (launch, starts), engine, events)
            .and_then(|agents| agents.run(queue, is_interrupted, files));
        if started.is_err() {
            // Agents end their ranks when their edges end.
            let edges: Vec<Edge> = self.edges().iter_mut().filter_map(Option::take).collect();
            edges.iter().for_each(|edge| edge.signal_carrier(Signal::TERM));
            let deadline = Instant::now() + DRAIN_LIMIT;
            edges.iter().for_each(|edge| edge.drain(deadline));
        }
        started
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
        let has_values = !spec.pmi_values.is_empty() && spec.mpi != Mpi::Pmi1;
        if spec.pmix_tools.is_some() || has_values {
            return Err(RemoteStartError::Mpi);
        }
        if spec.directives.forward.is_some() {
            return Err(RemoteStartError::Forward);
        }
        let inherits = placed.iter().filter(|rank| spec.stdin_of(**rank) == Stdin::Inherit);
        match inherits.enumerate().find(|(number, rank)| *number > 0 || spec.pty(**rank).is_none()) {
            Some((_, rank)) => Err(RemoteStartError::Stdin(*rank)),
            None => Ok(()),
        }
    }

    /// Checks that connections can be replaced if they are to be.
    fn check_reattach(&self, launch: &Launch<'_>) -> Result<(), RemoteStartError> {
        let can_link = launch.carriers.can_link() && launch.config.rendezvous != Rendezvous::None;
        let can_replace = can_link || launch.carriers.dials().is_some();
        if launch.reattach.is_some() && !can_replace {
            return Err(RemoteStartError::Reattach);
        }
        Ok(())
    }
}

impl Starts {
    fn of(launch: &Launch<'_>, nodes: &[Node]) -> Result<Starts, RemoteStartError> {
        let directory = env::current_dir().map_err(RemoteStartError::Directory)?;
        let mut start = NodeStart { spec: launch.spec.clone(), config: launch.config.clone() };
        if let Rendezvous::Session(path) | Rendezvous::Agent(path) | Rendezvous::System(path) =
            &mut start.config.rendezvous
        {
            *path = path.take().map(|path| directory.join(path));
        }
        let spec = &mut start.spec;
        for app in &mut spec.apps {
            let own = || directory.clone();
            app.cwd = Some(app.cwd.take().map_or_else(own, |path| directory.join(path)));
        }
        for stdin in spec.stdin.values_mut() {
            if let Stdin::File(path) = stdin {
                *path = directory.join(&*path);
            }
        }
        let own = own_interaction();
        let ranks = (0..u32::try_from(spec.nprocs()).unwrap_or(u32::MAX)).map(Rank);
        for rank in ranks.filter(|rank| launch.spec.stdin_of(*rank) == Stdin::Pipe) {
            // Tools may see the output, too, so an output that nobody reads makes no difference.
            let interaction = match (launch.spec.interaction(rank, || own), launch.audience) {
                (Interaction::None, _) => Interaction::None,
                (Interaction::Typed, Audience::Person) => Interaction::Typed,
                _ => Interaction::Piped,
            };
            spec.interactions.insert(rank, interaction);
        }
        // This process ends the job.
        (spec.kill_on_bad_exit, spec.timeout) = (KillOnBadExit::Never, None);
        (spec.mpi, spec.mpi_nodes) = mpi_nodes(launch.spec, nodes)?;
        spec.elsewhere = false;
        let (stdin, interactions) = (mem::take(&mut spec.stdin), mem::take(&mut spec.interactions));
        let (own_stdin, ptys) = (mem::take(&mut spec.own_stdin), mem::take(&mut spec.ptys));
        Ok(Starts { start, stdin, own_stdin, interactions, ptys })
    }

    /// Returns what the ranks of other jobs know of the job, if it starts MPI by PMIx.
    fn relative(&self) -> Option<Relative> {
        let JobSpec { nspace, mpi, mpi_nodes, .. } = &self.start.spec;
        let nodes = mpi_nodes.clone().filter(|_| *mpi == Mpi::Pmix)?;
        Some(Relative { nspace: nspace.clone(), nodes })
    }

    /// Returns what the agent of a node with these ranks is to start.
    fn of_node(&self, ranks: &BTreeSet<Rank>) -> NodeStart {
        let mut start = self.start.clone();
        let spec = &mut start.spec;
        (spec.stdin, spec.ptys) = (part(&self.stdin, ranks), part(&self.ptys, ranks));
        (spec.own_stdin, spec.interactions) = (&self.own_stdin & ranks, part(&self.interactions, ranks));
        spec.local = Some(ranks.clone());
        start
    }
}

/// Returns the part of a map that applies to `ranks`.
fn part<T: Clone>(all: &BTreeMap<Rank, T>, ranks: &BTreeSet<Rank>) -> BTreeMap<Rank, T> {
    let named = ranks.iter().chain([&Rank::WILDCARD]);
    named.filter_map(|rank| Some((*rank, all.get(rank)?.clone()))).collect()
}
