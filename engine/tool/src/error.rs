//! Errors, one enum for each kind of operation.

use std::io;
use std::path::PathBuf;

use iof_proto::limits::HANDSHAKE_LIMIT;
use iof_proto::rendezvous::{ConnectError, FindError};
use iof_proto::{DecodeError, EncodeError, Failure, Status};
use iof_shm_ring::OpenError;

/// The reason why a tool could not attach to an engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The search found no engine, or several engines.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The socket does not accept a connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The engine refused this tool.
    #[error("the engine refused the connection: {reason} ({status})")]
    Refused {
        /// The kind of refusal.
        status: Status,
        /// The engine's explanation.
        reason: String,
    },
    /// The engine accepted the connection but did not answer.
    #[error(
        "the engine (pid {pid}) has not answered for {} s: it is stopped or hangs; continue it (kill -CONT) or name \
         another engine", HANDSHAKE_LIMIT.as_secs()
    )]
    Silent {
        /// The engine's pid; 0 if it runs in a pid namespace that this process cannot see.
        pid: u32,
    },
    /// The process that listens on the socket belongs neither to this user nor to root, so it can't
    /// be trusted.
    #[error(
        "the listener on {} belongs to user {uid}, neither to this user nor to root: name the socket of one of your engines", path.display()
    )]
    Foreign {
        /// The path of the socket.
        path: PathBuf,
        /// The user of the listening process.
        uid: u32,
    },
    /// Two connections to one socket reached two different engines.
    #[error("another engine has replaced the one that listened on {}: try again", path.display())]
    Replaced {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The reader page that the engine sent can't be used.
    #[error("invalid reader page from the engine: {0}")]
    ReaderPage(#[from] OpenError),
    /// The connection ended or broke before the engine answered.
    #[error(transparent)]
    Lost(#[from] LostError),
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The engine denied the request.
    #[error(transparent)]
    Denied(#[from] Failure),
    /// The request can't be sent, because it exceeds a [limit](iof_proto::limits) on messages.
    #[error(transparent)]
    Unsendable(#[from] EncodeError),
    /// The connection ended or broke before the engine answered.
    #[error(transparent)]
    Lost(#[from] LostError),
}

/// The reason why a push ended without a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The push was not granted, or the connection has ended. In the latter case it is unknown how
    /// many bytes arrived.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The file can't be read. The bytes read before are still pushed.
    #[error("cannot read the input of the push: {0}")]
    Read(io::Error),
    /// The process can create no further descriptor or thread. Nothing was pushed.
    #[error(
        "cannot create a thread or descriptor for the push: {0}; raise RLIMIT_NPROC (`ulimit -u`) or RLIMIT_NOFILE (`ulimit -n`)"
    )]
    Thread(io::Error),
    /// The pusher's thread panicked, which is a defect of this library.
    #[error("the pusher's thread panicked")]
    Died,
}

impl From<LostError> for PushError {
    fn from(lost: LostError) -> PushError {
        PushError::Request(lost.into())
    }
}

/// The reason why output was not copied to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The output could not be written.
    #[error("cannot write the output: {0}")]
    Write(io::Error),
    /// The connection broke.
    #[error(transparent)]
    Lost(#[from] LostError),
    /// Streams were not read to their ends, or have ended before the offset at which they were to begin. The rest is
    /// written.
    #[error("the output is incomplete: {streams} of its streams were not read to their ends")]
    Incomplete {
        /// The number of these streams, at least.
        streams: u64,
        /// The number of bytes that were lost in all streams before that.
        lost: u64,
    },
}

/// The reason why the connection to the engine has ended. Output that is in memory can still be
/// read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// The engine closed the connection. It has ended, or this tool has violated the protocol.
    #[error("the engine has ended or closed the connection")]
    Closed,
    /// The socket failed.
    #[error("connection to the engine failed: {0}")]
    Socket(#[from] io::Error),
    /// The engine sent something that is not a message.
    #[error("invalid message from the engine: {0}")]
    Garbled(#[from] DecodeError),
    /// The engine sent a message that is not valid at this point.
    #[error("unexpected message from the engine: {what}")]
    Unexpected {
        /// A description of the message.
        what: &'static str,
    },
    /// The engine sent a ring that can't be read.
    #[error("invalid ring from the engine: {0}")]
    Ring(#[from] OpenError),
}
