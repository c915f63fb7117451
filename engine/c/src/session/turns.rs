//! Turns at a core that the program progresses itself: one thread at a time has the core, and the
//! other threads that wait are notified of its progress.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ffi::guard::lock;
use crate::session::core::SessionCore;

/// A core, and whether a thread has it.
pub(crate) struct Turns {
    slot: Mutex<CoreSlot>,
    /// Notified when the core has been returned or has made progress.
    progressed: Condvar,
}

enum CoreSlot {
    Idle(Box<SessionCore>),
    Taken,
    Ended,
}

/// The result of a wait.
pub(crate) enum Waited<'t, T> {
    /// The result that the thread waited for.
    Ready(T),
    /// The core, which the thread must progress itself.
    Turn(Turn<'t>),
    /// The core has ended.
    Ended,
}

impl Turns {
    pub(crate) fn new(core: SessionCore) -> Turns {
        Turns { slot: Mutex::new(CoreSlot::Idle(Box::new(core))), progressed: Condvar::new() }
    }

    /// Takes the core, unless a thread has it, including this one.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        self.take_from(&mut lock(&self.slot))
    }

    fn take_from(&self, slot: &mut CoreSlot) -> Option<Turn<'_>> {
        match std::mem::replace(slot, CoreSlot::Taken) {
            CoreSlot::Idle(core) => Some(Turn { turns: self, core: Some(core) }),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Blocks until `poll` returns a result, which it does from `deadline` on, or until the core can
    /// be taken. The thread that has the core wakes the waiting threads after each turn.
    pub(crate) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Waited<'_, T> {
        let mut slot = lock(&self.slot);
        loop {
            if let Some(result) = poll() {
                return Waited::Ready(result);
            }
            if let Some(turn) = self.take_from(&mut slot) {
                return Waited::Turn(turn);
            }
            if matches!(*slot, CoreSlot::Ended) {
                return Waited::Ended;
            }
            slot = match deadline {
                None => self.progressed.wait(slot).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let rest = deadline.saturating_duration_since(Instant::now());
                    let waited = self.progressed.wait_timeout(slot, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Returns the longest time for which the program's event loop may wait, if no thread has the
    /// core.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if let CoreSlot::Idle(core) = &*lock(&self.slot) { core.timeout() } else { None }
    }

    /// Stores the state of the core, if given, and wakes the threads that wait.
    fn notify(&self, slot: Option<CoreSlot>) {
        let mut current = lock(&self.slot);
        if let Some(slot) = slot {
            *current = slot;
        }
        drop(current);
        self.progressed.notify_all();
    }
}

/// The core, which is returned when this is dropped.
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    core: Option<Box<SessionCore>>,
}

impl Turn<'_> {
    /// Runs one turn of the core, see [`SessionCore::turn`]. Runs its last turn and returns `None`
    /// if the program has ended the session.
    pub(crate) fn turn(&mut self, deadline: Option<Instant>) -> Option<Option<Duration>> {
        let core = self.core.as_mut()?;
        let timeout = core.turn(deadline);
        if core.is_stopped() {
            core.last_turn();
            self.core = None;
            return None;
        }
        self.turns.notify(None);
        Some(timeout)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // After a panic the core is unusable. Dropping it gives back the bytes that callers have
        // lent it.
        let core = self.core.take().filter(|_| !thread::panicking());
        self.turns.notify(Some(core.map_or(CoreSlot::Ended, CoreSlot::Idle)));
    }
}
