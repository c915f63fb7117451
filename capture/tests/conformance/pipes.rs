//! Pipes as sources: every byte arrives or is counted, and every source completes once.

use std::io::Write;
use std::os::fd::AsFd;

use super::{blocking_stream, rig};
use crate::BACKEND;
use iof_capture::{Capture, Command, End, Event, IdInUse, PushId, SendError, SourceId, Stopped};
use iof_shm_ring::{Gap, Peek, Policy};
use iof_testing::capture::{
    Completion, add, next, packet_pipe, stream, tool, wait_closed, wait_end, wait_for_ends, wait_for_turn,
    wait_until, write_in_pieces,
};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

const KIB: u64 = 1024;
const ID: SourceId = SourceId(1);

#[test]
fn bytes_arrive_exactly_and_in_order_through_a_much_smaller_ring() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, write) = pipe();
    let bytes = seeded_pattern(8 << 20, 1);
    rig.capture.send([add(ID, read, stream)]).unwrap();
    let writer = write_in_pieces(write, bytes.clone());
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    writer.join().unwrap();
    assert!(got == bytes && gaps.is_empty());
    let Completion { produced, dropped, closed, error } = wait_end(&rig.events, ID);
    assert_eq!((produced, dropped, closed, error.is_none()), (8 << 20, 0, false, true));
}

#[test]
fn a_reader_in_another_process_reports_room_and_its_bell_cannot_block_the_capture() {
    let rig = rig();
    let (mut hostile, mut honest) = (tool(), tool());
    let bytes = seeded_pattern(1 << 20, 5);
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    let mut bells = Vec::new();
    for (id, tool) in [(ID, &mut hostile), (SourceId(2), &mut honest)] {
        let mut stream = stream(64 * KIB, Policy::Block);
        let mut reader = tool.attach_first(&mut stream, true);
        let (ringer, bell) = rig.capture.peer_room_bell().unwrap();
        if id == ID {
            let eventfd = ringer.as_fd();
            fcntl(eventfd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
            // The largest value: another write would block.
            nix::unistd::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        } else {
            reader.set_room_bell(ringer);
        }
        let (read, write) = pipe();
        rig.capture.send([add(id, read, stream)]).unwrap();
        writers.push(write_in_pieces(write, bytes.clone()));
        readers.push(reader);
        bells.push(bell);
    }
    let (got, gaps) = honest.read_to_end(&rig.capture, SourceId(2), &mut readers[1]);
    assert!(got == bytes && gaps.is_empty());
    assert_eq!(wait_end(&rig.events, SourceId(2)).produced, 1 << 20);
    // The hostile reader never reads, so its source is still blocked.
    drop(bells);
    rig.capture.send([Command::Close(ID)]).unwrap();
    assert!(wait_end(&rig.events, ID).closed);
    drop(rig);
    for writer in writers {
        // A writer fails if its pipe was closed before its last byte.
        let _ = writer.join();
    }
}

#[test]
fn drop_newest_keeps_the_first_bytes_and_counts_the_rest() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB, Policy::DropNewest);
    let mut reader = tool.attach_first(&mut stream, false);
    let (read, write) = pipe();
    let bytes = seeded_pattern(1 << 20, 2);
    rig.capture.send([add(ID, read, stream)]).unwrap();
    write_in_pieces(write, bytes.clone()).join().unwrap();
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.dropped), (1 << 20, (1 << 20) - 64 * KIB));
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes[..64 << 10]);
    assert_eq!(gaps, [Gap { offset: 64 * KIB, lost: (1 << 20) - 64 * KIB }]);
}

