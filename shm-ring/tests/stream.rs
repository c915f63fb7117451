//! What each policy, grouping, wake-ups and generations promise, one at a time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use iof_shm_ring::{
    Area, Attached, Bell, Copied, Grouping, Peek, Policy, Reader, Reserve, Ring, Snapshot, Start, Stream,
    StreamConfig, doorbell, notify,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const CAPACITY: u64 = 64 * 1024;

struct Tool {
    area: Arc<Area>,
    bell: Bell,
}

impl Tool {
    fn new() -> Tool {
        let (ringer, bell) = doorbell().unwrap();
        Tool { area: Arc::new(Area::create(ringer).unwrap()), bell }
    }

    fn attach(&self, stream: &mut Stream, start: Start, may_block: bool) -> Reader {
        let slot = self.area.take_slot().unwrap();
        let attached = stream.attach(&self.area, slot, start, may_block).unwrap();
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        unsafe { Reader::new(mapped(attached), Arc::clone(&self.area), start) }.unwrap()
    }

    fn follow(&self, stream: &mut Stream, reader: &mut Reader) {
        let slot = self.area.take_slot().unwrap();
        let attached = stream.follow(&self.area, reader.slot(), slot).unwrap();
        self.area.return_slot(reader.slot());
        // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
        unsafe { reader.follow(mapped(attached)) }.unwrap();
    }

    fn rings(&self) -> bool {
        poll(&mut [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
    }

    fn ready(&self) -> Vec<u32> {
        let mut ready = Vec::new();
        self.area.take_ready(64, |slot| ready.push(slot));
        ready
    }
}

/// As a reader in another process gets it.
fn mapped(given: Attached) -> Attached {
    let file = given.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    Attached { ring: Arc::new(Ring::open(file).unwrap()), ..given }
}

fn stream(policy: Policy) -> Stream {
    Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap()
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

fn read(reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    while reader.peek() == Peek::Bytes {
        all.extend_from_slice(reader.bytes());
        reader.consume(usize::MAX);
    }
    all
}

#[test]
fn drop_newest_keeps_the_first_bytes_to_the_last_one_that_fits() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let all = bytes(CAPACITY as usize + 1000);
    assert_eq!(stream.push(&all, 1), all.len());
    assert_eq!(stream.stats().dropped, 1000);
    assert_eq!(read(&mut reader), &all[..CAPACITY as usize]);
    assert_eq!(reader.lost(), 1000);
}

#[test]
fn drop_oldest_keeps_the_last_bytes_when_the_stream_ends() {
    let (mut stream, tool) = (stream(Policy::DropOldest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let all = bytes(10 * CAPACITY as usize + 7);
    stream.push(&all, 1);
    stream.complete();
    assert_eq!(stream.stats().dropped, 0);
    let Peek::Gap(gap) = reader.peek() else { panic!("nine rings were overwritten") };
    assert_eq!((gap.offset, gap.lost), (0, all.len() as u64 - CAPACITY));
    assert_eq!(read(&mut reader), &all[all.len() - CAPACITY as usize..]);
    assert_eq!(reader.peek(), Peek::Ended);
}

#[test]
fn block_loses_nothing_and_the_reader_says_when_there_is_room() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let (room, listen) = doorbell().unwrap();
    let mut reader = tool.attach(&mut stream, Start::Oldest, true);
    reader.tell_room(room);
    let heard =
        || poll(&mut [PollFd::new(listen.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0;
    let all = bytes(3 * CAPACITY as usize);
    let (mut pushed, mut got) = (0, Vec::new());
    while got.len() < all.len() {
        pushed += stream.push(&all[pushed..], 1);
        assert!(!heard());
        got.extend(read(&mut reader));
        assert_eq!(heard(), pushed < all.len(), "the bell rings once for each wait, and only then");
        listen.silence();
    }
    assert_eq!(got, all);
    assert_eq!(reader.lost(), 0);
}

#[test]
fn a_laggard_keeps_its_generation_and_costs_nobody_else_a_byte() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut keeps_up = tool.attach(&mut stream, Start::Oldest, false);
    let mut laggard = tool.attach(&mut stream, Start::Oldest, false);
    assert_eq!(laggard.peek(), Peek::Empty);
    let (mut all, mut got) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let some = bytes(5000);
        all.extend_from_slice(&some);
        stream.push(&some, 1);
        got.extend(read(&mut keeps_up));
        if keeps_up.peek() == Peek::Sealed {
            tool.follow(&mut stream, &mut keeps_up);
            got.extend(read(&mut keeps_up));
        }
    }
    assert_eq!(got, all);
    assert_eq!(stream.stats().generation, 1);
    let first = read(&mut laggard);
    assert_eq!(first, &all[..first.len()]);
    assert_eq!(laggard.peek(), Peek::Sealed);
    tool.follow(&mut stream, &mut laggard);
    let Peek::Gap(gap) = laggard.peek() else { panic!("the laggard missed some") };
    assert_eq!(gap.offset, first.len() as u64);
    let rest = read(&mut laggard);
    assert_eq!(rest, &all[all.len() - rest.len()..]);
    assert_eq!(first.len() + gap.lost as usize + rest.len(), all.len());
}

#[test]
fn a_group_comes_when_it_is_large_enough_or_can_grow_no_more() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 1000, time: None }));
    stream.push(&bytes(999), 1);
    assert_eq!(reader.peek(), Peek::Empty);
    assert!(reader.bytes().is_empty());
    stream.push(&[7], 1);
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(reader.bytes().len(), 1000);
    reader.consume(1000);
    stream.push(b"rest", 1);
    assert_eq!(reader.peek(), Peek::Empty);
    stream.complete();
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(reader.bytes(), b"rest");
}

