//! The ends of targets: by a push that closes them, by their readers, and by the capture.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use iof_capture::{Command, Event, PushEnd, PushId, TargetId};
use nix::poll::PollFlags;
use nix::sys::signal::{SigHandler, Signal, signal};

use super::pusher::{
    Fed, MIB, Pusher, is_ready, pusher_with_full_target, read_exactly, read_to_end, spawn_comparison, unread,
    wait_broken, wait_full,
};
use iof_testing::noise::seeded_pattern;

/// Returns `true` if the calling test runs alone in its process, which the environment variable
/// `marker` shows. Otherwise runs `test`, the caller, in a process of its own, checks that it
/// passed, and returns `false`.
pub(super) fn is_alone(test: &str, marker: &str) -> bool {
    if std::env::var_os(marker).is_some() {
        return true;
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(marker, "1")
        .output();
    let run = run.unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && output.contains("1 passed"), "{:?}: {output}", run.status);
    false
}

#[test]
fn end_of_file_comes_once_after_the_last_byte_when_the_push_is_over() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(0, &[0], true);
    pusher.push(0, b"all");
    assert_eq!(read_exactly(&read, 3), b"all");
    pusher.wait_taken(0);
    assert!(!is_ready(&read, PollFlags::POLLIN), "the pipe has bytes or an end too early");
    pusher.push_all(0, b" of it");
    assert_eq!(read_to_end(read), b" of it");
    assert!(pusher.fed(0, 0).is_complete(9));
    pusher.wait_shut(0);
    pusher.wait_over(0);
    // The target is shut and the push is over, so these calls have no effect.
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    pusher.capture.send([Command::Fill { push: PushId(0), bytes: 1, last: true }]).unwrap();
    pusher.capture.send([Command::CutOff { push: PushId(0), position: u64::MAX }]).unwrap();
    assert!(pusher.stop().is_empty());
}

#[test]
fn an_empty_push_that_closes_is_an_end_of_file() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(0, &[0], true);
    pusher.end(0);
    assert_eq!(read_to_end(read), b"");
    assert!(pusher.fed(0, 0).is_complete(0));
    pusher.wait_shut(0);
}

#[test]
fn a_push_that_keeps_its_target_open_is_followed_by_the_next_push() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(0, &[0], false);
    pusher.push_all(0, b"one, ");
    assert!(pusher.fed(0, 0).is_complete(5));
    pusher.wait_over(0);
    assert_eq!(read_exactly(&read, 5), b"one, ");
    assert!(!is_ready(&read, PollFlags::POLLIN), "the pipe has bytes or an end too early");
    // An empty push writes nothing.
    pusher.begin(1, &[0], false);
    pusher.end(1);
    assert!(pusher.fed(1, 0).is_complete(0));
    assert!(!is_ready(&read, PollFlags::POLLIN), "the pipe has bytes or an end too early");
    pusher.begin(2, &[0], true);
    pusher.push_all(2, b"two");
    assert_eq!(read_to_end(read), b"two");
    assert!(pusher.fed(2, 0).is_complete(3));
}

#[test]
fn missing_targets_are_reported_at_once_and_the_others_get_all_bytes() {
    let mut pusher = Pusher::new();
    let reads = [0, 1, 2].map(|id| pusher.add_target(id));
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    pusher.wait_shut(0);
    pusher.begin(1, &[1], true);
    pusher.end(1);
    assert!(pusher.fed(1, 1).is_complete(0));
    pusher.begin(2, &[0, 1, 2, 3], true);
    for id in [0, 1, 3] {
        assert!(pusher.fed(2, id).came_too_late(), "target {id}");
    }
    assert!(!pusher.is_fed(2, 2));
    pusher.push_all(2, b"all");
    assert_eq!(reads.map(read_to_end), [&b""[..], b"", b"all"]);
    assert!(pusher.fed(2, 2).is_complete(3));
    // A push without other targets is over at once.
    pusher.begin(3, &[0, 3], false);
    assert!(pusher.fed(3, 0).came_too_late() && pusher.fed(3, 3).came_too_late());
    pusher.wait_over(3);
}

#[test]
fn a_push_that_waits_behind_one_that_closes_the_target_comes_too_late() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    pusher.begin(0, &[0], true);
    pusher.begin(1, &[0], false);
    pusher.push_all(1, b"too late");
    pusher.push_all(0, b"all");
    assert_eq!(read_to_end(read), b"all");
    assert!(pusher.fed(0, 0).is_complete(3) && pusher.fed(1, 0).came_too_late());
    pusher.wait_over(1);
}

