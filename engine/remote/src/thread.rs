//! Threads that end with the process.

use std::{io, thread};

/// The process can't start a thread.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start a thread: {0}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS (`ulimit -v`)"
)]
pub struct NoThread(pub io::Error);

/// Starts a thread that nothing waits for.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), NoThread> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(NoThread)
}
