//! The agent of a node: starts ranks for a front end elsewhere, and sends their output.
//!
//! When the edge to the front end ends, or breaks, the ranks are ended: nothing on this node would
//! know of them. An agent that replaces its carriers waits for another one before that.

mod bundles;
mod carrier_files;
mod hooks;
mod host;
mod links;
mod relay;
mod shared_pipe;
mod stdin;
mod typed_keys;
mod uplink;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use iof_engine::{
    App, BackendKind, Config, Ending, Engine, Exit, Grant, Job, JobSpec, Policy, Pty, RankExit, Rendezvous,
    Signal, StartError, Stdin, WindowSize,
};
use iof_nodes::limits::MAX_TOTALS;
use iof_nodes::{
    AgentSocket, DropPolicy, Program, RankStdin, RankTotal, Start, Terminal, ToAgent, ToFrontEnd, cut_text,
};
use iof_output::PrintReport;
use iof_proto::log::key as log_key;
use iof_proto::query::key;
use iof_proto::{Channel, Found, Log, Nspace, Proc, Rank, Value};
use iof_tool::{AttachError, RequestError, Tool};
use nix::unistd::gethostname;

use self::bundles::Bundles;
pub use self::hooks::{AgentHooks, FileWriter, FilesEnd, StartRefusal};
use self::host::AgentHost;
use self::links::Links;
pub use self::links::{LinkError, link};
use self::stdin::StdinWorkers;
use self::uplink::{Input, Uplink};
use crate::carriers::NodeConnection;
use crate::cost::{backend_text, cpu_time};
use crate::link::DRAIN_LIMIT;
use crate::thread::{NoThread, start_thread};

/// The name of the agent's own tools.
const NAME: &str = "iof agent";

/// The time between two messages with totals.
const TOTALS_INTERVAL: Duration = Duration::from_secs(1);

/// How long the exit of a failed rank waits until its output is sent.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// An agent that has greeted its front end.
pub struct Agent {
    uplink: Arc<Uplink>,
    inputs: Sender<Input>,
    queue: Receiver<Input>,
    hooks: Arc<dyn AgentHooks>,
}

/// Ends an agent from another thread.
#[derive(Clone, Debug)]
pub struct AgentStop(Sender<Input>);

