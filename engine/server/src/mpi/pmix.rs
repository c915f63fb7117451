//! PMIx for the ranks of a job: the server in libpmix, whose reports go to the control thread.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, thread};

use iof_capture::Processors;
use iof_core::{Input, JobId, MessageOrigin};
use iof_pmix_server::{
    AppInfo, Event, EventKind, PmixServer, RankRequest, RegisterError, RegisteredJob, StartError, Variables,
};
use iof_proto::limits::MAX_NSPACE;
use iof_proto::{
    App, Failure, JobSpec, Mpi, MpiEvent, MpiNodes, Node, Nspace, Rank, Relative, Status, ToTool,
};

use crate::error::{LaunchError, PmixError};
use crate::job::plan::planned_ranks;
use crate::mpi::needs::MpiNeeds;
use crate::mpi::pmi::unique_name;
use crate::mpi::pmix_names::{PmixNames, from_pmix, to_pmix};
use crate::tables::files::node_name;
use crate::tables::reports::Reports;

/// The largest number of warnings about refused requests: a rank may go on.
const WARNINGS: u64 = 10;
/// The number of jobs on nodes so far. Open MPI tells jobs of one name apart by the first number after `@` only.
static ON_NODES: AtomicU64 = AtomicU64::new(1);
/// The run of jobs of other nodes, which is that of none of this engine.
const RELATIVE: u64 = 0;
/// The number of requests that were refused for a limit.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// The PMIx server of an engine, which starts with the first job that needs it.
#[derive(Default)]
pub(crate) struct PmixHost {
    server: Mutex<Option<Arc<PmixServer>>>,
    jobs: Arc<Mutex<PmixNames>>,
}

/// A job that the PMIx server serves.
pub(crate) struct PmixJob {
    server: Arc<PmixServer>,
    info: RegisteredJob,
    variables: Vec<Variables>,
}

impl PmixJob {
    /// Returns the variables with which a rank finds the server, and those by which scripts under
    /// Open MPI's mpirun know the rank.
    pub(crate) fn variables(&self, rank: Rank) -> Variables {
        // That of the ranks of this node, in their order.
        let local = self.info.own_ranks().position(|other| other == rank.0).unwrap_or(usize::MAX);
        let mut variables = self.variables.get(local).cloned().unwrap_or_default();
        let (size, local) = (u64::from(self.info.size()), local as u64);
        let own = [("RANK", u64::from(rank.0)), ("SIZE", size)];
        let count = self.variables.len() as u64;
        let local = [("LOCAL_RANK", local), ("LOCAL_SIZE", count), ("NODE_RANK", local)];
        let variable =
            |(name, value): (&str, u64)| (format!("OMPI_COMM_WORLD_{name}").into(), value.to_string().into());
        variables.extend(own.into_iter().chain(local).map(variable));
        variables.push(("OMPI_UNIVERSE_SIZE".into(), size.to_string().into()));
        variables
    }

    /// Tells the ranks their pids. All ranks have started.
    pub(crate) fn started(&self, pids: &[u32]) {
        self.server.started(&self.info, pids);
    }
}

impl PmixHost {
    /// Returns the library with its version, if the server serves this job.
    pub(crate) fn library(&self, job: &JobId) -> Option<String> {
        let server = self.server_of(job)?;
        let version = server.version().split(" (").next().unwrap_or_default();
        Some(format!("{version}, {}", server.path().display()))
    }

