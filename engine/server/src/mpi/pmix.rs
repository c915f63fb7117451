//! PMIx for the ranks of a job: the server in libpmix, whose reports go to the control thread.

use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, thread};

use iof_capture::{Processors, find_program, interpreter_words};
use iof_core::{Input, JobId, MessageOrigin, MpiEvent};
use iof_pmix_server::{
    AppInfo, Event, EventKind, JobInfo, Need, PmixServer, RankRequest, RegisterError, StartError, Variables,
    is_launcher,
};
use iof_proto::limits::MAX_NSPACE;
use iof_proto::{App, Failure, JobSpec, Mpi, Rank, Status, ToTool};

use crate::error::{LaunchError, PmixError};
use crate::job::plan::first_processes;
use crate::mpi::pmi::unique_name;
use crate::mpi::pmix_names::{PmixNames, from_pmix, to_pmix};
use crate::tables::files::node_name;
use crate::tables::reports::Reports;

/// The variable that names the library.
const LIBRARY_VARIABLE: &str = "IOF_LIBPMIX";
/// The library of the system, as the dynamic linker finds it.
const SYSTEM_LIBRARY: &str = "libpmix.so.2";
/// The variable with directories for the dynamic linker.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The programs that start the program among their arguments.
const STARTERS: [&str; 16] = [
    "chrt", "env", "gdb", "ionice", "ltrace", "nice", "nohup", "numactl", "perf", "setsid", "stdbuf",
    "strace", "taskset", "time", "timeout", "valgrind",
];
/// The number of arguments that are looked at for a program to be started.
const WORDS_OF_STARTER: usize = 16;
/// The number of files that libpmix opens for itself.
const FILES_OF_SERVER: u64 = 16;

/// The largest number of warnings about refused requests: a rank may go on.
const WARNINGS: u64 = 10;
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
    info: JobInfo,
    variables: Vec<Variables>,
}

