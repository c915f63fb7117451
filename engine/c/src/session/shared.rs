//! The parts that all threads of a session share: the queue of commands, and the wait for work of
//! the core.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iof_proto::{Failure, Status};
use iof_tool::{Tool, poll_timeout};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::ffi::guard::lock;
use crate::infos::format::Formats;
use crate::session::command::{Command, gone};
use crate::session::events::Events;

/// The maximum number of commands in the queue.
const MAX_COMMANDS: usize = 1024;

/// The part of a session that all threads share.
pub(crate) struct SessionShared {
    queue: Mutex<Queue>,
    wake: EventFd,
    /// Readable when the core has work.
    poll: Epoll,
    pub(crate) events: Mutex<Events>,
    /// The formats of output without a callback.
    pub(crate) formats: Arc<Formats>,
    /// Set if the connection has ended.
    gone: AtomicBool,
    /// Set if output that was delivered waits to be printed.
    waiting: AtomicBool,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    stopped: bool,
    /// Set if the session ends only after all pending output was delivered.
    drain: bool,
}

impl SessionShared {
    pub(crate) fn new(tool: &Tool, formats: Arc<Formats>) -> io::Result<SessionShared> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let poll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        poll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        poll.add(tool, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(SessionShared {
            queue: Mutex::default(),
            wake,
            poll,
            events: Mutex::default(),
            formats,
            gone: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        })
    }

    /// Queues a command, without blocking. If that fails, only the caller receives the error: the
    /// command's callback is not called.
    pub(crate) fn submit(&self, command: Command) -> Result<(), Failure> {
        let mut queue = lock(&self.queue);
        if queue.stopped {
            return Err(gone("the library is being finalized"));
        }
        if queue.commands.len() >= MAX_COMMANDS {
            let reason = format!("{MAX_COMMANDS} requests are pending: try again when some are answered");
            return Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason));
        }
        queue.commands.push_back(command);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Refuses further commands, and makes the core end the session: after all pending output was
    /// delivered, if `drain` is set.
    pub(crate) fn stop(&self, drain: bool) {
        let mut queue = lock(&self.queue);
        (queue.stopped, queue.drain) = (true, drain);
        drop(queue);
        self.wake();
    }

    fn wake(&self) {
        // The write fails only if the counter is at its maximum, and then it is readable already.
        let _ = self.wake.write(1);
    }

    /// Takes the commands from the queue. The second value is whether the session has been stopped,
    /// so that no further commands follow.
    pub(crate) fn take(&self) -> (VecDeque<Command>, bool) {
        // An error means that no thread has written to the eventfd.
        let _ = self.wake.read();
        let mut queue = lock(&self.queue);
        (std::mem::take(&mut queue.commands), queue.stopped)
    }

    /// Returns whether the session ends only after all pending output was delivered.
    pub(crate) fn drains(&self) -> bool {
        lock(&self.queue).drain
    }

    /// Waits until the core has work, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let timeout = PollTimeout::try_from(poll_timeout(timeout)).unwrap_or(PollTimeout::NONE);
        // An interrupted wait is treated like a timeout.
        let _ = poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Stops waiting for a connection that has ended: its descriptor would stay readable for ever.
    pub(crate) fn unregister(&self, tool: &Tool) {
        self.gone.store(true, Relaxed);
        // It cannot fail: the descriptor was added once, and is removed once.
        let _ = self.poll.delete(tool);
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_gone(&self) -> bool {
        // A flag of its own, which orders nothing else.
        self.gone.load(Relaxed)
    }

    /// Sets whether output that was delivered waits to be printed.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Relaxed);
    }

    /// Returns whether output that was delivered waits to be printed. A thread that knows that
    /// output was received is told of its wait: receipt is reported after the flag is set, and the
    /// rings of the output order the two.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Relaxed)
    }
}

/// The descriptor is readable when the core has work.
impl AsFd for SessionShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.0.as_fd()
    }
}