#[test]
fn in_packet_mode_every_byte_arrives_or_is_counted_with_little_room_at_a_time() {
    for (policy, capacity) in [
        (Policy::Block, 16 * KIB),
        (Policy::DropOldest, 16 * KIB),
        (Policy::DropNewest, 16 * KIB),
        (Policy::DropNewest, 64 * KIB),
    ] {
        let rig = rig();
        let mut tool = tool();
        let mut stream = stream(capacity, policy);
        let mut reader = tool.attach_first(&mut stream, policy == Policy::Block);
        reader.set_room_bell(rig.capture.room_bell().unwrap());
        let (read, mut write) = packet_pipe();
        rig.capture.send([add(ID, read, stream)]).unwrap();
        let bytes = seeded_pattern(4 << 20, 7);
        let written = bytes.clone();
        let writer = std::thread::spawn(move || {
            bytes.chunks(3001).for_each(|packet| write.write_all(packet).unwrap());
        });
        let (got, gaps) = tool.read_in_pieces(&rig.capture, ID, &mut reader, 700);
        writer.join().unwrap();
        assert_eq!(wait_end(&rig.events, ID).produced, 4 << 20, "{policy:?}, {capacity}");
        assert!(policy != Policy::Block || (gaps.is_empty() && got == written));
    }
}

#[test]
fn drop_oldest_keeps_the_last_bytes_and_counts_the_rest() {
    let rig = rig();
    let mut tool = tool();
    let (read, write) = pipe();
    let bytes = seeded_pattern(1 << 20, 3);
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropOldest))]).unwrap();
    write_in_pieces(write, bytes.clone()).join().unwrap();
    assert_eq!(wait_end(&rig.events, ID).produced, 1 << 20);
    let mut reader = tool.attach(&rig.capture, ID, false).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(!got.is_empty() && bytes.ends_with(&got));
    assert_eq!(gaps, [Gap { offset: 0, lost: (1 << 20) - got.len() as u64 }]);
}

#[test]
fn a_stalled_tool_costs_another_tool_no_bytes() {
    let rig = rig();
    let (mut quick, mut stalled) = (tool(), tool());
    let mut stream = stream(64 * KIB, Policy::Block);
    let mut reader = quick.attach_first(&mut stream, true);
    let mut stalled_reader = stalled.attach_first(&mut stream, false);
    reader.set_room_bell(rig.capture.room_bell().unwrap());
    let (read, write) = pipe();
    let bytes = seeded_pattern(1 << 20, 4);
    rig.capture.send([add(ID, read, stream)]).unwrap();
    let writer = write_in_pieces(write, bytes.clone());
    let (got, gaps) = quick.read_to_end(&rig.capture, ID, &mut reader);
    writer.join().unwrap();
    assert!(got == bytes && gaps.is_empty());
    let (got, gaps) = stalled.read_to_end(&rig.capture, ID, &mut stalled_reader);
    assert!(bytes.starts_with(&got[..48 << 10]), "the stalled reader keeps its generation");
    assert_eq!(got.len() as u64 + gaps.iter().map(|gap| gap.lost).sum::<u64>(), 1 << 20);
}

#[test]
fn a_pipe_that_is_already_at_its_end_completes_without_bytes() {
    let rig = rig();
    let (read, write) = pipe();
    drop(write);
    rig.capture.send([add(ID, read, stream(KIB, Policy::DropNewest))]).unwrap();
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.dropped, end.error.is_none()), (0, 0, true));
}

#[test]
fn one_tool_reads_all_bytes_of_many_sources() {
    const SOURCES: u64 = 600;
    let rig = rig();
    let mut tool = tool();
    let mut readers = Vec::new();
    let mut writers = Vec::new();
    for id in 0..SOURCES {
        let mut stream = stream(64 * KIB, Policy::DropNewest);
        readers.push(tool.attach_first(&mut stream, false));
        let (read, write) = pipe();
        rig.capture.send([add(SourceId(id), read, stream)]).unwrap();
        writers.push(write);
    }
    for round in 0..4 {
        for (id, write) in (0..).zip(&mut writers) {
            write.write_all(&seeded_pattern(1000, id * 4 + round)).unwrap();
        }
    }
    drop(writers);
    let (ends, _) = wait_for_ends(&rig.events, SOURCES as usize, 0);
    assert!(ends.values().all(|end| end.produced == 4000 && end.dropped == 0));
    for (id, reader) in (0..).zip(&mut readers) {
        let expected: Vec<u8> = (0..4).flat_map(|round| seeded_pattern(1000, id * 4 + round)).collect();
        let (got, gaps) = tool.read_to_end(&rig.capture, SourceId(id), reader);
        assert!(got == expected && gaps.is_empty(), "source {id}");
    }
}