    /// Returns the server, if it runs.
    pub(crate) fn server(&self) -> Option<Arc<PmixServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the server, if it serves this job.
    pub(crate) fn server_of(&self, job: &JobId) -> Option<Arc<PmixServer>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_served = jobs.values().any(|served| served == job);
        drop(jobs);
        self.server().filter(|_| is_served)
    }

    /// Returns the server, which is started if it does not run.
    fn start(
        &self,
        library: &Path,
        host: Option<String>,
        reports: &Arc<Reports>,
    ) -> Result<Arc<PmixServer>, StartError> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = &*server {
            return Ok(Arc::clone(server));
        }
        let (jobs, events) = (Arc::clone(&self.jobs), Arc::clone(reports));
        let receive = move |event: Event| {
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(job) = jobs.get(&event.nspace) {
                events.send(input(job.clone(), &event));
            }
        };
        let (jobs, requests) = (Arc::clone(&self.jobs), Arc::clone(reports));
        let request = move |request| {
            // A request that is dropped is refused thereby.
            if let Some(input) = rank_request(&jobs, request) {
                requests.send(input);
            }
        };
        let started = PmixServer::start(library, host, receive, request);
        let started = Arc::new(started?);
        *server = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the server, which is started if it does not run, with the library of ranks that have PMIx
    /// and are not linked with one.
    pub(crate) fn start_alone(&self, reports: &Arc<Reports>) -> Result<Arc<PmixServer>, StartError> {
        let library = MpiNeeds::of_variables(&[]).library(Mpi::Pmix);
        self.start(&library.unwrap_or_default(), None, reports)
    }

    /// Passes `done` what a rank has put for ranks of other nodes, once it has. Does not block.
    pub(crate) fn modex(
        &self,
        job: &JobId,
        rank: Rank,
        done: impl FnOnce(Result<Vec<u8>, Status>) + Send + 'static,
    ) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let name = jobs.iter().find(|(_, served)| *served == job).map(|(name, _)| name.clone());
        drop(jobs);
        match self.server().zip(name) {
            Some((server, name)) => server.modex(&name, rank.0, done),
            None => done(Err(Status::ERR_NOT_FOUND)),
        }
    }

    /// Makes a job known to the ranks of this node, which may connect to its ranks. Does nothing without a server,
    /// or if it is known.
    ///
    /// # Errors
    /// The server refuses it, or does not answer in time.
    pub(crate) fn add_relative(&self, relative: &Relative) -> Result<(), RegisterError> {
        let Some(server) = self.server() else { return Ok(()) };
        let Relative { nspace, nodes } = relative;
        let name = pmix_name(nspace, &nodes.name);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.contains_key(&name) {
            return Ok(());
        }
        jobs.insert(name.clone(), JobId { nspace: nspace.clone(), run: RELATIVE });
        drop(jobs);
        let ranks = nodes.nodes.iter().map(|node| node.ranks.len()).sum::<usize>();
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        let info = RegisteredJob {
            nspace: name,
            parent: None,
            nodes: nodes.clone(),
            own: None,
            oversubscribed: false,
            apps: vec![AppInfo { ranks, command: String::new(), directory: String::new() }],
            processors: Vec::new(),
        };
        let registered = server.register(&info);
        if registered.is_err() {
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&info.nspace);
        }
        registered.map(drop)
    }

    /// Makes the server forget a job of other nodes.
    pub(crate) fn remove_relative(&self, nspace: Nspace) {
        self.remove(&JobId { nspace, run: RELATIVE });
    }

    /// Makes a job known to the server.
    fn register(
        &self,
        server: Arc<PmixServer>,
        spec: &JobSpec,
        job: &JobId,
        cores: &[Processors],
    ) -> Result<PmixJob, RegisterError> {
        let unique = spec.mpi_nodes.as_ref().map_or_else(|| unique_name(job.run), |nodes| nodes.name.clone());
        let name = pmix_name(&job.nspace, &unique);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let parent = spec.parent.as_ref().and_then(|parent| {
            let named = jobs.iter().filter(|(_, job)| job.nspace == parent.nspace);
            let (name, _) = named.max_by_key(|(_, job)| job.run)?;
            Some((name.clone(), parent.rank.0))
        });
        jobs.insert(name.clone(), job.clone());
        drop(jobs);
        let info = RegisteredJob { parent, ..job_info(spec, name.clone(), cores) };
        let registered = server.register(&info);
        if registered.is_err() {
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        }
        registered.map(|variables| PmixJob { server, info, variables })
    }

    /// Makes a job, whose ranks are bound to `cores` if there are any, known to the server. Returns
    /// `None` if it needs none.
    ///
    /// # Errors
    /// [`LaunchError::Pmix`].
    pub(crate) fn serve(
        &self,
        (spec, needs): (&JobSpec, &MpiNeeds),
        job: &JobId,
        cores: &[Processors],
        reports: &Arc<Reports>,
    ) -> Result<Option<PmixJob>, LaunchError> {
        if let Some(reason) = needs.reason_to_be_alone(spec) {
            if spec.mpi != Mpi::Auto {
                return Err(LaunchError::Alone(reason));
            }
            tracing::warn!(job = %spec.nspace, "each rank is alone: {reason}");
        }
        let Some(library) = needs.library(spec.mpi) else { return Ok(None) };
        let host = own_node(spec).map(|(_, node)| node.host.clone());
        let server = match self.start(&library, host, reports) {
            Ok(server) => server,
            Err(error) if needs.can_be_alone(spec) => {
                let (job, error) = (&spec.nspace, LaunchError::from(PmixError::from(error)));
                tracing::warn!(%job, %error, "cannot serve PMIx: each rank is alone if it uses Open MPI");
                return Ok(None);
            }
            Err(error) => return Err(PmixError::from(error).into()),
        };
        let relatives = spec.mpi_nodes.iter().flat_map(|nodes| &nodes.relatives);
        relatives.into_iter().try_for_each(|job| self.add_relative(job)).map_err(PmixError::from)?;
        Ok(Some(self.register(server, spec, job, cores).map_err(PmixError::from)?))
    }

    /// Makes the server forget a job, if it knows it.
    pub(crate) fn remove(&self, removed: &JobId) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // By its run, too: another job may have the name already.
        let name = jobs.iter().find(|(_, job)| *job == removed).map(|(name, _)| name.clone());
        let Some(name) = name else { return };
        jobs.remove(&name);
        // The server may be about to report an event.
        drop(jobs);
        if let Some(server) = self.server() {
            server.deregister(&name);
        }
    }
}

