use super::*;
use iof_shm_ring::{Area, Peek, Policy, Reader, Start, StreamConfig, bell};
use std::sync::Arc;

fn source(policy: Policy) -> (Source, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let stream = Stream::create(StreamConfig { capacity: 4096, policy }, "test").unwrap();
    (Source::new(SourceId(1), read, stream), write)
}

/// Attaches a reader at the first byte that never consumes.
fn hold(source: &mut Source, may_block: bool) {
    let area = Arc::new(Area::create(bell().unwrap().0).unwrap());
    let slot = area.take_slot().unwrap();
    source.stream_mut().attach(&area, slot, Start::Oldest, may_block).unwrap();
}

/// Pretends to read until the stream is full.
fn fill(source: &mut Source) {
    while let Next::Read(_, span) = source.next(false) {
        let n = span.len;
        assert!(matches!(source.done(Ok(n), 1), Step::Go { readable: false }));
    }
}

#[test]
fn one_read_at_a_time() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.next(false), Next::Nothing));
    assert!(matches!(source.done(Ok(3), 1), Step::Go { readable: false }));
    assert!(source.take_news());
    assert!(!source.take_news());
    assert!(matches!(source.next(false), Next::Read(..)));
}

#[test]
fn a_full_stream_polls_before_it_drops() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    fill(&mut source);
    assert!(source.in_flight(), "polls");
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Drain(_)));
    assert!(matches!(source.drained(Ok(10), 1), Step::Go { readable: false }));
    assert_eq!(source.stream().stats().dropped, 10);
    assert!(matches!(source.next(false), Next::Poll(_)));
}

#[test]
fn a_new_generation_is_news() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    let area = Arc::new(Area::create(bell().unwrap().0).unwrap());
    let at = source.stream_mut().attach(&area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
    // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
    let mut reader = unsafe { Reader::new(at, area, Start::Oldest) }.unwrap();
    fill(&mut source);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    assert!(source.take_news());
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Read(..)));
    assert_eq!(source.stream().stats().generation, 1);
    assert!(source.take_news(), "readers of the old one are to move");
}

#[test]
fn a_blocked_stream_has_nothing_in_flight() {
    let (mut source, _write) = source(Policy::Block);
    hold(&mut source, true);
    fill(&mut source);
    assert!(!source.in_flight());
    assert!(matches!(source.next(false), Next::Wait));
    assert_eq!(source.close(), Close::Now);
}

#[test]
fn a_pipe_that_has_nothing_now_is_polled_and_then_read() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    let again = io::Error::from(io::ErrorKind::WouldBlock);
    assert!(matches!(source.done(Err(again), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Read(..)));
}

#[test]
fn an_error_ends_the_source_and_says_which() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    let broken = io::Error::from_raw_os_error(libc::EIO);
    assert!(matches!(source.done(Err(broken), 1), Step::End(End::Error(_))));
    source.end();
    assert!(matches!(source.next(true), Next::Nothing));
    assert_eq!(source.close(), Close::Ended);
}

#[test]
fn bytes_that_come_with_the_cancellation_count() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.close(), Close::Cancel);
    assert!(matches!(source.done(Ok(3), 1), Step::End(End::Closed)));
    source.end();
    assert_eq!(source.stream().stats().produced, 3);
}

#[test]
fn an_end_of_file_that_comes_with_the_cancellation_is_one() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.close(), Close::Cancel);
    assert!(matches!(source.done(Ok(0), 1), Step::End(End::EndOfFile)));
}

#[test]
fn finishing_reads_what_there_was_and_no_more() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(10), Close::Later);
    assert!(matches!(source.done(Ok(4), 1), Step::Go { .. }));
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(100), Close::Later);
    assert!(matches!(source.done(Ok(7), 1), Step::End(End::Closed)));
    source.end();
    assert_eq!(source.stream().stats().produced, 11);
    assert_eq!(source.finish(1), Close::Ended);
}

#[test]
fn finishing_an_empty_pipe_closes_it_and_a_sooner_end_of_file_is_one() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(5), Close::Later);
    assert!(matches!(source.done(Ok(0), 1), Step::End(End::EndOfFile)));
    let (mut source, _write) = self::source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(0), Close::Cancel);
}

#[test]
fn what_is_dropped_counts_as_read_when_finishing() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    fill(&mut source);
    assert_eq!(source.finish(10), Close::Later);
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Drain(_)));
    assert!(matches!(source.drained(Ok(10), 1), Step::End(End::Closed)));
}
