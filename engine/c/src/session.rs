//! A session: one connection to an engine, the program's requests to it, and the thread that
//! progresses it.
//!
//! The connection belongs to a [`SessionCore`], which one thread at a time has. It is the session's
//! own thread, or, if the program uses `IOF_EXTERNAL_PROGRESS`, a thread that calls
//! [`EngineSession::progress`] or that waits. Other threads put commands into a queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use iof_proto::rendezvous::SearchNames;
use iof_proto::{Failure, Nspace, Proc, Rank, Status};
use iof_tool::{AttachError, Tool};

use self::command::{Command, Done, gone};
use self::core::SessionCore;
use self::events::Events;
use self::shared::SessionShared;
use self::turns::{Turns, Waited};
use crate::ffi::guard::{OrStatus, Outcome, as_error, lock, may_wait, or_failure};
use crate::infos::format::Formats;

pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod core;
pub(crate) mod events;
pub(crate) mod print;
pub(crate) mod pushes;
pub(crate) mod shared;
pub(crate) mod stdio;
pub(crate) mod turns;

/// Opens a further connection to the same engine.
pub(crate) type Connect = Box<dyn Fn() -> Result<Tool, AttachError> + Send + Sync>;

/// Returns the status for an engine that could not be attached to.
pub(crate) fn attach_status(error: &AttachError) -> Status {
    match error {
        AttachError::Refused { status, .. } => as_error(status.0),
        AttachError::Silent { .. } => Status::ERR_TIMEOUT,
        _ => Status::ERR_UNREACH,
    }
}

/// The infos that select an engine.
const INFOS: SearchNames = SearchNames {
    pid: "IOF_SERVER_PIDINFO",
    nspace: "IOF_SERVER_NSPACE",
    server: "IOF_SERVER_URI",
    directory: "IOF_SERVER_TMPDIR",
};

/// Returns the reason why an engine could not be attached to.
pub(crate) fn attach_reason(error: &AttachError) -> String {
    match error {
        AttachError::Find(error) => error.message(&INFOS),
        error => error.to_string(),
    }
}

/// A connection to an engine, see the module.
pub(crate) struct EngineSession {
    shared: Arc<SessionShared>,
    progress: Progress,
    pub(crate) connect: Connect,
    /// The engine's socket, if it has one.
    pub(crate) socket: Option<PathBuf>,
    engine: Proc,
}

enum Progress {
    Thread(Mutex<Option<JoinHandle<()>>>),
    Caller(Turns),
}

impl EngineSession {
    /// Begins a session over `tool`, with its own thread unless the program progresses it.
    pub(crate) fn begin(
        tool: Tool,
        connect: Connect,
        socket: Option<PathBuf>,
        own_thread: bool,
        formats: Arc<Formats>,
    ) -> io::Result<EngineSession> {
        let shared = Arc::new(SessionShared::new(&tool, formats)?);
        let engine = Proc::new(Nspace::of_engine(tool.engine_pid()), Rank(0));
        let core = SessionCore::new(tool, Arc::clone(&shared));
        let progress = if own_thread {
            let thread = thread::Builder::new().name("iof-c".into()).spawn(move || run(core))?;
            Progress::Thread(Mutex::new(Some(thread)))
        } else {
            Progress::Caller(Turns::new(core))
        };
        Ok(EngineSession { shared, progress, connect, socket, engine })
    }

    /// Returns the name of the engine.
    pub(crate) fn engine(&self) -> &Proc {
        &self.engine
    }

