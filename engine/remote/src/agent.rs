//! The agent of a node: starts ranks for a front end elsewhere, and sends their output.
//!
//! When the edge to the front end ends, or breaks, the ranks are ended: nothing on this node would
//! know of them. An agent that replaces its carriers waits for another one before that.

mod bundles;
mod carrier_files;
mod dial;
mod follow;
mod hooks;
mod host;
mod links;
mod prepare;
mod pulls;
mod stdin;
mod typed_keys;
mod uplink;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use iof_capture::reserve_channel_fds;
use iof_engine::{Engine, Grant, Job, Signal};
use iof_nodes::{Invitation, NodeStart, ToAgent, ToFrontEnd, cut_text};
use iof_proto::log::key as log_key;
use iof_proto::{Channel, Log, Nspace, Proc, Rank};
use iof_tool::{AttachError, RequestError};

pub use self::dial::dial;
use self::follow::follow;
pub use self::hooks::{AgentHooks, FileWriter, FilesEnd, StartRefusal};
use self::host::AgentHost;
use self::links::Links;
pub use self::links::{LinkError, link};
use self::prepare::{prepare, typed};
use self::pulls::Pulls;
use self::stdin::StdinWorkers;
use self::uplink::{AgentInput, Uplink};
use crate::carrier::DRAIN_LIMIT;
use crate::carriers::NodeConnection;
use crate::thread::{NoThread, start_thread};

/// The name of the agent's own tools.
const NAME: &str = "iof agent";

/// The time for which the agent waits until the job record has why it ends.
const RECORD_LIMIT: Duration = Duration::from_secs(2);

/// An agent that has greeted its front end.
pub struct Agent {
    links: Arc<Links>,
    inputs: Sender<AgentInput>,
    queue: Receiver<AgentInput>,
    hooks: Arc<dyn AgentHooks>,
}

/// Ends an agent from another thread.
#[derive(Clone, Debug)]
pub struct AgentStop(Sender<AgentInput>);

/// Runs ranks for the front end at the other end of `connection`, until it has all output, or the
/// edge has ended. Blocks until then.
///
/// A process may run several agents. The first of them has the socket for tools of its process: the
/// others have none in the default directory, and refuse their job if the front end names another
/// ([`Rendezvous`](iof_proto::Rendezvous)).
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
        let _ = self.0.send(AgentInput::Stop);
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
        Agent::begin(connection, reattach, None, hooks)
    }

    /// As [`Agent::start`], over the connection that [`dial`] has made with this invitation. With `reattach`, the agent
    /// connects again itself.
    pub fn start_dialed(
        connection: NodeConnection,
        invitation: &Invitation,
        reattach: Option<Duration>,
        hooks: Arc<dyn AgentHooks>,
    ) -> Result<Agent, AgentError> {
        let next = Invitation { token: invitation.token.next(), ..*invitation };
        Agent::begin(connection, reattach, Some(next), hooks)
    }

    fn begin(
        connection: NodeConnection,
        reattach: Option<Duration>,
        invitation: Option<Invitation>,
        hooks: Arc<dyn AgentHooks>,
    ) -> Result<Agent, AgentError> {
        // The edge takes the low descriptor numbers before the engine starts.
        reserve_channel_fds();
        let (inputs, queue) = unbounded();
        let links = Links::start(connection, inputs.clone(), reattach.unwrap_or_default(), invitation)?;
        Ok(Agent { links, inputs, queue, hooks })
    }

    /// Returns what ends the agent from another thread.
    pub fn stop_handle(&self) -> AgentStop {
        AgentStop(self.inputs.clone())
    }

    /// Returns what sends lines to the user of the front end, from any thread, over whichever carrier. It blocks while the
    /// edge takes nothing. Returns whether the edge has taken the line: it may have ended, and a line has at most
    /// [`MAX_ANSWER`](iof_nodes::limits::MAX_ANSWER) bytes.
    pub fn messages(&self) -> impl Fn(String) -> bool + Send + Sync + use<> {
        let uplink = Arc::clone(&self.links.uplink);
        move |line| uplink.send(&ToFrontEnd::Told(line))
    }

    /// Runs ranks for the front end. Blocks until it has all output, or the edge has ended.
    ///
    /// # Errors
    /// The edge is lost, or the agent can't go on.
    pub fn run(self) -> Result<AgentExit, AgentError> {
        let Agent { links, inputs, queue, hooks } = self;
        let end = run_ranks(&links, inputs, &queue, hooks.as_ref());
        links.finish(Instant::now() + DRAIN_LIMIT);
        end
    }
}

