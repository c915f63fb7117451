use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use iof_proto::{Pty, WindowSize};
use iof_shm_ring::{CacheBudget, Growth, Peek, Policy, Reader, ReaderPage, Start, StreamConfig, bell};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::*;
use crate::spawn::pty;

/// Capacity of the streams in these tests: room for four packets.
const CAPACITY: u64 = 4 * PACKET_MAX as u64;

fn source(policy: Policy) -> (Source, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap();
    (Source::new(SourceId(1), read, stream), write)
}

/// Returns a source whose stream begins without memory and in a small ring.
fn source_without_memory(capacity: u64) -> (Source, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(CAPACITY)) };
    let config = StreamConfig { capacity, policy: Policy::Block };
    let stream = Stream::create_growing(config, &growth, "test").unwrap();
    (Source::new(SourceId(1), read, stream), write)
}

/// Attaches a reader at the first byte. The reader never consumes.
fn attach_idle_reader(source: &mut Source, may_block: bool) {
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let reader_id = page.take_slot().unwrap();
    source.stream_mut().attach(&page, reader_id, Start::Oldest, may_block).unwrap();
}

/// Answers reads with as many bytes as requested until the stream is full.
fn fill(source: &mut Source) {
    while let SourceAction::Read(_, span) = source.next(false) {
        let n = span.len;
        assert!(matches!(source.done(Ok(n), 1), Step::Go { readable: false }));
    }
}

#[test]
fn only_one_read_is_in_flight_at_a_time() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.next(false), SourceAction::Nothing));
    assert!(matches!(source.done(Ok(3), 1), Step::Go { readable: false }));
    assert!(source.take_ready());
    assert!(!source.take_ready());
    assert!(matches!(source.next(false), SourceAction::Read(..)));
}

#[test]
fn a_source_with_a_full_stream_polls_before_it_drops() {
    let (mut source, _write) = source(Policy::DropNewest);
    attach_idle_reader(&mut source, false);
    fill(&mut source);
    assert!(source.in_flight(), "the source must poll");
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Drain(_)));
    assert!(matches!(source.drained(Ok(10), 1), Step::Go { readable: false }));
    assert_eq!(source.stream().stats().dropped, 10);
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
}

#[test]
fn a_packet_larger_than_the_room_is_read_whole_and_its_rest_is_counted_as_dropped() {
    let (mut source, _write) = source(Policy::DropNewest);
    attach_idle_reader(&mut source, false);
    for _ in 0..3 {
        assert!(matches!(source.next(false), SourceAction::Read(..)));
        assert!(matches!(source.done(Ok(PACKET_MAX), 1), Step::Go { readable: false }));
    }
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(Ok(100), 1), Step::Go { readable: false }));
    assert!(
        matches!(source.next(false), SourceAction::Poll(_)),
        "a reader may make room before the next bytes"
    );
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Fetch(_)));
    source.take_ready();
    assert!(matches!(source.fetched(Ok(&[7; PACKET_MAX]), 1), Step::Go { readable: false }));
    assert!(source.take_ready());
    let stats = source.stream().stats();
    assert_eq!((stats.produced, stats.dropped), (CAPACITY + 100, 100));
    assert_eq!(stats.cached, CAPACITY);
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Drain(_)), "the stream is full");
    assert!(matches!(source.drained(Ok(0), 1), Step::End(End::EndOfFile)));
}

#[test]
fn under_other_policies_each_read_has_room_for_a_packet() {
    for policy in [Policy::Block, Policy::DropOldest] {
        let (mut source, _write) = source(policy);
        attach_idle_reader(&mut source, policy == Policy::Block);
        for _ in 0..50 {
            let SourceAction::Read(_, span) = source.next(false) else { break };
            assert!(span.len >= PACKET_MAX, "{policy:?}");
            source.done(Ok(1000), 1);
        }
        assert!(source.stream().stats().produced > 1000);
    }
}

