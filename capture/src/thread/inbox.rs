//! The sending end of the capture thread's queue, with the fills that are summed up beside it and
//! the starts of many processes.

use std::sync::Arc;

use crossbeam::channel::{Receiver, SendError, Sender, unbounded};
use iof_shm_ring::Ringer;

use crate::messages::command::Command;
use crate::source::isolated::{ReadOutcome, ThreadId};
use crate::thread::fills::{Fill, Fills};
use crate::thread::mass_start::MassStarts;
use crate::thread::remote_call::RemoteCall;
use crate::thread::room_bells::RoomBells;
use crate::thread::wake::PendingWake;

/// An item of the capture thread's queue, from the handle or from the thread of an isolated source.
pub(crate) enum InboxItem {
    Batch(Vec<Command>),
    ReadOutcome { index: usize, thread: ThreadId, outcome: ReadOutcome },
    Listen(Arc<RoomBells>),
    Call(RemoteCall),
    Stop,
}

/// A sender to the capture thread. Clones send to the same queue.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Shared>);

struct Shared {
    items: Sender<InboxItem>,
    fills: Fills,
    mass_starts: MassStarts,
    ringer: Ringer,
    wake: PendingWake,
}

impl Inbox {
    /// Creates the queue of the thread whose bell `ringer` rings.
    pub(crate) fn new(ringer: Ringer) -> (Inbox, Receiver<InboxItem>) {
        let (items, receiver) = unbounded();
        let (fills, mass_starts, wake) = <(Fills, MassStarts, PendingWake)>::default();
        (Inbox(Arc::new(Shared { items, fills, mass_starts, ringer, wake })), receiver)
    }

    /// Sends an item to the capture thread, and wakes it.
    ///
    /// # Errors
    /// Returns the item if the capture thread has ended.
    pub(crate) fn send(&self, item: InboxItem) -> Result<(), InboxItem> {
        let Shared { items, ringer, wake, .. } = &*self.0;
        items.send(item).map_err(|SendError(item)| item)?;
        if wake.mark() {
            ringer.ring();
        }
        Ok(())
    }

    /// Sends a batch of commands as one item. A fill is added to those of its push, and is sent only
    /// if the capture thread has taken those before.
    ///
    /// # Errors
    /// Returns the batch if the capture thread ends or has ended.
    pub(crate) fn send_batch(&self, mut batch: Vec<Command>) -> Result<(), Vec<Command>> {
        let mut stopped = false;
        batch.retain(|command| match command {
            Command::Fill { push, bytes, last } => {
                let is_first = self.0.fills.add(*push, Fill { bytes: *bytes, over: *last });
                is_first.unwrap_or_else(|_| {
                    stopped = true;
                    true
                })
            }
            _ => true,
        });
        if stopped {
            return Err(batch);
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.send(InboxItem::Batch(batch)).map_err(|item| match item {
            InboxItem::Batch(batch) => batch,
            _ => Vec::new(),
        })
    }

    /// Returns the starts of many processes that are under way.
    pub(crate) fn mass_starts(&self) -> &MassStarts {
        &self.0.mass_starts
    }

    /// Returns the fills of the capture thread's pushes.
    pub(crate) fn fills(&self) -> &Fills {
        &self.0.fills
    }

    /// Notes that the capture thread, which has silenced its bell, is about to take the items.
    pub(crate) fn take_wake(&self) {
        self.0.wake.take();
    }

    /// Returns the ringer of the thread's bell.
    pub(crate) fn ringer(&self) -> &Ringer {
        &self.0.ringer
    }

    /// Returns the number of items in the queue.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.items.len()
    }
}
