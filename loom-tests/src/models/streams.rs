//! Gaps are where they are said to be, and generations follow each other without a seam.

use iof_shm_ring::{Peek, Policy, Reader, Reserve, Snapshot, StreamConfig};
use loom::thread;

use crate::{AHEAD, CAPACITY, Model, Tracking, check_borrowed, go_on, open, read_once, read_up};

/// Under drop newest, what is dropped is missing at its exact place and nothing else is.
///
/// Bound: 4 bytes, which fill the ring, then 3 more beside 2 looks.
pub fn gaps() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    let mut stored = model.write(4);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        for _ in 0..2 {
            read_once(&mut reader, &payload);
        }
        reader
    });
    stored += model.write(3);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
    assert_eq!((reader.delivered(), reader.lost()), (stored, model.stream.stats().dropped));
}

/// When the stream moves on to the next generation, who borrows in the old one keeps its bytes and
/// follows.
///
/// Bound: 4 bytes, then 2 more beside 1 look.
pub fn moved_on() {
    let mut model = Model::new(Policy::DropOldest);
    let mut reader = model.reader(false);
    model.write(4);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        if reader.peek() == Peek::Bytes {
            check_borrowed(&reader, &payload);
            thread::yield_now();
            check_borrowed(&reader, &payload);
            reader.consume(reader.bytes().len());
        }
        read_once(&mut reader, &payload);
        reader
    });
    assert_eq!(model.write(2), 2);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}

/// Another policy takes a new generation, for which the old one is read to its last byte.
///
/// Bound: 2 bytes, then 1 more and a gap, the change and another byte beside 3 looks.
pub fn reconfigured() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    model.write(2);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        for _ in 0..3 {
            if read_once(&mut reader, &payload) == Peek::Sealed {
                assert_eq!(reader.produced(), 4, "the seal came before the last byte and gap");
            }
        }
        reader
    });
    model.write_and_drop();
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    model.write(1);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
    assert_eq!(reader.lost(), 1);
}

/// A stream is to change twice while one reader comes along and another is paused. The second
/// change waits for the paused reader, so neither loses a byte.
///
/// Bound: 1 byte, then each change and 1 more byte beside 2 looks of the reader that comes along.
pub fn reconfigured_twice() {
    let mut model = Model::new(Policy::DropNewest);
    let (mut reader, mut paused) = (model.reader(false), model.reader(false));
    model.write(1);
    for policy in [Policy::Block, Policy::DropNewest] {
        let payload = model.payload.clone();
        let reading = thread::spawn(move || {
            for _ in 0..2 {
                read_once(&mut reader, &payload);
            }
            reader
        });
        model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy }).unwrap();
        model.write(1);
        reader = reading.join().unwrap();
        model.settle(&mut reader);
    }
    model.settle(&mut paused);
    assert_eq!((reader.lost(), paused.lost()), (0, 0), "a reader that was due lost a byte");
    model.write(1);
    assert_eq!(
        model.stream.stats().generation,
        2,
        "the second change comes when all readers have come along"
    );
    model.settle(&mut paused);
    model.settle(&mut reader);
    assert_eq!((reader.lost(), paused.lost()), (0, 0), "a reader that was due lost a byte");
}

/// A reader that was overtaken looks for the oldest byte while the writer overwrites the index
/// entry that tells about it, in the claim in which it gave that entry up.
///
/// Bound: 18 bytes, then 2 more and a large gap beside 1 look.
pub fn reused_entry() {
    let config = StreamConfig { capacity: AHEAD, policy: Policy::DropOldest };
    let mut model = Model::with(config, Tracking::Ordered);
    let mut reader = model.reader(false);
    model.write(AHEAD + 2);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        read_once(&mut reader, &payload);
        reader
    });
    model.write(2);
    // More than the reader can be behind: taken for drops before its place, these are never made up
    // for.
    model.stream.discard(2 * AHEAD, 0);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}

/// A reader asks when its bytes were read while the writer overwrites an entry of the newest reads.
///
/// Bound: 3 bytes, then 1 more beside the questions about 2 bytes.
pub fn timed() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    for number in 0..3 {
        model.write_at(1, time_of(number));
    }
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        assert_eq!(reader.peek(), Peek::Bytes);
        check_borrowed(&reader, &payload);
        for number in 0..2 {
            // The index has them all, so nothing coarser is right either.
            assert_eq!(reader.time(), Some(time_of(number)), "a time is not the one that belongs here");
            reader.consume(1);
        }
        reader
    });
    model.write_at(1, time_of(3));
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}

/// When byte `number` is read: seconds after another.
fn time_of(number: u64) -> u64 {
    (number + 1) * 1_000_000_000
}

/// A reader follows to a generation before which bytes were dropped, while the writer overwrites
/// its start there.
///
/// Bound: 8 bytes, of which 4 were dropped; 3 in a new generation, then 2 more beside the step and
/// 1 look.
pub fn followed() {
    let (mut model, mut reader) = sealed_after_drops();
    model.write(2);
    let to = model.next(&reader);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        go_on(&mut reader, to);
        read_once(&mut reader, &payload);
        reader
    });
    model.write(2);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}

/// A reader that was overtaken looks for the oldest byte while the writer gives up index entries.
/// Bytes were dropped before this generation.
///
/// Bound: 8 bytes, of which 4 were dropped; 6 in a new generation, then 2 more beside 2 looks.
pub fn overtaken() {
    let (mut model, mut reader) = sealed_after_drops();
    model.follow(&mut reader);
    model.write(5);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        for _ in 0..2 {
            read_once(&mut reader, &payload);
        }
        reader
    });
    model.write(2);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}

/// Somebody looks at a ring from outside while it becomes another generation.
///
/// Bound: 1 byte in the ring and 1 in another, then the ring again, empty, beside 1 look.
pub fn inspected() {
    let mut model = Model::new(Policy::DropNewest);
    let attached = model.attach(false);
    let outside = attached.ring.beside().unwrap();
    assert!(model.stream.detach(&model.page, attached.slot));
    drop(attached);
    model.write(1);
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    model.write(1);
    let looking = thread::spawn(move || {
        let Ok(seen) = Snapshot::take(&outside) else { return };
        let expected = if seen.generation == 0 { (0, 1, 1) } else { (2, 2, 0) };
        assert_eq!((seen.base, seen.tail, seen.marks.len()), expected, "a snapshot of two generations");
        assert!(seen.generation == 0 || seen.sealed.is_none(), "a snapshot of two generations");
    });
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest }).unwrap();
    assert!(matches!(model.stream.reserve(1), Reserve::Ready(_)));
    looking.join().unwrap();
}

/// A stream that dropped 4 of its first 8 bytes and stored another in an overwriting generation,
/// with a reader that found the first generation sealed.
fn sealed_after_drops() -> (Model, Reader) {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    assert_eq!(model.write(8), 4);
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    model.write(1);
    assert_eq!(read_up(&mut reader, &model.payload, 3), Peek::Sealed);
    (model, reader)
}

/// A reader starts at the first byte while the writer fills the ring and begins to drop.
///
/// Bound: 5 bytes, of which the last is dropped, beside the start and 1 look.
pub fn early() {
    let mut model = Model::new(Policy::DropNewest);
    let attached = model.attach(false);
    let (payload, page) = (model.payload.clone(), model.page.clone());
    let reading = thread::spawn(move || {
        let mut reader = open(attached, &page);
        read_once(&mut reader, &payload);
        reader
    });
    model.write(5);
    let mut reader = reading.join().unwrap();
    model.settle(&mut reader);
}
