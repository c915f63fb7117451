//! The limits on what a tool can request from an engine.
//!
//! Each constant's documentation states the counted quantity, its unit and the effect of reaching
//! the limit. Some limits apply to one message: the sender's [`encode`](crate::encode) fails
//! with [`EncodeError`](crate::EncodeError). A receiver that gets such a message anyway closes the
//! connection. Such a message is called malformed below. Those of [`Quota`](crate::Quota) bound what
//! clients hold.

use std::time::Duration;

pub use crate::quota::constants::*;

/// Maximum length of the body of one message from a tool, in bytes. A longer message is malformed.
///
/// [`MAX_PROCS_PER_PULL`] processes with names of usual length fit into one message. An engine
/// buffers at most one such message for each of [`MAX_CONNECTIONS`] tools.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Maximum length of the body of one message to a tool, in bytes. A table of 100,000 processes fits
/// into one message.
///
/// In place of a longer answer the engine sends
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE). It shortens the lists in
/// [`ToTool::Pushed`](crate::ToTool::Pushed) and
/// [`ToTool::SlowTargets`](crate::ToTool::SlowTargets) instead.
pub const MAX_ANSWER: usize = 16 << 20;

/// Maximum number of file descriptors that accompany one message. A message with more is malformed.
pub const MAX_FDS: usize = 3;

/// Maximum number of file descriptors that one engine has in flight: sent to its tools, including
/// those that have disconnected, and not yet received. The limit is three quarters of
/// `RLIMIT_NOFILE` if that is less.
///
/// A part of the limit is reserved: [`FDS_IN_FLIGHT_PER_TOOL`] for each connection that the engine
/// admits. All tools share the rest. While the shared part is used up, a tool may have only its
/// reserve in flight, and further messages with descriptors wait until it has received some. The
/// kernel limits the descriptors in flight of all processes of a user together (`ETOOMANYREFS`,
/// unix(7)).
pub const MAX_FDS_IN_FLIGHT: usize = 6144;

/// Maximum number of file descriptors in flight to one tool, within [`MAX_FDS_IN_FLIGHT`]. Further
/// messages with descriptors wait until the tool has received some.
pub const MAX_FDS_IN_FLIGHT_PER_TOOL: usize = 64;

/// Number of file descriptors in flight that are reserved for each tool, whatever other tools leave
/// unread.
pub const FDS_IN_FLIGHT_PER_TOOL: usize = 4;

/// Maximum size of one tool's deferred requests, in bytes. The engine defers a tool's requests
/// while many answers wait for the tool. At the limit it reads nothing more from the tool until the
/// tool has read answers.
pub const MAX_DEFERRED_BYTES: usize = MAX_MESSAGE;

/// Maximum number of processes that one pull or push names. A message with more is malformed; a
/// wildcard rank names a whole job, and a tool may pull several times.
pub const MAX_PROCS_PER_PULL: usize = 4096;

/// Maximum number of slots that one [`FromTool::Drained`](crate::FromTool::Drained) returns. A
/// message with more is malformed; a tool that returns more slots sends several messages.
pub const MAX_SLOTS_PER_MESSAGE: usize = 4096;

/// Maximum number of processes in one [`ToTool::Ranks`](crate::ToTool::Ranks). It stays below
/// [`MAX_ANSWER`].
pub const MAX_RANKS_PER_REPORT: usize = 1024;

/// Maximum number of streams of forgotten jobs that one tool has not read, and, counted separately,
/// of job ends, with the [reports of ranks](crate::ToTool::Ranks) of these jobs. A job is forgotten when the launcher has removed it from the engine.
///
/// Beyond the limit, the engine drops the older half of those that it has not sent to this tool,
/// and sends the tool their totals ([`ToTool::Missed`](crate::ToTool::Missed), `skipped` in
/// [`ToTool::JobEnded`](crate::ToTool::JobEnded)). It does not attach the tool to new streams until
/// the tool has read some of the old ones. Other tools are not affected. The embedder's own readers
/// are exempt if they may hold sources back.
pub const MAX_FORGOTTEN_PER_TOOL: usize = 1024;

/// Maximum number of rings of forgotten jobs that wait to be sent, over all tools. Each is an open
/// file of the engine's process. Beyond the limit, the engine counts the streams without a
/// ring that their tool has received, selects the tool with the most, and drops half of these. A
/// tool that has received a ring of a stream receives the next one, too.
pub const MAX_FORGOTTEN: usize = 4 * MAX_FORGOTTEN_PER_TOOL;

/// Maximum number of names of forgotten jobs that tools have started, whose pulls the engine refuses.
/// A pull of an earlier one waits for a later job of its name.
pub const MAX_GONE_NAMES: usize = 4096;

/// Maximum number of directives of one request, of qualifiers of one query and of fields of one
/// email. A message with more is malformed.
pub const MAX_DIRECTIVES: usize = 64;

/// Maximum number of queries in one request, and of keys in all of them. A message with more is
/// malformed.
pub const MAX_QUERY_KEYS: usize = 32;

