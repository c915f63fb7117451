//! `iof run`: start a job, write its output, end as it ends.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{
    CaptureError, Config, Engine, Grant, Host, Job, JobSpec, Pty, Remedy, Rendezvous, StartError,
};
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_tool::{Pull, Tool};
use nix::sys::signal::Signal;

use crate::account::Account;
use crate::app::apps;
use crate::args::RunArgs;
use crate::follow::{Event, Follow};
use crate::keyboard::{Keyboard, window_size};
use crate::log;
use crate::output::{Part, no_thread, with_job};
use crate::signals::Signals;
use crate::{Failure, print_message};

/// Runs a job; the exit code is that of the rank that failed first.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    let apps = apps(&args.app)?;
    let nprocs: u64 = apps.iter().map(|app| u64::from(app.nprocs)).sum();
    let outputs = args.output.prepare(Some(nprocs))?;
    let stdin = args.stdin.plan(nprocs)?;
    let (events, received) = unbounded();
    let signals = Signals::take().map_err(Failure::running)?;
    let engine = Engine::start_with(config(args)?, Arc::new(Launcher { events: events.clone() })).map_err(
        |error| match error {
            error @ (StartError::Rendezvous(_) | StartError::Files(_)) => Failure::usage(error),
            StartError::Capture(error @ CaptureError::Refused { .. }) => {
                Failure::Usage(format!("{error}; or use --backend epoll"))
            }
            error => Failure::running(error),
        },
    )?;
    let nspace = match &args.nspace {
        Some(nspace) => nspace.clone(),
        None => Nspace::new(format!("iof-{}", process::id())).map_err(Failure::running)?,
    };
    // The printers register before the job exists, so that they have its first byte.
    let writers = outputs.start(u32::try_from(nprocs).ok(), |parts| {
        parts.iter().map(|part| attach(&engine, &nspace, part).map(Some)).collect()
    })?;
    let spec = JobSpec {
        stdin: stdin.ranks.clone(),
        own_stdin: stdin.own(),
        ptys: ptys(args),
        grace: args.grace,
        ..JobSpec::new(nspace.clone(), apps)
    };
    let job = engine.spawn(&spec).map_err(Failure::usage)?;

    let written = writers.len();
    let keyboard = watch_signals(signals, events.clone())
        .and_then(|()| watch_job(job.clone(), events.clone()))
        .and_then(|()| {
            writers.into_iter().try_for_each(|writer| {
                let events = events.clone();
                writer.watch(move |done| drop(events.send(Event::Output(done))))
            })
        })
        .and_then(|()| stdin.push(&engine, &nspace))
        .and_then(|()| give_keyboard(&job, stdin.inherits()));
    if keyboard.is_err() {
        // Nobody would look after them.
        job.signal(Signal::SIGKILL);
    }
    let (ended, forwarded) = Follow::new(job, received, written, keyboard?).until_over();
    if args.timings || args.summary {
        let account = Account::of(&engine, started.elapsed(), forwarded, ended.is_ok());
        match account {
            Ok(account) => account.report(args.timings, args.summary),
            // The job is what it was without its account.
            Err(error) => print_message(format_args!("no timings and no summary: {error}")),
        }
    }
    ended
}

/// The host of the command's engine.
struct Launcher {
    events: Sender<Event>,
}

impl Host for Launcher {
    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        // Nothing listens any more when the job is over.
        let _ = self.events.send(Event::Stalled { rank: source.rank, channel, remedy });
    }
}

fn config(args: &RunArgs) -> Result<Config, Failure> {
    let rendezvous = Rendezvous::Session(args.rendezvous_dir.clone());
    let backend = args.backend.map(Into::into);
    let (cache_size, policy, log) = (args.cache_size, args.drop.into(), log::config()?);
    Ok(Config { cache_size, policy, backend, rendezvous, log, ..Config::default() })
}

/// Our own outputs are ordinary registrations, except that they may hold the ranks back.
fn attach(engine: &Engine, nspace: &Nspace, part: &Part<'_>) -> Result<Tool, Failure> {
    let mut tool = engine.attach("iof run", Grant::Block).map_err(Failure::running)?;
    let ranks = with_job(part.ranks.map_or(&[Rank::WILDCARD], |ranks| &ranks.0));
    let procs = ranks.into_iter().map(|rank| Proc { nspace: nspace.clone(), rank }).collect();
    tool.pull(&Pull::new(procs, part.channels)).map_err(Failure::running)?;
    Ok(tool)
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
