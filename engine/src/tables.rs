//! The core and the driver's handles behind a lock, and the effects that are carried out under it.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use iof_capture::{Capture, Stopped};

use crate::core::Core;
use crate::handles::{Handles, Removed};
use crate::reports::Reports;

/// The tables with their lock and the condition that announces changes.
pub(crate) struct Tables {
    state: Mutex<State>,
    changed: Condvar,
    /// Reports to the control thread.
    pub reports: Arc<Reports>,
    /// A weak reference, so that the capture thread ends with the engine.
    capture: Weak<Capture>,
}

struct State {
    core: Core,
    handles: Handles,
}

impl Tables {
    pub(crate) fn new(core: Core, handles: Handles, reports: Arc<Reports>, capture: &Arc<Capture>) -> Self {
        let capture = Arc::downgrade(capture);
        Tables { state: Mutex::new(State { core, handles }), changed: Condvar::new(), reports, capture }
    }

    /// Locks the tables. No thread waits for another one while it has the lock. The one file
    /// operation under the lock creates the entry of a new job in the rendezvous directory.
    pub(crate) fn lock(&self) -> LockedTables<'_> {
        LockedTables { state: self.lock_only(), tables: self, capture: None, removed: Vec::new() }
    }

    /// Poisoning is ignored: a thread that panicked with the lock held left the tables consistent,
    /// as each change is one insertion or removal.
    fn lock_only(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until `ready` returns a value, and returns it. Another thread announces changes with
    /// [`notify`](Tables::notify).
    pub(crate) fn wait_for<R>(&self, mut ready: impl FnMut(&Core) -> Option<R>) -> R {
        let mut state = self.lock_only();
        loop {
            if let Some(result) = ready(&state.core) {
                return result;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all threads that wait for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

/// The locked tables. Effects on handles and the capture thread are carried out before the tables
/// are unlocked, so they happen in the order of the changes to the tables, whichever thread makes
/// these.
pub(crate) struct LockedTables<'a> {
    state: MutexGuard<'a, State>,
    tables: &'a Tables,
    /// The capture, after the first commands. Declared, and so dropped, after `state`: the last
    /// reference joins threads that may wait for the lock.
    capture: Option<Arc<Capture>>,
    /// Declared, and so dropped, after `state`: no file is closed or unlinked under the lock.
    removed: Vec<Removed>,
}

impl LockedTables<'_> {
    /// Returns the driver's handles.
    pub(crate) fn handles(&mut self) -> &mut Handles {
        &mut self.state.handles
    }

    /// Carries out the queued effects on handles, and sends the queued commands to the capture
    /// thread.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub(crate) fn perform_effects(&mut self) -> Result<(), Stopped> {
        let State { core, handles } = &mut *self.state;
        for op in mem::take(&mut core.effects.handles) {
            handles.perform(op).into_iter().for_each(|input| self.tables.reports.send(input));
        }
        self.removed.append(&mut handles.take_removed());
        if core.effects.commands.is_empty() {
            return Ok(());
        }
        if self.capture.is_none() {
            self.capture = self.tables.capture.upgrade();
        }
        let mut sent = Ok(());
        for command in mem::take(&mut core.effects.commands) {
            let events = if let Some(streams) = &mut handles.ended_streams {
                sent = Err(Stopped);
                command.perform_on(streams)
            } else {
                let instead = command.without_capture();
                match self.capture.as_deref().map_or(Err(Stopped), |capture| command.send(capture)) {
                    Ok(()) => continue,
                    Err(stopped) => sent = Err(stopped),
                }
                instead
            };
            events.into_iter().for_each(|event| self.tables.reports.send(event));
        }
        sent
    }
}

impl Deref for LockedTables<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.state.core
    }
}

impl DerefMut for LockedTables<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.state.core
    }
}

impl Drop for LockedTables<'_> {
    fn drop(&mut self) {
        // If the capture thread has ended, it has reported the ends of all streams and pushes.
        let _ = self.perform_effects();
    }
}
