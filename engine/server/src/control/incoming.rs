//! Messages received over a connection. The other end is assumed to be hostile.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;

use iof_core::DisconnectReason;
use iof_proto::{Decoder, FromTool, socket};

/// Size of one read, in bytes.
const CHUNK: usize = 16 * 1024;

/// The socket of a connection, with the bytes read from it that are not yet decoded.
pub(crate) struct Incoming {
    socket: UnixStream,
    decoder: Decoder<FromTool>,
    input: Vec<u8>,
    /// The socket may have more bytes to read.
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

    /// Notes that the socket became readable (it is polled edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.readable = true;
    }

    /// Returns the next message that has arrived, or `None` if there is none yet.
    ///
    /// # Errors
    /// The connection is closed or broken, or its bytes are not a message.
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
            // Descriptors sent by a tool are never accepted.
            match socket::receive(&self.socket, &mut chunk, &mut VecDeque::new(), false, false) {
                Ok(0) => return Err(DisconnectReason::Closed),
                Ok(count) => self.input.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
