//! The options that select an engine, which several commands share.

use std::env;
use std::path::PathBuf;

use clap::Args;
use iof_proto::Nspace;
use iof_proto::rendezvous::{SERVER_VARIABLE, Search, Target};

use crate::options::values::pid;

/// The options that select the engine to attach to.
#[derive(Args, Clone)]
pub struct EngineArgs {
    /// Attach to the `iof run` with this pid
    ///
    /// By default, top shows all engines of this user, any other command that runs in a rank attaches to
    /// the engine that started the rank, and any other attaches to the node's system-level engine if that accepts it, otherwise to this
    /// user's only engine. May be combined with the name of a job.
    #[arg(long, value_name = "PID", group = "target", value_parser = pid)]
    pub pid: Option<u32>,

    /// Attach to the `iof run` of the job with this name
    ///
    /// pull, push, top, query and log then apply to this job only.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["server", "system", "session"])]
    pub nspace: Option<Nspace>,

    /// Attach to the engine that listens on this socket
    #[arg(long, value_name = "PATH", group = "target", conflicts_with = "rendezvous_dir")]
    pub server: Option<PathBuf>,

    /// Attach to the node's system-level engine
    ///
    /// A launcher can run one such engine on a node, for all users.
    #[arg(long, group = "target")]
    pub system: bool,

    /// Attach to this user's only engine
    ///
    /// The node's system-level engine and, in a rank, the engine that started it are ignored.
    #[arg(long, group = "target")]
    pub session: bool,

    /// Look for engines in this directory
    #[arg(long, value_name = "DIR")]
    pub rendezvous_dir: Option<PathBuf>,
}

/// The options that select an engine, and the name of a job as an argument.
#[derive(Args)]
pub struct JobEngineArgs {
    /// Job to attach to, as with --nspace
    #[arg(value_name = "JOB", conflicts_with_all = ["nspace", "server", "system", "session"])]
    job: Option<Nspace>,

    #[command(flatten)]
    engine: EngineArgs,
}

impl JobEngineArgs {
    /// Returns the options, with the job as if it were selected by --nspace.
    pub fn select(&self) -> EngineArgs {
        let nspace = self.job.clone().or_else(|| self.engine.nspace.clone());
        EngineArgs { nspace, ..self.engine.clone() }
    }
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
        let of_job = || match &target {
            Target::Nspace(_) | Target::Pid(_) => own_directory(),
            _ => None,
        };
        let directory = rendezvous_dir.clone().or_else(of_job);
        Search { target, ..Search::default() }.within(directory)
    }
}

/// Returns the directory of the engine that started this process as a rank, if the directory is not
/// the default one. Jobs are also searched for there.
pub fn own_directory() -> Option<PathBuf> {
    let socket = PathBuf::from(env::var_os(SERVER_VARIABLE)?);
    let directory = socket.parent()?.to_owned();
    let has_socket = |directory: Option<PathBuf>| {
        let engines = Search::default().within(directory).engines().unwrap_or_default();
        engines.iter().any(|engine| engine.path == socket)
    };
    (!has_socket(None) && has_socket(Some(directory.clone()))).then_some(directory)
}
