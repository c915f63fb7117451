//! The parameters of a registration for output.

use std::collections::BTreeMap;

use iof_proto::{Channel, Channels, FromTool, Info, Position, Proc};

/// A stream of a job: its process, its channel, and `true` for the messages that were logged for the process.
pub type StreamKey = (Proc, Channel, bool);

/// The parameters of a registration for output (`PMIx_IOF_pull`, RFC0025).
#[derive(Clone, Debug)]
pub struct Pull {
    /// The processes whose output to receive. A wildcard rank means all ranks of the job. The job
    /// need not exist yet.
    pub procs: Vec<Proc>,
    /// The output channels to receive. [`Channels::ALL`] means all output channels; any other set
    /// with stdin is an error.
    pub channels: Channels,
    /// The position at which the registration begins in each stream.
    pub from: Position,
    /// The offsets at which single streams begin, as with [`Position::Offset`], in place of
    /// [`Position::Oldest`].
    pub begins: BTreeMap<StreamKey, u64>,
    /// The time, in nanoseconds since 1970, at which the registration ends as by
    /// [`Tool::deregister`](crate::Tool::deregister). Of each stream, the bytes before the first read
    /// from then on are delivered, by the clock of the rank's node; later ones where several reads
    /// share a time.
    pub until: Option<u64>,
    /// [`Delivery::Cached`](crate::Delivery::Cached) is delivered.
    pub reports_cached: bool,
    /// [`Delivery::Rank`](crate::Delivery::Rank) is delivered.
    pub reports_ranks: bool,
    /// Set if the registration outlives its jobs. It then also delivers later jobs of the same
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
        Pull {
            procs,
            channels,
            from: Position::Oldest,
            begins: BTreeMap::new(),
            until: None,
            reports_cached: false,
            reports_ranks: false,
            persistent: false,
            directives: Vec::new(),
        }
    }

    /// Sets the position at which the registration begins.
    #[must_use]
    pub fn from(self, from: Position) -> Pull {
        Pull { from, ..self }
    }

    pub(crate) fn message(&self, request: u32) -> FromTool {
        let Pull { procs, channels, from, reports_ranks, persistent, directives, .. } = self.clone();
        FromTool::Pull { request, procs, channels, from, persistent, reports_ranks, directives }
    }
}
