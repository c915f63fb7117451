//! The ranks of `iof run` on other nodes: the options that they refuse, their start, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{EarlyEndPolicy, Ending, Engine, Mpi, RankExit, Rendezvous};
use iof_nodes::BrokenStream;
use iof_proto::Nspace;
use iof_remote::{Launch, NodeEvents, NodeLost, Remote, RemoteEvent, RemoteStartError, StartStep, Template};
use nix::sys::signal::Signal;

use crate::args::RunArgs;
use crate::error::Failure;
use crate::exits::listed;
use crate::failures::MAX_FAILURE_LINES;
use crate::job_event::{FLUSH_LIMIT, JobEvent};
use crate::output::Outputs;
use crate::signal_watch::SignalWatch;
use crate::signals::{ReceivedSignal, asks_again, asks_to_end};

/// Refuses options that do not work with several nodes, each by its name.
pub fn check(args: &RunArgs, outputs: &Outputs<'_>, template: &Template) -> Result<(), Failure> {
    if args.nodes.reattach_limit().is_some() {
        let reasons = [
            (template.is_srun(), "over srun", "a step of Slurm ends with its srun"),
            (
                args.rendezvous() == Rendezvous::None,
                "with --rendezvous-dir none",
                "a new connection finds the node's agent by a socket in that directory",
            ),
        ];
        if let Some((_, place, reason)) = reasons.into_iter().find(|(is_given, ..)| *is_given) {
            return Err(Failure::Usage(format!("--reattach does not work {place}: {reason}; leave one out")));
        }
    }
    let refused = [
        (args.mpi == Mpi::Pmi1, "--mpi pmi1", "MPI programs start on one node only"),
        (args.mpi == Mpi::Pmix, "--mpi pmix", "MPI programs start on one node only"),
        (
            outputs.names_host(),
            "%h or %N in the name of a file",
            "the front end writes it, unless it is --output file=NAME:pattern:node",
        ),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, reason)) => Err(Failure::Usage(format!(
            "{option} does not work on several nodes yet: {reason}; leave it out, or write --hosts localhost:N for \
             N ranks on this node"
        ))),
        None => Ok(()),
    }
}

/// Starts the ranks on all nodes. Returns their events, and the signals for the ranks that arrived
/// before all of them were started.
///
/// # Errors
/// A node can't start its ranks, or a signal ends this command. No rank runs on.
pub fn start(
    remote: &Arc<Remote>,
    launch: &Launch<'_>,
    engine: &Arc<Engine>,
    signals: &SignalWatch,
) -> Result<(NodeEvents, Vec<ReceivedSignal>), Failure> {
    let (mut for_ranks, mut ended_by) = (Vec::new(), None);
    let mut is_interrupted = |step| {
        while let Some(received) = signals.wait_for(Duration::ZERO) {
            match step {
                StartStep::Agents if asks_to_end(received.signal) => ended_by = Some(received.signal),
                StartStep::Agents => {}
                StartStep::Ranks => ended_by = hold(received, &mut for_ranks),
            }
            if ended_by.is_some() {
                return true;
            }
        }
        false
    };
    let started = remote.start(launch, engine, &mut is_interrupted);
    let events = started.map_err(|error| not_started(error, ended_by))?;
    Ok((events, for_ranks))
}

/// Keeps a signal that arrived when ranks already ran, until all agents have told that theirs do.
/// Returns a second signal that asks to end: an agent may not answer.
fn hold(received: ReceivedSignal, for_ranks: &mut Vec<ReceivedSignal>) -> Option<Signal> {
    if asks_again(received, for_ranks) {
        return Some(received.signal);
    }
    if !for_ranks.iter().any(|before| before.signal == received.signal) {
        for_ranks.push(received);
    }
    None
}