#[test]
fn sources_can_be_added_and_removed_while_others_run() {
    let rig = rig();
    let (read, mut steady) = pipe();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    for round in 1..=20u64 {
        steady.write_all(b"steady").unwrap();
        let (read, mut write) = pipe();
        // The id is free again in each round.
        rig.capture.send([add(SourceId(2), read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
        write.write_all(b"removed.").unwrap();
        wait_until(&rig.capture, SourceId(2), |stats| stats.produced == 8);
        rig.capture.send([Command::Remove(SourceId(2))]).unwrap();
        assert_eq!(wait_end(&rig.events, SourceId(2)).produced, 8);
        wait_closed(&mut write);
        wait_until(&rig.capture, ID, |stats| stats.produced == round * 6);
    }
    let ids = rig.capture.with_streams(|streams| streams.ids().collect::<Vec<_>>()).unwrap();
    assert_eq!(ids, [ID]);
}

#[test]
fn a_source_id_is_taken_until_the_source_is_removed() {
    let rig = rig();
    let (read, write) = pipe();
    rig.capture.send([add(ID, read, stream(KIB, Policy::DropNewest))]).unwrap();
    drop(write);
    wait_end(&rig.events, ID);
    let again = || rig.capture.send([add(ID, pipe().0, stream(KIB, Policy::DropNewest))]);
    assert_eq!(again().unwrap_err().reason, SendError::IdInUse(IdInUse::Source(ID)));
    rig.capture.send([Command::Remove(ID)]).unwrap();
    again().unwrap();
}

#[test]
fn a_tool_can_read_a_complete_stream_until_it_is_removed() {
    let rig = rig();
    let mut tool = tool();
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    write.write_all(b"earlier.").unwrap();
    drop(write);
    wait_end(&rig.events, ID);
    for _ in 0..2 {
        let mut reader = tool.attach(&rig.capture, ID, false).unwrap();
        assert_eq!(tool.read_to_end(&rig.capture, ID, &mut reader), (b"earlier.".to_vec(), vec![]));
    }
    rig.capture.send([Command::Remove(ID)]).unwrap();
    assert!(tool.attach(&rig.capture, ID, false).is_none());
    assert!(rig.events.try_recv().is_err(), "the source completed twice");
}

#[test]
fn closing_an_idle_source_completes_it_with_its_bytes_so_far() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB, Policy::DropNewest);
    let mut reader = tool.attach_first(&mut stream, false);
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream)]).unwrap();
    write.write_all(b"so far").unwrap();
    wait_until(&rig.capture, ID, |stats| stats.produced == 6);
    rig.capture.send([Command::Close(ID)]).unwrap();
    rig.capture.send([Command::Close(ID)]).unwrap();
    rig.capture.send([Command::Close(SourceId(77))]).unwrap();
    let end = wait_end(&rig.events, ID);
    assert_eq!((end.produced, end.closed, end.error.is_none()), (6, true, true));
    assert_eq!(tool.read_to_end(&rig.capture, ID, &mut reader).0, b"so far");
    assert!(rig.events.try_recv().is_err(), "the source completed twice");
}

