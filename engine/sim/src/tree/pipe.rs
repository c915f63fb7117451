//! One direction of an edge: what its carrier holds.

use std::collections::VecDeque;

use crate::rng::Rng;

/// The bytes that a carrier holds in one direction.
pub const CAPACITY: usize = 64 << 10;

/// One direction of an edge.
#[derive(Debug, Default)]
pub struct Pipe {
    bytes: VecDeque<u8>,
    /// Nothing follows.
    is_ended: bool,
    /// Nothing reads.
    is_broken: bool,
}

impl Pipe {
    /// Writes what there is room for. Returns the number of bytes; `None` if nothing reads.
    pub fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.is_broken || self.is_ended {
            return None;
        }
        let length = bytes.len().min(CAPACITY - self.bytes.len());
        self.bytes.extend(&bytes[..length]);
        Some(length)
    }

    /// Reads at most `limit` bytes; `None` at the end.
    pub fn read(&mut self, limit: usize) -> Option<Vec<u8>> {
        if self.bytes.is_empty() && self.is_ended {
            return None;
        }
        let length = limit.min(self.bytes.len());
        Some(self.bytes.drain(..length).collect())
    }

    /// Ends the pipe after some of the bytes under way.
    pub fn cut(&mut self, rng: &mut Rng) {
        self.bytes.truncate(rng.below(self.bytes.len() as u64 + 1) as usize);
        self.is_ended = true;
    }

    /// The writer has ended. What it wrote arrives.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// The reader has ended.
    pub fn break_off(&mut self) {
        self.bytes.clear();
        self.is_broken = true;
    }
}
