//! Input from a hostile peer: a tool's false words cost only that tool, and invalid files are
//! rejected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{spawn, yield_now};

use iof_shm_ring::{
    Attached, CreateError, MAX_CAPACITY, MAX_SLOTS, OpenError, Peek, Policy, Reader, ReaderId, ReaderPage,
    Ring, Start, Stream, StreamConfig, doorbell, notify,
};
use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::ftruncate;

const CAPACITY: u64 = 64 * 1024;
const PAGE: u64 = 4096;
/// Offset of a reader page's slots, of 64 bytes each: pinned position, cursor, threshold, drops.
const SLOTS: usize = 128 + MAX_SLOTS / 8;

fn own(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

// A tool that writes any value at any time into its reader page.

struct Tool {
    page: Arc<ReaderPage>,
    reader: Reader,
}

impl Tool {
    fn attach(stream: &mut Stream, may_block: bool) -> Tool {
        let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
        let id = page.take_slot().unwrap();
        let given = stream.attach(&page, id, Start::Oldest, may_block).unwrap();
        let ring = Arc::new(Ring::open(own(given.ring.as_fd().unwrap())).unwrap());
        let mapped = Arc::new(ReaderPage::open(own(page.as_fd().unwrap())).unwrap());
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let reader = unsafe { Reader::new(Attached { ring, ..given }, mapped, Start::Oldest) }.unwrap();
        Tool { page, reader }
    }

    fn follow(&mut self, stream: &mut Stream) {
        let id = self.page.take_slot().unwrap();
        let old = self.reader.id();
        let Some(given) = stream.follow(&self.page, old, id) else { return self.page.return_slot(id) };
        self.page.return_slot(old);
        let ring = Arc::new(Ring::open(own(given.ring.as_fd().unwrap())).unwrap());
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        unsafe { self.reader.follow(Attached { ring, ..given }) }.unwrap();
    }

    /// Reads to the end, following, and compares the bytes with those that were produced.
    fn read(&mut self, stream: &mut Stream, produced: &[u8]) {
        loop {
            let place = self.reader.produced() as usize;
            match self.reader.peek() {
                Peek::Bytes => {
                    let n = self.reader.bytes().len();
                    assert_eq!(self.reader.bytes(), &produced[place..place + n]);
                    self.reader.consume(n);
                }
                Peek::Sealed => self.follow(stream),
                Peek::Empty | Peek::Ended => return,
                other => panic!("an honest reader that keeps up sees {other:?}"),
            }
        }
    }
}

/// Numbers that a hostile tool would use: extremes, near the tail, any.
struct Lies(u64);

impl Lies {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn lie(&mut self, tail: u64) -> u64 {
        let any = self.next();
        match any % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - any % 1000,
            // Just below the writer's next bytes.
            3 | 4 => tail.saturating_sub(CAPACITY) + any % 10_000,
            5 => tail.wrapping_sub(CAPACITY).wrapping_add(any % (3 * CAPACITY)),
            6 => 1 << (any % 64),
            _ => any,
        }
    }
}

/// A tool's own map of its reader page.
struct Scribbler {
    map: MmapRaw,
    lies: Lies,
}

impl Scribbler {
    fn new(page: &ReaderPage, seed: u64) -> Scribbler {
        Scribbler { map: MmapRaw::map_raw(&own(page.as_fd().unwrap())).unwrap(), lies: Lies(seed) }
    }

    /// Writes false values into `armed`, the ready bits, and the first three words of the first
    /// slots.
    fn scribble(&mut self, tail: u64) {
        for offset in [16, 128].into_iter().chain((0..12).map(|i| SLOTS + i / 3 * 64 + i % 3 * 8)) {
            let lie = self.lies.lie(tail);
            self.write(offset, lie);
        }
    }

    fn write(&self, offset: usize, value: u64) {
        assert!(offset + 8 <= self.map.len() && offset.is_multiple_of(8));
        // SAFETY: the range was just checked, and all parties use these words as atomics.
        unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU64>() }.store(value, Relaxed);
    }
}

