//! The capture thread's state machines on a simulated kernel, one turn at a time, for simulators.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use iof_shm_ring::{Ringer, bell};

pub use crate::backend::{Answer, Backend, Pause, Token};
use crate::messages::command::Command;
use crate::messages::event::Event;
use crate::thread::driver::Driver;
use crate::thread::inbox::{Inbox, InboxItem};

/// A [`Capture`](crate::Capture) without a thread: the caller runs the turns, on a kernel of its
/// own. The ids of sources, targets and pushes must be unique.
pub struct SimulatedCapture<B: Backend> {
    /// `None` once everything has ended.
    driver: Option<Driver<B>>,
    inbox: Inbox,
    event_sender: Sender<Event>,
    events: Receiver<Event>,
}

impl<B: Backend> std::fmt::Debug for SimulatedCapture<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedCapture").finish_non_exhaustive()
    }
}

impl<B: Backend> SimulatedCapture<B> {
    /// Creates a capture on `kernel`.
    ///
    /// # Errors
    /// An error of the kernel if the process has no file descriptor left.
    pub fn new(kernel: B) -> std::io::Result<SimulatedCapture<B>> {
        let (ringer, driver_bell) = bell()?;
        let (inbox, received) = Inbox::new(ringer);
        let (event_sender, events) = channel();
        let sender = event_sender.clone();
        let on_event = Arc::new(move |event| drop(sender.send(event)));
        let mut driver = Driver::new(kernel, driver_bell, received, inbox.clone(), Arc::default(), on_event);
        driver.begin();
        Ok(SimulatedCapture { driver: Some(driver), inbox, event_sender, events })
    }

    /// Returns the kernel; `None` if everything has ended.
    ///
    /// # Safety
    /// The caller must not move the kernel, for example by [`std::mem::replace`]: the driver keeps
    /// the memory of requests in flight only as long as its own kernel has them.
    pub unsafe fn kernel(&mut self) -> Option<&mut B> {
        self.driver.as_mut().map(Driver::backend_mut)
    }

    /// Runs one turn. Returns `false` if everything has ended. The last event is
    /// [`Event::Ended`].
    pub fn turn(&mut self) -> bool {
        if self.driver.as_mut().is_some_and(Driver::turn) {
            return true;
        }
        if let Some(driver) = self.driver.take() {
            // The receiver exists as long as the sender.
            let _ = self.event_sender.send(Event::Ended { streams: driver.into_streams() });
        }
        false
    }

    /// Returns whether everything has ended: commands have no effect any more.
    pub fn has_ended(&self) -> bool {
        self.driver.is_none()
    }

    /// Returns the events that were reported since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }

    /// Returns a ringer as [`Capture::room_bell`](crate::Capture::room_bell) does.
    ///
    /// # Errors
    /// An error of the kernel if the process has no file descriptor left.
    pub fn room_bell(&self) -> std::io::Result<Ringer> {
        self.inbox.ringer().try_clone()
    }

    /// Sends a batch as [`Capture::send`](crate::Capture::send) does.
    ///
    /// # Errors
    /// Returns the batch if everything has ended.
    pub fn send(&self, batch: impl IntoIterator<Item = Command>) -> Result<(), Vec<Command>> {
        self.inbox.send_batch(batch.into_iter().collect())
    }

    /// Begins to end everything, as dropping a [`Capture`](crate::Capture) does.
    pub fn stop(&self) {
        // An error means that everything has ended.
        let _ = self.inbox.send(InboxItem::Stop);
    }
}
