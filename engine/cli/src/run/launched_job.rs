//! The ranks of `iof run`: on this node, or on others.

use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Sender;
use iof_capture::WindowSize;
use iof_engine::{EarlyEnd, EarlyEndPolicy, EndCause, Ending, Job, JobStatus, LaunchError, RankExit, Signal};
use iof_output::FlushTimeout;
use iof_proto::Rank;
use iof_remote::{Launch, NodeConfig, Remote, Template, environment};

use super::prepared::Prepared;
use crate::error::Failure;
use crate::failures::MAX_FAILURE_LINES;
use crate::job_event::{FLUSH_LIMIT, JobEvent};
use crate::keyboard::Keyboard;
use crate::nodes::launch;
use crate::signal_watch::before_start;
use crate::threads::start_thread;

/// The ranks of a job that was started. Dropping it kills them, unless all have exited.
pub enum LaunchedJob {
    /// The ranks run on this node.
    Local(Job),
    /// The ranks run on other nodes.
    Remote(Arc<Remote>),
}

impl Drop for LaunchedJob {
    fn drop(&mut self) {
        if self.try_wait_exit().is_none() {
            // They would run without a launcher.
            self.signal(Signal::KILL);
        }
    }
}

impl LaunchedJob {
    /// Starts the ranks, and a thread that reports their ends.
    pub fn start(base: &Prepared<'_>) -> Result<LaunchedJob, Failure> {
        match &base.remote {
            None => {
                let job = base.engine.spawn(&base.plan.spec).map_err(not_started)?;
                let launched = LaunchedJob::Local(job.clone());
                watch_job(job, base.events.clone())?;
                Ok(launched)
            }
            Some((remote, template)) => start_elsewhere(base, remote, template),
        }
    }

    /// Returns the job if its ranks run on this node.
    pub fn local(&self) -> Option<&Job> {
        match self {
            LaunchedJob::Local(job) => Some(job),
            LaunchedJob::Remote(_) => None,
        }
    }

    /// Starts to type the command's stdin at the terminal of `rank`.
    pub fn give_keyboard(&self, rank: Rank) -> Result<Option<Keyboard>, Failure> {
        match self {
            LaunchedJob::Local(job) => {
                job.pty(rank).map_err(Failure::running)?.map(Keyboard::give_to).transpose()
            }
            LaunchedJob::Remote(_) => Keyboard::give_elsewhere(rank).map(Some),
        }
    }

    /// Sends a signal to all ranks.
    pub fn signal(&self, signal: Signal) {
        match self {
            LaunchedJob::Local(job) => drop(job.signal(signal)),
            LaunchedJob::Remote(remote) => remote.signal(signal),
        }
    }

    /// Returns the exit status if all ranks have exited.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        match self {
            LaunchedJob::Local(job) => job.try_wait_exit(),
            LaunchedJob::Remote(remote) => remote.try_wait_exit(),
        }
    }

    /// Changes the size of the ranks' terminals.
    pub fn resize_ptys(&self, size: WindowSize) {
        match self {
            LaunchedJob::Local(job) => drop(job.resize_ptys(size)),
            LaunchedJob::Remote(remote) => remote.resize_ptys(size),
        }
    }
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

/// Starts the ranks on other nodes, and a thread that follows them.
fn start_elsewhere(
    base: &Prepared<'_>,
    remote: &Arc<Remote>,
    template: &Template,
) -> Result<LaunchedJob, Failure> {
    let Prepared { plan, engine, events, signals, .. } = base;
    let (args, spec, outputs) = (plan.args, &plan.spec, &plan.outputs);
    let carriers = args.nodes.carriers(template).map_err(Failure::running)?;
    let FlushTimeout { max_line, max_time } = outputs.flush_timeout();
    let config = NodeConfig {
        env: environment::of_ranks(&args.nodes.host_env),
        cache_size: plan.config.cache_size,
        cache_total: plan.config.cache_total,
        policy: args.drop,
        max_line,
        max_line_time: max_time,
        backend: plan.config.backend.map(|backend| backend.to_string()),
        rendezvous: plan.config.rendezvous.clone(),
        files: outputs.node_files(args.give_up)?,
    };
    let (reattach, audience) = (args.nodes.reattach_limit(), outputs.audience());
    let launch = Launch { spec, carriers: &carriers, reattach, audience, config };
    let (node_events, for_ranks) = launch::start(remote, &launch, engine, signals)?;
    let launched = LaunchedJob::Remote(Arc::clone(remote));
    for_ranks.into_iter().for_each(|received| drop(events.send(before_start(received))));
    let policy = EarlyEndPolicy::new(spec.kill_on_bad_exit, spec.kill_wait, spec.timeout, Instant::now());
    launch::follow(remote, (spec.nspace.clone(), engine), node_events, policy, events.clone())?;
    Ok(launched)
}

/// Starts a thread that reports the ends of the ranks of this node.
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
