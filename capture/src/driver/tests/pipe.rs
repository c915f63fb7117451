//! A pipe that is played, with the reader of its stream.

use std::os::fd::RawFd;

use iof_shm_ring::{Peek, Reader};

use super::End;

/// A pipe, and who reads its stream.
pub(super) struct Pipe {
    pub(super) fd: RawFd,
    /// Written and not yet given to the driver.
    pub(super) buffered: usize,
    pub(super) hung_up: bool,
    /// Given to the driver.
    pub(super) given: u64,
    /// An error was given.
    pub(super) failed: bool,
    /// Somebody asked for its end.
    pub(super) closed: bool,
    /// Nothing more is wanted once so much was given.
    pub(super) enough: Option<u64>,
    /// It is a terminal, and so not at its end as long as its session has a leader.
    pub(super) session: Option<Session>,
    /// The leader's pidfd.
    pub(super) leader: Option<RawFd>,
    pub(super) reader: Reader,
    /// What was delivered in its place and is still required, if it is no pipe.
    pub(super) queue: Option<Queue>,
    /// Bytes that the reader has seen or was told that it missed.
    pub(super) read: u64,
    pub(super) end: Option<End>,
}

/// Deliveries, and their bytes together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) deliveries: usize,
    pub(super) bytes: u64,
}

/// What became of the leader of a session.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Session {
    Led,
    /// The kernel has told of the leader's exit.
    Over,
    /// And the driver has.
    Reported,
}

/// The byte that is at `at` in what pipe number `pipe` gives.
pub(super) fn byte(pipe: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ pipe as u8
}

impl Pipe {
    /// Whether a terminal has nothing, and nobody who has it open.
    pub(super) fn is_left(&self) -> bool {
        self.session.is_some() && self.hung_up && self.buffered == 0
    }

    /// Whether a read would not wait.
    pub(super) fn is_readable(&self) -> bool {
        self.buffered > 0 || self.hung_up
    }

    /// Gives at most `room` bytes, to the memory at `to` if they are wanted.
    pub(super) fn give(&mut self, number: usize, room: usize, to: Option<*mut u8>) -> usize {
        let bytes = room.min(self.buffered);
        for (at, place) in (self.given..).zip(0..bytes) {
            if let Some(to) = to {
                // SAFETY: the span of a read in flight, with room for so many.
                unsafe { to.add(place).write(byte(number, at)) };
            }
        }
        self.buffered -= bytes;
        self.given += bytes as u64;
        bytes
    }

    /// What is delivered next, `len` bytes; `None` if this is a pipe, or nothing is to be delivered
    /// any more.
    pub(super) fn deliver(&mut self, number: usize, len: usize) -> Option<Vec<u8>> {
        let over = self.hung_up || self.closed;
        let queue = self.queue.as_mut().filter(|_| !over)?;
        queue.deliveries += 1;
        queue.bytes += len as u64;
        let bytes = (self.given..).take(len).map(|at| byte(number, at)).collect();
        self.given += len as u64;
        Some(bytes)
    }

    /// Deliveries are said to be no longer required.
    pub(super) fn taken(&mut self, deliveries: usize, bytes: u64) {
        assert!(deliveries > 0 && self.end.is_none());
        let queue = self.queue.as_mut().expect("it has a pipe");
        queue.deliveries = queue.deliveries.checked_sub(deliveries).expect("more than there were");
        queue.bytes = queue.bytes.checked_sub(bytes).expect("more than there were");
    }

    /// The reader takes at most `most` bytes, and sees that they are the right ones. `true` at the
    /// end.
    pub(super) fn consume(&mut self, number: usize, most: usize) -> bool {
        let mut rest = most;
        loop {
            match self.reader.peek() {
                Peek::Bytes => {
                    let bytes = self.reader.bytes();
                    let bytes = &bytes[..bytes.len().min(rest)];
                    for (at, got) in (self.read..).zip(bytes) {
                        assert_eq!(*got, byte(number, at), "pipe {number}, byte {at}");
                    }
                    let n = bytes.len();
                    self.read += n as u64;
                    self.reader.consume(n);
                    rest -= n;
                    if rest == 0 {
                        self.reader.release();
                        return false;
                    }
                }
                Peek::Gap(gap) => self.read += gap.lost,
                Peek::Empty => return false,
                Peek::Ended => return true,
                other => panic!("{other:?} for the only reader of pipe {number}"),
            }
        }
    }

    /// It gives an error.
    pub(super) fn fail(&mut self, errno: i32) {
        self.failed |= match errno {
            libc::EAGAIN | libc::EINTR => false,
            libc::EIO if self.session == Some(Session::Led) => self.enough.is_some(),
            _ => true,
        };
    }

    /// Whether everything adds up if the source has ended; `false` if it has not.
    pub(super) fn check(&mut self, number: usize) -> bool {
        let Some(end) = &self.end else { return false };
        assert_eq!(end.produced, self.given, "pipe {number}");
        assert!(self.consume(number, usize::MAX), "pipe {number}: its reader comes to the end");
        assert_eq!(self.read, self.given, "pipe {number}");
        true
    }

    /// Whether it was to end here, and so.
    pub(super) fn end(&mut self, end: End, broken: bool) {
        assert!(self.end.is_none(), "it completes twice");
        let over = self.hung_up && self.buffered == 0 && self.session != Some(Session::Led);
        let enough = self.enough.is_some_and(|enough| self.given >= enough);
        assert!(over || enough || self.closed || self.failed || broken, "it ends too early");
        assert!(!end.error || self.failed || broken, "it fails by itself");
        let untold = self.queue.take().unwrap_or_default();
        assert!(broken || untold == Queue::default(), "nobody was told of deliveries");
        // Of these a driver that fails has not heard.
        self.given -= untold.bytes;
        self.end = Some(end);
    }
}
