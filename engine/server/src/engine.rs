//! The handle of the engine that an embedder holds.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::{fmt, io, mem};

use iof_capture::{
    BackendKind, Capture, Event, Guardian, PipeId, StartError as CaptureError, check_files, raise_file_limit,
};
use iof_core::{Core, Grant, JobId, Limits, Logs, Settings, SharedMemory, places};
use iof_proto::rendezvous::{AnnounceError, JobLink, Level, Listener};
use iof_proto::{Nspace, Rendezvous};
use iof_shm_ring::{CacheBudget, MAX_SLOTS, ReaderPage};
use iof_tool::{AttachError, LocalRings, Tool};
use nix::unistd::geteuid;

use crate::config::Config;
use crate::control::in_flight::Budget;
use crate::control::stalls::StallReports;
use crate::control::starter::Starter;
use crate::control::{Control, FIRST_PEER};
use crate::error::{LaunchError, PmixError, StartError};
use crate::host::{Host, Standalone};
use crate::job::Job;
use crate::logs::log_channels::LogChannels;
use crate::mpi::pmi::PmiLinks;
use crate::mpi::pmix::PmixHost;
use crate::mpi::pmix_tools::{self, PmixTools};
use crate::mpi::topology::Topology;
use crate::tables::Tables;
use crate::tables::files::{EngineFiles, FILES_PER_RANK, TRANSIENT_FDS, file_limit, node_name};
use crate::tables::handles::Handles;
use crate::tables::reports::{Report, Reports};

pub(crate) mod adopt;
pub(crate) mod deliver;
pub(crate) mod launch;
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod register;
pub(crate) mod remove;

/// Number of files that the smallest useful engine has open: two readers in its own process, and a
/// job of one rank.
const MIN_FILES: u64 = 17 + 2 * 9 + FILES_PER_RANK + TRANSIENT_FDS;