#[test]
fn a_group_comes_in_time_although_it_is_small() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 1000, time: Some(Duration::from_millis(1)) }));
    assert_eq!(reader.deadline(), None);
    stream.push(b"prompt", 1);
    while reader.peek() == Peek::Empty {
        assert!(reader.deadline().is_some(), "what is held back has a deadline");
    }
    assert_eq!(reader.bytes(), b"prompt");
    assert_eq!(reader.deadline(), None);
}

#[test]
fn a_group_larger_than_the_ring_comes_all_the_same() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100 * CAPACITY, time: None }));
    stream.push(&bytes(CAPACITY as usize / 2), 1);
    assert_eq!(reader.peek(), Peek::Bytes);
}

#[test]
fn who_sleeps_is_woken_once_and_who_does_not_is_left_alone() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"x", 1);
    notify([&stream]);
    assert!(!tool.rings(), "nobody sleeps");
    assert!(!tool.area.arm(64), "there is news, so nobody may sleep");
    assert_eq!(tool.ready(), [reader.slot()]);
    assert!(tool.area.arm(64));
    notify([]);
    assert!(!tool.rings(), "there is no news");
    stream.push(b"y", 1);
    notify([&stream]);
    assert!(tool.rings());
    tool.bell.silence();
    stream.push(b"z", 1);
    notify([&stream]);
    assert!(!tool.rings(), "it was woken already");
}

#[test]
fn a_group_wakes_for_its_first_byte_and_for_its_last_and_not_between() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100, time: Some(Duration::from_secs(3600)) }));
    let mut told = Vec::new();
    for i in 0..100 {
        stream.push(b"x", 1);
        notify([&stream]);
        if !tool.ready().is_empty() {
            told.push(i);
            let _ = reader.peek();
        }
    }
    assert_eq!(told, [0, 99]);
    assert_eq!(reader.bytes().len(), 100);
}

#[test]
fn capacity_and_policy_change_without_losing_a_byte() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let before = bytes(CAPACITY as usize);
    stream.push(&before, 1);
    stream.reconfigure(StreamConfig { capacity: 4 * CAPACITY, policy: Policy::DropOldest }).unwrap();
    let after = bytes(3 * CAPACITY as usize);
    stream.push(&after, 1);
    assert_eq!(read(&mut reader), before);
    assert_eq!(reader.peek(), Peek::Sealed);
    tool.follow(&mut stream, &mut reader);
    assert!(reader.ring().overwrite());
    assert_eq!(reader.ring().capacity(), 4 * CAPACITY);
    assert_eq!(read(&mut reader), after);
    assert_eq!(reader.lost(), 0);
}

