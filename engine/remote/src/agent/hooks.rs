//! The hooks that an embedder adds to an agent.

use std::fmt;

use iof_engine::{Config, Engine, StartError};
use iof_nodes::NodeStart;
use iof_output::PrintReport;

/// The reason why ranks can't be started, for the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartRefusal {
    /// The reason.
    pub reason: String,
    /// The user can correct the input.
    pub is_usage: bool,
}

impl StartRefusal {
    /// Returns the refusal of input that the user can correct.
    pub fn usage(reason: impl ToString) -> StartRefusal {
        StartRefusal { reason: reason.to_string(), is_usage: true }
    }

    /// Returns the refusal for another reason.
    pub fn running(reason: impl ToString) -> StartRefusal {
        StartRefusal { reason: reason.to_string(), is_usage: false }
    }
}

impl fmt::Display for StartRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The hooks that an embedder adds to an agent. All methods have defaults.
pub trait AgentHooks: Send + Sync {
    /// Returns the configuration of the node's engine. The front end determines its caches, backend
    /// and rendezvous.
    ///
    /// # Errors
    /// The ranks are not started.
    fn config(&self) -> Result<Config, StartRefusal> {
        Ok(Config::default())
    }

    /// Returns the refusal for an engine that does not start.
    fn start_failed(&self, error: StartError) -> StartRefusal {
        StartRefusal::running(error)
    }

    /// Creates the files of [`NodeConfig::files`](iof_nodes::NodeConfig), at most `spare` of them open at a time. Called before
    /// the ranks are started. By default such a job is refused.
    ///
    /// # Errors
    /// The ranks are not started.
    fn open_files(
        &self,
        engine: &Engine,
        start: &NodeStart,
        spare: u64,
    ) -> Result<Box<dyn FileWriter>, StartRefusal> {
        let _ = (engine, start, spare);
        Err(StartRefusal::usage("this agent does not write files"))
    }

    /// Returns whether the process ends with the agent, which then leaves the engine's memory to
    /// the exit.
    fn ends_with_process(&self) -> bool {
        false
    }
}

/// An agent to which nothing is added.
impl AgentHooks for () {}

/// The way in which the files of a node have ended.
#[derive(Clone, Debug)]
pub struct FilesEnd {
    /// The report of the bytes that were written, or the reason why files can't be written.
    pub result: Result<PrintReport, String>,
    /// Files accept nothing although the ranks have ended, so the agent ends.
    pub are_blocked: bool,
}

/// Writes the files of a node.
pub trait FileWriter: Send {
    /// Keeps the files, because the ranks run. `done` is called once, from another thread, when all
    /// files are complete, or one can't be written.
    ///
    /// # Errors
    /// The agent ends its ranks.
    fn watch(&mut self, done: Box<dyn FnOnce(FilesEnd) + Send>) -> Result<(), StartRefusal>;

    /// Limits the wait for files that accept nothing, because all ranks have ended on request.
    fn ranks_were_ended(&self);

    /// Blocks until `done` was called.
    fn wait(&self);
}
