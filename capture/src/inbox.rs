//! The sending end of the capture thread's command queue.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_shm_ring::Ringer;

use crate::driver::Command;
use crate::error::Stopped;
use crate::wake::PendingWake;

/// A sender of commands to the capture thread. Clones send to the same queue.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Shared>);

struct Shared {
    commands: Sender<Command>,
    ringer: Ringer,
    wake: PendingWake,
}

impl Inbox {
    /// Creates the queue of the thread whose bell `ringer` rings.
    pub(crate) fn new(ringer: Ringer) -> (Inbox, Receiver<Command>) {
        let (commands, receiver) = unbounded();
        (Inbox(Arc::new(Shared { commands, ringer, wake: PendingWake::default() })), receiver)
    }

    /// Sends a command to the capture thread, and wakes it.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Stopped> {
        let Shared { commands, ringer, wake } = &*self.0;
        commands.send(command).map_err(|_| Stopped)?;
        if wake.mark() {
            ringer.ring();
        }
        Ok(())
    }

    /// Notes that the capture thread, which has silenced its bell, is about to take the commands.
    pub(crate) fn take_wake(&self) {
        self.0.wake.take();
    }

    /// Returns the ringer of the thread's bell.
    pub(crate) fn ringer(&self) -> &Ringer {
        &self.0.ringer
    }

    /// Returns the number of commands in the queue.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.commands.len()
    }
}
