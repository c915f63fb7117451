//! Jobs that tools have the engine start (`PMIx_Spawn`).

use serde::{Deserialize, Serialize};

use crate::job::job_spec::JobSpec;

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
    /// `true` if the job ends when the tool disconnects that requests it, also before that pulls its
    /// output. Without effect if the job has another parent, or is detached.
    pub is_bound: bool,
}

impl Spawn {
    /// Returns the request for a job of exactly the name in `spec`, which ends with the tool.
    pub fn new(spec: JobSpec) -> Spawn {
        Spawn { spec, rename: false, detached: false, is_bound: false }
    }
}
