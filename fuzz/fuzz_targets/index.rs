//! A ring whose control words and index have any values and change at any time. The reader must
//! terminate, and return only bytes of the ring.
#![no_main]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use iof_fuzz::{MAX_PATTERN, pattern};
use iof_shm_ring::{Attached, Copied, Grouping, Peek, Reader, ReaderPage, Ring, Start, bell};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

#[derive(Arbitrary, Debug)]
struct Input {
    pages: u8,
    base: Value,
    overwrite: bool,
    start: Value,
    now: bool,
    control: [Value; 10],
    entries: Vec<[Value; 3]>,
    ops: Vec<Op>,
}

/// A value, mostly near a position that matters.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Value {
    Small(u8),
    Capacities(u8, i8),
    None,
    Huge(u16),
    Any(u64),
}

impl Value {
    fn get(self, capacity: u64) -> u64 {
        match self {
            Value::Small(n) => n.into(),
            Value::Capacities(n, more) => (capacity / 4 * u64::from(n)).saturating_add_signed(more.into()),
            Value::None => u64::MAX,
            Value::Huge(n) => u64::MAX - u64::from(n),
            Value::Any(n) => n,
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Op {
    Peek { consume: u16 },
    Copy(u16),
    Release,
    Follow(Value),
    Group(Option<u16>),
    WriterGone,
    Control(u8, Value),
    Entry(u8, u8, Value),
}

/// Offsets of `tail`, `index_tail`, `dropped`, `sealed`, `complete` and `recent_tail`, then of the
/// claimed position, `index_head`, `wanted` and `recent_head`.
const CONTROL: [usize; 10] = [256, 264, 272, 280, 288, 296, 384, 392, 400, 408];
/// Offset of the entries: first those of the newest reads, then those of the index.
const ENTRIES: usize = 512;
const RECENT: u64 = 112;
const MAX_PAGES: usize = MAX_PATTERN / 4096;

/// The ring file of a hostile engine, which writes to it at any time.
struct File {
    fd: OwnedFd,
    map: MmapRaw,
    capacity: u64,
    entries: u64,
}

impl File {
    /// Creates a file whose ring has the pattern's bytes.
    fn new(pages: u64) -> io::Result<File> {
        let capacity = pages * 4096;
        let entries = (capacity / 2048).max(32);
        let meta = (ENTRIES as u64 + (RECENT + entries) * 24).next_multiple_of(4096);
        let file = fs::File::from(memfd_create(c"fuzz", MFdFlags::MFD_ALLOW_SEALING)?);
        file.write_all_at(pattern(0, capacity as usize), meta)?;
        let map = MmapRaw::map_raw(&file)?;
        let seals = SealFlag::F_SEAL_SEAL
            | SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_FUTURE_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(File { fd: file.into(), map, capacity, entries })
    }

    /// Gives the control words and the index the values of `input`, and opens the ring.
    fn open(&self, input: &Input) -> Option<Arc<Ring>> {
        let magic = u64::from_le_bytes(*b"iofring1");
        let base = input.base.get(self.capacity);
        let head = [magic, 4, self.capacity, self.entries, 0, base, u64::from(input.overwrite)];
        let meta = self.map.len() - self.capacity as usize;
        // SAFETY: these bytes lie in the file, and no reader of an earlier ring is left.
        unsafe { self.map.as_mut_ptr().write_bytes(0, meta) };
        for (i, word) in head.into_iter().enumerate() {
            self.set(i * 8, word);
        }
        for (i, value) in input.control.iter().enumerate() {
            self.control(i, *value);
        }
        for (i, entry) in input.entries.iter().enumerate() {
            for (word, value) in entry.iter().enumerate() {
                self.entry(i, word, *value);
            }
        }
        let fd = self.fd.try_clone().ok()?;
        Some(Arc::new(Ring::open(fd).expect("a valid head")))
    }

    fn control(&self, i: usize, value: Value) {
        self.set(CONTROL[i % 10], value.get(self.capacity));
    }

    fn entry(&self, i: usize, word: usize, value: Value) {
        self.set(
            ENTRIES + i % (RECENT + self.entries) as usize * 24 + word % 3 * 8,
            value.get(self.capacity),
        );
    }

    fn set(&self, offset: usize, value: u64) {
        // SAFETY: `offset` is that of a word of the head or of an entry, all of which lie in the
        // file.
        let word = unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU64>() };
        word.store(value, Relaxed);
    }

    /// Checks that `bytes` are consecutive in the ring, which may wrap around once.
    fn check(&self, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.capacity);
        let Some(&first) = bytes.first() else { return };
        let ahead = same(bytes, pattern(first.into(), bytes.len()));
        let (before, behind) = bytes.split_at(ahead);
        if let Some(&seam) = behind.first() {
            let last = pattern(self.capacity - 1, 1);
            assert!(before.ends_with(last) && seam == 0, "not a byte of the ring");
            assert!(behind == pattern(0, behind.len()), "not a byte of the ring, or a second seam");
        }
    }
}

/// Returns how many bytes at the beginning are the same.
fn same(one: &[u8], other: &[u8]) -> usize {
    const PIECE: usize = 1024;
    let pieces = one.chunks(PIECE).zip(other.chunks(PIECE)).take_while(|(one, other)| one == other).count();
    let start = one.len().min(pieces * PIECE);
    start + one[start..].iter().zip(&other[start..]).take_while(|(one, other)| one == other).count()
}

fuzz_target!(|input: Input| {
    // The files are kept, because to make one takes longer than the rest.
    static FILES: [OnceLock<File>; MAX_PAGES] = [const { OnceLock::new() }; MAX_PAGES];
    let pages = usize::from(input.pages) % MAX_PAGES;
    let file = FILES[pages].get_or_init(|| File::new(pages as u64 + 1).expect("a file"));
    let Some(ring) = file.open(&input) else { return };
    let (Ok((ringer, _bell)), Ok((room, _listen))) = (bell(), bell()) else { return };
    let Ok(page) = ReaderPage::create(ringer) else { return };
    let start = if input.now { Start::Now } else { Start::Oldest };
    let first = input.start.get(file.capacity);
    let given = |number: u32, start| Attached {
        ring: Arc::clone(&ring),
        id: number.into(),
        start,
        dropped: start / 2,
        non_gating: false,
    };
    // SAFETY: no byte is read here after it may have changed.
    let reader = unsafe { Reader::new(given(0, first), Arc::new(page), start) };
    let Ok(mut reader) = reader else { return };
    reader.set_room_bell(room);
    let mut delivered = 0;
    for op in input.ops.iter().take(256) {
        match *op {
            Op::Peek { consume } => {
                if reader.peek() == Peek::Bytes {
                    assert!(!reader.bytes().is_empty());
                    file.check(reader.bytes());
                    let mut times = Vec::new();
                    reader.times(&mut times);
                    assert!(times.len() as u64 <= RECENT + file.entries);
                    let _ = reader.time();
                    delivered += reader.bytes().len().min(consume.into()) as u64;
                    reader.consume(consume.into());
                }
            }
            Op::Copy(n) => {
                let mut buffer = vec![0; n.into()];
                match reader.copy(&mut buffer) {
                    Copied::Bytes(n) => {
                        file.check(&buffer[..n]);
                        delivered += n as u64;
                    }
                    Copied::Nothing(peek) => assert_ne!(peek, Peek::Bytes),
                }
            }
            Op::Release => reader.release(),
            Op::Follow(start) => {
                let start = start.get(file.capacity);
                // SAFETY: no byte is read here after it may have changed.
                unsafe { reader.follow(given(1, start)) }.expect("there is a slot 1");
            }
            Op::Group(bytes) => {
                reader.group(bytes.map(|bytes| Grouping { bytes: bytes.into(), time: None }));
            }
            Op::WriterGone => reader.set_writer_gone(),
            Op::Control(i, value) => file.control(i.into(), value),
            Op::Entry(i, word, value) => file.entry(i.into(), word.into(), value),
        }
        assert_eq!(reader.delivered(), delivered);
    }
});