#[test]
fn a_target_that_closes_early_reports_its_bytes_and_the_others_get_all_bytes() {
    let mut pusher = Pusher::new();
    let bytes = Arc::new(seeded_pattern(4 * MIB, 11));
    let (read, poll_end) = pusher.add_watched_target(0);
    let others = [1, 2].map(|id| spawn_comparison(pusher.add_target(id), &bytes, Duration::ZERO));
    let expected = Arc::clone(&bytes);
    let closing = std::thread::spawn(move || {
        let got = read_exactly(&read, 100_000);
        assert!(got == expected[..got.len()]);
        wait_full(&poll_end);
        got.len() as u64 + unread(&read)
    });
    pusher.begin(0, &[0, 1, 2], true);
    pusher.push_all(0, &bytes);
    let given = closing.join().unwrap();
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::Closed), "{end:?}");
    assert_eq!(delivered, given);
    assert!(others.into_iter().all(|other| other.join().unwrap() == bytes.len()));
    assert!([1, 2].into_iter().all(|id| pusher.fed(0, id).is_complete(bytes.len())));
}

#[test]
fn a_process_that_exits_during_a_push_counts_as_having_closed_its_stdin() {
    let mut pusher = Pusher::new();
    let read = pusher.add_target(0);
    let mut head = std::process::Command::new("head");
    head.args(["-c", "100000"]).stdin(read).stdout(std::process::Stdio::null());
    let mut running = head.spawn().unwrap();
    // The command object keeps the read end open.
    drop(head);
    pusher.begin(0, &[0], false);
    pusher.push(0, &seeded_pattern(MIB, 12));
    assert!(running.wait().unwrap().success());
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::Closed), "{end:?}");
    assert!(delivered >= 100_000);
    pusher.wait_shut(0);
    pusher.wait_over(0);
}

/// Pushes to two targets, of which one has a pipe without a reader.
fn push_to_a_closed_target() {
    let mut pusher = Pusher::new();
    let (read, poll_end) = pusher.add_watched_target(0);
    let other = pusher.add_target(1);
    drop(read);
    wait_broken(&poll_end);
    pusher.begin(0, &[0, 1], true);
    pusher.push(0, b"too late");
    assert!(pusher.fed(0, 0).came_too_late());
    pusher.wait_shut(0);
    // The push continues at the other target.
    pusher.push_all(0, b", but not for all");
    assert_eq!(read_to_end(other), b"too late, but not for all");
    assert!(pusher.fed(0, 1).is_complete(25));
}

#[test]
fn a_target_whose_stdin_is_already_closed_comes_too_late() {
    push_to_a_closed_target();
}

#[test]
fn a_closed_stdin_raises_no_fatal_sigpipe() {
    let this = "conformance::pushing::ends::a_closed_stdin_raises_no_fatal_sigpipe";
    if is_alone(this, "IOF_TEST_SIGPIPE") {
        // SAFETY: no handler is installed.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.unwrap();
        push_to_a_closed_target();
    }
}

#[test]
fn shutting_a_target_with_a_write_in_flight_reports_the_bytes_written() {
    let (mut pusher, read, poll_end) = pusher_with_full_target();
    pusher.capture.send([Command::Shut(TargetId(0))]).unwrap();
    let Fed { delivered, end } = pusher.fed(0, 0);
    assert!(matches!(end, PushEnd::Stopped), "{end:?}");
    assert_eq!(delivered, unread(&read));
    pusher.wait_shut(0);
    drop(poll_end);
    let mut got = Vec::new();
    File::from(read).read_to_end(&mut got).unwrap();
    assert!(got == seeded_pattern(MIB, 13)[..got.len()]);
}

#[test]
fn dropping_the_capture_ends_all_targets_and_all_pushes() {
    let (mut pusher, read, _poll_end) = pusher_with_full_target();
    let (_idle, _poll_end) = pusher.add_watched_target(1);
    pusher.begin(1, &[0, 1], false);
    let events = pusher.stop();
    let (mut fed, mut rest) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Fed { push, target, delivered, end } => fed.push((push.0, target.0, delivered, end)),
            Event::PushOver { push } => rest.push(format!("{} over", push.0)),
            Event::Shut { target } => rest.push(format!("shut {}", target.0)),
            Event::Freed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    fed.sort_by_key(|(push, target, ..)| (*push, *target));
    let [(0, 0, delivered, PushEnd::Stopped), (1, 0, 0, PushEnd::Closed), (1, 1, 0, PushEnd::Stopped)] =
        fed[..]
    else {
        panic!("{fed:?}")
    };
    assert_eq!(delivered, unread(&read));
    rest.sort_unstable();
    assert_eq!(rest, ["0 over", "1 over", "shut 0", "shut 1"]);
}
