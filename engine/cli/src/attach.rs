//! The search for an engine and the attachment to it, for the commands that are tools.

use iof_proto::query::key;
use iof_proto::{Found, Nspace, Value};
use iof_tool::{AttachError, Tool};

use crate::Failure;
use crate::args::engine::EngineArgs;

/// The name of a tool, as queries show it.
pub enum ToolName {
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

/// Attaches a tool to the engine that the options select, or to the only engine.
pub fn attach(args: &EngineArgs, name: &ToolName) -> Result<Tool, Failure> {
    Tool::find(&args.search(), name.text()).map_err(failed)
}

/// Attaches `count` tools to one engine.
pub fn attach_several(args: &EngineArgs, name: &ToolName, count: usize) -> Result<Vec<Tool>, Failure> {
    Tool::find_several(&args.search(), name.text(), count).map_err(failed)
}

impl ToolName {
    fn text(&self) -> &'static str {
        match self {
            ToolName::Pull => "iof pull",
            ToolName::Push => "iof push",
            ToolName::Query => "iof query",
            ToolName::Top => "iof top",
            ToolName::Log => "iof log",
        }
    }
}

fn failed(error: AttachError) -> Failure {
    match error {
        error @ (AttachError::Find(_) | AttachError::Connect(_)) => Failure::usage(error),
        error => Failure::running(error),
    }
}

/// Returns the names of an engine's jobs.
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
