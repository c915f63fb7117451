//! The bytes that the generator program `rank` writes, and that tests compute again to compare.

use std::io::{self, Read};

/// Bytes made at a time.
const BLOCK: usize = 64 * 1024;

/// An endless stream of pseudo-random bytes (xorshift64), another one for each rank and channel.
/// NULs and newlines come as often as any other byte.
pub struct Noise {
    state: u64,
    block: Vec<u8>,
    used: usize,
}

impl Noise {
    /// The stream of `rank` on `channel` (`stdout`, `stderr` or `stddiag`), from its first byte on.
    pub fn new(rank: u32, channel: &str) -> Noise {
        // FNV-1a: never 0, for all that is used here.
        let seed = channel.bytes().chain(rank.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Noise { state: seed | 1, block: vec![0; BLOCK], used: BLOCK }
    }

    fn next_block(&mut self) {
        // Nothing but shifts and exclusive ors: fast without an optimiser, too.
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
