//! Finding an engine and attaching to it, for the commands that are tools.

use iof_proto::rendezvous;
use iof_tool::{AttachError, Tool};

use crate::Failure;
use crate::args::EngineArgs;

/// What queries show as the tools' names.
pub enum Name {
    /// `iof pull`
    Pull,
    /// `iof query`
    Query,
}

/// Attaches to the engine that the user named, or the one there is.
pub fn attach(args: &EngineArgs, name: &Name) -> Result<Tool, Failure> {
    let path = match &args.server {
        Some(path) => path.clone(),
        None => rendezvous::find(args.rendezvous_dir.as_deref(), args.pid).map_err(Failure::usage)?,
    };
    let name = match name {
        Name::Pull => "iof pull",
        Name::Query => "iof query",
    };
    Tool::connect(&path, name).map_err(|error| match error {
        AttachError::Connect(error) => Failure::usage(error),
        error => Failure::running(format!("{}: {error}", path.display())),
    })
}
