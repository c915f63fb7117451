//! Descriptors that were sent to a tool and that it has not received yet.
//!
//! The kernel counts such descriptors per user, over all sockets of all the user's processes. It
//! refuses to send more than the sending process may open (`ETOOMANYREFS`, unix(7)). So each tool
//! may have a few, and beyond these all tools share a budget, which tools that do not read may use
//! up. No tool is trusted to report what it received: the kernel knows that ([`socket::unread`]).
//!
//! Closing a connection does not release its descriptors: the tool can still receive what was sent,
//! and the kernel counts it until the tool has closed its end, too. So a connection that ends is
//! kept until then.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use iof_proto::limits::{FDS_IN_FLIGHT_PER_TOOL, MAX_FDS_IN_FLIGHT, MAX_FDS_IN_FLIGHT_PER_TOOL};
use iof_proto::socket;

/// The descriptors in flight on one connection.
#[derive(Default)]
pub(crate) struct InFlight {
    /// The number of descriptors in each message that may not have been received.
    messages: VecDeque<usize>,
    /// The sum of `messages`.
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

    /// Asks the kernel which of the messages sent on `socket` were received, and updates the count.
    ///
    /// # Errors
    /// The socket is broken.
    pub(crate) fn update(&mut self, socket: &UnixStream) -> io::Result<()> {
        if self.fds > 0 {
            self.received(socket::unread(socket)?);
        }
        Ok(())
    }

    /// Notes that all but the last `unread` messages were received.
    fn received(&mut self, unread: usize) {
        let received = self.messages.len().saturating_sub(unread);
        let fds: usize = self.messages.drain(..received).sum();
        debug_assert!(fds <= self.fds, "{fds} descriptors of {} in flight were received", self.fds);
        self.fds = self.fds.saturating_sub(fds);
    }

    /// Returns the number of descriptors in flight at the last update.
    pub(crate) fn fds(&self) -> usize {
        self.fds
    }
}

/// A connection that has ended while descriptors were in flight on it.
pub(crate) struct Departed {
    socket: UnixStream,
    in_flight: InFlight,
}

impl Departed {
    /// Ends a connection. Returns `None` if no descriptor is in flight on it any more.
    pub(crate) fn new(socket: UnixStream, mut in_flight: InFlight) -> Option<Departed> {
        in_flight.update(&socket).ok()?;
        if in_flight.fds() == 0 {
            return None;
        }
        let _ = socket.shutdown(Shutdown::Both);
        Some(Departed { socket, in_flight })
    }

    /// Returns the number of descriptors in flight at the last update.
    pub(crate) fn fds(&self) -> usize {
        self.in_flight.fds()
    }

    /// Updates and returns the number of descriptors that are still in flight.
    pub(crate) fn update(&mut self) -> usize {
        if self.in_flight.update(&self.socket).is_ok() { self.in_flight.fds() } else { 0 }
    }
}

/// The number of descriptors that the tools of an engine may have in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The number that each tool may have, independent of all others.
    each: usize,
    /// The number that all tools share beyond that.
    pool: usize,
}

impl Budget {
    /// The budget under which no descriptor can be sent.
    pub(crate) const NONE: Budget = Budget { each: 0, pool: 0 };

    /// Returns the budget of a process that may open `files` files and admits `places` tools. It
    /// leaves a quarter of `files` to other engines of the same user.
    pub(crate) fn new(files: u64, places: usize) -> Budget {
        let total = usize::try_from(files - files / 4).unwrap_or(usize::MAX).min(MAX_FDS_IN_FLIGHT);
        let each = FDS_IN_FLIGHT_PER_TOOL;
        Budget { each, pool: total.saturating_sub(each.saturating_mul(places)) }
    }

    /// Returns how many of a tool's `fds` descriptors in flight count against the shared pool.
    pub(crate) fn pool_share(self, fds: usize) -> usize {
        fds.saturating_sub(self.each)
    }

    /// Returns how many descriptors a tool that has `fds` in flight now may have in flight, while
    /// all tools together use `used` of the shared pool. The embedder's `own` readers do not depend
    /// on what the others leave.
    pub(crate) fn allowance(self, fds: usize, used: usize, own: bool) -> usize {
        if own && self.pool > 0 {
            return MAX_FDS_IN_FLIGHT_PER_TOOL;
        }
        let left = self.pool.saturating_sub(used);
        fds.max(self.each).saturating_add(left).min(MAX_FDS_IN_FLIGHT_PER_TOOL)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn tools_that_do_not_read_leave_every_other_tool_its_share() {
        let places = 32;
        let budget = Budget::new(256, places);
        let (mut used, mut total) = (0, 0);
        for _ in 1..places {
            let mut fds = 0;
            while fds < budget.allowance(fds, used, false) {
                used += budget.pool_share(fds + 1) - budget.pool_share(fds);
                fds += 1;
            }
            total += fds;
        }
        assert_eq!(budget.allowance(0, used, false), FDS_IN_FLIGHT_PER_TOOL);
        assert!(total + FDS_IN_FLIGHT_PER_TOOL <= 192, "{total}");
        assert_eq!(budget.allowance(0, used, true), MAX_FDS_IN_FLIGHT_PER_TOOL);
        assert_eq!(Budget::NONE.allowance(0, 0, true), 0);
    }

    #[test]
    fn an_ended_connection_is_kept_until_its_peer_received_all_or_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut in_flight = InFlight::default();
        socket::send(&ours, b"x", &[theirs.as_fd()]).unwrap();
        in_flight.sent(1);
        let mut departed = Departed::new(ours, in_flight).expect("a descriptor is in flight");
        assert_eq!(departed.update(), 1);
        let mut fds = VecDeque::new();
        assert_eq!(socket::receive(&theirs, &mut [0; 8], &mut fds, true, true).unwrap(), 1);
        assert_eq!(departed.update(), 0);

        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut in_flight = InFlight::default();
        socket::send(&ours, b"x", &[ours.as_fd()]).unwrap();
        in_flight.sent(1);
        let mut departed = Departed::new(ours, in_flight).expect("a descriptor is in flight");
        drop(theirs);
        assert_eq!(departed.update(), 0);
        assert!(Departed::new(UnixStream::pair().unwrap().0, InFlight::default()).is_none());
    }

    #[test]
    fn received_descriptors_are_no_longer_in_flight() {
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
