//! The numbers by which the core names tools, streams and calls.

use iof_capture::{PushId, RequestId};
use iof_proto::{Channel, Nspace, Proc};

use crate::tools::demand::CallId;

/// The number of a tool while it is connected, which is also its token in the poll set.
pub type PeerId = usize;

/// A reader page, which the driver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageId {
    /// That of the backlog holder, which reads the streams that no registration reads.
    BacklogHolder,
    /// That of a tool.
    Tool(PeerId),
}

/// A ring on its way to a tool, which the driver holds: the answer to this step of this request has
/// brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId {
    /// The request.
    pub request: RequestId,
    /// The index of its answer.
    pub index: usize,
}

/// One job: its name, and its number among all jobs, which distinguishes successive jobs of the
/// same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId {
    /// The name.
    pub nspace: Nspace,
    /// The number.
    pub run: u64,
}

/// The name of one stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamName {
    /// The process.
    pub source: Proc,
    /// The channel.
    pub channel: Channel,
    /// The stream holds what was logged to this channel, not what the process wrote.
    pub logged: bool,
    /// The run of the job's name that the source belongs to.
    pub run: u64,
}

/// The number of a query that waits for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// The number of a tool's request to start a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpawnId(pub u64);

/// The number of an ongoing log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// The number of a step of an ongoing log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogStep {
    /// The request.
    pub log: LogId,
    /// The index of the step.
    pub step: usize,
}

/// The subject of an upcall that the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// The approval of a tool.
    Approve(PeerId),
    /// A part of a query.
    Query(QueryId),
    /// A pull of sources.
    Pull(CallId),
    /// A piece of a push.
    Stdin(PushId),
    /// A message to be logged.
    Log(LogStep),
    /// A job that a tool wants to start.
    Spawn(SpawnId),
}

/// A tool's request to signal ranks.
#[derive(Clone, Copy, Debug)]
pub struct SignalRequest {
    /// The tool.
    pub peer: PeerId,
    /// The tool's number for the request.
    pub request: u32,
    /// The number of remote ranks that the host has signalled.
    pub elsewhere: usize,
}

/// Largest number of ranks in one job.
pub const MAX_RANKS: u32 = 1 << 20;
