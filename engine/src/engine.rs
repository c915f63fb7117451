//! The engine as an embedder holds it.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{io, process};

use iof_capture::StartError as CaptureError;
use iof_capture::{AddError, BackendKind, Capture, ProcessId, ProcessSpec, SourceId, Spawned, Stdin, spawn};
use iof_proto::rendezvous::Listener;
use iof_proto::{Channel, Proc, Rank};
use iof_shm_ring::{Stream, StreamConfig};
use iof_tool::{AttachError, Tool};
use mio::{Registry, Waker};
use nix::sys::signal::Signal;

use crate::config::{Config, JobSpec, Rendezvous};
use crate::control::{self, Control, FIRST_PEER, WAKE};
use crate::error::{LaunchError, MAX_RANKS, StartError};
use crate::job::{CHANNELS, Job, JobState, RankState};
use crate::state::{State, StreamName, Tables};

/// Files that a rank needs in the engine: three pipes, three rings, its pid.
const FILES_PER_RANK: u64 = 7;
/// Ranks of a job that failed to start have no entry in the tables.
const UNNAMED: ProcessId = ProcessId(u64::MAX);
/// Files that the engine and its embedder need besides.
const FILES_BESIDES: u64 = 64;

/// Whether a reader in the embedder's own process may hold sources back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// It may: where the policy is [`Policy::Block`](iof_shm_ring::Policy::Block), sources wait for it and it loses nothing.
    Block,
    /// It may not, as no tool from outside may.
    Never,
}