/// Runs ranks for the front end at the other end of `connection`, until it has all output, or the
/// edge has ended. Blocks until then.
///
/// A process may run several agents. The first of them has the socket for tools of its process: the
/// others have none with [`AgentSocket::Default`](iof_nodes::AgentSocket), and refuse their job with
/// [`AgentSocket::In`](iof_nodes::AgentSocket).
///
/// # Errors
/// The edge is lost, or the agent can't go on. The ranks have ended.
pub fn agent(connection: NodeConnection) -> Result<AgentExit, AgentError> {
    Agent::start(connection, None, Arc::new(()))?.run()
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl AgentStop {
    /// Asks the agent to end. It ends its ranks.
    pub fn stop(&self) {
        // The agent may have ended.
        let _ = self.0.send(Input::Stop);
    }
}

/// The reason why an agent failed. Its ranks have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The edge to the front end is lost, for this reason.
    #[error("{0}")]
    Lost(String),
    /// The front end has sent a message that is not due.
    #[error("the front end {0}")]
    Unexpected(&'static str),
    /// [`AgentStop::stop`] was called while ranks ran.
    #[error("the agent was asked to end")]
    Stopped,
    /// The process can't start a thread.
    #[error(transparent)]
    Thread(#[from] NoThread),
    /// The agent can't attach to its engine.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The engine has refused a request of the agent.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A file can't be opened or duplicated.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Files can't be written.
    #[error("{0}")]
    Files(StartRefusal),
    /// A thread of the agent has ended too early.
    #[error("the agent lost its threads")]
    NoThreads,
}

impl Agent {
    /// Greets the front end over `connection`. With `reattach`, the ranks run on for that time
    /// without a connection, and [`link`] can bring another one. Threads of such an agent remain
    /// until its process ends, so the process should have one job only.
    pub fn start(
        connection: NodeConnection,
        reattach: Option<Duration>,
        hooks: Arc<dyn AgentHooks>,
    ) -> Result<Agent, AgentError> {
        let (inputs, queue) = unbounded();
        let uplink = Uplink::start(connection, inputs.clone(), reattach)?;
        Ok(Agent { uplink, inputs, queue, hooks })
    }

    /// Returns what ends the agent from another thread.
    pub fn stop_handle(&self) -> AgentStop {
        AgentStop(self.inputs.clone())
    }

    /// Runs ranks for the front end. Blocks until it has all output, or the edge has ended.
    ///
    /// # Errors
    /// The edge is lost, or the agent can't go on.
    pub fn run(self) -> Result<AgentExit, AgentError> {
        let Agent { uplink, inputs, queue, hooks } = self;
        let end = run_ranks(&uplink, inputs, &queue, hooks.as_ref());
        if !matches!(end, Ok(AgentExit::Over)) || !hooks.ends_with_process() {
            uplink.close();
        }
        if let Some(links) = uplink.links() {
            links.finish(Instant::now() + DRAIN_LIMIT);
        }
        end
    }
}

fn run_ranks(
    uplink: &Arc<Uplink>,
    inputs: Sender<Input>,
    queue: &Receiver<Input>,
    hooks: &dyn AgentHooks,
) -> Result<AgentExit, AgentError> {
    let start = match next_message(queue)? {
        Some(ToAgent::Start(start)) => start,
        Some(_) => return Err(AgentError::Unexpected("did not start ranks first")),
        None => return Ok(AgentExit::Unstarted),
    };
    let kill_wait = Duration::from_millis(start.kill_wait);
    let ranks = start.ranks.clone();
    let (host, messages) = AgentHost::new();
    let host = Arc::new(host);
    let (engine, spec, output) = match prepare(&start, &host, hooks) {
        Ok(prepared) => prepared,
        Err(failure) => return Ok(refuse(uplink, failure)),
    };
    let directory = match &start.socket {
        AgentSocket::In(directory) => Some(Path::new(directory)),
        AgentSocket::None | AgentSocket::Default => None,
    };
    match Links::listen(uplink, directory) {
        Ok(address) => address.into_iter().for_each(|address| uplink.send(&ToFrontEnd::Link(address))),
        Err(failure) => return Ok(refuse(uplink, failure)),
    }
    uplink.send(&ToFrontEnd::Ready);
    match next_message(queue)? {
        Some(ToAgent::Go) => {}
        Some(_) => return Err(AgentError::Unexpected("did not let the ranks go")),
        None => return Ok(AgentExit::Unstarted),
    }
    let job = match engine.spawn(&spec) {
        Ok(job) => job,
        Err(error) => return Ok(refuse(uplink, StartRefusal::running(error))),
    };
    let engine = Arc::new(engine);
    let followed = follow(&engine, &job, (uplink, inputs), (output, messages));
    let stdin = StdinWorkers::new(Arc::clone(&engine), Arc::clone(uplink), job.clone(), typed(&start));
    let result = match followed {
        Ok(()) => serve(queue, (&job, &engine, &host, hooks), &ranks, stdin),
        Err(failure) => Err(failure),
    };
    if !matches!(result, Ok(AgentExit::Over)) {
        uplink.close();
        end_ranks(&job, kill_wait);
    }
    // The threads that push stdin have ended with the queue.
    if let Some(engine) = Arc::into_inner(engine)
        && hooks.ends_with_process()
    {
        engine.end_with_process();
    }
    result
}

/// Why an agent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// The front end has everything.
    Over,
    /// The front end is gone, so nothing reads a message either.
    Alone,
    /// The edge has ended before the ranks ran.
    Unstarted,
    /// The ranks can't be started, and the front end was told so.
    Refused,
    /// Files accept nothing although the ranks have ended, and the front end was told so.
    FilesBlocked,
}

/// Tells the front end that the ranks can't be started.
fn refuse(uplink: &Uplink, StartRefusal { reason, is_usage }: StartRefusal) -> AgentExit {
    uplink.send(&ToFrontEnd::Failed { reason: cut_text(&reason), is_usage });
    AgentExit::Refused
}

/// The readers of the ranks' output.
struct OutputReaders {
    bundles: Bundles,
    files: Option<Box<dyn FileWriter>>,
}

/// Returns the next message before the ranks run; `None` if the edge ends before it.
fn next_message(queue: &Receiver<Input>) -> Result<Option<ToAgent>, AgentError> {
    match queue.recv() {
        Ok(Input::Message(ToAgent::HangUp)) => Ok(None),
        Ok(Input::Message(message)) => Ok(Some(message)),
        Ok(Input::Lost(Some(reason))) => Err(AgentError::Lost(reason)),
        Ok(Input::Lost(None) | Input::Stop | Input::Over | Input::FilesBlocked) | Err(_) => Ok(None),
    }
}

fn prepare(
    start: &Start,
    host: &Arc<AgentHost>,
    hooks: &dyn AgentHooks,
) -> Result<(Engine, JobSpec, OutputReaders), StartRefusal> {
    let backend = start.backend.as_deref().map(backend_named).transpose()?;
    let config = Config {
        cache_size: start.cache_size,
        cache_total: start.cache_total,
        policy: match start.drop {
            DropPolicy::None => Policy::Block,
            DropPolicy::Newest => Policy::DropNewest,
            DropPolicy::Oldest => Policy::DropOldest,
        },
        backend,
        rendezvous: match &start.socket {
            AgentSocket::None => Rendezvous::None,
            AgentSocket::Default => Rendezvous::Agent(None),
            AgentSocket::In(directory) => Rendezvous::Agent(Some(PathBuf::from(directory))),
        },
        ..hooks.config()?
    };
    let engine = match Engine::start_with(config.clone(), Arc::<AgentHost>::clone(host)) {
        // The environment of another node may name a directory that this node does not have.
        Err(StartError::Rendezvous(error)) if start.socket == AgentSocket::Default => {
            let node = gethostname().unwrap_or_default();
            hooks.warn(&format!("tools cannot attach on {}: {error}", node.display()));
            let config = Config { rendezvous: Rendezvous::None, ..config };
            Engine::start_with(config, Arc::<AgentHost>::clone(host))
        }
        started => started,
    };
    let engine = engine.map_err(|error| hooks.start_failed(error))?;
    let spec = spec(start);
    // The readers register before the job exists, so that they receive its first byte.
    let bundles = Bundles::attach(&engine, &spec.nspace, start)?;
    let spare_files = engine.check(&spec).map_err(StartRefusal::usage)?;
    let files = start.files.as_ref().map(|_| hooks.open_files(&engine, &spec, start, spare_files));
    let files = files.transpose()?;
    Ok((engine, spec, OutputReaders { bundles, files }))
}

/// Returns the backend with this name.
fn backend_named(name: &str) -> Result<BackendKind, StartRefusal> {
    let found = [BackendKind::IoUring, BackendKind::Epoll].into_iter().find(|kind| kind.to_string() == name);
    found.ok_or_else(|| StartRefusal::usage("unknown backend"))
}

fn spec(start: &Start) -> JobSpec {
    let app = |program: &Program| App {
        nprocs: program.nprocs,
        program: program.program.clone(),
        args: program.args.clone(),
        env: start.env.iter().chain(&program.env).cloned().collect(),
        cwd: Some(PathBuf::from(&program.cwd)),
        merge_stderr: program.merge_stderr,
    };
    let stdin: BTreeMap<Rank, Stdin> = start
        .stdin
        .iter()
        .map(|(rank, stdin)| match stdin {
            RankStdin::Forwarded => (*rank, Stdin::Pipe),
            RankStdin::Typed => (*rank, Stdin::Inherit),
            RankStdin::File(path) => (*rank, Stdin::File(PathBuf::from(path))),
        })
        .collect();
    let pty = |terminal: &Terminal| Pty {
        size: WindowSize { rows: terminal.rows, columns: terminal.columns },
        echo: terminal.echo,
    };
    JobSpec {
        stdin,
        ptys: start.ptys.iter().map(|(rank, terminal)| (*rank, pty(terminal))).collect(),
        grace: start.grace.map(Duration::from_millis),
        hide_launcher: start.hide_launcher,
        local: Some(start.ranks.clone()),
        ..JobSpec::new(start.nspace.clone(), start.programs.iter().map(app).collect())
    }
}

/// Returns the rank to whose terminal stdin is typed, if any.
fn typed(start: &Start) -> Option<Rank> {
    let typed = start.stdin.iter().find(|(_, stdin)| **stdin == RankStdin::Typed);
    typed.map(|(rank, _)| *rank)
}

/// Starts the threads that send output, exits, totals and messages of the host.
fn follow(
    engine: &Arc<Engine>,
    job: &Job,
    (uplink, inputs): (&Arc<Uplink>, Sender<Input>),
    (OutputReaders { bundles, mut files }, messages): (OutputReaders, Receiver<ToFrontEnd>),
) -> Result<(), AgentError> {
    let mut tool = engine.attach(NAME, Grant::Never)?;
    uplink.send(&ToFrontEnd::Started { pids: pids(&mut tool)? });
    let up = Arc::clone(uplink);
    start_thread("iof-log", move || messages.into_iter().for_each(|message| up.send(&message)))?;
    let output = bundles.start(uplink)?;
    if let Some(files) = &mut files {
        let (uplink, inputs) = (Arc::clone(uplink), inputs.clone());
        let done = move |end| files_ended(&uplink, &inputs, end);
        files.watch(Box::new(done)).map_err(AgentError::Files)?;
    }
    let (job, up, backend) = (job.clone(), Arc::clone(uplink), backend_text(engine));
    start_thread("iof-endings", move || {
        let mut is_requested = false;
        for ending in job.endings() {
            if let Ending::Rank(rank) = ending {
                is_requested |= rank.requested;
                send_exit(&job, &up, rank);
                if is_requested && job.try_wait_exit().is_some() {
                    files.iter().for_each(|files| files.ranks_were_ended());
                }
            }
        }
        output.into_iter().for_each(|thread| drop(thread.join()));
        files.iter().for_each(|files| files.wait());
        if up.is_closed() {
            // Such as with blocked files: the node is lost, not over.
            return;
        }
        // The agent may have ended.
        let _ = inputs.send(Input::Over);
        up.send(&cost(backend));
        up.send(&ToFrontEnd::Over { cut_off: job.wait().cut_off });
    })?;
    let up = Arc::clone(uplink);
    Ok(start_thread("iof-totals", move || {
        while !up.is_closed() {
            thread::sleep(TOTALS_INTERVAL);
            let Ok(totals) = totals(&mut tool) else { return };
            for part in totals.chunks(MAX_TOTALS) {
                up.send(&ToFrontEnd::Produced(part.to_vec()));
            }
        }
    })?)
}

/// Tells the front end that the files of this node are complete, or can't be written.
fn files_ended(uplink: &Uplink, inputs: &Sender<Input>, FilesEnd { result, are_blocked }: FilesEnd) {
    let (PrintReport { written, lost, .. }, failure) = match result {
        Ok(report) => (report, None),
        Err(reason) => (PrintReport::default(), Some(cut_text(&reason))),
    };
    uplink.send(&ToFrontEnd::FilesWritten { written, lost: lost.into_iter().collect(), failure });
    if are_blocked {
        // Before the wait for the files ends.
        uplink.close();
        // The agent may have ended.
        let _ = inputs.send(Input::FilesBlocked);
    }
}

/// Returns what forwarding has cost this process.
fn cost(backend: String) -> ToFrontEnd {
    let (user, system) = cpu_time().unwrap_or_default();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ToFrontEnd::Cost { user: micros(user), system: micros(system), backend: cut_text(&backend) }
}

/// Sends the exit of a rank. That of a failed rank follows its output.
fn send_exit(job: &Job, uplink: &Uplink, rank: RankExit) {
    if !rank.exit.success() {
        job.flush_rank(rank.rank, Some(FLUSH_LIMIT));
    }
    let RankExit { rank, exit, executable, requested, .. } = rank;
    let status = match exit {
        Exit::Status(status) => Some(status.into_raw()),
        _ => None,
    };
    uplink.send(&ToFrontEnd::Exited { rank, status, executable: cut_text(&executable), requested });
}

/// Returns the pids of all ranks, in their order.
fn pids(tool: &mut Tool) -> Result<Vec<u32>, AgentError> {
    let found = tool.query(&[key::PMIX_QUERY_LOCAL_PROC_TABLE])?;
    let mut pids = BTreeMap::new();
    for Found { value, .. } in found {
        if let Value::Procs(procs) = value {
            pids.extend(procs.into_iter().map(|info| (info.proc.rank, info.pid)));
        }
    }
    Ok(pids.into_values().collect())
}

fn totals(tool: &mut Tool) -> Result<Vec<RankTotal>, RequestError> {
    let found = tool.query(&[key::IOF_QUERY_STATS])?;
    let streams = found.into_iter().filter_map(|found| match found.value {
        Value::Streams(streams) => Some(streams),
        _ => None,
    });
    let total = |stream: iof_proto::StreamStats| RankTotal {
        rank: stream.source.rank,
        channel: stream.channel,
        produced: stream.produced,
    };
    Ok(streams.flatten().map(total).collect())
}

/// Does what the front end asks for, until it has everything.
///
/// # Errors
/// The edge has ended before, or a signal ends this process.
fn serve(
    queue: &Receiver<Input>,
    (job, engine, host, hooks): (&Job, &Engine, &AgentHost, &dyn AgentHooks),
    ranks: &BTreeSet<Rank>,
    mut stdin: StdinWorkers,
) -> Result<AgentExit, AgentError> {
    let mut is_over = false;
    loop {
        match queue.recv() {
            Ok(Input::Message(ToAgent::Signal { signal })) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    job.signal(signal);
                }
            }
            Ok(Input::Message(ToAgent::SignalRanks { signal, ranks })) => {
                if !signal_ranks(engine, job.nspace(), &ranks, signal) {
                    hooks.warn(&format!("cannot send signal {signal} to {} ranks", ranks.len()));
                }
            }
            Ok(Input::Message(ToAgent::Stdin(piece))) => stdin.push(piece, ranks),
            Ok(Input::Message(ToAgent::Resize { rows, columns })) => {
                job.resize_ptys(WindowSize { rows, columns });
            }
            Ok(Input::Message(ToAgent::Logged { call, failure })) => host.logged(call, failure),
            Ok(Input::Message(ToAgent::CutOff)) => cut_off(job, ranks),
            Ok(Input::Message(ToAgent::Close)) => return Ok(AgentExit::Over),
            Ok(Input::Over) => is_over = true,
            Ok(Input::Lost(_) | Input::Message(ToAgent::HangUp)) if is_over => return Ok(AgentExit::Over),
            Ok(Input::Message(ToAgent::HangUp)) => return Ok(AgentExit::Alone),
            Ok(Input::Message(ToAgent::Start(_) | ToAgent::Go)) => {
                return Err(AgentError::Unexpected("started ranks twice"));
            }
            Ok(Input::Stop) => return Err(AgentError::Stopped),
            // The thread that receives does these.
            Ok(Input::Message(ToAgent::Relay(_) | ToAgent::CutChild { .. })) => {}
            Ok(Input::Lost(None)) => return Ok(AgentExit::Alone),
            Ok(Input::FilesBlocked) => return Ok(AgentExit::FilesBlocked),
            Ok(Input::Lost(Some(reason))) => {
                let line = format!("{reason}; the ranks of this node are ended");
                // The carrier that would show it may be gone. Fails without a job record.
                let _ = engine.log(&Log::to([log_key::PMIX_LOG_JOB_RECORD], &line), |_| {});
                return Err(AgentError::Lost(line));
            }
            Err(_) => return Err(AgentError::NoThreads),
        }
    }
}

