//! Edges whose carriers are cut at any byte and replaced.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use iof_nodes::limits::{MAX_KEPT, MAX_RECORD};
use iof_nodes::{Bundle, EdgeError, Frame, FrameDecoder, LinkEnd};
use proptest::prelude::*;

const SESSION: u64 = 0x5e55_1011;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns an end of an edge that outlives its carriers.
fn resumable() -> LinkEnd {
    let mut link = LinkEnd::default();
    link.outlive_carriers(LIMIT);
    link
}

/// Returns what a carrier that has room for `limit` bytes takes.
fn take(link: &mut LinkEnd, limit: usize) -> Vec<u8> {
    let mut taken = vec![0; limit.min(link.held())];
    let mut room = taken.as_mut_slice();
    if let Err(error) = link.write_to(&mut room) {
        assert_eq!(error.kind(), ErrorKind::WriteZero);
    }
    let left = room.len();
    taken.truncate(taken.len() - left);
    taken
}

/// One end, with the frames that it sends and receives: credit with growing numbers.
struct End {
    link: LinkEnd,
    decoder: FrameDecoder,
    /// The bytes that the carrier has taken and not delivered.
    pipe: VecDeque<u8>,
    /// The first frame over this carrier, until it has arrived whole.
    first: Option<FrameDecoder>,
    sent: u64,
    arrived: u64,
}

impl End {
    fn new() -> End {
        let decoder = FrameDecoder::of_front_end();
        End { link: resumable(), decoder, pipe: VecDeque::new(), first: None, sent: 0, arrived: 0 }
    }

    /// Sends frames, if there is room.
    fn send(&mut self, count: u64) {
        for _ in 0..count {
            if !self.link.has_room() {
                return;
            }
            self.sent += 1;
            let mut bytes = Vec::new();
            Frame::Credit { bundle: Bundle::Stdout, bytes: self.sent }.append_to(&mut bytes);
            self.link.send(&bytes);
        }
    }

    /// Gives the carrier bytes, unless the peer has yet to tell what it has.
    fn write(&mut self, limit: usize) {
        if self.first.is_none() {
            let piece = take(&mut self.link, limit);
            self.pipe.extend(piece);
        }
    }