/// Returns the protocol by which the ranks of a job start MPI on these nodes, if programs of this node tell, with
/// what the nodes are to know of each other.
///
/// # Errors
/// The programs can't be one world by this protocol.
pub fn mpi_nodes(spec: &JobSpec, nodes: &[Node]) -> Result<(Mpi, Option<MpiNodes>), LaunchError> {
    let needs = MpiNeeds::of(spec);
    if needs.is_mixed(spec.mpi) {
        return Err(LaunchError::MixedMpi);
    }
    if let Some(reason) = needs.reason_to_be_alone(spec) {
        return Err(LaunchError::Alone(reason));
    }
    let mpi = match spec.mpi {
        Mpi::None => return Ok((Mpi::None, None)),
        Mpi::Auto if needs.library(Mpi::Auto).is_some() => Mpi::Pmix,
        Mpi::Auto if needs.is_pmi1(Mpi::Auto) => Mpi::Pmi1,
        mpi => mpi,
    };
    // Relaxed: only the number itself counts.
    let name = unique_name(ON_NODES.fetch_add(1, Ordering::Relaxed));
    Ok((mpi, Some(MpiNodes { name, nodes: nodes.into(), relatives: Vec::new() })))
}

/// Returns the name of a job in PMIx, which is unique: engines may run jobs of the same name. Other
/// users who guessed it could connect as a rank, because libpmix believes the uid that a client
/// sends.
fn pmix_name(nspace: &Nspace, unique: &str) -> String {
    let suffix = format!("@{unique}");
    let room = MAX_NSPACE.saturating_sub(suffix.len());
    let mut name = nspace.to_string();
    while name.len() > room {
        name.pop();
    }
    name + &suffix
}

fn job_info(spec: &JobSpec, nspace: String, cores: &[Processors]) -> RegisteredJob {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let ranks: BTreeSet<Rank> = planned_ranks(spec).map(|planned| planned.rank).collect();
    let oversubscribed = ranks.len() > processors;
    let (nodes, own) = match (&spec.mpi_nodes, own_node(spec)) {
        (Some(nodes), Some((own, _))) => (nodes.clone(), own),
        _ => {
            // The name only tells nodes apart, and there is one.
            let host = node_name().unwrap_or_else(|_| "localhost".into());
            (MpiNodes { name: String::new(), nodes: vec![Node { host, ranks }], relatives: Vec::new() }, 0)
        }
    };
    RegisteredJob {
        nspace,
        parent: None,
        nodes,
        own: Some(own),
        oversubscribed,
        apps: spec.apps.iter().map(app_info).collect(),
        processors: cores.iter().map(Processors::numbers).collect(),
    }
}