#[test]
fn a_blocked_source_resumes_when_its_reader_consumes() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB);
    let (read, write) = pipe();
    let bytes = seeded_pattern(1 << 20, 5);
    rig.capture.send([add(ID, read, stream)]).unwrap();
    let writer = write_in_pieces(write, bytes.clone());
    // The ring has less room than a read claims, so the source waits from here on.
    wait_until(&rig.capture, ID, |stats| stats.produced > 48 * KIB);
    assert!(!writer.is_finished());
    let stats = rig.capture.with_streams(|streams| streams.get(ID).unwrap().stats()).unwrap();
    assert!(stats.produced <= 64 * KIB && stats.dropped == 0);
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    writer.join().unwrap();
    assert!(got == bytes && gaps.is_empty());
}

#[test]
fn a_blocked_source_resumes_when_its_reader_is_detached_and_can_be_closed() {
    let rig = rig();
    let mut tool = tool();
    let mut writers = Vec::new();
    let ids = [SourceId(1), SourceId(2)];
    let mut readers = Vec::new();
    for id in ids {
        let mut stream = stream(64 * KIB, Policy::Block);
        readers.push(tool.attach_first(&mut stream, true));
        let (read, write) = pipe();
        rig.capture.send([add(id, read, stream)]).unwrap();
        writers.push(std::thread::spawn(move || (&write).write_all(&vec![7; 1 << 20]).is_ok()));
        wait_until(&rig.capture, id, |stats| stats.produced > 48 * KIB);
    }
    rig.capture.send([Command::Close(ids[1])]).unwrap();
    let closed = wait_end(&rig.events, ids[1]);
    assert!(closed.produced <= 64 * KIB);
    rig.capture.send([tool.detach(ids[0], readers[0].id())]).unwrap();
    let freed = wait_end(&rig.events, ids[0]);
    assert_eq!((freed.produced, freed.dropped), (1 << 20, 0));
    let wrote: Vec<bool> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    assert_eq!(wrote, [true, false]);
}

#[test]
fn stopping_with_reads_in_flight_completes_every_source() {
    let rig = rig();
    let mut tool = tool();
    let mut readers = Vec::new();
    let mut writers = Vec::new();
    for id in 0..50 {
        let mut stream = stream(64 * KIB, Policy::DropNewest);
        readers.push(tool.attach_first(&mut stream, false));
        let (read, mut write) = pipe();
        write.write_all(b"early").unwrap();
        rig.capture.send([add(SourceId(id), read, stream)]).unwrap();
        wait_until(&rig.capture, SourceId(id), |stats| stats.produced == 5);
        writers.push(write);
    }
    drop(rig.capture);
    let (ends, _) = wait_for_ends(&rig.events, 50, 0);
    assert!(ends.values().all(|end| end.produced == 5 && end.error.is_none()));
    writers.iter_mut().for_each(wait_closed);
    let other = super::rig();
    for (id, reader) in (0..).zip(&mut readers) {
        assert_eq!(tool.read_to_end(&other.capture, SourceId(id), reader).0, b"early");
    }
}

#[test]
fn stopping_while_all_pipes_are_being_written_completes_every_source() {
    let rig = rig();
    let mut writers = Vec::new();
    for id in 0..8 {
        let policy = [Policy::DropNewest, Policy::DropOldest][id as usize % 2];
        let (read, mut write) = pipe();
        rig.capture.send([add(SourceId(id), read, stream(64 * KIB, policy))]).unwrap();
        writers.push(std::thread::spawn(move || while write.write_all(&[1; 777]).is_ok() {}));
        wait_until(&rig.capture, SourceId(id), |stats| stats.produced > 100 * KIB);
    }
    drop(rig.capture);
    assert_eq!(wait_for_ends(&rig.events, 8, 0).0.len(), 8);
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn a_non_blocking_pipe_is_read_to_its_end() {
    let rig = rig();
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).unwrap();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    nix::unistd::write(&write, b"one").unwrap();
    wait_until(&rig.capture, ID, |stats| stats.produced == 3);
    nix::unistd::write(&write, b"two").unwrap();
    drop(write);
    assert_eq!(wait_end(&rig.events, ID).produced, 6);
}

