//! The bells that readers in other processes ring when they have made room: one bell for each
//! reader or for the readers of one process.
//!
//! Such a bell is an eventfd. Both sides share one open file description, so the reader's side can
//! make it blocking, full or empty. The capture thread therefore neither reads nor writes it. An
//! epoll instance watches all bells, edge-triggered: each ring is an edge, whatever the eventfd's
//! count is. The capture thread watches that instance.

use std::io;
use std::sync::Arc;

use iof_shm_ring::{Bell, Ringer, bell};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// The largest number of edges that one turn consumes. Readers can ring without end, and must not
/// keep the capture thread here.
const MAX_EDGES: usize = 128;

/// The epoll instance that watches all bells.
#[derive(Debug)]
pub(crate) struct RoomBells(pub(crate) Epoll);

/// A guard that keeps a [`Capture`](crate::Capture) listening to the bell of one reader, or of the
/// readers of one process.
#[derive(Debug)]
pub struct RoomBell {
    bell: Bell,
    bells: Arc<RoomBells>,
}

impl RoomBells {
    pub(crate) fn new() -> io::Result<RoomBells> {
        Ok(RoomBells(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Creates another bell.
    pub(crate) fn bell(self: &Arc<RoomBells>) -> io::Result<(Ringer, RoomBell)> {
        let (ringer, bell) = bell()?;
        self.0.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        Ok((ringer, RoomBell { bell, bells: Arc::clone(self) }))
    }

    /// Consumes pending edges, so that the next ring makes the instance readable again. It stays
    /// readable if more than [`MAX_EDGES`] bells have rung.
    pub(crate) fn silence(&self) {
        // Fails only if a signal interrupts it, and the instance is readable then.
        let _ = self.0.wait(&mut [EpollEvent::empty(); MAX_EDGES], EpollTimeout::ZERO);
    }
}

impl Drop for RoomBell {
    fn drop(&mut self) {
        // Closing the bell is not enough: the other process has a descriptor of the same eventfd.
        let _ = self.bells.0.delete(&self.bell);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn readers_that_ring_without_end_do_not_keep_the_capture_thread_busy() {
        let bells = Arc::new(RoomBells::new().unwrap());
        let all: Vec<(Ringer, RoomBell)> = (0..=MAX_EDGES).map(|_| bells.bell().unwrap()).collect();
        let rings = || poll(&mut [PollFd::new(bells.0.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO);
        all.iter().for_each(|(ringer, _)| ringer.ring());
        bells.silence();
        assert_eq!(rings(), Ok(1), "a bounded number of edges is consumed");
        bells.silence();
        assert_eq!(rings(), Ok(0));
        all[0].0.ring();
        assert_eq!(rings(), Ok(1));
    }
}
