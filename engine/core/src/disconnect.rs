//! The reasons why a tool is disconnected.

use std::io;

use iof_proto::DecodeError;

/// Why a tool is disconnected.
#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// The tool has closed its end.
    #[error("the tool closed the connection")]
    Closed,
    /// The socket is broken.
    #[error("socket error: {0}")]
    Socket(#[from] io::Error),
    /// Bytes that are no message.
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    /// A message that the tool must not send.
    #[error("protocol error: {0}")]
    Unexpected(&'static str),
}
