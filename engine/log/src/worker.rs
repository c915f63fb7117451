//! A bounded queue with its own thread, for channels that may block.

use std::thread;

use crossbeam::channel::{Sender, TrySendError, bounded};
use iof_proto::{Failure, Status};

/// The most messages that wait in the queue of one worker. Beyond this more are rejected.
pub const MAX_QUEUED: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// A bounded queue of jobs that run in order on one thread, which starts with the first job. Jobs
/// that are queued when the worker is dropped still run, as long as the process lives.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    queue: Option<Sender<Job>>,
}

impl Worker {
    /// Creates a worker whose thread gets this name. Does not start the thread.
    pub fn new(name: &'static str) -> Worker {
        Worker { name, queue: None }
    }

    /// Queues `job`. Does not block.
    ///
    /// # Errors
    /// The job is dropped.
    /// - `ERR_RESOURCE_BUSY`: [`MAX_QUEUED`] jobs are waiting.
    /// - `ERR_OUT_OF_RESOURCE`: the thread can't be started.
    /// - `ERR_NOT_AVAILABLE`: the thread has panicked. The next job starts another one.
    pub fn submit(&mut self, job: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        let queue = match &self.queue {
            Some(queue) => queue,
            None => self.queue.insert(self.start()?),
        };
        match queue.try_send(Box::new(job)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                let reason = format!("{MAX_QUEUED} messages are already queued for logging: try again later");
                Err(Failure::new(Status::ERR_RESOURCE_BUSY, reason))
            }
            Err(TrySendError::Disconnected(_)) => {
                self.queue = None;
                let reason = "the logging thread has died: try again";
                Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason))
            }
        }
    }

    fn start(&self) -> Result<Sender<Job>, Failure> {
        let (queue, jobs) = bounded::<Job>(MAX_QUEUED);
        let body = move || jobs.iter().for_each(|job| job());
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(body);
        started.map(|_| queue).map_err(|error| {
            let reason =
                format!("the logging thread could not be started: {error}: raise RLIMIT_NPROC (`ulimit -u`)");
            Failure::new(Status::ERR_OUT_OF_RESOURCE, reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_full_queue_rejects_jobs_and_queued_jobs_run_in_order_after_a_drop() {
        let mut worker = Worker::new("test");
        let (done, results) = channel();
        let (release, released) = channel::<()>();
        let (running, runs) = channel();
        let first = move || {
            running.send(()).unwrap();
            released.recv().unwrap();
        };
        worker.submit(first).unwrap();
        runs.recv().unwrap();
        for n in 0..MAX_QUEUED {
            let done = done.clone();
            worker.submit(move || done.send(n).unwrap()).unwrap();
        }
        assert_eq!(worker.submit(|| {}).unwrap_err().status, Status::ERR_RESOURCE_BUSY);
        drop((worker, done));
        release.send(()).unwrap();
        assert_eq!(results.iter().collect::<Vec<_>>(), (0..MAX_QUEUED).collect::<Vec<_>>());
    }
}
