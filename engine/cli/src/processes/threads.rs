//! Threads that end with the process, and what they wait for.

use std::time::Instant;
use std::{io, thread};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use iof_remote::NoThread;

use crate::error::Failure;

/// Starts a thread that nothing waits for.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(no_thread)
}

/// Receives from `queue`, until `deadline` if there is one.
pub fn recv_until<T>(queue: &Receiver<T>, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
    match deadline {
        Some(deadline) => queue.recv_deadline(deadline),
        None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Returns the failure for a thread that cannot be started.
pub fn no_thread(error: io::Error) -> Failure {
    Failure::running(NoThread(error))
}
