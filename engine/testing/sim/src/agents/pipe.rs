//! One direction of an edge: what its carrier holds.

use std::collections::VecDeque;

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

/// The number with which a carrier that replaces another one begins.
pub const SESSION: u64 = 0x0a00_0000_0000_5e55;

/// What one end of an edge does with the carrier.
#[derive(Debug, Default)]
pub struct EdgeEnd {
    /// If the carrier may be replaced.
    pub link: Option<LinkEnd>,
    /// What was taken for the carrier and is not written.
    piece: Vec<u8>,
}

impl EdgeEnd {
    pub fn new(is_linked: bool) -> EdgeEnd {
        EdgeEnd { link: is_linked.then(LinkEnd::default), piece: Vec::new() }
    }

    /// Sends what there is room for. Returns the number of bytes; `None` if nothing reads, and the
    /// carrier can't be replaced.
    pub fn write(&mut self, bytes: &[u8], pipe: &mut Pipe) -> Option<usize> {
        let Some(link) = &mut self.link else { return pipe.write(bytes) };
        let length = if link.has_room() { bytes.len() } else { 0 };
        link.send(&bytes[..length]);
        self.flush(pipe);
        Some(length)
    }

    /// Writes what is kept to a carrier that may be replaced.
    pub fn flush(&mut self, pipe: &mut Pipe) {
        let Some(link) = &mut self.link else { return };
        loop {
            if self.piece.is_empty() {
                link.take(&mut self.piece, CAPACITY);
            }
            match pipe.write(&self.piece) {
                Some(written @ 1..) => drop(self.piece.drain(..written)),
                _ => return,
            }
        }
    }

    /// Reads at most `limit` bytes; `None` at the end.
    pub fn read(&mut self, limit: usize, pipe: &mut Pipe) -> Option<Vec<u8>> {
        let read = pipe.read(limit)?;
        if let Some(link) = &mut self.link {
            link.receive(read.len());
        }
        Some(read)
    }

    /// Goes over to a new carrier, as the other end does.
    pub fn resume(&mut self, other: &mut EdgeEnd) {
        if let (Some(one), Some(two)) = (&mut self.link, &mut other.link) {
            two.resume(SESSION, &one.resume_frame(SESSION)).unwrap();
            one.resume(SESSION, &two.resume_frame(SESSION)).unwrap();
            self.piece.clear();
            other.piece.clear();
        }
    }
}
