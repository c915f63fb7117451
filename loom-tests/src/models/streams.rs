//! Gaps are exact, and generations follow each other without a seam.

use iof_shm_ring::{Peek, Policy, Reader, Reserve, Snapshot, StreamConfig};
use loom::thread;

use crate::{AHEAD, CAPACITY, Model, Tracking, check_borrowed, follow, open, read_once, read_up};

/// Under drop newest, exactly the dropped bytes are missing, at their exact place.
///
/// Bound: 4 bytes, which fill the ring, then 3 more, concurrent with 2 reads.
pub fn gaps() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    let mut stored = model.write(4);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            read_once(reader, payload);
        }
    });
    stored += model.write(3);
    let reader = model.settle_joined(reading);
    assert_eq!((reader.delivered(), reader.lost()), (stored, model.stream.stats().dropped));
}

/// When the stream moves to the next generation, a reader that borrows in the old one keeps its
/// bytes and follows.
///
/// Bound: 4 bytes, then 2 more, concurrent with 2 accesses to the same bytes and 1 more read.
pub fn moved_on() {
    let mut model = Model::new(Policy::DropOldest);
    let reader = model.reader(false);
    model.write(4);
    let reading = model.reading(reader, |reader, payload| {
        if reader.peek() == Peek::Bytes {
            check_borrowed(reader, payload);
            thread::yield_now();
            check_borrowed(reader, payload);
            reader.consume(reader.bytes().len());
        }
        read_once(reader, payload);
    });
    assert_eq!(model.write(2), 2);
    model.settle_joined(reading);
}

/// Another policy needs a new generation; the reader reads the old one to its last byte.
///
/// Bound: 2 bytes, then 1 more and a gap, the change and another byte, concurrent with 3 reads.
pub fn reconfigured() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    model.write(2);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..3 {
            if read_once(reader, payload) == Peek::Sealed {
                assert_eq!(reader.produced(), 4, "the seal came before the last byte and gap");
            }
        }
    });
    model.write_and_drop();
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    model.write(1);
    let reader = model.settle_joined(reading);
    assert_eq!(reader.lost(), 1);
}

/// A stream changes twice while one reader follows and another is paused. The second change waits
/// for the paused reader, so neither loses a byte.
///
/// Bound: 1 byte, then each change and 1 more byte, concurrent with 2 reads of the reader that
/// follows.
pub fn reconfigured_twice() {
    let mut model = Model::new(Policy::DropNewest);
    let (mut reader, mut paused) = (model.reader(false), model.reader(false));
    model.write(1);
    for policy in [Policy::Block, Policy::DropNewest] {
        let reading = model.reading(reader, |reader, payload| {
            for _ in 0..2 {
                read_once(reader, payload);
            }
        });
        model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy }).unwrap();
        model.write(1);
        reader = model.settle_joined(reading);
    }
    model.settle(&mut paused);
    assert_eq!((reader.lost(), paused.lost()), (0, 0), "a reader that was due lost a byte");
    model.write(1);
    assert_eq!(model.stream.stats().generation, 2, "the second change waits until all readers have followed");
    model.settle(&mut paused);
    model.settle(&mut reader);
    assert_eq!((reader.lost(), paused.lost()), (0, 0), "a reader that was due lost a byte");
}

/// A stream grows because its small ring is full, while its blocking reader reads.
///
/// Bound: 4 bytes that fill the small ring, then the growth and 2 more bytes, concurrent with 3
/// reads.
pub fn grown() {
    let mut model = Model::growing(2 * CAPACITY, u64::MAX);
    let reader = model.reader(true);
    assert_eq!(model.write(CAPACITY), CAPACITY);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..3 {
            read_once(reader, payload);
        }
    });
    model.stream.grow();
    assert_eq!(model.write(2), 2, "a stream that has grown has room");
    let reader = model.settle_joined(reading);
    assert_eq!(reader.lost(), 0);
}

/// A reader that may not hold the source back attaches while a read into the whole small ring is in
/// flight, and the stream may not grow. It loses only what was overwritten before.
///
/// Bound: 1 byte, a read of 4 bytes during which the reader attaches, then 1 more byte concurrent
/// with 2 reads. A blocking reader that has read all is there as well.
pub fn growth_refused() {
    let mut model = Model::growing(2 * CAPACITY, 0);
    let mut blocker = model.reader(true);
    model.write(1);
    read_up(&mut blocker, &model.payload, 2);
    let reader = model.read_at_once(CAPACITY, Model::non_gating_reader);
    read_up(&mut blocker, &model.payload, 2);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            read_once(reader, payload);
        }
    });
    model.write(1);
    let reader = model.settle_joined(reading);
    assert_eq!(reader.lost(), 1, "a reader that was due lost a byte");
    model.settle(&mut blocker);
}