/// Pushes 400 ring capacities of bytes, with a hostile tool in the newest generation all the time.
/// It writes false values between the writer's steps, and in the second half during them, too.
fn an_honest_reader_is_exact_beside_a_hostile_one(policy: Policy) {
    let mut stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "hostile").unwrap();
    let mut honest = Tool::attach(&mut stream, true);
    let mut liar = Tool::attach(&mut stream, false);
    let (mut between, mut during) = (Scribbler::new(&liar.page, 1), Scribbler::new(&liar.page, 2));
    let tail = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&tail);
    let scribbling = spawn(move || {
        loop {
            match seen.load(Relaxed) {
                0 => yield_now(),
                u64::MAX => break,
                tail => during.scribble(tail),
            }
        }
    });
    let produced: Vec<u8> = (0..400 * CAPACITY).map(|i| (i % 251) as u8).collect();
    let (mut place, mut sizes) = (0, Lies(3));
    while place < produced.len() {
        between.scribble(place as u64);
        let n = (sizes.next() as usize % 9000 + 1).min(produced.len() - place);
        assert_eq!(
            stream.push(&produced[place..place + n], 1),
            n,
            "only the honest reader may block, and it keeps up"
        );
        place += n;
        if place > produced.len() / 2 {
            tail.store(place as u64, Relaxed);
        }
        notify([&stream]);
        honest.read(&mut stream, &produced[..place]);
        liar.follow(&mut stream);
    }
    tail.store(u64::MAX, Relaxed);
    scribbling.join().unwrap();
    stream.complete();
    honest.read(&mut stream, &produced);
    assert_eq!(honest.reader.peek(), Peek::Ended);
    assert_eq!((honest.reader.delivered(), honest.reader.lost()), (produced.len() as u64, 0));
    assert_eq!(stream.stats().dropped, 0);
    assert!(stream.stats().generation > 10, "the hostile tool was never in the way");
}

#[test]
fn a_hostile_tool_costs_others_nothing_under_drop_newest() {
    an_honest_reader_is_exact_beside_a_hostile_one(Policy::DropNewest);
}

#[test]
fn a_hostile_tool_costs_others_nothing_under_drop_oldest() {
    an_honest_reader_is_exact_beside_a_hostile_one(Policy::DropOldest);
}

#[test]
fn a_hostile_tool_costs_others_nothing_under_block() {
    an_honest_reader_is_exact_beside_a_hostile_one(Policy::Block);
}

#[test]
fn a_pinned_position_below_the_oldest_byte_protects_nothing() {
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest };
    let mut stream = Stream::create(config, "hostile").unwrap();
    let liar = Tool::attach(&mut stream, false);
    stream.push(&vec![0; 2 * CAPACITY as usize], 1);
    Scribbler::new(&liar.page, 1).write(SLOTS + u32::from(liar.reader.id()) as usize * 64, 0);
    stream.push(&vec![0; 10 * CAPACITY as usize], 1);
    assert_eq!(stream.stats().generation, 0, "no reader was in the way");
}

#[test]
fn ids_beyond_the_reader_page_are_rejected() {
    let mut stream = Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::Block }, "").unwrap();
    let mut tool = Tool::attach(&mut stream, false);
    let ring = Arc::new(Ring::open(own(stream_ring(&mut stream).as_fd().unwrap())).unwrap());
    for id in [MAX_SLOTS as u32, u32::MAX].map(ReaderId::from) {
        assert!(matches!(stream.attach(&tool.page, id, Start::Now, false), Err(CreateError::Slots)));
        let given = || Attached { ring: Arc::clone(&ring), id, start: 0, dropped: 0, non_gating: false };
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let moved = unsafe { tool.reader.follow(given()) };
        assert!(matches!(moved, Err(OpenError::Slot { .. })));
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let new = unsafe { Reader::new(given(), Arc::clone(&tool.page), Start::Oldest) };
        assert!(matches!(new, Err(OpenError::Slot { .. })));
    }
    stream.push(b"still here", 1);
    tool.read(&mut stream, b"still here");
    assert_eq!(tool.reader.delivered(), 10);
}