#[test]
fn a_new_generation_takes_the_memory_of_one_that_was_given_back() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let all = bytes(CAPACITY as usize);
    let mut policies = [Policy::Block, Policy::DropNewest].into_iter().cycle();
    let mut touch = |stream: &mut Stream, reader: &mut Reader| {
        let policy = policies.next().unwrap();
        stream.reconfigure(StreamConfig { capacity: CAPACITY, policy }).unwrap();
        stream.push(&all, 1);
        while reader.peek() == Peek::Bytes {
            reader.consume(usize::MAX);
        }
        assert_eq!(reader.peek(), Peek::Sealed);
        tool.follow(stream, reader);
        reader.peek();
        reader.consume(usize::MAX);
    };
    touch(&mut stream, &mut reader);
    touch(&mut stream, &mut reader);
    let faults = || {
        nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD)
            .unwrap()
            .minor_page_faults()
    };
    let before = faults();
    for _ in 0..100 {
        touch(&mut stream, &mut reader);
    }
    let pages = (CAPACITY / 4096) as i64;
    assert!(faults() - before < 100 * pages / 2, "a hundred fresh rings would fault {} times", 100 * pages);
}

#[test]
fn a_writer_that_is_gone_is_told_from_one_that_is_quiet_after_the_last_byte() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"last words", 1);
    reader.writer_gone();
    assert_eq!(read(&mut reader), b"last words");
    assert_eq!(reader.peek(), Peek::Gone);
    stream.complete();
    assert_eq!(reader.peek(), Peek::Ended);
}

