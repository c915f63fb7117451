//! `iof run`: starts a job, writes its output, and ends with its exit code.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{
    App, Config, EarlyEnd, EarlyEndPolicy, EndCause, Ending, Engine, Host, HostReply, Job, JobSpec,
    LaunchError, Mpi, Pty, QueryReply, RankExit, Remedy, Rendezvous, Signal, StartError, StdinPush,
};
use iof_output::NewFiles;
use iof_proto::rendezvous::{BindError, JobLink};
use iof_proto::{Channel, Nspace, Proc, Query, Rank, Status};
use iof_remote::{Launch, Nodes, environment};

use crate::account::{JobAccount, report_agents};
use crate::app::apps;
use crate::args::{Drop, EndingArgs, MpiChoice, RendezvousDir, RunArgs};
use crate::attach::attach_own;
use crate::error::{Failure, engine_failed};
use crate::failures::{Failures, MAX_FAILURE_LINES};
use crate::fifos::wait_for_readers;
use crate::follow::RunningJob;
use crate::full_screen::FullScreen;
use crate::give_up::WriteWait;
use crate::guardian::{self, SELF};
use crate::job_event::{FLUSH_LIMIT, GRACE, JobEvent};
use crate::keyboard::{Keyboard, window_size};
use crate::launched_job::LaunchedJob;
use crate::log;
use crate::message::{self, print_message};
use crate::name;
use crate::nodes::launch;
use crate::orphans::reap_if_first_process;
use crate::output::WrittenOutputs;
use crate::printers::OutputWriter;
use crate::signal_watch::SignalWatch;
use crate::signals::{ReceivedSignal, Signals};
use crate::singletons::watch_for_singletons;
use crate::threads::{no_thread, start_thread};

