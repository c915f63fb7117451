use std::collections::BTreeMap;
use std::sync::Arc;

use iof_shm_ring::{Peek, Policy, Reader, ReaderPage, Start, StreamConfig, bell};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::*;
use crate::pty::{self, Pty, WindowSize};

/// A quarter of it is a packet.
const CAPACITY: u64 = 4 * PACKET_MAX as u64;

fn source(policy: Policy) -> (Source, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap();
    (Source::new(SourceId(1), read, stream), write)
}

/// Attaches a reader at the first byte that never consumes.
fn hold(source: &mut Source, may_block: bool) {
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let slot = page.take_slot().unwrap();
    source.stream_mut().attach(&page, slot, Start::Oldest, may_block).unwrap();
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
    assert!(source.take_ready());
    assert!(!source.take_ready());
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
fn a_packet_for_which_there_is_no_room_is_read_whole_stored_as_far_as_it_fits_and_counted() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    for _ in 0..3 {
        assert!(matches!(source.next(false), Next::Read(..)));
        assert!(matches!(source.done(Ok(PACKET_MAX), 1), Step::Go { readable: false }));
    }
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.done(Ok(100), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Poll(_)), "room may come before the next bytes do");
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Fetch(_)));
    source.take_ready();
    assert!(matches!(source.fetched(Ok(&[7; PACKET_MAX]), 1), Step::Go { readable: false }));
    assert!(source.take_ready());
    let stats = source.stream().stats();
    assert_eq!((stats.produced, stats.dropped), (CAPACITY + 100, 100));
    assert_eq!(stats.cached, CAPACITY);
    assert!(matches!(source.next(false), Next::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Drain(_)), "full");
    assert!(matches!(source.drained(Ok(0), 1), Step::End(End::EndOfFile)));
}

#[test]
fn what_other_policies_read_is_a_packet_at_least() {
    for policy in [Policy::Block, Policy::DropOldest] {
        let (mut source, _write) = source(policy);
        hold(&mut source, policy == Policy::Block);
        for _ in 0..50 {
            let Next::Read(_, span) = source.next(false) else { break };
            assert!(span.len >= PACKET_MAX, "{policy:?}");
            source.done(Ok(1000), 1);
        }
        assert!(source.stream().stats().produced > 1000);
    }
}

#[test]
fn a_new_generation_is_news() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let at = source.stream_mut().attach(&page, page.take_slot().unwrap(), Start::Oldest, false).unwrap();
    // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
    let mut reader = unsafe { Reader::new(at, page, Start::Oldest) }.unwrap();
    fill(&mut source);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    assert!(source.take_ready());
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Read(..)));
    assert_eq!(source.stream().stats().generation, 1);
    assert!(source.take_ready(), "readers of the old one are to move");
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
    assert_eq!(source.close(), Close::Already);
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

/// Asks a source with a read in flight to finish, when the read has brought `bytes` already.
fn finishing(bytes: usize) -> (Source, OwnedFd) {
    let (mut source, write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(), Close::Cancel);
    let result = if bytes == 0 { errno(libc::ECANCELED) } else { Ok(bytes) };
    assert!(matches!(source.done(result, 1), Step::Measure));
    (source, write)
}

#[test]
fn finishing_reads_what_there_was_and_no_more() {
    for already in [0, 100] {
        let (mut source, _write) = finishing(already);
        assert!(matches!(source.measured(10), Step::Go { .. }));
        assert!(matches!(source.next(false), Next::Read(..)));
        assert_eq!(source.finish(), Close::Already);
        assert!(matches!(source.done(Ok(4), 1), Step::Measure));
        assert!(matches!(source.measured(50), Step::Go { .. }), "somebody goes on writing");
        assert!(matches!(source.next(false), Next::Read(..)));
        assert!(matches!(source.done(Ok(7), 1), Step::Measure));
        assert!(matches!(source.measured(43), Step::End(End::Closed)));
        source.end();
        assert_eq!(source.stream().stats().produced, already as u64 + 11);
        assert_eq!(source.finish(), Close::Already);
    }
}

