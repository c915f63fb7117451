//! The bytes that the generator program `rank` writes. Tests compute them again to compare.

use std::io::{self, Read};

/// The number of bytes that are generated at a time.
const BLOCK: usize = 64 * 1024;

/// An endless stream of pseudo-random bytes (xorshift64), different for each rank and channel. NULs
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
