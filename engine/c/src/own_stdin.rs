//! The push of the program's own stdin. A process has one at a time, whatever its connection: several
//! would divide the bytes among their targets.

use std::sync::{Mutex, TryLockError};

use iof_tool::{Push, Pusher};

use crate::constants::*;
use crate::guard::{OrStatus, Outcome, lock, may_wait};
use crate::session::{Session, attach_status};
use crate::stdio;

/// The last push, which may have ended.
static PUSHER: Mutex<Option<Pusher>> = Mutex::new(None);

/// Locked by the thread that begins a push, which blocks.
static BEGINNING: Mutex<()> = Mutex::new(());

/// Pushes the program's own stdin, on a thread and a connection of its own, until stdin ends, all
/// targets are closed, or [`stop`] is called.
pub(crate) fn push(session: &Session, push: &Push) -> Outcome<()> {
    may_wait()?;
    let beginning = match BEGINNING.try_lock() {
        Ok(beginning) => Some(beginning),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    let is_pushed = || lock(&PUSHER).as_ref().is_some_and(|pusher| !pusher.is_finished());
    if beginning.is_none() || is_pushed() {
        let reason = "stdin is being pushed already: stop that push first (IOF_IOF_PUSH_STDIN false)";
        return Err(reason).or_status(IOF_ERR_RESOURCE_BUSY);
    }
    let stdin = stdio::stdin()?;
    let tool = (session.connect)();
    let status = tool.as_ref().err().map_or(IOF_SUCCESS, attach_status);
    let pusher = Pusher::start(tool.or_status(status)?, push, stdin, |_| {});
    *lock(&PUSHER) = Some(pusher.or_status(IOF_ERR_IOF_FAILURE)?);
    Ok(())
}

/// Stops the push without waiting for its end. Returns `false` if stdin is not pushed.
pub(crate) fn stop() -> bool {
    let pusher = lock(&PUSHER).take().filter(|pusher| !pusher.is_finished());
    pusher.iter().for_each(Pusher::stop);
    pusher.is_some()
}