#[test]
fn a_copying_reader_never_makes_the_stream_move() {
    let (mut stream, tool) = (stream(Policy::DropOldest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let (all, mut into, mut accounted) = (bytes(20 * CAPACITY as usize), vec![0; 3000], 0u64);
    for part in all.chunks(70_000) {
        stream.push(part, 1);
        match reader.copy(&mut into) {
            Copied::Bytes(n) => {
                assert_eq!(into[..n], all[accounted as usize..accounted as usize + n]);
                accounted += n as u64;
            }
            Copied::Nothing(Peek::Gap(gap)) => accounted += gap.lost,
            Copied::Nothing(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(accounted, reader.delivered() + reader.lost());
    assert_eq!(stream.stats().generation, 0);
}

#[test]
fn a_ring_from_another_process_is_read_through_its_file_alone() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let slot = tool.area.take_slot().unwrap();
    let attached = stream.attach(&tool.area, slot, Start::Oldest, false).unwrap();
    let area = tool.area.as_fd().unwrap().try_clone_to_owned().unwrap();
    let area = Arc::new(Area::open(area).unwrap());
    // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
    let mut reader = unsafe { Reader::new(mapped(attached), area, Start::Oldest) }.unwrap();
    // Across the seam, several times.
    for round in 0..10 {
        let some = vec![round; 50_000];
        assert!(matches!(stream.reserve(1), Reserve::Ready(_)));
        stream.push(&some, 1);
        assert_eq!(read(&mut reader), some);
    }
}

#[test]
fn a_stream_with_more_gaps_than_its_index_holds_goes_on() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(&bytes(CAPACITY as usize), 1);
    for _ in 0..1000 {
        assert_eq!(reader.peek(), Peek::Bytes);
        reader.consume(1);
        stream.push(b"xy", 1);
    }
    assert!(stream.stats().dropped > 0, "of every two bytes one found no room");
    let mut drain = |stream: &mut Stream| loop {
        match reader.peek() {
            Peek::Bytes => reader.consume(usize::MAX),
            Peek::Sealed => tool.follow(stream, &mut reader),
            Peek::Gap(_) => {}
            _ => return (reader.delivered() + reader.lost(), reader.lost()),
        }
    };
    let (_, lost) = drain(&mut stream);
    for _ in 0..3 {
        stream.push(&bytes(1000), 1);
        assert_eq!(drain(&mut stream), (stream.stats().produced, lost), "who keeps up loses nothing");
    }
}

#[test]
fn a_reader_at_the_end_of_its_generation_leaves_its_slot_to_another() {
    let tool = Tool::new();
    let (mut first, mut second) = (stream(Policy::DropOldest), stream(Policy::DropNewest));
    let mut reader = tool.attach(&mut first, Start::Oldest, false);
    first.reconfigure(StreamConfig { capacity: 2 * CAPACITY, policy: Policy::DropOldest }).unwrap();
    first.push(b"in the next generation", 1);
    assert_eq!(reader.peek(), Peek::Sealed);

    // What the engine may do when the reader's tool has asked for the next generation.
    let slot = reader.slot();
    assert!(first.detach(&tool.area, slot));
    tool.area.return_slot(slot);
    let mut other = tool.attach(&mut second, Start::Oldest, false);
    assert_eq!(other.slot(), slot);

    reader.release();
    reader.consume(1);
    reader.group(Some(Grouping { bytes: 1 << 40, time: None }));
    assert_eq!(reader.copy(&mut [0; 8]), Copied::Nothing(Peek::Sealed));
    drop(reader);
    // The other's hold still stands: its bytes are not overwritten, and it is woken for them.
    second.push(&bytes(2 * CAPACITY as usize), 1);
    notify([&second]);
    assert_eq!(tool.ready(), [slot]);
    second.complete();
    assert_eq!(read(&mut other), bytes(CAPACITY as usize));
}

/// What a reader that has read a full ring loses of one byte more than its size, beside another that reads nothing.
fn lost_beside(policy: Policy, neighbour: bool) -> u64 {
    let (mut stream, tool) = (stream(policy), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let _neighbour = neighbour.then(|| tool.attach(&mut stream, Start::Oldest, false));
    stream.push(&bytes(CAPACITY as usize), 1);
    read(&mut reader);
    stream.push(&bytes(CAPACITY as usize + 1), 1);
    stream.complete();
    loop {
        read(&mut reader);
        match reader.peek() {
            Peek::Sealed => tool.follow(&mut stream, &mut reader),
            Peek::Ended => return reader.lost(),
            _ => {}
        }
    }
}

#[test]
fn a_reader_loses_no_more_beside_one_that_is_stalled() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let alone = lost_beside(policy, false);
        assert!(alone > 0);
        assert!(lost_beside(policy, true) <= alone, "{policy:?}");
    }
}

#[test]
fn a_stream_that_is_named_twice_wakes_its_readers_all_the_same() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let _reader = tool.attach(&mut stream, Start::Oldest, false);
    assert!(tool.area.arm(64));
    stream.push(b"x", 1);
    notify([&stream, &stream]);
    assert!(tool.rings());
}

#[test]
fn a_reader_that_starts_now_accounts_for_what_comes_after_its_attaching_however_late_it_opens() {
    // What is dropped at its very start is its loss; what was dropped before is not.
    let (mut first, tool) = (stream(Policy::DropNewest), Tool::new());
    first.push(b"abc", 1);
    first.discard(500, 1);
    let slot = tool.area.take_slot().unwrap();
    let given = first.attach(&tool.area, slot, Start::Now, false).unwrap();
    first.discard(1000, 1);
    first.push(b"def", 1);
    // SAFETY: the stream is this test's, which does not detach its reader.
    let mut reader = unsafe { Reader::new(mapped(given), Arc::clone(&tool.area), Start::Now) }.unwrap();
    assert!(matches!(reader.peek(), Peek::Gap(gap) if gap.lost == 1000 && gap.offset == 503));
    assert_eq!(read(&mut reader), b"def");

    // Nor where the writer has lapped its start meanwhile.
    let mut second = stream(Policy::DropNewest);
    let full = tool.attach(&mut second, Start::Oldest, false);
    second.push(&bytes(CAPACITY as usize + 1000), 1);
    second.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    second.push(b"x", 1);
    drop(full);
    let (began, slot) = (second.stats().produced, tool.area.take_slot().unwrap());
    let given = second.attach(&tool.area, slot, Start::Now, false).unwrap();
    for _ in 0..10 {
        second.push(&bytes(CAPACITY as usize / 2), 1);
    }
    // SAFETY: as above.
    let mut reader = unsafe { Reader::new(mapped(given), Arc::clone(&tool.area), Start::Now) }.unwrap();
    while !matches!(reader.peek(), Peek::Empty) {
        read(&mut reader);
    }
    assert_eq!(reader.delivered() + reader.lost(), second.stats().produced - began);
}

#[test]
fn a_smaller_cache_gives_memory_back() {
    let mut stream =
        Stream::create(StreamConfig { capacity: 4 << 20, policy: Policy::DropOldest }, "").unwrap();
    let tool = Tool::new();
    let given = stream.attach(&tool.area, tool.area.take_slot().unwrap(), Start::Now, false).unwrap();
    let large = given.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(stream.detach(&tool.area, given.slot));
    drop(given);
    stream.push(&bytes(8 << 20), 1);
    let maps_of = |file: &std::os::fd::OwnedFd| {
        let inode = nix::sys::stat::fstat(file).unwrap().st_ino.to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
    };
    assert!(maps_of(&large) > 0);
    stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    stream.push(b"in the next generation", 1);
    assert_eq!(maps_of(&large), 0, "the old ring is still mapped");
}

#[test]
fn nothing_counts_after_the_end() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"all", 1);
    stream.complete();
    let stats = stream.stats();
    assert_eq!(read(&mut reader), b"all");
    assert_eq!(reader.peek(), Peek::Ended);
    stream.reconfigure(StreamConfig { capacity: 2 * CAPACITY, policy: Policy::DropOldest }).unwrap();
    stream.push(b"late", 1);
    stream.discard(7, 1);
    assert_eq!(stream.stats(), stats);
    assert_eq!(reader.peek(), Peek::Ended);
    assert_eq!(tool.attach(&mut stream, Start::Now, false).peek(), Peek::Ended);
}