#[test]
fn finishing_waits_for_nothing_that_is_not_there_any_more() {
    let (mut source, _write) = finishing(0);
    assert!(matches!(source.measured(1000), Step::Go { .. }));
    assert!(matches!(source.next(false), Next::Read(..)));
    // The rest of a packet, say.
    assert!(matches!(source.done(Ok(10), 1), Step::Measure));
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
}

#[test]
fn finishing_an_empty_pipe_closes_it_and_a_sooner_end_of_file_is_one() {
    let (mut source, _write) = finishing(0);
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
    let (mut source, _write) = self::source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(Ok(0), 1), Step::End(End::EndOfFile)));
}

#[test]
fn what_is_dropped_counts_as_read_when_finishing() {
    let (mut source, _write) = source(Policy::DropNewest);
    hold(&mut source, false);
    fill(&mut source);
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(Ok(1), 1), Step::Measure));
    assert!(matches!(source.measured(10), Step::Go { .. }));
    assert!(matches!(source.next(false), Next::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), Next::Drain(_)));
    assert!(matches!(source.drained(Ok(10), 1), Step::Measure));
    assert!(matches!(source.measured(5), Step::End(End::Closed)));
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

/// How a pause may come to its end: its time is over, with io_uring and with epoll, or it was
/// cancelled.
fn ends_of_a_pause() -> [io::Result<usize>; 3] {
    [errno(libc::ETIME), Ok(0), errno(libc::ECANCELED)]
}

/// Asks for what is to be done, on a thread that gets no memory for another generation; whether
/// that is to pause.
fn pauses_without_memory(source: &mut Source) -> bool {
    let asks = || {
        let rules = BTreeMap::from([(libc::SYS_memfd_create, Vec::new())]);
        let refuse = SeccompAction::Errno(libc::ENOMEM.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        matches!(source.next(false), Next::Pause)
    };
    std::thread::scope(|scope| scope.spawn(asks).join().unwrap())
}

/// A source that pauses: its stream would go on for a reader that must lose nothing, and there is
/// no memory for that.
fn without_memory() -> (Source, OwnedFd) {
    let (mut source, write) = source(Policy::Block);
    hold(&mut source, false);
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let at = source.stream_mut().attach(&page, page.take_slot().unwrap(), Start::Oldest, true).unwrap();
    // SAFETY: the stream is this test's, which moves and detaches readers only when they are done.
    let mut reader = unsafe { Reader::new(at, page, Start::Oldest) }.unwrap();
    fill(&mut source);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    // It has what there is; its slot stays attached, and holds nothing more.
    assert!(pauses_without_memory(&mut source));
    (source, write)
}

/// A source that pauses: a terminal that nobody has open, in a session whose leader lives.
fn hung_up() -> (Source, OwnedFd) {
    let (master, slave) = pty::open(Pty { size: WindowSize::default(), echo: false }).unwrap();
    let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::Block }, "test").unwrap();
    let mut source = Source::new(SourceId(1), master.into(), stream);
    source.set_reopenable(true);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Pause));
    (source, slave)
}

#[test]
fn after_a_pause_however_it_ended_the_source_reads_on() {
    for pausing in [without_memory, hung_up] {
        for end in ends_of_a_pause() {
            let (mut source, _write) = pausing();
            assert!(source.in_flight());
            assert!(matches!(source.next(true), Next::Nothing), "one pause at a time");
            assert!(matches!(source.done(end, 1), Step::Go { readable: false }));
            assert!(matches!(source.next(false), Next::Read(..)));
            assert_eq!(source.stream().stats().dropped, 0);
        }
    }
}

#[test]
fn as_long_as_there_is_no_memory_it_pauses_again_and_drops_nothing() {
    let (mut source, _write) = without_memory();
    for _ in 0..3 {
        assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
        assert!(pauses_without_memory(&mut source));
    }
    assert_eq!(source.stream().stats().dropped, 0);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.stream().stats().generation, 1);
}

