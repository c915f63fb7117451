//! A session: one connection to an engine, the program's requests to it, and the thread that
//! progresses it.
//!
//! The connection belongs to a [`Core`], which one thread at a time has. It is the session's own
//! thread, or, if the program uses `IOF_EXTERNAL_PROGRESS`, a thread that calls
//! [`Session::progress`] or that waits. Other threads put commands into a queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iof_proto::{Answer, Failure, Log, Query, Status};
use iof_tool::{AttachError, Pull, Push, Tool};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::callbacks::iof_iof_cbfunc_t;
use crate::constants::IOF_ERR_OUT_OF_RESOURCE;
use crate::core::Core;
use crate::events::Events;
use crate::guard::{OrStatus, Outcome, may_wait, or_failure};
use crate::pushes::{Payload, gone};
use crate::turns::{Turns, Waited};

/// The maximum number of commands in the queue.
const MAX_COMMANDS: usize = 1024;

/// Receives the result of a request, once. It is dropped without a call if the session's thread has
/// panicked.
pub(crate) type Done<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// A request of the program.
pub(crate) enum Command {
    Pull(Pull, iof_iof_cbfunc_t, Done<usize>),
    Deregister(usize, Done<()>),
    Push(Push, Payload, Done<()>),
    Query(Vec<Query>, Done<Answer>),
    Log(Log, Done<()>),
    /// Calls back on the thread that has the core.
    Call(Done<()>),
}

impl Command {
    /// Reports the failure of the command.
    pub(crate) fn fail(self, failure: Failure) {
        match self {
            Command::Pull(_, _, done) => done(Err(failure)),
            Command::Deregister(_, done) => done(Err(failure)),
            Command::Push(_, payload, done) => {
                drop(payload);
                done(Err(failure));
            }
            Command::Query(_, done) => done(Err(failure)),
            Command::Log(_, done) | Command::Call(done) => done(Err(failure)),
        }
    }
}

/// The part of a session that all threads share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    wake: EventFd,
    /// Readable when the core has work.
    poll: Epoll,
    pub(crate) events: Mutex<Events>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    stopped: bool,
    /// Whether the session ends only after all pending output was delivered.
    drain: bool,
}

/// Opens a further connection to the same engine.
pub(crate) type Connect = Box<dyn Fn() -> Result<Tool, AttachError> + Send + Sync>;

/// A connection to an engine, see the module.
pub(crate) struct Session {
    shared: Arc<Shared>,
    progress: Progress,
    pub(crate) connect: Connect,
}

enum Progress {
    Thread(Mutex<Option<JoinHandle<()>>>),
    Caller(Turns),
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes the commands from the queue. The second value is whether the session has been stopped,
    /// so that no further commands follow.
    pub(crate) fn take(&self) -> (VecDeque<Command>, bool) {
        // An error means that no thread has written to the eventfd.
        let _ = self.wake.read();
        let mut queue = lock(&self.queue);
        (std::mem::take(&mut queue.commands), queue.stopped)
    }

    /// Whether the session ends only after all pending output was delivered.
    pub(crate) fn drains(&self) -> bool {
        lock(&self.queue).drain
    }

