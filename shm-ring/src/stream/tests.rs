//! Reuse of rings, and behaviour when the kernel has no memory left.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::ErrorKind;

use super::*;
use crate::reader::attach::Start;
use crate::reader::{Peek, Reader};
use crate::reader_page::ReaderPage;
use crate::sync::Ordering::Relaxed;
use crate::wakeup::doorbell::{bell, doorbell};

const CAPACITY: u64 = 16 * 1024;

fn create_first_only(shape: Shape<'_>) -> Result<Ring, CreateError> {
    if shape.generation == 0 {
        return Ring::create(shape);
    }
    Err(CreateError::Memory {
        step: "memfd_create",
        len: shape.capacity,
        source: ErrorKind::OutOfMemory.into(),
    })
}

/// Returns a stream with a reader that may block and has read all bytes, and a slow reader that has
/// read nothing.
fn with_slow_reader(policy: Policy, may_block: bool) -> (Stream, Reader, Reader) {
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let mut stream =
        Stream::with(StreamConfig { capacity: CAPACITY, policy }, "test", create_first_only).unwrap();
    let mut attach = |may_block| {
        let given = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, may_block).unwrap();
        // SAFETY: the reader is neither detached nor moved.
        unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.unwrap()
    };
    let (mut reader, slow) = (attach(may_block), attach(false));
    assert_eq!(stream.push(&[1; CAPACITY as usize], 1), CAPACITY as usize);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    (stream, reader, slow)
}

#[test]
fn a_blocking_reader_loses_nothing_without_memory_for_another_generation() {
    let (mut stream, mut reader, mut slow) = with_slow_reader(Policy::Block, true);
    assert!(matches!(stream.reserve(1), Reserve::Later));
    assert_eq!(stream.push(&[2; 10], 1), 0);
    assert_eq!(stream.stats().dropped, 0);
    // The next call gets room once the slow reader has continued.
    assert_eq!(slow.peek(), Peek::Bytes);
    slow.consume(usize::MAX);
    assert_eq!(stream.push(&[2; 10], 1), 10);
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(reader.bytes(), [2; 10]);
}

#[test]
fn other_readers_lose_exactly_the_counted_bytes_without_memory_for_a_generation() {
    for policy in [Policy::DropNewest, Policy::Block] {
        let (mut stream, mut reader, slow) = with_slow_reader(policy, false);
        assert_eq!(stream.push(&[2; 10], 1), 10);
        assert_eq!(stream.stats().dropped, 10);
        assert!(matches!(reader.peek(), Peek::Gap(gap) if gap.lost == 10 && gap.offset == CAPACITY));
        drop(slow);
    }
}

#[test]
fn a_ring_that_a_reader_of_this_process_has_left_is_reused() {
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "test").unwrap();
    let mut attach = || {
        let given = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, false).unwrap();
        // SAFETY: the reader is not detached, and moves only when it has found `Peek::Sealed`.
        unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.unwrap()
    };
    let (mut fast, mut slow) = (attach(), attach());
    let mut reused = Vec::new();
    for _ in 0..2 {
        // The stream leaves the slow reader behind.
        assert_eq!(stream.push(&[1; CAPACITY as usize], 1), CAPACITY as usize);
        read_all(&mut stream, &mut fast, &page);
        assert_eq!(stream.push(&[2; 10], 1), 10);
        reused.push(stream.writer.ring().is_reused());
        read_all(&mut stream, &mut fast, &page);
        read_all(&mut stream, &mut slow, &page);
    }
    assert_eq!(reused, [false, true]);
    assert_eq!(fast.lost(), 0);
}

/// Reads all that `stream` has, and follows it.
fn read_all(stream: &mut Stream, reader: &mut Reader, page: &Arc<ReaderPage>) {
    loop {
        match reader.peek() {
            Peek::Sealed => {
                let next = stream.follow(page, reader.id(), reader.id()).unwrap();
                // SAFETY: the stream has moved this reader.
                unsafe { reader.follow(next) }.unwrap();
            }
            Peek::Bytes => reader.consume(usize::MAX),
            Peek::Gap(_) => {}
            _ => break,
        }
    }
}

#[test]
fn the_backlog_is_what_the_nearest_reader_has_not_consumed_if_one_may_hold_the_source_back() {
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let config = StreamConfig { capacity: 1 << 16, policy: Policy::Block };
    let mut streams = [(); 2].map(|()| Stream::create(config, "").unwrap());
    Stream::share_order(&mut streams);
    let [mut stream, mut other] = streams;
    assert_eq!(stream.push(&[0; 50], 0), 50);
    assert_eq!(stream.backlog(), 0, "a reader that attaches now reads from here on");
    let far = page.take_slot().unwrap();
    stream.attach(&page, far, Start::Oldest, false).unwrap();
    assert_eq!(stream.push(&[0; 50], 0), 50);
    assert_eq!(stream.backlog(), 0, "no reader may hold the source back");
    let near = page.take_slot().unwrap();
    stream.attach(&page, near, Start::Now, true).unwrap();
    assert_eq!(stream.push(&[0; 50], 0), 50);
    assert_eq!(stream.backlog(), 50);
    assert_eq!(other.push(&[0; 50], 0), 50);
    assert_eq!(stream.push(&[0; 50], 0), 50);
    assert_eq!(stream.backlog(), 0, "the bytes alternate with those of another stream");
    assert_eq!(stream.push(&[0; 50], 0), 50);
    assert_eq!(stream.backlog(), 150);
    // A tool may store anything.
    page.slot(far).unwrap().cursor.store(u64::MAX, Relaxed);
    assert_eq!(stream.backlog(), 0);
}
