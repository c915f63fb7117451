//! A word that depends on all that has happened in a run.

use std::fmt::{self, Write};

/// A running hash (FNV-1a). Two runs with the same digest did the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let step = |word: u64, byte: &u8| (word ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        // The length keeps apart what is added one after the other.
        let length = (bytes.len() as u64).to_le_bytes();
        self.0 = bytes.iter().chain(&length).fold(self.0, step);
    }

    /// Adds a word.
    pub fn add_word(&mut self, word: u64) {
        self.add(&word.to_le_bytes());
    }

    /// Adds what has happened.
    pub fn add_debug(&mut self, event: &impl fmt::Debug) {
        // Writing to a digest does not fail.
        let _ = write!(self, "{event:?}");
    }

    /// Returns the word.
    pub fn word(self) -> u64 {
        self.0
    }
}

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}
