//! `iof agent`: starts ranks on its node for an `iof run` elsewhere, and sends their output.
//!
//! Its stdin and stdout are the edge to the front end. When the edge ends, or breaks, the ranks are
//! ended: nothing on this node would know of them. With `--reattach`, `iof link` can bring another
//! stdin and stdout before that.

mod bundles;
mod files;
mod host;
pub mod links;
mod relay;
mod shared_pipe;
mod stdin;
mod uplink;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use iof_engine::{
    App, Config, Ending, Engine, Exit, Grant, Job, JobSpec, Policy, Pty, RankExit, Rendezvous, Signal,
    StartError, Stdin, WindowSize,
};
use iof_nodes::limits::MAX_TOTALS;
use iof_nodes::{
    AgentSocket, DropPolicy, Program, RankStdin, RankTotal, Start, Terminal, ToAgent, ToFrontEnd, cut_text,
};
use iof_proto::log::key as log_key;
use iof_proto::query::key;
use iof_proto::{Channel, Found, Log, Nspace, Proc, Rank, Value};
use iof_tool::Tool;
use nix::unistd::gethostname;

use self::bundles::Bundles;
use self::files::FileWriters;
use self::host::AgentHost;
use self::links::Links;
use self::stdin::StdinWorkers;
use self::uplink::{Input, Uplink};
use crate::account::{backend_text, cpu_time};
use crate::args::Backend;
use crate::args::values::duration;
use crate::error::Failure;
use crate::log;
use crate::message::print_message;
use crate::nodes::link::DRAIN_LIMIT;
use crate::run::{FLUSH_LIMIT, engine_failed};
use crate::signals::{Signals, asks_to_end};
use crate::threads::start_thread;

/// The name of the agent's own tools.
const NAME: &str = "iof agent";

/// The time between two messages with totals.
const TOTALS_INTERVAL: Duration = Duration::from_secs(1);

/// The options of `iof agent`, which `iof run` sets.
#[derive(Args)]
pub struct AgentArgs {
    /// Go on for this time without a carrier
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    reattach: Option<Duration>,
}

/// Runs ranks for a front end. Returns when it has all output, or when the edge has ended.
pub fn agent(AgentArgs { reattach }: &AgentArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::take().map_err(Failure::running)?;
    let (inputs, queue) = unbounded();
    let uplink = Uplink::start(inputs.clone(), *reattach)?;
    watch_signals(signals, inputs.clone())?;
    let end = run_ranks(&uplink, inputs, &queue);
    if !matches!(end, Ok(End::Over)) {
        uplink.close();
    }
    if let Some(links) = uplink.links() {
        links.finish(Instant::now() + DRAIN_LIMIT);
    }
    end.map(|end| match end {
        End::Over | End::Unstarted => ExitCode::SUCCESS,
        End::Refused | End::Alone | End::FilesBlocked => ExitCode::FAILURE,
    })
}

fn run_ranks(uplink: &Arc<Uplink>, inputs: Sender<Input>, queue: &Receiver<Input>) -> Result<End, Failure> {
    let start = match next_message(queue)? {
        Some(ToAgent::Start(start)) => start,
        Some(_) => return Err(Failure::running("the front end did not start ranks first")),
        None => return Ok(End::Unstarted),
    };
    let kill_wait = Duration::from_millis(start.kill_wait);
    let ranks = start.ranks.clone();
    let (host, messages) = AgentHost::new();
    let host = Arc::new(host);
    let (engine, spec, output) = match prepare(&start, &host) {
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
        Some(_) => return Err(Failure::running("the front end did not let the ranks go")),
        None => return Ok(End::Unstarted),
    }
    let job = match engine.spawn(&spec) {
        Ok(job) => job,
        Err(error) => return Ok(refuse(uplink, Failure::running(error))),
    };
    let engine = Arc::new(engine);
    let followed = follow(&engine, &job, (uplink, inputs), (output, messages));
    let stdin = StdinWorkers::new(Arc::clone(&engine), Arc::clone(uplink), job.clone(), typed(&start));
    let result = match followed {
        Ok(()) => serve(queue, (&job, &engine, &host), &ranks, stdin),
        Err(failure) => Err(failure),
    };
    if !matches!(result, Ok(End::Over)) {
        uplink.close();
        end_ranks(&job, kill_wait);
    }
    // The threads that push stdin have ended with the queue.
    if let Some(engine) = Arc::into_inner(engine) {
        engine.end_with_process();
    }
    result
}

