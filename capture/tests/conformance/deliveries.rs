//! Sources without a pipe: every delivered byte arrives or is counted, and the caller is notified
//! when a delivery was taken.

use iof_capture::{Command, Event, IdInUse, SendError, SourceBytes, SourceId};
use iof_shm_ring::{Gap, Peek, Policy};

use super::{blocking_stream, rig};
use iof_testing::capture::{CaptureRig, deliver, next, open, stream, tool};
use iof_testing::noise::seeded_pattern;

const KIB: usize = 1024;
const ID: SourceId = SourceId(1);

/// The deliveries that the capture has reported as taken.
#[derive(Debug, Default, PartialEq, Eq)]
struct Taken {
    deliveries: usize,
    bytes: u64,
}

impl Taken {
    fn add(&mut self, event: &Event) {
        let Event::Delivered { source: ID, deliveries, bytes } = event else { panic!("{event:?}") };
        assert!(*deliveries > 0);
        self.deliveries += deliveries;
        self.bytes += bytes;
    }
}

/// The end of the source, and the deliveries taken before.
struct DeliveryCompletion {
    taken: Taken,
    produced: u64,
    dropped: u64,
    closed: bool,
}

fn wait_end(rig: &CaptureRig) -> DeliveryCompletion {
    let mut taken = Taken::default();
    loop {
        match next(&rig.events) {
            Event::Complete { source: ID, produced, dropped, end, .. } => {
                let closed = match end {
                    iof_capture::End::EndOfFile => false,
                    iof_capture::End::Closed => true,
                    iof_capture::End::Error(error) => panic!("{error}"),
                };
                return DeliveryCompletion { taken, produced, dropped, closed };
            }
            event => taken.add(&event),
        }
    }
}

/// Waits until a delivery was taken, and all others of the same turn were reported.
fn wait_taken(rig: &CaptureRig) -> Taken {
    let mut taken = Taken::default();
    taken.add(&next(&rig.events));
    // This call returns in a later turn.
    rig.capture.with_streams(|_| ()).unwrap();
    rig.events.try_iter().for_each(|event| taken.add(&event));
    taken
}

fn deliver_to(rig: &CaptureRig, bytes: &[u8]) {
    rig.capture.send([deliver(ID, bytes.to_vec())]).unwrap();
}

#[test]
fn deliveries_arrive_in_order_through_a_much_smaller_ring() {
    let rig = rig();
    let (mut tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB as u64);
    rig.capture.send([open(ID, stream)]).unwrap();
    let bytes = seeded_pattern(4 << 20, 1);
    let (mut rest, mut size, mut pieces) = (&bytes[..], 0, 0);
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(size.min(rest.len()));
        deliver_to(&rig, piece);
        rest = later;
        size = size * 7 % 100_003 + 1;
        pieces += 1;
    }
    rig.capture.send([Command::Finish(ID)]).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes && gaps.is_empty());
    let ended = wait_end(&rig);
    assert_eq!(ended.taken, Taken { deliveries: pieces, bytes: bytes.len() as u64 });
    assert_eq!((ended.produced, ended.dropped, ended.closed), (bytes.len() as u64, 0, false));
}

#[test]
fn a_delivery_counts_as_taken_when_all_its_bytes_are_taken() {
    let rig = rig();
    let (_tool, stream, mut reader) = blocking_stream(&rig, 64 * KIB as u64);
    rig.capture.send([open(ID, stream)]).unwrap();
    deliver_to(&rig, &seeded_pattern(KIB, 1));
    deliver_to(&rig, &seeded_pattern(64 * KIB, 2));
    deliver_to(&rig, b"");
    let mut taken = wait_taken(&rig);
    assert_eq!(taken, Taken { deliveries: 1, bytes: KIB as u64 });
    let written = rig.capture.with_streams(|streams| streams.written(ID)).unwrap();
    assert_eq!(written, Some(65 * KIB as u64), "a waiting delivery counts as written");
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    while taken.deliveries < 3 {
        taken.add(&next(&rig.events));
    }
    assert_eq!(taken.bytes, 65 * KIB as u64);
}

