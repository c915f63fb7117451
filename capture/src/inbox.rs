//! The sending end of the capture thread's command queue, with the fills that are summed up beside
//! it and the starts of many processes.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_shm_ring::Ringer;

use crate::command::Command;
use crate::error::Stopped;
use crate::fills::{Fill, Fills};
use crate::ids::PushId;
use crate::mass_start::MassStarts;
use crate::wake::PendingWake;

/// A sender of commands to the capture thread. Clones send to the same queue.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Shared>);

struct Shared {
    commands: Sender<Command>,
    fills: Fills,
    mass_starts: MassStarts,
    ringer: Ringer,
    wake: PendingWake,
}

impl Inbox {
    /// Creates the queue of the thread whose bell `ringer` rings.
    pub(crate) fn new(ringer: Ringer) -> (Inbox, Receiver<Command>) {
        let (commands, receiver) = unbounded();
        let (fills, mass_starts, wake) = <(Fills, MassStarts, PendingWake)>::default();
        (Inbox(Arc::new(Shared { commands, fills, mass_starts, ringer, wake })), receiver)
    }

    /// Sends a command to the capture thread, and wakes it.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), Stopped> {
        let Shared { commands, ringer, wake, .. } = &*self.0;
        commands.send(command).map_err(|_| Stopped)?;
        if wake.mark() {
            ringer.ring();
        }
        Ok(())
    }

    /// Adds to the fills of a push. Sends a command only if the capture thread has taken those
    /// before.
    ///
    /// # Errors
    /// The capture thread ends or has ended.
    pub(crate) fn fill(&self, id: PushId, fill: Fill) -> Result<(), Stopped> {
        if self.0.fills.add(id, fill)? { self.send(Command::Fill(id)) } else { Ok(()) }
    }

    /// Returns the starts of many processes that are under way.
    pub(crate) fn mass_starts(&self) -> &MassStarts {
        &self.0.mass_starts
    }

    /// Returns the fills of the capture thread's pushes.
    pub(crate) fn fills(&self) -> &Fills {
        &self.0.fills
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