/// The first ring of a stream that is to grow is allocated, in its full size, while a reader reads
/// it.
///
/// Bound: the allocation and 1 byte concurrent with 2 reads.
pub fn allocated() {
    let mut model = Model::growing(CAPACITY, u64::MAX);
    let reader = model.reader(true);
    model.stream.grow();
    assert!(model.stream.is_unallocated());
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            let peek = read_once(reader, payload);
            assert!(matches!(peek, Peek::Bytes | Peek::Empty), "a ring without its words was read");
        }
    });
    assert_eq!(model.write(1), 1);
    let reader = model.settle_joined(reading);
    assert_eq!(reader.lost(), 0);
}

/// An overtaken reader searches for the oldest byte while the writer overwrites the index entry
/// that covers it, in the same claim in which it retired that entry.
///
/// Bound: 18 bytes, then 2 more and a large gap, concurrent with 1 read.
pub fn reused_entry() {
    let config = StreamConfig { capacity: AHEAD, policy: Policy::DropOldest };
    let mut model = Model::with(config, Tracking::Ordered);
    let reader = model.reader(false);
    model.write(AHEAD + 2);
    let reading = model.reading(reader, |reader, payload| {
        read_once(reader, payload);
    });
    model.write(2);
    // More than the reader can be behind: if it took these for drops before its place, its counters
    // could never add up.
    model.stream.discard(2 * AHEAD, 0);
    model.settle_joined(reading);
}

/// A reader queries the times of its bytes while the writer overwrites an entry of the newest
/// reads.
///
/// Bound: 3 bytes, then 1 more, concurrent with the time queries for 2 bytes.
pub fn timed() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    for number in 0..3 {
        model.write_at(1, time_of(number));
    }
    let reading = model.reading(reader, |reader, payload| {
        assert_eq!(reader.peek(), Peek::Bytes);
        check_borrowed(reader, payload);
        for number in 0..2 {
            // The index has an entry for each, so no coarser time is right either.
            assert_eq!(reader.time(), Some(time_of(number)), "a byte has the wrong time");
            reader.consume(1);
        }
    });
    model.write_at(1, time_of(3));
    model.settle_joined(reading);
}

/// Returns the time at which byte `number` is read. The times are seconds apart.
fn time_of(number: u64) -> u64 {
    (number + 1) * 1_000_000_000
}

/// A reader follows to a generation before which bytes were dropped, while the writer overwrites
/// its start there.
///
/// Bound: 8 bytes, of which 4 were dropped; 3 in a new generation, then 2 more, concurrent with the
/// step and 1 read.
pub fn followed() {
    let (mut model, reader) = sealed_after_drops();
    model.write(2);
    let attached = model.next(&reader);
    let reading = model.reading(reader, move |reader, payload| {
        follow(reader, attached);
        read_once(reader, payload);
    });
    model.write(2);
    model.settle_joined(reading);
}

/// An overtaken reader searches for the oldest byte while the writer retires index entries. Bytes
/// were dropped before this generation.
///
/// Bound: 8 bytes, of which 4 were dropped; 6 in a new generation, then 2 more, concurrent with 2
/// reads.
pub fn overtaken() {
    let (mut model, mut reader) = sealed_after_drops();
    model.follow(&mut reader);
    model.write(5);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            read_once(reader, payload);
        }
    });
    model.write(2);
    model.settle_joined(reading);
}

/// An inspector takes a snapshot of a ring while it becomes another generation.
///
/// Bound: 1 byte in the ring and 1 in another, then the ring again, empty, concurrent with 1
/// snapshot.
pub fn inspected() {
    let mut model = Model::new(Policy::DropNewest);
    let attached = model.attach(false);
    let outside = attached.ring.beside().unwrap();
    assert!(model.stream.detach(&model.page, attached.id));
    drop(attached);
    model.write(1);
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }).unwrap();
    model.write(1);
    let inspecting = thread::spawn(move || {
        let Ok(snapshot) = Snapshot::take(&outside) else { return };
        let expected = if snapshot.generation == 0 { (0, 1, 1) } else { (2, 2, 0) };
        assert_eq!(
            (snapshot.base, snapshot.tail, snapshot.marks.len()),
            expected,
            "a snapshot of two generations"
        );
        assert!(snapshot.generation == 0 || snapshot.sealed.is_none(), "a snapshot of two generations");
    });
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest }).unwrap();
    assert!(matches!(model.stream.reserve(1), Reserve::Ready(_)));
    inspecting.join().unwrap();
}

/// Returns a stream that dropped 4 of its first 8 bytes and stored another one in an overwriting
/// generation, with a reader that found the first generation sealed.
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
/// Bound: 5 bytes, of which the last is dropped, concurrent with the start and 1 read.
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
