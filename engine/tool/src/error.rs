//! What can go wrong, one enum for each operation.

use std::io;
use std::path::PathBuf;

use iof_proto::rendezvous::{ConnectError, FindError};
use iof_proto::{DecodeError, EncodeError, Failure, Status};
use iof_shm_ring::OpenError;

use crate::tool::HANDSHAKE_LIMIT;

/// Why a tool is not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no engine, or there is more than one.
    #[error(transparent)]
    Find(#[from] FindError),
    /// There is nobody to connect to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The engine does not want this tool.
    #[error("the engine refuses: {reason} ({status})")]
    Refused {
        /// What kind of refusal.
        status: Status,
        /// The engine's words.
        reason: String,
    },
    /// The engine is there and says nothing.
    #[error(
        "the engine (pid {pid}) has not answered for {} s, it is stopped or hangs: continue it (kill -CONT), or name \
         another one", HANDSHAKE_LIMIT.as_secs()
    )]
    Silent {
        /// Its pid; 0 if it lives in a pid namespace that we cannot see.
        pid: u32,
    },
    /// Whoever listens there could be anybody.
    #[error(
        "user {uid} listens on {}, who is neither root nor this user: name a socket of an engine of yours", path.display()
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// The user of the process that listens.
        uid: u32,
    },
    /// Two connections to one socket reached two engines.
    #[error("another engine has just taken the place of the one at {}: try again", path.display())]
    Replaced {
        /// The socket.
        path: PathBuf,
    },
    /// What the engine sent for a shared reader page is none.
    #[error("the engine's reader page: {0}")]
    ReaderPage(#[from] OpenError),
    /// The connection ended or broke before the engine answered.
    #[error(transparent)]
    Lost(#[from] LostError),
}

/// Why a request was not granted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The engine said no.
    #[error(transparent)]
    Denied(#[from] Failure),
    /// The request can't be put into a message.
    #[error(transparent)]
    Unsendable(#[from] EncodeError),
    /// The connection ended or broke before the engine answered.
    #[error(transparent)]
    Lost(#[from] LostError),
}

/// Why a push came to no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// It was not granted, or the engine is gone. In the latter case nobody knows how much arrived.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// What was to be pushed can't be read. What was read before is pushed.
    #[error("reading what is to be pushed: {0}")]
    Read(io::Error),
    /// The process has no descriptor or thread for it. Nothing was pushed.
    #[error(
        "no thread or descriptor for a push: {0}; raise RLIMIT_NPROC (`ulimit -u`) or RLIMIT_NOFILE (`ulimit -n`)"
    )]
    Thread(io::Error),
    /// The pusher's thread died, which it never should.
    #[error("the pusher's thread died")]
    Died,
}

impl From<LostError> for PushError {
    fn from(lost: LostError) -> PushError {
        PushError::Request(lost.into())
    }
}

/// Why a connection is of no more use. What was mapped can still be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// The engine closed it: it ended, or it took this tool for hostile.
    #[error("the engine has ended or closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the connection to the engine: {0}")]
    Socket(#[from] io::Error),
    /// The engine sent something that is no message.
    #[error("the engine speaks another language: {0}")]
    Garbled(#[from] DecodeError),
    /// The engine sent a message where it makes no sense.
    #[error("the engine sent {what}, which makes no sense here")]
    Unexpected {
        /// What was sent.
        what: &'static str,
    },
    /// The engine sent a ring that can't be read.
    #[error("the engine sent a ring that can't be read: {0}")]
    Ring(#[from] OpenError),
}
