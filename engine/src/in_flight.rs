//! Descriptors that were sent to a tool and that it has not received.
//!
//! The kernel counts them for the engine's user, over all sockets of all its processes, and refuses
//! to send one more than that process may open (`ETOOMANYREFS`, unix(7)). So each tool may have a
//! few, and beyond that all share a budget, of which those that do not read may use up all. No tool
//! is believed: the kernel knows what was received ([`socket::unread`]).
//!
//! To close a connection gives nothing back: what was sent can still be received, and counts until
//! the tool has closed its end, too. So a connection that ends is kept until then.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use iof_proto::limits::{FDS_IN_FLIGHT_PER_TOOL, MAX_FDS_IN_FLIGHT, MAX_FDS_IN_FLIGHT_PER_TOOL};
use iof_proto::socket;

use crate::client::Client;
use crate::peer::Peer;
use crate::state::State;

/// Those of one connection.
#[derive(Default)]
pub(crate) struct InFlight {
    /// How many each message has that may not have been received.
    messages: VecDeque<usize>,
    fds: usize,
}

impl InFlight {
    /// Notes that a message with `fds` descriptors was sent.
    pub(crate) fn sent(&mut self, fds: usize) {
        if fds > 0 {
            self.messages.push_back(fds);
            self.fds = self.fds.saturating_add(fds);
        }
    }

    /// Asks the kernel what was received of what was sent on `socket`.
    ///
    /// # Errors
    /// The socket is broken.
    pub(crate) fn look(&mut self, socket: &UnixStream) -> io::Result<()> {
        if self.fds > 0 {
            self.received(socket::unread(socket)?);
        }
        Ok(())
    }

    /// Notes that all but the last `unread` messages were received.
    fn received(&mut self, unread: usize) {
        let received = self.messages.len().saturating_sub(unread);
        let fds: usize = self.messages.drain(..received).sum();
        self.fds = self.fds.saturating_sub(fds);
    }

    /// Returns how many descriptors there are, as far as is known.
    pub(crate) fn fds(&self) -> usize {
        self.fds
    }
}

/// A connection that has ended, and of which not all was received.
pub(crate) struct Departed {
    socket: UnixStream,
    in_flight: InFlight,
    /// The process at its other end.
    pub client: Client,
}

impl Departed {
    /// Ends a connection; `None` if nothing of it is in flight any more.
    pub(crate) fn new(socket: UnixStream, mut in_flight: InFlight, client: Client) -> Option<Departed> {
        in_flight.look(&socket).ok()?;
        if in_flight.fds() == 0 {
            return None;
        }
        let _ = socket.shutdown(Shutdown::Both);
        Some(Departed { socket, in_flight, client })
    }

    /// Returns how many descriptors are still in flight.
    pub(crate) fn look(&mut self) -> usize {
        if self.in_flight.look(&self.socket).is_ok() { self.in_flight.fds() } else { 0 }
    }
}

/// What all tools of an engine may have in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// What every tool may have, whatever others do.
    each: usize,
    /// What is shared beyond that.
    pool: usize,
}

impl Budget {
    /// Nothing more can be sent.
    pub(crate) const NONE: Budget = Budget { each: 0, pool: 0 };

    /// Returns the budget of a process that may open `files` files, and has `places` for tools.
    /// Other engines of its user want to send, too.
    pub(crate) fn of(files: u64, places: usize) -> Budget {
        let all = usize::try_from(files - files / 4).unwrap_or(usize::MAX).min(MAX_FDS_IN_FLIGHT);
        let each = FDS_IN_FLIGHT_PER_TOOL;
        Budget { each, pool: all.saturating_sub(each.saturating_mul(places)) }
    }

    /// Returns what a tool with `fds` in flight has of the shared part.
    pub(crate) fn of_pool(self, fds: usize) -> usize {
        fds.saturating_sub(self.each)
    }

    /// Returns how many descriptors a tool may have in flight that has `fds` now, while all tools
    /// have `used` of the shared part. The embedder's `own` readers do not depend on what
    /// others leave.
    pub(crate) fn share(self, fds: usize, used: usize, own: bool) -> usize {
        if own && self.pool > 0 {
            return MAX_FDS_IN_FLIGHT_PER_TOOL;
        }
        let left = self.pool.saturating_sub(used);
        fds.max(self.each).saturating_add(left).min(MAX_FDS_IN_FLIGHT_PER_TOOL)
    }
}

impl State {
    /// Forgets connections that have ended and of which everything was received.
    pub(crate) fn forget_departed(&mut self) {
        self.departed.retain_mut(|connection| connection.look() > 0);
    }

    /// Returns how many descriptors are in flight beyond what each tool may have in any case, and
    /// forgets connections that have ended and of which everything was received.
    pub(crate) fn fds_in_flight(&mut self, budget: Budget) -> usize {
        self.forget_departed();
        let departed = self.departed.iter().map(|connection| connection.in_flight.fds());
        let peers = self.peers.values().filter(|peer| !peer.own).map(Peer::fds_in_flight);
        departed.chain(peers).map(|fds| budget.of_pool(fds)).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn tools_that_do_not_read_leave_something_to_any_other() {
        let places = 32;
        let budget = Budget::of(256, places);
        let (mut used, mut all) = (0, 0);
        for _ in 1..places {
            let mut fds = 0;
            while fds < budget.share(fds, used, false) {
                used += budget.of_pool(fds + 1) - budget.of_pool(fds);
                fds += 1;
            }
            all += fds;
        }
        assert_eq!(budget.share(0, used, false), FDS_IN_FLIGHT_PER_TOOL);
        assert!(all + FDS_IN_FLIGHT_PER_TOOL <= 192, "{all}");
        assert_eq!(budget.share(0, used, true), MAX_FDS_IN_FLIGHT_PER_TOOL);
        assert_eq!(Budget::NONE.share(0, 0, true), 0);
    }

    #[test]
    fn a_connection_that_ends_is_kept_until_its_peer_has_received_all_or_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = Client { pid: 1, uid: 1 };
        let mut in_flight = InFlight::default();
        socket::send(&ours, b"x", &[theirs.as_fd()]).unwrap();
        in_flight.sent(1);
        let mut departed = Departed::new(ours, in_flight, client).expect("it is in flight");
        assert_eq!(departed.look(), 1);
        let mut fds = VecDeque::new();
        assert_eq!(socket::receive(&theirs, &mut [0; 8], &mut fds, true, true).unwrap(), 1);
        assert_eq!(departed.look(), 0);

        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut in_flight = InFlight::default();
        socket::send(&ours, b"x", &[ours.as_fd()]).unwrap();
        in_flight.sent(1);
        let mut departed = Departed::new(ours, in_flight, client).expect("it is in flight");
        drop(theirs);
        assert_eq!(departed.look(), 0);
        assert!(Departed::new(UnixStream::pair().unwrap().0, InFlight::default(), client).is_none());
    }

    #[test]
    fn what_was_received_is_not_in_flight() {
        let mut in_flight = InFlight::default();
        in_flight.sent(3);
        in_flight.sent(0);
        in_flight.sent(1);
        assert_eq!(in_flight.fds(), 4);
        in_flight.received(9);
        assert_eq!(in_flight.fds(), 4);
        in_flight.received(1);
        assert_eq!(in_flight.fds(), 1);
        in_flight.received(0);
        assert_eq!(in_flight.fds(), 0);
    }
}