#[test]
fn only_the_slots_that_are_asked_for_are_taken() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let readers: Vec<Reader> = (0..11).map(|_| tool.attach(&mut stream, Start::Oldest, false)).collect();
    stream.push(b"x", 1);
    notify([&stream]);
    let mut taken = Vec::new();
    tool.area.take_ready(3, |slot| taken.push(slot));
    assert_eq!(taken, [0, 1, 2]);
    assert!(tool.area.arm(3), "there is no news for the first three");
    tool.area.disarm();
    assert!(!tool.area.arm(11));
    assert_eq!(tool.ready(), (3..11).collect::<Vec<_>>());
    drop(readers);
}

#[test]
fn who_sleeps_is_woken_for_a_gap_and_for_a_group_that_can_grow_no_more() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    // More than the ring holds: half of it is enough.
    reader.group(Some(Grouping { bytes: 1 << 40, time: None }));
    stream.push(b"x", 1);
    notify([&stream]);
    tool.ready();
    assert_eq!(reader.peek(), Peek::Empty);
    assert!(tool.area.arm(64));
    stream.push(&bytes(CAPACITY as usize / 2), 1);
    notify([&stream]);
    assert!(tool.rings(), "half a ring");
    tool.bell.silence();
    tool.ready();
    assert_eq!(read(&mut reader).len(), CAPACITY as usize / 2 + 1);
    assert_eq!(reader.peek(), Peek::Empty);
    assert!(tool.area.arm(64));
    stream.discard(3, 1);
    notify([&stream]);
    assert!(tool.rings(), "a gap");
}

#[test]
fn the_last_group_of_a_writer_that_is_gone_is_handed_out() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100, time: None }));
    stream.push(b"not yet a group", 1);
    assert_eq!(reader.peek(), Peek::Empty);
    reader.writer_gone();
    assert_eq!(read(&mut reader), b"not yet a group");
    assert_eq!(reader.peek(), Peek::Gone);
}

#[test]
fn the_wish_for_room_is_taken_back_when_there_is_room() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, true);
    stream.push(&bytes(2 * CAPACITY as usize), 1);
    assert!(Snapshot::take(reader.ring()).unwrap().wanted.is_some());
    read(&mut reader);
    assert!(matches!(stream.reserve(1), Reserve::Ready(_)));
    assert_eq!(Snapshot::take(reader.ring()).unwrap().wanted, None);
}

#[test]
fn a_reader_that_lets_pass_holds_nothing_up() {
    for policy in [Policy::DropNewest, Policy::Block] {
        let (mut stream, tool) = (stream(policy), Tool::new());
        let mut passed = tool.attach(&mut stream, Start::Oldest, true);
        let mut keeps_up = tool.attach(&mut stream, Start::Oldest, false);
        passed.let_pass();
        for _ in 0..10 {
            assert_eq!(stream.push(&bytes(CAPACITY as usize / 4), 1), CAPACITY as usize / 4);
            assert_eq!(read(&mut keeps_up), bytes(CAPACITY as usize / 4));
        }
        assert_eq!(stream.stats().generation, 0);
        let mut into = vec![0; CAPACITY as usize];
        assert!(matches!(passed.copy(&mut into), Copied::Nothing(Peek::Gap(gap)) if gap.offset == 0));
        let Copied::Bytes(n) = passed.copy(&mut into) else { panic!("there are bytes behind the gap") };
        assert_eq!(passed.lost() + n as u64, stream.stats().produced);
    }
}

#[test]
fn each_byte_has_the_time_at_which_it_was_read() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    assert_eq!(reader.time(), None);
    stream.push(b"first", 1000);
    stream.push(b"second", 2000);
    assert_eq!(reader.peek(), Peek::Bytes);
    for (consumed, time) in [(0, 1000), (4, 1000), (1, 2000), (5, 2000)] {
        reader.consume(consumed);
        assert_eq!(reader.time(), Some(time));
    }
}
