//! Streams into pipes: every byte arrives, every target ends once, and none keeps another.

mod pusher;

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use iof_capture::{Event, FeedEnd, FeedError, TargetId};
use iof_shm_ring::{Policy, Reader, Start};
use nix::poll::PollFlags;
use nix::sys::signal::{SigHandler, Signal, signal};

use self::pusher::{Fed, KIB, MIB, Pusher, compare, is, stuck, unread, wait_broken, wait_full};
use super::crowd::{sleeps_well, thread_of};
use crate::common::{pattern, pipe, stream};

fn all_arrives(targets: u64) {
    let mut pusher = Pusher::with(Policy::Block);
    let bytes = Arc::new(pattern(64 * MIB, targets));
    let readers: Vec<_> =
        (0..targets).map(|id| compare(pusher.feed(id, 0, true).0, &bytes, Duration::ZERO)).collect();
    pusher.push(0, &bytes);
    pusher.complete(0);
    for (id, reader) in (0..).zip(readers) {
        assert_eq!(reader.join().unwrap(), bytes.len());
        let Fed { delivered, lost, end } = pusher.end(id);
        assert!(matches!(end, FeedEnd::Complete), "{end:?}");
        assert_eq!((delivered, lost), (bytes.len() as u64, 0));
    }
    assert!(pusher.events.try_iter().next().is_none());
}

#[test]
fn one_target_gets_all_bytes_through_a_ring_much_smaller_than_they() {
    all_arrives(1);
}

#[test]
fn three_targets_get_all_bytes_of_one_stream() {
    all_arrives(3);
}

#[test]
fn eight_targets_get_all_bytes_of_one_stream() {
    all_arrives(8);
}

#[test]
fn a_slow_target_that_may_block_loses_nothing_nor_does_a_quick_one() {
    let mut pusher = Pusher::with(Policy::Block);
    let bytes = Arc::new(pattern(2 * MIB, 9));
    let slow = compare(pusher.feed(0, 0, true).0, &bytes, Duration::from_millis(2));
    let quick = compare(pusher.feed(1, 0, true).0, &bytes, Duration::ZERO);
    pusher.push(0, &bytes);
    pusher.complete(0);
    assert_eq!((slow.join().unwrap(), quick.join().unwrap()), (bytes.len(), bytes.len()));
    for id in [0, 1] {
        assert!(matches!(pusher.end(id), Fed { lost: 0, end: FeedEnd::Complete, .. }));
    }
}

#[test]
fn a_target_that_never_reads_keeps_those_of_another_stream_from_nothing() {
    let mut pusher = Pusher::with(Policy::Block);
    pusher.streams.push(stream(64 * KIB, Policy::Block));
    let (never, look) = pusher.feed(0, 0, true);
    let bytes = Arc::new(pattern(8 * MIB, 10));
    let other = compare(pusher.feed(1, 1, true).0, &bytes, Duration::ZERO);
    let taken = pusher.try_push(0, &bytes);
    assert!(taken <= 64 << 10);
    // The ring gives the pipe as much as it takes and is filled again.
    let mut all = taken;
    while is(&look, PollFlags::POLLOUT) {
        all += pusher.try_push(0, &bytes[all..]);
    }
    pusher.push(1, &bytes);
    pusher.complete(1);
    assert_eq!(other.join().unwrap(), bytes.len());
    assert!(matches!(pusher.end(1), Fed { end: FeedEnd::Complete, .. }));
    pusher.capture.unfeed(TargetId(0)).unwrap();
    let Fed { delivered, end, .. } = pusher.end(0);
    assert!(matches!(end, FeedEnd::Stopped));
    assert_eq!(delivered, unread(&never));
}

