//! The limits of the server. docs/src/serve.md lists them.

use std::time::Duration;

/// Maximum number of connections. Further ones wait in the kernel's queue until one ends.
pub const MAX_CONNECTIONS: usize = 512;

/// Maximum number of requests that follow output at the same time, below the number of tools that an engine accepts
/// from one process. Further ones are refused with status 503.
pub const MAX_FOLLOWERS: usize = 224;

/// Maximum number of threads that connect to engines, push stdin or send signals. Further requests wait for one.
pub const MAX_BLOCKING: usize = 32;

/// Maximum number of these threads that connect to one engine.
pub const MAX_CONNECTING: usize = 4;

/// Maximum number of pushes of stdin that wait for their ranks. Further ones are refused with status 503.
pub const MAX_PUSHES: usize = 8;

/// Time that a client has to send the head of a request, and for which a connection may be idle between requests.
pub const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Time that a client has to send the body of a request.
pub const BODY_LIMIT: Duration = Duration::from_secs(30);

/// Time that an engine has to answer, and ranks to take pushed bytes, until the client receives status 504.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Time after which the kernel ends a TCP connection whose client takes no bytes.
pub const STALL_LIMIT: Duration = Duration::from_secs(300);

/// Interval of the comments that keep an idle stream of events open, and that discover a client that is gone.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Bytes that the kernel keeps for a client that does not read (`SO_SNDBUF`, which the kernel doubles).
pub const SOCKET_BUFFER: usize = 64 << 10;

/// Bytes of a connection's buffers for reading and writing, besides one event. A longer head is refused with
/// status 431.
pub const CONNECTION_BUFFER: usize = 64 << 10;

/// Maximum number of bytes of a stream in one event.
pub const MAX_EVENT: usize = 16 << 10;

/// Maximum number of bytes that one request pushes into stdin.
pub const MAX_STDIN: usize = 1 << 20;

/// Maximum number of streams whose positions are in the id of each event.
pub const MAX_ID_STREAMS: usize = 64;

/// Maximum number of ranks that a request names one by one or in ranges. All ranks of a job count as one.
pub const MAX_RANKS: usize = iof_proto::limits::MAX_PROCS_PER_PULL;
