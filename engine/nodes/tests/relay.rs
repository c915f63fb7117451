//! The tree: its shape, what a relay passes on, and the nodes that are cut off with it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Instant;

use iof_nodes::limits::{MAX_CONTROL, MAX_RELAY_DOWN, MAX_WINDOW};
use iof_nodes::{
    AgentEnd, AgentEvent, Branch, Bundle, ChildNode, ChildNote, ChildUp, Decoder, EdgeError, Fault, Frame,
    FrontEvent, LinkAddress, Place, RelayDown, StartRelay, StdinPiece, StdinRanks, StdinTarget, ToAgent,
    ToFrontEnd, Turns, subtrees,
};
use iof_proto::Rank;
use proptest::prelude::*;

/// Returns the down side of a relay whose children have subtrees with these numbers of nodes.
fn relay(nodes: &[u32]) -> RelayDown {
    let child = |nodes: &u32| ChildNode { host: "a".into(), nodes: *nodes };
    let children = nodes.iter().map(child).collect();
    RelayDown::new(&StartRelay { rsh: Vec::new(), agent: "".into(), reattach: None, children })
}

/// Returns the ends of a branch of nodes with one rank each.
fn branch(nodes: u32, radix: u32) -> Branch {
    let ranks: Vec<BTreeSet<Rank>> = (0..nodes).map(|rank| [Rank(rank)].into()).collect();
    Branch::new(&ranks, radix, MAX_WINDOW)
}

