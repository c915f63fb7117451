//! Bytes in which a wrong position or order shows. Tests compute them again to compare.

use std::io::{self, Read};

/// The number of bytes that are generated at a time.
const BLOCK: usize = 64 * 1024;

/// The output of the generator program `rank`: an endless stream of pseudo-random bytes (xorshift64), different for each rank and channel. NULs
/// and newlines are as frequent as any other byte.
pub struct Noise {
    state: u64,
    block: Vec<u8>,
    used: usize,
}

impl Noise {
    /// Returns the stream of `rank` on `channel` (`stdout`, `stderr` or `stddiag`), from its first
    /// byte on.
    pub fn new(rank: u32, channel: &str) -> Noise {
        // FNV-1a. It is not 0 for any rank and channel in use.
        let seed = channel.bytes().chain(rank.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Noise { state: seed | 1, block: vec![0; BLOCK], used: BLOCK }
    }

    fn next_block(&mut self) {
        // Only shifts and exclusive ors, so that it is fast in a build without optimisation, too.
        let mut state = self.state;
        for word in self.block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        self.state = state;
        self.used = 0;
    }
}

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.used == BLOCK {
            self.next_block();
        }
        let n = buffer.len().min(BLOCK - self.used);
        buffer[..n].copy_from_slice(&self.block[self.used..self.used + n]);
        self.used += n;
        Ok(n)
    }
}

/// The number of bytes after which a pattern repeats: a prime, so that no capacity and no size
/// of a write is a multiple of it.
const PERIOD: usize = 1_048_583;

/// Returns pseudo-random bytes, the same each time.
pub fn pattern(len: usize) -> Vec<u8> {
    seeded_pattern(len, 0)
}

/// Returns pseudo-random bytes, others for each odd `seed`.
pub fn seeded_pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..len.min(PERIOD)).map(|_| next()).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}
