//! `iof run --keep`: an engine that waits for tools that start jobs in it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Engine, Mpi, Signal};
use iof_proto::Nspace;

use super::children::{Children, Own};
use super::host::CommandHost;
use super::plan::config;
use super::prepared::{KEEP_NEEDS_SOCKET, Prepared, start_engine};
use crate::args::RunArgs;
use crate::error::Failure;
use crate::events::job_event::{GRACE, JobEvent};
use crate::events::signal_watch::SignalWatch;
use crate::options::values::show_duration;
use crate::processes::guardian::SELF;
use crate::processes::signals::{Signals, asks_to_end};
use crate::processes::threads::recv_until;
use crate::terminal::message::print_message;

/// Runs an engine without a job of its own, as [`wait_for_jobs`].
pub fn keep(args: &RunArgs, time: Duration) -> Result<ExitCode, Failure> {
    if args.nodes.lists_others()? {
        return Err(Failure::usage(
            "--keep starts jobs on this node only: list localhost:N for N ranks at a time",
        ));
    }
    if !matches!(args.mpi, Mpi::Auto | Mpi::Pmix) {
        return Err(Failure::usage(
            "--keep has no ranks: each job has its own --mpi, and only --mpi pmix lets tools attach",
        ));
    }
    let (events, queue) = unbounded();
    let signals = SignalWatch::start(Signals::take().map_err(Failure::running)?, events.clone())?;
    let host = CommandHost { events: events.clone(), grants: args.grants(), kept: OnceLock::new() };
    let host = Arc::new(host);
    let engine = Arc::new(start_engine(config(args, false)?, &host)?);
    if engine.socket().is_none() {
        return Err(Failure::usage(KEEP_NEEDS_SOCKET));
    }
    let (name, _reserved) = match &args.nspace {
        Some(name) => (name.clone(), engine.announce(name).map_err(Failure::usage)?),
        None => engine.reserve_name(&Nspace::new("iof").map_err(Failure::running)?),
    };
    if args.mpi == Mpi::Pmix {
        engine.serve_pmix_tools(&name, Path::new(SELF)).map_err(Failure::usage)?;
    }
    // A job that has ended without ranks takes the name. Tools end this process by it, and can neither pull
    // from it, push to it nor log to it.
    engine.end_job(&name, Some(0));
    let _ = host.kept.set(name.clone());
    print_message(format_args!("waiting for jobs as {name}: start one by iof run --in {name} PROG"));
    signals.job_is_started();
    wait_for_jobs(args, &engine, (&events, &queue), time)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps the engine of a job that has ended with `code`, for tools that pull its output, and start jobs.
pub(super) fn keep_ended(base: &Prepared<'_>, code: i32, time: Duration) -> Result<(), Failure> {
    let Prepared { plan, host, engine, events, event_queue, .. } = base;
    let name = &plan.spec.nspace;
    let _ = host.kept.set(name.clone());
    print_message(format_args!(
        "job {name} has ended with exit code {code}; its output is kept for {}: iof pull {name} shows it, iof kill {name} \
         ends this",
        show_duration(time)
    ));
    wait_for_jobs(plan.args, engine, (events, event_queue), time)
}

/// Starts jobs for tools until the time is over, or a signal asks to end. Then ends these jobs, and does not
/// wait long for output that other processes hold open.
fn wait_for_jobs(
    args: &RunArgs,
    engine: &Arc<Engine>,
    (events, queue): (&Sender<JobEvent>, &Receiver<JobEvent>),
    time: Duration,
) -> Result<(), Failure> {
    let (mut children, slots) = (Children::default(), args.nodes.slots()?);
    // A time that an `Instant` can't represent is never over.
    let (mut deadline, mut last) = (Instant::now().checked_add(time), None);
    while last.is_none() || !children.is_empty() {
        let event = recv_until(queue, deadline);
        let is_asked_to_end = match &event {
            Ok(JobEvent::Signal(received)) => asks_to_end(received.signal),
            Ok(event) => matches!(event, JobEvent::Killed),
            Err(_) => true,
        };
        if is_asked_to_end {
            let (signal, wait) = match last {
                None if children.have_ranks() => (Signal::TERM, args.ending.kill_wait),
                // At the second request, and when the time after the first is over.
                None | Some(Signal::TERM) => (Signal::KILL, GRACE),
                Some(_) => break,
            };
            children.signal(signal);
            (deadline, last) = (Instant::now().checked_add(wait), Some(signal));
        }
        match event {
            // From then on, nothing is started.
            Ok(JobEvent::Spawn { request, reply }) if last.is_none() => {
                children.request(&Own { engine, events, plan: None, slots }, *request, reply);
            }
            Ok(JobEvent::Spawned { nspace, job }) => {
                children.started(engine, &nspace, job, events)?;
            }
            Ok(JobEvent::ChildOver { nspace, lines }) => drop(children.over(nspace, lines)),
            Ok(JobEvent::Alone { nspace, line, ends_job }) => drop(children.alone(&nspace, line, ends_job)),
            Ok(JobEvent::Query { nspace, reply }) => children.query(&nspace, reply),
            _ => {}
        }
    }
    Ok(())
}