/// Runs a job. Returns the exit code of the rank that failed first, or 0.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    let mut apps = apps(&args.app)?;
    apps.iter_mut().for_each(|app| app.merge_stderr = args.merge_at_source);
    let nprocs: u64 = apps.iter().map(|app| u64::from(app.nprocs)).sum();
    let nodes = args.nodes.choose(nprocs)?;
    let writes = if nodes.is_some() { WrittenOutputs::FrontEnd } else { WrittenOutputs::All };
    let outputs = args.output.prepare(Some(nprocs), writes)?;
    if let Some(option) = args.output.redirect.error_option().filter(|_| args.merge_at_source) {
        return Err(Failure::Usage(format!(
            "{option} cannot be combined with --merge-at-source, which leaves nothing on stderr: leave one out"
        )));
    }
    if let Some((_, template)) = &nodes {
        launch::check(args, &outputs, template)?;
    }
    let stdin = args.stdin.plan(nprocs)?;
    // The rank at whose terminal the command's stdin is typed.
    let ptys = ptys(args);
    let has_pty = |rank: &Rank| ptys.contains_key(rank) || ptys.contains_key(&Rank::WILDCARD);
    let typed = stdin.inherits().filter(has_pty);
    let stdin = if nodes.is_some() { stdin.over_nodes() } else { stdin };
    let (events, event_queue) = unbounded();
    // The start may wait for a file system or for libpmix.
    let signals = SignalWatch::start(Signals::take().map_err(Failure::running)?, events.clone())?;
    let (nodes, template) = nodes.unzip();
    let host = Arc::new(Launcher { events: events.clone(), nodes: nodes.map(Nodes::new) });
    let engine = Arc::new(start_engine(args, &host)?);
    // The reservation ends with the job, so that a concurrent run gets another name.
    let (nspace, reserved, base) = match &args.nspace {
        Some(nspace) => {
            let without = "or run without a socket for tools: --rendezvous-dir none";
            let unfindable = |error| Failure::Usage(format!("--nspace: {error}; {without}"));
            (nspace.clone(), engine.announce(nspace).map_err(unfindable)?, None)
        }
        None => choose_name(&engine, &apps)?,
    };
    let mut spec = JobSpec::new(nspace.clone(), apps);
    spec.stdin = stdin.ranks.clone();
    spec.own_stdin = stdin.own();
    spec.ptys = ptys;
    spec.grace = args.grace;
    spec.kill_on_bad_exit = args.ending.kill_on_bad_exit();
    spec.kill_wait = args.ending.kill_wait;
    spec.timeout = args.ending.timeout;
    spec.mpi = args.mpi.into();
    // libpmix listens for tools on a port that other users can reach, so they must be asked for.
    spec.pmix_tools = (matches!(args.mpi, MpiChoice::Pmix) && engine.socket().is_some()).then(|| SELF.into());
    spec.binding = args.bind_to.into();
    if let Some(rank) = spec.ptys.keys().copied().filter(|rank| *rank != Rank::WILDCARD).max()
        && u64::from(rank.0) >= nprocs
    {
        return Err(Failure::usage(LaunchError::UnknownPtyRank { rank, ranks: nprocs }));
    }
    if host.nodes.is_some() && spec.needs_mpi() {
        return Err(Failure::Usage(format!(
            "MPI programs run on one node only: write --hosts localhost:{nprocs} for this node, or --mpi none for \
             ranks that are alone"
        )));
    }
    // The printers register before the job exists, so that they receive its first byte.
    let mut attached = outputs.attach(u32::try_from(nprocs).ok(), |parts| {
        parts.iter().map(|part| attach_own(&engine, "iof run", &nspace, part).map(Some)).collect()
    })?;
    let remote = host.nodes.as_ref().map(|nodes| nodes.ranks(&nspace)).zip(template);
    let spare_files = match &remote {
        None => engine.check(&spec).map_err(Failure::usage)?,
        Some((remote, _)) => remote.check().map_err(Failure::usage)?,
    };
    // Removes on each error below what was created, until the job has started.
    let mut new_files = NewFiles::default();
    let ranks: Vec<Rank> = (0..u32::try_from(nprocs).unwrap_or(u32::MAX)).map(Rank).collect();
    attached.lock_files(&nspace, &ranks, spare_files, &mut new_files)?;
    attached.check_programs(&spec.apps)?;
    wait_for_readers(&mut attached, &mut new_files, &signals, args.give_up)?;
    let writers = attached.start()?;
    let screen = watch_screen(&engine, &nspace, typed, events.clone())?;
    let (job, node_events) = match &remote {
        None => (LaunchedJob::Local(engine.spawn(&spec).map_err(not_started)?), None),
        Some((remote, template)) => {
            let backend = args.backend.map(Into::into);
            let (cache_size, cache_total) = (args.cache_size, args.cache_total().map_err(Failure::Usage)?);
            let drop = args.drop.into();
            // As on this node: the ranks are not those of another launcher.
            let hide_launcher = !matches!(args.mpi, MpiChoice::None);
            let env = environment::of_ranks(&args.nodes.host_env);
            let carriers = args.nodes.carriers(template).map_err(Failure::running)?;
            let launch = Launch {
                spec: &spec,
                typed,
                env,
                carriers: &carriers,
                reattach: args.nodes.reattach_limit(),
                cache_size,
                cache_total,
                lines: outputs.flush_timeout(),
                audience: outputs.audience(),
                drop,
                hide_launcher,
                backend,
                socket: launch::agent_socket(args.rendezvous_dir()),
                files: outputs.node_files(u32::try_from(nprocs).unwrap_or(u32::MAX), args.give_up)?,
            };
            let (node_events, for_ranks) = launch::start(remote, &launch, &engine, &signals)?;
            for received in for_ranks {
                let _ = events.send(JobEvent::Signal(ReceivedSignal { from_terminal: false, ..received }));
            }
            (LaunchedJob::Remote(Arc::clone(remote)), Some(node_events))
        }
    };
    new_files.keep();
    if let Some(base) = base.filter(|_| outputs.names_job()) {
        print_message(format_args!(
            "a job {base} is running, so this job is named {}; --nspace sets the name of its files",
            spec.nspace
        ));
    }

    let output_count = writers.len();
    let mut write_wait = WriteWait::new(writers.iter().map(OutputWriter::watched).collect());
    if let Some(limit) = args.give_up {
        write_wait.limit(limit);
        message::give_up_after(limit);
    }
    signals.job_is_started();
    let followed = match (&job, node_events) {
        (LaunchedJob::Remote(remote), Some(node_events)) => {
            let EndingArgs { kill_wait, timeout, .. } = args.ending;
            let policy = args.ending.kill_on_bad_exit();
            let policy = EarlyEndPolicy::new(policy, kill_wait, timeout, Instant::now());
            launch::follow(remote, (spec.nspace.clone(), &engine), node_events, policy, events.clone())
        }
        (LaunchedJob::Local(job), _) => watch_job(job.clone(), events.clone()),
        (LaunchedJob::Remote(_), None) => Ok(()),
    };
    let keyboard = followed
        .and_then(|()| {
            writers.into_iter().try_for_each(|writer| {
                let events = events.clone();
                writer.watch(move |report| drop(events.send(JobEvent::Output(report))))
            })
        })
        .and_then(|()| match &job {
            LaunchedJob::Local(job) => {
                reap_if_first_process(job)?;
                let could_be_alone = nprocs > 1 && spec.mpi != Mpi::None && engine.pmix_library().is_none();
                if could_be_alone { watch_for_singletons(job) } else { Ok(()) }
            }
            LaunchedJob::Remote(_) => Ok(()),
        })
        .and_then(|()| {
            let events = events.clone();
            stdin.push(&engine, &nspace, move |event| drop(events.send(JobEvent::Stdin(event))))
        })
        .and_then(|()| match &job {
            LaunchedJob::Local(job) => give_keyboard(job, stdin.inherits()),
            LaunchedJob::Remote(_) => typed.map(Keyboard::give_elsewhere).transpose().map_err(no_thread),
        });
    if keyboard.is_err() {
        // The ranks would run without a launcher.
        job.signal(Signal::KILL);
    }
    let remote = remote.map(|(remote, _)| remote);
    let nodes = remote.as_ref().map(|remote| Arc::clone(&remote.nodes)).unwrap_or_default();
    let failures = (Failures::new(nspace, args.ending.timeout).on(nodes), args.ending.quiet);
    let outputs = (output_count, write_wait, args.ending.kill_wait.max(GRACE));
    let running = RunningJob::new(job, event_queue, outputs, failures, screen, keyboard?);
    let (result, forwarded, failures) = running.wait_for_end(&engine);
    if args.timings || args.summary {
        let account = JobAccount::query(&engine, started.elapsed(), forwarded, &failures);
        match account {
            Ok(account) => {
                account.report(args.timings, args.summary);
                match &remote {
                    Some(remote) if args.timings => report_agents(&remote.costs()),
                    None if args.timings => {
                        print_message(format_args!("timings: {}", mpi_protocol(args.mpi.into(), &engine)));
                    }
                    _ => {}
                }
            }
            // The result of the job does not depend on its account.
            Err(error) => print_message(format_args!("cannot report timings and summary: {error}")),
        }
    }
    drop(reserved);
    // Threads of nodes only have weak references, or short-lived ones after a failure.
    if let Some(engine) = Arc::into_inner(engine) {
        engine.end_with_process();
    }
    result
}