/// What a user can do if a node is lost at the start for a reason with one of these texts, the first
/// one that fits.
const HINTS: [(&str, &str); 5] = [
    ("exit status: 126", INSTALL_HINT),
    ("exit status: 127", INSTALL_HINT),
    (
        "exit status: 255",
        "the command of --rsh must reach the node without a password: try it with the command true",
    ),
    ("(MAX_GREETING)", "the command of --rsh must not write to stdout"),
    ("its carrier ", "the command of --rsh must run its last word, a shell command, on the node"),
];

const INSTALL_HINT: &str = "each node needs iof at the path that it has here";

fn not_started(error: RemoteStartError, ended_by: Option<Signal>) -> Failure {
    match (error, ended_by) {
        (RemoteStartError::Interrupted, Some(signal)) => Failure::Signal(signal),
        (error @ RemoteStartError::Carrier { .. }, _) => Failure::Usage(format!("{error} (see --rsh)")),
        (error @ (RemoteStartError::Refused { is_usage: true, .. } | RemoteStartError::Limit(_)), _) => {
            Failure::usage(error)
        }
        (RemoteStartError::Lost { host, reason }, _) => {
            let hint = HINTS.iter().find(|(text, _)| reason.contains(text));
            let hint = hint.map(|(_, hint)| format!(" ({hint})")).unwrap_or_default();
            Failure::running(RemoteStartError::Lost { host, reason: reason + &hint })
        }
        (error, _) => Failure::running(error),
    }
}

/// Follows the ranks until all have ended, in a thread.
pub fn follow(
    remote: &Arc<Remote>,
    (nspace, engine): (Nspace, &Arc<Engine>),
    events: NodeEvents,
    policy: EarlyEndPolicy,
    reports: Sender<JobEvent>,
) -> Result<(), Failure> {
    let (mut failed, weak) = (0usize, Arc::downgrade(engine));
    let report = move |event| {
        // A send fails only if the command has already decided to end.
        let _ = reports.send(match event {
            RemoteEvent::Ending(ending) => {
                if let Ending::Rank(RankExit { rank, exit, requested: false, .. }) = &ending
                    && !exit.success()
                    && failed < MAX_FAILURE_LINES
                {
                    failed = failed.saturating_add(1);
                    // The line about the rank then follows the rank's own output.
                    if let Some(job) = weak.upgrade().and_then(|engine| engine.job(&nspace)) {
                        job.flush_rank(*rank, Some(FLUSH_LIMIT));
                    }
                }
                JobEvent::Ending(ending)
            }
            RemoteEvent::NodeLost(lost) => {
                JobEvent::NodeLost { line: lost_line(&nspace, &lost), ranks: lost.broken.ranks }
            }
            RemoteEvent::Files { host, result } => {
                JobEvent::NodeFiles(result.map_err(|reason| Failure::Running(format!("{host}: {reason}"))))
            }
            RemoteEvent::Exited(status) => JobEvent::Exited(status),
            RemoteEvent::Over(status) => JobEvent::Over(status),
            _ => return,
        });
    };
    remote.follow(events, policy, engine, report).map_err(Failure::running)
}

/// Returns the line about a node that is lost.
fn lost_line(nspace: &Nspace, NodeLost { host, reason, broken }: &NodeLost) -> String {
    let sum = |figure: fn(&BrokenStream) -> u64| {
        broken.streams.iter().fold(0u64, |sum, stream| sum.saturating_add(figure(stream)))
    };
    let ranks = match broken.ranks.len() {
        0 => String::new(),
        1 => format!(" with rank {}", listed(&broken.ranks)),
        _ => format!(" with ranks {}", listed(&broken.ranks)),
    };
    let totals = match broken.totals {
        Some(time) => {
            format!("what the ranks wrote in the last {:.1} s is unknown", time.elapsed().as_secs_f64())
        }
        None => "what else the ranks wrote is unknown".into(),
    };
    format!(
        "job {nspace}: node {host} is lost{ranks}: {reason}; of its unfinished output {} bytes arrived, at least {} \
         are missing, and {totals}",
        sum(|stream| stream.delivered),
        sum(|stream| stream.missing),
    )
}
