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

    /// Consumes all pending edges, so that the next ring makes the instance readable again.
    pub(crate) fn silence(&self) {
        let mut rung = [EpollEvent::empty(); 32];
        while self.0.wait(&mut rung, EpollTimeout::ZERO).is_ok_and(|count| count == rung.len()) {}
    }
}

impl Drop for RoomBell {
    fn drop(&mut self) {
        // Closing the bell is not enough: the other process has a descriptor of the same eventfd.
        let _ = self.bells.0.delete(&self.bell);
    }
}
