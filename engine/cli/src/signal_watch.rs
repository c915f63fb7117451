//! The thread that receives the signals of `iof run`, also while its job starts.

use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel::Sender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::Failure;
use crate::follow::{GRACE, JobEvent};
use crate::signals::{ReceivedSignal, Signals, asks_again, end_by};
use crate::singletons::children;
use crate::threads::start_thread;

/// The thread that passes signals on as events of the job. While the job starts, nothing takes
/// these events. A start can wait for ever, for example for a file system that does not answer, so
/// that the thread ends the process [`GRACE`] after a second signal that asks to end.
pub struct SignalWatch(Arc<Shared>);

struct Shared {
    signals: Signals,
    events: Sender<JobEvent>,
    /// The children of this process before the job starts, such as those of a shell that has
    /// executed this command in its place.
    inherited: Vec<String>,
    /// Whether the job starts. A signal is read and sent under this lock.
    is_starting: Mutex<bool>,
    started: Condvar,
}

impl SignalWatch {
    /// Starts the thread, which runs until the end of the process. Returns when it runs: a thread
    /// cannot begin while another one stalls in dlopen(3).
    pub fn start(signals: Signals, events: Sender<JobEvent>) -> Result<SignalWatch, Failure> {
        let (inherited, is_starting) = (children("self"), Mutex::new(true));
        let shared = Shared { signals, events, inherited, is_starting, started: Condvar::new() };
        let shared = Arc::new(shared);
        let watched = Arc::clone(&shared);
        let runs = Arc::new(Barrier::new(2));
        let running = Arc::clone(&runs);
        start_thread("iof-signals", move || {
            running.wait();
            watched.pass_on();
        })?;
        runs.wait();
        Ok(SignalWatch(shared))
    }

    /// Takes note that the job is started.
    pub fn job_is_started(self) {
        let mut is_starting = self.0.lock();
        while let Some(received) = self.0.signals.wait_for(Duration::ZERO) {
            // The send fails only when the job is over.
            let _ = self.0.events.send(before_start(received));
        }
        *is_starting = false;
        drop(is_starting);
        self.0.started.notify_one();
    }
}

impl Shared {
    fn pass_on(&self) {
        let mut requests = Vec::new();
        while self.signals.wait_until_ready() {
            let is_starting = self.lock();
            // Already read by `job_is_started` otherwise.
            let Some(received) = self.signals.wait_for(Duration::ZERO) else { continue };
            let event = if *is_starting { before_start(received) } else { JobEvent::Signal(received) };
            if self.events.send(event).is_err() {
                return;
            }
            if *is_starting && asks_again(received, &requests) {
                let starting = self.started.wait_timeout_while(is_starting, GRACE, |starting| *starting);
                let (is_starting, _) = starting.unwrap_or_else(PoisonError::into_inner);
                if *is_starting {
                    self.leave(received.signal);
                }
            } else if *is_starting {
                requests.push(received);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the ranks that are started, and ends this process by `signal`. It prints nothing: a
    /// thread that stalls in dlopen(3) may hold a lock that other threads need to wait for a
    /// message's end.
    fn leave(&self, signal: Signal) {
        let ranks = children("self").into_iter().filter(|child| !self.inherited.contains(child));
        for pid in ranks.filter_map(|pid| pid.parse().ok()) {
            // It may have ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        end_by(signal);
    }
}

/// Returns the event for a signal that arrived before the job was started. A rank in the process
/// group of this command misses a signal from the terminal if it is started after the signal, so
/// such a signal is sent to all ranks.
fn before_start(received: ReceivedSignal) -> JobEvent {
    JobEvent::Signal(ReceivedSignal { from_terminal: false, ..received })
}