#[test]
fn a_target_that_goes_in_the_middle_is_told_of_with_what_it_was_given_and_the_others_get_all() {
    let mut pusher = Pusher::with(Policy::Block);
    let bytes = Arc::new(pattern(4 * MIB, 11));
    let (read, look) = pusher.feed(0, 0, true);
    let others: Vec<_> = [1, 2].map(|id| compare(pusher.feed(id, 0, true).0, &bytes, Duration::ZERO)).into();
    let expected = Arc::clone(&bytes);
    let goes = std::thread::spawn(move || {
        let (mut file, mut got) = (File::from(read), vec![0; 100_000]);
        file.read_exact(&mut got).unwrap();
        assert!(got == expected[..got.len()]);
        wait_full(&look);
        got.len() as u64 + unread(&file.into())
    });
    pusher.push(0, &bytes);
    pusher.complete(0);
    let given = goes.join().unwrap();
    let Fed { delivered, lost, end } = pusher.end(0);
    assert!(matches!(end, FeedEnd::Closed), "{end:?}");
    assert_eq!((delivered, lost), (given, 0));
    for (id, other) in (1..).zip(others) {
        assert_eq!(other.join().unwrap(), bytes.len());
        assert!(matches!(pusher.end(id), Fed { lost: 0, end: FeedEnd::Complete, .. }));
    }
}

#[test]
fn a_process_that_exits_in_the_middle_has_closed_its_stdin() {
    let mut pusher = Pusher::with(Policy::Block);
    let (read, _look) = pusher.feed(0, 0, true);
    let mut head = Command::new("head");
    head.args(["-c", "100000"]).stdin(read).stdout(std::process::Stdio::null());
    let mut running = head.spawn().unwrap();
    // It has the read end, too.
    drop(head);
    pusher.push(0, &pattern(MIB, 12));
    assert!(running.wait().unwrap().success());
    let Fed { delivered, end, .. } = pusher.end(0);
    assert!(matches!(end, FeedEnd::Closed), "{end:?}");
    assert!(delivered >= 100_000);
}

/// Feeds a pipe that nobody reads any more.
fn feed_one_that_is_closed() {
    let mut pusher = Pusher::with(Policy::Block);
    let (read, look) = pusher.feed(0, 0, true);
    drop(read);
    wait_broken(&look);
    pusher.push(0, b"too late");
    let Fed { delivered, lost, end } = pusher.end(0);
    assert!(matches!(end, FeedEnd::Closed), "{end:?}");
    assert_eq!((delivered, lost), (0, 0));
    // The slot is free, and the stream goes on without it.
    let (read, look) = pusher.feed(1, 0, true);
    drop(look);
    pusher.push(0, b", but not for all");
    pusher.complete(0);
    let mut got = String::new();
    File::from(read).read_to_string(&mut got).unwrap();
    assert!("too late, but not for all".ends_with(&got) && got.ends_with(", but not for all"), "{got}");
    assert!(matches!(pusher.end(1).end, FeedEnd::Complete));
}

#[test]
fn a_target_that_closes_its_stdin_at_once() {
    feed_one_that_is_closed();
}

#[test]
fn a_closed_stdin_kills_nobody_where_sigpipe_would() {
    const INSIDE: &str = "IOF_TEST_SIGPIPE";
    if std::env::var_os(INSIDE).is_some() {
        // SAFETY: no handler is installed.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.unwrap();
        return feed_one_that_is_closed();
    }
    let this = "conformance::feeding::a_closed_stdin_kills_nobody_where_sigpipe_would";
    let inside =
        Command::new(std::env::current_exe().unwrap()).args(["--exact", this]).env(INSIDE, "1").output();
    let inside = inside.unwrap();
    let said = String::from_utf8_lossy(&inside.stdout);
    assert!(inside.status.success() && said.contains("1 passed"), "{:?}: {said}", inside.status);
}

