//! Threads that end with the process.

use std::{io, thread};

use iof_remote::NoThread;

use crate::error::Failure;

/// Starts a thread that nothing waits for.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(no_thread)
}

/// Returns the failure for a thread that cannot be started.
pub fn no_thread(error: io::Error) -> Failure {
    Failure::running(NoThread(error))
}
