//! The only source of randomness: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
//! number generators, 2014).

/// A generator whose sequence is determined by its seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Returns a word that depends on every bit of `word`.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    /// Creates a generator.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word().checked_rem(limit).unwrap_or(0)
    }

    /// Returns an index below `len`, or 0 if that is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true `of_256` times in 256.
    pub fn chance(&mut self, of_256: u64) -> bool {
        self.word() >> 56 < of_256
    }

    /// Returns one of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// Returns a number of bytes, from 1 to `most`: as often few as many.
    pub fn size(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(64 - most.leading_zeros()) + 1);
        (self.word() & ((1 << bits) - 1)).clamp(1, most)
    }
}
