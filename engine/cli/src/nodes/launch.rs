//! The ranks of `iof run` on other nodes: the options that they refuse, their start, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{Engine, LaunchError, Rendezvous};
use iof_output::PrintReport;
use iof_remote::{Launch, Node, RemoteJob, RemoteStartError, StartProgress, StartStep, Template};
use nix::sys::signal::Signal;

use crate::args::RunArgs;
use crate::error::{Failure, no_directory};
use crate::events::job_event::JobEvent;
use crate::events::signal_watch::{SignalWatch, before_start};
use crate::options::values::show_duration;
use crate::outputs::output::Outputs;
use crate::processes::signals::{ReceivedSignal, asks_again, asks_to_end};
use crate::terminal::message::print_message;

/// Refuses options that do not work with several nodes, each by its name.
pub fn check(args: &RunArgs, outputs: &Outputs<'_>, template: &Template) -> Result<(), Failure> {
    if args.nodes.reattach_limit().is_some() && !args.nodes.has_tcp() {
        let over = |program| format!("over {program}: the agent of a node ends with its {program}");
        let hidden = "with --rendezvous-dir none: a new connection finds the node's agent by a socket in that directory";
        let hidden = (args.rendezvous() == Rendezvous::None).then(|| hidden.into());
        if let Some(place) = template.ends_agents().map(over).or(hidden) {
            return Err(Failure::Usage(format!("--reattach does not work {place}; leave one out")));
        }
    }
    if outputs.names_host() {
        return Err(Failure::usage(
            "%h or %N in the name of a file does not work on several nodes yet: the front end writes it, unless it is \
             --output file=NAME:pattern:node; leave it out, or write --hosts localhost:N for N ranks on this node",
        ));
    }
    Ok(())
}

/// Starts the ranks on all nodes. Sends the signals for the ranks that arrived before all of them were
/// started, and what becomes of the files of the nodes, as `events`.
///
/// # Errors
/// A node can't start its ranks, or a signal ends this command. No rank runs on.
pub fn start(
    nodes: &[Node],
    launch: &Launch<'_>,
    engine: &Arc<Engine>,
    (signals, events): (&SignalWatch, &Sender<JobEvent>),
) -> Result<RemoteJob, Failure> {
    let (mut for_ranks, mut ended_by, mut is_told) = (Vec::new(), None, false);
    let mut is_interrupted = |progress: &StartProgress<'_>| {
        tell_late(progress, launch, &mut is_told);
        while let Some(received) = ended_by.is_none().then(|| signals.wait_for(Duration::ZERO)).flatten() {
            ended_by = hold(received, progress.step, &mut for_ranks);
        }
        if ended_by.is_some() {
            tell(progress, launch);
        }
        ended_by.is_some()
    };
    let started = launch.start(engine, nodes, &mut is_interrupted, report_files(events.clone()));
    let job = started.map_err(|error| not_started(error, launch, ended_by))?;
    for_ranks.into_iter().for_each(|received| drop(events.send(before_start(received))));
    Ok(job)
}

/// Returns a function that sends what becomes of the files of the nodes as events.
pub fn report_files(events: Sender<JobEvent>) -> impl FnMut(String, Result<PrintReport, String>) + Send {
    move |host, result| {
        let result = result.map_err(|reason| Failure::Running(format!("{host}: {reason}")));
        // A send fails only if the command has already decided to end.
        let _ = events.send(JobEvent::NodeFiles(result));
    }
}

/// The time after which a line names the nodes that have not answered.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Names the nodes that have not answered after a while, once.
pub fn tell_late(progress: &StartProgress<'_>, launch: &Launch<'_>, is_told: &mut bool) {
    if progress.elapsed >= TELL_AFTER && !*is_told {
        *is_told = true;
        tell(progress, launch);
    }
}