#[test]
fn a_new_generation_marks_the_source_ready() {
    let (mut source, _write) = source(Policy::DropNewest);
    attach_idle_reader(&mut source, false);
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let reader_id = page.take_slot().unwrap();
    let attached = source.stream_mut().attach(&page, reader_id, Start::Oldest, false).unwrap();
    // SAFETY: the stream belongs to this test, which neither moves nor detaches a reader in use.
    let mut reader = unsafe { Reader::new(attached, page, Start::Oldest) }.unwrap();
    fill(&mut source);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    assert!(source.take_ready());
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Read(..)));
    assert_eq!(source.stream().stats().generation, 1);
    assert!(source.take_ready(), "readers of the old generation must move");
}

#[test]
fn a_blocked_source_has_nothing_in_flight() {
    let (mut source, _write) = source(Policy::Block);
    attach_idle_reader(&mut source, true);
    fill(&mut source);
    assert!(!source.in_flight());
    assert!(matches!(source.next(false), SourceAction::Wait));
    assert_eq!(source.close(), Close::Now);
}

#[test]
fn a_stream_grows_after_many_checks_if_allowed_and_a_refused_one_after_as_many_again() {
    let (mut source, _write) = source_without_memory(4 * CAPACITY);
    source.stream_mut().allocate().unwrap();
    attach_idle_reader(&mut source, true);
    fill(&mut source);
    let many = GROWTH_CHECKS + 1;
    (0..2 * many).for_each(|_| source.check_growth(&mut 0));
    assert!(source.stream().is_small(), "no growth was allowed");
    let mut allowed = 5;
    for left in [4, 3] {
        // The budget refuses it.
        source.check_growth(&mut allowed);
        assert_eq!((source.stream().is_small(), allowed), (false, left));
        fill(&mut source);
        (1..many).for_each(|_| source.check_growth(&mut allowed));
        assert_eq!(allowed, left);
    }
}

#[test]
fn first_bytes_stay_in_the_pipe_until_they_have_memory() {
    let (mut source, _write) = source_without_memory(CAPACITY);
    attach_idle_reader(&mut source, true);
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Probe(_)));
    assert!(source.stream().is_unallocated());
    assert!(matches!(source.probed(false), Step::Go { readable: true }));
    let SourceAction::ReadNow(_, span) = source.next(true) else { panic!("the pipe is not read") };
    assert_eq!(span.len as u64, CAPACITY / 4);
    let no_memory = io::Error::from_raw_os_error(libc::EFAULT);
    assert!(matches!(source.done(Err(no_memory), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Pause(_)));
    assert!(matches!(source.done(Ok(0), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(Ok(10), 1), Step::Go { readable: false }));
    assert_eq!((source.stream().stats().produced, source.stream().stats().dropped), (10, 0));
}

#[test]
fn a_pipe_at_its_end_is_not_read_and_gets_no_memory() {
    let (mut source, _write) = source_without_memory(CAPACITY);
    assert!(matches!(source.next(true), SourceAction::Probe(_)));
    assert!(matches!(source.probed(true), Step::End(End::EndOfFile)));
    source.end();
    assert_eq!(source.stream().owed_rings(), 0);
}

#[test]
fn a_pipe_that_would_block_is_polled_and_then_read() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    let again = io::Error::from(io::ErrorKind::WouldBlock);
    assert!(matches!(source.done(Err(again), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Read(..)));
}

#[test]
fn a_poll_for_which_the_kernel_has_no_memory_is_repeated_after_a_pause() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(errno(libc::EAGAIN), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
    assert!(matches!(source.done(errno(libc::ENOMEM), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Pause(Pause::Long)));
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
}

#[test]
fn an_error_ends_the_source_with_that_error() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    let broken = io::Error::from_raw_os_error(libc::EIO);
    assert!(matches!(source.done(Err(broken), 1), Step::End(End::Error(_))));
    source.end();
    assert!(matches!(source.next(true), SourceAction::Nothing));
    assert_eq!(source.close(), Close::Already);
}

#[test]
fn bytes_of_a_read_that_was_cancelled_too_late_count() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.close(), Close::Cancel);
    assert!(matches!(source.done(Ok(3), 1), Step::End(End::Closed)));
    source.end();
    assert_eq!(source.stream().stats().produced, 3);
}

#[test]
fn an_end_of_file_of_a_read_that_was_cancelled_too_late_counts() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.close(), Close::Cancel);
    assert!(matches!(source.done(Ok(0), 1), Step::End(End::EndOfFile)));
}