fn stream_ring(stream: &mut Stream) -> Arc<Ring> {
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let id = page.take_slot().unwrap();
    let given = stream.attach(&page, id, Start::Now, false).unwrap();
    stream.detach(&page, id);
    given.ring
}

// Files with a false content.

/// The seals of a ring, and of a reader page.
const RING_SEALS: [SealFlag; 4] =
    [SealFlag::F_SEAL_SEAL, SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_FUTURE_WRITE];
const PAGE_SEALS: [SealFlag; 3] = [SealFlag::F_SEAL_SEAL, SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW];

fn file(head: &[u64], len: u64, seals: &[SealFlag]) -> OwnedFd {
    let fd = memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let head: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    nix::unistd::write(&fd, &head).unwrap();
    ftruncate(&fd, len as i64).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals.iter().copied().collect())).unwrap();
    fd
}

fn magic(name: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*name)
}

fn ring_head() -> [u64; 7] {
    // Magic, version, capacity, entries, generation, base, overwrite.
    [magic(b"iofring1"), 4, CAPACITY, CAPACITY / 2048, 0, 0, 0]
}

/// The head and 32 entries of 24 bytes fit on one page.
const RING_LEN: u64 = PAGE + CAPACITY;

fn ring_error(fd: OwnedFd) -> OpenError {
    Ring::open(fd).expect_err("not a ring")
}

fn page_len() -> u64 {
    let page = ReaderPage::create(doorbell().unwrap().0).unwrap();
    fstat(page.as_fd().unwrap()).unwrap().st_size as u64
}

fn page_error(fd: OwnedFd) -> OpenError {
    ReaderPage::open(fd).expect_err("not a reader page")
}

#[test]
fn files_with_the_layout_of_the_engine_are_accepted() {
    // Otherwise the tests below would prove nothing.
    assert_eq!(Ring::open(file(&ring_head(), RING_LEN, &RING_SEALS)).unwrap().capacity(), CAPACITY);
    ReaderPage::open(file(&[magic(b"iofarea1"), 4], page_len(), &PAGE_SEALS)).unwrap();
}

#[test]
fn files_that_are_not_memory_files_are_rejected() {
    let (pipe, _other) = nix::unistd::pipe().unwrap();
    let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let directory = File::open("/").unwrap();
    let path = open("/dev/zero", OFlag::O_PATH, Mode::empty()).unwrap();
    for fd in [pipe, device.into(), directory.into(), path] {
        assert!(matches!(ring_error(own(fd.as_fd())), OpenError::Seals { .. }));
        assert!(matches!(page_error(fd), OpenError::Seals { .. }));
    }
}

#[test]
fn a_file_that_lacks_any_of_its_seals_is_rejected() {
    for without in RING_SEALS {
        let seals: Vec<SealFlag> = RING_SEALS.into_iter().filter(|seal| *seal != without).collect();
        let OpenError::Unsealed { missing } = ring_error(file(&ring_head(), RING_LEN, &seals)) else {
            panic!("{without:?} is needed");
        };
        assert_eq!(missing, without.bits());
    }
    let (head, len) = ([magic(b"iofarea1"), 4], page_len());
    for without in PAGE_SEALS {
        let seals: Vec<SealFlag> = PAGE_SEALS.into_iter().filter(|seal| *seal != without).collect();
        let OpenError::Unsealed { missing } = page_error(file(&head, len, &seals)) else {
            panic!("{without:?} is needed");
        };
        assert_eq!(missing, without.bits());
    }
}

#[test]
fn a_file_of_another_size_than_its_head_specifies_is_rejected() {
    for len in [RING_LEN - PAGE, RING_LEN + PAGE, RING_LEN - 1, RING_LEN + 1, 0, 1, 56, PAGE, 2 * PAGE - 1] {
        let error = ring_error(file(&ring_head(), len, &RING_SEALS));
        assert!(matches!(error, OpenError::Size { found, .. } if found == len), "{len}: {error}");
    }
    let (head, whole) = ([magic(b"iofarea1"), 4], page_len());
    for len in [whole - PAGE, whole + PAGE, whole - 1, whole + 1, 0, 1, PAGE] {
        let error = page_error(file(&head, len, &PAGE_SEALS));
        assert!(matches!(error, OpenError::Size { found, .. } if found == len), "{len}: {error}");
    }
}