fn control(message: &ToFrontEnd) -> Vec<u8> {
    message.frame().unwrap()[iof_nodes::HEADER..].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_node_is_behind_one_edge_and_subtrees_are_even(nodes in 0u32..3000, radix in 1u32..100) {
        let parts = subtrees(0..nodes, radix);
        prop_assert_eq!(parts.len() as u32, nodes.min(radix));
        prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
            prop_assert!((first.start, last.end) == (0, nodes) && first.len() - last.len() <= 1);
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
        }
    }

    #[test]
    fn a_frame_arrives_at_the_place_to_which_it_was_sent_and_comes_back_from_it(
        nodes in prop::collection::vec(1u32..9, 1..9),
        places in prop::collection::vec(any::<u32>(), 1..20),
        piece in 1usize..200,
    ) {
        let mut down = relay(&nodes);
        let all: Vec<_> = down.places().collect();
        let count = all.last().unwrap().end;
        for place in places.into_iter().map(|place| Place(1 + place % (count - 1))) {
            let credit = Frame::Credit { bundle: Bundle::Errors, bytes: 7 };
            let child = down.pass(place, &credit).unwrap();
            let mut decoder = Decoder::of_front_end();
            decoder.receive(&down.take(child).unwrap());
            let (inner, frame) = decoder.decode().unwrap().unwrap();
            prop_assert_eq!(frame, credit);
            prop_assert!(inner.0 < nodes[child]);

            let (mut end, mut sent, mut up) = (ChildUp::new(all[child].clone()), Vec::new(), Vec::new());
            Frame::HELLO.append_to(&mut sent, Place::NEXT);
            Frame::Padding.append_to(&mut sent, Place::NEXT);
            Frame::Control(b"some text").append_to(&mut sent, inner);
            for bytes in sent.chunks(piece) {
                end.pass(bytes, &mut up).unwrap();
            }
            prop_assert_eq!(end.held(), 0);
            let mut decoder = Decoder::of_agent();
            decoder.receive(&up);
            let hello = (Place(all[child].start), Frame::HELLO);
            prop_assert_eq!(decoder.decode().unwrap(), Some(hello));
            prop_assert_eq!(decoder.decode().unwrap(), Some((place, Frame::Control(b"some text"))));
            prop_assert_eq!(decoder.decode().unwrap(), None);
        }
        prop_assert_eq!(down.pass(Place(count), &Frame::HELLO), Err(EdgeError::Place(count, count)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_piece_of_stdin_passes_each_edge_once_and_reaches_its_targets(
        nodes in prop::collection::vec(1u32..9, 1..9),
        targets in prop::collection::btree_set(0u32..72, 1..20),
    ) {
        let mut down = relay(&nodes);
        let children: Vec<_> = down.places().collect();
        let count = children.last().unwrap().end;
        let ranks = |place| match place % 3 {
            0 => StdinRanks::All,
            other => StdinRanks::Some(vec![Rank(other)]),
        };
        let target = |place| StdinTarget { place: Place(place), ranks: ranks(place) };
        let piece = |places: &mut dyn Iterator<Item = u32>| {
            StdinPiece { call: 7, targets: places.map(target).collect(), bytes: vec![1; 100] }
        };
        let known = || targets.iter().copied().filter(|place| *place < count);
        let mut own = piece(&mut known());
        let mut passed = down.pass_stdin(&mut own).unwrap();
        prop_assert_eq!(own, piece(&mut known().filter(|place| *place == 0)));
        for (child, places) in children.iter().enumerate() {
            let mut decoder = Decoder::of_front_end();
            decoder.receive(&down.take(child).unwrap());
            let behind = known().filter(|place| places.contains(place)).count();
            if behind == 0 {
                prop_assert_eq!(decoder.held(), 0);
                continue;
            }
            prop_assert_eq!(passed.remove(0), child);
            let (place, frame) = decoder.decode().unwrap().unwrap();
            let mut agent = AgentEnd::default();
            agent.receive(&Frame::HELLO).unwrap();
            let AgentEvent::Message(ToAgent::Stdin(mut arrived)) = agent.receive(&frame).unwrap() else {
                return Err(TestCaseError::fail("not stdin"));
            };
            arrived.targets.iter_mut().for_each(|target| target.place.0 += places.start);
            prop_assert_eq!(arrived, piece(&mut known().filter(|place| places.contains(place))));
            prop_assert_eq!((place, decoder.held()), (Place::NEXT, 0));
        }
        prop_assert_eq!(passed, []);
        let mut unknown = piece(&mut (1..=count));
        prop_assert_eq!(down.pass_stdin(&mut unknown), Err(EdgeError::Place(count, count)));
        prop_assert!((0..children.len()).all(|child| down.held(child) == 0));
    }
}

#[test]
fn a_child_that_sends_no_frames_or_frames_of_other_nodes_is_refused() {
    let refused = |frames: &[(Place, Frame<'_>)]| {
        let (mut end, mut sent, mut up) = (ChildUp::new(4..6), Vec::new(), Vec::new());
        frames.iter().for_each(|(place, frame)| frame.append_to(&mut sent, *place));
        let error = end.pass(&sent, &mut up).unwrap_err();
        assert_eq!(up.len(), (frames.len() - 1) * iof_nodes::HEADER);
        error
    };
    let hello = |place| (Place(place), Frame::HELLO);
    assert_eq!(refused(&[(Place(0), Frame::Padding)]), EdgeError::NoHello);
    assert_eq!(refused(&[hello(1)]), EdgeError::NoHello);
    assert_eq!(refused(&[hello(0), hello(1), hello(2)]), EdgeError::Place(2, 2));
    assert_eq!(refused(&[hello(0), hello(u32::MAX)]), EdgeError::Place(u32::MAX, 2));
    assert!(matches!(ChildUp::new(1..2).pass(&[99; 40], &mut Vec::new()), Err(EdgeError::Frame(_))));
}

#[test]
fn a_relay_reads_on_while_no_child_has_too_much_to_take() {
    let mut down = relay(&[1, 3]);
    let text = vec![0; MAX_CONTROL];
    let mut passed = 0;
    while down.has_room() {
        assert_eq!(down.pass(Place(3), &Frame::Control(&text)), Ok(1));
        passed += text.len() + iof_nodes::HEADER;
    }
    assert!((MAX_RELAY_DOWN..MAX_RELAY_DOWN + MAX_CONTROL).contains(&passed), "{passed}");
    assert_eq!(down.take(1).map(|bytes| bytes.len()), Some(passed));
    assert!(down.has_room());
    // What waits for a child that is gone holds up no other.
    while down.has_room() {
        down.pass(Place(3), &Frame::Control(&text)).unwrap();
    }
    assert!(down.close(1) && !down.close(1) && down.has_room());
    assert_eq!(down.pass(Place(2), &Frame::HELLO), Ok(1));
    assert_eq!((down.take(1), down.take(0)), (None, Some(Vec::new())));
}

#[test]
fn writers_take_turns_in_the_order_of_their_requests() {
    let mut turns = Turns::default();
    assert!(turns.begin() && !turns.begin());
    turns.wait(2);
    turns.wait(3);
    assert_eq!(turns.end(), Some(2));
    // One that has more to write waits for all others.
    assert!(!turns.begin());
    turns.wait(1);
    assert_eq!((turns.end(), turns.end(), turns.end()), (Some(3), Some(1), None));
    assert!(turns.begin());
}

#[test]
fn a_relay_that_is_cut_off_takes_its_whole_subtree_along_and_no_other_node() {
    let now = Instant::now();
    // Node 0 relays for 1, 4 and 7; node 4 for 5 and 6.
    let mut branch = branch(10, 3);
    assert_eq!(branch.relay(Place(6)), Some((Place(4), Place(2))));
    assert_eq!((branch.child(Place(0), Place(4)), branch.relay(Place(0))), (Some(Place(4)), None));
    for place in [0, 4, 5] {
        assert_eq!(branch.receive(Place(place), &Frame::HELLO, now), Ok(FrontEvent::Greeted));
    }
    for child in [0, 1, 5, u32::MAX] {
        let lost = control(&ToFrontEnd::ChildLost { child: Place(child), reason: "x".into() });
        let fault = branch.receive(Place(0), &Frame::Control(&lost), now);
        assert_eq!(fault.is_err(), child != 1, "{child}");
    }
    let error = EdgeError::Unexpected("second hello");
    let fault = Fault { place: Place(4), error };
    assert_eq!(branch.receive(Place(4), &Frame::HELLO, now), Err(fault));
    let cut: Vec<u32> = branch.cut(Place(4)).into_iter().map(|(place, _)| place.0).collect();
    assert_eq!(cut, [4, 5, 6]);
    assert_eq!(branch.receive(Place(5), &Frame::HELLO, now), Ok(FrontEvent::None));
    let cut: Vec<u32> = branch.cut(Place(0)).into_iter().map(|(place, _)| place.0).collect();
    assert_eq!(cut, [0, 1, 2, 3, 7, 8, 9]);
    assert!(branch.cut(Place(0)).is_empty());
    let stranger = branch.receive(Place(10), &Frame::HELLO, now).unwrap_err();
    assert_eq!(stranger, Fault { place: Place(0), error: EdgeError::Place(10, 10) });
}

#[test]
fn what_concerns_only_an_edge_that_is_replaced_is_for_the_relay() {
    let address = LinkAddress { path: "/a".into(), session: 7 };
    let (ack, link) = (Frame::Ack { received: 9 }, control(&ToFrontEnd::Link(address.clone())));
    let (ready, link) = (control(&ToFrontEnd::Ready), Frame::Control(&link));
    let ready = Frame::Control(&ready);
    let mut sent = Vec::new();
    for (place, frame) in [(0, Frame::HELLO), (0, ack), (0, link), (0, ready), (1, ready)] {
        frame.append_to(&mut sent, Place(place));
    }
    let (mut notes, mut up) = (Vec::new(), Vec::new());
    let mut end = ChildUp::linked(4..6);
    for bytes in sent.chunks(3) {
        notes.extend(end.pass(bytes, &mut up).unwrap());
    }
    assert_eq!(notes, [ChildNote::Acknowledged(9), ChildNote::Address(address)]);
    let mut decoder = Decoder::of_agent();
    decoder.receive(&up);
    for (place, frame) in [(4, Frame::HELLO), (4, ready), (5, ready)] {
        assert_eq!(decoder.decode().unwrap(), Some((Place(place), frame)));
    }
    assert_eq!(decoder.decode().unwrap(), None);
    let pass = |end: &mut ChildUp, frame: Frame<'_>| {
        let mut sent = Vec::new();
        frame.append_to(&mut sent, Place::NEXT);
        end.pass(&sent, &mut Vec::new())
    };
    let resume = Frame::Resume { session: 7, attempt: 1, received: 0 };
    assert_eq!(pass(&mut end, resume), Err(EdgeError::Unexpected("frame of a link")));
    assert!(matches!(pass(&mut end, Frame::Control(&[99])), Err(EdgeError::Control(_))));
    let mut unlinked = ChildUp::new(4..6);
    pass(&mut unlinked, Frame::HELLO).unwrap();
    assert_eq!(pass(&mut unlinked, ack), Err(EdgeError::Unexpected("frame of a link")));
}

#[test]
fn a_child_that_was_told_to_end_is_over_and_one_with_twice_the_limit_is_overfull() {
    let mut down = relay(&[2, 1]);
    let close = ToAgent::Close.frame(Place::NEXT).unwrap();
    let close = Frame::Control(&close[iof_nodes::HEADER..]);
    down.pass(Place(2), &close).unwrap();
    assert!(!down.is_over(0) && !down.is_over(1), "a node behind the child ends");
    down.pass(Place(1), &close).unwrap();
    assert!(down.is_over(0) && !down.is_over(1));
    let text = vec![0; MAX_CONTROL];
    let mut passed = 0;
    while down.overfull().next().is_none() {
        assert!(passed < 2 * MAX_RELAY_DOWN, "{passed}");
        down.pass(Place(3), &Frame::Control(&text)).unwrap();
        passed += text.len() + iof_nodes::HEADER;
    }
    assert_eq!(down.overfull().collect::<Vec<_>>(), [1]);
    assert!(passed >= 2 * MAX_RELAY_DOWN, "{passed}");
}