/// Returns a source that was finished while a read was in flight. The read returned `bytes`; 0
/// means that it was cancelled.
fn finishing(bytes: usize) -> (Source, OwnedFd) {
    let (mut source, write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.finish(), Close::Cancel);
    let result = if bytes == 0 { errno(libc::ECANCELED) } else { Ok(bytes) };
    assert!(matches!(source.done(result, 1), Step::Measure));
    (source, write)
}

#[test]
fn finishing_reads_the_bytes_that_the_pipe_had_and_no_more() {
    for in_flight in [0, 100] {
        let (mut source, _write) = finishing(in_flight);
        assert!(matches!(source.measured(10), Step::Go { .. }));
        assert!(matches!(source.next(false), SourceAction::Read(..)));
        assert_eq!(source.finish(), Close::Already);
        assert!(matches!(source.done(Ok(4), 1), Step::Measure));
        assert!(matches!(source.measured(50), Step::Go { .. }), "the pipe is still being written");
        assert!(matches!(source.next(false), SourceAction::Read(..)));
        assert!(matches!(source.done(Ok(7), 1), Step::Measure));
        assert!(matches!(source.measured(43), Step::End(End::Closed)));
        source.end();
        assert_eq!(source.stream().stats().produced, in_flight as u64 + 11);
        assert_eq!(source.finish(), Close::Already);
    }
}

#[test]
fn finishing_does_not_wait_for_bytes_that_have_disappeared() {
    let (mut source, _write) = finishing(0);
    assert!(matches!(source.measured(1000), Step::Go { .. }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    // For example, the rest of a packet was lost.
    assert!(matches!(source.done(Ok(10), 1), Step::Measure));
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
}

#[test]
fn finishing_an_empty_pipe_closes_it_unless_end_of_file_comes_first() {
    let (mut source, _write) = finishing(0);
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
    let (mut source, _write) = self::source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(Ok(0), 1), Step::End(End::EndOfFile)));
}

#[test]
fn dropped_bytes_count_as_read_when_finishing() {
    let (mut source, _write) = source(Policy::DropNewest);
    attach_idle_reader(&mut source, false);
    fill(&mut source);
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(Ok(1), 1), Step::Measure));
    assert!(matches!(source.measured(10), Step::Go { .. }));
    assert!(matches!(source.next(false), SourceAction::Poll(_)));
    assert!(matches!(source.done(Ok(1), 1), Step::Go { readable: true }));
    assert!(matches!(source.next(true), SourceAction::Drain(_)));
    assert!(matches!(source.drained(Ok(10), 1), Step::Measure));
    assert!(matches!(source.measured(5), Step::End(End::Closed)));
}

fn errno(errno: i32) -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(errno))
}

/// Returns the possible answers to a pause: its end under io_uring and under epoll, and its
/// cancellation.
fn pause_answers() -> [io::Result<usize>; 3] {
    [errno(libc::ETIME), Ok(0), errno(libc::ECANCELED)]
}

/// Returns whether the source pauses when the kernel has no memory for another generation.
fn pauses_without_memory(source: &mut Source) -> bool {
    let next_is_pause = || {
        let rules = BTreeMap::from([(libc::SYS_memfd_create, Vec::new())]);
        let refuse = SeccompAction::Errno(libc::ENOMEM.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        matches!(source.next(false), SourceAction::Pause(_))
    };
    std::thread::scope(|scope| scope.spawn(next_is_pause).join().unwrap())
}

/// Returns a source that pauses, because its stream needs a new generation for a blocking reader
/// and the kernel has no memory for it.
fn without_memory() -> (Source, OwnedFd) {
    let (mut source, write) = source(Policy::Block);
    attach_idle_reader(&mut source, false);
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let reader_id = page.take_slot().unwrap();
    let attached = source.stream_mut().attach(&page, reader_id, Start::Oldest, true).unwrap();
    // SAFETY: the stream belongs to this test, which neither moves nor detaches a reader in use.
    let mut reader = unsafe { Reader::new(attached, page, Start::Oldest) }.unwrap();
    fill(&mut source);
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    // The reader has consumed everything. Its slot stays attached and holds back nothing.
    assert!(pauses_without_memory(&mut source));
    (source, write)
}

/// Returns a source that pauses: a terminal that no process has open, in a session whose leader
/// still runs.
fn hung_up() -> (Source, OwnedFd) {
    let (master, slave) = pty::open(Pty { size: WindowSize::default(), echo: false, data: false }).unwrap();
    let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::Block }, "test").unwrap();
    let mut source = Source::new(SourceId(1), master.into(), stream);
    source.set_reopenable(true);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Pause(_)));
    (source, slave)
}

