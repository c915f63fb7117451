//! Tests of readers that borrow, copy, group, sleep and are notified.

use std::sync::Arc;
use std::time::Duration;

use iof_shm_ring::{
    Behind, Copied, Grouping, Peek, Policy, Reader, ReaderId, ReaderPage, Reserve, Start, StreamConfig,
    notify,
};

use crate::tool::{CAPACITY, Tool, bytes, mapped, read, stream};

#[test]
fn a_group_is_returned_when_it_is_large_enough_or_cannot_grow() {
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
fn a_small_group_is_returned_in_time() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 1000, time: Some(Duration::from_millis(1)) }));
    assert_eq!(reader.deadline(), None);
    stream.push(b"prompt", 1);
    while reader.peek() == Peek::Empty {
        assert!(reader.deadline().is_some(), "a withheld group has a deadline");
    }
    assert_eq!(reader.bytes(), b"prompt");
    assert_eq!(reader.deadline(), None);
}

#[test]
fn a_group_larger_than_the_ring_is_returned_at_half_a_ring() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100 * CAPACITY, time: None }));
    stream.push(&bytes(CAPACITY as usize / 2), 1);
    assert_eq!(reader.peek(), Peek::Bytes);
}

#[test]
fn a_sleeping_tool_is_woken_once_and_an_awake_one_is_not() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"x", 1);
    notify([&stream]);
    assert!(!tool.rings(), "the tool does not sleep");
    assert!(!tool.page.arm(64), "a ready bit is set, so the tool must not sleep");
    assert_eq!(tool.ready(), [reader.id()]);
    assert!(tool.page.arm(64));
    notify([]);
    assert!(!tool.rings(), "there is no update");
    stream.push(b"y", 1);
    notify([&stream]);
    assert!(tool.rings());
    tool.bell.silence();
    stream.push(b"z", 1);
    notify([&stream]);
    assert!(!tool.rings(), "it was woken already");
}

#[test]
fn a_group_wakes_for_its_first_and_its_last_byte_only() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100, time: Some(Duration::from_secs(3600)) }));
    let mut wakeups = Vec::new();
    for i in 0..100 {
        stream.push(b"x", 1);
        notify([&stream]);
        if !tool.ready().is_empty() {
            wakeups.push(i);
            let _ = reader.peek();
        }
    }
    assert_eq!(wakeups, [0, 99]);
    assert_eq!(reader.bytes().len(), 100);
}

#[test]
fn a_writer_that_is_gone_is_reported_after_the_last_byte() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"last words", 1);
    reader.set_writer_gone();
    assert_eq!(read(&mut reader), b"last words");
    assert_eq!(reader.peek(), Peek::Gone);
    stream.complete();
    assert_eq!(reader.peek(), Peek::Ended);
}

