//! Pushing from inlets into pipes: every byte arrives, every target ends once, and no target holds
//! up the pushes of another.

mod ends;
mod pusher;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use iof_capture::{Command, IdInUse, PushEnd, PushId, SendError, TargetId};
use iof_shm_ring::Inlet;
use nix::poll::PollFlags;

use self::pusher::{
    Fed, INLET, MIB, Pusher, is_ready, pusher_with_full_target, read_exactly, read_to_end, spawn_comparison,
    unread, wait_broken, wait_full,
};
use super::crowd::{stays_asleep, thread_of};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;

fn assert_all_bytes_arrive(targets: u64) {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(64 * MIB, targets));
    let all: Vec<u64> = (0..targets).collect();
    let readers: Vec<_> =
        all.iter().map(|id| spawn_comparison(pusher.add_target(*id), &bytes, Duration::ZERO)).collect();
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
fn one_target_gets_all_bytes_through_a_much_smaller_inlet() {
    assert_all_bytes_arrive(1);
}

#[test]
fn three_targets_get_all_bytes_of_one_push() {
    assert_all_bytes_arrive(3);
}

#[test]
fn eight_targets_get_all_bytes_of_one_push() {
    assert_all_bytes_arrive(8);
}

#[test]
fn a_slow_and_a_quick_target_of_one_push_both_get_all_bytes() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(2 * MIB, 9));
    let slow = spawn_comparison(pusher.add_target(0), &bytes, Duration::from_millis(2));
    let quick = spawn_comparison(pusher.add_target(1), &bytes, Duration::ZERO);
    pusher.begin(0, &[0, 1], true);
    pusher.push_all(0, &bytes);
    assert_eq!((slow.join().unwrap(), quick.join().unwrap()), (bytes.len(), bytes.len()));
    assert!([0, 1].into_iter().all(|id| pusher.fed(0, id).is_complete(bytes.len())));
}

#[test]
fn a_target_that_never_reads_does_not_hold_up_another_push() {
    let (mut pusher, never, _poll_end) = pusher_with_full_target();
    let bytes = Arc::new(seeded_pattern(8 * MIB, 10));
    let other = spawn_comparison(pusher.add_target(1), &bytes, Duration::ZERO);
    pusher.begin(1, &[1], true);
    pusher.push_all(1, &bytes);
    assert_eq!(other.join().unwrap(), bytes.len());
    assert!(pusher.fed(1, 1).is_complete(bytes.len()));
    assert!(!pusher.is_fed(0, 0));
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::Stopped), "{end:?}");
    assert_eq!(delivered, unread(&never));
}

#[test]
fn the_inlet_bounds_how_far_a_pusher_is_ahead_of_its_slowest_target() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(MIB, 18));
    let (never, poll_end) = pusher.add_watched_target(0);
    pusher.begin(0, &[0, 1], false);
    assert!(pusher.fed(0, 1).came_too_late());
    let mut pushed = 0;
    // Free room is reported in quarters of the inlet.
    while is_ready(&poll_end, PollFlags::POLLOUT) || pushed < unread(&never) + INLET * 3 / 4 {
        pushed += pusher.try_push(0, &bytes[pushed as usize..]) as u64;
    }
    assert!(pushed <= unread(&never) + INLET, "{pushed}");
    let lagging = pusher.lagging(0).unwrap();
    assert_eq!(lagging.position, unread(&never));
    let [slow] = lagging.targets[..] else { panic!("{lagging:?}") };
    assert!(slow.target == TargetId(0) && slow.turn == PushId(0));
}

#[test]
fn a_non_blocking_pipe_is_written_when_it_has_room() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(2 * MIB, 15));
    let (read, poll_end) = pusher.add_watched_target(0);
    nix::fcntl::fcntl(&poll_end, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    drop(poll_end);
    let reader = spawn_comparison(read, &bytes, Duration::from_micros(100));
    pusher.begin(0, &[0], true);
    pusher.push_all(0, &bytes);
    assert_eq!(reader.join().unwrap(), bytes.len());
    assert!(pusher.fed(0, 0).is_complete(bytes.len()));
}

#[test]
fn the_capture_sleeps_while_nothing_is_pushed() {
    let (mut pusher, _read, _poll_end) = pusher_with_full_target();
    let (idle, _poll_end) = pusher.add_watched_target(1);
    pusher.begin(1, &[1], true);
    pusher.push(1, b"all");
    assert_eq!(read_exactly(&idle, 3), b"all");
    pusher.wait_taken(1);
    assert!(stays_asleep(thread_of(&pusher.capture)), "the capture thread wakes without a cause");
    // The next push still wakes it.
    pusher.push(1, b"more");
    assert_eq!(read_exactly(&idle, 4), b"more");
}

#[test]
fn targets_and_pushes_can_be_added_and_ended_many_times() {
    let mut pusher = Pusher::new();
    for id in 0..200u64 {
        let read = pusher.add_target(id);
        pusher.begin(id, &[id], false);
        pusher.push_all(id, &id.to_ne_bytes());
        assert!(pusher.fed(id, id).is_complete(8));
        pusher.wait_over(id);
        pusher.capture.send([Command::Shut(TargetId(id))]).unwrap();
        assert_eq!(read_to_end(read), id.to_ne_bytes());
    }
}

#[test]
fn a_target_id_is_taken_until_the_target_is_shut_and_a_refused_pipe_is_closed() {
    let (mut pusher, first, poll_end) = pusher_with_full_target();
    drop(poll_end);
    let (second, write) = pipe();
    let error =
        pusher.capture.send([Command::AddTarget { target: TargetId(0), pipe: write.into() }]).unwrap_err();
    assert_eq!(error.reason, SendError::IdInUse(IdInUse::Target(TargetId(0))));
    drop(error);
    assert!(read_to_end(second).is_empty());
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    pusher.wait_shut(0);
    let got = read_to_end(first);
    assert!(got == seeded_pattern(MIB, 13)[..got.len()]);

    let again = pusher.add_target(0);
    pusher.begin(1, &[0], true);
    pusher.push_all(1, b"to the second");
    assert_eq!(read_to_end(again), b"to the second");
    assert!(pusher.fed(1, 0).is_complete(13));
}

#[test]
fn a_push_id_is_taken_until_the_push_is_over() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(0, &[0], false);
    let inlet = Arc::new(Inlet::create(INLET, "test").unwrap());
    let error = pusher.capture.send([Command::BeginPush {
        push: PushId(0),
        inlet: Arc::clone(&inlet),
        targets: vec![TargetId(0)],
        closes: true,
    }]);
    assert_eq!(error.unwrap_err().reason, SendError::IdInUse(IdInUse::Push(PushId(0))));
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
fn a_target_accepts_pushes_while_it_exists_and_its_pipe_has_a_reader() {
    let mut pusher = Pusher::new();
    let (_read, poll_end) = pusher.add_watched_target(0);
    let (gone, broken) = pusher.add_watched_target(1);
    drop(gone);
    wait_broken(&broken);
    assert!(pusher.takes(0) && !pusher.takes(1) && !pusher.takes(2));
    // A full pipe still counts.
    pusher.begin(0, &[0], false);
    pusher.push(0, &seeded_pattern(64 << 10, 19));
    wait_full(&poll_end);
    assert!(pusher.takes(0));
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    pusher.wait_shut(0);
    assert!(!pusher.takes(0));
}