#[test]
fn after_a_pause_with_any_answer_the_source_continues_to_read() {
    for pausing in [without_memory, hung_up] {
        for end in pause_answers() {
            let (mut source, _write) = pausing();
            assert!(source.in_flight());
            assert!(matches!(source.next(true), SourceAction::Nothing), "one pause at a time");
            assert!(matches!(source.done(end, 1), Step::Go { readable: false }));
            assert!(matches!(source.next(false), SourceAction::Read(..)));
            assert_eq!(source.stream().stats().dropped, 0);
        }
    }
}

#[test]
fn without_memory_the_source_pauses_repeatedly_and_drops_nothing() {
    let (mut source, _write) = without_memory();
    for _ in 0..3 {
        assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
        assert!(pauses_without_memory(&mut source));
    }
    assert_eq!(source.stream().stats().dropped, 0);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.stream().stats().generation, 1);
}

#[test]
fn closing_cancels_a_pause_and_any_answer_to_the_pause_ends_the_source() {
    for pausing in [without_memory, hung_up] {
        for end in pause_answers() {
            let (mut source, _write) = pausing();
            assert_eq!(source.close(), Close::Cancel);
            assert!(matches!(source.next(true), SourceAction::Nothing), "the pause is in flight");
            assert!(matches!(source.done(end, 1), Step::End(End::Closed)));
            source.end();
            assert_eq!(source.close(), Close::Already);
        }
    }
}

#[test]
fn an_answer_after_the_end_changes_nothing() {
    for end in pause_answers() {
        let (mut source, _write) = without_memory();
        assert_eq!(source.close(), Close::Cancel);
        assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::End(End::Closed)));
        source.end();
        let before = source.stream().stats();
        assert!(matches!(source.done(end, 1), Step::Go { readable: false }));
        assert!(matches!(source.next(true), SourceAction::Nothing));
        assert!(source.has_ended());
        assert_eq!(source.stream().stats(), before);
    }
}

#[test]
fn finishing_during_a_pause_ends_the_pause_and_reads_the_remaining_bytes() {
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
            assert!(matches!(source.next(false), SourceAction::Read(..)));
            assert!(matches!(source.done(Ok(10), 1), Step::Measure));
            assert!(matches!(source.measured(0), Step::End(End::Closed)));
        }
    }
}

#[test]
fn closing_after_finishing_does_not_wait_for_the_remaining_bytes() {
    for pausing in [without_memory, hung_up] {
        let (mut source, _write) = pausing();
        assert_eq!(source.finish(), Close::Cancel);
        assert_eq!(source.close(), Close::Cancel);
        assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::End(End::Closed)));
    }
}

#[test]
fn finishing_a_hung_up_terminal_whose_bytes_are_lost_is_its_end_of_file() {
    let (mut source, _slave) = hung_up();
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Measure));
    assert!(matches!(source.measured(10), Step::Go { .. }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::EndOfFile)));
}

#[test]
fn a_terminal_whose_leader_exits_during_a_pause_is_read_once_more() {
    let (mut source, _slave) = hung_up();
    source.set_reopenable(false);
    assert!(matches!(source.done(errno(libc::ETIME), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)), "the last bytes must be read");
    assert!(matches!(source.done(Ok(3), 1), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::EndOfFile)));
}

#[test]
fn eio_of_a_file_that_is_not_a_terminal_is_an_error() {
    let (mut source, _write) = source(Policy::Block);
    source.set_reopenable(true);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert!(matches!(source.done(errno(libc::EIO), 1), Step::End(End::Error(_))));
}