#[test]
fn a_copying_reader_never_makes_the_stream_move() {
    let (mut stream, tool) = (stream(Policy::DropOldest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let (all, mut buffer, mut accounted) = (bytes(20 * CAPACITY as usize), vec![0; 3000], 0u64);
    for part in all.chunks(70_000) {
        stream.push(part, 1);
        match reader.copy(&mut buffer) {
            Copied::Bytes(n) => {
                assert_eq!(buffer[..n], all[accounted as usize..accounted as usize + n]);
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
    let id = tool.page.take_slot().unwrap();
    let attached = stream.attach(&tool.page, id, Start::Oldest, false).unwrap();
    let page = tool.page.as_fd().unwrap().try_clone_to_owned().unwrap();
    let page = Arc::new(ReaderPage::open(page).unwrap());
    // SAFETY: this test owns the stream, and moves and detaches readers only when they are done.
    let mut reader = unsafe { Reader::new(mapped(attached), page, Start::Oldest) }.unwrap();
    // Across the seam, several times.
    for round in 0..10 {
        let some = vec![round; 50_000];
        assert!(matches!(stream.reserve(1), Reserve::Ready(_)));
        stream.push(&some, 1);
        assert_eq!(read(&mut reader), some);
    }
}

#[test]
fn a_reader_at_the_end_of_its_generation_does_not_touch_its_old_slot() {
    let tool = Tool::new();
    let (mut first, mut second) = (stream(Policy::DropOldest), stream(Policy::DropNewest));
    let mut reader = tool.attach(&mut first, Start::Oldest, false);
    first.reconfigure(StreamConfig { capacity: 2 * CAPACITY, policy: Policy::DropOldest }).unwrap();
    first.push(b"in the next generation", 1);
    assert_eq!(reader.peek(), Peek::Sealed);

    // The engine may do this once the reader's tool has requested the next generation.
    let id = reader.id();
    assert!(first.detach(&tool.page, id));
    tool.page.return_slot(id);
    let mut other = tool.attach(&mut second, Start::Oldest, false);
    assert_eq!(other.id(), id);

    reader.release();
    reader.consume(1);
    reader.group(Some(Grouping { bytes: 1 << 40, time: None }));
    assert_eq!(reader.copy(&mut [0; 8]), Copied::Nothing(Peek::Sealed));
    drop(reader);
    // The other reader's pinned position is unchanged: its bytes are not overwritten, and it is
    // woken for them.
    second.push(&bytes(2 * CAPACITY as usize), 1);
    notify([&second]);
    assert_eq!(tool.ready(), [id]);
    second.complete();
    assert_eq!(read(&mut other), bytes(CAPACITY as usize));
}

#[test]
fn a_stream_that_is_listed_twice_wakes_its_readers() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let _reader = tool.attach(&mut stream, Start::Oldest, false);
    assert!(tool.page.arm(64));
    stream.push(b"x", 1);
    notify([&stream, &stream]);
    assert!(tool.rings());
}

#[test]
fn a_reader_that_starts_now_accounts_for_all_bytes_after_its_attachment() {
    // Bytes dropped at its start count as its loss; bytes dropped before do not.
    let (mut first, tool) = (stream(Policy::DropNewest), Tool::new());
    first.push(b"abc", 1);
    first.discard(500, 1);
    let id = tool.page.take_slot().unwrap();
    let given = first.attach(&tool.page, id, Start::Now, false).unwrap();
    first.discard(1000, 1);
    first.push(b"def", 1);
    // SAFETY: this test owns the stream and does not detach the reader.
    let mut reader = unsafe { Reader::new(mapped(given), Arc::clone(&tool.page), Start::Now) }.unwrap();
    assert!(matches!(reader.peek(), Peek::Gap(gap) if gap.lost == 1000 && gap.offset == 503));
    assert_eq!(read(&mut reader), b"def");

    // The same holds if the writer has lapped its start meanwhile.
    let mut second = stream(Policy::DropNewest);
    let full = tool.attach(&mut second, Start::Oldest, false);
    second.push(&bytes(CAPACITY as usize + 1000), 1);
    second.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    second.push(b"x", 1);
    drop(full);
    let (began, id) = (second.stats().produced, tool.page.take_slot().unwrap());
    let given = second.attach(&tool.page, id, Start::Now, false).unwrap();
    for _ in 0..10 {
        second.push(&bytes(CAPACITY as usize / 2), 1);
    }
    // SAFETY: as above.
    let mut reader = unsafe { Reader::new(mapped(given), Arc::clone(&tool.page), Start::Now) }.unwrap();
    while !matches!(reader.peek(), Peek::Empty) {
        read(&mut reader);
    }
    assert_eq!(reader.delivered() + reader.lost(), second.stats().produced - began);
}

#[test]
fn only_the_requested_ready_bits_are_taken() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let readers: Vec<Reader> = (0..11).map(|_| tool.attach(&mut stream, Start::Oldest, false)).collect();
    stream.push(b"x", 1);
    notify([&stream]);
    let mut taken = Vec::new();
    tool.page.take_ready(3, |id| taken.push(id));
    assert_eq!(taken, [0, 1, 2].map(ReaderId::from));
    assert!(tool.page.arm(3), "no ready bit is set for the first three slots");
    tool.page.disarm();
    assert!(!tool.page.arm(11));
    assert_eq!(tool.ready(), (3..11).map(ReaderId::from).collect::<Vec<_>>());
    drop(readers);
}

#[test]
fn a_sleeping_tool_is_woken_for_a_gap_and_for_a_group_of_half_a_ring() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    // More than the ring's capacity: half of the ring is enough.
    reader.group(Some(Grouping { bytes: 1 << 40, time: None }));
    stream.push(b"x", 1);
    notify([&stream]);
    tool.ready();
    assert_eq!(reader.peek(), Peek::Empty);
    assert!(tool.page.arm(64));
    stream.push(&bytes(CAPACITY as usize / 2), 1);
    notify([&stream]);
    assert!(tool.rings(), "half a ring");
    tool.bell.silence();
    tool.ready();
    assert_eq!(read(&mut reader).len(), CAPACITY as usize / 2 + 1);
    assert_eq!(reader.peek(), Peek::Empty);
    assert!(tool.page.arm(64));
    stream.discard(3, 1);
    notify([&stream]);
    assert!(tool.rings(), "a gap");
}

#[test]
fn the_last_group_of_a_writer_that_is_gone_is_returned() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    reader.group(Some(Grouping { bytes: 100, time: None }));
    stream.push(b"not yet a group", 1);
    assert_eq!(reader.peek(), Peek::Empty);
    reader.set_writer_gone();
    assert_eq!(read(&mut reader), b"not yet a group");
    assert_eq!(reader.peek(), Peek::Gone);
}

#[test]
fn a_non_gating_reader_does_not_delay_the_writer() {
    for policy in [Policy::DropNewest, Policy::Block] {
        let (mut stream, tool) = (stream(policy), Tool::new());
        let mut non_gating = tool.attach(&mut stream, Start::Oldest, true);
        let mut keeps_up = tool.attach(&mut stream, Start::Oldest, false);
        non_gating.set_non_gating();
        for _ in 0..10 {
            assert_eq!(stream.push(&bytes(CAPACITY as usize / 4), 1), CAPACITY as usize / 4);
            assert_eq!(read(&mut keeps_up), bytes(CAPACITY as usize / 4));
        }
        assert_eq!(stream.stats().generation, 0);
        let mut buffer = vec![0; CAPACITY as usize];
        assert!(matches!(non_gating.copy(&mut buffer), Copied::Nothing(Peek::Gap(gap)) if gap.offset == 0));
        let Copied::Bytes(n) = non_gating.copy(&mut buffer) else { panic!("there are bytes behind the gap") };
        assert_eq!(non_gating.lost() + n as u64, stream.stats().produced);
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

#[test]
fn behind_distinguishes_bytes_a_gap_a_generation_and_the_end() {
    let (mut first, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut first, Start::Oldest, false);
    first.push(b"part", 1);
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Bytes), "there may be more");
    first.push(b" of a line", 1);
    assert_eq!(reader.behind(), Behind::Bytes, "there is more");
    let config = StreamConfig { capacity: 2 * CAPACITY, policy: Policy::DropNewest };
    first.reconfigure(config).unwrap();
    first.push(b", the end", 1);
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Generation));
    reader.consume(usize::MAX);
    assert_eq!(reader.peek(), Peek::Sealed);
    tool.follow(&mut first, &mut reader);
    first.complete();
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Nothing));

    let mut second = stream(Policy::DropNewest);
    let mut reader = tool.attach(&mut second, Start::Oldest, false);
    second.push(&bytes(2 * CAPACITY as usize), 1);
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Gap), "before the gap is marked");
    reader.consume(usize::MAX);
    second.push(b"more", 1);
    assert!(matches!(reader.peek(), Peek::Gap(_)));
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Bytes));
    reader.set_writer_gone();
    assert_eq!(reader.behind(), Behind::Nothing);
}