/// Returns a text about the protocol by which the ranks could start MPI.
fn mpi_protocol(mpi: Mpi, engine: &Engine) -> String {
    match (engine.pmix_library(), mpi) {
        (Some(library), _) => format!("MPI by PMIx ({library})"),
        (None, Mpi::Auto | Mpi::Pmi1) => "MPI by PMI-1".into(),
        (None, _) => "no MPI".into(),
    }
}

/// Chooses the name of a job that the user has not named. It is the same in each run of a program,
/// so that files have the same names, unless a job of that name is running. Then that name is
/// returned as well.
fn choose_name(engine: &Engine, apps: &[App]) -> Result<(Nspace, Option<JobLink>, Option<Nspace>), Failure> {
    let name = apps.first().and_then(|app| name::of_program(Path::new(&app.program)));
    let base = name.map_or_else(|| Nspace::new("job"), Ok).map_err(Failure::running)?;
    let (nspace, reserved) = engine.reserve_name(&base);
    let taken = (nspace != base).then_some(base);
    Ok((nspace, reserved, taken))
}

/// The host of the command's engine.
struct Launcher {
    events: Sender<JobEvent>,
    /// The nodes of the ranks, if these are others.
    nodes: Option<Nodes>,
}

impl Host for Launcher {
    fn forwards_stdin(&self) -> bool {
        self.nodes.is_some()
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        match &self.nodes {
            Some(nodes) => nodes.push_stdin(stdin, bytes, reply),
            None => reply.deny(Status::ERR_NOT_SUPPORTED, "all ranks run on this node"),
        }
    }

    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        self.nodes.as_ref().map_or(0, |nodes| nodes.signal(procs, signal))
    }

    fn queries(&self) -> Vec<String> {
        self.nodes.as_ref().map(Nodes::queries).unwrap_or_default()
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        match &self.nodes {
            Some(nodes) => nodes.query(queries, reply),
            None => reply.answer(Vec::new()),
        }
    }

    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        // The send fails only when the job is over.
        let _ = self.events.send(JobEvent::Stalled { rank: source.rank, channel, remedy });
    }
}

