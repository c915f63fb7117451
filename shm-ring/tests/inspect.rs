//! Snapshots of a ring from outside: running, full, ended, reused, and with any content of the
//! file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use iof_shm_ring::{
    Attached, Gap, Mark, Peek, Policy, Reader, ReaderPage, Reserve, Ring, Snapshot, Start, Stream,
    StreamConfig, doorbell,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, write};
use proptest::prelude::*;

const CAPACITY: u64 = 64 * 1024;

/// A stream, one reader of it, and one of its rings as an inspector maps it.
struct Scene {
    stream: Stream,
    page: Arc<ReaderPage>,
    reader: Reader,
    outside: Arc<Ring>,
}

impl Scene {
    fn new(policy: Policy) -> Scene {
        let config = StreamConfig { capacity: CAPACITY, policy };
        let mut stream = Stream::create(config, "demo 0 stdout").unwrap();
        let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
        let id = page.take_slot().unwrap();
        let attached = stream.attach(&page, id, Start::Oldest, policy == Policy::Block).unwrap();
        let (ring, outside) = (opened(&attached.ring), opened(&attached.ring));
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let reader =
            unsafe { Reader::new(Attached { ring, ..attached }, Arc::clone(&page), Start::Oldest) }.unwrap();
        Scene { stream, page, reader, outside }
    }

    fn inspect(&self) -> (Snapshot, Vec<u8>) {
        let (snapshot, bytes) = Snapshot::with_bytes(&self.outside).unwrap();
        assert_eq!(bytes, pattern(snapshot.floor, snapshot.cached() as usize));
        (snapshot, bytes)
    }

    /// Pushes the next `n` bytes of the pattern.
    fn push(&mut self, n: usize, time: u64) {
        let stats = self.stream.stats();
        self.stream.push(&pattern(stats.produced - stats.dropped, n), time);
    }

    fn drain(&mut self) {
        while self.reader.peek() == Peek::Bytes {
            self.reader.consume(usize::MAX);
        }
    }

    /// Moves the stream to another generation, and the reader after it.
    fn move_stream(&mut self) {
        // Another policy each time, because the stream does not move otherwise.
        let policy = [Policy::Block, Policy::DropNewest][self.stream.stats().generation as usize % 2];
        self.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy }).unwrap();
        assert!(matches!(self.stream.reserve(1), Reserve::Ready(_)));
        self.drain();
        assert_eq!(self.reader.peek(), Peek::Sealed);
        let id = self.page.take_slot().unwrap();
        let attached = self.stream.follow(&self.page, self.reader.id(), id).unwrap();
        self.page.return_slot(self.reader.id());
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        unsafe { self.reader.follow(Attached { ring: opened(&attached.ring), ..attached }) }.unwrap();
    }
}

/// Opens the ring as another process would.
fn opened(ring: &Ring) -> Arc<Ring> {
    Arc::new(Ring::open(ring.as_fd().unwrap().try_clone_to_owned().unwrap()).unwrap())
}

/// Returns the bytes that belong at a position.
fn pattern(position: u64, n: usize) -> Vec<u8> {
    (position..).take(n).map(|position| (position % 251) as u8).collect()
}

#[test]
fn a_snapshot_of_a_running_writers_ring_has_its_words_and_bytes() {
    let mut scene = Scene::new(Policy::DropNewest);
    let (empty, bytes) = scene.inspect();
    assert_eq!((empty.tail, empty.floor, empty.marks.len(), bytes.len()), (0, 0, 0, 0));
    scene.push(1000, 7);
    scene.push(500, 8);
    let (now, _) = scene.inspect();
    assert_eq!(now.label, "demo 0 stdout");
    assert_eq!(now.writer_pid, u64::from(std::process::id()));
    assert_eq!((now.generation, now.base, now.capacity, now.overwrite), (0, 0, CAPACITY, false));
    assert_eq!((now.floor, now.tail, now.dropped, now.produced()), (0, 1500, 0, 1500));
    assert!(now.claimed >= now.tail);
    assert_eq!((now.sealed, now.complete, now.wanted), (None, None, None));
    assert_eq!(now.retired, 0);
    let marks = [(0, 7), (1000, 8)].map(|(offset, time)| Mark { offset, time, dropped: 0 });
    assert_eq!(now.marks, marks);
    // The data lies at the offset that the snapshot specifies.
    let id = scene.page.take_slot().unwrap();
    let attached = scene.stream.attach(&scene.page, id, Start::Now, false).unwrap();
    let mut first = [0; 1500];
    nix::sys::uio::pread(attached.ring.as_fd().unwrap(), &mut first, now.data_offset as i64).unwrap();
    assert_eq!(first[..], pattern(0, 1500));
}

#[test]
fn a_gap_has_the_place_and_the_number_of_the_missing_bytes() {
    let mut scene = Scene::new(Policy::DropNewest);
    scene.push(CAPACITY as usize + 1000, 1);
    scene.drain();
    scene.push(2000, 2);
    scene.stream.discard(30, 3);
    let (now, _) = scene.inspect();
    assert_eq!(now.dropped, 1030);
    let gap = |offset, lost| Gap { offset, lost };
    assert_eq!(now.gaps().collect::<Vec<_>>(), [gap(CAPACITY, 1000), gap(CAPACITY + 1000 + 2000, 30)]);
    assert_eq!(now.produced(), CAPACITY + 3030);
}

#[test]
fn bytes_lost_before_the_first_byte_are_a_gap() {
    let mut scene = Scene::new(Policy::DropNewest);
    scene.stream.discard(10, 1);
    scene.push(5, 2);
    let (now, _) = scene.inspect();
    assert_eq!(now.gaps().collect::<Vec<_>>(), [Gap { offset: 0, lost: 10 }]);
    assert_eq!((now.tail, now.produced()), (5, 15));
}