/// The I/O forwarding of one launcher: drains the ranks' pipes into shared rings and serves tools.
///
/// An engine has three threads: the capture thread reads the ranks' pipes, the control thread
/// serves tools and makes the [upcalls](Host), and a watchdog detects ranks that stall the capture
/// thread. The output of such ranks is moved to threads of its own. The syslog, the job record,
/// mail and the gateway each get a thread when something is first logged there. An engine installs
/// no signal handlers, prints nothing and never exits the process. All methods may be called from
/// any thread.
///
/// Exits of ranks are detected through pidfds, so SIGCHLD is not needed. If the embedder ignores
/// SIGCHLD or waits for any child (see waitpid(2)), exits are still detected but reported as
/// [`Exit::Unknown`](crate::Exit).
///
/// The job record and the files of printers may reach a limit on file sizes (RLIMIT_FSIZE, see
/// setrlimit(2)). The kernel then sends SIGXFSZ, which ends the process by default. An embedder
/// under such a limit should ignore SIGXFSZ, so that only writes to that file fail. Ranks always
/// start with the default action of SIGXFSZ.
///
/// Dropping the engine ends its threads. It blocks while tools receive their last messages, for at
/// most [`MAX_LINGER`](iof_proto::limits::MAX_LINGER), and until a thread that is logging has
/// finished its message. Ranks that still run are not signalled, but lose their pipes: their writes
/// raise SIGPIPE. So wait for the jobs first.
///
/// # Example
/// ```
/// use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_output::{Options, Output, Printer};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::Pull;
///
/// let engine = Engine::start(Config::new(Rendezvous::None))?;
/// let nspace = Nspace::new("job1")?;
/// let mut tool = engine.attach("terminal", Grant::Block)?;
/// let all = Proc::all(nspace.clone());
/// tool.pull(&Pull::new(vec![all], Channels::STDOUT))?;
/// let output = Output::new(std::io::stdout())?;
/// let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;
/// let app = App::new("echo", ["hello"]).ranks(2);
/// let job = engine.spawn(&JobSpec::new(nspace, vec![app]))?;
/// assert_eq!(job.wait().code(), 0);
/// assert_eq!(printer.join()?.written, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    pub(crate) starter: Arc<Starter>,
    control: Option<JoinHandle<()>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.starter.config)
            .field("socket", &self.socket())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the engine's threads and opens its rendezvous point. Raises the process's soft limit
    /// on open files, see [`raise_file_limit`]; ranks are started with the old limit.
    ///
    /// # Errors
    /// [`StartError`]: the kernel refuses io_uring and [`Config::backend`] requires it, the
    /// rendezvous directory is not usable, or the process can create no further thread or
    /// descriptor.
    pub fn start(config: Config) -> Result<Engine, StartError> {
        Engine::start_with(config, Arc::new(Standalone))
    }

    /// Starts an engine as [`Engine::start`] does, with `host` instead of [`Standalone`]. The host
    /// approves tools and grants what they pull.
    ///
    /// # Errors
    /// The errors of [`Engine::start`].
    pub fn start_with(config: Config, host: Arc<dyn Host>) -> Result<Engine, StartError> {
        let (mut engine, control) = Engine::prepare(config, host)?;
        let control = thread::Builder::new()
            .name("iof-control".into())
            .spawn(move || control.run())
            .map_err(|source| StartError::Thread { source })?;
        engine.control = Some(control);
        Ok(engine)
    }

    /// Returns an engine without its control thread, and the state of that thread.
    pub(crate) fn prepare(config: Config, host: Arc<dyn Host>) -> Result<(Engine, Control), StartError> {
        if let Err(error) = raise_file_limit() {
            // A job that needs more files is refused.
            tracing::info!(%error, "cannot raise the limit on open files");
        }
        check_files(MIN_FILES)?;
        let poll = mio::Poll::new()?;
        let (reports, receiver) = Reports::new(poll.registry())?;
        let reports = Arc::new(reports);
        let stalls = Arc::new(StallReports::new(Arc::clone(&host)));
        let on_event = on_event(Arc::clone(&reports), Arc::clone(&stalls));
        let capture = match config.backend {
            Some(backend) => Capture::start_on(backend, on_event)?,
            None => Capture::start(on_event)?,
        };
        let listener = listener(&config.rendezvous)?.map(Arc::new);
        let capture = Arc::new(capture);
        stalls.watch(&capture);
        // The backlog holder pins positions and never reads, so its doorbell has no other end.
        let (doorbell, _) = iof_shm_ring::bell()?;
        let backlog_holder = ReaderPage::create(doorbell).map_err(io::Error::other)?;
        let node = node_name()?;
        let socket = listener.as_deref().map(Listener::path);
        let (gateway, keys) = (host.gateway(), host.log_channels().into_iter().collect());
        let (log_channels, routes) =
            LogChannels::new(&config.log, gateway, keys, &node, socket, Arc::clone(&reports));
        let places = places(file_limit());
        let settings = settings(&config, &*host, places, node);
        let caches = Arc::new(CacheBudget::new(config.cache_total));
        let node_files = EngineFiles { syslog: config.log.syslog.clone(), caches: Arc::clone(&caches) };
        let memory = Arc::new(SharedMemory::new(Box::new(node_files), backlog_holder));
        let state = Core::new(FIRST_PEER, settings, Logs::new(routes), Box::new(Arc::clone(&memory)));
        let budget = Budget::new(file_limit(), places);
        let handles = Handles::new(listener.clone());
        let tables = Arc::new(Tables::new(state, handles, memory, Arc::clone(&reports), &capture));
        let starter = Arc::new(Starter {
            config,
            caches: Arc::clone(&caches),
            tables: Arc::clone(&tables),
            capture: Arc::clone(&capture),
            stalls,
            pmix: PmixHost::default(),
            pmix_tools: PmixTools::default(),
            topology: Topology::default(),
            guardian: OnceLock::new(),
            listener: listener.clone(),
            host: Arc::clone(&host),
            threads: Mutex::default(),
        });
        let control = Control {
            poll,
            listener,
            reports: receiver,
            tables,
            capture,
            caches,
            starter: Arc::downgrade(&starter),
            host,
            log_channels,
            upcalls: VecDeque::new(),
            budget,
            crowded_until: None,
            changed: false,
            connections: BTreeMap::new(),
            pmi: PmiLinks::new(&reports),
            departed: BTreeMap::new(),
        };
        control.listen()?;
        let engine = Engine { starter, control: None };
        Ok((engine, control))
    }

    /// Returns the absolute path of the socket that tools connect to; `None` with
    /// [`Rendezvous::None`].
    pub fn socket(&self) -> Option<&std::path::Path> {
        self.starter.socket()
    }

    /// Returns the first of the names `base`, `base-2`, `base-3` and so on that no job of this
    /// engine or of another engine of this user has, as far as this engine's rendezvous directory
    /// shows. The name is not chosen again while the returned link exists. Without a directory,
    /// returns `base`.
    ///
    /// A failure is logged as a warning, and `base` is returned.
    pub fn reserve_name(&self, base: &Nspace) -> (Nspace, Option<JobLink>) {
        let reserved = self.starter.listener.as_deref().map(|listener| listener.reserve(base));
        let warn = |error: &io::Error| tracing::warn!(%error, "cannot look for other jobs of this name");
        let reserved = reserved.and_then(|reserved| reserved.inspect_err(warn).ok());
        reserved.unwrap_or_else(|| (base.clone(), None))
    }

    /// Lets tools find this engine by the name of a job that does not exist yet. The job shares the
    /// returned link if it starts while the link exists. Returns `None` without a directory, and
    /// for a system-level engine.
    ///
    /// A job that starts without this call is announced as well, but then a failure is only logged.
    ///
    /// # Errors
    /// [`AnnounceError`], usually because the name is too long for the name of a file.
    pub fn announce(&self, nspace: &Nspace) -> Result<Option<JobLink>, AnnounceError> {
        self.starter.listener.as_deref().map_or(Ok(None), |listener| listener.announce(nspace))
    }

    /// Returns a handle of the present job of this name. It may be one whose ranks are all remote,
    /// which is known when output of its ranks was [delivered](Engine::deliver).
    pub fn job(&self, nspace: &Nspace) -> Option<Job> {
        self.starter.job(nspace)
    }

    /// Returns the backend that reads the ranks' pipes.
    pub fn backend(&self) -> BackendKind {
        self.starter.capture.backend()
    }

    /// Returns the reason why the engine fell back to epoll; `None` if the backend is io_uring, or
    /// was chosen by [`Config::backend`]. The reason was also logged (with `tracing`).
    pub fn fallback_reason(&self) -> Option<&CaptureError> {
        self.starter.capture.fallback()
    }

    /// Returns the library that is the PMIx server of a job, with its version; `None` if the job has
    /// not needed one ([`Mpi`](crate::Mpi)), or was removed.
    pub fn pmix_library(&self, job: &Job) -> Option<String> {
        self.starter.pmix.library(job.id())
    }

    /// Lets tools of PMIx attach to this engine by the name `nspace`, until it ends, whatever jobs it
    /// has. They are served as those of a job ([`JobSpec::pmix_tools`](crate::JobSpec::pmix_tools)).
    ///
    /// # Errors
    /// The engine has no socket, `program` is not found, or libpmix does not start.
    pub fn serve_pmix_tools(&self, nspace: &Nspace, program: &Path) -> Result<(), LaunchError> {
        let no_socket = || io::Error::other("the engine has no socket");
        let socket = pmix_tools::server_program(program).and(self.socket().ok_or_else(no_socket));
        let socket = socket.map_err(|source| LaunchError::PmixTools { program: program.into(), source })?;
        let server = self.starter.pmix.start_alone(&self.starter.tables.reports);
        let job = JobId { nspace: nspace.clone(), run: 0 };
        let served =
            server.and_then(|server| self.starter.pmix_tools.serve_by(program, &job, &server, socket));
        served.map_err(|error| PmixError::from(error).into())
    }

    /// Attaches a tool in this process, such as the launcher's own printer. The host is not asked
    /// to approve it. Queries show it as `name`. Blocks until the control thread answers, so it
    /// must not be called in an [upcall](Host).
    ///
    /// # Errors
    /// [`AttachError`]: the process has no descriptors left, or the control thread has ended.
    pub fn attach(&self, name: &str, grant: Grant) -> Result<Tool, AttachError> {
        let failed = |error: io::Error| AttachError::Lost(error.into());
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let rings = LocalRings::default();
        self.starter.tables.reports.send(Report::Attached { socket: ours, rings: rings.clone(), grant });
        // SAFETY: the socket was created above and only this tool has it, so nothing else can write
        // to it or shut it down until the tool is dropped. Only the engine has the other handle of
        // the queue of rings.
        unsafe { Tool::local(theirs, rings, name) }
    }

    /// Returns the [guardian](Config::guardian), if there is one. Starts it at the first call.
    pub fn guardian(&self) -> Option<Arc<Guardian>> {
        self.starter.guardian()
    }

    /// Logs a warning if the guardian does not answer, after the start of processes that it guards.
    pub fn check_guardian(&self) {
        self.starter.check_guardian();
    }

    /// Ends the engine as dropping it does, for a process that is about to exit. If all streams are
    /// complete, their rings are left to the exit, which unmaps thousands of them much faster.
    pub fn end_with_process(self) {
        if self.starter.tables.lock().is_complete() {
            // The last reference would wait until the capture thread has unmapped each ring.
            mem::forget(Arc::clone(&self.starter.capture));
        }
    }
}

