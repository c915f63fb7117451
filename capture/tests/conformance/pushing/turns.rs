//! Several pushes to one target: the order of their turns, and cutting off slow targets.

use std::sync::Arc;
use std::time::Duration;

use iof_capture::{Command, PushEnd, PushId, TargetId};
use nix::poll::PollFlags;

use super::pusher::{
    Fed, KIB, MIB, Pusher, is_ready, push_until_full, pusher_with_full_target, read_exactly, read_to_end,
    spawn_comparison, unread, wait_full,
};
use iof_testing::noise::seeded_pattern;

/// Returns the bytes of two pushes, one after the other.
fn both(first: &[u8], second: &[u8]) -> Arc<Vec<u8>> {
    Arc::new([first, second].concat())
}

#[test]
fn the_second_of_two_pushes_has_its_turn_when_the_first_is_complete() {
    let mut pusher = Pusher::new();
    let (first, second) = (seeded_pattern(3 * MIB, 20), seeded_pattern(MIB, 21));
    let reader = spawn_comparison(pusher.add_target(0), &both(&first, &second), Duration::ZERO);
    pusher.begin(1, &[0], false);
    pusher.begin(2, &[0], true);
    // Fill both pushes alternately. The second waits, so only its inlet's capacity fits.
    let mut pushed = 0;
    for chunk in first.chunks(10_000) {
        pusher.push(1, chunk);
        pushed += pusher.try_push(2, &second[pushed..][..3000.min(second.len() - pushed)]);
    }
    assert!(pushed <= 64 << 10 && !pusher.is_fed(2, 0));
    let lagging = pusher.lagging(2).unwrap();
    assert!(
        lagging.position == 0 && lagging.targets.iter().all(|slow| slow.turn == PushId(1)),
        "{lagging:?}"
    );
    pusher.end(1);
    pusher.push_all(2, &second[pushed..]);
    assert_eq!(reader.join().unwrap(), first.len() + second.len());
    assert!(pusher.fed(1, 0).is_complete(first.len()) && pusher.fed(2, 0).is_complete(second.len()));
}

#[test]
fn the_second_push_waits_while_the_first_waits_for_bytes() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(1, &[0], false);
    pusher.begin(2, &[0], true);
    pusher.push_all(2, b"second");
    pusher.push(1, b"be");
    assert_eq!(read_exactly(&read, 2), b"be");
    pusher.wait_taken(1);
    assert!(!is_ready(&read, PollFlags::POLLIN), "only the first push has its turn");
    pusher.push_all(1, b"fore the ");
    assert_eq!(read_to_end(read), b"fore the second");
    assert!(pusher.fed(1, 0).is_complete(11) && pusher.fed(2, 0).is_complete(6));
}

#[test]
fn two_pushes_that_share_a_target_both_arrive_whole() {
    let mut pusher = Pusher::new();
    let (first, second) = (Arc::new(seeded_pattern(2 * MIB, 22)), Arc::new(seeded_pattern(2 * MIB, 23)));
    let shared = both(&first, &second);
    let readers = [(1, &first), (2, &shared), (3, &second)]
        .map(|(id, bytes)| spawn_comparison(pusher.add_target(id), bytes, Duration::ZERO));
    pusher.begin(12, &[1, 2], false);
    pusher.begin(23, &[2, 3], false);
    let (mut first_pushed, mut second_pushed) = (0, 0);
    while first_pushed < first.len() {
        first_pushed += pusher.try_push(12, &first[first_pushed..]);
        second_pushed += pusher.try_push(23, &second[second_pushed..]);
    }
    pusher.end(12);
    pusher.push_all(23, &second[second_pushed..]);
    for (push, id) in [(12, 1), (12, 2), (23, 2), (23, 3)] {
        assert!(pusher.fed(push, id).is_complete(2 * MIB), "{push} at {id}");
    }
    for id in [1, 2, 3] {
        pusher.capture.send([Command::Shut(TargetId(id))]).unwrap();
    }
    let lengths = readers.map(|reader| reader.join().unwrap());
    assert_eq!(lengths, [2 * MIB, 4 * MIB, 2 * MIB]);
}

#[test]
fn a_slow_target_is_cut_off_after_its_bytes_and_a_quick_one_gets_all_bytes() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(MIB, 14));
    let (slow, poll_end) = pusher.add_watched_target(0);
    let quick = spawn_comparison(pusher.add_target(1), &bytes, Duration::ZERO);
    pusher.begin(0, &[0, 1], true);
    let pushed = push_until_full(&mut pusher, 0, &poll_end, &bytes);
    drop(poll_end);
    let position = pusher.lagging(0).unwrap().position;
    pusher.capture.send([Command::CutOff { push: PushId(0), position }]).unwrap();
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::CutOff), "{end:?}");
    pusher.wait_shut(0);
    let got = read_to_end(slow);
    assert_eq!(delivered, got.len() as u64);
    assert!(got.len() >= 64 << 10 && got == bytes[..got.len()]);
    pusher.push_all(0, &bytes[pushed..]);
    assert_eq!(quick.join().unwrap(), bytes.len());
    assert!(pusher.fed(0, 1).is_complete(bytes.len()));
}

