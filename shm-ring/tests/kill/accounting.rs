//! A reader with independent accounting: every byte equals its number, and every step adds up.

use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};

use iof_shm_ring::{Attached, Copied, Gap, Peek, Reader, ReaderId, ReaderPage, Ring, Start};

/// Byte number `i` of a source is `PATTERN[i % PERIOD]`.
pub const PERIOD: u64 = 251;
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..256 * 1024).map(|i| (i % PERIOD) as u8).collect());

/// Returns the bytes from number `first` on.
pub fn pattern(first: u64, n: usize) -> &'static [u8] {
    let start = (first % PERIOD) as usize;
    &PATTERN[start..start + n]
}

/// Random numbers that are reproducible from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn attached(ring: OwnedFd, [id, start, dropped]: [u64; 3]) -> Attached {
    Attached {
        ring: Arc::new(Ring::open(ring).unwrap()),
        id: ReaderId::from(id as u32),
        start,
        dropped,
        non_gating: false,
    }
}

pub struct Accounting {
    pub reader: Reader,
    pub began: u64,
    pub delivered: u64,
    pub lost: u64,
}

/// The next action after a step of [`Accounting`].
pub enum Next {
    Step,
    Sleep,
    Follow,
    Ended,
    Gone,
}

impl Accounting {
    /// `given` contains the slot, the start and the drop count, as the writer sent them with the
    /// ring.
    pub fn new(
        ring: OwnedFd,
        given: [u64; 3],
        page: &Arc<ReaderPage>,
        start: Start,
        began: u64,
    ) -> Accounting {
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let reader = unsafe { Reader::new(attached(ring, given), Arc::clone(page), start) }.unwrap();
        Accounting { reader, began, delivered: 0, lost: 0 }
    }

    /// Returns the number of bytes that the source had produced before this reader's place.
    pub fn place(&self) -> u64 {
        self.began + self.delivered + self.lost
    }

    pub fn follow(&mut self, ring: OwnedFd, given: [u64; 3]) {
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        unsafe { self.reader.follow(attached(ring, given)) }.unwrap();
    }

    /// Borrows and consumes none, some or all bytes, or copies some.
    pub fn step(&mut self, dice: &mut Dice) -> Next {
        let peek = if dice.below(4) == 0 { self.copy(dice) } else { self.borrow(dice) };
        assert_eq!(self.reader.delivered(), self.delivered);
        assert_eq!(self.reader.delivered() + self.reader.lost(), self.reader.produced() - self.began);
        match peek {
            Peek::Bytes => Next::Step,
            Peek::Gap(gap) => self.count_gap(gap),
            Peek::Empty => Next::Sleep,
            Peek::Sealed => Next::Follow,
            Peek::Ended | Peek::Broken { .. } => Next::Ended,
            Peek::Gone => Next::Gone,
        }
    }

    fn count_gap(&mut self, gap: Gap) -> Next {
        assert_eq!(gap.offset, self.place());
        self.lost += gap.lost;
        assert_eq!(self.reader.lost(), self.lost);
        Next::Step
    }

    fn borrow(&mut self, dice: &mut Dice) -> Peek {
        let peek = self.reader.peek();
        if peek == Peek::Bytes {
            let bytes = self.reader.bytes();
            assert!(bytes == pattern(self.place(), bytes.len()), "a byte does not have its number");
            let n = match dice.below(4) {
                0 => dice.below(bytes.len() as u64 + 1) as usize,
                _ => bytes.len(),
            };
            self.reader.consume(n);
            self.delivered += n as u64;
        }
        peek
    }

    fn copy(&mut self, dice: &mut Dice) -> Peek {
        let mut buffer = [0; 5000];
        match self.reader.copy(&mut buffer[..1 + dice.below(4999) as usize]) {
            Copied::Bytes(n) => {
                assert!(buffer[..n] == *pattern(self.place(), n), "a copied byte does not have its number");
                self.delivered += n as u64;
                Peek::Bytes
            }
            Copied::Nothing(peek) => peek,
        }
    }
}