impl Drop for Engine {
    /// Sends tools the messages that wait for them, while they receive them and for at most
    /// [`MAX_LINGER`](iof_proto::limits::MAX_LINGER). Then ends the threads.
    fn drop(&mut self) {
        self.starter.pmix_tools.end();
        let mut tables = self.starter.tables.lock();
        tables.stop_engine();
        tables.handles().release();
        drop(tables);
        self.starter.tables.notify();
        self.starter.tables.reports.wake();
        if let Some(control) = self.control.take()
            // An engine that is dropped in an upcall can't join the thread that drops it.
            && control.thread().id() != thread::current().id()
            && control.join().is_err()
        {
            tracing::error!("the control thread has panicked");
        }
        self.starter.join_threads();
    }
}

/// Returns the function that takes the events of the capture thread.
fn on_event(reports: Arc<Reports>, stalls: Arc<StallReports>) -> impl Fn(Event) + Send + 'static {
    move |event| {
        match &event {
            Event::Stalled { pipe } => return stalls.stalled(*pipe),
            Event::Complete { source, .. } => stalls.forget(PipeId::Source(*source)),
            Event::Shut { target } => stalls.forget(PipeId::Target(*target)),
            _ => {}
        }
        reports.send(event);
    }
}

/// Opens the socket that tools connect to.
fn listener(rendezvous: &Rendezvous) -> Result<Option<Listener>, StartError> {
    let (level, directory) = match rendezvous {
        Rendezvous::None => return Ok(None),
        Rendezvous::Session(directory) => (Level::Session, directory),
        Rendezvous::Agent(directory) => (Level::Agent, directory),
        Rendezvous::System(directory) => (Level::System, directory),
    };
    Ok(Some(Listener::bind(level, directory.as_deref())?))
}

/// Returns a random number. Its hash functions have keys of the system's random numbers.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0u8));
    half() << 64 | half()
}

/// Returns the settings of the core of an engine on `node`.
fn settings(config: &Config, host: &dyn Host, places: usize, node: String) -> Settings {
    Settings {
        host_keys: host.directives().into_iter().collect(),
        host_queries: host.queries().into_iter().collect(),
        host_stdin: host.forwards_stdin(),
        options: config.options(),
        max_cache_size: config.max_cache_size,
        places,
        slots: MAX_SLOTS,
        limits: Limits::default(),
        run: random(),
        pid: std::process::id(),
        uid: geteuid().as_raw(),
        node,
    }
}
