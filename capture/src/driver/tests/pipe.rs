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
    /// Said that it has nothing now, so that to read on at once would be a busy loop.
    pub(super) not_now: bool,
    /// What was asked of it was cancelled, so that nothing may be asked any more.
    pub(super) cancelled: bool,
    pub(super) reader: Reader,
    /// Bytes that the reader has seen or was told that it missed.
    pub(super) read: u64,
}

/// The byte that is at `at` in what pipe number `pipe` gives.
fn byte(pipe: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ pipe as u8
}

impl Pipe {
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

    /// The reader takes at most `most` bytes, and sees that they are the right ones. `true` at the end.
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

    /// Whether everything adds up now that the source has ended.
    pub(super) fn check(&mut self, number: usize, end: &End) {
        assert_eq!(end.produced, self.given, "pipe {number}");
        assert!(self.consume(number, usize::MAX), "pipe {number}: its reader comes to the end");
        assert_eq!(self.read, self.given, "pipe {number}");
    }
}
