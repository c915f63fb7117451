//! A job that can start: its engine runs, and its outputs are open.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Config, Engine, Rendezvous, StartError};
use iof_output::NewFiles;
use iof_proto::Rank;
use iof_proto::rendezvous::{BindError, JobLink};
use iof_tool::DirectInput;

use super::host::CommandHost;
use super::plan::Plan;
use crate::commands::attach::{attach_direct, attach_own};
use crate::error::{Failure, engine_failed};
use crate::events::job_event::JobEvent;
use crate::events::signal_watch::SignalWatch;
use crate::outputs::printers::OutputWriter;
use crate::processes::signals::Signals;
use crate::reports::job_log::JobLog;
use crate::run::fifos::wait_for_readers;
use crate::terminal::full_screen::FullScreen;
use crate::terminal::message::print_message;

/// The reason why nothing can be kept.
pub(super) const KEEP_NEEDS_SOCKET: &str =
    "--keep needs a socket for tools: name a directory by --rendezvous-dir";

/// A job that can start, or that was started. Dropping it undoes what was done for it, in the order
/// of these fields.
pub struct Prepared<'a> {
    /// Watches whether the rank with the command's terminal fills the screen.
    pub screen: FullScreen,
    pub writers: Vec<OutputWriter>,
    /// The inputs that pass the output of other nodes to these.
    pub printers: Vec<DirectInput>,
    /// The files that are removed unless the job starts.
    pub new_files: NewFiles,
    /// Ends with the job, so that a concurrent run gets another name.
    pub reserved: Option<JobLink>,
    pub job_log: Option<JobLog>,
    pub engine: Arc<Engine>,
    pub host: Arc<CommandHost>,
    pub signals: SignalWatch,
    pub events: Sender<JobEvent>,
    pub event_queue: Receiver<JobEvent>,
    /// The plan. The job has the reserved name.
    pub plan: Plan<'a>,
}

impl<'a> Prepared<'a> {
    /// Starts the engine and the printers of a job.
    pub fn new(mut plan: Plan<'a>) -> Result<Prepared<'a>, Failure> {
        let (events, event_queue) = unbounded();
        // What follows may wait for a file system or for libpmix.
        let signals = SignalWatch::start(Signals::take().map_err(Failure::running)?, events.clone())?;
        let job_log = plan.args.job_log.as_deref().map(JobLog::new).transpose()?;
        let (grants, kept) = (plan.args.grants(), OnceLock::new());
        let host = Arc::new(CommandHost { events: events.clone(), grants, kept });
        let engine = Arc::new(start_engine(plan.config.clone(), &host)?);
        if plan.args.keep.is_some() && engine.socket().is_none() {
            return Err(Failure::usage(KEEP_NEEDS_SOCKET));
        }
        let reserved = reserve_name(&engine, &mut plan)?;
        let Plan { args, spec, outputs, nodes, .. } = &mut plan;
        spec.pmix_tools.take_if(|_| engine.socket().is_none());
        // The printers register before the job exists, so that they receive its first byte.
        let mut printers = Vec::new();
        let mut attached = outputs.attach(|parts| {
            let attach = |part| match nodes {
                None => attach_own(&engine, "iof run", &spec.nspace, part).map(Some),
                Some(_) => {
                    let (tool, printer) = attach_direct(&engine, "iof run", &spec.nspace, part)?;
                    printers.push(printer);
                    Ok(Some(tool))
                }
            };
            parts.iter().map(attach).collect()
        })?;
        let spare_files = match nodes {
            None => engine.check(spec).map_err(Failure::usage)?,
            Some((nodes, _)) => iof_remote::check(nodes, false).map_err(Failure::usage)?,
        };
        let ranks: Vec<Rank> = (0..u32::try_from(spec.nprocs()).unwrap_or(u32::MAX)).map(Rank).collect();
        let mut new_files = NewFiles::default();
        attached.lock_files(spec, &ranks, spare_files, &mut new_files)?;
        job_log.as_ref().map_or(Ok(()), |log| log.check(spec, &attached))?;
        wait_for_readers(&mut attached, &mut new_files, &signals, args.give_up)?;
        let writers = attached.start()?;
        let screen = watch_screen(&engine, &plan, events.clone())?;
        Ok(Prepared {
            screen,
            writers,
            printers,
            new_files,
            reserved,
            job_log,
            engine,
            host,
            signals,
            events,
            event_queue,
            plan,
        })
    }
}

/// Starts the engine. It has no socket if another user owns the path of the default directory.
pub(super) fn start_engine(mut config: Config, host: &Arc<CommandHost>) -> Result<Engine, Failure> {
    let start = |config| Engine::start_with(config, Arc::<CommandHost>::clone(host));
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

/// Reserves the name of the job, or another one if the user has not chosen it and a running job has
/// it.
fn reserve_name(engine: &Engine, plan: &mut Plan<'_>) -> Result<Option<JobLink>, Failure> {
    if plan.args.nspace.is_some() {
        let without = "or run without a socket for tools: --rendezvous-dir none";
        let unfindable = |error| Failure::Usage(format!("--nspace: {error}; {without}"));
        return engine.announce(&plan.name).map_err(unfindable);
    }
    let reserved;
    (plan.spec.nspace, reserved) = engine.reserve_name(&plan.name);
    Ok(reserved)
}

/// Starts to watch whether the rank with the command's terminal fills the screen.
fn watch_screen(engine: &Engine, plan: &Plan<'_>, events: Sender<JobEvent>) -> Result<FullScreen, Failure> {
    let Some(rank) = plan.typed.filter(|_| io::stderr().is_terminal()) else {
        return Ok(FullScreen::default());
    };
    // The send fails only when the job is over.
    let on_close = move || drop(events.send(JobEvent::ScreenClosed(rank)));
    FullScreen::watch(engine, &plan.spec.nspace, rank, on_close)
}
