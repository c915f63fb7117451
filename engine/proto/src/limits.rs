//! Every bound on what a peer may ask of the other side, in one place.

use std::time::Duration;

/// Bytes in the body of one message from a tool: enough for [`MAX_PROCS_PER_PULL`] procs with
/// names of usual length, and little enough to hold one for each of [`MAX_TOOLS`] tools.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Bytes in the body of one message to a tool: a process table of 100,000 procs fits.
pub const MAX_ANSWER: usize = 16 << 20;

/// File descriptors that come with one message.
pub const MAX_FDS: usize = 3;

/// File descriptors that one engine has sent to all its tools, those that have gone included, and
/// that they have not received, or three quarters of what its process may open (RLIMIT_NOFILE) if
/// that is less. The kernel bounds those that all processes of a user have on their way together
/// (`ETOOMANYREFS`, unix(7)). Beyond it a tool may have [`FDS_IN_FLIGHT_PER_TOOL`]; the next one
/// waits until the tool has received some.
pub const MAX_FDS_IN_FLIGHT: usize = 6144;

/// Of these at most this many may be on their way to one tool; the next one waits until the tool
/// has received some.
pub const MAX_FDS_IN_FLIGHT_PER_TOOL: usize = 64;

/// Of these this many are kept for each tool, whatever other tools leave unread.
pub const FDS_IN_FLIGHT_PER_TOOL: usize = 4;

/// Bytes of the requests of one tool that the engine defers while many answers wait for that tool.
/// Beyond these it reads nothing more from the tool until the tool has read answers.
pub const MAX_DEFERRED_BYTES: usize = MAX_MESSAGE;

/// Procs named by one pull; a tool that wants more names a wildcard rank or pulls again.
pub const MAX_PROCS_PER_PULL: usize = 4096;

/// Slots named by one [`FromTool::Drained`](crate::FromTool::Drained); a tool that has more to
/// return sends several. A longer message costs the tool its connection.
pub const MAX_SLOTS_PER_MESSAGE: usize = 4096;

/// Streams and job ends of jobs that the launcher has forgotten and that one tool has not read yet.
/// Beyond these the older half of what was not sent to it is dropped for this tool alone, which is
/// told how much that was, and it is not attached to new streams until it has read some. Does not
/// hold for the launcher's own readers that sources wait for.
pub const MAX_FORGOTTEN_PER_TOOL: usize = 1024;

/// Rings of forgotten jobs that wait to be sent, to all tools together: each is a file of the
/// engine's process. Beyond these, half of what waits is dropped for the tool that has most.
pub const MAX_FORGOTTEN: usize = 4 * MAX_FORGOTTEN_PER_TOOL;

/// Directives with one request.
pub const MAX_DIRECTIVES: usize = 64;

/// Keys asked for by one request, and queries in it.
pub const MAX_QUERY_KEYS: usize = 32;

/// Requests of one tool that may wait for the host's word; the engine refuses the next with
/// [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_WAITING_PER_TOOL: usize = 16;

/// Bytes in any one free text that a tool sends: its own name, a query key.
pub const MAX_TEXT: usize = 1024;

/// Bytes in the name of an nspace (`PMIX_MAX_NSLEN`).
pub const MAX_NSPACE: usize = 255;

/// Channels that one log request may name.
pub const MAX_LOG_ENTRIES: usize = 16;

/// Bytes of one message to be logged, to however many channels: logs are no transport (RFC0032).
pub const MAX_LOG_TEXT: usize = 32 << 10;

/// Log requests that may be under way at a time; the engine refuses the next with
/// [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_LOGS: usize = 256;

/// Of these at most so many may be requests of one process, so that it cannot keep all others out.
pub const MAX_LOGS_PER_PROCESS: usize = 64;

/// Bytes of the messages that may be under way in one engine, one for each channel that they go to;
/// the engine refuses the
/// next with [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_LOG_BYTES: usize = 64 << 20;

/// Bytes of all else that a log request says together, channels, directives and the fields of an
/// email. With a message of [`MAX_LOG_TEXT`], and what an engine that hands it to a gateway adds,
/// they are less than [`MAX_MESSAGE`].
pub const MAX_LOG_FIELDS: usize = 16 << 10;

/// Registrations that one tool may hold at a time, with those that wait for the host's word; the
/// engine refuses the next with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE).
pub const MAX_REGISTRATIONS_PER_TOOL: usize = 4096;

/// Of these at most this many may read one stream: each reader costs the thread that reads the
/// stream's source. The engine refuses the next registration that covers the stream with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE), and does not attach further
/// registrations to a new stream: the tool is told what they miss. The embedder's own readers are
/// exempt.
pub const MAX_READERS_PER_TOOL: usize = 64;

/// Processes that the registrations of one tool may name together, those that wait for the host's
/// word included. A whole job counts for one; directives count for one more process with each
/// [`BYTES_PER_PROC`] bytes. The engine refuses the next registration with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE). The embedder's own readers
/// are exempt.
pub const MAX_PROCS_PER_TOOL: usize = 16 << 10;

