//! What comes from a peer that lies: a tool's own words cost only that tool, and files that are not
//! what they say are refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{spawn, yield_now};

use iof_shm_ring::{
    Attached, CreateError, MAX_CAPACITY, MAX_SLOTS, OpenError, Peek, Policy, Reader, ReaderPage, Ring, Start,
    Stream, StreamConfig, doorbell, notify,
};
use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::ftruncate;

const CAPACITY: u64 = 64 * 1024;
const PAGE: u64 = 4096;
/// Where a reader page's slots begin, 64 bytes each: hold, cursor, threshold.
const SLOTS: usize = 128 + MAX_SLOTS / 8;

fn own(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

// A tool that writes whatever it likes, whenever it likes, into its reader page.

struct Tool {
    page: Arc<ReaderPage>,
    reader: Reader,
}

impl Tool {
    fn attach(stream: &mut Stream, may_block: bool) -> Tool {
        let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
        let slot = page.take_slot().unwrap();
        let given = stream.attach(&page, slot, Start::Oldest, may_block).unwrap();
        let ring = Arc::new(Ring::open(own(given.ring.as_fd().unwrap())).unwrap());
        let mapped = Arc::new(ReaderPage::open(own(page.as_fd().unwrap())).unwrap());
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        let reader = unsafe { Reader::new(Attached { ring, ..given }, mapped, Start::Oldest) }.unwrap();
        Tool { page, reader }
    }

    fn follow(&mut self, stream: &mut Stream) {
        let slot = self.page.take_slot().unwrap();
        let old = self.reader.slot();
        let Some(given) = stream.follow(&self.page, old, slot) else { return self.page.return_slot(slot) };
        self.page.return_slot(old);
        let ring = Arc::new(Ring::open(own(given.ring.as_fd().unwrap())).unwrap());
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        unsafe { self.reader.follow(Attached { ring, ..given }) }.unwrap();
    }

    /// Reads all there is, following, and compares it with what was produced from its place on.
    fn read(&mut self, stream: &mut Stream, produced: &[u8]) {
        loop {
            let at = self.reader.produced() as usize;
            match self.reader.peek() {
                Peek::Bytes => {
                    let n = self.reader.bytes().len();
                    assert_eq!(self.reader.bytes(), &produced[at..at + n]);
                    self.reader.consume(n);
                }
                Peek::Sealed => self.follow(stream),
                Peek::Empty | Peek::Ended => return,
                other => panic!("an honest reader that keeps up sees {other:?}"),
            }
        }
    }
}

/// Numbers that a hostile tool would pick: extremes, near the tail, anything.
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
            // Just where the writer wants to go next.
            3 | 4 => tail.saturating_sub(CAPACITY) + any % 10_000,
            5 => tail.wrapping_sub(CAPACITY).wrapping_add(any % (3 * CAPACITY)),
            6 => 1 << (any % 64),
            _ => any,
        }
    }
}

/// A tool's own view of its reader page: bare memory.
struct Scribbler {
    map: MmapRaw,
    lies: Lies,
}

impl Scribbler {
    fn new(page: &ReaderPage, seed: u64) -> Scribbler {
        Scribbler { map: MmapRaw::map_raw(&own(page.as_fd().unwrap())).unwrap(), lies: Lies(seed) }
    }

    /// Writes a lie into `armed`, ready bits, and hold, cursor and threshold of the first slots.
    fn scribble(&mut self, tail: u64) {
        for at in [16, 128].into_iter().chain((0..12).map(|i| SLOTS + i / 3 * 64 + i % 3 * 8)) {
            let lie = self.lies.lie(tail);
            self.write(at, lie);
        }
    }

    fn write(&self, at: usize, value: u64) {
        assert!(at + 8 <= self.map.len() && at.is_multiple_of(8));
        // SAFETY: just checked; everybody uses these words as atomics.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<AtomicU64>() }.store(value, Relaxed);
    }
}

/// 400 rings' worth of bytes, with a liar in the newest generation all the time, who lies between
/// the writer's steps, and in the second half during them as well.
fn an_honest_reader_beside_a_liar_is_exact(policy: Policy) {
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
    let (mut at, mut sizes) = (0, Lies(3));
    while at < produced.len() {
        between.scribble(at as u64);
        let n = (sizes.next() as usize % 9000 + 1).min(produced.len() - at);
        assert_eq!(stream.push(&produced[at..at + n], 1), n, "only who may block can, and that one keeps up");
        at += n;
        if at > produced.len() / 2 {
            tail.store(at as u64, Relaxed);
        }
        notify([&stream]);
        honest.read(&mut stream, &produced[..at]);
        liar.follow(&mut stream);
    }
    tail.store(u64::MAX, Relaxed);
    scribbling.join().unwrap();
    stream.complete();
    honest.read(&mut stream, &produced);
    assert_eq!(honest.reader.peek(), Peek::Ended);
    assert_eq!((honest.reader.delivered(), honest.reader.lost()), (produced.len() as u64, 0));
    assert_eq!(stream.stats().dropped, 0);
    assert!(stream.stats().generation > 10, "the liar was never in the way");
}