#[test]
fn an_error_completes_the_source_and_is_reported() {
    let rig = rig();
    // A directory can be opened but not read.
    let directory = std::fs::File::open("/").unwrap();
    rig.capture.send([add(ID, directory.into(), stream(KIB, Policy::DropNewest))]).unwrap();
    let error = wait_end(&rig.events, ID).error.expect("an error");
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
}

#[test]
fn tools_can_attach_and_detach_while_the_kernel_writes() {
    let rig = rig();
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream(64 * KIB, Policy::DropOldest))]).unwrap();
    let writer = std::thread::spawn(move || (0..20_000).for_each(|_| write.write_all(&[b'x'; 99]).unwrap()));
    while !writer.is_finished() {
        let mut tool = tool();
        let reader = tool.attach(&rig.capture, ID, false).unwrap();
        let (page, reader_id) = (&tool.page, reader.id());
        let lag = || rig.capture.with_streams(|streams| streams.get(ID).unwrap().lag(page, reader_id));
        assert!(lag().unwrap().is_some());
        rig.capture.send([tool.detach(ID, reader_id)]).unwrap();
        assert!(lag().unwrap().is_none());
    }
    assert_eq!(wait_end(&rig.events, ID).produced, 20_000 * 99);
}

#[test]
fn a_panic_in_with_streams_unwinds_into_the_caller() {
    let rig = rig();
    let panicking = || rig.capture.with_streams(|_| std::panic::resume_unwind(Box::new(7)));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<(), Stopped> = panicking();
    }));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&7));
    assert_eq!(rig.capture.with_streams(|streams| streams.ids().count()), Ok(0));
}

#[test]
fn after_a_panic_of_on_event_calls_return_stopped_and_nothing_hangs() {
    let capture = Capture::start_on(BACKEND, |_| std::panic::resume_unwind(Box::new(()))).unwrap();
    let mut open = Vec::new();
    for id in 0..20 {
        let (read, write) = pipe();
        open.push(write);
        capture.send([add(SourceId(id), read, stream(64 * KIB, Policy::DropNewest))]).unwrap();
    }
    open.pop();
    while capture.with_streams(|_| ()).is_ok() {}
    let stopped = SendError::Stopped(Stopped);
    assert_eq!(capture.send([Command::Close(ID)]).unwrap_err().reason, stopped);
    for _ in 0..2 {
        let fill = Command::Fill { push: PushId(1), bytes: 1, last: false };
        assert_eq!(capture.send([fill]).unwrap_err().reason, stopped);
    }
    let late = capture.send([add(SourceId(99), pipe().0, stream(KIB, Policy::DropNewest))]);
    assert_eq!(late.unwrap_err().reason, stopped);
    open.iter_mut().for_each(wait_closed);
}

#[test]
fn after_a_panic_of_on_event_the_other_sources_end_and_the_end_is_reported() {
    let (sender, events) = std::sync::mpsc::channel();
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let capture = Capture::start_on(BACKEND, move |event| {
        drop(sender.send(event));
        if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new(()));
        }
    })
    .unwrap();
    let ((read, write), (other, _open)) = (pipe(), pipe());
    capture.send([add(ID, read, stream(KIB, Policy::DropNewest))]).unwrap();
    capture.send([add(SourceId(99), other, stream(KIB, Policy::DropNewest))]).unwrap();
    // Both are read when the first ends.
    capture.with_streams(|_| ()).unwrap();
    drop(write);
    assert!(matches!(next(&events), Event::Complete { source: ID, end: End::EndOfFile, .. }));
    assert!(matches!(next(&events), Event::Complete { source: SourceId(99), end: End::Error(_), .. }));
    assert!(matches!(next(&events), Event::Ended { .. }));
}

