//! The parameters of a registration for output.

use iof_proto::{Channels, FromTool, Info, Proc};

/// The parameters of a registration for output (`PMIx_IOF_pull`, RFC0025).
#[derive(Clone, Debug)]
pub struct Pull {
    /// The processes whose output to receive. A wildcard rank means all ranks of the job. The job
    /// need not exist yet.
    pub procs: Vec<Proc>,
    /// The output channels to receive. [`Channels::ALL`] means all output channels; any other set
    /// with stdin is an error.
    pub channels: Channels,
    /// Whether to begin with the oldest byte in the engine's cache. Otherwise only output that the
    /// engine reads after the registration is delivered.
    pub backlog: bool,
    /// Whether the registration outlives its jobs. If so, it also delivers later jobs of the same
    /// names, until it is [deregistered](crate::Tool::deregister) or the engine ends. Otherwise it
    /// ends when the end of each job in `procs` was delivered. Later jobs of the same names are not
    /// part of it.
    pub persistent: bool,
    /// The directives (RFC0025), such as the cache size. [`iof_proto::directive::key`] lists their
    /// keys.
    pub directives: Vec<Info>,
}

impl Pull {
    /// Creates the parameters of a registration for `channels` of `procs`, without directives. It
    /// delivers the cached output first, and lasts until the jobs have ended.
    pub fn new(procs: Vec<Proc>, channels: Channels) -> Pull {
        Pull { procs, channels, backlog: true, persistent: false, directives: Vec::new() }
    }

    pub(crate) fn message(&self, request: u32) -> FromTool {
        let Pull { procs, channels, backlog, persistent, directives } = self.clone();
        FromTool::Pull { request, procs, channels, backlog, persistent, directives }
    }
}