/// Returns this node with its number, if the job has several.
fn own_node(spec: &JobSpec) -> Option<(u32, &Node)> {
    spec.mpi_nodes.as_ref()?.node_of(*spec.local.as_ref()?.first()?)
}

fn app_info(app: &App) -> AppInfo {
    let words = std::iter::once(&app.program).chain(&app.args).map(OsString::as_os_str);
    let current = env::current_dir().unwrap_or_default();
    let directory = app.cwd.as_ref().map_or(current.clone(), |cwd| current.join(cwd));
    AppInfo {
        ranks: app.nprocs,
        command: words.collect::<Vec<&OsStr>>().join(OsStr::new(" ")).to_string_lossy().into_owned(),
        directory: directory.to_string_lossy().into_owned(),
    }
}

fn input(job: JobId, event: &Event) -> Input {
    let kind = match event.kind {
        EventKind::Connected => MpiEvent::Initialized,
        EventKind::Finalized => MpiEvent::Finalized,
        EventKind::Aborted { code } => MpiEvent::Aborted { code },
    };
    Input::Mpi { job, rank: Rank(event.rank), event: kind }
}

/// Logs the reason for which a request is refused: the rank receives only a status. A limit that is
/// reached is a warning.
fn log_refusal(rank: Option<&(JobId, Rank)>, answer: &ToTool) {
    let (ToTool::Answer { result: Err(Failure { status, reason }), .. }
    | ToTool::Logged { result: Err(Failure { status, reason }), .. }
    | ToTool::Signalled { result: Err(Failure { status, reason }), .. }
    | ToTool::Spawned { result: Err(Failure { status, reason }), .. }
    | ToTool::Exchanged(Err(Failure { status, reason }))
    | ToTool::Fenced(Err(Failure { status, reason }))) = answer
    else {
        return;
    };
    let rank = rank.map(|(job, rank)| format!("{}.{rank}", job.nspace)).unwrap_or_default();
    let is_warning = [Status::ERR_OUT_OF_RESOURCE, Status::ERR_RESOURCE_BUSY].contains(status)
        || matches!(answer, ToTool::Spawned { .. });
    // Relaxed: only the number itself counts.
    if is_warning && REFUSALS.fetch_add(1, Ordering::Relaxed) < WARNINGS {
        tracing::warn!(rank, "a request of PMIx is refused: {reason}");
    } else {
        tracing::debug!(rank, "a request of PMIx is refused: {reason}");
    }
}

/// Returns the input for a request of a rank; `None` if its job is no longer known.
fn rank_request(names: &Arc<Mutex<PmixNames>>, request: RankRequest) -> Option<Input> {
    let RankRequest { from, mut message, reply } = request;
    let known = names.lock().unwrap_or_else(PoisonError::into_inner);
    let rank = match from {
        Some((nspace, rank)) => Some((known.get(&nspace)?.clone(), Rank(rank))),
        None => None,
    };
    from_pmix(&mut message, &known);
    let (names, from) = (Arc::clone(names), rank.clone());
    let reply = Box::new(move |mut answer| {
        log_refusal(from.as_ref(), &answer);
        to_pmix(&mut answer, &names.lock().unwrap_or_else(PoisonError::into_inner));
        reply.send(answer);
    });
    Some(Input::Message { from: MessageOrigin::Rank { rank, reply }, message })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn jobs_on_nodes_have_names_that_open_mpi_tells_apart() {
        let mut spec = JobSpec::new(Nspace::new("demo").unwrap(), Vec::new());
        spec.mpi = Mpi::Pmix;
        let number = || {
            let name = mpi_nodes(&spec, &[]).unwrap().1.unwrap().name;
            name.split('.').next().unwrap().parse::<u64>().unwrap()
        };
        assert!(number() < number());
    }

    #[test]
    fn the_longest_name_of_a_job_leaves_room_for_what_makes_it_unique() {
        for (text, length) in [("demo", 4), (&"ä".repeat(127), 127 * 2)] {
            let name = |run| pmix_name(&Nspace::new(text).unwrap(), &unique_name(run));
            let (name, next) = (name(7), name(8));
            assert!(name.len() <= MAX_NSPACE && name != next, "{name}");
            assert!(length > 100 || name.starts_with("demo@"), "{name}");
        }
    }
}
