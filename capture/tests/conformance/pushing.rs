//! Inlets into pipes: every byte arrives, every target ends once, and none keeps another.

mod ends;
mod pusher;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use iof_capture::{PushEnd, PushError, PushId, TargetId};
use iof_shm_ring::Inlet;
use nix::poll::PollFlags;

use self::pusher::{
    Fed, INLET, MIB, Pusher, compare, is, read_some, read_to_end, stuck, unread, wait_broken, wait_full,
};
use super::crowd::{sleeps_well, thread_of};
use crate::common::{pattern, pipe};

fn all_arrives(targets: u64) {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(pattern(64 * MIB, targets));
    let all: Vec<u64> = (0..targets).collect();
    let readers: Vec<_> =
        all.iter().map(|id| compare(pusher.unseen_target(*id), &bytes, Duration::ZERO)).collect();
    pusher.begin(0, &all, true);
    pusher.push_all(0, &bytes);
    for (id, reader) in (0..).zip(readers) {
        assert_eq!(reader.join().unwrap(), bytes.len());
        assert!(pusher.fed(0, id).is_complete(bytes.len()));
        pusher.wait_shut(id);
    }
    pusher.wait_over(0);
    assert!(pusher.stop().is_empty());
}

#[test]
fn one_target_gets_all_bytes_through_an_inlet_much_smaller_than_they() {
    all_arrives(1);
}

#[test]
fn three_targets_get_all_bytes_of_one_push() {
    all_arrives(3);
}

#[test]
fn eight_targets_get_all_bytes_of_one_push() {
    all_arrives(8);
}

#[test]
fn a_slow_target_loses_nothing_nor_does_a_quick_one() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(pattern(2 * MIB, 9));
    let slow = compare(pusher.unseen_target(0), &bytes, Duration::from_millis(2));
    let quick = compare(pusher.unseen_target(1), &bytes, Duration::ZERO);
    pusher.begin(0, &[0, 1], true);
    pusher.push_all(0, &bytes);
    assert_eq!((slow.join().unwrap(), quick.join().unwrap()), (bytes.len(), bytes.len()));
    assert!([0, 1].into_iter().all(|id| pusher.fed(0, id).is_complete(bytes.len())));
}

#[test]
fn a_target_that_never_reads_keeps_those_of_another_push_from_nothing() {
    let (mut pusher, never, _look) = stuck();
    let bytes = Arc::new(pattern(8 * MIB, 10));
    let other = compare(pusher.unseen_target(1), &bytes, Duration::ZERO);
    pusher.begin(1, &[1], true);
    pusher.push_all(1, &bytes);
    assert_eq!(other.join().unwrap(), bytes.len());
    assert!(pusher.fed(1, 1).is_complete(bytes.len()));
    assert!(!pusher.is_fed(0, 0));
    pusher.capture.shut(TargetId(0)).unwrap();
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::Stopped), "{end:?}");
    assert_eq!(delivered, unread(&never));
}

#[test]
fn a_pusher_has_room_for_what_its_inlet_holds_beyond_what_the_slowest_has_taken() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(pattern(MIB, 18));
    let (never, look) = pusher.target(0);
    pusher.begin(0, &[0, 1], false);
    assert!(pusher.fed(0, 1).came_too_late());
    let mut pushed = 0;
    // It tells of room by quarters.
    while is(&look, PollFlags::POLLOUT) || pushed < unread(&never) + INLET * 3 / 4 {
        pushed += pusher.try_push(0, &bytes[pushed as usize..]) as u64;
    }
    assert!(pushed <= unread(&never) + INLET, "{pushed}");
    let lagging = pusher.lagging(0).unwrap();
    assert_eq!(lagging.position, unread(&never));
    let [who] = lagging.targets[..] else { panic!("{lagging:?}") };
    assert!(who.target == TargetId(0) && who.turn == PushId(0));
}