#[test]
fn a_lying_tool_costs_others_nothing_when_the_newest_is_dropped() {
    an_honest_reader_beside_a_liar_is_exact(Policy::DropNewest);
}

#[test]
fn a_lying_tool_costs_others_nothing_when_the_oldest_is_dropped() {
    an_honest_reader_beside_a_liar_is_exact(Policy::DropOldest);
}

#[test]
fn a_lying_tool_costs_others_nothing_when_the_source_is_to_wait() {
    an_honest_reader_beside_a_liar_is_exact(Policy::Block);
}

#[test]
fn a_hold_on_bytes_that_are_gone_holds_nothing() {
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest };
    let mut stream = Stream::create(config, "hostile").unwrap();
    let liar = Tool::attach(&mut stream, false);
    stream.push(&vec![0; 2 * CAPACITY as usize], 1);
    Scribbler::new(&liar.page, 1).write(SLOTS + liar.reader.slot() as usize * 64, 0);
    stream.push(&vec![0; 10 * CAPACITY as usize], 1);
    assert_eq!(stream.stats().generation, 0, "nobody was in the way");
}

#[test]
fn slots_beyond_the_area_are_refused() {
    let mut stream = Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::Block }, "").unwrap();
    let mut tool = Tool::attach(&mut stream, false);
    let ring = Arc::new(Ring::open(own(stream_ring(&mut stream).as_fd().unwrap())).unwrap());
    for slot in [MAX_SLOTS as u32, u32::MAX] {
        assert!(matches!(stream.attach(&tool.page, slot, Start::Now, false), Err(CreateError::Slots)));
        let given = || Attached { ring: Arc::clone(&ring), slot, start: 0, dropped: 0, non_gating: false };
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        let moved = unsafe { tool.reader.follow(given()) };
        assert!(matches!(moved, Err(OpenError::Slot { .. })));
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        let new = unsafe { Reader::new(given(), Arc::clone(&tool.page), Start::Oldest) };
        assert!(matches!(new, Err(OpenError::Slot { .. })));
    }
    stream.push(b"still here", 1);
    tool.read(&mut stream, b"still here");
    assert_eq!(tool.reader.delivered(), 10);
}

fn stream_ring(stream: &mut Stream) -> Arc<Ring> {
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let slot = page.take_slot().unwrap();
    let given = stream.attach(&page, slot, Start::Now, false).unwrap();
    stream.detach(&page, slot);
    given.ring
}

// Files that are not what they say.

/// Seals of a ring, and of a reader page.
const RING: [SealFlag; 4] =
    [SealFlag::F_SEAL_SEAL, SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_FUTURE_WRITE];
const AREA: [SealFlag; 3] = [SealFlag::F_SEAL_SEAL, SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW];

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
    [magic(b"iofring1"), 2, CAPACITY, CAPACITY / 2048, 0, 0, 0]
}

/// The head and 32 entries of 24 bytes fit into one page.
const RING_LEN: u64 = PAGE + CAPACITY;

fn refused(fd: OwnedFd) -> OpenError {
    Ring::open(fd).err().expect("not a ring")
}

fn area_len() -> u64 {
    let page = ReaderPage::create(doorbell().unwrap().0).unwrap();
    fstat(page.as_fd().unwrap()).unwrap().st_size as u64
}

fn area_refused(fd: OwnedFd) -> OpenError {
    ReaderPage::open(fd).err().expect("not an page")
}

#[test]
fn files_made_as_the_engine_makes_them_are_taken() {
    // Or the tests below would show nothing.
    assert_eq!(Ring::open(file(&ring_head(), RING_LEN, &RING)).unwrap().capacity(), CAPACITY);
    ReaderPage::open(file(&[magic(b"iofarea1"), 2], area_len(), &AREA)).unwrap();
}

#[test]
fn what_is_no_memory_file_is_refused() {
    let (pipe, _other) = nix::unistd::pipe().unwrap();
    let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let directory = File::open("/").unwrap();
    let path = open("/dev/zero", OFlag::O_PATH, Mode::empty()).unwrap();
    for fd in [pipe, device.into(), directory.into(), path] {
        assert!(matches!(refused(own(fd.as_fd())), OpenError::Seals { .. }));
        assert!(matches!(area_refused(fd), OpenError::Seals { .. }));
    }
}

