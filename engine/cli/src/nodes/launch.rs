//! The ranks of `iof run` on other nodes: their start, and what becomes of them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{EarlyEndPolicy, Ending, Engine, RankExit};
use iof_nodes::{AgentSocket, BrokenStream};
use iof_proto::Nspace;
use iof_remote::{
    Launch, NodeEvents, NodeLost, Remote, RemoteEvent, RemoteStartError, StartStep, shell_word,
};
use nix::sys::signal::Signal;

use crate::args::RendezvousDir;
use crate::error::Failure;
use crate::exits::listed;
use crate::failures::MAX_FAILURE_LINES;
use crate::follow::JobEvent;
use crate::run::FLUSH_LIMIT;
use crate::signal_watch::SignalWatch;
use crate::signals::{ReceivedSignal, asks_again, asks_to_end};

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

/// Returns the shell command of the agent. With `reattach`, it goes on for that time without a
/// carrier.
pub fn agent_command(reattach: Option<Duration>) -> io::Result<OsString> {
    let mut command = own_command("agent")?;
    if let Some(time) = reattach {
        command.push(format!(" --reattach {}ms", time.as_millis()));
    }
    Ok(command)
}

/// Returns the shell command of a subcommand of this program, which the other nodes have at the
/// same path.
pub fn own_command(name: &str) -> io::Result<OsString> {
    let program = shell_word(env::current_exe()?.as_os_str());
    let words = [OsStr::new("exec "), &program, OsStr::new(" "), OsStr::new(name)];
    Ok(words.into_iter().collect())
}

/// Returns where tools find the agents.
pub fn agent_socket(rendezvous: RendezvousDir<'_>) -> AgentSocket {
    match rendezvous {
        RendezvousDir::None => AgentSocket::None,
        RendezvousDir::Default => AgentSocket::Default,
        RendezvousDir::Is(directory) => AgentSocket::In(directory.into()),
    }
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