    /// Receives bytes that the carrier delivers.
    fn receive(&mut self, bytes: &[u8]) {
        let mut rest = bytes.to_vec();
        if let Some(mut first) = self.first.take() {
            first.receive(&rest);
            let Some(frame) = first.decode().unwrap() else {
                self.first = Some(first);
                return;
            };
            self.link.resume(SESSION, &frame).unwrap();
            let behind = first.held();
            rest.drain(..rest.len() - behind);
        }
        self.decoder.receive(&rest);
        self.link.receive(rest.len());
        while let Some(frame) = self.decoder.decode().unwrap() {
            match frame {
                Frame::Ack { received } => self.link.acknowledged(received).unwrap(),
                Frame::Credit { bytes, .. } => {
                    self.arrived += 1;
                    assert_eq!(bytes, self.arrived);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(self.link.held() < MAX_KEPT + MAX_RECORD);
    }

    /// Goes over to a new carrier. What was in the old one is lost.
    fn replace_carrier(&mut self) {
        self.pipe = self.link.resume_frame(SESSION).header().unwrap().into();
        self.first = Some(FrameDecoder::of_front_end());
    }
}

/// Delivers at most `limit` bytes that `from` has sent.
fn carry(from: &mut End, to: &mut End, limit: usize) {
    from.write(limit);
    let bytes: Vec<u8> = from.pipe.drain(..limit.min(from.pipe.len())).collect();
    to.receive(&bytes);
}

#[derive(Clone, Debug)]
enum Step {
    Send(bool, u64),
    Write(bool, usize),
    Carry(bool, usize),
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), 1u64..5000).prop_map(|(side, count)| Step::Send(side, count)),
        5 => (any::<bool>(), prop_oneof![1usize..100, 1usize..1 << 18])
            .prop_map(|(side, limit)| Step::Carry(side, limit)),
        2 => (any::<bool>(), 1usize..1 << 18).prop_map(|(side, limit)| Step::Write(side, limit)),
        1 => Just(Step::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_frame_arrives_once_and_in_order_wherever_carriers_are_cut(
        steps in proptest::collection::vec(step(), 1..50)
    ) {
        let mut ends = [End::new(), End::new()];
        for step in steps {
            let [one, two] = &mut ends;
            match step {
                Step::Send(side, count) => ends[usize::from(side)].send(count),
                Step::Write(side, limit) => ends[usize::from(side)].write(limit),
                Step::Carry(true, limit) => carry(one, two, limit),
                Step::Carry(false, limit) => carry(two, one, limit),
                Step::Cut => ends.iter_mut().for_each(End::replace_carrier),
            }
        }
        let [mut one, mut two] = ends;
        while [&one, &two].iter().any(|end| !(end.pipe.is_empty() && end.link.is_drained())) {
            carry(&mut one, &mut two, usize::MAX);
            carry(&mut two, &mut one, usize::MAX);
        }
        prop_assert_eq!((one.arrived, two.arrived), (two.sent, one.sent));
    }
}

#[test]
fn a_resume_of_an_earlier_attempt_that_arrives_late_changes_nothing() {
    let (mut front, mut agent) = (resumable(), resumable());
    let begin = |front: &mut LinkEnd| {
        front.begin_attempt();
        front.resume_frame(SESSION)
    };
    agent.send(&[0; 200]);
    take(&mut agent, 100);
    front.receive(40);
    let (late, next) = (begin(&mut front), begin(&mut front));
    assert_eq!(agent.resume(SESSION, &next), Ok(()));
    assert_eq!(front.resume(SESSION, &agent.resume_frame(SESSION)), Ok(()));
    take(&mut agent, 100);
    front.receive(100);
    assert_eq!(agent.resume(SESSION, &late), Err(EdgeError::Unexpected("resume of an earlier attempt")));
    let last = begin(&mut front);
    assert_eq!(agent.resume(SESSION, &last), Ok(()));
    assert_eq!(take(&mut agent, usize::MAX).len(), 60);
}

#[test]
fn a_peer_without_acks_stops_the_sender_within_its_limit() {
    let (mut one, mut two) = (End::new(), End::new());
    one.send(u64::MAX);
    assert_eq!(one.link.held(), MAX_KEPT);
    carry(&mut one, &mut two, usize::MAX);
    carry(&mut two, &mut one, usize::MAX);
    assert!(one.link.has_room());
}

#[test]
fn a_peer_that_reads_nothing_is_sent_a_limited_number_of_acks() {
    let mut link = resumable();
    (0..MAX_KEPT / 8).for_each(|_| assert!(link.receive(1 << 20) || link.held() >= MAX_KEPT));
    assert_eq!(link.held(), 2 * MAX_KEPT);
}

#[test]
fn wrong_acks_and_links_of_other_sessions_are_errors() {
    let mut link = resumable();
    link.send(&[0; 200]);
    take(&mut link, 100);
    assert_eq!(link.acknowledged(101), Err(EdgeError::Acknowledged { received: 101, sent: 100 }));
    assert_eq!(link.acknowledged(40), Ok(()));
    // It was on its way when a carrier was replaced.
    assert_eq!(link.acknowledged(39), Ok(()));
    let other = Frame::Resume { session: 1, attempt: 0, received: 50 };
    assert_eq!(link.resume(SESSION, &other), Err(EdgeError::Session));
    assert_eq!(link.resume(SESSION, &Frame::Padding), Err(EdgeError::Unexpected("frame before a resume")));
    let resume = |received| Frame::Resume { session: SESSION, attempt: 0, received };
    let before = link.resume(SESSION, &resume(39));
    assert_eq!(before, Err(EdgeError::Unexpected("resume before bytes that were acknowledged")));
    assert_eq!(link.held(), 160);
    assert_eq!(link.resume(SESSION, &resume(70)), Ok(()));
    assert_eq!((take(&mut link, usize::MAX).len(), link.is_drained()), (130, true));
}

#[test]
fn an_edge_that_ends_with_its_carrier_keeps_nothing_that_is_written_and_sends_no_acks() {
    let mut link = LinkEnd::default();
    link.send(&[0; 2 * MAX_RECORD]);
    assert!(!link.has_room(), "more waits where its memory is bounded");
    take(&mut link, 2 * MAX_RECORD - 1);
    assert_eq!((link.held(), link.has_room(), link.is_drained()), (1, true, false));
    take(&mut link, 1);
    assert!(!link.receive(MAX_KEPT));
    assert_eq!((link.held(), link.is_drained()), (0, true));
    let now = Instant::now();
    link.detach(now);
    assert_eq!((link.takes_carriers(now), link.lost_at()), (false, Some(now)));
}

#[test]
fn an_edge_is_lost_when_it_was_without_a_carrier_for_too_long_and_keeps_what_it_sends_until_then() {
    let (mut link, now) = (LinkEnd::default(), Instant::now());
    link.send(&[0; 50]);
    take(&mut link, usize::MAX);
    link.outlive_carriers(LIMIT);
    link.send(&[0; 100]);
    take(&mut link, usize::MAX);
    link.detach(now);
    link.detach(now + LIMIT);
    assert_eq!((link.held(), link.lost_at(), link.takes_carriers(now)), (100, Some(now + LIMIT), true));
    let resume = Frame::Resume { session: SESSION, attempt: 0, received: 60 };
    link.resume(SESSION, &resume).unwrap();
    assert_eq!((link.is_attached(), link.lost_at()), (true, None));
    assert_eq!(take(&mut link, usize::MAX).len(), 90);
}

#[test]
fn the_end_of_a_job_needs_another_carrier_only_until_its_deadline_and_if_it_has_not_arrived() {
    let (mut link, now) = (resumable(), Instant::now());
    link.send(&[0; 10]);
    link.end(now + LIMIT);
    link.close();
    link.detach(now);
    assert_eq!((link.is_closed(), link.ends_at(), link.lost_at()), (true, Some(now + LIMIT), None));
    assert_eq!((link.takes_carriers(now), link.takes_carriers(now + LIMIT)), (true, false));
    take(&mut link, usize::MAX);
    assert_eq!((link.is_drained(), link.takes_carriers(now)), (false, true));
    link.acknowledged(10).unwrap();
    assert_eq!((link.is_drained(), link.takes_carriers(now)), (true, false));
    let mut closed = resumable();
    closed.send(&[0; 10]);
    closed.close();
    assert!(!closed.takes_carriers(now));
}

/// The end that sends the numbers from 0, the one that receives them, and what is under way.
struct Numbers {
    sender: LinkEnd,
    receiver: LinkEnd,
    pipe: Vec<u8>,
    sent: u8,
    received: Vec<u8>,
}

impl Numbers {
    fn new() -> Numbers {
        let (sender, receiver) = (resumable(), resumable());
        Numbers { sender, receiver, pipe: Vec::new(), sent: 0, received: Vec::new() }
    }

    fn send(&mut self, count: u8) {
        self.sender.send(&(self.sent..self.sent + count).collect::<Vec<u8>>());
        self.sent += count;
    }

    fn write(&mut self, limit: usize) {
        let taken = take(&mut self.sender, limit);
        assert!(taken.len() == limit || self.sender.is_drained());
        self.pipe.extend(taken);
    }

    fn deliver(&mut self) {
        self.receiver.receive(self.pipe.len());
        self.received.append(&mut self.pipe);
        assert!(self.received.iter().copied().eq(0..self.received.len() as u8), "{:?}", self.received);
    }

    fn acknowledge(&mut self) {
        self.sender.acknowledged(self.received.len() as u64).unwrap();
    }

    /// Goes over to a new carrier. What was in the old one is lost.
    fn replace_carrier(&mut self) {
        let Numbers { sender, receiver, pipe, .. } = self;
        pipe.clear();
        let now = Instant::now();
        [&mut *sender, &mut *receiver].into_iter().for_each(|end| end.detach(now));
        sender.begin_attempt();
        receiver.resume(SESSION, &sender.resume_frame(SESSION)).unwrap();
        sender.resume(SESSION, &receiver.resume_frame(SESSION)).unwrap();
    }
}

#[test]
fn every_short_history_of_an_edge_brings_each_byte_once_and_in_order() {
    const DEPTH: u32 = 7;
    let steps: [fn(&mut Numbers); 6] = [
        |edge| edge.send(1),
        |edge| edge.send(2),
        |edge| edge.write(1),
        Numbers::deliver,
        Numbers::acknowledge,
        Numbers::replace_carrier,
    ];
    for history in 0..steps.len().pow(DEPTH) {
        let (mut edge, mut digits) = (Numbers::new(), history);
        for _ in 0..DEPTH {
            steps[digits % steps.len()](&mut edge);
            digits /= steps.len();
            let missing = usize::from(edge.sent) - edge.received.len();
            assert!((missing..=usize::from(edge.sent)).contains(&edge.sender.held()), "{missing} are kept");
        }
        edge.replace_carrier();
        edge.write(usize::MAX);
        edge.deliver();
        assert_eq!(edge.received.len(), usize::from(edge.sent), "history {history}");
        edge.acknowledge();
        assert_eq!(edge.sender.held(), 0, "history {history}");
    }
}