    /// Returns whether the engine has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.shared.is_gone()
    }

    /// Returns the formats of output without a callback.
    pub(crate) fn formats(&self) -> &Formats {
        &self.shared.formats
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.shared.events)
    }

    /// Queues a command, see [`SessionShared::submit`].
    pub(crate) fn submit(&self, command: Command) -> Outcome<()> {
        or_failure(self.shared.submit(command))
    }

    /// Submits the command that `command` returns, and blocks until its result arrives.
    pub(crate) fn blocking<T: Send + 'static>(&self, command: impl FnOnce(Done<T>) -> Command) -> Outcome<T> {
        or_failure(self.ask(command)?)
    }

    /// The same as [`EngineSession::blocking`], with the failure that the engine has answered.
    ///
    /// # Errors
    /// The command cannot be submitted.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(Done<T>) -> Command,
    ) -> Outcome<Result<T, Failure>> {
        may_wait()?;
        let (sender, receiver) = sync_channel(1);
        // Sending fails if the caller has stopped waiting.
        self.submit(command(Box::new(move |result| drop(sender.send(result)))))?;
        Ok(self.wait_for(&receiver, None))
    }

    /// Blocks until a result arrives. From `deadline` on, fails with [`Status::ERR_TIMEOUT`].
    fn wait_for<T>(
        &self,
        receiver: &Receiver<Result<T, Failure>>,
        deadline: Option<Instant>,
    ) -> Result<T, Failure> {
        let ended = || gone("the library was finalized during the call");
        let late = || Failure::new(Status::ERR_TIMEOUT, "the time has passed");
        let rest = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let turns = match (&self.progress, rest()) {
            (Progress::Thread(_), None) => return receiver.recv().unwrap_or_else(|_| Err(ended())),
            (Progress::Thread(_), Some(rest)) => {
                return receiver.recv_timeout(rest).unwrap_or_else(|error| match error {
                    RecvTimeoutError::Timeout => Err(late()),
                    RecvTimeoutError::Disconnected => Err(ended()),
                });
            }
            (Progress::Caller(turns), _) => turns,
        };
        let poll_result = || match receiver.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Disconnected) => Some(Err(ended())),
            Err(TryRecvError::Empty) => rest().filter(Duration::is_zero).map(|_| Err(late())),
        };
        loop {
            let mut turn = match turns.wait(deadline, poll_result) {
                Waited::Ready(result) => return result,
                Waited::Ended => return Err(ended()),
                Waited::Turn(turn) => turn,
            };
            // The thread keeps the core while it waits. Otherwise another thread could consume the
            // event that would have woken it.
            while let Some(timeout) = turn.turn(deadline) {
                if let Some(result) = poll_result() {
                    return result;
                }
                self.shared.wait(timeout.into_iter().chain(rest()).min());
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
            turn.turn(None);
        }
    }

    /// Returns the descriptor for an event loop that calls [`EngineSession::progress`] when it is
    /// readable.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        matches!(self.progress, Progress::Caller(_)).then(|| self.shared.as_fd().as_raw_fd())
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
    /// session until then, or until `deadline`, at which `wait` must return.
    pub(crate) fn wait_while<T: Send + 'static>(
        self: &Arc<EngineSession>,
        deadline: Option<Instant>,
        wait: impl FnOnce() -> T + Send + 'static,
    ) -> Outcome<T> {
        if matches!(self.progress, Progress::Thread(_)) {
            return Ok(wait());
        }
        let (sender, receiver) = sync_channel(1);
        let session = Arc::clone(self);
        let waiting = thread::Builder::new().name("iof-c-wait".into()).spawn(move || {
            // Sending fails if the caller has stopped waiting. Otherwise a turn makes it look.
            let _ = sender.send(Ok(wait()));
            let _ = session.submit(Command::Call(Box::new(drop)));
        });
        drop(waiting.or_status(Status::ERR_OUT_OF_RESOURCE)?);
        or_failure(match self.wait_for(&receiver, deadline) {
            // The thread returns now, and sends unless it panics.
            Err(Failure { status: Status::ERR_TIMEOUT, reason }) => {
                receiver.recv().unwrap_or(Err(Failure::new(Status::ERR_TIMEOUT, reason)))
            }
            result => result,
        })
    }

    /// Blocks until output that was received is printed, which the answer of the engine may delay.
    /// Returns `false` if that takes until `deadline`.
    pub(crate) fn finish_printing(&self, deadline: Option<Instant>) -> bool {
        let (sender, receiver) = sync_channel(1);
        let printed = Command::Call(Box::new(move |called| drop(sender.send(called))));
        if !self.shared.is_waiting() || self.shared.submit(printed).is_err() {
            return true;
        }
        // The session prints everything before it ends.
        !matches!(self.wait_for(&receiver, deadline), Err(Failure { status: Status::ERR_TIMEOUT, .. }))
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
        self.shared.stop(drain);
        match &self.progress {
            Progress::Thread(thread) => {
                if let Some(thread) = lock(thread).take() {
                    // A panic of the thread, which would be a bug, was reported by the panic hook.
                    let _ = thread.join();
                }
            }
            // A thread that waits and has the core may end it instead.
            Progress::Caller(turns) => {
                if let Waited::Turn(mut turn) = turns.wait(None, || None::<()>) {
                    turn.turn(None);
                }
            }
        }
        Ok(())
    }
}

/// Runs the session's own thread.
fn run(mut core: SessionCore) {
    loop {
        let timeout = core.turn(None);
        if core.is_stopped() {
            return core.last_turn();
        }
        core.shared().wait(timeout);
    }
}
