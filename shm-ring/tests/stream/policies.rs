//! The behaviour of a full ring, and the sequence of generations.

use std::os::fd::AsFd;

use iof_shm_ring::{Peek, Policy, Reader, Reserve, Snapshot, Start, Stream, StreamConfig, doorbell};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::tool::{CAPACITY, Tool, bytes, read, stream};

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
fn a_stream_that_is_broken_off_ends_with_what_is_missing_for_early_and_late_readers() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, true);
    stream.push(b"some", 1);
    stream.discard(3, 1);
    stream.break_off(5);
    stream.complete();
    assert_eq!(stream.push(b"more", 1), 4);
    for reader in [&mut reader, &mut tool.attach(&mut stream, Start::Oldest, false)] {
        assert_eq!(read(reader), b"some");
        assert_eq!((reader.lost(), reader.peek()), (3, Peek::Broken { missing: 5 }));
    }
    let snapshot = Snapshot::take(reader.ring()).unwrap();
    assert_eq!((snapshot.complete, snapshot.missing), (Some(4), Some(5)));
    assert_eq!((stream.stats().produced, stream.stats().missing), (7, Some(5)));
}

#[test]
fn block_loses_nothing_and_the_reader_rings_when_there_is_room() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let (room, listen) = doorbell().unwrap();
    let mut reader = tool.attach(&mut stream, Start::Oldest, true);
    reader.set_room_bell(room);
    let rings =
        || poll(&mut [PollFd::new(listen.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0;
    let all = bytes(3 * CAPACITY as usize);
    let (mut pushed, mut got) = (0, Vec::new());
    while got.len() < all.len() {
        pushed += stream.push(&all[pushed..], 1);
        assert!(!rings());
        got.extend(read(&mut reader));
        assert_eq!(rings(), pushed < all.len(), "the bell rings once for each wait, and only then");
        listen.silence();
    }
    assert_eq!(got, all);
    assert_eq!(reader.lost(), 0);
}

#[test]
fn every_reader_sees_that_the_writer_waits_for_a_gating_reader() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let mut gating = tool.attach(&mut stream, Start::Oldest, true);
    let mut other = tool.attach(&mut stream, Start::Oldest, false);
    let all = bytes(CAPACITY as usize + 1);
    assert_eq!(stream.push(&all[..CAPACITY as usize], 1), CAPACITY as usize);
    assert!(!gating.writer_waits() && !other.writer_waits(), "the writer does not wait before it needs room");
    read(&mut other);
    assert_eq!(stream.push(&all[CAPACITY as usize..], 1), 0);
    assert!(gating.writer_waits() && other.writer_waits());
    read(&mut gating);
    assert_eq!(stream.push(&all[CAPACITY as usize..], 1), 1);
    assert!(!gating.writer_waits() && !other.writer_waits());
}

#[test]
fn a_slow_reader_keeps_its_generation_and_costs_others_no_byte() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut keeps_up = tool.attach(&mut stream, Start::Oldest, false);
    let mut slow = tool.attach(&mut stream, Start::Oldest, false);
    assert_eq!(slow.peek(), Peek::Empty);
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
    let first = read(&mut slow);
    assert_eq!(first, &all[..first.len()]);
    assert_eq!(slow.peek(), Peek::Sealed);
    tool.follow(&mut stream, &mut slow);
    let Peek::Gap(gap) = slow.peek() else { panic!("the slow reader missed some bytes") };
    assert_eq!(gap.offset, first.len() as u64);
    let rest = read(&mut slow);
    assert_eq!(rest, &all[all.len() - rest.len()..]);
    assert_eq!(first.len() + gap.lost as usize + rest.len(), all.len());
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
fn a_new_generation_reuses_the_memory_of_a_released_one() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let all = bytes(CAPACITY as usize);
    let mut policies = [Policy::Block, Policy::DropNewest].into_iter().cycle();
    let mut advance = |stream: &mut Stream, reader: &mut Reader| {
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
    advance(&mut stream, &mut reader);
    advance(&mut stream, &mut reader);
    let faults = || {
        nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD)
            .unwrap()
            .minor_page_faults()
    };
    let before = faults();
    for _ in 0..100 {
        advance(&mut stream, &mut reader);
    }
    let pages = (CAPACITY / 4096) as i64;
    assert!(faults() - before < 100 * pages / 2, "a hundred fresh rings would fault {} times", 100 * pages);
}

#[test]
fn a_stream_with_more_gaps_than_index_entries_continues() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(&bytes(CAPACITY as usize), 1);
    for _ in 0..1000 {
        assert_eq!(reader.peek(), Peek::Bytes);
        reader.consume(1);
        stream.push(b"xy", 1);
    }
    assert!(stream.stats().dropped > 0, "one of every two bytes found no room");
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
        assert_eq!(
            drain(&mut stream),
            (stream.stats().produced, lost),
            "a reader that keeps up loses nothing"
        );
    }
}

/// Returns the number of bytes that a reader loses of a ring's capacity plus one, after it has read
/// a full ring, with or without a second reader that reads nothing.
fn lost_with(policy: Policy, neighbour: bool) -> u64 {
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
fn a_stalled_reader_does_not_increase_the_loss_of_another() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let alone = lost_with(policy, false);
        assert!(alone > 0);
        assert!(lost_with(policy, true) <= alone, "{policy:?}");
    }
}

#[test]
fn a_smaller_cache_frees_memory() {
    let mut stream =
        Stream::create(StreamConfig { capacity: 4 << 20, policy: Policy::DropOldest }, "").unwrap();
    let tool = Tool::new();
    let given = stream.attach(&tool.page, tool.page.take_slot().unwrap(), Start::Now, false).unwrap();
    let large = given.ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(stream.detach(&tool.page, given.id));
    drop(given);
    stream.push(&bytes(8 << 20), 1);
    let count_maps = |file: &std::os::fd::OwnedFd| {
        let inode = nix::sys::stat::fstat(file).unwrap().st_ino.to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
    };
    assert!(count_maps(&large) > 0);
    stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    stream.push(b"in the next generation", 1);
    assert_eq!(count_maps(&large), 0, "the old ring is still mapped");
}

#[test]
fn nothing_is_counted_after_the_end() {
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
fn the_request_for_room_is_withdrawn_when_there_is_room() {
    let (mut stream, tool) = (stream(Policy::Block), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, true);
    stream.push(&bytes(2 * CAPACITY as usize), 1);
    assert!(Snapshot::take(reader.ring()).unwrap().wanted.is_some());
    read(&mut reader);
    assert!(matches!(stream.reserve(1), Reserve::Ready(_)));
    assert_eq!(Snapshot::take(reader.ring()).unwrap().wanted, None);
}
