//! The tool's end of the control socket: messages in both directions, and the descriptors sent with
//! them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Decoder, FromTool, Message, ToTool, encode, socket};
use iof_shm_ring::{Ring, Stepper};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};

use crate::error::{LostError, RequestError};
use crate::local_rings::LocalRings;

/// The bytes read from the socket at a time.
const CHUNK: usize = 16 * 1024;

/// A message from the engine with what was sent with it.
pub(crate) struct Received {
    pub message: ToTool,
    pub fds: Vec<OwnedFd>,
    /// The ring that the message announces.
    pub ring: Option<Arc<Ring>>,
}

/// A connection to an engine.
pub(crate) struct Link {
    socket: Arc<UnixStream>,
    /// The rings of an engine in this process, which sends no descriptors of rings.
    local: Option<LocalRings>,
    decoder: Decoder<ToTool>,
    fds: VecDeque<OwnedFd>,
    received: VecDeque<Received>,
}

impl Link {
    /// Returns a connection over `socket`. An engine in this process hands its rings over by
    /// `local`.
    pub(crate) fn new(socket: UnixStream, local: Option<LocalRings>) -> Self {
        let (decoder, fds, received) = (Decoder::new(), VecDeque::new(), VecDeque::new());
        Link { socket: Arc::new(socket), local, decoder, fds, received }
    }

    /// Returns the place of the tool's step, if the engine is in this process.
    pub(crate) fn stepper(&self) -> Option<&Stepper> {
        self.local.as_ref().map(LocalRings::stepper)
    }

    /// Returns the socket, for the thread that sleeps on it.
    pub(crate) fn socket(&self) -> Arc<UnixStream> {
        Arc::clone(&self.socket)
    }

    /// Returns whether the engine has closed its end of the socket. What it has sent before may be
    /// unread.
    pub(crate) fn has_hung_up(&self) -> bool {
        // POLLHUP is always reported.
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|closed| closed > 0)
    }

    /// Sends a message. While the socket is full, this blocks until the engine reads or
    /// disconnects, and receives what the engine sends meanwhile: an engine whose answers are not
    /// read stops reading requests.
    pub(crate) fn send(&mut self, message: &FromTool) -> Result<(), RequestError> {
        let frame = encode(message)?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match socket::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let both = PollFlags::POLLIN | PollFlags::POLLOUT;
                    let mut fds = [PollFd::new(self.socket.as_fd(), both)];
                    match poll(&mut fds, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(errno) => return Err(LostError::Socket(errno.into()).into()),
                    }
                    self.read_socket()?;
                }
                Err(error) => return Err(lost(error).into()),
            }
        }
        Ok(())
    }

    /// Returns the next message that was received together with an earlier one.
    pub(crate) fn take_received(&mut self) -> Option<Received> {
        self.received.pop_front()
    }

    /// Returns whether there is such a message.
    pub(crate) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Returns the next message. Blocks until it arrives, or until `deadline` (`None`: without
    /// limit), when this returns `None`.
    pub(crate) fn receive_until(&mut self, deadline: Option<Instant>) -> Result<Option<Received>, LostError> {
        loop {
            // Before the look, so that one that has arrived by the deadline is returned however late this looks.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let received = self.receive()?;
            if received.is_some() || left.is_some_and(|left| left.is_zero()) {
                return Ok(received);
            }
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut fds, left.map(Into::into), None) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(LostError::Socket(errno.into())),
            }
        }
    }

    /// Returns the next message, or `None` if there is none now.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, LostError> {
        loop {
            if let Some(received) = self.take_received() {
                return Ok(Some(received));
            }
            if !self.read_socket()? {
                return Ok(None);
            }
        }
    }

    /// Reads some of what the engine has sent. Does not block. Returns whether anything was read.
    fn read_socket(&mut self) -> Result<bool, LostError> {
        let mut chunk = [0u8; CHUNK];
        let count = loop {
            match socket::receive(&self.socket, &mut chunk, &mut self.fds, true, false) {
                Ok(0) => return Err(LostError::Closed),
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        };
        let mut bytes = chunk.get(..count).unwrap_or_default();
        while let Some(message) = self.decoder.decode(&mut bytes)? {
            let received = self.attach(message)?;
            self.received.push_back(received);
        }
        Ok(true)
    }

    /// Adds to `message` what was sent with it.
    fn attach(&mut self, message: ToTool) -> Result<Received, LostError> {
        let is_ring = matches!(message, ToTool::Ring { .. });
        if let Some(local) = self.local.as_ref().filter(|_| is_ring) {
            let ring = local.take().ok_or(LostError::Unexpected { what: "a message without its ring" })?;
            return Ok(Received { message, fds: Vec::new(), ring: Some(ring) });
        }
        let expected = usize::from(message.fds());
        if self.fds.len() < expected {
            return Err(LostError::Unexpected { what: "a message without its descriptors" });
        }
        let mut fds: Vec<OwnedFd> = self.fds.drain(..expected).collect();
        let ring = if is_ring { fds.pop().map(Ring::open).transpose()?.map(Arc::new) } else { None };
        Ok(Received { message, fds, ring })
    }
}

/// Converts an error of the socket. A peer that closes its socket with unread messages resets the
/// connection, see unix(7).
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
