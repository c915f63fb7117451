//! A thread of its own for a source's pipe, because reading the pipe may block for long, see
//! `watchdog`.
//!
//! The thread reads into memory of its own and passes the bytes to the capture thread, which puts
//! them into the source's stream as it does with deliveries. So a stuck thread holds nothing that
//! another thread needs.

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

use crate::backend::READ_MAX;
use crate::clock::now;
use crate::ids::End;
use crate::ioctl;

/// The time for which the thread sleeps when the kernel has no memory for poll(2).
const PAUSE: Duration = Duration::from_millis(20);

/// The result of a read by the thread.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// Bytes, read at `time` (nanoseconds since 1970). The thread reads no more until
    /// [`IsolatedReader::go_on`].
    Bytes { bytes: Vec<u8>, time: u64 },
    /// The end of the source. The thread has ended, too.
    End(End),
}

/// A command to the thread.
enum ReaderCommand {
    /// Read once more.
    GoOn,
    /// Read the bytes that the pipe has now, then end.
    Finish,
    /// End immediately.
    Stop,
}

/// The capture thread's handle to the thread. Dropping it ends the thread, immediately or as soon
/// as the kernel releases it.
pub(crate) struct IsolatedReader {
    commands: Sender<ReaderCommand>,
    ringer: Ringer,
    untaken: Arc<Untaken>,
}

/// The number of bytes that a thread has read and the capture thread has not taken.
///
/// Accesses are relaxed: the channel that carries the bytes orders the addition before the
/// subtraction. A read that the capture thread does not see when the source ends counts as a read
/// after that end.
type Untaken = AtomicU64;

/// The identity of a thread, which accompanies everything that it reports.
#[derive(Clone, Debug)]
pub(crate) struct ThreadId(Arc<Untaken>);

impl IsolatedReader {
    /// Starts a thread that reads `pipe` and calls `report` with each result.
    pub(crate) fn start(
        pipe: Arc<OwnedFd>,
        report: impl Fn(ThreadId, ReadOutcome) + Send + 'static,
    ) -> io::Result<IsolatedReader> {
        let (commands, received_commands) = unbounded();
        let (ringer, bell) = bell()?;
        let untaken = Arc::<Untaken>::default();
        let id = ThreadId(Arc::clone(&untaken));
        let thread = ReaderThread { pipe, commands: received_commands, bell, wanted: None };
        thread::Builder::new().name("iof-isolated".into()).spawn(move || {
            thread.run(|outcome| {
                if let ReadOutcome::Bytes { bytes, .. } = &outcome {
                    id.0.fetch_add(bytes.len() as u64, Relaxed);
                }
                report(id.clone(), outcome);
            });
        })?;
        Ok(IsolatedReader { commands, ringer, untaken })
    }

    /// Returns whether this is the handle of `thread`.
    pub(crate) fn is(&self, thread: &ThreadId) -> bool {
        Arc::ptr_eq(&self.untaken, &thread.0)
    }

    /// Records that this many of the thread's bytes were taken.
    pub(crate) fn take(&self, bytes: usize) {
        self.untaken.fetch_sub(bytes as u64, Relaxed);
    }

    /// Returns the number of bytes that the thread has read and that were not taken.
    pub(crate) fn untaken(&self) -> u64 {
        self.untaken.load(Relaxed)
    }

    /// Lets the thread read once more, because its last bytes are in the stream.
    pub(crate) fn go_on(&self) {
        self.send(ReaderCommand::GoOn);
    }

    /// Lets the thread read the bytes that the pipe has now, and then end.
    pub(crate) fn finish(&self) {
        self.send(ReaderCommand::Finish);
    }

    fn send(&self, command: ReaderCommand) {
        // Fails if the thread has ended, which it has reported.
        let _ = self.commands.send(command);
        self.ringer.ring();
    }
}

impl Drop for IsolatedReader {
    fn drop(&mut self) {
        self.send(ReaderCommand::Stop);
    }
}

/// The result of one wait by the thread.
enum Polled {
    /// The bell rang for commands. The pipe was not read.
    Bell,
    /// The pipe has no wanted bytes.
    Nothing,
    /// The bytes that were read; none at the end of file.
    Bytes(Vec<u8>),
}

/// The state of the thread.
struct ReaderThread {
    pipe: Arc<OwnedFd>,
    commands: Receiver<ReaderCommand>,
    bell: Bell,
    /// After [`ReaderCommand::Finish`]: the number of bytes to read until the end.
    wanted: Option<u64>,
}

impl ReaderThread {
    fn run(mut self, report: impl Fn(ReadOutcome)) {
        let mut may_read = true;
        loop {
            match self.wait(may_read) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(Errno::ENOMEM) => thread::sleep(PAUSE),
                Err(error) => return report(ReadOutcome::End(End::Error(error.into()))),
                Ok(Polled::Bytes(bytes)) if bytes.is_empty() => {
                    return report(ReadOutcome::End(End::EndOfFile));
                }
                Ok(Polled::Bytes(bytes)) => {
                    self.wanted = self.wanted.map(|wanted| wanted.saturating_sub(bytes.len() as u64));
                    may_read = false;
                    report(ReadOutcome::Bytes { bytes, time: now() });
                }
                Ok(Polled::Nothing) if may_read && self.wanted == Some(0) => {
                    return report(ReadOutcome::End(End::Closed));
                }
                Ok(Polled::Nothing | Polled::Bell) => {}
            }
            for command in self.commands.try_iter() {
                match command {
                    ReaderCommand::GoOn => may_read = true,
                    ReaderCommand::Finish => {
                        self.wanted = Some(ioctl::unread(self.pipe.as_fd()).unwrap_or(0))
                    }
                    ReaderCommand::Stop => return,
                }
            }
        }
    }

    /// Blocks until a command arrives or, if `may_read`, the pipe is readable. Reads the pipe in
    /// the latter case.
    fn wait(&self, may_read: bool) -> nix::Result<Polled> {
        let poll_fd = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut both = [poll_fd(self.bell.as_fd()), poll_fd(self.pipe.as_fd())];
        let ends = may_read && self.wanted == Some(0);
        let files = both.get_mut(..1 + usize::from(may_read)).unwrap_or_default();
        poll(files, if ends { PollTimeout::ZERO } else { PollTimeout::NONE })?;
        let [bell, pipe] = both.map(|file| file.any().unwrap_or(false));
        if bell {
            self.bell.silence();
            return Ok(Polled::Bell);
        }
        // If no bytes are wanted any more, read only to detect the end of file.
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
    fn the_end_of_file_is_detected_although_a_command_arrives_first() {
        let (read, write) = nix::unistd::pipe().unwrap();
        drop(write);
        let (sender, commands) = unbounded();
        let (ringer, bell) = bell().unwrap();
        let thread = ReaderThread { pipe: Arc::new(read), commands, bell, wanted: Some(0) };
        sender.send(ReaderCommand::GoOn).unwrap();
        ringer.ring();
        let (report, outcomes) = unbounded();
        thread.run(move |outcome| report.send(outcome).unwrap());
        let outcome = outcomes.recv().unwrap();
        assert!(matches!(outcome, ReadOutcome::End(End::EndOfFile)), "{outcome:?}");
    }
}
