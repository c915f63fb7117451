//! The numbers by which the core names tools, streams and calls.

use iof_capture::{PushId, RequestId};
use iof_proto::{Channel, Nspace, Proc};

use crate::core::demand::CallId;

/// The number of a tool while it is connected, which is also its token in the poll set.
pub(crate) type PeerId = usize;

/// A reader page, which the driver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PageId {
    /// That of the backlog holder, which reads the streams that no registration reads.
    BacklogHolder,
    Tool(PeerId),
}

/// A ring on its way to a tool, which the driver holds: the answer to this step of this request has
/// brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RingId {
    pub request: RequestId,
    pub index: usize,
}

/// One job: its name, and its number among all jobs, which distinguishes successive jobs of the
/// same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobId {
    pub nspace: Nspace,
    pub run: u64,
}

/// The name of one stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamName {
    pub source: Proc,
    pub channel: Channel,
    /// The stream holds what was logged to this channel, not what the process wrote.
    pub logged: bool,
    /// The run of the job's name that the source belongs to.
    pub run: u64,
}

/// The number of a query that waits for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueryId(pub u64);

/// The number of an ongoing log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogId(pub u64);

/// The number of a step of an ongoing log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogStep {
    pub log: LogId,
    pub step: usize,
}

/// The subject of an upcall that the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    Approve(PeerId),
    Query(QueryId),
    Pull(CallId),
    Stdin(PushId),
    Log(LogStep),
}

/// A tool's request to signal ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalRequest {
    pub peer: PeerId,
    pub request: u32,
    /// The number of remote ranks that the host has signalled.
    pub elsewhere: usize,
}

/// Largest number of ranks in one job.
pub const MAX_RANKS: u32 = 1 << 20;
