//! Streams in small rings: they grow while their source waits for a reader that does not read.

use std::io::Write as _;
use std::sync::Arc;

use super::rig;
use iof_capture::{Command, Event, Gating, NewProcess, NewSource, SourceId, StreamRequest, StreamStep};
use iof_shm_ring::{CacheBudget, Growth, Policy, Reader, Start, Stream, StreamConfig};
use iof_testing::capture::{
    CaptureRig, TestTool, add, deliver, next, open, tool, wait_end, wait_until, write_in_pieces,
};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;

const KIB: u64 = 1024;
const ID: SourceId = SourceId(1);
/// More than a small ring and a pipe hold, and less than a full ring.
const BYTES: usize = 512 << 10;

/// Returns a stream that begins with 64 KiB and grows to 1 MiB, with a reader for which its source
/// waits.
fn small_stream(rig: &CaptureRig) -> (TestTool, Stream, Reader) {
    let mut tool = tool();
    let growth = Growth { first: 64 * KIB, budget: Arc::new(CacheBudget::new(u64::MAX)) };
    let config = StreamConfig { capacity: KIB * KIB, policy: Policy::Block };
    let mut stream = Stream::create_growing(config, &growth, "test").unwrap();
    let mut reader = tool.attach_first(&mut stream, true);
    reader.set_room_bell(rig.capture.room_bell().unwrap());
    (tool, stream, reader)
}

#[test]
fn a_rank_runs_ahead_of_a_reader_that_sleeps_by_more_than_a_small_ring() {
    let rig = rig();
    let (mut tool, stream, mut reader) = small_stream(&rig);
    let (read, write) = pipe();
    let bytes = seeded_pattern(BYTES, 1);
    rig.capture.send([add(ID, read, stream)]).unwrap();
    // Ends only if the stream has grown, because nothing was read yet.
    write_in_pieces(write, bytes.clone()).join().unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes && gaps.is_empty());
    assert_eq!(wait_end(&rig.events, ID).dropped, 0);
}

#[test]
fn deliveries_that_wait_for_a_reader_let_a_small_ring_grow() {
    let rig = rig();
    let (mut tool, stream, mut reader) = small_stream(&rig);
    let bytes = seeded_pattern(BYTES, 2);
    rig.capture.send([open(ID, stream)]).unwrap();
    rig.capture.send([deliver(ID, bytes.clone())]).unwrap();
    // Reported only once all bytes are in the ring.
    let event = next(&rig.events);
    assert!(matches!(event, Event::Delivered { source: ID, .. }), "{event:?}");
    rig.capture.send([Command::Finish(ID)]).unwrap();
    let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
    assert!(got == bytes && gaps.is_empty());
}

#[test]
fn a_source_without_bytes_ends_without_memory() {
    for finishes in [false, true] {
        let rig = rig();
        let budget = Arc::new(CacheBudget::new(u64::MAX));
        let growth = Growth { first: 64 * KIB, budget: Arc::clone(&budget) };
        let config = StreamConfig { capacity: KIB * KIB, policy: Policy::Block };
        let mut stream = Stream::create_growing(config, &growth, "test").unwrap();
        let mut tool = tool();
        let mut reader = tool.attach_first(&mut stream, true);
        let (read, write) = pipe();
        rig.capture.send([add(ID, read, stream)]).unwrap();
        if finishes {
            rig.capture.send([Command::Finish(ID)]).unwrap();
        } else {
            drop(write);
        }
        let (bytes, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
        assert!(bytes.is_empty() && gaps.is_empty());
        let end = wait_end(&rig.events, ID);
        assert_eq!((end.produced, end.closed, budget.used()), (0, finishes, 0));
    }
}

#[test]
fn a_reader_of_large_groups_lets_a_small_ring_grow() {
    let rig = rig();
    for (group, capacity) in [(32 * KIB, 64 * KIB), (32 * KIB + 1, KIB * KIB)] {
        let id = SourceId(group);
        let (mut tool, stream, mut reader) = small_stream(&rig);
        let (read, mut write) = pipe();
        let (page, slot) = (tool.page.clone(), tool.page.take_slot().unwrap());
        let (start, gating) = (Start::Oldest, Gating::Block);
        let step = StreamStep::Attach { source: id, page, reader: slot, start, gating, group, remote: false };
        let first = Some(StreamRequest { id: None, steps: vec![step] });
        let sources = vec![NewSource { id, pipe: read, stream, first }];
        rig.capture.send([Command::Add(NewProcess { sources, ..NewProcess::default() })]).unwrap();
        write.write_all(b"x").unwrap();
        wait_until(&rig.capture, id, |stats| stats.produced == 1);
        assert_eq!(reader.ring().capacity(), capacity);
        drop(write);
        tool.read_to_end(&rig.capture, id, &mut reader);
        wait_end(&rig.events, id);
    }
}

#[test]
fn a_capture_ends_while_a_source_waits_to_grow() {
    let rig = rig();
    let (_tool, stream, _reader) = small_stream(&rig);
    let (read, mut write) = pipe();
    rig.capture.send([add(ID, read, stream)]).unwrap();
    let writer = std::thread::spawn(move || {
        // Ends at the latest when the capture has closed the pipe.
        let _ = write.write_all(&seeded_pattern(4 << 20, 3));
    });
    // All but less than a claim is full, so the source waits or is about to.
    wait_until(&rig.capture, ID, |stats| stats.produced > 48 * KIB);
    drop(rig);
    writer.join().unwrap();
}
