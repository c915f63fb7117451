//! A source whose pipe is read by a thread of its own, because reading it may block for long: see `watchdog`.
//!
//! The thread reads into memory of its own, and hands what it has read to the capture thread, which puts it into the
//! source's stream as it does with deliveries. So a thread that is stuck holds nothing that anybody else needs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_shm_ring::{Bell, Ringer, bell};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::driver::now;
use crate::event::End;
use crate::ioctl;
use crate::source::READ_MAX;

/// What the thread has found.
#[derive(Debug)]
pub(crate) enum Found {
    /// These bytes, read at `time` (nanoseconds since 1970). It reads no more until [`Isolated::go_on`].
    Bytes { bytes: Vec<u8>, time: u64 },
    /// The end; the thread has ended, too.
    End(End),
}

/// What the thread is to do.
enum Order {
    /// Read once more.
    GoOn,
    /// Read what the pipe has now, and then end.
    Finish,
    /// End.
    Stop,
}

/// The capture thread's side. Dropping it ends the thread, at once or when the kernel lets it go.
pub(crate) struct Isolated {
    orders: Sender<Order>,
    ringer: Ringer,
    id: Arc<()>,
}

/// Which thread something comes from.
#[derive(Clone, Debug)]
pub(crate) struct ThreadId(Arc<()>);

impl Isolated {
    /// Starts a thread that reads `pipe` and calls `report` with what it finds.
    pub(crate) fn start(
        pipe: Arc<OwnedFd>,
        report: impl Fn(ThreadId, Found) + Send + 'static,
    ) -> io::Result<Isolated> {
        let (orders, receive) = unbounded();
        let (ringer, bell) = bell()?;
        let id = Arc::<()>::default();
        let from = ThreadId(Arc::clone(&id));
        let worker = Worker { pipe, orders: receive, bell, finish: None };
        thread::Builder::new()
            .name("iof-isolated".into())
            .spawn(move || worker.run(|found| report(from.clone(), found)))?;
        Ok(Isolated { orders, ringer, id })
    }

    pub(crate) fn is(&self, thread: &ThreadId) -> bool {
        Arc::ptr_eq(&self.id, &thread.0)
    }

    /// What it found last was used up.
    pub(crate) fn go_on(&self) {
        self.order(Order::GoOn);
    }

    /// Has it read what there is, and end.
    pub(crate) fn finish(&self) {
        self.order(Order::Finish);
    }

    fn order(&self, order: Order) {
        // One that has ended has said so.
        let _ = self.orders.send(order);
        self.ringer.ring();
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        self.order(Order::Stop);
    }
}

/// The thread's side.
struct Worker {
    pipe: Arc<OwnedFd>,
    orders: Receiver<Order>,
    bell: Bell,
    /// Bytes that are still wanted of it, if it is to end then.
    finish: Option<u64>,
}

impl Worker {
    fn run(mut self, report: impl Fn(Found)) {
        let mut may_read = true;
        loop {
            match self.read_if(may_read) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(error) => return report(Found::End(End::Error(error.into()))),
                Ok(Some(bytes)) if bytes.is_empty() => return report(Found::End(End::EndOfFile)),
                Ok(Some(bytes)) => {
                    self.finish = self.finish.map(|wanted| wanted.saturating_sub(bytes.len() as u64));
                    may_read = false;
                    report(Found::Bytes { bytes, time: now() });
                }
                Ok(None) if may_read && self.finish == Some(0) => return report(Found::End(End::Closed)),
                Ok(None) => {}
            }
            for order in self.orders.try_iter() {
                match order {
                    Order::GoOn => may_read = true,
                    Order::Finish => self.finish = Some(ioctl::unread(self.pipe.as_fd()).unwrap_or(0)),
                    Order::Stop => return,
                }
            }
        }
    }

    /// Waits for orders, or for something to be read if that `may` be, and reads it.
    fn read_if(&self, may: bool) -> nix::Result<Option<Vec<u8>>> {
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut both = [watch(self.bell.as_fd()), watch(self.pipe.as_fd())];
        let ends = may && self.finish == Some(0);
        let files = both.get_mut(..1 + usize::from(may)).unwrap_or_default();
        poll(files, if ends { PollTimeout::ZERO } else { PollTimeout::NONE })?;
        let [bell, pipe] = both.map(|file| file.any().unwrap_or(false));
        if bell {
            self.bell.silence();
            return Ok(None);
        }
        // With nothing wanted any more, only to see whether this is the end of the file.
        if !pipe || (ends && ioctl::unread(self.pipe.as_fd()).is_ok_and(|bytes| bytes > 0)) {
            return Ok(None);
        }
        let mut bytes = vec![0; READ_MAX];
        let count = read(&self.pipe, &mut bytes)?;
        bytes.truncate(count);
        Ok(Some(bytes))
    }
}
