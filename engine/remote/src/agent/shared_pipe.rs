//! A pipe to which several threads write.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::carrier::{lock, write_frames};

/// A pipe to which threads write in the order in which they ask. So a lone line waits for at most one
/// turn of each other writer, whatever they have to write.
///
/// A mutex lets the thread that has just released it lock it again, and so a busy thread keeps
/// others from writing.
pub struct SharedPipe {
    pipe: File,
    turns: Mutex<Turns>,
    ended: Condvar,
}

#[derive(Default)]
struct Turns {
    /// The turn of the next thread that asks.
    next: u64,
    current: u64,
}

impl SharedPipe {
    pub fn new(pipe: File) -> SharedPipe {
        SharedPipe { pipe, turns: Mutex::default(), ended: Condvar::new() }
    }

    /// Writes whole frames when it is the turn of this thread. Blocks while the carrier takes
    /// nothing.
    pub fn write(&self, frames: &[IoSlice<'_>]) -> io::Result<()> {
        let mut turns = lock(&self.turns);
        let own = turns.next;
        turns.next = own.wrapping_add(1);
        while turns.current != own {
            turns = self.ended.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        drop(turns);
        let written = write_frames(&self.pipe, frames);
        turns = lock(&self.turns);
        turns.current = own.wrapping_add(1);
        if turns.current != turns.next {
            self.ended.notify_all();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::{Read, pipe};
    use std::os::fd::OwnedFd;
    use std::thread;

    use super::*;

    /// More than a pipe holds. Ends in a newline, so no padding follows.
    fn piece(letter: u8) -> Vec<u8> {
        let mut piece = vec![letter; 256 << 10];
        piece.push(b'\n');
        piece
    }

    #[test]
    fn threads_write_whole_frames_in_the_order_in_which_they_ask() {
        let (mut reader, writer) = pipe().unwrap();
        let shared = SharedPipe::new(OwnedFd::from(writer).into());
        let mut written = Vec::new();
        thread::scope(|scope| {
            for (letter, asked) in (b'a'..=b'd').zip(1..) {
                let shared = &shared;
                scope.spawn(move || shared.write(&[IoSlice::new(&piece(letter))]).unwrap());
                while lock(&shared.turns).next < asked {
                    thread::yield_now();
                }
            }
            written = vec![0; 4 * piece(0).len()];
            reader.read_exact(&mut written).unwrap();
        });
        assert!(written == (b'a'..=b'd').flat_map(piece).collect::<Vec<u8>>());
    }
}