#[test]
fn end_of_file_comes_once_after_the_last_byte_and_not_before_the_stream_is_complete() {
    let mut pusher = Pusher::with(Policy::Block);
    let (read, look) = pusher.feed(0, 0, true);
    drop(look);
    let mut read = File::from(read);
    pusher.push(0, b"all");
    let mut got = [0; 3];
    read.read_exact(&mut got).unwrap();
    pusher.wait_until_all_is_fed(0);
    assert!(!is(&read, PollFlags::POLLIN), "neither bytes nor an end");
    pusher.push(0, b" of it");
    pusher.complete(0);
    let mut rest = String::new();
    read.read_to_string(&mut rest).unwrap();
    assert_eq!((&got, &*rest), (b"all", " of it"));
    assert!(matches!(pusher.end(0), Fed { delivered: 9, lost: 0, end: FeedEnd::Complete }));
    pusher.capture.unfeed(TargetId(0)).unwrap();
    let Pusher { capture, events, .. } = pusher;
    drop(capture);
    assert!(events.try_iter().next().is_none());
}

#[test]
fn an_empty_stream_is_an_end_of_file() {
    let mut pusher = Pusher::with(Policy::Block);
    pusher.complete(0);
    let (read, look) = pusher.feed(0, 0, true);
    drop(look);
    assert_eq!(File::from(read).read(&mut [0; 10]).unwrap(), 0);
    assert!(matches!(pusher.end(0), Fed { delivered: 0, lost: 0, end: FeedEnd::Complete }));
}

#[test]
fn unfeeding_with_a_write_in_flight_ends_it_with_what_was_written() {
    let (mut pusher, read, look) = stuck();
    pusher.capture.unfeed(TargetId(0)).unwrap();
    let Fed { delivered, end, .. } = pusher.end(0);
    assert!(matches!(end, FeedEnd::Stopped), "{end:?}");
    assert_eq!(delivered, unread(&read));
    drop(look);
    let mut got = Vec::new();
    File::from(read).read_to_end(&mut got).unwrap();
    assert!(got == pattern(MIB, 13)[..got.len()]);
}

#[test]
fn dropping_the_capture_ends_targets_with_and_without_a_write_in_flight() {
    let (mut pusher, read, _look) = stuck();
    pusher.streams.push(stream(64 * KIB, Policy::Block));
    let (_idle, _look) = pusher.feed(1, 1, true);
    let Pusher { capture, events, .. } = pusher;
    drop(capture);
    let mut ends: Vec<_> = events.try_iter().collect();
    ends.sort_by_key(|event| matches!(event, Event::Fed { target: TargetId(1), .. }));
    let [
        Event::Fed { target: TargetId(0), delivered, end: FeedEnd::Stopped, .. },
        Event::Fed { target: TargetId(1), delivered: 0, end: FeedEnd::Stopped, .. },
    ] = ends[..]
    else {
        panic!("{ends:?}")
    };
    assert_eq!(delivered, unread(&read));
}

#[test]
fn a_target_that_falls_behind_is_cut_off_and_one_that_keeps_up_gets_all() {
    let mut pusher = Pusher::with(Policy::DropNewest);
    let bytes = Arc::new(pattern(MIB, 14));
    let (slow, look) = pusher.feed(0, 0, false);
    drop(look);
    let quick = compare(pusher.feed(1, 0, false).0, &bytes, Duration::ZERO);
    for chunk in bytes.chunks(16 << 10) {
        pusher.push(0, chunk);
        pusher.wait_until_all_is_fed(1);
    }
    let slow = compare(slow, &bytes, Duration::ZERO);
    let Fed { delivered, end, .. } = pusher.end(0);
    assert!(matches!(end, FeedEnd::CutOff), "{end:?}");
    let got = slow.join().unwrap();
    assert_eq!(delivered, got as u64);
    assert!(got >= 64 << 10 && got < bytes.len(), "{got}");
    pusher.complete(0);
    assert_eq!(quick.join().unwrap(), bytes.len());
    assert!(matches!(pusher.end(1), Fed { lost: 0, end: FeedEnd::Complete, .. }));
}