#[test]
fn behind_a_generation_is_the_next_one_even_if_the_writer_has_ended() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"part", 1);
    stream.reconfigure(StreamConfig { capacity: 2 * CAPACITY, policy: Policy::DropNewest }).unwrap();
    stream.push(b" of a line", 1);
    reader.set_writer_gone();
    assert_eq!((reader.peek(), reader.behind()), (Peek::Bytes, Behind::Generation));
}

#[test]
fn times_lists_the_first_byte_and_the_time_of_each_read() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for (length, time) in [(10, 100), (20, 200), (30, 300)] {
        stream.push(&bytes(length), time);
    }
    let times = |reader: &iof_shm_ring::Reader| {
        let mut times = vec![(7, 7)];
        reader.times(&mut times);
        assert_eq!(times.remove(0), (7, 7), "earlier elements stay");
        times
    };
    assert_eq!(times(&reader), [], "nothing is borrowed");
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(times(&reader), [(0, 100), (10, 200), (30, 300)]);
    reader.consume(15);
    assert_eq!(times(&reader), [(15, 200), (30, 300)]);
    assert_eq!(reader.time(), Some(200));
    stream.push(&bytes(2 * CAPACITY as usize), 400);
    stream.push(b"lost", 500);
    reader.consume(usize::MAX);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    stream.push(b"behind the gap", 600);
    assert!(matches!(reader.peek(), Peek::Gap(_)));
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(times(&reader), [(reader.produced(), 600)]);
}
