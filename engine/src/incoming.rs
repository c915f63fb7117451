//! What comes from the other end of a connection. All of it is taken for hostile.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;

use iof_proto::{Decoder, FromTool, socket};

use crate::peer::DisconnectReason;

/// Bytes read at a time.
const CHUNK: usize = 16 * 1024;

/// The socket of a connection, and what was read from it.
pub(crate) struct Incoming {
    socket: UnixStream,
    decoder: Decoder<FromTool>,
    input: Vec<u8>,
    /// The socket may have more to read.
    readable: bool,
}

impl Incoming {
    pub(crate) fn new(socket: UnixStream) -> Incoming {
        Incoming { socket, decoder: Decoder::new(), input: Vec::new(), readable: true }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    pub(crate) fn into_socket(self) -> UnixStream {
        self.socket
    }

    /// The socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.readable = true;
    }

    /// Returns the next message that has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<FromTool>, DisconnectReason> {
        loop {
            let mut bytes = self.input.as_slice();
            let message = self.decoder.decode(&mut bytes)?;
            let used = self.input.len().saturating_sub(bytes.len());
            self.input.drain(..used);
            if message.is_some() {
                return Ok(message);
            }
            if !self.readable {
                return Ok(None);
            }
            let mut chunk = [0u8; CHUNK];
            // Descriptors from a tool are not accepted, whatever it sends.
            match socket::receive(&self.socket, &mut chunk, &mut VecDeque::new(), false, false) {
                Ok(0) => return Err(DisconnectReason::Closed),
                Ok(count) => self.input.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
