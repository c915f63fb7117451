//! `iof agent`: runs ranks on its node for an `iof run` elsewhere. `iof link`: brings an agent
//! another connection.
//!
//! Their stdin and stdout are the connection to the front end, unless the agent connects itself.

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, stdin, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use iof_engine::{Config, Engine, StartError};
use iof_nodes::NodeStart;
use iof_remote::{
    Agent, AgentError, AgentExit, AgentHooks, FileWriter, Invitation, InvitationError, NodeConnection,
    StartRefusal,
};
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout, gethostname, setsid};

use super::agent_files::{FileWriters, refusal};
use crate::commands::log;
use crate::error::{Failure, engine_failed};
use crate::options::values::duration;
use crate::processes::guardian;
use crate::processes::signals::{Signals, asks_to_end};
use crate::processes::threads::start_thread;
use crate::terminal::message;

/// The options of `iof agent`, which `iof run` sets.
#[derive(Args)]
#[command(
    after_help = "It ends when `iof run` has all output of its ranks. If its connection ends before, or at SIGINT, \
                  SIGTERM, SIGHUP or SIGQUIT, it sends SIGTERM to its ranks, and SIGKILL after the --kill-wait of \
                  `iof run`. If SIGKILL ends the agent, another process, its guardian, ends the ranks.\n\n\
                  Exit codes: 0 if `iof run` has all output, or the connection ended before ranks ran; 1 if the \
                  ranks could not start, a file could not be written, the connection ended while they ran, or it \
                  carried invalid frames; 2 for invalid options; 128+n if signal n asked it to end while \
                  ranks ran. `iof run` has the exit codes of the ranks."
)]
pub struct AgentArgs {
    /// Go on for this time without a connection
    ///
    /// If the connection ends, the ranks run on, and `iof link` can bring another one. After this
    /// time, the agent ends. It listens in the node's rendezvous directory from the time that its
    /// ranks can start. In seconds, with suffix ms, s, m or h, or as MINUTES:SECONDS. By default,
    /// the agent ends with its connection.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    reattach: Option<Duration>,

    /// Connect to `iof run`
    ///
    /// Its address and a secret come on stdin. With --reattach, the agent connects again if this
    /// connection ends. By default, stdin and stdout are the connection.
    #[arg(long)]
    dial: bool,
}

/// Runs ranks for a front end. Returns when it has all output, or when the edge has ended.
pub fn agent(AgentArgs { reattach, dial }: &AgentArgs) -> Result<ExitCode, Failure> {
    // Until it has a connection, signals end the process.
    let failed = |error: &dyn Display| Failure::running(here(error));
    let invitation = if *dial { Some(invitation().map_err(|error| failed(&error))?) } else { None };
    let connection = invitation.as_ref().map_or_else(own_files, iof_remote::dial);
    let connection = connection.map_err(|error| failed(&error))?;
    let signals = Signals::take().map_err(Failure::running)?;
    if reattach.is_some() {
        detach().map_err(Failure::running)?;
    }
    let asked = Arc::new(OnceLock::new());
    let agent = match invitation {
        Some(invitation) => Agent::start_dialed(connection, &invitation, *reattach, Arc::new(Hooks)),
        None => Agent::start(connection, *reattach, Arc::new(Hooks)),
    };
    let agent = agent.map_err(|error| failed(&error))?;
    message::beside_edge(agent.messages());
    let (stop, signal) = (agent.stop_handle(), Arc::clone(&asked));
    start_thread("iof-signals", move || {
        while let Some(received) = signals.wait() {
            if asks_to_end(received.signal) {
                let _ = signal.set(received.signal);
                stop.stop();
            }
        }
    })?;
    match agent.run() {
        Ok(AgentExit::Over | AgentExit::Unstarted) => Ok(ExitCode::SUCCESS),
        Ok(AgentExit::Refused | AgentExit::Alone | AgentExit::FilesBlocked) => Ok(ExitCode::FAILURE),
        Err(AgentError::Stopped) => Err(Failure::Signal(asked.get().copied().unwrap_or(Signal::SIGTERM))),
        Err(error) => Err(Failure::running(here(&error))),
    }
}

/// Returns an error with the name of this node: `iof run` shows those of all nodes.
fn here(message: &dyn Display) -> String {
    match gethostname() {
        Ok(host) => format!("{}: {message}", host.to_string_lossy()),
        Err(_) => message.to_string(),
    }
}

/// Reads the invitation for this node from stdin. The nodes of Slurm may have other names than their hosts.
fn invitation() -> Result<Invitation, InvitationError> {
    let slurm = env::var("SLURMD_NODENAME").ok();
    let own = gethostname().ok().and_then(|host| host.into_string().ok());
    Invitation::read(stdin().lock(), &slurm.into_iter().chain(own).collect::<Vec<_>>())
}

/// The connection's descriptors, which ranks do not inherit.
fn own_files() -> io::Result<NodeConnection> {
    let (down, up) = (stdin().as_fd().try_clone_to_owned()?, stdout().as_fd().try_clone_to_owned()?);
    Ok(NodeConnection { down: down.into(), up: up.into() })
}

/// Detaches this process from what started it, whose signals would end it as well, and from its
/// stdin and stdout.
fn detach() -> io::Result<()> {
    // Fails if this process leads its group: it then has a session of its own, as below sshd, or
    // is the carrier itself, as below `sh -c`.
    let _ = setsid();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}

/// The hooks that the command adds to its agents.
struct Hooks;

impl AgentHooks for Hooks {
    fn config(&self) -> Result<Config, StartRefusal> {
        let mut config = Config::default();
        config.guardian = guardian::program();
        config.log = log::config().map_err(refusal)?;
        Ok(config)
    }

    fn start_failed(&self, error: StartError) -> StartRefusal {
        refusal(engine_failed(error))
    }

    fn open_files(
        &self,
        engine: &Engine,
        start: &NodeStart,
        spare: u64,
    ) -> Result<Box<dyn FileWriter>, StartRefusal> {
        Ok(Box::new(FileWriters::start(engine, start, spare).map_err(refusal)?))
    }

    fn ends_with_process(&self) -> bool {
        true
    }
}

/// The arguments of `iof link`.
#[derive(Args)]
#[command(
    after_help = "It ends when the agent has another connection, when this one has ended, or when the agent ends.\n\n\
                  Exit codes: 0 if an agent was reached, also if it has refused the connection; 1 if no agent of \
                  this user listens at PATH; 2 for invalid arguments."
)]
pub struct LinkArgs {
    /// Socket of the agent
    ///
    /// Its name is iof.HOST.link.PID, with the pid of the agent, in the rendezvous directory of the
    /// node.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// Brings the agent that listens at a path the stdin and the stdout of this process, and ends with
/// the carrier.
pub fn link(LinkArgs { path }: &LinkArgs) -> Result<ExitCode, Failure> {
    iof_remote::link(path, stdin(), stdout()).map_err(|error| Failure::running(here(&error)))?;
    Ok(ExitCode::SUCCESS)
}
