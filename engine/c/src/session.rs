//! A session: one connection to an engine, what the program asks of it, and who progresses it.
//!
//! The connection belongs to a [`Core`], which one thread at a time has: the session's own, or, if
//! the program wants no such thread, those that call [`Session::progress`] and those that wait.
//! Everybody else puts commands into a queue.

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

/// Commands that may wait for the thread.
const MAX_COMMANDS: usize = 1024;

/// Is told what a request has come to, once; or never, if the session has died.
pub(crate) type Done<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// What the program wants.
pub(crate) enum Command {
    Pull(Pull, iof_iof_cbfunc_t, Done<usize>),
    Deregister(usize, Done<()>),
    Push(Push, Payload, Done<()>),
    Query(Vec<Query>, Done<Answer>),
    Log(Log, Done<()>),
    /// To be called back on the session's thread.
    Call(Done<()>),
}

impl Command {
    /// Says that nothing will come of it.
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

/// What threads share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    wake: EventFd,
    /// Readable when there is something to do.
    poll: Epoll,
    pub(crate) events: Mutex<Events>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    stopped: bool,
    /// But only when all that there is was handed out.
    after_all: bool,
}

/// Makes further connections to the same engine.
pub(crate) type Connect = Box<dyn Fn() -> Result<Tool, AttachError> + Send + Sync>;

/// See the module.
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
    /// Commands that came, and whether they are the last.
    pub(crate) fn take(&self) -> (VecDeque<Command>, bool) {
        // Nothing to be read: nobody has woken us.
        let _ = self.wake.read();
        let mut queue = lock(&self.queue);
        (std::mem::take(&mut queue.commands), queue.stopped)
    }

    /// Whether the end is to wait for all that there is.
    pub(crate) fn is_after_all(&self) -> bool {
        lock(&self.queue).after_all
    }

    /// Waits for something to do, for `timeout` at most.
    fn wait(&self, timeout: Option<Duration>) {
        // Rounded up, or a thread would spin for the last part of a millisecond.
        let rounded = timeout.map(|timeout| timeout.as_micros().div_ceil(1000));
        let timeout = rounded.map_or(PollTimeout::NONE, |ms| ms.try_into().unwrap_or(PollTimeout::MAX));
        // An interrupted wait is one that found nothing.
        let _ = poll(&mut [PollFd::new(self.poll.0.as_fd(), PollFlags::POLLIN)], timeout);
    }

    /// The connection is of no more use: its descriptor would be readable for ever.
    pub(crate) fn leave(&self, tool: &Tool) {
        // It was there before, once.
        let _ = self.poll.delete(tool);
    }
}

impl Session {
    /// Begins one, over `tool`, with a thread of its own unless the program is to progress it.
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

    /// Has `command` done; waits for nothing. Where it is refused, nobody is told but the caller.
    pub(crate) fn submit(&self, command: Command) -> Outcome<()> {
        let mut queue = lock(&self.shared.queue);
        let refused = if queue.stopped {
            Some(gone("the library is being finalized"))
        } else if queue.commands.len() >= MAX_COMMANDS {
            let reason = format!("{MAX_COMMANDS} requests wait already: ask again when some are answered");
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
        // It counts to 2^64: what can't be added is there already.
        let _ = self.shared.wake.write(1);
    }

    /// Has the command that `of` makes done, and waits for what it comes to.
    pub(crate) fn blocking<T: Send + 'static>(&self, of: impl FnOnce(Done<T>) -> Command) -> Outcome<T> {
        may_wait()?;
        let (tell, told) = sync_channel(1);
        // Who does not wait any more does not listen.
        self.submit(of(Box::new(move |result| drop(tell.send(result)))))?;
        or_failure(self.wait_for(&told))
    }

    fn wait_for<T>(&self, told: &Receiver<Result<T, Failure>>) -> Result<T, Failure> {
        let ended = || gone("the library was finalized meanwhile");
        let turns = match &self.progress {
            Progress::Thread(_) => return told.recv().unwrap_or_else(|_| Err(ended())),
            Progress::Caller(turns) => turns,
        };
        let hear = || match told.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Disconnected) => Some(Err(ended())),
            Err(TryRecvError::Empty) => None,
        };
        loop {
            let mut turn = match turns.wait(hear) {
                Waited::Heard(result) => return result,
                Waited::Ended => return Err(ended()),
                Waited::Turn(turn) => turn,
            };
            // Kept while we wait, so that nobody else takes what would have woken us.
            while let Some(timeout) = turn.turn() {
                if let Some(result) = hear() {
                    return result;
                }
                self.shared.wait(timeout);
            }
        }
    }

    /// Does what there is to do, if that is the caller's part; not in a callback, which is called
    /// from here. Who waits meanwhile on another thread does it himself, for as long as he
    /// waits.
    pub(crate) fn progress(&self) {
        if let Progress::Caller(turns) = &self.progress
            && let Some(mut turn) = turns.take()
        {
            turn.turn();
        }
    }

    /// For an event loop that calls [`Session::progress`]: readable when it should, and for how
    /// long it may wait.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        matches!(self.progress, Progress::Caller(_)).then(|| self.shared.poll.0.as_raw_fd())
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        match &self.progress {
            Progress::Caller(turns) => turns.timeout(),
            Progress::Thread(_) => None,
        }
    }

    /// What `wait` comes to, which waits for what is progressed here.
    pub(crate) fn wait_while<T: Send + 'static>(
        self: &Arc<Session>,
        wait: impl FnOnce() -> T + Send + 'static,
    ) -> Outcome<T> {
        if matches!(self.progress, Progress::Thread(_)) {
            return Ok(wait());
        }
        let (tell, told) = sync_channel(1);
        let session = Arc::clone(self);
        let waiting = thread::Builder::new().name("iof-c-wait".into()).spawn(move || {
            let result = wait();
            let done = move |of: Result<(), Failure>| drop(tell.send(of.map(|()| result)));
            // It is refused when the session ends, and `told` hears of that.
            let _ = session.submit(Command::Call(Box::new(done)));
        });
        drop(waiting.or_status(IOF_ERR_OUT_OF_RESOURCE)?);
        or_failure(self.wait_for(&told))
    }

    /// Ends it. What is under way is told so, before this returns.
    pub(crate) fn end(&self) -> Outcome<()> {
        self.stop(false)
    }

    /// The same, but all that there is comes before. For a session whose engine has gone, so that
    /// this has an end.
    pub(crate) fn end_after_all(&self) -> Outcome<()> {
        self.stop(true)
    }

    fn stop(&self, after_all: bool) -> Outcome<()> {
        may_wait()?;
        let mut queue = lock(&self.shared.queue);
        (queue.stopped, queue.after_all) = (true, after_all);
        drop(queue);
        self.wake();
        match &self.progress {
            Progress::Thread(thread) => {
                if let Some(thread) = lock(thread).take() {
                    // Its panic, which never is, was told by the hook.
                    let _ = thread.join();
                }
            }
            // Who waits with it meanwhile may end it as well.
            Progress::Caller(turns) => {
                if let Waited::Turn(mut turn) = turns.wait(|| None::<()>) {
                    turn.turn();
                }
            }
        }
        Ok(())
    }
}

/// The session's thread.
fn run(mut core: Core) {
    loop {
        let timeout = core.turn();
        if core.is_stopped() {
            return core.last_turn();
        }
        core.shared().wait(timeout);
    }
}