    /// Waits until the core has work, for `timeout` at most.
    fn wait(&self, timeout: Option<Duration>) {
        // Rounded up: otherwise a thread would spin for the last part of a millisecond.
        let rounded = timeout.map(|timeout| timeout.as_micros().div_ceil(1000));
        let timeout = rounded.map_or(PollTimeout::NONE, |ms| ms.try_into().unwrap_or(PollTimeout::MAX));
        // An interrupted wait is treated like a timeout.
        let _ = poll(&mut [PollFd::new(self.poll.0.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// Stops waiting for a connection that has ended: its descriptor would stay readable for ever.
    pub(crate) fn unregister(&self, tool: &Tool) {
        // It cannot fail: the descriptor was added once, and is removed once.
        let _ = self.poll.delete(tool);
    }
}

impl Session {
    /// Begins a session over `tool`, with its own thread unless the program progresses it.
    pub(crate) fn begin(tool: Tool, connect: Connect, own_thread: bool) -> io::Result<Session> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let poll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        poll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        poll.add(&tool, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        let shared = Shared { queue: Mutex::default(), wake, poll, events: Mutex::default() };
        let shared = Arc::new(shared);
        let core = Core::new(tool, Arc::clone(&shared));
        let progress = if own_thread {
            let thread = thread::Builder::new().name("iof-c".into()).spawn(move || run(core))?;
            Progress::Thread(Mutex::new(Some(thread)))
        } else {
            Progress::Caller(Turns::new(core))
        };
        Ok(Session { shared, progress, connect })
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.shared.events)
    }

    /// Queues a command, without blocking. If that fails, only the caller receives the error: the
    /// command's callback is not called.
    pub(crate) fn submit(&self, command: Command) -> Outcome<()> {
        let mut queue = lock(&self.shared.queue);
        let refused = if queue.stopped {
            Some(gone("the library is being finalized"))
        } else if queue.commands.len() >= MAX_COMMANDS {
            let reason = format!("{MAX_COMMANDS} requests are pending: try again when some are answered");
            Some(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
        } else {
            None
        };
        if let Some(refused) = refused {
            return or_failure(Err(refused));
        }
        queue.commands.push_back(command);
        drop(queue);
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // The write fails only if the counter is at its maximum, and then it is readable already.
        let _ = self.shared.wake.write(1);
    }

    /// Submits the command that `command` returns, and blocks until its result arrives.
    pub(crate) fn blocking<T: Send + 'static>(&self, command: impl FnOnce(Done<T>) -> Command) -> Outcome<T> {
        may_wait()?;
        let (sender, receiver) = sync_channel(1);
        // Sending fails if the caller has stopped waiting.
        self.submit(command(Box::new(move |result| drop(sender.send(result)))))?;
        or_failure(self.wait_for(&receiver))
    }

    fn wait_for<T>(&self, receiver: &Receiver<Result<T, Failure>>) -> Result<T, Failure> {
        let ended = || gone("the library was finalized during the call");
        let turns = match &self.progress {
            Progress::Thread(_) => return receiver.recv().unwrap_or_else(|_| Err(ended())),
            Progress::Caller(turns) => turns,
        };
        let poll_result = || match receiver.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Disconnected) => Some(Err(ended())),
            Err(TryRecvError::Empty) => None,
        };
        loop {
            let mut turn = match turns.wait(poll_result) {
                Waited::Ready(result) => return result,
                Waited::Ended => return Err(ended()),
                Waited::Turn(turn) => turn,
            };
            // The thread keeps the core while it waits. Otherwise another thread could consume the
            // event that would have woken it.
            while let Some(timeout) = turn.turn() {
                if let Some(result) = poll_result() {
                    return result;
                }
                self.shared.wait(timeout);
            }
        }
    }

    /// Runs a turn, if the program progresses the session. Must not be called in a callback, which
    /// runs within a turn. Does nothing while another thread has the core: a thread that waits
    /// progresses the session itself.
    pub(crate) fn progress(&self) {
        if let Progress::Caller(turns) = &self.progress
            && let Some(mut turn) = turns.take()
        {
            turn.turn();
        }
    }

    /// Returns the descriptor for an event loop that calls [`Session::progress`] when it is
    /// readable.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        matches!(self.progress, Progress::Caller(_)).then(|| self.shared.poll.0.as_raw_fd())
    }

    /// Returns the longest time for which that event loop may wait.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match &self.progress {
            Progress::Caller(turns) => turns.timeout(),
            Progress::Thread(_) => None,
        }
    }

    /// Returns the result of `wait`, which depends on the progress of this session. If the program
    /// progresses the session, `wait` runs on a thread of its own, and the caller progresses the
    /// session until then.
    pub(crate) fn wait_while<T: Send + 'static>(
        self: &Arc<Session>,
        wait: impl FnOnce() -> T + Send + 'static,
    ) -> Outcome<T> {
        if matches!(self.progress, Progress::Thread(_)) {
            return Ok(wait());
        }
        let (sender, receiver) = sync_channel(1);
        let session = Arc::clone(self);
        let waiting = thread::Builder::new().name("iof-c-wait".into()).spawn(move || {
            let result = wait();
            let done = move |called: Result<(), Failure>| drop(sender.send(called.map(|()| result)));
            // If the session has ended, this fails, and `receiver` is disconnected.
            let _ = session.submit(Command::Call(Box::new(done)));
        });
        drop(waiting.or_status(IOF_ERR_OUT_OF_RESOURCE)?);
        or_failure(self.wait_for(&receiver))
    }

    /// Ends the session. Pending requests fail before this returns.
    pub(crate) fn end(&self) -> Outcome<()> {
        self.stop(false)
    }

    /// Ends the session after all pending output was delivered. The engine must have ended, so that
    /// the output is finite.
    pub(crate) fn drain_and_end(&self) -> Outcome<()> {
        self.stop(true)
    }

    fn stop(&self, drain: bool) -> Outcome<()> {
        may_wait()?;
        let mut queue = lock(&self.shared.queue);
        (queue.stopped, queue.drain) = (true, drain);
        drop(queue);
        self.wake();
        match &self.progress {
            Progress::Thread(thread) => {
                if let Some(thread) = lock(thread).take() {
                    // A panic of the thread, which would be a bug, was reported by the panic hook.
                    let _ = thread.join();
                }
            }
            // A thread that waits and has the core may end it instead.
            Progress::Caller(turns) => {
                if let Waited::Turn(mut turn) = turns.wait(|| None::<()>) {
                    turn.turn();
                }
            }
        }
        Ok(())
    }
}

/// Runs the session's own thread.
fn run(mut core: Core) {
    loop {
        let timeout = core.turn();
        if core.is_stopped() {
            return core.last_turn();
        }
        core.shared().wait(timeout);
    }
}
