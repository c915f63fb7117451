//! The sleep of a tool without missing an event, on its own descriptor or on a foreign event loop.
//!
//! A tool has two sources of events: the doorbell, which the engine rings only for a tool that is
//! armed, and the socket. A tool that found nothing stays armed, so the next event makes its
//! descriptor readable, whenever it occurs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use iof_shm_ring::{Bell, ReaderPage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;

/// The two event sources of a tool, and whether the engine rings the first of them.
pub(crate) struct Wakeup {
    bell: Arc<Bell>,
    /// The doorbell and the socket behind one descriptor, for event loops.
    epoll: Epoll,
    /// Set if the engine rings at the next event.
    armed: bool,
}

/// The descriptors on which a tool sleeps. Its owner can sleep on them while another thread uses
/// the tool.
#[derive(Debug)]
pub struct Sleeper {
    pub(crate) bell: Arc<Bell>,
    pub(crate) socket: Arc<UnixStream>,
}

/// The result of [`Wakeup::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The deadline passed, or a signal interrupted the wait.
    Nothing,
    /// The doorbell rang, or the socket or the caller's descriptor became readable.
    Ready { socket: bool },
}

impl Wakeup {
    pub(crate) fn new(bell: Bell, socket: impl AsFd) -> io::Result<Wakeup> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Wakeup { bell: Arc::new(bell), epoll, armed: false })
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Announces that the tool, which uses the first `slots` slots, is about to sleep. Returns
    /// `false` if a ready bit is set already.
    pub(crate) fn arm(&mut self, page: &ReaderPage, slots: u32) -> bool {
        self.armed = page.arm(slots);
        self.armed
    }

    /// Withdraws that announcement: the tool is awake.
    pub(crate) fn disarm(&mut self, page: &ReaderPage) {
        if self.armed {
            page.disarm();
            self.armed = false;
        }
    }

    /// Blocks until the doorbell rings or `socket` becomes readable, or until `deadline`. Resets
    /// the doorbell.
    pub(crate) fn wait(&self, socket: impl AsFd, deadline: Option<Instant>) -> io::Result<Woken> {
        wait(&self.bell, socket, None, deadline)
    }

    /// Returns the doorbell and `socket`, on which the tool's owner can sleep.
    pub(crate) fn sleeper(&self, socket: Arc<UnixStream>) -> Sleeper {
        Sleeper { bell: Arc::clone(&self.bell), socket }
    }
}

/// Blocks until `bell` rings or `socket` or `other` becomes readable, or until `deadline`. Resets
/// the doorbell.
pub(crate) fn wait(
    bell: &Bell,
    socket: impl AsFd,
    other: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> io::Result<Woken> {
    let fds = [bell.as_fd(), socket.as_fd(), other.unwrap_or(bell.as_fd())];
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let count = if other.is_some() { 3 } else { 2 };
    let remaining = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
    match ppoll(fds.get_mut(..count).unwrap_or_default(), deadline.map(remaining).map(TimeSpec::from), None) {
        Ok(0) | Err(Errno::EINTR) => Ok(Woken::Nothing),
        Ok(_) => {
            let [rang, socket, _] = fds.map(|fd| fd.any().unwrap_or(true));
            if rang {
                bell.silence();
            }
            Ok(Woken::Ready { socket })
        }
        Err(errno) => Err(errno.into()),
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