impl PmixJob {
    /// Returns the variables with which a rank finds the server, and those by which scripts under
    /// Open MPI's mpirun know the rank.
    pub(crate) fn variables(&self, rank: Rank) -> Variables {
        let known = usize::try_from(rank.0).ok().and_then(|rank| self.variables.get(rank));
        let mut variables = known.cloned().unwrap_or_default();
        let size = self.variables.len() as u64;
        let own = [("RANK", u64::from(rank.0)), ("SIZE", size)];
        let local = [("LOCAL_RANK", u64::from(rank.0)), ("LOCAL_SIZE", size), ("NODE_RANK", rank.0.into())];
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
    /// Returns the library with its version, if the server runs.
    pub(crate) fn library(&self) -> Option<String> {
        let server = self.server()?;
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
    fn start(&self, library: &Path, reports: &Arc<Reports>) -> Result<Arc<PmixServer>, StartError> {
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
        let started = PmixServer::start(library, receive, request);
        let started = Arc::new(started?);
        *server = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the server, which is started if it does not run, with the library of ranks that have PMIx
    /// and are not linked with one.
    pub(crate) fn start_alone(&self, reports: &Arc<Reports>) -> Result<Arc<PmixServer>, StartError> {
        let none = MpiNeeds { needs: Vec::new(), is_linked: false };
        self.start(&none.library(Mpi::Pmix).unwrap_or_default(), reports)
    }

    /// Makes a job known to the server.
    fn register(
        &self,
        server: Arc<PmixServer>,
        spec: &JobSpec,
        job: &JobId,
        cores: &[Processors],
    ) -> Result<PmixJob, RegisterError> {
        let name = pmix_name(job);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let parent = spec.parent.as_ref().and_then(|parent| {
            let named = jobs.iter().filter(|(_, job)| job.nspace == parent.nspace);
            let (name, _) = named.max_by_key(|(_, job)| job.run)?;
            Some((name.clone(), parent.rank.0))
        });
        jobs.insert(name.clone(), job.clone());
        drop(jobs);
        let info = JobInfo { parent, ..job_info(spec, name.clone(), cores) };
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
        let server = match self.start(&library, reports) {
            Ok(server) => server,
            Err(error) if needs.can_be_alone(spec) => {
                let (job, error) = (&spec.nspace, LaunchError::from(PmixError::from(error)));
                tracing::warn!(%job, %error, "cannot serve PMIx: each rank is alone if it uses Open MPI");
                return Ok(None);
            }
            Err(error) => return Err(PmixError::from(error).into()),
        };
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

/// Returns whether the ranks would start MPI: [`JobSpec::mpi`] is not [`Mpi::None`], and a program is
/// linked with an MPI library. Looks for the programs on this node.
pub fn needs_mpi(spec: &JobSpec) -> bool {
    MpiNeeds::of(spec).is_mpi()
}

/// What the programs of a job need to start MPI. To find out, files are opened and read.
pub(crate) struct MpiNeeds {
    /// One need for each program, or that of the first interpreter of Python that has mpi4py.
    needs: Vec<Need>,
    /// A program is linked with an MPI library. A script may use mpi4py or not.
    is_linked: bool,
}

impl MpiNeeds {
    /// Looks at the programs of a job, unless it does not serve MPI.
    pub(crate) fn of(spec: &JobSpec) -> MpiNeeds {
        if spec.mpi == Mpi::None {
            return MpiNeeds { needs: Vec::new(), is_linked: false };
        }
        let needs: Vec<Need> = first_processes(spec).map(|process| need_behind(&process.app)).collect();
        if needs.iter().any(|need| *need != Need::None) {
            return MpiNeeds { needs, is_linked: true };
        }
        let python = first_processes(spec).map(|process| need_of_python(&process.app));
        let needs = python.into_iter().find(|need| *need != Need::None);
        MpiNeeds { needs: needs.into_iter().collect(), is_linked: false }
    }

    /// Returns whether a program is linked with an MPI library.
    pub(crate) fn is_mpi(&self) -> bool {
        self.is_linked
    }

    /// Returns whether a job has PMI-1 and is known to use it.
    pub(crate) fn is_pmi1(&self, mpi: Mpi) -> bool {
        mpi == Mpi::Pmi1 || (mpi == Mpi::Auto && self.needs.contains(&Need::Pmi1))
    }

    /// Returns whether some programs need PMI-1, others PMIx, and the protocol is not chosen.
    pub(crate) fn is_mixed(&self, mpi: Mpi) -> bool {
        mpi == Mpi::Auto && self.needs.contains(&Need::Pmi1) && self.pmix().is_some()
    }

    /// Returns the number of files that the PMIx server may open for a job.
    pub(crate) fn files(&self, spec: &JobSpec) -> u64 {
        self.library(spec.mpi).map_or(0, |_| spec.nprocs().saturating_add(FILES_OF_SERVER))
    }

    /// Returns the library of the first program that needs PMIx.
    fn pmix(&self) -> Option<&Path> {
        self.needs.iter().find_map(|need| match need {
            Need::Pmix(library) => Some(library.as_path()),
            Need::None | Need::Pmi1 | Need::OldOpenMpi => None,
        })
    }

    /// Returns the library with which to serve a job, or `None` if it needs none.
    fn library(&self, mpi: Mpi) -> Option<PathBuf> {
        let named = || env::var_os(LIBRARY_VARIABLE).filter(|library| !library.is_empty()).map(PathBuf::from);
        let needed = || self.pmix().map(Path::to_owned);
        match mpi {
            Mpi::Auto if self.pmix().is_none() && self.needs.contains(&Need::Pmi1) => None,
            Mpi::Auto => named().or_else(needed),
            Mpi::Pmix => named().or_else(needed).or_else(|| Some(SYSTEM_LIBRARY.into())),
            _ => None,
        }
    }

    /// Returns whether a job can run without the PMIx server, unless it is asked for: one rank can,
    /// and so can programs that are not linked with Open MPI, such as scripts.
    fn can_be_alone(&self, spec: &JobSpec) -> bool {
        spec.mpi == Mpi::Auto && (spec.nprocs() < 2 || !self.is_linked || self.pmix().is_none())
    }

    /// Returns the reason if each rank of a job would be alone, as its protocol is not that of its
    /// linked programs.
    pub(crate) fn reason_to_be_alone(&self, spec: &JobSpec) -> Option<&'static str> {
        let has = |need| self.is_linked && spec.nprocs() > 1 && self.needs.contains(&need);
        if has(Need::OldOpenMpi) {
            Some("only its own mpirun can start Open MPI 4, and iof starts Open MPI 5")
        } else if spec.mpi == Mpi::Pmi1 && self.pmix().is_some_and(|library| has(Need::Pmix(library.into())))
        {
            Some("Open MPI starts by PMIx, and the job has PMI-1: choose auto")
        } else if spec.mpi == Mpi::Pmix && has(Need::Pmi1) {
            Some("MPICH starts by PMI-1 unless it was built with PMIx, and the job has PMIx: choose auto")
        } else {
            None
        }
    }
}

/// Returns the need of the first file that is linked with an MPI library.
fn need_behind(app: &App) -> Need {
    let search = variable(app, LIBRARY_PATH);
    let needs = files_behind(app).into_iter().map(|file| Need::of(&file, search.as_deref()));
    needs.into_iter().find(|need| *need != Need::None).unwrap_or(Need::None)
}

/// Returns the need of mpi4py in the first interpreter of Python that has it.
fn need_of_python(app: &App) -> Need {
    let interpreters = files_behind(app).into_iter().filter(|file| Need::is_python(file));
    let needs = interpreters.map(|file| Need::of_python(&file, |name| variable(app, name)));
    needs.into_iter().find(|need| *need != Need::None).unwrap_or(Need::None)
}

/// Returns a variable of a app.
fn variable(app: &App, wanted: &str) -> Option<OsString> {
    let own = app.env.iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    own.or_else(|| env::var_os(wanted))
}

/// Returns the file of a program, or of the interpreter if it is a script. For a program that starts
/// another one, its first arguments follow. A launcher has its own ranks.
fn files_behind(app: &App) -> Vec<PathBuf> {
    // A program that cannot be found was refused by the checks before.
    let find = |word: &OsString| {
        let mut named = app.clone();
        named.program.clone_from(word);
        find_program(&named).ok()
    };
    let expand = |word: &OsString| match find(word) {
        Some(file) if is_launcher(&file) => Vec::new(),
        Some(file) => interpreter_words(&file).unwrap_or_else(|| vec![word.clone()]),
        None => Vec::new(),
    };
    let mut words = expand(&app.program);
    let name = words.first().and_then(|word| Path::new(word).file_name()).map(OsStr::to_owned);
    if STARTERS.iter().any(|starter| name.as_deref() == Some(OsStr::new(starter))) {
        let named = app.args.iter().take(WORDS_OF_STARTER).filter(|word| !word.as_bytes().starts_with(b"-"));
        words.extend(named.flat_map(expand));
    } else {
        words.truncate(1);
    }
    words.iter().filter_map(find).collect()
}

/// Returns the name of a job in PMIx, which is unique: engines may run jobs of the same name. Other
/// users who guessed it could connect as a rank, because libpmix believes the uid that a client
/// sends.
fn pmix_name(job: &JobId) -> String {
    let suffix = unique_name("@", job);
    let room = MAX_NSPACE.saturating_sub(suffix.len());
    let mut name = job.nspace.to_string();
    while name.len() > room {
        name.pop();
    }
    name + &suffix
}

fn job_info(spec: &JobSpec, nspace: String, cores: &[Processors]) -> JobInfo {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    JobInfo {
        nspace,
        parent: None,
        // The name only tells nodes apart, and there is one.
        node: node_name().unwrap_or_else(|_| "localhost".into()),
        oversubscribed: spec.nprocs() > u64::try_from(processors).unwrap_or(u64::MAX),
        apps: spec.apps.iter().map(app_info).collect(),
        processors: cores.iter().map(Processors::numbers).collect(),
    }
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
    | ToTool::Exchanged(Err(Failure { status, reason }))) = answer
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
    use iof_proto::Nspace;

    #[test]
    fn the_longest_name_of_a_job_leaves_room_for_what_makes_it_unique() {
        for (text, length) in [("demo", 4), (&"ä".repeat(127), 127 * 2)] {
            let job = |run| JobId { nspace: Nspace::new(text).unwrap(), run };
            let (name, next) = (pmix_name(&job(7)), pmix_name(&job(8)));
            assert!(name.len() <= MAX_NSPACE && name != next, "{name}");
            assert!(length > 100 || name.starts_with("demo@"), "{name}");
        }
    }
}