/// Names the nodes that have not answered.
fn tell(progress: &StartProgress<'_>, launch: &Launch<'_>) {
    let limit =
        limit(launch).map(|(limit, option)| format!(", for at most {} ({option})", show_duration(limit)));
    let what = match progress.step {
        StartStep::Agents => "the agents of",
        StartStep::Ranks => "the ranks to start on",
    };
    let (nspace, awaited) = (&launch.spec.nspace, progress.awaited());
    print_message(format_args!("job {nspace}: waiting for {what} {awaited}{}", limit.unwrap_or_default()));
}

/// Returns the smaller limit for the time of a start, and its option.
fn limit(launch: &Launch<'_>) -> Option<(Duration, &'static str)> {
    let limits = [(launch.start_timeout, "--start-timeout"), (launch.spec.timeout, "--timeout")];
    limits.into_iter().filter_map(|(limit, option)| Some((limit?, option))).min()
}

/// Keeps a signal for the ranks until all agents have told that theirs run. Returns one that asks to end,
/// if no rank runs or if it is the second one: an agent may not answer.
fn hold(received: ReceivedSignal, step: StartStep, held: &mut Vec<ReceivedSignal>) -> Option<Signal> {
    let is_unstarted = step == StartStep::Agents;
    if asks_again(received, held) || is_unstarted && asks_to_end(received.signal) {
        return Some(received.signal);
    }
    // What continues a process discards a stop that is pending.
    held.retain(|before| received.signal != Signal::SIGCONT || before.signal != Signal::SIGTSTP);
    if !held.iter().any(|before| before.signal == received.signal) {
        held.push(received);
    }
    None
}

/// Remedies for a user if a node is lost at the start for a reason with one of these texts, the
/// first one that fits.
const HINTS: [(&str, &str); 7] = [
    ("cannot connect to the front end", "choose an address that the nodes reach with --carrier tcp:ADDRESS"),
    ("exit status: 126", INSTALL_HINT),
    ("exit status: 127", INSTALL_HINT),
    ("exit status: 254", "sshd of the node lets nobody log in: see /etc/nologin there"),
    (
        "exit status: 255",
        "the command of --rsh must reach the node without a password: try it with the command true",
    ),
    ("(MAX_GREETING)", "the command of --rsh must not write to stdout"),
    ("its carrier ", "the command of --rsh must run its last word, a shell command, on the node"),
];

const INSTALL_HINT: &str = "each node needs iof at the path that it has here";

fn not_started(error: RemoteStartError, launch: &Launch<'_>, ended_by: Option<Signal>) -> Failure {
    match (error, ended_by) {
        (RemoteStartError::Interrupted, Some(signal)) => Failure::Signal(signal),
        (RemoteStartError::Timeout { hosts, limit: time }, _)
            if limit(launch) == Some((time, "--timeout")) =>
        {
            let (nspace, time) = (&launch.spec.nspace, show_duration(time));
            Failure::Timeout(format!(
                "job {nspace}: not started after {time} (--timeout): no answer from {hosts}"
            ))
        }
        (error @ RemoteStartError::Timeout { .. }, _) => {
            let needed = match launch.carriers.address() {
                Some(address) => format!("the nodes must be able to connect to {address}"),
                None => "the command of --rsh must not wait for input".into(),
            };
            Failure::Running(format!("{error} (--start-timeout; {needed})"))
        }
        (error @ RemoteStartError::Carrier { .. }, _) => Failure::Usage(format!("{error} (see --rsh)")),
        (error @ (RemoteStartError::Refused { is_usage: true, .. } | RemoteStartError::Limit(_)), _) => {
            Failure::usage(error)
        }
        (RemoteStartError::Lost { host, reason }, _) => {
            let hint = HINTS.iter().find(|(text, _)| reason.contains(text));
            let hint = hint.map(|(_, hint)| format!(" ({hint})")).unwrap_or_default();
            Failure::running(RemoteStartError::Lost { host, reason: reason + &hint })
        }
        (RemoteStartError::Directory(error), _) => no_directory(error),
        (RemoteStartError::Job(error @ LaunchError::NameTaken(_)), _) => Failure::usage(error),
        (error, _) => Failure::running(error),
    }
}