#[test]
fn a_non_blocking_pipe_is_written_when_it_can_be() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(pattern(2 * MIB, 15));
    let (read, look) = pusher.target(0);
    nix::fcntl::fcntl(&look, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    drop(look);
    let reader = compare(read, &bytes, Duration::from_micros(100));
    pusher.begin(0, &[0], true);
    pusher.push_all(0, &bytes);
    assert_eq!(reader.join().unwrap(), bytes.len());
    assert!(pusher.fed(0, 0).is_complete(bytes.len()));
}

#[test]
fn nobody_wakes_up_while_nothing_is_pushed() {
    let (mut pusher, _read, _look) = stuck();
    let (idle, _look) = pusher.target(1);
    pusher.begin(1, &[1], true);
    pusher.push(1, b"all");
    assert_eq!(read_some(&idle, 3), b"all");
    pusher.wait_taken(1);
    assert!(sleeps_well(thread_of(&pusher.capture)), "it wakes though nothing happens");
    // And it still hears.
    pusher.push(1, b"more");
    assert_eq!(read_some(&idle, 4), b"more");
}

#[test]
fn targets_and_pushes_come_and_go() {
    let mut pusher = Pusher::new();
    for id in 0..200u64 {
        let read = pusher.unseen_target(id);
        pusher.begin(id, &[id], false);
        pusher.push_all(id, &id.to_ne_bytes());
        assert!(pusher.fed(id, id).is_complete(8));
        pusher.wait_over(id);
        pusher.capture.shut(TargetId(id)).unwrap();
        assert_eq!(read_to_end(read), id.to_ne_bytes());
    }
}

#[test]
fn a_targets_name_is_taken_until_it_is_told_to_be_shut_and_who_comes_too_early_is_closed() {
    let (mut pusher, first, look) = stuck();
    drop(look);
    let (second, write) = pipe();
    let error = pusher.capture.add_target(TargetId(0), write.into()).unwrap_err();
    assert_eq!(error, PushError::TargetTaken { target_id: TargetId(0) });
    assert!(read_to_end(second).is_empty());
    pusher.capture.shut(TargetId(0)).unwrap();
    pusher.wait_shut(0);
    let got = read_to_end(first);
    assert!(got == pattern(MIB, 13)[..got.len()]);

    let again = pusher.unseen_target(0);
    pusher.begin(1, &[0], true);
    pusher.push_all(1, b"to the second");
    assert_eq!(read_to_end(again), b"to the second");
    assert!(pusher.fed(1, 0).is_complete(13));
}

#[test]
fn a_pushes_name_is_taken_until_it_is_over() {
    let mut pusher = Pusher::new();
    let read = pusher.unseen_target(0);
    pusher.begin(0, &[0], false);
    let inlet = Arc::new(Inlet::create(INLET, "test").unwrap());
    let error = pusher.capture.begin_push(PushId(0), Arc::clone(&inlet), vec![TargetId(0)], true);
    assert_eq!(error.unwrap_err(), PushError::PushTaken { push_id: PushId(0) });
    assert_eq!(Arc::strong_count(&inlet), 1);
    pusher.push_all(0, b"first");
    assert!(pusher.fed(0, 0).is_complete(5));
    pusher.wait_over(0);
    pusher.begin(0, &[0], true);
    pusher.push_all(0, b" second");
    assert!(pusher.fed(0, 0).is_complete(7));
    assert_eq!(read_to_end(read), b"first second");
}

#[test]
fn a_target_takes_what_is_fed_while_it_is_there_and_has_a_reader() {
    let mut pusher = Pusher::new();
    let (_read, look) = pusher.target(0);
    let (gone, broken) = pusher.target(1);
    drop(gone);
    wait_broken(&broken);
    assert!(pusher.takes(0) && !pusher.takes(1) && !pusher.takes(2));
    // Also when it is full.
    pusher.begin(0, &[0], false);
    pusher.push(0, &pattern(64 << 10, 19));
    wait_full(&look);
    assert!(pusher.takes(0));
    pusher.capture.shut(TargetId(0)).unwrap();
    pusher.wait_shut(0);
    assert!(!pusher.takes(0));
}
