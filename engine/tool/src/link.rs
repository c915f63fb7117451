//! The tool's end of the control socket: messages in, messages out, descriptors beside them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use iof_proto::{Decoder, FromTool, Message, ToTool, encode, socket};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};

use crate::error::{LostError, RequestError};

/// Bytes read from the socket at a time.
const CHUNK: usize = 16 * 1024;

/// A message from the engine with the descriptors that came with it.
pub(crate) struct Received {
    pub message: ToTool,
    pub fds: Vec<OwnedFd>,
}

/// One connection to an engine.
pub(crate) struct Link {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    fds: VecDeque<OwnedFd>,
    received: VecDeque<Received>,
}

impl Link {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Link { socket, decoder: Decoder::new(), fds: VecDeque::new(), received: VecDeque::new() }
    }

    /// Sends a request. While the socket is full this waits for the engine to read or to go, and
    /// takes what the engine sends meanwhile: an engine whose answers are not taken stops
    /// reading requests.
    pub(crate) fn send(&mut self, message: &FromTool) -> Result<(), RequestError> {
        let frame = encode(message)?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match socket::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let either = PollFlags::POLLIN | PollFlags::POLLOUT;
                    let mut fds = [PollFd::new(self.socket.as_fd(), either)];
                    match poll(&mut fds, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(errno) => return Err(LostError::Socket(errno.into()).into()),
                    }
                    self.take_arrived(false)?;
                }
                Err(error) => return Err(lost(error).into()),
            }
        }
        Ok(())
    }

    /// The next message that was received together with one before.
    pub(crate) fn take_received(&mut self) -> Option<Received> {
        self.received.pop_front()
    }

    /// Whether there is one.
    pub(crate) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// The next message, for which this waits until `deadline`; `None` if it has not come by then.
    pub(crate) fn receive_until(&mut self, deadline: Instant) -> Result<Option<Received>, LostError> {
        loop {
            let received = self.receive(false)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if received.is_some() || left.is_zero() {
                return Ok(received);
            }
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut fds, Some(left.into()), None) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(LostError::Socket(errno.into())),
            }
        }
    }

    /// The next message; with `wait`, waits for it, else `None` if there is none.
    pub(crate) fn receive(&mut self, wait: bool) -> Result<Option<Received>, LostError> {
        loop {
            if let Some(received) = self.take_received() {
                return Ok(Some(received));
            }
            if !self.take_arrived(wait)? {
                return Ok(None);
            }
        }
    }

    /// Takes some of what the engine has sent; with `wait`, waits for it. Returns whether there was
    /// anything.
    fn take_arrived(&mut self, wait: bool) -> Result<bool, LostError> {
        let mut chunk = [0u8; CHUNK];
        let count = loop {
            match socket::receive(&self.socket, &mut chunk, &mut self.fds, true, wait) {
                Ok(0) => return Err(LostError::Closed),
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        };
        let mut bytes = chunk.get(..count).unwrap_or_default();
        while let Some(message) = self.decoder.decode(&mut bytes)? {
            let due = usize::from(message.fds());
            if self.fds.len() < due {
                return Err(LostError::Unexpected { what: "a message without its descriptors" });
            }
            let fds = self.fds.drain(..due).collect();
            self.received.push_back(Received { message, fds });
        }
        Ok(true)
    }
}

/// What an error of the socket means. A peer that ends with messages unread resets the connection,
/// unix(7).
fn lost(error: io::Error) -> LostError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LostError::Closed,
        _ => LostError::Socket(error),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