/// Sends a signal of a tool, as a tool on this node would. Returns whether that has succeeded.
fn signal_ranks(engine: &Engine, nspace: &Nspace, ranks: &[Rank], signal: i32) -> bool {
    let proc = |rank: &Rank| Proc { nspace: nspace.clone(), rank: *rank };
    let procs: Vec<Proc> = ranks.iter().map(proc).collect();
    let sent = engine.attach(NAME, Grant::Never).map(|mut tool| tool.signal(&procs, signal));
    matches!(sent, Ok(Ok(_)))
}

/// Completes all streams with the bytes written so far.
fn cut_off(job: &Job, ranks: &BTreeSet<Rank>) {
    for rank in ranks {
        for channel in [Channel::Stdout, Channel::Stderr, Channel::Stddiag] {
            job.close(*rank, channel);
        }
    }
}

/// Ends all ranks: by SIGTERM, and after a while by SIGKILL.
fn end_ranks(job: &Job, kill_wait: Duration) {
    job.signal(Signal::TERM);
    job.signal(Signal::CONT);
    let (ended, end) = unbounded::<()>();
    let waiting = job.clone();
    let waits = start_thread("iof-end", move || {
        waiting.wait_exit();
        drop(ended);
    });
    let deadline = Instant::now().checked_add(kill_wait);
    let has_ended = match (waits, deadline) {
        (Ok(()), Some(deadline)) => end.recv_deadline(deadline) == Err(RecvTimeoutError::Disconnected),
        _ => false,
    };
    // Children of ranks that have exited are killed as well.
    job.signal(Signal::KILL);
    if !has_ended {
        job.wait_exit();
    }
}