#[test]
fn a_snapshot_of_an_overwriting_ring_has_a_whole_ring_after_the_end() {
    let mut scene = Scene::new(Policy::DropOldest);
    scene.push(10 * CAPACITY as usize + 7, 1);
    let (running, _) = scene.inspect();
    assert!(running.overwrite);
    assert!(running.floor > 0 && running.cached() >= CAPACITY / 2, "{running:?}");
    scene.stream.complete();
    let (ended, _) = scene.inspect();
    assert_eq!((ended.tail, ended.cached()), (10 * CAPACITY + 7, CAPACITY));
    assert_eq!((ended.complete, ended.sealed), (Some(ended.tail), None));
}

#[test]
fn a_snapshot_shows_which_position_a_blocked_writer_waits_for() {
    let mut scene = Scene::new(Policy::Block);
    scene.push(2 * CAPACITY as usize, 1);
    let (blocked, _) = scene.inspect();
    assert_eq!((blocked.floor, blocked.tail), (0, CAPACITY));
    assert!(blocked.wanted.is_some_and(|wanted| wanted > 0 && wanted <= CAPACITY), "{blocked:?}");
}

#[test]
fn a_sealed_ring_keeps_its_bytes_until_it_is_reused() {
    let mut scene = Scene::new(Policy::DropNewest);
    scene.push(1000, 1);
    scene.move_stream();
    let (sealed, _) = scene.inspect();
    assert_eq!((sealed.generation, sealed.sealed, sealed.cached()), (0, Some(1000), 1000));
    scene.push(10, 2);
    // The third generation reuses the ring of the first.
    scene.move_stream();
    scene.push(20, 3);
    let (reused, _) = scene.inspect();
    assert_eq!((reused.generation, reused.base, reused.sealed), (2, 1010, None));
    assert_eq!((reused.floor, reused.tail), (1010, 1030));
    assert_eq!(reused.marks, [Mark { offset: 1010, time: 3, dropped: 0 }]);
}

/// Runs `write` repeatedly in another thread, and checks that every snapshot taken meanwhile is
/// true.
fn watched(policy: Policy, mut write: impl FnMut(&mut Scene) + Send) {
    let mut scene = Scene::new(policy);
    let outside = Arc::clone(&scene.outside);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                write(&mut scene);
            }
        });
        let (mut produced, mut moves) = (0, 0);
        while moves < 200 {
            // An error is correct if the writer is always faster.
            let Ok((now, bytes)) = Snapshot::with_bytes(&outside) else { continue };
            let whole = bytes == pattern(now.floor, bytes.len());
            let in_order = now.base <= now.floor
                && now.floor <= now.tail
                && now.tail <= now.claimed
                && now.produced() >= produced
                && now.marks.is_sorted_by_key(|mark| mark.offset)
                && now.marks.iter().all(|mark| mark.offset >= now.base)
                && now.sealed.is_none_or(|sealed| sealed == now.tail);
            moves += u32::from(now.produced() > produced);
            produced = now.produced();
            if !whole || !in_order {
                over.store(true, Relaxed);
                panic!("whole: {whole}, {now:?}");
            }
        }
        over.store(true, Relaxed);
    });
}

#[test]
fn snapshots_of_a_ring_that_is_being_overwritten_are_true() {
    watched(Policy::DropOldest, |scene| {
        scene.push(3000, 1);
    });
}

#[test]
fn snapshots_of_a_ring_that_is_being_reused_are_true() {
    watched(Policy::DropNewest, |scene| {
        scene.push(3000, 1);
        scene.move_stream();
    });
}

/// Returns a ring file of the smallest size whose words, from the generation on, are `words`.
fn forged(words: &[u64], capacity: u64) -> OwnedFd {
    let fd = memfd_create(c"forged", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let head = [u64::from_le_bytes(*b"iofring1"), 4, capacity, 32];
    let bytes: Vec<u8> = head.iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect();
    write(&fd, &bytes).unwrap();
    ftruncate(&fd, 4096 + capacity as i64).unwrap();
    let seals = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_FUTURE_WRITE;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

/// Numbers that are likely to find an error.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..10_000u64, (0..10_000u64).prop_map(|n| u64::MAX - n)]
}

proptest! {
    #[test]
    fn a_snapshot_of_any_file_ends_and_covers_only_bytes_of_the_ring(
        words in prop::collection::vec(word(), 60 + 3 * 32),
    ) {
        let ring = Ring::open(forged(&words, 4096)).unwrap();
        let Ok((now, bytes)) = Snapshot::with_bytes(&ring) else { return Ok(()) };
        prop_assert_eq!(bytes.len() as u64, now.cached());
        prop_assert!(now.cached() <= now.capacity);
        prop_assert!(now.marks.len() as u64 <= now.entries);
        prop_assert!(now.gaps().all(|gap| gap.lost > 0));
        let _ = now.produced();
    }
}

#[test]
fn nothing_is_copied_if_the_claim_covers_every_byte() {
    // The tail is 5, but the claimed position is far ahead of it: every byte may be overwritten.
    let mut words = vec![0; 60];
    let index = |byte: usize| byte / 8 - 4;
    words[index(256)] = 5;
    words[index(384)] = 1 << 40;
    let ring = Ring::open(forged(&words, 4096)).unwrap();
    let (now, bytes) = Snapshot::with_bytes(&ring).unwrap();
    assert_eq!((now.floor, now.tail, bytes.len()), (5, 5, 0));
    assert_eq!(now.label, "");
}