#[test]
fn a_target_beyond_the_position_or_with_all_bytes_so_far_is_not_cut_off() {
    let mut pusher = Pusher::new();
    let (ahead, poll_end) = pusher.add_watched_target(0);
    let all = pusher.add_target(1);
    let bytes = seeded_pattern(96 << 10, 24);
    pusher.begin(0, &[0], false);
    pusher.begin(1, &[1], false);
    push_until_full(&mut pusher, 0, &poll_end, &bytes);
    wait_full(&poll_end);
    pusher.push(1, b"all");
    pusher.wait_taken(1);
    let position = pusher.lagging(0).unwrap().position;
    pusher.capture.send([Command::CutOff { push: PushId(0), position: position - 1 }]).unwrap();
    pusher.capture.send([Command::CutOff { push: PushId(1), position: u64::MAX }]).unwrap();
    // A push that does not exist is ignored.
    pusher.capture.send([Command::CutOff { push: PushId(2), position: u64::MAX }]).unwrap();
    assert!(pusher.takes(0) && pusher.takes(1));
    assert!(!pusher.is_fed(0, 0) && !pusher.is_fed(1, 1));
    drop((ahead, all));
}

#[test]
fn a_target_where_another_push_has_the_turn_is_not_cut_off() {
    let mut pusher = Pusher::new();
    let reads = [0, 1].map(|id| pusher.add_target(id));
    pusher.begin(0, &[0], false);
    pusher.begin(1, &[0, 1], true);
    pusher.push_all(1, b"second");
    assert!(pusher.fed(1, 1).is_complete(6));
    let lagging = pusher.lagging(1).unwrap();
    let [slow] = lagging.targets[..] else { panic!("{lagging:?}") };
    assert!(slow.target == TargetId(0) && slow.turn == PushId(0));
    pusher.capture.send([Command::CutOff { push: PushId(1), position: u64::MAX }]).unwrap();
    pusher.push_all(0, b"first, ");
    assert_eq!(reads.map(read_to_end), [&b"first, second"[..], b"second"]);
    assert!(pusher.fed(0, 0).is_complete(7) && pusher.fed(1, 0).is_complete(6));
}

#[test]
fn pushes_behind_a_cut_off_find_the_target_closed_and_reach_their_others() {
    let (mut pusher, full, _poll_end) = pusher_with_full_target();
    let other = pusher.add_target(1);
    pusher.begin(1, &[0, 1], true);
    pusher.begin(2, &[0], false);
    pusher.push_all(1, b"to the other");
    assert!(pusher.fed(1, 1).is_complete(12));
    pusher.capture.send([Command::CutOff { push: PushId(0), position: u64::MAX }]).unwrap();
    assert!(
        matches!(pusher.fed(0, 0), Fed { end: PushEnd::CutOff, delivered } if delivered == unread(&full))
    );
    assert!(pusher.fed(1, 0).came_too_late() && pusher.fed(2, 0).came_too_late());
    for push in [0, 1, 2] {
        pusher.wait_over(push);
    }
    assert_eq!(read_to_end(other), b"to the other");
}

/// Returns the resident memory of this process in bytes, see proc_pid_status(5).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
}

#[test]
fn memory_does_not_grow_with_the_number_of_bytes_pushed() {
    let this = "conformance::pushing::turns::memory_does_not_grow_with_the_number_of_bytes_pushed";
    if !super::ends::is_alone(this, "IOF_TEST_MEMORY") {
        return;
    }
    let mut pusher = Pusher::new();
    let bytes = seeded_pattern(MIB, 25);
    let readers: Vec<_> = [0, 1, 2]
        .map(|id| {
            let read = pusher.add_target(id);
            std::thread::spawn(move || {
                std::io::copy(&mut std::fs::File::from(read), &mut std::io::sink()).unwrap()
            })
        })
        .into();
    pusher.begin(0, &[0, 1, 2], true);
    (0..16).for_each(|_| pusher.push(0, &bytes));
    let before = resident();
    (16..256).for_each(|_| pusher.push(0, &bytes));
    let grown = resident().saturating_sub(before);
    pusher.end(0);
    assert!(readers.into_iter().all(|reader| reader.join().unwrap() == 256 * MIB as u64));
    assert!([0, 1, 2].into_iter().all(|id| pusher.fed(0, id).is_complete(256 * MIB)));
    // Less than a hundredth of the bytes pushed. The inlet is smaller than a MiB.
    assert!(grown < 2 * MIB as u64, "the process grew by {grown} bytes");
}