/// Maximum length of the reason of a failure that the host reports, in bytes. The engine cuts longer
/// ones, so that the tool receives the failure.
pub const MAX_FAILURE_REASON: usize = 4 * 1024;

/// Maximum length of a free text from a tool, in bytes: its own name, a key, the text of a
/// directive. A message with a longer text is malformed.
pub const MAX_TEXT: usize = 1024;

/// Maximum length of the name of an nspace, in bytes (`PMIX_MAX_NSLEN`). A longer name is refused
/// with [`NspaceError::TooLong`](crate::NspaceError::TooLong), and a message with one is malformed.
pub const MAX_NSPACE: usize = 255;

/// Maximum number of channels that one log request names. A message with more is malformed.
pub const MAX_LOG_ENTRIES: usize = 16;

/// Maximum length of one text to be logged, in bytes, whatever the number of its channels. A
/// message with a longer text is malformed: a log is not a transport (RFC0032).
pub const MAX_LOG_TEXT: usize = 32 << 10;

/// Maximum size of a log request without its texts, in bytes: channels, directives and the fields
/// of emails. A message with more is malformed.
///
/// Together with a text of [`MAX_LOG_TEXT`] and with the fields that an engine adds when it relays
/// the request to a gateway, the request stays below [`MAX_MESSAGE`].
pub const MAX_LOG_FIELDS: usize = 16 << 10;

/// Maximum number of one tool's registrations that read the same stream. Each reader costs time in
/// the thread that reads the stream's source.
///
/// The engine refuses the next registration that covers the stream with
/// [`Status::ERR_OUT_OF_RESOURCE`](crate::Status::ERR_OUT_OF_RESOURCE). If more registrations cover
/// a new stream, the engine attaches only this many, and reports to the tool what the others miss
/// ([`ToTool::Missed`](crate::ToTool::Missed)). The embedder's own readers are exempt.
pub const MAX_READERS_PER_TOOL: usize = 64;

/// Bytes of directives that count as one process in [`MAX_PROCS_PER_TOOL`].
pub const BYTES_PER_PROC: usize = 512;

/// Maximum age of the snapshot of all streams' counters from which the engine answers queries
/// (`iof.qry.stats`). A later query takes a new snapshot.
pub const STATS_AGE: Duration = Duration::from_millis(10);

/// Maximum number of pushes to one process that are in progress or wait for their turn. The engine
/// refuses the next one with [`Status::ERR_RESOURCE_BUSY`](crate::Status::ERR_RESOURCE_BUSY).
pub const MAX_PUSHES_PER_TARGET: usize = 64;

/// Time within which a connection must send its hello. Otherwise the engine closes the connection.
pub const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Time within which the engine's host must approve or refuse a tool. Otherwise the engine refuses
/// the tool with [`Status::ERR_TIMEOUT`](crate::Status::ERR_TIMEOUT). The tool is still waiting for
/// the engine's answer then ([`HANDSHAKE_LIMIT`]).
pub const APPROVAL_LIMIT: Duration = Duration::from_secs(4);

/// The longest time for which attaching to an engine waits for the engine's answer after the engine
/// has accepted the connection. The engine's host has [`APPROVAL_LIMIT`] of it to approve the tool.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Bytes that each request counts in [`MAX_OWED_BYTES_PER_USER`] in addition to its own.
pub const UPCALL_COST: usize = 1 << 10;

/// Bytes that each process named by a request counts in [`MAX_OWED_BYTES_PER_USER`] in addition to
/// its name.
pub const UPCALL_COST_PER_PROC: usize = 512;

/// Maximum number of output streams that separate threads read, because their ranks once stalled
/// the thread that reads all streams. Beyond the limit, the engine reports the rank to the host,
/// and the rank may stall that thread again.
pub const MAX_ISOLATED_STREAMS: usize = 256;

/// Time for which an engine that ends waits for a tool that receives none of the messages sent to
/// it. After this time the engine closes the connection.
pub const LINGER: Duration = Duration::from_millis(500);

/// Time for which an engine that ends waits for all tools together, even if they receive messages.
/// After this time the engine closes all connections.
pub const MAX_LINGER: Duration = Duration::from_secs(5);

/// Time for which an engine that ends waits for the next request of a tool, because the tool may be
/// about to register. The time starts when the tool connects and again at each of its requests. The
/// wait ends after [`LINGER`] at the latest.
pub const ATTACH_LINGER: Duration = Duration::from_millis(100);

/// Time for which `iof pull` waits for a job if the engine has none. After this time `iof pull`
/// fails.
pub const JOB_WAIT: Duration = Duration::from_secs(5);

/// The error for a message that exceeds one of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} {counted} in one message exceed the limit of {limit}")]
pub struct Excess {
    /// The counted items, in the plural.
    pub counted: &'static str,
    /// The count in the message.
    pub count: usize,
    /// The limit: one of the constants of this module.
    pub limit: usize,
}

/// Checks that `count` is within `limit`; `counted` names the counted items in the plural.
pub(crate) fn check_limit(counted: &'static str, count: usize, limit: usize) -> Result<(), Excess> {
    if count > limit { Err(Excess { counted, count, limit }) } else { Ok(()) }
}
