//! How a tool sleeps without missing anything, on a descriptor of its own or on somebody else's
//! event loop.
//!
//! There are two sources of news: the doorbell, which the engine rings only for a tool that is
//! armed, and the socket. A tool that was told "nothing" stays armed, so that the next news,
//! whenever it comes, makes its descriptor readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use iof_shm_ring::{Bell, ReaderPage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;

/// What a sleeper waits for.
pub(crate) struct Wakeup {
    bell: Bell,
    /// The bell and the socket, for who wants one descriptor for both.
    both: Epoll,
    /// The engine rings if there is news.
    armed: bool,
}

/// What [`Wakeup::wait`] heard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The time was over before anything came.
    Nothing,
    /// The bell, the socket or both.
    Ready { socket: bool },
}

impl Wakeup {
    pub(crate) fn new(bell: Bell, socket: impl AsFd) -> io::Result<Wakeup> {
        let both = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        both.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        both.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Wakeup { bell, both, armed: false })
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Announces that the tool, which uses slots below `slots`, is about to sleep; `false` if there
    /// is news in one.
    pub(crate) fn arm(&mut self, page: &ReaderPage, slots: u32) -> bool {
        self.armed = page.arm(slots);
        self.armed
    }

    /// Takes that back: the tool is awake.
    pub(crate) fn disarm(&mut self, page: &ReaderPage) {
        if self.armed {
            page.disarm();
            self.armed = false;
        }
    }

    /// Waits for the bell or `socket`, until `until` at most. The bell is silent afterwards.
    pub(crate) fn wait(&self, socket: impl AsFd, until: Option<Instant>) -> io::Result<Heard> {
        let events = PollFlags::POLLIN;
        let mut fds = [PollFd::new(self.bell.as_fd(), events), PollFd::new(socket.as_fd(), events)];
        let timeout = until.map(|until| TimeSpec::from(until.saturating_duration_since(Instant::now())));
        match ppoll(&mut fds, timeout, None) {
            Ok(0) | Err(Errno::EINTR) => Ok(Heard::Nothing),
            Ok(_) => {
                let [bell, socket] = fds.map(|fd| fd.any().unwrap_or(true));
                if bell {
                    self.bell.silence();
                }
                Ok(Heard::Ready { socket })
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.0.as_fd()
    }
}