#[test]
fn a_fill_is_refused_as_soon_as_the_capture_thread_discards_its_commands() {
    let (sender, events) = std::sync::mpsc::channel();
    let handle = std::sync::Arc::new(std::sync::OnceLock::<std::sync::Weak<Capture>>::new());
    let late_handle = handle.clone();
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let capture = Capture::start_on(BACKEND, move |_| {
        let Some(capture) = late_handle.get().and_then(std::sync::Weak::upgrade) else { return };
        // The first fill sends a command that is discarded; the others would only be added up.
        let sent = capture.send([Command::Fill { push: PushId(1), bytes: 1, last: false }]);
        let _ = sender.send(sent.map_err(|refused| refused.reason));
        if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new(()));
        }
    });
    let capture = std::sync::Arc::new(capture.unwrap());
    handle.set(std::sync::Arc::downgrade(&capture)).unwrap();
    let ((read, write), (other, _open)) = (pipe(), pipe());
    capture.send([add(ID, read, stream(KIB, Policy::DropNewest))]).unwrap();
    capture.send([add(SourceId(99), other, stream(KIB, Policy::DropNewest))]).unwrap();
    // Both are read when the first ends.
    capture.with_streams(|_| ()).unwrap();
    drop(write);
    let results: Vec<_> = events.iter().take(3).collect();
    // At the end of the first source, at that of the other, and at that of the capture.
    let stopped = SendError::Stopped(Stopped);
    assert_eq!(results, [Ok(()), Err(stopped), Err(stopped)]);
}

#[test]
fn the_last_handle_may_be_dropped_in_on_event() {
    let (sender, events) = std::sync::mpsc::channel();
    let handle = std::sync::Arc::new(std::sync::Mutex::new(None));
    let last_handle = handle.clone();
    let capture = Capture::start_on(BACKEND, move |event| {
        drop(last_handle.lock().unwrap().take());
        drop(sender.send(event));
    });
    let (read, write) = pipe();
    let capture = capture.unwrap();
    capture.send([add(ID, read, stream(KIB, Policy::DropNewest))]).unwrap();
    *handle.lock().unwrap() = Some(capture);
    drop(write);
    assert!(matches!(next(&events), Event::Complete { source: ID, .. }));
    assert!(matches!(next(&events), Event::Ended { .. }));
    // The sender is dropped with the capture thread.
    assert!(events.recv().is_err());
}

#[test]
fn pipes_are_read_in_the_order_in_which_they_became_readable() {
    let rig = rig();
    let mut tool = tool();
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for id in 0..3 {
        let mut stream = stream(64 * KIB, Policy::DropNewest);
        readers.push(tool.attach_first(&mut stream, false));
        let (read, write) = pipe();
        rig.capture.send([add(SourceId(id), read, stream)]).unwrap();
        writers.push(write);
    }
    for (round, order) in (1..).zip([[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]]) {
        // After this call all reads are in flight.
        wait_for_turn(&rig);
        let write = |index: usize| (&writers[index]).write_all(b"x").unwrap();
        // No pipe is read during this call.
        rig.capture.with_streams(|_| order.into_iter().for_each(write)).unwrap();
        let times = order.map(|index| {
            wait_until(&rig.capture, SourceId(index as u64), |stats| stats.produced == round);
            let reader = &mut readers[index];
            assert_eq!(reader.peek(), Peek::Bytes);
            let time = reader.time().unwrap();
            reader.consume(usize::MAX);
            time
        });
        assert!(times.is_sorted_by(|one, next| one < next), "{order:?}: {times:?}");
    }
}

#[test]
fn a_stream_whose_file_cannot_be_read_is_broken() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(KIB, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    let directory = std::fs::File::open("/").unwrap();
    rig.capture.send([add(ID, directory.into(), stream)]).unwrap();
    assert_eq!(tool.read_to_end(&rig.capture, ID, &mut reader), (Vec::new(), Vec::new()));
    assert_eq!(reader.peek(), Peek::Broken { missing: 0 });
}