/// The same for all tools of one process.
pub const MAX_PROCS_PER_PROCESS: usize = 32 << 10;

/// The same for all tools of one user.
pub const MAX_PROCS_PER_USER: usize = 64 << 10;

/// Bytes of directives that count for one process in [`MAX_PROCS_PER_TOOL`].
pub const BYTES_PER_PROC: usize = 512;

/// How long one look at all streams answers queries of their figures (`iof.qry.stats`), however
/// many tools ask.
pub const STATS_AGE: Duration = Duration::from_millis(10);

/// Pushes that one tool may have under way at a time; the engine refuses the next with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE).
pub const MAX_PUSHES_PER_TOOL: usize = 16;

/// Pushes that may wait for each other at one process; the engine refuses the next with
/// [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_PUSHES_PER_TARGET: usize = 64;

/// Pushes that may be under way at a time, those of tools that have gone included; the engine
/// refuses the next with [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE). Each
/// has a file, and maps of it.
pub const MAX_PUSHES: usize = 1024;

/// Of these at most so many may be pushes of one process, so that it cannot keep all others out.
pub const MAX_PUSHES_PER_PROCESS: usize = 256;

/// Bytes that the inlets of all pushes under way may have together, those of tools that have gone
/// included; the engine refuses the next with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE).
pub const MAX_PUSH_BYTES: u64 = 256 << 20;

/// Of these at most so many may be for pushes of one process, so that it cannot keep all others
/// out.
pub const MAX_PUSH_BYTES_PER_PROCESS: u64 = 64 << 20;

/// Connections to one engine from outside, or an eighth of the files that its process may open
/// (RLIMIT_NOFILE) if that is less. Those count that have not said hello, and those that have ended
/// before all descriptors in flight were received. The next connection takes the place of the
/// oldest one that has not said hello; if there is none, the engine refuses it
/// with [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE). The same holds for the
/// other limits on connections, which are parts of this one.
pub const MAX_TOOLS: usize = 1024;

/// Of these at most this many, a quarter, may be connections of one process. Processes of pid
/// namespaces that the engine cannot see fall only under [`MAX_CONNECTIONS_PER_USER`].
pub const MAX_CONNECTIONS_PER_PROCESS: usize = MAX_TOOLS / 4;

/// Of these at most this many, three quarters, may be connections of one user.
pub const MAX_CONNECTIONS_PER_USER: usize = MAX_TOOLS / 4 * 3;

/// Of these this many, an eighth, are kept for root and the engine's own user.
pub const RESERVED_TOOLS: usize = MAX_TOOLS / 8;

/// How long a connection may take to say hello; then the engine closes it.
pub const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// How long the engine's host may take to say whether a tool is let in; then the engine refuses the
/// tool with [`Status::ERR_TIMEOUT`](crate::Status::ERR_TIMEOUT). Less than a tool waits for its
/// welcome.
pub const APPROVAL_LIMIT: Duration = Duration::from_secs(4);

/// Bytes of the requests of one user that the engine's host was asked and has not answered, those
/// of tools that have gone included. Each counts for [`UPCALL_COST`] more than its own bytes, and
/// for [`UPCALL_COST_PER_PROC`] more with each process that it names. The engine refuses the next
/// request that the host would be asked with
/// [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_OWED_BYTES_PER_USER: usize = 16 << 20;

/// What a request counts for at least in [`MAX_OWED_BYTES_PER_USER`].
pub const UPCALL_COST: usize = 1 << 10;

/// What a process that a request names counts for in [`MAX_OWED_BYTES_PER_USER`], beside its name.
pub const UPCALL_COST_PER_PROC: usize = 512;

/// Output streams of ranks that are read by threads of their own at a time, because their ranks
/// once kept the engine from all other ranks. Of a rank beyond that the host is told so, and it may
/// do it again.
pub const MAX_ISOLATED_STREAMS: usize = 256;

/// How long an engine that ends waits for a tool that takes nothing of what is sent to it. Then it
/// closes the connection.
pub const LINGER: Duration = Duration::from_millis(500);

/// How long an engine that ends waits for all tools together, however many of them take what is
/// sent to them. Then it closes all connections.
pub const MAX_LINGER: Duration = Duration::from_secs(5);

/// How long after a tool connected, or sent its last request, an engine that ends waits for the
/// next one, up to [`LINGER`]: the tool may be about to register.
pub const ATTACH_LINGER: Duration = Duration::from_millis(100);

/// How long `iof pull` waits for the job of an engine that has none yet. Then it fails.
pub const JOB_WAIT: Duration = Duration::from_secs(5);

/// More of something than its limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} {what} in one message, and the limit is {limit}")]
pub struct Excess {
    /// What there was too much of, in the plural.
    pub what: &'static str,
    /// How much there was.
    pub count: usize,
    /// How much there may be: one of the constants of this module.
    pub limit: usize,
}

/// `count` of `what`, if that is within `limit`.
pub(crate) fn within(what: &'static str, count: usize, limit: usize) -> Result<(), Excess> {
    if count > limit { Err(Excess { what, count, limit }) } else { Ok(()) }
}
