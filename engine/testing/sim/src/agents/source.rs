//! The output of one rank: bytes that can be checked from their offsets.

use iof_nodes::StreamKey;

/// The bytes of a rank that its node holds at most.
const RING: u64 = 64 << 10;

/// The length of a lone line, and the turns between two.
pub const LINE: u64 = 60;
const LINE_INTERVAL: u64 = 16;

/// The bytes that a node has read from a rank and sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    pub produced: u64,
    pub sent: u64,
    /// The number of bytes that the rank writes in all, lost bytes included.
    pub limit: u64,
    pub is_ended: bool,
    /// Another process keeps it open until it is cut off.
    pub is_held: bool,
    /// When the first byte that waits was written.
    pub since: u64,
}

impl Source {
    /// Reads what the rank has written while there is room: up to `written`.
    pub fn fill(&mut self, written: u64, now: u64) {
        if self.waiting() == 0 {
            self.since = now;
        }
        self.produced = self.limit.min(written).min(self.sent + RING).max(self.produced);
    }

    /// Returns the offset of the oldest byte that the node has.
    pub fn oldest(&self) -> u64 {
        self.produced.saturating_sub(RING)
    }

    pub fn waiting(&self) -> usize {
        (self.produced - self.sent) as usize
    }
}

/// Returns what a rank has written to a channel at a time: all, or a line now and then to stderr.
pub fn written(channel: usize, now: u64) -> u64 {
    if channel == 1 { now / LINE_INTERVAL * LINE } else { u64::MAX }
}

/// Returns the bytes of a stream from an offset on.
pub fn bytes(stream: StreamKey, offset: u64, length: usize) -> Vec<u8> {
    let salt = (stream.rank.0 as u8).wrapping_mul(31) ^ (stream.channel as u8) << 6;
    (offset..offset + length as u64).map(|offset| (offset as u8) ^ ((offset >> 8) as u8) ^ salt).collect()
}

/// Returns the bytes of each push from an offset on.
pub fn stdin_bytes(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64)
        .map(|offset| (offset as u8).wrapping_mul(3) ^ ((offset >> 8) as u8))
        .collect()
}
