//! Bytes that come from no pipe: every one arrives or is counted, and whoever delivers hears when
//! they are taken.

use iof_capture::{AddError, Event, SourceId};
use iof_shm_ring::{Gap, Peek, Policy};

use super::{held_back_by_its_reader, rig};
use crate::common::{Rig, next, pattern, stream, tool};

const KIB: usize = 1024;
const ID: SourceId = SourceId(1);

/// What came for the one source.
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

/// How it ended, and what was taken before.
struct Ended {
    taken: Taken,
    produced: u64,
    dropped: u64,
    closed: bool,
}

fn wait_end(rig: &Rig) -> Ended {
    let mut taken = Taken::default();
    loop {
        match next(&rig.events) {
            Event::Complete { source: ID, produced, dropped, end } => {
                let closed = match end {
                    iof_capture::End::EndOfFile => false,
                    iof_capture::End::Closed => true,
                    iof_capture::End::Error(error) => panic!("{error}"),
                };
                return Ended { taken, produced, dropped, closed };
            }
            event => taken.add(&event),
        }
    }
}

/// Waits until a delivery was taken, and the capture has told of all others that were with it.
fn settle(rig: &Rig) -> Taken {
    let mut taken = Taken::default();
    taken.add(&next(&rig.events));
    // In another turn than that which has told.
    rig.capture.with_streams(|_| ()).unwrap();
    rig.events.try_iter().for_each(|event| taken.add(&event));
    taken
}

fn deliver(rig: &Rig, bytes: &[u8]) {
    rig.capture.deliver(ID, bytes.to_vec(), None).unwrap();
}

#[test]
fn deliveries_arrive_in_order_through_a_ring_much_smaller_than_they() {
    let rig = rig();
    let (mut tool, stream, mut reader) = held_back_by_its_reader(&rig, 64 * KIB as u64);
    rig.capture.open(ID, stream).unwrap();
    let bytes = pattern(4 << 20, 1);
    let (mut rest, mut piece, mut pieces) = (&bytes[..], 0, 0);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(piece.min(rest.len()));
        deliver(&rig, now);
        rest = later;
        piece = piece * 7 % 100_003 + 1;
        pieces += 1;
    }
    rig.capture.finish(ID).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes && gaps.is_empty());
    let ended = wait_end(&rig);
    assert_eq!(ended.taken, Taken { deliveries: pieces, bytes: bytes.len() as u64 });
    assert_eq!((ended.produced, ended.dropped, ended.closed), (bytes.len() as u64, 0, false));
}

#[test]
fn a_delivery_is_taken_when_all_of_it_is() {
    let rig = rig();
    let (_tool, stream, mut reader) = held_back_by_its_reader(&rig, 64 * KIB as u64);
    rig.capture.open(ID, stream).unwrap();
    deliver(&rig, &pattern(KIB, 1));
    deliver(&rig, &pattern(64 * KIB, 2));
    deliver(&rig, b"");
    let mut taken = settle(&rig);
    assert_eq!(taken, Taken { deliveries: 1, bytes: KIB as u64 });
    let written = rig.capture.with_streams(|streams| streams.written(ID)).unwrap();
    assert_eq!(written, Some(65 * KIB as u64), "what waits counts as written");
    assert_eq!(reader.peek(), Peek::Bytes);
    reader.consume(usize::MAX);
    while taken.deliveries < 3 {
        taken.add(&next(&rig.events));
    }
    assert_eq!(taken.bytes, 65 * KIB as u64);
}

#[test]
fn a_full_stream_keeps_what_its_policy_says_and_counts_the_rest() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let rig = rig();
        let mut tool = tool();
        let mut stream = stream(64 * KIB as u64, policy);
        let mut first = tool.attach_first(&mut stream, false);
        rig.capture.open(ID, stream).unwrap();
        let bytes = pattern(1 << 20, 3);
        bytes.chunks(1000).for_each(|chunk| deliver(&rig, chunk));
        rig.capture.finish(ID).unwrap();
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
fn closing_drops_what_waits_and_counts_it() {
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(64 * KIB as u64, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    rig.capture.open(ID, stream).unwrap();
    let bytes = pattern(200 * KIB, 4);
    bytes.chunks(50 * KIB).for_each(|chunk| deliver(&rig, chunk));
    rig.capture.close(ID).unwrap();
    let ended = wait_end(&rig);
    assert_eq!(ended.taken, Taken { deliveries: 4, bytes: 200 * KIB as u64 });
    assert!(ended.closed);
    assert_eq!(ended.produced, 200 * KIB as u64);
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(bytes.starts_with(&got));
    assert_eq!(gaps, [Gap { offset: got.len() as u64, lost: ended.dropped }]);
}

#[test]
fn what_comes_too_late_is_said_to_be_taken_and_counts_nowhere() {
    let rig = rig();
    rig.capture.open(ID, stream(KIB as u64, Policy::DropNewest)).unwrap();
    deliver(&rig, b"in time");
    rig.capture.finish(ID).unwrap();
    rig.capture.finish(ID).unwrap();
    let ended = wait_end(&rig);
    assert_eq!((ended.taken.bytes, ended.produced), (7, 7));
    deliver(&rig, b"too late");
    rig.capture.remove(ID).unwrap();
    deliver(&rig, b"nobody");
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
    rig.capture.open(ID, stream).unwrap();
    rig.capture.deliver(ID, b"then".to_vec(), Some(1234)).unwrap();
    settle(&rig);
    assert_eq!(reader.peek(), Peek::Bytes);
    assert_eq!((reader.bytes(), reader.time()), (&b"then"[..], Some(1234)));
}

#[test]
fn a_name_is_used_once_and_the_end_of_the_capture_ends_a_source() {
    let rig = rig();
    rig.capture.open(ID, stream(KIB as u64, Policy::DropNewest)).unwrap();
    let again = rig.capture.open(ID, stream(KIB as u64, Policy::DropNewest));
    assert_eq!(again, Err(AddError::Taken { source_id: ID }));
    let Rig { capture, events } = rig;
    drop(capture);
    assert!(matches!(events.recv(), Ok(Event::Complete { source: ID, end: iof_capture::End::Closed, .. })));
    assert!(events.recv().is_err());
}
