//! The capture thread: its signals, and the choice of its backend.

use std::panic::resume_unwind;
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use iof_shm_ring::Bell;
use nix::sys::signal::{SigSet, Signal};

use crate::backend::{Backend, BackendKind, Epoll, Uring};
use crate::driver::{Command, Driver};
use crate::event::Event;
use crate::inbox::Inbox;
use crate::sources::OnEvent;
use crate::start::StartError;
use crate::watchdog::WatchState;

/// The state that the capture thread starts with.
pub(crate) struct CaptureThread {
    pub bell: Bell,
    pub commands: Receiver<Command>,
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
        leave_signals_to_others();
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
        let driver = Driver::new(backend, self.bell, self.commands, self.inbox, self.watched, self.on_event);
        let (streams, ran) = driver.run();
        // The driver has dropped the receiver of the commands, so none is accepted any more.
        on_event(Event::Ended { streams });
        if let Err(panic) = ran {
            resume_unwind(panic);
        }
    }
}

/// Blocks signals on the calling thread, so that the embedder's threads handle them, see signal(7).
/// Signals that a fault of this thread raises stay unblocked, so that the process's handlers run.
///
/// SIGPIPE is blocked as well. The kernel sends it to the thread that wrote to a pipe without
/// readers, not to the process (see write(2)). On this thread it stays pending until the thread
/// ends. The same holds with io_uring: the writer is this thread, or a kernel worker, which blocks
/// all signals except SIGKILL and SIGSTOP.
pub(crate) fn leave_signals_to_others() {
    let mut signals = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP] {
        signals.remove(fault);
    }
    // Fails only for invalid arguments.
    let _ = signals.thread_block();
}
