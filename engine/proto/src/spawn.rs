//! Jobs that tools have the engine start (`PMIx_Spawn`).

use serde::{Deserialize, Serialize};

use crate::job_spec::JobSpec;
use crate::names::Proc;

/// A job that a tool has the engine start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Spawn {
    /// The job. All of its ranks are started by the engine. Their environment is that of the
    /// engine's process and what the apps add.
    pub spec: JobSpec,
    /// `true` if the job is called `NAME-2`, `NAME-3` and so on if its name is taken. Otherwise the
    /// request is refused then.
    pub rename: bool,
    /// `true` if the job continues when its parent ends.
    pub detached: bool,
    /// The process on whose behalf the tool asks. Its job is the parent of the new one. If it is
    /// `None`, or the engine has no such job, the tool is the parent from its first registration
    /// for the new job on.
    ///
    /// When the ranks of the parent have exited, or it disconnects, the engine sends SIGTERM to the
    /// ranks of the new job, and SIGKILL after [`JobSpec::kill_wait`] to those that still run.
    pub parent: Option<Proc>,
}

impl Spawn {
    /// Returns the request for a job of exactly the name in `spec`, which ends with the tool.
    pub fn new(spec: JobSpec) -> Spawn {
        Spawn { spec, rename: false, detached: false, parent: None }
    }
}