/// I/O forwarding for one launcher: drains the ranks' pipes into shared rings and serves tools.
///
/// It has two threads, installs no signal handlers, prints nothing and never exits the process. All calls may
/// come from any thread. Dropping it ends both threads; ranks that still run lose their pipes then, so wait for
/// the jobs first.
///
/// # Example
/// ```
/// use iof_engine::{Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Nspace, Proc, Rank};
/// use iof_tool::{Pull, Sink};
///
/// let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
/// let nspace = Nspace::new("job1")?;
/// let mut tool = engine.attach("terminal", Grant::Block)?;
/// let all = Proc { nspace: nspace.clone(), rank: Rank::WILDCARD };
/// tool.pull(&Pull { procs: vec![all], channels: Channels::STDOUT, backlog: true })?;
/// let sink = Sink::start(tool, std::io::stdout(), |_, _, _| {})?;
/// let args = vec!["hello".into()];
/// let job = engine.spawn(&JobSpec { nspace, nprocs: 2, program: "echo".into(), args, stdin: None })?;
/// assert_eq!(job.wait().code(), 0);
/// assert_eq!(sink.join()?.written, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    config: Config,
    tables: Arc<Tables>,
    capture: Arc<Capture>,
    waker: Arc<Waker>,
    registry: Registry,
    control: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Engine {
    /// Starts the engine's threads and opens its rendezvous point.
    ///
    /// # Errors
    /// [`StartError`]: io_uring is refused and [`Config::backend`] wants no other, the rendezvous directory will not
    /// do, or the kernel has no threads or descriptors left.
    pub fn start(config: Config) -> Result<Engine, StartError> {
        let poll = mio::Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (reports, events) = crossbeam::channel::unbounded();
        let on_event = {
            let waker = Arc::clone(&waker);
            move |event| {
                // The control thread has gone only if the engine is being dropped.
                if reports.send(event).is_ok() {
                    let _ = waker.wake();
                }
            }
        };
        let capture = match config.backend {
            Some(backend) => Capture::start_on(backend, on_event)?,
            None => Capture::start(on_event)?,
        };
        let listener = match &config.rendezvous {
            Rendezvous::None => None,
            Rendezvous::UserDirectory => Some(Listener::bind(None)?),
            Rendezvous::Directory(directory) => Some(Listener::bind(Some(directory))?),
        };
        let socket = listener.as_ref().map(Listener::path);
        let capture = Arc::new(capture);
        let tables = Arc::new(Tables::new(State::new(FIRST_PEER)));
        let registry = poll.registry().try_clone()?;
        let control = Control {
            poll,
            listener,
            events,
            tables: Arc::clone(&tables),
            capture: Arc::clone(&capture),
            host: control::host_name()?,
        };
        control.listen()?;
        let control = thread::Builder::new().name("iof-control".into()).spawn(move || control.run())?;
        Ok(Engine { config, tables, capture, waker, registry, control: Some(control), socket })
    }

    /// The socket that tools connect to, if there is one.
    pub fn socket(&self) -> Option<&std::path::Path> {
        self.socket.as_deref()
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
        let mut state = self.tables.lock();
        control::add_peer(&mut state, &self.registry, ours, process::id(), grant == Grant::Block)
            .map_err(failed)?;
        drop(state);
        Tool::over(theirs, name)
    }

    /// Starts the ranks of a job. Whoever registered for it before has its first byte.
    ///
    /// # Errors
    /// [`LaunchError`]; the ranks that were started already are killed.
    pub fn spawn(&self, spec: &JobSpec) -> Result<Job, LaunchError> {
        self.check(spec)?;
        let job = Job { tables: Arc::clone(&self.tables), nspace: spec.nspace.clone() };
        {
            let mut state = self.tables.lock();
            if state.jobs.contains_key(&spec.nspace) {
                return Err(LaunchError::NameTaken(spec.nspace.clone()));
            }
            let program = spec.program.to_string_lossy().into_owned();
            state.jobs.insert(spec.nspace.clone(), JobState::new(program));
        }
        let started = self.spawn_ranks(spec);
        let mut state = self.tables.lock();
        if let Some(job) = state.jobs.get_mut(&spec.nspace) {
            job.started = true;
            if job.ranks.is_empty() {
                state.jobs.remove(&spec.nspace);
            }
        }
        state.announce_complete_registrations();
        drop(state);
        self.tables.notify();
        self.wake_control();
        started.map(|()| job)
    }

    /// Makes the control thread look at the tables.
    fn wake_control(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the control thread can't be woken");
        }
    }

    fn check(&self, spec: &JobSpec) -> Result<(), LaunchError> {
        if spec.nprocs == 0 || spec.nprocs > MAX_RANKS {
            return Err(LaunchError::Ranks { asked: spec.nprocs });
        }
        let needed = u64::from(spec.nprocs).saturating_mul(FILES_PER_RANK).saturating_add(FILES_BESIDES);
        let limit = iof_capture::raise_file_limit().unwrap_or(u64::MAX);
        if needed > limit {
            return Err(LaunchError::Files { ranks: spec.nprocs, needed, limit });
        }
        Ok(())
    }

    fn spawn_ranks(&self, spec: &JobSpec) -> Result<(), LaunchError> {
        // All processes before all rings: fork(2) takes longer with every map that the process has.
        let mut spawned = Vec::new();
        let mut signallers = Vec::new();
        let mut started = Ok(());
        for rank in (0..spec.nprocs).map(Rank) {
            match spawn(process_spec(spec, rank)) {
                Ok(process) => {
                    signallers.push(process.child.signaller());
                    spawned.push((rank, process));
                }
                Err(source) => {
                    started = Err(LaunchError::Spawn { rank, source });
                    break;
                }
            }
        }
        let mut spawned = spawned.into_iter();
        let started =
            started.and_then(|()| spawned.try_for_each(|(rank, process)| self.adopt(spec, rank, process)));
        if started.is_err() {
            signallers.iter().for_each(|process| drop(process.send(Signal::SIGKILL)));
            for (_, process) in spawned {
                // To be reaped; nobody asks how it ended.
                let _ = self.capture.watch(UNNAMED, process.child);
            }
        }
        started
    }

    /// Makes the rings of a rank that runs, attaches who waits for it, and has it drained from now on.
    fn adopt(&self, spec: &JobSpec, rank: Rank, process: Spawned) -> Result<(), LaunchError> {
        let Spawned { child, stdout, stderr, stddiag } = process;
        let config = StreamConfig { capacity: u64::from(self.config.cache_size), policy: self.config.policy };
        let source = Proc { nspace: spec.nspace.clone(), rank };
        let stream = |channel: Channel| {
            Stream::create(config, &format!("{source} {channel}"))
                .map_err(|error| LaunchError::Rings { rank, source: error })
        };
        let mut streams = [stream(CHANNELS[0])?, stream(CHANNELS[1])?, stream(CHANNELS[2])?];

        let mut state = self.tables.lock();
        let mut ids = [SourceId(0); 3];
        for ((id, stream), channel) in ids.iter_mut().zip(&mut streams).zip(CHANNELS) {
            *id = state.add_stream(StreamName { source: source.clone(), channel }, stream);
        }
        // A rank has three streams, so the first one's number names no other process.
        let process = ProcessId(ids[0].0);
        state.processes.insert(process, source);
        if let Some(job) = state.jobs.get_mut(&spec.nspace) {
            job.open_streams = job.open_streams.saturating_add(ids.len());
            job.ranks.push(RankState { pid: child.pid(), signaller: child.signaller(), exit: None });
        }
        for ((id, pipe), stream) in ids.into_iter().zip([stdout, stderr, stddiag]).zip(streams) {
            self.capture.add(id, pipe, stream)?;
        }
        self.capture.watch(process, child).map_err(AddError::from)?;
        Ok(())
    }
}

fn process_spec(spec: &JobSpec, rank: Rank) -> ProcessSpec {
    let var = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    ProcessSpec {
        program: spec.program.clone(),
        args: spec.args.clone(),
        env: vec![
            var("IOF_RANK", rank.to_string()),
            var("IOF_NSPACE", spec.nspace.to_string()),
            var("IOF_NPROCS", spec.nprocs.to_string()),
        ],
        cwd: None,
        stdin: if spec.stdin == Some(rank) { Stdin::Inherit } else { Stdin::Null },
    }
}

impl Drop for Engine {
    /// Sends tools what they are due, for half a second at most, and ends both threads.
    fn drop(&mut self) {
        self.tables.lock().stopping = true;
        self.tables.notify();
        self.wake_control();
        if let Some(control) = self.control.take()
            && control.join().is_err()
        {
            tracing::error!("the control thread had died");
        }
    }
}
