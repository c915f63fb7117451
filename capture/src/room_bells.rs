//! Bells by which readers in other processes tell of room, one for each.
//!
//! Such a bell is an eventfd, which is one open file description for both sides: its reader can
//! make it blocking, full or empty. So it is neither read nor written here. An epoll instance
//! watches all of them, edge-triggered: each ring is an edge, whatever the count is. The capture
//! thread watches that instance.

use std::io;
use std::sync::Arc;

use iof_shm_ring::{Bell, Ringer, bell};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// All of them.
pub(crate) struct RoomBells(pub(crate) Epoll);

/// Keeps the capture listening to the bell of one reader, or of the readers of one process.
pub struct RoomBell {
    bell: Bell,
    bells: Arc<RoomBells>,
}

impl RoomBells {
    pub(crate) fn new() -> io::Result<RoomBells> {
        Ok(RoomBells(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Makes another bell.
    pub(crate) fn bell(self: &Arc<RoomBells>) -> io::Result<(Ringer, RoomBell)> {
        let (ringer, bell) = bell()?;
        self.0.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        Ok((ringer, RoomBell { bell, bells: Arc::clone(self) }))
    }

    /// Takes note of all rings, so that the next is heard.
    pub(crate) fn silence(&self) {
        let mut rung = [EpollEvent::empty(); 32];
        while self.0.wait(&mut rung, EpollTimeout::ZERO).is_ok_and(|count| count == rung.len()) {}
    }
}

impl Drop for RoomBell {
    fn drop(&mut self) {
        // Closing it would not do: the other process has it, too.
        let _ = self.bells.0.delete(&self.bell);
    }
}
