//! The ranks of `iof run`: on this node, or on others.

use std::ops::Deref;

use crossbeam::channel::Sender;
use iof_engine::{EarlyEnd, EndCause, Ending, Job, LaunchError, RankExit, Signal};
use iof_output::FlushTimeout;
use iof_proto::Rank;
use iof_remote::{Launch, Node, NodeConfig, RemoteJob, Template, environment};

use super::plan::Plan;
use super::prepared::Prepared;
use crate::error::Failure;
use crate::events::job_event::{FLUSH_LIMIT, JobEvent};
use crate::events::singletons::watch_job;
use crate::events::stdin::StdinEvent;
use crate::nodes::launch;
use crate::reports::failures::MAX_FAILURE_LINES;
use crate::terminal::keyboard::Keyboard;
use crate::terminal::message::print_message;

/// The ranks of a job that was started. Dropping it kills them, unless all have exited.
pub struct LaunchedJob {
    pub job: Job,
    /// The same with its agents, if the ranks run on other nodes.
    pub remote: Option<RemoteJob>,
}

impl Deref for LaunchedJob {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

impl Drop for LaunchedJob {
    fn drop(&mut self) {
        if self.try_wait_exit().is_none() {
            // They would run without a launcher.
            self.signal(Signal::KILL);
        }
        self.remote.iter().for_each(RemoteJob::hang_up);
    }
}

impl LaunchedJob {
    /// Starts the ranks, and the threads that watch them.
    pub fn start(base: &Prepared<'_>) -> Result<LaunchedJob, Failure> {
        let Prepared { plan, engine, events, .. } = base;
        let launched = match &plan.nodes {
            None => LaunchedJob { job: engine.spawn(&plan.spec).map_err(not_started)?, remote: None },
            Some((nodes, template)) => {
                let remote = start_elsewhere(base, nodes, template)?;
                LaunchedJob { job: remote.job.clone(), remote: Some(remote) }
            }
        };
        let ranks = if plan.nodes.is_none() { plan.spec.nprocs() } else { 0 };
        let sender = events.clone();
        watch_job(engine, &launched, (ranks, plan.spec.mpi), events, move |job| report_ends(job, &sender))?;
        Ok(launched)
    }

    /// Starts to type the command's stdin at the terminal of `rank`.
    pub fn give_keyboard(&self, rank: Rank, events: &Sender<JobEvent>) -> Result<Option<Keyboard>, Failure> {
        if self.remote.is_some() {
            return Keyboard::give_elsewhere(rank).map(Some);
        }
        let events = events.clone();
        let fail = move |error| {
            print_message(format_args!("stdin: cannot read what rank {rank} is to read: {error}"));
            let _ = events.send(JobEvent::Stdin(StdinEvent::Failed));
        };
        let master = self.pty(rank).map_err(Failure::running)?;
        master.map(|master| Keyboard::give_to(master, fail)).transpose()
    }
}

/// Returns the failure for a job that did not start. Ranks may have run before some of the errors.
fn not_started(error: LaunchError) -> Failure {
    match error {
        LaunchError::Spawn { .. }
        | LaunchError::RankFiles { .. }
        | LaunchError::Binding(_)
        | LaunchError::Alone(_)
        | LaunchError::Rings { .. }
        | LaunchError::Capture(_)
        | LaunchError::Pmi { .. } => Failure::running(error),
        error => Failure::usage(error),
    }
}

/// Starts the ranks on other nodes.
fn start_elsewhere(base: &Prepared<'_>, nodes: &[Node], template: &Template) -> Result<RemoteJob, Failure> {
    let Prepared { plan, engine, events, signals, .. } = base;
    let carriers = plan.args.nodes.carriers(nodes, template, false)?;
    let launch = Launch {
        printers: Some(base.printers.clone()),
        relatives: plan.relatives.clone(),
        audience: plan.outputs.audience(),
        ..plan.args.nodes.launch(&plan.spec, &carriers, node_config(plan)?)
    };
    launch::start(nodes, &launch, engine, (signals, events))
}

/// Returns the settings of the nodes.
pub fn node_config(plan: &Plan<'_>) -> Result<NodeConfig, Failure> {
    let Plan { args, config, outputs, .. } = plan;
    let FlushTimeout { max_line, max_time } = outputs.flush_timeout();
    Ok(NodeConfig {
        env: environment::of_ranks(&args.nodes.host_env),
        cache_size: config.cache_size,
        cache_total: config.cache_total,
        policy: args.drop,
        max_line,
        max_line_time: max_time,
        backend: config.backend.map(|backend| backend.to_string()),
        rendezvous: config.rendezvous.clone(),
        files: outputs.node_files(args.give_up)?,
    })
}

/// Reports the ends of the ranks, and blocks until the last one.
fn report_ends(job: &Job, events: &Sender<JobEvent>) {
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
}
