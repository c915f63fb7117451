//! A source whose pipe is read by a thread of its own, because reading it may block for long: see
//! `watchdog`.
//!
//! The thread reads into memory of its own, and hands what it has read to the capture thread, which
//! puts it into the source's stream as it does with deliveries. So a thread that is stuck holds
//! nothing that anybody else needs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_shm_ring::{Bell, Ringer, bell};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::driver::now;
use crate::event::End;
use crate::ioctl;
use crate::source::READ_MAX;

/// How long the thread waits when the kernel has no memory for poll(2).
const PAUSE: Duration = Duration::from_millis(20);

/// What the thread has found.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// These bytes, read at `time` (nanoseconds since 1970). It reads no more until
    /// [`IsolatedReader::go_on`].
    Bytes { bytes: Vec<u8>, time: u64 },
    /// The end; the thread has ended, too.
    End(End),
}

/// What the thread is to do.
enum ReaderCommand {
    /// Read once more.
    GoOn,
    /// Read what the pipe has now, and then end.
    Finish,
    /// End.
    Stop,
}

/// The capture thread's side. Dropping it ends the thread, at once or when the kernel lets it go.
pub(crate) struct IsolatedReader {
    orders: Sender<ReaderCommand>,
    ringer: Ringer,
    untaken: Arc<Untaken>,
}

/// Bytes that a thread has read and the capture thread has not taken. Relaxed: the channel that
/// brings the bytes orders the addition before the subtraction. A read that is not seen when the
/// source ends counts as one that came later.
type Untaken = AtomicU64;

/// Which thread something comes from.
#[derive(Clone, Debug)]
pub(crate) struct ThreadId(Arc<Untaken>);

impl IsolatedReader {
    /// Starts a thread that reads `pipe` and calls `report` with what it finds.
    pub(crate) fn start(
        pipe: Arc<OwnedFd>,
        report: impl Fn(ThreadId, ReadOutcome) + Send + 'static,
    ) -> io::Result<IsolatedReader> {
        let (orders, receive) = unbounded();
        let (ringer, bell) = bell()?;
        let untaken = Arc::<Untaken>::default();
        let from = ThreadId(Arc::clone(&untaken));
        let worker = ReaderThread { pipe, orders: receive, bell, finish: None };
        thread::Builder::new().name("iof-isolated".into()).spawn(move || {
            worker.run(|found| {
                if let ReadOutcome::Bytes { bytes, .. } = &found {
                    from.0.fetch_add(bytes.len() as u64, Relaxed);
                }
                report(from.clone(), found);
            });
        })?;
        Ok(IsolatedReader { orders, ringer, untaken })
    }

    pub(crate) fn is(&self, thread: &ThreadId) -> bool {
        Arc::ptr_eq(&self.untaken, &thread.0)
    }

    /// Notes that this many of the bytes that it has found were taken.
    pub(crate) fn take(&self, bytes: usize) {
        self.untaken.fetch_sub(bytes as u64, Relaxed);
    }

    /// Returns the bytes that it has read and that were not taken.
    pub(crate) fn untaken(&self) -> u64 {
        self.untaken.load(Relaxed)
    }

    /// What it found last was used up.
    pub(crate) fn go_on(&self) {
        self.order(ReaderCommand::GoOn);
    }

    /// Has it read what there is, and end.
    pub(crate) fn finish(&self) {
        self.order(ReaderCommand::Finish);
    }

    fn order(&self, order: ReaderCommand) {
        // One that has ended has said so.
        let _ = self.orders.send(order);
        self.ringer.ring();
    }
}

impl Drop for IsolatedReader {
    fn drop(&mut self) {
        self.order(ReaderCommand::Stop);
    }
}

/// What the thread sees when it looks once.
enum Polled {
    /// The bell rang for orders. The pipe was not looked at.
    Bell,
    /// The pipe has nothing that is wanted.
    Nothing,
    /// These bytes were read; none at the end of the file.
    Bytes(Vec<u8>),
}

/// The thread's side.
struct ReaderThread {
    pipe: Arc<OwnedFd>,
    orders: Receiver<ReaderCommand>,
    bell: Bell,
    /// Bytes that are still wanted of it, if it is to end then.
    finish: Option<u64>,
}

impl ReaderThread {
    fn run(mut self, report: impl Fn(ReadOutcome)) {
        let mut may_read = true;
        loop {
            match self.look(may_read) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::ENOMEM) => thread::sleep(PAUSE),
                Err(error) => return report(ReadOutcome::End(End::Error(error.into()))),
                Ok(Polled::Bytes(bytes)) if bytes.is_empty() => {
                    return report(ReadOutcome::End(End::EndOfFile));
                }
                Ok(Polled::Bytes(bytes)) => {
                    self.finish = self.finish.map(|wanted| wanted.saturating_sub(bytes.len() as u64));
                    may_read = false;
                    report(ReadOutcome::Bytes { bytes, time: now() });
                }
                Ok(Polled::Nothing) if may_read && self.finish == Some(0) => {
                    return report(ReadOutcome::End(End::Closed));
                }
                Ok(Polled::Nothing | Polled::Bell) => {}
            }
            for order in self.orders.try_iter() {
                match order {
                    ReaderCommand::GoOn => may_read = true,
                    ReaderCommand::Finish => {
                        self.finish = Some(ioctl::unread(self.pipe.as_fd()).unwrap_or(0))
                    }
                    ReaderCommand::Stop => return,
                }
            }
        }
    }

    /// Waits for orders, or for something to be read if that `may` be, and reads it.
    fn look(&self, may: bool) -> nix::Result<Polled> {
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut both = [watch(self.bell.as_fd()), watch(self.pipe.as_fd())];
        let ends = may && self.finish == Some(0);
        let files = both.get_mut(..1 + usize::from(may)).unwrap_or_default();
        poll(files, if ends { PollTimeout::ZERO } else { PollTimeout::NONE })?;
        let [bell, pipe] = both.map(|file| file.any().unwrap_or(false));
        if bell {
            self.bell.silence();
            return Ok(Polled::Bell);
        }
        // With nothing wanted any more, only to see whether this is the end of the file.
        if !pipe || (ends && ioctl::unread(self.pipe.as_fd()).is_ok_and(|bytes| bytes > 0)) {
            return Ok(Polled::Nothing);
        }
        let mut bytes = vec![0; READ_MAX];
        let count = read(&self.pipe, &mut bytes)?;
        bytes.truncate(count);
        Ok(Polled::Bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_file_is_found_though_an_order_comes_first() {
        let (read, write) = nix::unistd::pipe().unwrap();
        drop(write);
        let (send, orders) = unbounded();
        let (ringer, listen) = bell().unwrap();
        let worker = ReaderThread { pipe: Arc::new(read), orders, bell: listen, finish: Some(0) };
        send.send(ReaderCommand::GoOn).unwrap();
        ringer.ring();
        let (tell, found) = unbounded();
        worker.run(move |found| tell.send(found).unwrap());
        let found = found.recv().unwrap();
        assert!(matches!(found, ReadOutcome::End(End::EndOfFile)), "{found:?}");
    }
}
