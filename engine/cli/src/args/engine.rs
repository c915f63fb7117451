//! The options that select an engine, which several commands share.

use std::path::PathBuf;

use clap::Args;
use iof_proto::Nspace;
use iof_proto::rendezvous::{Search, Target};

/// The options that select the engine to attach to.
#[derive(Args)]
pub struct EngineArgs {
    /// Attach to the `iof run` with this pid
    #[arg(long, value_name = "PID", group = "target")]
    pub pid: Option<u32>,

    /// Attach to the `iof run` of the job with this name
    #[arg(long, value_name = "NAME", group = "target")]
    pub nspace: Option<Nspace>,

    /// Attach to the engine that listens on this socket
    #[arg(long, value_name = "PATH", group = "target", conflicts_with = "rendezvous_dir")]
    pub server: Option<PathBuf>,

    /// Attach to the node's system-level engine
    #[arg(long, group = "target")]
    pub system: bool,

    /// Do not attach to the node's system-level engine
    #[arg(long, group = "target")]
    pub session: bool,

    /// Look for engines in this directory
    #[arg(long, value_name = "DIR")]
    pub rendezvous_dir: Option<PathBuf>,
}

impl EngineArgs {
    /// Returns `true` if no option selects an engine.
    pub fn is_any(&self) -> bool {
        let EngineArgs { pid, nspace, server, system, session, rendezvous_dir } = self;
        let named = pid.is_some() || nspace.is_some() || server.is_some() || rendezvous_dir.is_some();
        !(named || *system || *session)
    }

    /// Returns the search that the options describe.
    pub fn search(&self) -> Search {
        let EngineArgs { pid, nspace, server, system, session, rendezvous_dir } = self;
        let target = match (pid, nspace, server) {
            (Some(pid), _, _) => Target::Pid(*pid),
            (_, Some(nspace), _) => Target::Nspace(nspace.clone()),
            (_, _, Some(path)) => Target::Server(path.clone()),
            _ if *system => Target::System,
            _ if *session => Target::Session,
            _ => Target::Any,
        };
        Search { target, directory: rendezvous_dir.clone() }
    }
}