fn run_ranks(
    links: &Arc<Links>,
    inputs: Sender<AgentInput>,
    queue: &Receiver<AgentInput>,
    hooks: &dyn AgentHooks,
) -> Result<AgentExit, AgentError> {
    let uplink = &links.uplink;
    let mut start = match next_message(queue)? {
        Some(ToAgent::Start(start)) => *start,
        Some(_) => return Err(AgentError::Unexpected("did not start ranks first")),
        None => return Ok(AgentExit::Unstarted),
    };
    let (host, messages) = AgentHost::new();
    let host = Arc::new(host);
    let (engine, output) = match prepare(&mut start, &host, hooks) {
        Ok(prepared) => prepared,
        Err(failure) => return Ok(refuse(uplink, failure)),
    };
    let NodeStart { spec, config } = start;
    let ranks = spec.local.clone().unwrap_or_default();
    let directory = config.rendezvous.directory();
    match links.listen(directory) {
        Ok(Some(address)) => _ = uplink.send(&ToFrontEnd::Link(address)),
        Ok(None) => {}
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
    let pulls = Pulls::start(&engine, job.nspace(), uplink);
    let followed = follow(&engine, &job, (uplink, inputs), (output, messages));
    let stdin = StdinWorkers::new(Arc::clone(&engine), Arc::clone(uplink), job.clone(), typed(&spec, &ranks));
    let result = match followed {
        Ok(()) => pulls.and_then(|pulls| serve(queue, (&job, &engine, &host), &ranks, (stdin, &pulls))),
        Err(failure) => Err(failure),
    };
    if !matches!(result, Ok(AgentExit::Over)) {
        uplink.close();
        end_ranks(&job, spec.kill_wait);
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

/// Returns the next message before the ranks run; `None` if the edge ends before it.
fn next_message(queue: &Receiver<AgentInput>) -> Result<Option<ToAgent>, AgentError> {
    match queue.recv() {
        Ok(AgentInput::Message(ToAgent::HangUp)) => Ok(None),
        Ok(AgentInput::Message(message)) => Ok(Some(message)),
        Ok(AgentInput::Lost(Some(reason))) => Err(AgentError::Lost(reason)),
        Ok(AgentInput::Lost(None) | AgentInput::Stop | AgentInput::Over | AgentInput::FilesBlocked)
        | Err(_) => Ok(None),
    }
}

/// Does what the front end asks for, until it has everything.
///
/// # Errors
/// The edge has ended before, or a signal ends this process.
fn serve(
    queue: &Receiver<AgentInput>,
    (job, engine, host): (&Job, &Engine, &AgentHost),
    ranks: &BTreeSet<Rank>,
    (mut stdin, pulls): (StdinWorkers, &Pulls),
) -> Result<AgentExit, AgentError> {
    let mut is_over = false;
    loop {
        match queue.recv() {
            Ok(AgentInput::Message(ToAgent::Signal { signal })) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    job.signal(signal);
                }
            }
            Ok(AgentInput::Message(ToAgent::SignalRanks { signal, ranks })) => {
                if !signal_ranks(engine, job.nspace(), &ranks, signal) {
                    tracing::warn!("cannot send signal {signal} to {} ranks", ranks.len());
                }
            }
            Ok(AgentInput::Message(ToAgent::Stdin { call, ranks: targets, bytes })) => {
                stdin.push(call, (targets, ranks), bytes);
            }
            Ok(AgentInput::Message(ToAgent::Pull(requests))) => pulls.begin(&requests),
            Ok(AgentInput::Message(ToAgent::EndPulls(ended))) => pulls.end(&ended),
            Ok(AgentInput::Message(ToAgent::Resize(size))) => drop(job.resize_ptys(size)),
            Ok(AgentInput::Message(ToAgent::Logged { call, failure })) => host.logged(call, failure),
            Ok(AgentInput::Message(ToAgent::Exchanged { call, answer })) => host.exchanged(call, answer),
            Ok(AgentInput::Message(ToAgent::Modex { call, rank })) => {
                engine.modex(job, rank, host.modex_reply(call));
            }
            Ok(AgentInput::Message(ToAgent::Relative(relative))) => {
                if let Err(error) = engine.add_relative(&relative) {
                    tracing::warn!("ranks cannot connect to job {}: {error}", relative.nspace);
                }
            }
            Ok(AgentInput::Message(ToAgent::RelativeEnded(nspace))) => engine.remove_relative(nspace),
            // The end of the edge has put it to others.
            Ok(AgentInput::Message(ToAgent::Piece(_))) => {}
            Ok(AgentInput::Message(ToAgent::CutOff)) => cut_off(job, ranks),
            Ok(AgentInput::Message(ToAgent::Close)) => return Ok(AgentExit::Over),
            Ok(AgentInput::Over) => is_over = true,
            Ok(AgentInput::Lost(_) | AgentInput::Message(ToAgent::HangUp)) if is_over => {
                return Ok(AgentExit::Over);
            }
            Ok(AgentInput::Message(ToAgent::HangUp)) => return Ok(AgentExit::Alone),
            Ok(AgentInput::Message(ToAgent::Start(_) | ToAgent::Go)) => {
                return Err(AgentError::Unexpected("started ranks twice"));
            }
            Ok(AgentInput::Stop) => return Err(AgentError::Stopped),
            Ok(AgentInput::Lost(None)) => return Ok(AgentExit::Alone),
            Ok(AgentInput::FilesBlocked) => return Ok(AgentExit::FilesBlocked),
            Ok(AgentInput::Lost(Some(reason))) => {
                let line = format!("{reason}; the ranks of this node are ended");
                // The carrier that would show it may be gone. Fails without a job record.
                let (written, record) = bounded(1);
                let entry = Log::to([log_key::PMIX_LOG_JOB_RECORD], &line);
                if engine.log(&entry, move |_| written.send(()).unwrap_or(())).is_ok() {
                    let _ = record.recv_timeout(RECORD_LIMIT);
                }
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
        for channel in Channel::OUTPUTS {
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