#[test]
fn a_head_with_any_wrong_word_is_rejected() {
    let wrong = [
        (0, "magic", vec![0, magic(b"iofring2"), magic(b"iofarea1"), magic(b"iofring1").swap_bytes()]),
        (1, "version", vec![0, 1, 3, 5, u64::MAX]),
        (2, "capacity", vec![0, 1, PAGE - 1, PAGE + 1, CAPACITY + 8, MAX_CAPACITY + PAGE, 1 << 63, u64::MAX]),
        (3, "entries", vec![0, 1, 31, 33, 1 << 32, u64::MAX]),
    ];
    for (word, name, values) in wrong {
        for value in values {
            let mut head = ring_head();
            head[word] = value;
            let error = ring_error(file(&head, RING_LEN, &RING_SEALS));
            assert!(
                matches!(error, OpenError::Head { field, found } if field == name && found == value),
                "{error}"
            );
        }
    }
    for head in [[0, 4], [magic(b"iofring1"), 4], [magic(b"iofarea1"), 1], [magic(b"iofarea1"), 5]] {
        assert!(matches!(page_error(file(&head, page_len(), &PAGE_SEALS)), OpenError::Head { .. }));
    }
}

#[test]
fn a_descriptor_without_the_needed_access_is_rejected() {
    // A ring is read, a reader page is written.
    let ring = file(&ring_head(), RING_LEN, &RING_SEALS);
    let writer = File::options().write(true).open(self_path(&ring)).unwrap();
    assert!(matches!(ring_error(writer.into()), OpenError::Map { .. }));
    let page = file(&[magic(b"iofarea1"), 4], page_len(), &PAGE_SEALS);
    let reader = File::open(self_path(&page)).unwrap();
    assert!(matches!(page_error(reader.into()), OpenError::Map { .. }));
    let sealed = file(&[magic(b"iofarea1"), 4], page_len(), &RING_SEALS);
    assert!(matches!(page_error(sealed), OpenError::Map { .. }));
}

fn self_path(fd: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[test]
fn a_ring_of_the_largest_capacity_that_was_never_written_is_empty() {
    let mut head = ring_head();
    (head[2], head[3]) = (MAX_CAPACITY, 16 * 1024);
    let meta = (3200 + head[3] * 24).next_multiple_of(PAGE);
    let ring = Arc::new(Ring::open(file(&head, meta + MAX_CAPACITY, &RING_SEALS)).unwrap());
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    // SAFETY: the file is sealed, nothing writes it, and no other reader has the slot. All words
    // are 0, so the stream is complete at 0.
    let mut reader = unsafe {
        Reader::new(
            Attached { ring, id: 0.into(), start: 0, dropped: 0, non_gating: false },
            page,
            Start::Oldest,
        )
    }
    .unwrap();
    assert_eq!(reader.peek(), Peek::Ended);
}

#[test]
fn a_slot_that_is_returned_twice_is_taken_again_only_once() {
    let page = ReaderPage::create(doorbell().unwrap().0).unwrap();
    let slots: Vec<ReaderId> = (0..MAX_SLOTS).map(|_| page.take_slot().unwrap()).collect();
    assert!(matches!(page.take_slot(), Err(CreateError::Slots)));
    for id in [slots[5], slots[5], (MAX_SLOTS as u32).into(), u32::MAX.into()] {
        page.return_slot(id);
    }
    assert_eq!(page.take_slot().unwrap(), slots[5]);
    assert!(matches!(page.take_slot(), Err(CreateError::Slots)));
    slots.iter().for_each(|id| page.return_slot(*id));
    let mut again: Vec<ReaderId> = slots.iter().map(|_| page.take_slot().unwrap()).collect();
    again.sort_unstable();
    assert_eq!(again, slots);
}
