//! The connection to a tool, or to a process that is not a tool yet: its socket, with what is
//! received over it and what is in flight on it.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use iof_capture::RoomBell;
use iof_core::{DisconnectReason, Peer, PeerId, Shared, SharedMemory};
use iof_proto::{FromTool, socket};
use iof_shm_ring::Stepper;
use iof_tool::LocalRings;
use nix::errno::Errno;

use crate::control::in_flight::{Budget, Departed, InFlight};
use crate::control::incoming::Incoming;

/// The result of [`Connection::flush`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flushed {
    /// No message is left, or the tool must read first.
    Waits,
    /// The kernel has no memory. Try again shortly.
    Retry,
    /// Too many descriptors are in flight. Try again shortly.
    Crowded,
    /// Other tools have their turn now, and there may be more to serve.
    More,
}

/// A connection, which the control thread owns.
pub(crate) struct Connection {
    incoming: Incoming,
    in_flight: InFlight,
    /// The queue by which a tool in this process receives its rings.
    local_rings: Option<LocalRings>,
    /// The bell by which the tool signals room in its rings. Only a tool that may hold back sources
    /// and is not the embedder's has one.
    pub room_bell: Option<RoomBell>,
}

impl Connection {
    /// Returns a connection over `socket` from the rendezvous socket. The tool receives the
    /// descriptors of its rings.
    pub(crate) fn remote(socket: UnixStream) -> Connection {
        Connection::new(socket, None)
    }

    /// Returns a connection over `socket` to a tool in this process, which receives its rings by
    /// `rings`.
    pub(crate) fn local(socket: UnixStream, rings: LocalRings) -> Connection {
        Connection::new(socket, Some(rings))
    }

    fn new(socket: UnixStream, local_rings: Option<LocalRings>) -> Connection {
        let (incoming, in_flight) = (Incoming::new(socket), InFlight::default());
        Connection { incoming, in_flight, local_rings, room_bell: None }
    }

    /// Returns the place of the step of a tool in this process.
    pub(crate) fn stepper(&self) -> Option<&Stepper> {
        self.local_rings.as_ref().map(LocalRings::stepper)
    }

    /// Prepares the socket. Returns the credentials of the process at its other end.
    pub(crate) fn open(&self) -> io::Result<socket::PeerCredentials> {
        self.socket().set_nonblocking(true)?;
        socket::peer(self.socket())
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        self.incoming.socket()
    }

    /// Records that the socket became readable (edge-triggered).
    pub(crate) fn now_readable(&mut self) {
        self.incoming.now_readable();
    }

    /// Returns the next message that has arrived, or `None` if there is none yet.
    ///
    /// # Errors
    /// The connection is closed or broken, or its bytes are not a message.
    pub(crate) fn next(&mut self) -> Result<Option<FromTool>, DisconnectReason> {
        self.incoming.next()
    }

    /// Returns the next message of `peer` to serve, see [`Peer::next_message`].
    pub(crate) fn receive(
        &mut self,
        peer: &mut Peer,
        now: Instant,
    ) -> Result<Option<FromTool>, DisconnectReason> {
        peer.next_message(now, || self.incoming.next())
    }

    /// Returns how many descriptors the tool has not received, as far as the engine knows.
    pub(crate) fn fds_in_flight(&self) -> usize {
        self.in_flight.fds()
    }

    /// Sends the messages that are queued for `peer`, with what `memory` has for them, as far as
    /// the socket accepts them and `budget` allows. `used` is how much of the budget's shared pool
    /// all tools use.
    pub(crate) fn flush(
        &mut self,
        (id, peer): (PeerId, &mut Peer),
        memory: &SharedMemory,
        budget: Budget,
        used: &mut usize,
        now: Instant,
    ) -> Result<Flushed, DisconnectReason> {
        let own = peer.is_own();
        let from_pool = |fds| if own { 0 } else { budget.pool_share(fds) };
        let known = from_pool(self.in_flight.fds());
        self.in_flight.update(self.incoming.socket())?;
        *used = used.saturating_sub(known.saturating_sub(from_pool(self.in_flight.fds())));
        memory.remove_unsent(id, peer.take_discarded());
        while let Some(out) = peer.front() {
            let attachment = out.due_attachment();
            let shared = attachment.and_then(|attachment| memory.unsent(id, attachment));
            debug_assert_eq!(shared.is_some(), attachment.is_some(), "{attachment:?} of a message is gone");
            let local = match (&shared, &self.local_rings) {
                (Some(Shared::Ring(ring)), Some(rings)) => Some((rings, ring)),
                _ => None,
            };
            let fds = shared.as_ref().filter(|_| local.is_none()).map(Shared::fds).unwrap_or_default();
            let known = self.in_flight.fds();
            let after = known.saturating_add(fds.len());
            if !fds.is_empty() && after > budget.allowance(known, *used, own) {
                break;
            }
            let send = || socket::send(self.incoming.socket(), out.unsent(), &fds);
            let sent = match local {
                Some((rings, ring)) => rings.hand_over(ring, send),
                None => send(),
            };
            match sent {
                Ok(sent) => {
                    self.in_flight.sent(fds.len());
                    *used = used.saturating_add(from_pool(after).saturating_sub(from_pool(known)));
                    peer.sent(sent, now);
                    memory.remove_unsent(id, attachment);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => {
                    return Ok(Flushed::Crowded);
                }
                Err(error) if is_transient(&error) => return Ok(Flushed::Retry),
                Err(error) if is_closed(&error) => {
                    peer.stop_sending();
                    // A tool that still reads learns that nothing follows.
                    let _ = self.socket().shutdown(Shutdown::Write);
                    memory.remove_unsent(id, peer.take_discarded());
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Flushed::Waits)
    }

    /// Closes the connection. Returns what must be kept while descriptors are in flight.
    pub(crate) fn depart(self) -> Option<Departed> {
        Departed::new(self.incoming.into_socket(), self.in_flight)
    }
}

/// Returns whether a failed send may succeed shortly because the kernel has no memory. The
/// connection is kept: while a tool is connected, nothing that it borrows is overwritten.
fn is_transient(error: &io::Error) -> bool {
    let transient = [Errno::ENOBUFS, Errno::ENOMEM].map(|errno| Some(errno as i32));
    transient.contains(&error.raw_os_error())
}

/// Returns whether a send failed because the tool has closed its socket, or the receiving side of it.
/// The messages that it sends before its end must still be processed.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