#[test]
fn closing_cancels_a_pause_and_its_answer_is_the_end_also_if_the_cancellation_came_too_late() {
    for pausing in [without_memory, hung_up] {
        for end in ends_of_a_pause() {
            let (mut source, _write) = pausing();
            assert_eq!(source.close(), Close::Cancel);
            assert!(matches!(source.next(true), Next::Nothing), "the pause is in flight");
            assert!(matches!(source.done(end, 1), Step::End(End::Closed)));
            source.end();
            assert_eq!(source.close(), Close::Already);
        }
    }
}

#[test]
fn what_is_answered_after_the_end_changes_nothing() {
    for end in ends_of_a_pause() {
        let (mut source, _write) = without_memory();
        assert_eq!(source.close(), Close::Cancel);
        assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::End(End::Closed)));
        source.end();
        let before = source.stream().stats();
        assert!(matches!(source.done(end, 1), Step::Go { readable: false }));
        assert!(matches!(source.next(true), Next::Nothing));
        assert!(source.has_ended());
        assert_eq!(source.stream().stats(), before);
    }
}

#[test]
fn finishing_while_it_pauses_ends_the_pause_and_reads_what_there_is() {
    for pausing in [without_memory, hung_up] {
        for unread in [10, 0] {
            let (mut source, _write) = pausing();
            assert_eq!(source.finish(), Close::Cancel);
            assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::Measure));
            let step = source.measured(unread);
            if unread == 0 {
                assert!(matches!(step, Step::End(End::Closed)));
                continue;
            }
            assert!(matches!(step, Step::Go { readable: false }));
            assert!(matches!(source.next(false), Next::Read(..)));
            assert!(matches!(source.done(Ok(10), 1), Step::Measure));
            assert!(matches!(source.measured(0), Step::End(End::Closed)));
        }
    }
}

#[test]
fn closing_after_finishing_does_not_wait_for_what_there_was() {
    for pausing in [without_memory, hung_up] {
        let (mut source, _write) = pausing();
        assert_eq!(source.finish(), Close::Cancel);
        assert_eq!(source.close(), Close::Cancel);
        assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::End(End::Closed)));
    }
}

#[test]
fn a_terminal_that_is_to_be_finished_and_has_lost_what_there_was_is_at_its_end() {
    let (mut source, _slave) = hung_up();
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Measure));
    assert!(matches!(source.measured(10), Step::Go { .. }));
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::EndOfFile)));
}

#[test]
fn a_terminal_whose_leader_exits_while_it_pauses_is_looked_at_once_more() {
    let (mut source, _slave) = hung_up();
    source.set_reopenable(false);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Read(..)), "what was written last");
    assert!(matches!(source.done(Ok(3), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::EndOfFile)));
}

#[test]
fn what_no_terminal_says_is_no_hang_up() {
    let (mut source, _write) = source(Policy::Block);
    source.set_reopenable(true);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::Error(_))));
}

#[test]
fn a_source_that_gets_no_thread_is_finished_by_what_its_pipe_has() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), Next::Read(..)));
    assert_eq!(source.isolate(), Close::Cancel);
    assert_eq!(source.finish(), Close::Cancel);
    let cancelled = Err(io::Error::from_raw_os_error(libc::ECANCELED));
    assert!(matches!(source.done(cancelled, 1), Step::Go { readable: false }));
    assert!(source.can_be_isolated());
    assert!(matches!(source.isolated(None), Step::Measure), "nothing would cancel another read");
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
}

#[test]
fn bytes_that_a_thread_has_read_when_its_source_ends_are_counted() {
    let (mut source, write) = source(Policy::DropNewest);
    assert_eq!(source.isolate(), Close::Now);
    let (tell, found) = std::sync::mpsc::channel();
    let pipe = source.shared_pipe().unwrap();
    let thread = IsolatedReader::start(pipe, move |_, found| drop(tell.send(found))).unwrap();
    source.isolated(Some(thread));
    nix::unistd::write(&write, &[7; 1000]).unwrap();
    // It was read, and the capture thread closes the source first.
    found.recv().unwrap();
    assert_eq!(source.queued(), 1000);
    assert_eq!(source.close(), Close::Now);
    source.drop_queued(1);
    source.end();
    let stats = source.stream().stats();
    assert_eq!((stats.produced, stats.dropped), (1000, 1000));
}
