//! What happens when the kernel has nothing left to give.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::ErrorKind;

use super::*;
use crate::doorbell::doorbell;
use crate::reader::{Peek, Reader};

const CAPACITY: u64 = 16 * 1024;

fn the_first_only(shape: Shape<'_>) -> Result<Ring, CreateError> {
    if shape.generation == 0 {
        return Ring::create(shape);
    }
    Err(CreateError::Memory {
        step: "memfd_create",
        len: shape.capacity,
        source: ErrorKind::OutOfMemory.into(),
    })
}

/// A stream with a reader that may block and has read all, and one that has read nothing.
fn with_a_laggard(policy: Policy, may_block: bool) -> (Stream, Reader, Reader) {
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let mut stream =
        Stream::with(StreamConfig { capacity: CAPACITY, policy }, "test", the_first_only).unwrap();
    let mut attach = |may_block| {
        let given = stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, may_block).unwrap();
        // SAFETY: nobody detaches or moves it.
        unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.unwrap()
    };
    let (mut reader, laggard) = (attach(may_block), attach(false));
    assert_eq!(stream.push(&[1; CAPACITY as usize], 1), CAPACITY as usize);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    (stream, reader, laggard)
}

#[test]
fn a_reader_that_must_lose_nothing_loses_nothing_when_there_is_no_memory_for_another_generation() {
    let (mut stream, mut reader, mut laggard) = with_a_laggard(Policy::Block, true);
    assert!(matches!(stream.reserve(1), Reserve::Later));
    assert_eq!(stream.push(&[2; 10], 1), 0);
    assert_eq!(stream.stats().dropped, 0);
    // Whoever asks again gets room once the laggard has gone on.
    assert_eq!(laggard.peek(), Peek::Bytes);
    laggard.consume(usize::MAX);
    assert_eq!(stream.push(&[2; 10], 1), 10);
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!(reader.bytes(), [2; 10]);
}

#[test]
fn others_lose_what_is_counted_when_there_is_no_memory_for_another_generation() {
    for policy in [Policy::DropNewest, Policy::Block] {
        let (mut stream, mut reader, laggard) = with_a_laggard(policy, false);
        assert_eq!(stream.push(&[2; 10], 1), 10);
        assert_eq!(stream.stats().dropped, 10);
        assert!(matches!(reader.peek(), Peek::Gap(gap) if gap.lost == 10 && gap.offset == CAPACITY));
        drop(laggard);
    }
}
