//! The order in which pipes get their first bytes, for the time before a capture reads them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::backend::{self, Answer};

/// The most events that one call to epoll returns. A later call returns further events, in order.
const EVENTS: usize = 256;

/// A watch on the pipes of processes that are being started. Clones are handles of the same watch.
///
/// A process may write before its pipes are added to a [`Capture`](crate::Capture).
/// [`Command::Add`](crate::Command::Add) reads the first bytes of a process that was started by a
/// [watching](crate::Spawner::watching) spawner in the order in which its pipes became readable.
#[derive(Clone, Debug)]
pub struct FirstWrites(Arc<Mutex<Watch>>);

#[derive(Debug)]
struct Watch {
    poll: Poll,
    events: Events,
    /// The places in the order, by descriptor number.
    positions: HashMap<usize, usize>,
    /// The place of the next pipe that becomes readable.
    next: usize,
}

impl FirstWrites {
    /// Starts a watch without pipes.
    ///
    /// # Errors
    /// The kernel's error if this process has no file descriptor left.
    pub fn new() -> io::Result<FirstWrites> {
        let (poll, events) = (Poll::new()?, Events::with_capacity(EVENTS));
        let watch = Watch { poll, events, positions: HashMap::new(), next: 0 };
        Ok(FirstWrites(Arc::new(Mutex::new(watch))))
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches `pipe` until it is closed or becomes readable. A pipe that cannot be watched counts
    /// as empty.
    pub(crate) fn watch(&self, pipe: BorrowedFd<'_>) {
        let mut watch = self.lock();
        let fd = pipe.as_raw_fd();
        let number = usize::try_from(fd).unwrap_or(usize::MAX);
        // An earlier pipe that was closed since may have had this number.
        watch.positions.remove(&number);
        let registry = watch.poll.registry();
        let watched = registry.register(&mut SourceFd(&fd), Token(number), Interest::READABLE);
        drop(watch);
        if let Err(error) = watched {
            tracing::debug!(%error, "cannot watch a pipe for its first bytes");
        }
    }

    /// Returns the order of the first writes up to now. Does not block.
    pub(crate) fn order(&self) -> WriteOrder<'_> {
        let mut watch = self.lock();
        watch.update();
        WriteOrder(watch)
    }
}

impl Watch {
    /// Takes the events that have arrived.
    fn update(&mut self) {
        while self.take_events() && !self.events.is_empty() {
            for event in &self.events {
                let Token(number) = event.token();
                self.positions.entry(number).or_insert(self.next);
                self.next = self.next.saturating_add(1);
                // Each pipe has one event, so that this ends however fast the processes write.
                if let Ok(fd) = RawFd::try_from(number) {
                    let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                }
            }
        }
    }

    /// Takes the next events, without waiting. Returns `false` if the kernel fails.
    fn take_events(&mut self) -> bool {
        loop {
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.is_ok(),
            }
        }
    }
}

/// The order of first writes at one time.
pub(crate) struct WriteOrder<'a>(MutexGuard<'a, Watch>);

impl WriteOrder<'_> {
    /// Returns the place of `pipe` among the watched pipes in the order in which they became
    /// readable; `usize::MAX` if it was not readable.
    pub(crate) fn position(&self, pipe: RawFd) -> usize {
        let number = usize::try_from(pipe).unwrap_or(usize::MAX);
        self.0.positions.get(&number).copied().unwrap_or(usize::MAX)
    }
}

/// The pipes of a process that were added to a capture in one turn.
#[derive(Debug)]
pub(crate) struct WatchedPipes {
    /// The descriptors by the indices of their sources.
    pub pipes: HashMap<usize, RawFd>,
    pub first_writes: FirstWrites,
}

impl WatchedPipes {
    /// Puts the answers of these pipes, in the turn after they were added, in the order of their
    /// first writes. Several may have become readable while they were added one after the other.
    pub fn sort(self, answers: &mut [Answer]) {
        let WatchedPipes { pipes, first_writes } = self;
        let pipe_of = |answer: &Answer| match answer {
            (backend::Token::Source(index), _) => pipes.get(index),
            _ => None,
        };
        if answers.iter().filter_map(pipe_of).nth(1).is_none() {
            return;
        }
        let order = first_writes.order();
        answers.sort_by_cached_key(|answer| {
            pipe_of(answer).map_or(0, |pipe| order.position(*pipe).saturating_add(1))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use nix::fcntl::OFlag;
    use nix::unistd::{dup3, pipe, write};

    use super::*;

    #[test]
    fn pipes_have_the_order_of_their_first_writes() {
        let first_writes = FirstWrites::new().unwrap();
        let mut pipes = [(); 4].map(|()| pipe().unwrap());
        pipes.iter().for_each(|(read, _)| first_writes.watch(read.as_fd()));
        for writer in [2, 0, 2, 3] {
            write(&pipes[writer].1, b"x").unwrap();
        }
        let positions = |pipes: &[(OwnedFd, OwnedFd); 4]| {
            let order = first_writes.order();
            pipes.each_ref().map(|(read, _)| order.position(read.as_raw_fd()))
        };
        assert_eq!(positions(&pipes), [1, usize::MAX, 0, 2]);
        write(&pipes[1].1, b"x").unwrap();
        write(&pipes[3].1, b"x").unwrap();
        assert_eq!(positions(&pipes), [1, 3, 0, 2]);

        // A new pipe under the number of a closed one is not readable yet.
        let number = pipes[2].0.as_raw_fd();
        let (read, writer) = pipe().unwrap();
        dup3(&read, &mut pipes[2].0, OFlag::O_CLOEXEC).unwrap();
        assert_eq!(pipes[2].0.as_raw_fd(), number);
        first_writes.watch(pipes[2].0.as_fd());
        assert_eq!(positions(&pipes), [1, 3, usize::MAX, 2]);
        write(&writer, b"x").unwrap();
        assert_eq!(positions(&pipes), [1, 3, 4, 2]);
    }
}
