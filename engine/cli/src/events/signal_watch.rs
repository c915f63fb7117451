//! The thread that receives the signals of `iof run`, also while its job starts.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel::Sender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::Failure;
use crate::events::job_event::{GRACE, JobEvent};
use crate::events::singletons::children;
use crate::processes::signals::{ReceivedSignal, Signals, asks_again, exit_by};
use crate::processes::threads::start_thread;

/// The thread that passes signals on as events of the job. While the job starts, the steps of the
/// start that wait for something take the signals instead. A start can stall, for example in a file
/// system that does not answer, so that the thread ends the process [`GRACE`] after a second signal
/// that asks to end if none was taken.
pub struct SignalWatch(Arc<Shared>);

struct Shared {
    signals: Signals,
    events: Sender<JobEvent>,
    /// The children of this process before the job starts, such as those of a shell that has
    /// executed this command in its place.
    inherited: Vec<String>,
    /// The signals that the start of the job has not taken; `None` once the job is started. A
    /// signal is read and passed on under this lock.
    starting: Mutex<Option<VecDeque<ReceivedSignal>>>,
    changed: Condvar,
}

impl SignalWatch {
    /// Starts the thread, which runs until the end of the process. Returns when it runs: a thread
    /// cannot begin while another one stalls in dlopen(3).
    pub fn start(signals: Signals, events: Sender<JobEvent>) -> Result<SignalWatch, Failure> {
        let (inherited, starting) = (children("self"), Mutex::new(Some(VecDeque::new())));
        let shared = Shared { signals, events, inherited, starting, changed: Condvar::new() };
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

    /// Takes the next signal that arrives while the job starts. Blocks until then, at most for
    /// `limit`. Returns `None` after this time.
    pub fn wait_for(&self, limit: Duration) -> Option<ReceivedSignal> {
        let none = |starting: &mut Option<VecDeque<_>>| starting.as_ref().is_some_and(VecDeque::is_empty);
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), limit, none);
        let (mut starting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let taken = starting.as_mut().and_then(VecDeque::pop_front);
        drop(starting);
        self.0.changed.notify_all();
        taken
    }

    /// Takes note that the job is started.
    pub fn job_is_started(&self) {
        let mut starting = self.0.lock();
        let mut arrived = starting.take().unwrap_or_default();
        arrived.extend(iter::from_fn(|| self.0.signals.wait_for(Duration::ZERO)));
        for received in arrived {
            // The send fails only when the job is over.
            let _ = self.0.events.send(before_start(received));
        }
        drop(starting);
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn pass_on(&self) {
        while self.signals.wait_until_ready() {
            let mut starting = self.lock();
            // Already read by `job_is_started` otherwise.
            let Some(received) = self.signals.wait_for(Duration::ZERO) else { continue };
            let Some(arrived) = &mut *starting else {
                if self.events.send(JobEvent::Signal(received)).is_err() {
                    return;
                }
                continue;
            };
            let asks_again = asks_again(received, arrived.make_contiguous());
            arrived.push_back(received);
            self.changed.notify_all();
            if asks_again {
                let count = arrived.len();
                let untaken = |starting: &mut Option<VecDeque<_>>| {
                    starting.as_ref().is_some_and(|arrived| arrived.len() >= count)
                };
                let waited = self.changed.wait_timeout_while(starting, GRACE, untaken);
                let (_starting, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    self.leave(received.signal);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<ReceivedSignal>>> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
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
        exit_by(signal);
    }
}

/// Returns the event for a signal that arrived before the job was started. A rank in the process
/// group of this command misses a signal from the terminal if it is started after the signal, so
/// such a signal is sent to all ranks.
pub fn before_start(received: ReceivedSignal) -> JobEvent {
    JobEvent::Signal(ReceivedSignal { from_terminal: false, ..received })
}
