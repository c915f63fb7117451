//! `iof run`: start a job, write its output, end as it ends.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::{self, ExitCode};
use std::thread;

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{CaptureError, Config, Engine, Grant, Job, JobSpec, Pty, Rendezvous, StartError};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, Sink};
use nix::sys::signal::Signal;

use crate::Failure;
use crate::apps::apps;
use crate::args::RunArgs;
use crate::follow::{Event, Follow};
use crate::keyboard::{Keyboard, window_size};
use crate::log;
use crate::pull::{finish, report_gap};
use crate::signals::Signals;

/// Runs a job; the exit code is that of the rank that failed first.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let apps = apps(&args.app)?;
    let stdin = args.stdin.plan(apps.iter().map(|app| u64::from(app.nprocs)).sum())?;
    let signals = Signals::take().map_err(Failure::running)?;
    let engine = Engine::start(config(args)?).map_err(|error| match error {
        error @ (StartError::Rendezvous(_) | StartError::Files(_)) => Failure::usage(error),
        StartError::Capture(error @ CaptureError::Refused { .. }) => {
            Failure::Usage(format!("{error}; or use --backend epoll"))
        }
        error => Failure::running(error),
    })?;
    let nspace = match &args.nspace {
        Some(nspace) => nspace.clone(),
        None => Nspace::new(format!("iof-{}", process::id())).map_err(Failure::running)?,
    };
    // The sinks register before the job exists, so that they have its first byte.
    let out = sink(&engine, &nspace, Channels::STDOUT, io::stdout())?;
    let err = sink(&engine, &nspace, Channels::STDERR | Channels::STDDIAG, io::stderr())?;
    let spec = JobSpec {
        stdin: stdin.ranks.clone(),
        ptys: ptys(args),
        grace: args.grace,
        ..JobSpec::new(nspace.clone(), apps)
    };
    let job = engine.spawn(&spec).map_err(Failure::usage)?;

    let (events, received) = unbounded();
    let keyboard = watch_signals(signals, events.clone())
        .and_then(|()| watch_job(job.clone(), events.clone()))
        .and_then(|()| watch_sink(out, events.clone()))
        .and_then(|()| watch_sink(err, events))
        .and_then(|()| stdin.push(&engine, &nspace))
        .and_then(|()| give_keyboard(&job, stdin.inherits()));
    if keyboard.is_err() {
        // Nobody would look after them.
        job.signal(Signal::SIGKILL);
    }
    Follow::new(job, received, keyboard?).until_over()
}

fn config(args: &RunArgs) -> Result<Config, Failure> {
    let rendezvous = Rendezvous::Session(args.rendezvous_dir.clone());
    let backend = args.backend.map(Into::into);
    let (cache_size, policy, log) = (args.cache_size, args.drop.into(), log::config()?);
    Ok(Config { cache_size, policy, backend, rendezvous, log, ..Config::default() })
}

/// Our own outputs are ordinary registrations, except that they may hold the ranks back.
fn sink(
    engine: &Engine,
    nspace: &Nspace,
    channels: Channels,
    to: impl std::os::fd::AsFd,
) -> Result<Sink, Failure> {
    let mut tool = engine.attach("iof run", Grant::Block).map_err(Failure::running)?;
    let all = Proc { nspace: nspace.clone(), rank: Rank::WILDCARD };
    tool.pull(&Pull::new(vec![all], channels)).map_err(Failure::running)?;
    Sink::start(tool, to, report_gap).map_err(no_thread)
}

/// The ptys of the ranks that the user named.
fn ptys(args: &RunArgs) -> BTreeMap<Rank, Pty> {
    // An echo of what nobody typed by hand would be output that no rank has written.
    let pty = Pty { size: window_size(), echo: io::stdin().is_terminal() };
    args.pty.iter().flat_map(|ranks| &ranks.0).map(|rank| (*rank, pty)).collect()
}

/// Types our stdin at the terminal of the rank that is to have it, if that has one.
fn give_keyboard(job: &Job, rank: Option<Rank>) -> Result<Option<Keyboard>, Failure> {
    let Some(rank) = rank else { return Ok(None) };
    let master = job.pty(rank).map_err(Failure::running)?;
    master.map(Keyboard::give_to).transpose().map_err(no_thread)
}

fn watch(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(no_thread)
}

fn no_thread(error: io::Error) -> Failure {
    Failure::running(format!(
        "no thread for the command: {error}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    ))
}

fn watch_signals(signals: Signals, events: Sender<Event>) -> Result<(), Failure> {
    // Ends with the process.
    watch("iof-signals", move || {
        while let Some(signal) = signals.wait() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

fn watch_job(job: Job, events: Sender<Event>) -> Result<(), Failure> {
    watch("iof-job", move || {
        // Whoever listened has decided to end already if a send fails.
        let _ = events.send(Event::Exited(job.wait_exit()));
        let _ = events.send(Event::Over(job.wait()));
    })
}

fn watch_sink(sink: Sink, events: Sender<Event>) -> Result<(), Failure> {
    watch("iof-output", move || {
        let _ = events.send(Event::Sink(finish(sink)));
    })
}
