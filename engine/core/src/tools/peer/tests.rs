#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use iof_capture::RequestId;
use iof_proto::limits::MAX_ANSWER;
use iof_proto::{
    Channel, EffectiveOptions, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, SlowTarget,
};
use iof_shm_ring::ReaderId;

use super::*;
use crate::clients::client::{ClientId, ClientProcess};
use crate::ids::RingId;

fn peer() -> Peer {
    let slots = PageSlots::new(PageId::Tool(2), 8);
    let process = ClientProcess { pid: 1, uid: 1 };
    let client = Client { id: ClientId::Tool(2), process, name: "test".into(), own: false, rank: None };
    Peer::new(client, None, Grant::Never, slots, Limits::default(), Instant::now())
}

fn target(rank: u32) -> Proc {
    Proc::new(Nspace::new("n".repeat(255)).unwrap(), Rank(rank))
}

/// Returns the messages that wait to be sent.
fn queued(peer: &Peer) -> Vec<ToTool> {
    let decoded = |out: &Outgoing| Decoder::new().decode(&mut out.frame()).unwrap().unwrap();
    peer.outgoing.iter().map(decoded).collect()
}

#[test]
fn only_the_last_credit_of_a_push_is_queued_and_it_is_not_an_answer() {
    let mut peer = peer();
    for position in 1..=1000 {
        peer.return_credit(1, position);
        peer.return_credit(2, 2 * position);
    }
    let room = |push, position| ToTool::Room { push, position };
    assert_eq!(queued(&peer), [room(1, 1000), room(2, 2000)]);
    assert_eq!((peer.answers, peer.answer_bytes), (0, 0));
    // A message of which the tool has received a part stays queued.
    peer.outgoing.front_mut().unwrap().sent(1);
    peer.return_credit(1, 1001);
    assert_eq!(queued(&peer), [room(1, 1000), room(2, 2000), room(1, 1001)]);
}

/// Queues the announcement of the ring of reader `slot`.
fn ring(peer: &mut Peer, slot: u32) -> ToTool {
    let ring = RingId { request: RequestId(1), index: slot as usize };
    let message = ToTool::Ring {
        handler: 1,
        source: target(0),
        channel: Channel::Stdout,
        logged: false,
        run: 0,
        slot,
        follows: None,
        start: 0,
        dropped: 0,
        non_gating: false,
        options: EffectiveOptions { buffering_size: 0, buffering_time: None },
    };
    peer.send_with(&message, Attachment::Ring(ring));
    message
}

#[test]
fn rings_of_ended_readings_are_not_sent() {
    let mut peer = peer();
    let rings: Vec<ToTool> = (0..4).map(|slot| ring(&mut peer, slot)).collect();
    peer.outgoing.front_mut().unwrap().sent(1);
    peer.drop_rings(&[0, 1, 3].map(ReaderId::from).into());
    assert_eq!(
        queued(&peer),
        [rings[0].clone(), rings[2].clone()],
        "the tool has received a part of the first"
    );
    let dropped = |index| Attachment::Ring(RingId { request: RequestId(1), index });
    assert_eq!(peer.take_discarded(), [dropped(1), dropped(3)]);
    // Another reading may have the id by now.
    let again = ring(&mut peer, 0);
    peer.drop_rings(&[ReaderId::from(0)].into());
    assert!(!queued(&peer)[1..].contains(&again));
    assert_eq!(queued(&peer).len(), 2);
}

#[test]
fn a_report_that_is_too_long_is_shortened_until_it_fits() {
    let reason = "x".repeat(1 << 20);
    let short = |rank| PartialDelivery {
        target: target(rank),
        delivered: 7,
        cause: PartialCause::Failed(reason.clone()),
    };
    let short: Vec<PartialDelivery> = (0..40).map(short).collect();
    assert!(short.len() * reason.len() > 2 * MAX_ANSWER);
    let mut peer = peer();
    let report = PushReport { bytes: 8, complete: 9, partial: short.clone() };
    peer.answer(&ToTool::Pushed { push: 3, report });
    let report = PushReport { bytes: 8, complete: 9, partial: short[..10].to_vec() };
    assert_eq!(queued(&peer), [ToTool::Pushed { push: 3, report }]);
}

#[test]
fn a_list_of_too_many_slow_targets_is_left_out_but_not_their_position() {
    let targets: Vec<SlowTarget> =
        (0..70_000).map(|rank| SlowTarget { target: target(rank), stalled: true }).collect();
    let mut peer = peer();
    peer.answer(&ToTool::SlowTargets { request: 5, slow: SlowTargets { position: 6, targets } });
    let slow = SlowTargets { position: 6, targets: Vec::new() };
    assert_eq!(queued(&peer), [ToTool::SlowTargets { request: 5, slow }]);
}
