//! The engine as an embedder holds it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use iof_capture::{
    BackendKind, Capture, Event, PipeId, StartError as CaptureError, check_files, raise_file_limit,
};
use iof_proto::rendezvous::{Level, Listener};
use iof_shm_ring::ReaderPage;
use iof_tool::{AttachError, Tool};
use mio::Registry;

use crate::config::{Config, Rendezvous};
use crate::control::{self, Control, FIRST_PEER, Reports};
use crate::error::StartError;
use crate::grace::Graces;
use crate::host::{Host, Standalone};
use crate::in_flight::Budget;
use crate::log::Logs;
use crate::register::{FILES_PER_RANK, TRANSIENT_FDS};
use crate::stalls::Stalls;
use crate::state::{State, Tables};

/// Files that an engine has open, with two readers in its own process and a job of one rank: less
/// makes no sense.
const FILES: u64 = 13 + 2 * 8 + FILES_PER_RANK + TRANSIENT_FDS;

/// Whether a reader may hold sources back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// It may: where the policy is [`Policy::Block`](iof_shm_ring::Policy::Block), sources wait for
    /// it and it loses nothing.
    Block,
    /// It may not, as no tool from outside may unless the [`Host`] says so.
    Never,
}

/// I/O forwarding for one launcher: drains the ranks' pipes into shared rings and serves tools.
///
/// It has two threads, and one more each for the syslog, the job record, mail and the gateway once
/// something is logged there. It installs no signal handlers, prints nothing and never exits the
/// process. It learns of its ranks' ends by pidfds and waits for each by name, so it needs no
/// SIGCHLD. Where the embedder ignores that signal, or waits for any child, see waitpid(2), ends
/// are still noticed, but how they were is [`Exit::Unknown`](crate::Exit). Where files may become
/// only so large (RLIMIT_FSIZE, see setrlimit(2)), which the job record and printers' files may
/// reach, an embedder should ignore SIGXFSZ: otherwise that ends the process, instead of being an
/// error of that file; ranks have its default action again. All calls
/// may come from any thread. Dropping it ends both threads (one that logs is left to its last
/// message, and ends then); ranks that still run lose their pipes then, so wait for the jobs first.
///
/// # Example
/// ```
/// use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_output::{Options, Output, Printer};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::Pull;
///
/// let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
/// let nspace = Nspace::new("job1")?;
/// let mut tool = engine.attach("terminal", Grant::Block)?;
/// let all = Proc { nspace: nspace.clone(), rank: Rank::WILDCARD };
/// tool.pull(&Pull::new(vec![all], Channels::STDOUT))?;
/// let output = Output::new(std::io::stdout())?;
/// let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;
/// let app = App { nprocs: 2, ..App::new("echo", ["hello"]) };
/// let job = engine.spawn(&JobSpec::new(nspace, vec![app]))?;
/// assert_eq!(job.wait().code(), 0);
/// assert_eq!(printer.join()?.written, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) tables: Arc<Tables>,
    pub(crate) capture: Arc<Capture>,
    pub(crate) stalls: Arc<Stalls>,
    registry: Registry,
    control: Option<JoinHandle<()>>,
    pub(crate) listener: Option<Arc<Listener>>,
}

impl Engine {
    /// Starts the engine's threads and opens its rendezvous point. Raises the process's soft limit
    /// on open files, see [`raise_file_limit`]; the ranks get the old one.
    ///
    /// # Errors
    /// [`StartError`]: io_uring is refused and [`Config::backend`] wants no other, the rendezvous directory will not
    /// do, or the kernel has no threads or descriptors left.
    pub fn start(config: Config) -> Result<Engine, StartError> {
        Engine::start_with(config, Arc::new(Standalone))
    }

