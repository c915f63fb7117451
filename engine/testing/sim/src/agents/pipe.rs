//! One direction of an edge: what its carrier holds.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use iof_nodes::LinkEnd;

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

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_broken || self.is_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let length = bytes.len().min(CAPACITY - self.bytes.len());
        self.bytes.extend(&bytes[..length]);
        if length > 0 { Ok(length) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time for which an edge may be without a carrier, if its carriers are replaced.
pub const LIMIT: Duration = Duration::from_millis(2000);

/// Returns the time of a turn, which takes a millisecond.
pub fn time(turn: u64) -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now) + Duration::from_millis(turn)
}

/// The number with which a carrier that replaces another one begins.
pub const SESSION: u64 = 0x0a00_0000_0000_5e55;

/// One end of an edge, which writes to the carrier and reads from it.
#[derive(Debug, Default)]
pub struct EdgeEnd {
    pub link: LinkEnd,
}

impl EdgeEnd {
    /// Sends bytes if there is room. Returns the number of bytes; `None` if nothing reads, and the
    /// carrier can't be replaced.
    pub fn write(&mut self, bytes: &[u8], pipe: &mut Pipe) -> Option<usize> {
        let length = if self.link.has_room() { bytes.len() } else { 0 };
        self.link.send(&bytes[..length]);
        (self.flush(pipe) || self.link.is_resumable()).then_some(length)
    }

    /// Writes what the carrier was not given. Returns whether something reads.
    pub fn flush(&mut self, pipe: &mut Pipe) -> bool {
        self.link.write_to(pipe).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |()| true)
    }

    /// Reads at most `limit` bytes; `None` at the end.
    pub fn read(&mut self, limit: usize, pipe: &mut Pipe, now: u64) -> Option<Vec<u8>> {
        let read = pipe.read(limit);
        match &read {
            Some(read) => drop(self.link.receive(read.len())),
            None => self.link.detach(time(now)),
        }
        read
    }

    /// Goes over to a new carrier, as the other end does.
    pub fn resume(&mut self, other: &mut EdgeEnd) {
        other.link.resume(SESSION, &self.link.resume_frame(SESSION)).unwrap();
        self.link.resume(SESSION, &other.link.resume_frame(SESSION)).unwrap();
    }
}
