//! Finding an engine and attaching to it, for the commands that are tools.

use iof_tool::{AttachError, Tool};

use crate::Failure;
use crate::args::EngineArgs;

/// What queries show as the tools' names.
pub enum Name {
    /// `iof pull`
    Pull,
    /// `iof query`
    Query,
    /// `iof top`
    Top,
}

/// Attaches to the engine that the user named, or the one there is.
pub fn attach(args: &EngineArgs, name: &Name) -> Result<Tool, Failure> {
    let name = match name {
        Name::Pull => "iof pull",
        Name::Query => "iof query",
        Name::Top => "iof top",
    };
    Tool::find(&args.search(), name).map_err(|error| match error {
        error @ (AttachError::Find(_) | AttachError::Connect(_)) => Failure::usage(error),
        error => Failure::running(error),
    })
}
