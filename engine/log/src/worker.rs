//! A bounded queue with a thread of its own, for channels that may take their time.

use std::thread;

use crossbeam::channel::{Sender, TrySendError, bounded};
use iof_proto::{Failure, Status};

/// Messages that wait for one worker: beyond these it refuses more.
pub const MAX_QUEUED: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// Does one thing after the other, on a thread that is started for the first. When it is dropped, what waits is still
/// done, as long as the process lives.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    queue: Option<Sender<Job>>,
}

impl Worker {
    /// Without a thread yet, which is going to have this name.
    pub fn new(name: &'static str) -> Worker {
        Worker { name, queue: None }
    }

    /// Has `job` done. Does not wait.
    ///
    /// # Errors
    /// Too much waits already, or the process may have no further thread. The job is dropped.
    pub fn submit(&mut self, job: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        let queue = match &self.queue {
            Some(queue) => queue,
            None => self.queue.insert(self.start()?),
        };
        match queue.try_send(Box::new(job)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                let reason = format!("{MAX_QUEUED} messages wait to be logged: try again later");
                Err(Failure { status: Status::ERR_RESOURCE_BUSY, reason })
            }
            Err(TrySendError::Disconnected(_)) => {
                self.queue = None;
                let reason = "the thread that logs has died".into();
                Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason })
            }
        }
    }

    fn start(&self) -> Result<Sender<Job>, Failure> {
        let (queue, jobs) = bounded::<Job>(MAX_QUEUED);
        let body = move || jobs.iter().for_each(|job| job());
        let started = thread::Builder::new().name(self.name.to_owned()).spawn(body);
        started.map(|_| queue).map_err(|error| {
            let reason = format!("no thread to log with: {error}; raise RLIMIT_NPROC (`ulimit -u`)");
            Failure { status: Status::ERR_OUT_OF_RESOURCE, reason }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_waits_is_done_in_order_even_when_nobody_asks_any_more() {
        let mut worker = Worker::new("test");
        let (done, results) = channel();
        let (go, gate) = channel::<()>();
        let (begun, begins) = channel();
        let first = move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
        };
        worker.submit(first).unwrap();
        begins.recv().unwrap();
        for n in 0..MAX_QUEUED {
            let done = done.clone();
            worker.submit(move || done.send(n).unwrap()).unwrap();
        }
        assert_eq!(worker.submit(|| {}).unwrap_err().status, Status::ERR_RESOURCE_BUSY);
        drop((worker, done));
        go.send(()).unwrap();
        assert_eq!(results.iter().collect::<Vec<_>>(), (0..MAX_QUEUED).collect::<Vec<_>>());
    }
}
