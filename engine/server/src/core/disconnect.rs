//! The reasons why a tool is disconnected.

use std::io;

use iof_proto::DecodeError;

/// Why a tool is disconnected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DisconnectReason {
    #[error("the tool closed the connection")]
    Closed,
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    #[error("protocol error: {0}")]
    Unexpected(&'static str),
}
