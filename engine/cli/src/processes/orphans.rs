//! Reaps orphans if `iof run` is the first process of a pid namespace, as in a container.
//!
//! The kernel makes the first process the parent of every orphan of its namespace, for example of a
//! daemon that a rank started. Orphans that are not reaped keep their process ids.

use std::io::ErrorKind;
use std::process;
use std::thread;
use std::time::Duration;

use iof_capture::{reap, wait_for_child};
use iof_engine::Job;

use crate::error::Failure;
use crate::processes::threads::start_thread;

/// Interval at which the thread checks whether the engine has reaped a rank.
const RANK_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the thread looks for children while there are none.
const NO_CHILD_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a thread that reaps orphans if this is the first process of its pid namespace. The
/// ranks of `job` must be running. The thread ends with the process.
pub fn reap_if_first_process(job: &Job) -> Result<(), Failure> {
    if process::id() != 1 {
        return Ok(());
    }
    let job = job.clone();
    start_thread("iof-orphans", move || reap_all(&job))
}

fn reap_all(job: &Job) {
    loop {
        match wait_for_child() {
            // The engine reaps the rank. Until then the kernel returns this rank first.
            Ok(pid) if job.rank_of_process(pid).is_some() => thread::sleep(RANK_INTERVAL),
            Ok(pid) => {
                // Fails only if the process is not a zombie any more.
                let _ = reap(pid);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // No child is left, but an orphan of a process that entered the container may come.
            Err(_) => thread::sleep(NO_CHILD_INTERVAL),
        }
    }
}
