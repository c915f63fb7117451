//! Finding an engine and attaching to it, for the commands that are tools.

use iof_proto::query::key;
use iof_proto::{Found, Nspace, Value};
use iof_tool::{AttachError, Tool};

use crate::Failure;
use crate::args::EngineArgs;

/// What queries show as the tools' names.
pub enum Name {
    /// `iof pull`
    Pull,
    /// `iof push`
    Push,
    /// `iof query`
    Query,
    /// `iof top`
    Top,
    /// `iof log`
    Log,
}

/// Attaches to the engine that the user named, or the one there is.
pub fn attach(args: &EngineArgs, name: &Name) -> Result<Tool, Failure> {
    Tool::find(&args.search(), name.text()).map_err(failed)
}

/// Attaches to it `count` times.
pub fn attach_several(args: &EngineArgs, name: &Name, count: usize) -> Result<Vec<Tool>, Failure> {
    Tool::find_several(&args.search(), name.text(), count).map_err(failed)
}

impl Name {
    fn text(&self) -> &'static str {
        match self {
            Name::Pull => "iof pull",
            Name::Push => "iof push",
            Name::Query => "iof query",
            Name::Top => "iof top",
            Name::Log => "iof log",
        }
    }
}

fn failed(error: AttachError) -> Failure {
    match error {
        error @ (AttachError::Find(_) | AttachError::Connect(_)) => Failure::usage(error),
        error => Failure::running(error),
    }
}

/// The names of an engine's jobs.
pub fn namespaces(tool: &mut Tool) -> Result<Vec<Nspace>, Failure> {
    let found = tool.query(&[key::PMIX_QUERY_NAMESPACES]).map_err(Failure::running)?;
    let names = found.into_iter().find_map(|Found { value, .. }| match value {
        Value::Text(names) => Some(names),
        _ => None,
    });
    let names = names.unwrap_or_default();
    names
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| Nspace::new(name).map_err(Failure::running))
        .collect()
}
