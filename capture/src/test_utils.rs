//! The capture thread's state machines on a simulated kernel, one turn at a time, for simulators.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use iof_shm_ring::{Inlet, Ringer, bell};

pub use crate::backend::{Answer, Backend, Pause, Token};
use crate::command::{Command, NewSource};
use crate::driver::Driver;
use crate::event::{Event, PushId, SourceId, TargetId};
use crate::fills::Fill;
use crate::inbox::Inbox;
use crate::queue::SourceBytes;
use crate::request::{NewStream, StreamRequest};

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

    fn send(&self, command: Command) {
        // An error means that everything has ended.
        let _ = self.inbox.send(command);
    }

    /// See [`Capture::add`](crate::Capture::add).
    pub fn add(&self, id: SourceId, pipe: OwnedFd, stream: impl Into<NewStream>) {
        self.send(Command::Add(NewSource::new(id, pipe, stream.into())));
    }

    /// See [`Capture::open`](crate::Capture::open).
    pub fn open(&self, id: SourceId, stream: impl Into<NewStream>) {
        let NewStream { stream, first } = stream.into();
        self.send(Command::Open { id, stream: Box::new(stream), first });
    }

    /// See [`Capture::deliver`](crate::Capture::deliver).
    pub fn deliver(&self, id: SourceId, delivery: impl Into<SourceBytes>) {
        self.send(Command::Deliver { id, delivery: delivery.into() });
    }

    /// See [`Capture::close`](crate::Capture::close).
    pub fn close(&self, id: SourceId) {
        self.send(Command::Close(id));
    }

    /// See [`Capture::finish`](crate::Capture::finish).
    pub fn finish(&self, id: SourceId) {
        self.send(Command::Finish { id, missing: None });
    }

    /// See [`Capture::break_off`](crate::Capture::break_off).
    pub fn break_off(&self, id: SourceId, missing: u64) {
        self.send(Command::Finish { id, missing: Some(missing) });
    }

    /// See [`Capture::remove`](crate::Capture::remove).
    pub fn remove(&self, id: SourceId) {
        self.send(Command::Remove(id));
    }

    /// See [`Capture::request`](crate::Capture::request).
    pub fn request(&self, request: StreamRequest) {
        self.send(Command::Request(request));
    }

    /// See [`Capture::add_target`](crate::Capture::add_target).
    pub fn add_target(&self, id: TargetId, pipe: OwnedFd) {
        self.send(Command::AddTarget { id, pipe });
    }

    /// See [`Capture::begin_push`](crate::Capture::begin_push).
    pub fn begin_push(&self, id: PushId, inlet: Arc<Inlet>, targets: Vec<TargetId>, closes: bool) {
        self.send(Command::Push { id, inlet, targets, closes });
    }

    /// See [`Capture::fill`](crate::Capture::fill).
    pub fn fill(&self, id: PushId, bytes: u64, over: bool) {
        // An error means that everything has ended.
        let _ = self.inbox.fill(id, Fill { bytes, over });
    }

    /// See [`Capture::cut_off`](crate::Capture::cut_off).
    pub fn cut_off(&self, id: PushId, position: u64) {
        self.send(Command::CutOff { id, position });
    }

    /// See [`Capture::shut`](crate::Capture::shut).
    pub fn shut(&self, id: TargetId) {
        self.send(Command::Shut(id));
    }

    /// See [`Capture::shut_unread`](crate::Capture::shut_unread).
    pub fn shut_unread(&self, id: TargetId) {
        self.send(Command::ShutUnread(id));
    }

    /// Begins to end everything, as dropping a [`Capture`](crate::Capture) does.
    pub fn stop(&self) {
        self.send(Command::Stop);
    }
}
