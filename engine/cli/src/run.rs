//! `iof run`: start a job, write its output, end as it ends.

use std::io;
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Config, Engine, Grant, Job, JobSpec, JobStatus, Rendezvous, StartError};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, Sink, SinkReport};
use nix::sys::signal::Signal;

use crate::Failure;
use crate::apps::apps;
use crate::args::RunArgs;
use crate::pull::{finish, report_gap};
use crate::signals::{Received, Signals};

/// How long ranks get to end by themselves once their output has no reader.
const GRACE: Duration = Duration::from_secs(2);

/// What `iof run` waits for.
enum Event {
    Signal(Received),
    /// Every rank has exited.
    Exited(JobStatus),
    /// Every stream is complete, too.
    Over,
    /// One of the two sinks has ended.
    Sink(Result<SinkReport, Failure>),
}

/// Runs a job; the exit code is that of the rank that failed first.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let apps = apps(&args.app)?;
    let signals = Signals::take().map_err(Failure::running)?;
    let engine = Engine::start(config(args)).map_err(|error| match error {
        error @ (StartError::Rendezvous(_) | StartError::Files(_)) => Failure::usage(error),
        error => Failure::running(error),
    })?;
    let nspace = match &args.nspace {
        Some(nspace) => nspace.clone(),
        None => Nspace::new(format!("iof-{}", process::id())).map_err(Failure::running)?,
    };
    // The sinks register before the job exists, so that they have its first byte.
    let out = sink(&engine, &nspace, Channels::STDOUT, io::stdout())?;
    let err = sink(&engine, &nspace, Channels::STDERR | Channels::STDDIAG, io::stderr())?;
    let spec = JobSpec { stdin: Some(Rank(0)), ..JobSpec::new(nspace, apps) };
    let job = engine.spawn(&spec).map_err(Failure::usage)?;

    let (events, received) = unbounded();
    let watched = watch_signals(signals, events.clone())
        .and_then(|()| watch_job(job.clone(), events.clone()))
        .and_then(|()| watch_sink(out, events.clone()))
        .and_then(|()| watch_sink(err, events));
    if watched.is_err() {
        // Nobody would look after them.
        job.signal(Signal::SIGKILL);
    }
    watched?;
    Watch { job, events: received, status: None, over: false, sinks: 2, failure: None, kill_at: None }
        .until_over()
}

fn config(args: &RunArgs) -> Config {
    let rendezvous = match &args.rendezvous_dir {
        Some(directory) => Rendezvous::Directory(directory.clone()),
        None => Rendezvous::UserDirectory,
    };
    Config { cache_size: args.cache_size, policy: args.drop.into(), rendezvous }
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
    tool.pull(&Pull { procs: vec![all], channels, backlog: true }).map_err(Failure::running)?;
    Sink::start(tool, to, report_gap).map_err(no_thread)
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
        job.wait();
        let _ = events.send(Event::Over);
    })
}

fn watch_sink(sink: Sink, events: Sender<Event>) -> Result<(), Failure> {
    watch("iof-output", move || {
        let _ = events.send(Event::Sink(finish(sink)));
    })
}

/// Follows a job to its end.
struct Watch {
    job: Job,
    events: Receiver<Event>,
    status: Option<JobStatus>,
    over: bool,
    sinks: usize,
    failure: Option<Failure>,
    kill_at: Option<Instant>,
}

impl Watch {
    fn until_over(mut self) -> Result<ExitCode, Failure> {
        while !self.is_over() {
            match self.next() {
                Some(Event::Signal(received)) => self.signal(received),
                Some(Event::Exited(status)) => self.status = Some(status),
                Some(Event::Over) => self.over = true,
                Some(Event::Sink(Ok(_))) => self.sinks = self.sinks.saturating_sub(1),
                Some(Event::Sink(Err(failure))) => self.output_failed(failure),
                None => {
                    self.job.signal(Signal::SIGKILL);
                    self.kill_at = None;
                }
            }
        }
        match (self.failure, self.status) {
            (Some(failure), _) => Err(failure),
            (None, Some(status)) => Ok(ExitCode::from(u8::try_from(status.code()).unwrap_or(u8::MAX))),
            (None, None) => Err(Failure::running("the job's end went unnoticed")),
        }
    }

    /// Without a reader for the output there is no point in waiting for more of it.
    fn is_over(&self) -> bool {
        let written = self.over && self.sinks == 0;
        self.status.is_some() && (written || self.failure.is_some())
    }

    /// The next event, `None` when the ranks' grace is over.
    fn next(&self) -> Option<Event> {
        match self.kill_at {
            Some(at) => self.events.recv_deadline(at).ok(),
            None => self.events.recv().ok(),
        }
    }

    fn signal(&mut self, Received { signal, from_terminal }: Received) {
        if self.status.is_some() {
            // No rank is left to take it: it is for us, who wait for a grandchild or for our reader.
            self.failure = Some(Failure::Signal(signal));
        } else if !from_terminal {
            self.job.signal(signal);
        }
    }

    fn output_failed(&mut self, failure: Failure) {
        self.sinks = self.sinks.saturating_sub(1);
        if self.failure.is_none() {
            self.failure = Some(failure);
            self.job.signal(Signal::SIGTERM);
            self.kill_at = Some(Instant::now() + GRACE);
        }
    }
}