#[test]
fn a_finished_source_whose_thread_cannot_start_is_measured_without_a_read() {
    let (mut source, _write) = source(Policy::DropNewest);
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    assert_eq!(source.isolate(), Close::Cancel);
    assert_eq!(source.finish(), Close::Cancel);
    let cancelled = Err(io::Error::from_raw_os_error(libc::ECANCELED));
    assert!(matches!(source.done(cancelled, 1), Step::Go { readable: false }));
    assert!(source.can_be_isolated());
    assert!(matches!(source.isolated(None), Step::Measure), "no cancellation would end another read");
    assert!(matches!(source.measured(0), Step::End(End::Closed)));
}

#[test]
fn bytes_read_by_an_isolated_thread_before_the_end_are_counted_as_dropped() {
    let (mut source, write) = source(Policy::DropNewest);
    assert_eq!(source.isolate(), Close::Now);
    let (sender, outcomes) = std::sync::mpsc::channel();
    let pipe = source.shared_pipe().unwrap();
    let thread = IsolatedReader::start(pipe, move |_, outcome| drop(sender.send(outcome))).unwrap();
    source.isolated(Some(thread));
    nix::unistd::write(&write, &[7; 1000]).unwrap();
    // The thread has read the bytes, and the source is closed before it takes them.
    outcomes.recv().unwrap();
    assert_eq!(source.queued(), 1000);
    assert_eq!(source.close(), Close::Now);
    source.drop_queued(1);
    source.end();
    let stats = source.stream().stats();
    assert_eq!((stats.produced, stats.dropped), (1000, 1000));
}

/// Answers a read with `n` bytes.
fn read(source: &mut Source, n: usize) {
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    source.done(Ok(n), 1);
}

/// Lets the source pause until its pipe has collected bytes.
fn collect(source: &mut Source) {
    read(source, BACKLOG as usize - 1);
    read(source, 1);
    assert!(matches!(source.next(false), SourceAction::Pause(Pause::Short)));
}

#[test]
fn small_reads_are_collected_only_while_no_reader_needs_them() {
    let (mut source, _write) = source(Policy::Block);
    let page = Arc::new(ReaderPage::create(bell().unwrap().0).unwrap());
    let reader_id = page.take_slot().unwrap();
    let attached = source.stream_mut().attach(&page, reader_id, Start::Oldest, true).unwrap();
    // SAFETY: the stream belongs to this test, which neither moves nor detaches a reader in use.
    let mut reader = unsafe { Reader::new(attached, page, Start::Oldest) }.unwrap();
    read(&mut source, LARGE_READ);
    read(&mut source, 80);
    for answer in pause_answers() {
        assert!(matches!(source.next(false), SourceAction::Pause(Pause::Short)));
        assert!(matches!(source.done(answer, 1), Step::Go { readable: false }));
        read(&mut source, 80);
    }
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    collect(&mut source);
    assert_eq!(source.finish(), Close::Cancel);
    assert!(matches!(source.done(errno(libc::ECANCELED), 1), Step::Measure));
    assert!(matches!(source.measured(100), Step::Go { .. }));
    read(&mut source, 80);
    assert!(matches!(source.measured(20), Step::Go { .. }));
    assert!(matches!(source.next(false), SourceAction::Read(..)), "a source that is to end does not wait");
}

#[test]
fn bytes_that_a_pipe_collects_can_be_read_before_the_pause_is_over() {
    let (mut source, _write) = source(Policy::Block);
    attach_idle_reader(&mut source, true);
    collect(&mut source);
    source.take_ready();
    assert!(source.catch_up().is_some_and(|(_, span)| span.len >= PACKET_MAX));
    source.caught_up(errno(libc::EBADF), 2);
    assert!(!source.take_ready());
    assert!(source.catch_up().is_some());
    source.caught_up(Ok(80), 2);
    assert!(source.take_ready() && source.in_flight());
    assert_eq!(source.stream().stats().produced, BACKLOG + 80);
    assert!(matches!(source.done(Ok(0), 3), Step::Go { readable: false }));
    assert!(matches!(source.next(false), SourceAction::Read(..)));
    let requests: [fn(&mut Source) -> Close; 3] = [Source::finish, Source::isolate, Source::close];
    for request in requests {
        let (mut source, _write) = self::source(Policy::Block);
        attach_idle_reader(&mut source, true);
        collect(&mut source);
        assert_eq!(request(&mut source), Close::Cancel);
        assert!(source.catch_up().is_none(), "the pipe is to be measured, or may block, or is over");
    }
}