fn config(args: &RunArgs, has_nodes: bool) -> Result<Config, Failure> {
    let rendezvous = match args.rendezvous_dir() {
        RendezvousDir::None => Rendezvous::None,
        RendezvousDir::Default => Rendezvous::Session(None),
        RendezvousDir::Is(directory) => {
            if fs::metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                let missing = format!("--rendezvous-dir {}: no such directory", directory.display());
                return Err(Failure::Usage(format!("{missing}: create it with mode 0700")));
            }
            Rendezvous::Session(Some(directory.to_owned()))
        }
    };
    let mut config = Config::new(rendezvous);
    config.backend = args.backend.map(Into::into);
    config.cache_size = args.cache_size;
    config.cache_total = args.cache_total().map_err(Failure::Usage)?;
    // What the ranks of other nodes write is dropped there, if at all.
    let drop = if has_nodes { Drop::None } else { args.drop };
    config.policy = drop.into();
    config.log = log::config()?;
    config.guardian = guardian::program();
    Ok(config)
}

/// Starts the engine. It has no socket if another user owns the path of the default directory.
fn start_engine(args: &RunArgs, host: &Arc<Launcher>) -> Result<Engine, Failure> {
    let mut config = config(args, host.nodes.is_some())?;
    let start = |config| Engine::start_with(config, Arc::<Launcher>::clone(host));
    let started = match start(config.clone()) {
        Err(StartError::Rendezvous(BindError::Directory(error)))
            if config.rendezvous == Rendezvous::Session(None) && error.is_foreign() =>
        {
            print_message(format_args!("tools cannot attach: {error}"));
            config.rendezvous = Rendezvous::None;
            start(config)
        }
        started => started,
    };
    started.map_err(engine_failed)
}

/// Returns the failure for a job that did not start. Ranks may have run before some of the errors.
fn not_started(error: LaunchError) -> Failure {
    match error {
        LaunchError::Spawn { .. }
        | LaunchError::Rings { .. }
        | LaunchError::Capture(_)
        | LaunchError::Pmi { .. } => Failure::running(error),
        error => Failure::usage(error),
    }
}

/// Returns the settings of the pseudo-terminals, by rank.
fn ptys(args: &RunArgs) -> BTreeMap<Rank, Pty> {
    // The echo of a file or a pipe would be output that no rank has written.
    let echo = io::stdin().is_terminal();
    let pty = Pty { size: window_size(), echo, data: !echo };
    args.pty.iter().flat_map(|ranks| &ranks.0).map(|rank| (*rank, pty)).collect()
}

/// Starts to type the command's stdin at the terminal of `rank`, if it has one.
fn give_keyboard(job: &Job, rank: Option<Rank>) -> Result<Option<Keyboard>, Failure> {
    let Some(rank) = rank else { return Ok(None) };
    let master = job.pty(rank).map_err(Failure::running)?;
    master.map(Keyboard::give_to).transpose().map_err(no_thread)
}

/// Starts to watch whether the rank with the command's terminal fills the screen.
fn watch_screen(
    engine: &Engine,
    nspace: &Nspace,
    rank: Option<Rank>,
    events: Sender<JobEvent>,
) -> Result<FullScreen, Failure> {
    match rank.filter(|_| io::stderr().is_terminal()) {
        // The send fails only when the job is over.
        Some(rank) => {
            FullScreen::watch(engine, nspace, rank, move || drop(events.send(JobEvent::ScreenClosed(rank))))
        }
        None => Ok(FullScreen::default()),
    }
}

fn watch_job(job: Job, events: Sender<JobEvent>) -> Result<(), Failure> {
    start_thread("iof-job", move || {
        // A send fails only if the receiver has already decided to end.
        let (mut lines, mut caller_of_abort) = (0usize, None);
        for ending in job.endings() {
            match &ending {
                Ending::Early(EarlyEnd { cause: EndCause::Abort { rank, .. }, .. }) => {
                    caller_of_abort = Some(*rank);
                }
                Ending::Early(EarlyEnd { cause: EndCause::BadExit(rank), .. }) => {
                    job.flush_rank(*rank, Some(FLUSH_LIMIT));
                }
                Ending::Rank(RankExit { rank, exit, requested: false, .. }) => {
                    let has_failed = !exit.success() && lines < MAX_FAILURE_LINES;
                    if has_failed || caller_of_abort == Some(*rank) {
                        lines = lines.saturating_add(1);
                        // The line about the rank then follows the rank's own output.
                        job.flush_rank(*rank, Some(FLUSH_LIMIT));
                    }
                }
                _ => {}
            }
            let _ = events.send(JobEvent::Ending(ending));
            if let Some(status) = job.try_wait_exit() {
                let _ = events.send(JobEvent::Exited(status));
            }
        }
        let _ = events.send(JobEvent::Over(job.wait()));
    })
}
