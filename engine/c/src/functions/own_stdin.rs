//! The push of the program's own stdin. A process has one at a time, whatever its connection:
//! several would divide the bytes among their targets.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use iof_proto::Status;
use iof_tool::{DetachedPusher, Push, PushError, Pusher};

use crate::ffi::guard::{OrStatus, Outcome, lock, may_wait, or_failure};
use crate::session::core::failure;
use crate::session::stdio;
use crate::session::{EngineSession, attach_status};

/// The time for which a new push waits for the end of the last one. The engine and the pusher
/// notice the end of the last target within milliseconds, but later than `iof_server_wait`.
const MAX_END_TIME: Duration = Duration::from_secs(1);

/// The last push, which may have ended.
static PUSHING: Mutex<Option<Pushing>> = Mutex::new(None);

/// Notified when a push has ended or was stopped.
static ENDED: Condvar = Condvar::new();

/// Locked by the thread that begins a push, which blocks.
static BEGINNING: Mutex<()> = Mutex::new(());

/// A push, which nothing joins: if stdin cannot be read, the targets see its end nevertheless.
struct Pushing {
    pusher: DetachedPusher,
    has_ended: Arc<AtomicBool>,
}

impl Pushing {
    fn is_running(&self) -> bool {
        // Relaxed: it is set while `PUSHING` is locked, and read likewise.
        !self.has_ended.load(Relaxed)
    }
}

/// Belongs to the pusher's callback, which is dropped at the end of the push.
struct End(Arc<AtomicBool>);

impl End {
    /// Does nothing about targets that do not read: the push waits for them.
    fn on_wait(&self) {}
}

impl Drop for End {
    fn drop(&mut self) {
        let _pushing = lock(&PUSHING);
        // Relaxed: see `Pushing::is_running`.
        self.0.store(true, Relaxed);
        ENDED.notify_all();
    }
}

/// Pushes the program's own stdin, on a thread and a connection of its own, until stdin ends, all
/// targets are closed, or [`stop`] is called.
pub(crate) fn push(session: &EngineSession, push: &Push) -> Outcome<()> {
    may_wait()?;
    let beginning = match BEGINNING.try_lock() {
        Ok(beginning) => Some(beginning),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if beginning.is_none() || !wait_for_end() {
        let reason = "stdin is being pushed already: stop that push first (IOF_IOF_PUSH_STDIN false)";
        return Err(reason).or_status(Status::ERR_RESOURCE_BUSY);
    }
    let stdin = stdio::stdin()?;
    let tool = (session.connect)();
    let status = tool.as_ref().err().map_or(Status::SUCCESS, attach_status);
    let has_ended = Arc::default();
    let end = End(Arc::clone(&has_ended));
    let pusher = match Pusher::start(tool.or_status(status)?, push, stdin, move |_| end.on_wait()) {
        Err(PushError::Request(error)) => or_failure(Err(failure(error))),
        pusher => pusher.or_status(Status::ERR_OUT_OF_RESOURCE),
    }?;
    *lock(&PUSHING) = Some(Pushing { pusher: pusher.detach(), has_ended });
    Ok(())
}

/// Waits for the end of the last push, for [`MAX_END_TIME`] at most. Returns whether it has ended.
fn wait_for_end() -> bool {
    let is_running = |pushing: &mut Option<Pushing>| pushing.as_ref().is_some_and(Pushing::is_running);
    let waited = ENDED.wait_timeout_while(lock(&PUSHING), MAX_END_TIME, is_running);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

/// Stops the push without waiting for its end. Returns `false` if stdin is not pushed.
pub(crate) fn stop() -> bool {
    let pushing = lock(&PUSHING).take().filter(Pushing::is_running);
    pushing.iter().for_each(|pushing| pushing.pusher.stop());
    ENDED.notify_all();
    pushing.is_some()
}
