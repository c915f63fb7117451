//! Waits for jobs that begin later.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};
use iof_proto::Nspace;
use iof_proto::rendezvous::DirectoryWatch;

use crate::error::Failure;
use crate::processes::threads::start_thread;

/// The shortest interval at which directories are read: jobs that begin together are found together.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);

/// The interval at which a directory is looked for that does not exist yet, or cannot be watched.
const DIRECTORY_INTERVAL: Duration = Duration::from_millis(20);

/// The longest interval at which jobs are looked for: a change of an engine need not change a directory.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// A wait for a job that begins later, until this time if there is one.
#[derive(Clone, Copy, Debug)]
pub struct JobWait(Option<Instant>);

impl JobWait {
    /// Begins to wait, without limit if there is none.
    pub fn begin(limit: Option<Duration>) -> JobWait {
        JobWait(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    pub fn is_over(self) -> bool {
        self.rest().is_zero()
    }

    /// Returns the time that is left.
    pub fn rest(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}

/// Returns how long to sleep until jobs are looked for even if nothing has changed.
pub fn until_next_look(wait: Option<JobWait>) -> Duration {
    let rest = wait.map(JobWait::rest).filter(|rest| !rest.is_zero());
    rest.map_or(LONGEST_INTERVAL, |rest| rest.min(LONGEST_INTERVAL))
}

type SharedWatch = Arc<Mutex<Option<Arc<DirectoryWatch>>>>;

/// A watch on the directories of engines, also on those that do not exist yet.
pub struct JobWatch {
    /// Receives a message when engines or jobs may have begun or ended since [`begun`](Self::begun) was called.
    pub changes: Receiver<()>,
    /// `None` while a directory does not exist.
    watch: SharedWatch,
}

impl JobWatch {
    pub fn start(directories: Vec<Option<PathBuf>>) -> Result<JobWatch, Failure> {
        let (sender, changes) = bounded(1);
        let shared = SharedWatch::default();
        let watch = Arc::clone(&shared);
        start_thread("iof-watch", move || {
            let send = || sender.send(()).is_ok();
            while send() {
                if let Ok(watch) = DirectoryWatch::new(directories.iter().map(Option::as_deref)) {
                    let watch = Arc::new(watch);
                    *lock(&shared) = Some(Arc::clone(&watch));
                    // What has changed before the watch began is found, too.
                    while send() && lock(&shared).is_some() && watch.wait().is_ok() {
                        thread::sleep(SHORTEST_INTERVAL);
                    }
                }
                thread::sleep(DIRECTORY_INTERVAL);
            }
        })?;
        Ok(JobWatch { changes, watch })
    }

    /// Returns all jobs that have begun since the call before, with the pids of their engines.
    pub fn begun(&self) -> Vec<(u32, Nspace)> {
        let mut watch = lock(&self.watch);
        match watch.as_ref().map_or(Ok(Vec::new()), |watch| watch.begun()) {
            Ok(jobs) => jobs,
            Err(_) => {
                // The thread begins another one.
                *watch = None;
                Vec::new()
            }
        }
    }
}

fn lock(watch: &SharedWatch) -> MutexGuard<'_, Option<Arc<DirectoryWatch>>> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}