#[test]
fn a_full_stream_keeps_the_bytes_that_its_policy_selects_and_counts_the_rest() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let rig = rig();
        let mut tool = tool();
        let mut stream = stream(64 * KIB as u64, policy);
        let mut first = tool.attach_first(&mut stream, false);
        rig.capture.send([open(ID, stream)]).unwrap();
        let bytes = seeded_pattern(1 << 20, 3);
        bytes.chunks(1000).for_each(|chunk| deliver_to(&rig, chunk));
        rig.capture.send([Command::Finish(ID)]).unwrap();
        let ended = wait_end(&rig);
        assert_eq!((ended.produced, ended.taken.bytes), (1 << 20, 1 << 20));
        let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut first);
        let lost = (1 << 20) - got.len() as u64;
        assert!(lost > 0 && !got.is_empty());
        if policy == Policy::DropNewest {
            assert!(bytes.starts_with(&got));
            assert_eq!(gaps, [Gap { offset: got.len() as u64, lost }]);
        } else {
            assert!(bytes.ends_with(&got));
            assert_eq!(gaps, [Gap { offset: 0, lost }]);
        }
    }
}

#[test]
fn closing_drops_waiting_deliveries_and_counts_them() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB as u64, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    rig.capture.send([open(ID, stream)]).unwrap();
    let bytes = seeded_pattern(200 * KIB, 4);
    bytes.chunks(50 * KIB).for_each(|chunk| deliver_to(&rig, chunk));
    rig.capture.send([Command::Close(ID)]).unwrap();
    let ended = wait_end(&rig);
    assert_eq!(ended.taken, Taken { deliveries: 4, bytes: 200 * KIB as u64 });
    assert!(ended.closed);
    assert_eq!(ended.produced, 200 * KIB as u64);
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(bytes.starts_with(&got));
    assert_eq!(gaps, [Gap { offset: got.len() as u64, lost: ended.dropped }]);
}

#[test]
fn a_delivery_after_the_end_is_reported_as_taken_and_not_counted() {
    let rig = rig();
    rig.capture.send([open(ID, stream(KIB as u64, Policy::DropNewest))]).unwrap();
    deliver_to(&rig, b"in time");
    rig.capture.send([Command::Finish(ID)]).unwrap();
    rig.capture.send([Command::Finish(ID)]).unwrap();
    let ended = wait_end(&rig);
    assert_eq!((ended.taken.bytes, ended.produced), (7, 7));
    deliver_to(&rig, b"too late");
    rig.capture.send([Command::Remove(ID)]).unwrap();
    deliver_to(&rig, b"nobody");
    let mut taken = Taken::default();
    while taken.deliveries < 2 {
        taken.add(&next(&rig.events));
    }
    assert_eq!(taken.bytes, 14);
}

#[test]
fn bytes_carry_the_time_of_their_source() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB as u64, Policy::DropNewest);
    let mut reader = tool.attach_first(&mut stream, false);
    rig.capture.send([open(ID, stream)]).unwrap();
    rig.capture.send([deliver(ID, SourceBytes { time: Some(1234), ..b"then".to_vec().into() })]).unwrap();
    wait_taken(&rig);
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!((reader.bytes(), reader.time()), (&b"then"[..], Some(1234)));
}

#[test]
fn lost_bytes_are_a_gap_and_a_source_that_is_broken_off_has_a_broken_end() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB as u64, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    rig.capture.send([open(ID, stream)]).unwrap();
    deliver_to(&rig, b"abc");
    rig.capture.send([deliver(ID, SourceBytes { lost: 4, ..b"hi".to_vec().into() })]).unwrap();
    rig.capture.send([deliver(ID, SourceBytes { lost: 5, ..SourceBytes::default() })]).unwrap();
    rig.capture.send([Command::BreakOff { source: ID, missing: 6 }]).unwrap();
    let (bytes, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert_eq!(bytes, b"abchi");
    assert_eq!(gaps, [Gap { offset: 3, lost: 4 }, Gap { offset: 9, lost: 5 }]);
    assert_eq!(reader.peek(), Peek::Broken { missing: 6 });
}

#[test]
fn a_source_id_is_unique_and_the_end_of_the_capture_ends_a_source() {
    let rig = rig();
    rig.capture.send([open(ID, stream(KIB as u64, Policy::DropNewest))]).unwrap();
    let again = rig.capture.send([open(ID, stream(KIB as u64, Policy::DropNewest))]);
    assert_eq!(again.unwrap_err().reason, SendError::IdInUse(IdInUse::Source(ID)));
    let CaptureRig { capture, events } = rig;
    drop(capture);
    assert!(matches!(events.recv(), Ok(Event::Complete { source: ID, end: iof_capture::End::Closed, .. })));
    assert!(events.recv().is_err());
}
