//! The order in which pipes get their first bytes, for the time before a capture reads them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::backend::{self, Answer};

/// The most events that one call to epoll returns. A later call returns further events, in order.
const EVENTS: usize = 256;

/// A watch on the pipes of processes that are being started.
///
/// Several processes are started one after the other before the first of their pipes is added to a
/// [`Capture`](crate::Capture). Meanwhile they may have written.
/// [`Capture::add_watched`](crate::Capture::add_watched) adds pipes of processes that were started
/// with [`spawn_watched`](crate::spawn_watched) in the order in which they became readable.
#[derive(Debug)]
pub struct FirstWrites {
    poll: Poll,
    events: Events,
    /// The places in the order, by descriptor number.
    positions: HashMap<usize, usize>,
}

impl FirstWrites {
    /// Starts a watch without pipes.
    ///
    /// # Errors
    /// The kernel's error if this process has no file descriptor left.
    pub fn new() -> io::Result<FirstWrites> {
        let (poll, events) = (Poll::new()?, Events::with_capacity(EVENTS));
        Ok(FirstWrites { poll, events, positions: HashMap::new() })
    }

    /// Watches `pipe`, which must stay open as long as the watch is used. A pipe that cannot be
    /// watched counts as empty.
    pub(crate) fn watch(&self, pipe: BorrowedFd<'_>) {
        let fd = pipe.as_raw_fd();
        let token = Token(usize::try_from(fd).unwrap_or(usize::MAX));
        if let Err(error) = self.poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE) {
            tracing::debug!(%error, "cannot watch a pipe for its first bytes");
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

    /// Returns the place of `pipe` among the watched pipes in the order in which they became
    /// readable; `usize::MAX` if it is not readable yet. Does not block.
    pub(crate) fn position(&mut self, pipe: RawFd) -> usize {
        while self.take_events() && !self.events.is_empty() {
            for event in &self.events {
                let Token(number) = event.token();
                let next = self.positions.len();
                self.positions.entry(number).or_insert(next);
                // Each pipe has one event, so that this ends however fast the processes write.
                if let Ok(fd) = RawFd::try_from(number) {
                    let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                }
            }
        }
        let fd = usize::try_from(pipe).unwrap_or(usize::MAX);
        self.positions.get(&fd).copied().unwrap_or(usize::MAX)
    }
}

/// The pipes that were added to a capture in one turn, in the order of their first writes.
#[derive(Debug)]
pub(crate) struct WatchedPipes {
    /// The descriptors by the indices of their sources.
    pub pipes: HashMap<usize, RawFd>,
    pub first_writes: Arc<Mutex<FirstWrites>>,
}

impl WatchedPipes {
    /// Puts the answers of these pipes, in the turn after they were added, in the order of their first
    /// writes. Several may have become readable while they were added one after the other.
    pub fn sort(self, answers: &mut [Answer]) {
        let WatchedPipes { pipes, first_writes } = self;
        let mut order = first_writes.lock().unwrap_or_else(PoisonError::into_inner);
        answers.sort_by_cached_key(|(token, _)| match token {
            backend::Token::Source(index) => {
                pipes.get(index).map_or(0, |pipe| order.position(*pipe).saturating_add(1))
            }
            _ => 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::unistd::{pipe, write};

    use super::*;

    #[test]
    fn pipes_have_the_order_of_their_first_writes() {
        let mut first_writes = FirstWrites::new().unwrap();
        let pipes = [(); 4].map(|()| pipe().unwrap());
        pipes.iter().for_each(|(read, _)| first_writes.watch(read.as_fd()));
        for writer in [2, 0, 2, 3] {
            write(&pipes[writer].1, b"x").unwrap();
        }
        let mut positions = || pipes.each_ref().map(|(read, _)| first_writes.position(read.as_raw_fd()));
        assert_eq!(positions(), [1, usize::MAX, 0, 2]);
        write(&pipes[1].1, b"x").unwrap();
        write(&pipes[3].1, b"x").unwrap();
        assert_eq!(positions(), [1, 3, 0, 2]);
    }
}
