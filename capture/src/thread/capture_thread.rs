//! The capture thread: the choice of its backend.

use std::panic::resume_unwind;
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use iof_shm_ring::Bell;

use crate::backend::{Backend, BackendKind, Epoll, Uring};
use crate::messages::event::Event;
use crate::start::StartError;
use crate::thread::driver::Driver;
use crate::thread::inbox::{Inbox, InboxItem};
use crate::thread::sources::OnEvent;
use crate::thread::watchdog::WatchState;

/// The state that the capture thread starts with.
pub(crate) struct CaptureThread {
    pub bell: Bell,
    pub inbox_items: Receiver<InboxItem>,
    pub inbox: Inbox,
    pub watched: Arc<WatchState>,
    pub on_event: OnEvent,
    pub started: Sender<Result<Started, StartError>>,
}

/// The thread's report once it has a backend.
pub(crate) struct Started {
    pub backend: BackendKind,
    pub fallback: Option<StartError>,
}

impl CaptureThread {
    /// Runs the capture on `wanted`, or on io_uring if the kernel offers it, otherwise on epoll.
    pub(crate) fn run(self, wanted: Option<BackendKind>) {
        crate::process::signal::leave_signals_to_others();
        let mut fallback = None;
        if wanted != Some(BackendKind::Epoll) {
            // Created on this thread, because an io_uring belongs to the thread that creates it.
            match Uring::new() {
                Ok(uring) => return self.drive(uring, None),
                Err(refused) if wanted.is_none() => fallback = Some(refused),
                Err(refused) => return drop(self.started.send(Err(refused))),
            }
        }
        match Epoll::new() {
            Ok(epoll) => self.drive(epoll, fallback),
            Err(error) => drop(self.started.send(Err(error))),
        }
    }

    fn drive<B: Backend>(self, backend: B, fallback: Option<StartError>) {
        let _ = self.started.send(Ok(Started { backend: B::KIND, fallback }));
        let on_event = Arc::clone(&self.on_event);
        let driver =
            Driver::new(backend, self.bell, self.inbox_items, self.inbox, self.watched, self.on_event);
        let (streams, ran) = driver.run();
        // The driver has dropped the receiver of the inbox, so no command is accepted any more.
        on_event(Event::Ended { streams });
        if let Err(panic) = ran {
            resume_unwind(panic);
        }
    }
}
