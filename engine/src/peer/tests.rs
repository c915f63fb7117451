#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use iof_proto::limits::MAX_ANSWER;
use iof_proto::{Laggard, PushReport, Short, ShortBy};

use super::*;

fn peer() -> Peer {
    Peer::new(UnixStream::pair().unwrap().0, 1, false, false).unwrap()
}

fn target(rank: u32) -> Proc {
    Proc { nspace: Nspace::new("n".repeat(255)).unwrap(), rank: Rank(rank) }
}

/// What waits to be sent.
fn queued(peer: &Peer) -> Vec<ToTool> {
    let decoded = |out: &Outgoing| Decoder::new().decode(&mut out.frame.as_slice()).unwrap().unwrap();
    peer.outgoing.iter().map(decoded).collect()
}

#[test]
fn of_room_for_a_push_the_last_word_waits_and_is_no_answer() {
    let mut peer = peer();
    for position in 1..=1000 {
        peer.tell_room(1, position);
        peer.tell_room(2, 2 * position);
    }
    let room = |push, position| ToTool::Room { push, position };
    assert_eq!(queued(&peer), [room(1, 1000), room(2, 2000)]);
    assert_eq!((peer.answers, peer.answer_bytes), (0, 0));
    // What the tool has the beginning of stays.
    peer.outgoing.front_mut().unwrap().sent = 1;
    peer.tell_room(1, 1001);
    assert_eq!(queued(&peer), [room(1, 1000), room(2, 2000), room(1, 1001)]);
}

#[test]
fn of_a_report_that_is_too_long_as_much_is_sent_as_fits() {
    let reason = "x".repeat(1 << 20);
    let short = |rank| Short { target: target(rank), delivered: 7, why: ShortBy::Failed(reason.clone()) };
    let short: Vec<Short> = (0..40).map(short).collect();
    assert!(short.len() * reason.len() > 2 * MAX_ANSWER);
    let mut peer = peer();
    let report = PushReport { bytes: 8, whole: 9, short: short.clone() };
    peer.answer(&ToTool::Pushed { push: 3, report });
    let report = PushReport { bytes: 8, whole: 9, short: short[..10].to_vec() };
    assert_eq!(queued(&peer), [ToTool::Pushed { push: 3, report }]);
}

#[test]
fn who_lags_is_not_said_where_they_are_too_many_but_how_far_they_are_is() {
    let targets: Vec<Laggard> =
        (0..70_000).map(|rank| Laggard { target: target(rank), its_turn: true }).collect();
    let mut peer = peer();
    peer.answer(&ToTool::Lagging { request: 5, lagging: Lagging { position: 6, targets } });
    let lagging = Lagging { position: 6, targets: Vec::new() };
    assert_eq!(queued(&peer), [ToTool::Lagging { request: 5, lagging }]);
}