#[test]
fn a_file_that_lacks_any_of_its_seals_is_refused() {
    for without in RING {
        let seals: Vec<SealFlag> = RING.into_iter().filter(|seal| *seal != without).collect();
        let OpenError::Unsealed { missing } = refused(file(&ring_head(), RING_LEN, &seals)) else {
            panic!("{without:?} is needed");
        };
        assert_eq!(missing, without.bits());
    }
    let (head, len) = ([magic(b"iofarea1"), 2], area_len());
    for without in AREA {
        let seals: Vec<SealFlag> = AREA.into_iter().filter(|seal| *seal != without).collect();
        let OpenError::Unsealed { missing } = area_refused(file(&head, len, &seals)) else {
            panic!("{without:?} is needed");
        };
        assert_eq!(missing, without.bits());
    }
}

#[test]
fn a_file_of_another_size_than_its_head_says_is_refused() {
    for len in [RING_LEN - PAGE, RING_LEN + PAGE, RING_LEN - 1, RING_LEN + 1, 0, 1, 56, PAGE, 2 * PAGE - 1] {
        let error = refused(file(&ring_head(), len, &RING));
        assert!(matches!(error, OpenError::Size { found, .. } if found == len), "{len}: {error}");
    }
    let (head, whole) = ([magic(b"iofarea1"), 2], area_len());
    for len in [whole - PAGE, whole + PAGE, whole - 1, whole + 1, 0, 1, PAGE] {
        let error = area_refused(file(&head, len, &AREA));
        assert!(matches!(error, OpenError::Size { found, .. } if found == len), "{len}: {error}");
    }
}

#[test]
fn a_head_with_any_word_wrong_is_refused() {
    let wrong = [
        (0, "magic", vec![0, magic(b"iofring2"), magic(b"iofarea1"), magic(b"iofring1").swap_bytes()]),
        (1, "version", vec![0, 1, 3, u64::MAX]),
        (2, "capacity", vec![0, 1, PAGE - 1, PAGE + 1, CAPACITY + 8, MAX_CAPACITY + PAGE, 1 << 63, u64::MAX]),
        (3, "entries", vec![0, 1, 31, 33, 1 << 32, u64::MAX]),
    ];
    for (at, name, values) in wrong {
        for value in values {
            let mut head = ring_head();
            head[at] = value;
            let error = refused(file(&head, RING_LEN, &RING));
            assert!(
                matches!(error, OpenError::Head { field, found } if field == name && found == value),
                "{error}"
            );
        }
    }
    for head in [[0, 2], [magic(b"iofring1"), 2], [magic(b"iofarea1"), 1], [magic(b"iofarea1"), 3]] {
        assert!(matches!(area_refused(file(&head, area_len(), &AREA)), OpenError::Head { .. }));
    }
}

#[test]
fn a_descriptor_that_may_not_do_what_is_needed_is_refused() {
    // A ring is read, a reader page is written.
    let ring = file(&ring_head(), RING_LEN, &RING);
    let writer = File::options().write(true).open(self_path(&ring)).unwrap();
    assert!(matches!(refused(writer.into()), OpenError::Map { .. }));
    let page = file(&[magic(b"iofarea1"), 2], area_len(), &AREA);
    let reader = File::open(self_path(&page)).unwrap();
    assert!(matches!(area_refused(reader.into()), OpenError::Map { .. }));
    let sealed = file(&[magic(b"iofarea1"), 2], area_len(), &RING);
    assert!(matches!(area_refused(sealed), OpenError::Map { .. }));
}

fn self_path(fd: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[test]
fn a_ring_of_the_largest_capacity_that_nobody_ever_wrote_is_empty() {
    let mut head = ring_head();
    (head[2], head[3]) = (MAX_CAPACITY, 16 * 1024);
    let meta = (3200 + head[3] * 24).next_multiple_of(PAGE);
    let ring = Arc::new(Ring::open(file(&head, meta + MAX_CAPACITY, &RING)).unwrap());
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    // Its words are all 0: complete at 0.
    // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
    let mut reader = unsafe {
        Reader::new(Attached { ring, slot: 0, start: 0, dropped: 0, non_gating: false }, page, Start::Oldest)
    }
    .unwrap();
    assert_eq!(reader.peek(), Peek::Ended);
}

#[test]
fn a_slot_is_handed_out_again_once_however_often_it_is_returned() {
    let page = ReaderPage::create(doorbell().unwrap().0).unwrap();
    let slots: Vec<u32> = (0..MAX_SLOTS).map(|_| page.take_slot().unwrap()).collect();
    assert!(matches!(page.take_slot(), Err(CreateError::Slots)));
    for slot in [slots[5], slots[5], MAX_SLOTS as u32, u32::MAX] {
        page.return_slot(slot);
    }
    assert_eq!(page.take_slot().unwrap(), slots[5]);
    assert!(matches!(page.take_slot(), Err(CreateError::Slots)));
    slots.iter().for_each(|slot| page.return_slot(*slot));
    let mut again: Vec<u32> = slots.iter().map(|_| page.take_slot().unwrap()).collect();
    again.sort_unstable();
    assert_eq!(again, slots);
}