    /// The same, with a host of its own: who approves of tools and learns what they want.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(config: Config, host: Arc<dyn Host>) -> Result<Engine, StartError> {
        if let Err(error) = raise_file_limit() {
            tracing::warn!(%error, "the limit on open files stays as it is");
        }
        check_files(FILES)?;
        let poll = mio::Poll::new()?;
        let (reports, receive) = Reports::new(poll.registry())?;
        let reports = Arc::new(reports);
        let stalls = Arc::new(Stalls::new(Arc::clone(&host)));
        let on_event = {
            let (reports, stalls) = (Arc::clone(&reports), Arc::clone(&stalls));
            move |event| {
                match &event {
                    Event::Stalled { pipe } => return stalls.stalled(*pipe),
                    Event::Complete { source, .. } => stalls.forget(PipeId::Source(*source)),
                    Event::Shut { target } => stalls.forget(PipeId::Target(*target)),
                    _ => {}
                }
                reports.send(event);
            }
        };
        let capture = match config.backend {
            Some(backend) => Capture::start_on(backend, on_event)?,
            None => Capture::start(on_event)?,
        };
        let listener = match &config.rendezvous {
            Rendezvous::None => None,
            Rendezvous::Session(directory) => Some(Listener::bind(Level::Session, directory.as_deref())?),
            Rendezvous::System(directory) => Some(Listener::bind(Level::System, directory.as_deref())?),
        };
        let listener = listener.map(Arc::new);
        let capture = Arc::new(capture);
        stalls.watch(&capture);
        // Nobody listens: the backlog holder only holds.
        let (unheard, _) = iof_shm_ring::bell()?;
        let backlog_holder = ReaderPage::create(unheard).map_err(io::Error::other)?;
        let node = control::node_name()?;
        let socket = listener.as_deref().map(Listener::path);
        let logs = Logs::new(&config.log, &*host, &node, socket, Arc::clone(&reports));
        let mut state = State::new(FIRST_PEER, Arc::new(backlog_holder), &config, logs);
        state.host_keys = host.directives().into_iter().collect();
        state.host_stdin = host.forwards_stdin();
        state.host_queries = host.queries().into_iter().collect();
        let budget = Budget::of(control::file_limit(), state.places);
        let tables = Arc::new(Tables::new(state, reports));
        let registry = poll.registry().try_clone()?;
        let control = Control {
            poll,
            listener: listener.clone(),
            reports: receive,
            tables: Arc::clone(&tables),
            capture: Arc::clone(&capture),
            host,
            node,
            graces: Graces::default(),
            budget,
            crowded_until: None,
        };
        control.listen()?;
        let control = thread::Builder::new()
            .name("iof-control".into())
            .spawn(move || control.run())
            .map_err(|source| StartError::Thread { source })?;
        Ok(Engine { config, tables, capture, stalls, registry, control: Some(control), listener })
    }

    /// The absolute path of the socket that tools connect to, if there is one.
    pub fn socket(&self) -> Option<&std::path::Path> {
        self.listener.as_deref().map(Listener::path)
    }

    /// What the ranks' pipes are read with.
    pub fn backend(&self) -> BackendKind {
        self.capture.backend()
    }

    /// Why that is not io_uring, if [`Config::backend`] left the choice open. It was logged, too.
    pub fn fallback(&self) -> Option<&CaptureError> {
        self.capture.fallback()
    }

    /// Attaches a tool within this process; `name` is what queries show.
    ///
    /// # Errors
    /// [`AttachError`] when the process has no descriptors left.
    pub fn attach(&self, name: &str, grant: Grant) -> Result<Tool, AttachError> {
        let failed = |error: io::Error| AttachError::Lost(error.into());
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        self.tables.lock().add_pending(&self.registry, ours, Some(grant)).map_err(failed)?;
        // SAFETY: the socket was made here, and goes nowhere else.
        unsafe { Tool::over(theirs, name) }
    }
}

impl Drop for Engine {
    /// Sends tools what they are due, as long as they take it and up to
    /// [`MAX_LINGER`](iof_proto::limits::MAX_LINGER), and ends both threads.
    fn drop(&mut self) {
        let mut state = self.tables.lock();
        state.stopping = true;
        for job in state.jobs.values_mut() {
            // Jobs that the embedder still holds must not keep ranks' terminals from being hung up, or be
            // found.
            job.ranks.values_mut().for_each(|rank| rank.pty = None);
            job.entry = None;
        }
        drop(state);
        self.tables.notify();
        self.tables.reports.wake();
        if let Some(control) = self.control.take()
            // Dropped in an upcall: the thread ends by itself.
            && control.thread().id() != thread::current().id()
            && control.join().is_err()
        {
            tracing::error!("the control thread had died");
        }
    }
}