#[test]
fn one_that_may_not_hold_the_stream_back_costs_one_that_may_nothing() {
    let mut pusher = Pusher::with(Policy::Block);
    let bytes = Arc::new(pattern(4 * MIB, 16));
    let (never, look) = pusher.feed(0, 0, false);
    drop(look);
    let may = compare(pusher.feed(1, 0, true).0, &bytes, Duration::ZERO);
    pusher.push(0, &bytes);
    pusher.complete(0);
    let Fed { lost, end, .. } = pusher.end(1);
    assert!(matches!(end, FeedEnd::Complete), "{end:?}");
    assert_eq!((may.join().unwrap(), lost), (bytes.len(), 0));
    let never = compare(never, &bytes, Duration::ZERO);
    let Fed { delivered, end, .. } = pusher.end(0);
    assert!(matches!(end, FeedEnd::CutOff), "{end:?}");
    assert_eq!(delivered, never.join().unwrap() as u64);
}

#[test]
fn a_non_blocking_pipe_is_written_when_it_can_be() {
    let mut pusher = Pusher::with(Policy::Block);
    let bytes = Arc::new(pattern(2 * MIB, 15));
    let (read, look) = pusher.feed(0, 0, true);
    nix::fcntl::fcntl(&look, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    drop(look);
    let reader = compare(read, &bytes, Duration::from_micros(100));
    pusher.push(0, &bytes);
    pusher.complete(0);
    assert_eq!(reader.join().unwrap(), bytes.len());
    assert!(matches!(pusher.end(0), Fed { lost: 0, end: FeedEnd::Complete, .. }));
}

#[test]
fn nobody_wakes_up_while_nothing_is_pushed() {
    let (mut pusher, _read, _look) = stuck();
    pusher.streams.push(stream(64 * KIB, Policy::Block));
    let (idle, _look) = pusher.feed(1, 1, true);
    pusher.push(1, b"all");
    let mut idle = File::from(idle);
    idle.read_exact(&mut [0; 3]).unwrap();
    pusher.wait_until_all_is_fed(1);
    assert!(sleeps_well(thread_of(&pusher.capture)), "it wakes though nothing happens");
    // And it still hears.
    pusher.push(1, b"more");
    idle.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn targets_come_and_go_and_take_each_others_slots() {
    let mut pusher = Pusher::with(Policy::Block);
    for id in 0..200 {
        let (read, look) = pusher.feed(id, 0, true);
        drop(look);
        pusher.push(0, &id.to_ne_bytes());
        pusher.wait_until_all_is_fed(id);
        pusher.capture.unfeed(TargetId(id)).unwrap();
        assert!(matches!(pusher.end(id).end, FeedEnd::Stopped));
        let mut got = Vec::new();
        File::from(read).read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&id.to_ne_bytes()));
    }
    assert_eq!(pusher.capture.area().take_slot().unwrap(), 0);
}

#[test]
fn a_name_is_taken_until_its_end_is_reported_and_who_comes_too_early_is_closed() {
    let mut pusher = Pusher::with(Policy::Block);
    let (first, look) = pusher.feed(0, 0, true);
    drop(look);
    let (second, write) = pipe();
    let area = pusher.capture.area();
    let slot = area.take_slot().unwrap();
    let given = pusher.streams[0].attach(area, slot, Start::Oldest, true).unwrap();
    // SAFETY: it is detached when it is gone.
    let reader = unsafe { Reader::new(given, Arc::clone(area), Start::Oldest) }.unwrap();
    let error = pusher.capture.feed(TargetId(0), write.into(), reader).unwrap_err();
    assert_eq!(error, FeedError::Taken { target_id: TargetId(0) });
    assert!(pusher.streams[0].detach(area, slot));
    area.return_slot(slot);
    assert_eq!(File::from(second).read(&mut [0]).unwrap(), 0);

    pusher.push(0, b"to the first");
    pusher.wait_until_all_is_fed(0);
    pusher.capture.unfeed(TargetId(0)).unwrap();
    assert!(matches!(pusher.end(0), Fed { delivered: 12, lost: 0, end: FeedEnd::Stopped }));
    let mut got = String::new();
    File::from(first).read_to_string(&mut got).unwrap();
    assert_eq!(got, "to the first");

    let (_again, _look) = pusher.feed(0, 0, true);
    pusher.complete(0);
    assert!(matches!(pusher.end(0).end, FeedEnd::Complete));
}