/// Why an agent ends.
enum End {
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
fn refuse(uplink: &Uplink, failure: Failure) -> End {
    let (reason, is_usage) = reason_of(failure);
    uplink.send(&ToFrontEnd::Failed { reason: cut_text(&reason), is_usage });
    End::Refused
}

/// Returns the text of a failure, and whether the user can correct the input.
fn reason_of(failure: Failure) -> (String, bool) {
    match failure {
        Failure::Usage(reason) | Failure::Choice(reason) => (reason, true),
        Failure::Running(reason) => (reason, false),
        Failure::Signal(signal) => (signal.to_string(), false),
    }
}

/// The readers of the ranks' output.
struct OutputReaders {
    bundles: Bundles,
    files: FileWriters,
}

fn watch_signals(signals: Signals, inputs: Sender<Input>) -> Result<(), Failure> {
    start_thread("iof-signals", move || {
        while let Some(received) = signals.wait() {
            if inputs.send(Input::Signal(received.signal)).is_err() {
                return;
            }
        }
    })
}

/// Returns the next message before the ranks run; `None` if the edge ends before it.
fn next_message(queue: &Receiver<Input>) -> Result<Option<ToAgent>, Failure> {
    loop {
        match queue.recv() {
            Ok(Input::Message(ToAgent::HangUp)) => return Ok(None),
            Ok(Input::Message(message)) => return Ok(Some(message)),
            Ok(Input::Signal(signal)) if !asks_to_end(signal) => {}
            Ok(Input::Lost(Some(reason))) => return Err(Failure::Running(reason)),
            Ok(Input::Lost(None) | Input::Signal(_) | Input::Over | Input::FilesBlocked) | Err(_) => {
                return Ok(None);
            }
        }
    }
}

fn prepare(start: &Start, host: &Arc<AgentHost>) -> Result<(Engine, JobSpec, OutputReaders), Failure> {
    let backend = start.backend.as_deref().map(|name| Backend::from_str(name, false));
    let backend = backend.transpose().map_err(Failure::Usage)?;
    let config = Config {
        cache_size: start.cache_size,
        cache_total: start.cache_total,
        policy: match start.drop {
            DropPolicy::None => Policy::Block,
            DropPolicy::Newest => Policy::DropNewest,
            DropPolicy::Oldest => Policy::DropOldest,
        },
        backend: backend.map(Into::into),
        rendezvous: match &start.socket {
            AgentSocket::None => Rendezvous::None,
            AgentSocket::Default => Rendezvous::Agent(None),
            AgentSocket::In(directory) => Rendezvous::Agent(Some(PathBuf::from(directory))),
        },
        log: log::config()?,
        ..Config::default()
    };
    let engine = match Engine::start_with(config.clone(), Arc::<AgentHost>::clone(host)) {
        // The environment of another node may name a directory that this node does not have.
        Err(StartError::Rendezvous(error)) if start.socket == AgentSocket::Default => {
            let node = gethostname().unwrap_or_default();
            print_message(format_args!("tools cannot attach on {}: {error}", node.display()));
            let config = Config { rendezvous: Rendezvous::None, ..config };
            Engine::start_with(config, Arc::<AgentHost>::clone(host))
        }
        started => started,
    };
    let engine = engine.map_err(engine_failed)?;
    let spec = spec(start);
    // The readers register before the job exists, so that they receive its first byte.
    let bundles = Bundles::attach(&engine, &spec.nspace, start)?;
    let spare_files = engine.check(&spec).map_err(Failure::usage)?;
    let files = FileWriters::start(&engine, &spec, start, spare_files)?;
    Ok((engine, spec, OutputReaders { bundles, files }))
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
    (OutputReaders { bundles, files }, messages): (OutputReaders, Receiver<ToFrontEnd>),
) -> Result<(), Failure> {
    let mut tool = engine.attach(NAME, Grant::Never).map_err(Failure::running)?;
    uplink.send(&ToFrontEnd::Started { pids: pids(&mut tool)? });
    let up = Arc::clone(uplink);
    start_thread("iof-log", move || messages.into_iter().for_each(|message| up.send(&message)))?;
    let output = bundles.start(uplink)?;
    let files = files.watch(uplink, inputs.clone())?;
    let (job, up, backend) = (job.clone(), Arc::clone(uplink), backend_text(engine));
    start_thread("iof-endings", move || {
        let mut is_requested = false;
        for ending in job.endings() {
            if let Ending::Rank(rank) = ending {
                is_requested |= rank.requested;
                send_exit(&job, &up, rank);
                if is_requested && job.try_wait_exit().is_some() {
                    files.ranks_were_ended();
                }
            }
        }
        output.into_iter().for_each(|thread| drop(thread.join()));
        files.wait();
        // The agent may have ended.
        let _ = inputs.send(Input::Over);
        up.send(&cost(backend));
        up.send(&ToFrontEnd::Over { cut_off: job.wait().cut_off });
    })?;
    let up = Arc::clone(uplink);
    start_thread("iof-totals", move || {
        while !up.is_closed() {
            thread::sleep(TOTALS_INTERVAL);
            let Ok(totals) = totals(&mut tool) else { return };
            for part in totals.chunks(MAX_TOTALS) {
                up.send(&ToFrontEnd::Produced(part.to_vec()));
            }
        }
    })
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
fn pids(tool: &mut Tool) -> Result<Vec<u32>, Failure> {
    let found = tool.query(&[key::PMIX_QUERY_LOCAL_PROC_TABLE]).map_err(Failure::running)?;
    let mut pids = BTreeMap::new();
    for Found { value, .. } in found {
        if let Value::Procs(procs) = value {
            pids.extend(procs.into_iter().map(|info| (info.proc.rank, info.pid)));
        }
    }
    Ok(pids.into_values().collect())
}

fn totals(tool: &mut Tool) -> Result<Vec<RankTotal>, Failure> {
    let found = tool.query(&[key::IOF_QUERY_STATS]).map_err(Failure::running)?;
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
    (job, engine, host): (&Job, &Engine, &AgentHost),
    ranks: &BTreeSet<Rank>,
    mut stdin: StdinWorkers,
) -> Result<End, Failure> {
    let mut is_over = false;
    loop {
        match queue.recv() {
            Ok(Input::Message(ToAgent::Signal { signal })) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    job.signal(signal);
                }
            }
            Ok(Input::Message(ToAgent::SignalRanks { signal, ranks })) => {
                signal_ranks(engine, job.nspace(), ranks, signal);
            }
            Ok(Input::Message(ToAgent::Stdin(piece))) => stdin.push(piece, ranks),
            Ok(Input::Message(ToAgent::Resize { rows, columns })) => {
                job.resize_ptys(WindowSize { rows, columns });
            }
            Ok(Input::Message(ToAgent::Logged { call, failure })) => host.logged(call, failure),
            Ok(Input::Message(ToAgent::CutOff)) => cut_off(job, ranks),
            Ok(Input::Message(ToAgent::Close)) => return Ok(End::Over),
            Ok(Input::Over) => is_over = true,
            Ok(Input::Lost(_) | Input::Message(ToAgent::HangUp)) if is_over => return Ok(End::Over),
            Ok(Input::Message(ToAgent::HangUp)) => return Ok(End::Alone),
            Ok(Input::Message(ToAgent::Start(_) | ToAgent::Go)) => {
                return Err(Failure::running("the front end started ranks twice"));
            }
            Ok(Input::Signal(signal)) if asks_to_end(signal) => return Err(Failure::Signal(signal)),
            // The thread that receives does these.
            Ok(Input::Message(ToAgent::Relay(_) | ToAgent::CutChild { .. }) | Input::Signal(_)) => {}
            Ok(Input::Lost(None)) => return Ok(End::Alone),
            Ok(Input::FilesBlocked) => return Ok(End::FilesBlocked),
            Ok(Input::Lost(Some(reason))) => {
                let line = format!("{reason}; the ranks of this node are ended");
                // The carrier that would show it may be gone. Fails without a job record.
                let _ = engine.log(&Log::to([log_key::PMIX_LOG_JOB_RECORD], &line), |_| {});
                return Err(Failure::Running(line));
            }
            Err(_) => return Err(Failure::running("the agent lost its threads")),
        }
    }
}

/// Sends a signal of a tool, as a tool on this node would.
fn signal_ranks(engine: &Engine, nspace: &Nspace, ranks: Vec<Rank>, signal: i32) {
    let procs: Vec<Proc> = ranks.into_iter().map(|rank| Proc { nspace: nspace.clone(), rank }).collect();
    let sent = engine.attach(NAME, Grant::Never).map(|mut tool| tool.signal(&procs, signal));
    if !matches!(sent, Ok(Ok(_))) {
        print_message(format_args!("cannot send signal {signal} to {} ranks", procs.len()));
    }
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

/// The edge's descriptors, which ranks do not inherit.
fn own_files() -> std::io::Result<(File, File)> {
    use std::os::fd::AsFd;
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    Ok((stdin.as_fd().try_clone_to_owned()?.into(), stdout.as_fd().try_clone_to_owned()?.into()))
}
