//! The core, the driver's handles and its shared memory behind a lock, and the effects that are
//! carried out under it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use iof_capture::{Capture, Command, Stopped};

use self::handles::{Handles, Removed};
use self::log_lines::LogLines;
use self::reports::Reports;
use iof_core::{Core, DisconnectReason, DueUpcall, Input, SharedMemory};

pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod log_lines;
pub(crate) mod reports;

/// The tables with their lock and the condition that announces changes.
pub(crate) struct Tables {
    state: Mutex<State>,
    changed: Condvar,
    /// Reports to the control thread.
    pub reports: Arc<Reports>,
    /// The memory that the core names by ids, used only while the tables are locked.
    pub memory: Arc<SharedMemory>,
    /// A weak reference, so that the capture thread ends with the engine.
    capture: Weak<Capture>,
}

struct State {
    core: Core,
    handles: Handles,
}

impl Tables {
    pub(crate) fn new(
        core: Core,
        handles: Handles,
        memory: Arc<SharedMemory>,
        reports: Arc<Reports>,
        capture: &Arc<Capture>,
    ) -> Self {
        let (state, capture) = (Mutex::new(State { core, handles }), Arc::downgrade(capture));
        Tables { state, changed: Condvar::new(), reports, memory, capture }
    }

    /// Locks the tables. A thread that has the lock waits for no other thread, with one exception:
    /// it may create the entry of a new job in the rendezvous directory while another thread creates
    /// or removes one there. When the engine ends, what is left is closed and removed under the
    /// lock, and rings of ended streams are unmapped.
    pub(crate) fn lock(&self) -> LockedTables<'_> {
        LockedTables {
            state: self.lock_only(),
            tables: self,
            panicked_before: thread::panicking(),
            capture: None,
            removed: Vec::new(),
            log: LogLines::default(),
        }
    }

    /// Returns whether a thread has panicked while it had the tables. They may be half changed then,
    /// so the control thread ends the engine.
    pub(crate) fn are_broken(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Poisoning is ignored: once a thread has panicked with the lock, which would be a defect of the
    /// core, the tables only serve the end of the engine, see [`Tables::are_broken`].
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
    /// The thread was panicking for another reason when it took the lock.
    panicked_before: bool,
    /// The capture, after the first commands. Declared, and so dropped, after `state`: the last
    /// reference joins threads that may wait for the lock.
    capture: Option<Arc<Capture>>,
    /// Declared, and so dropped, after `state`: no file is closed or unlinked under the lock.
    removed: Vec<Removed>,
    /// Declared, and so dropped, after `state`: no line of the log is written under the lock.
    log: LogLines,
}

impl LockedTables<'_> {
    /// Returns the lines that are written to the log after unlocking.
    pub(crate) fn log(&mut self) -> &mut LogLines {
        &mut self.log
    }

    /// Returns the driver's handles.
    pub(crate) fn handles(&mut self) -> &mut Handles {
        &mut self.state.handles
    }

    /// Passes the core an input, and carries out the effects before anything else: a piece of a
    /// push is copied before its tool receives credit for the bytes.
    ///
    /// # Errors
    /// As [`Core::handle`].
    pub(crate) fn handle(&mut self, input: Input, now: Instant) -> Result<(), DisconnectReason> {
        let result = self.state.core.handle(input, now);
        // If the capture thread has ended, it has reported the ends of all streams and pushes.
        let _ = self.perform_effects();
        result
    }

    /// Carries out the queued effects on handles, copies what upcalls need, and sends the queued
    /// commands to the capture thread.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub(crate) fn perform_effects(&mut self) -> Result<(), Stopped> {
        let State { core, handles } = &mut *self.state;
        let (reports, memory) = (&self.tables.reports, &*self.tables.memory);
        // Commands and upcalls first: they may name memory that the operations drop.
        let commands = memory.with_memory(core.take_commands());
        let upcalls = core.take_upcalls().into_iter();
        handles.upcalls.extend(upcalls.map(|upcall| DueUpcall::new(upcall, memory)));
        for op in core.take_handle_ops() {
            handles.perform(op, memory).into_iter().for_each(|input| reports.send(input));
        }
        self.removed.append(&mut handles.take_removed());
        self.log.append(handles.take_log());
        self.log.extend(core.take_notices());
        if commands.is_empty() {
            return Ok(());
        }
        if self.capture.is_none() {
            self.capture = self.tables.capture.upgrade();
        }
        let events = match (&mut handles.ended_streams, &self.capture) {
            (Some(streams), _) => streams.perform(commands),
            (None, Some(capture)) => match capture.send(commands) {
                Ok(()) => return Ok(()),
                Err(refused) => refused.into_events(),
            },
            (None, None) => commands.into_iter().flat_map(Command::refused).collect(),
        };
        events.into_iter().for_each(|event| reports.send(event));
        Err(Stopped)
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
        if thread::panicking() && !self.panicked_before {
            // The control thread ends the engine.
            return self.tables.reports.wake();
        }
        // If the capture thread has ended, it has reported the ends of all streams and pushes.
        let _ = self.perform_effects();
    }
}
