//! No pinned byte is overwritten, and every byte that a reader accepts is the one that was written.

use std::mem::ManuallyDrop;

use iof_shm_ring::{Peek, Policy, StreamConfig};
use loom::thread;

use crate::{CAPACITY, Model, Tracking, check_borrowed, copy_once, follow, open, read_once, read_up};

/// The writer never touches what a gating reader may read, and loses nothing.
///
/// Bound: 3 bytes, then 3 more, concurrent with 2 reads.
pub fn gating() {
    let mut model = Model::new(Policy::Block);
    let attached = model.attach(true);
    let reader = open(attached, &model.page);
    assert_eq!(model.write(3), 3);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            assert!(matches!(read_once(reader, payload), Peek::Bytes | Peek::Empty));
        }
    });
    model.write(3);
    let reader = model.settle_joined(reading);
    assert_eq!(reader.lost(), 0);
}

/// An overwriting writer never touches borrowed bytes.
///
/// Bound: 3 bytes, then 2 more, of which one overwrites, concurrent with 2 reads.
pub fn overwriting() {
    overwrite_with_reader(3);
}

/// Every lap is detected and counted.
///
/// Bound: 5 bytes, of which the last laps the reader, then 2 more, concurrent with 2 reads.
pub fn lapped() {
    overwrite_with_reader(5);
}

fn overwrite_with_reader(before: u64) {
    let mut model = Model::new(Policy::DropOldest);
    let reader = model.reader(false);
    model.write(before);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            read_once(reader, payload);
        }
    });
    model.write(2);
    model.settle_joined(reading);
}

/// In a gating ring the writer overwrites what a non-gating reader has not read, and never touches
/// what that reader borrows.
///
/// Bound: 3 bytes, then 3 more, of which two overwrite, concurrent with 2 reads; then 5 more.
pub fn non_gating() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.non_gating_reader();
    assert_eq!(model.write(3), 3);
    let reading = model.reading(reader, |reader, payload| {
        for _ in 0..2 {
            read_once(reader, payload);
        }
    });
    model.write(3);
    let mut reader = reading.join().unwrap();
    // The reader pins nothing now, so every byte is stored.
    assert_eq!(model.write(CAPACITY + 1), CAPACITY + 1);
    model.settle(&mut reader);
}

/// The same in a gating generation to which the reader follows, and in which it was due.
///
/// Bound: 2 bytes; 4 in a new generation, then 2 more, concurrent with the step and 1 read.
pub fn non_gating_followed() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.non_gating_reader();
    assert_eq!(model.write(2), 2);
    model.stream.reconfigure(StreamConfig { capacity: CAPACITY, policy: Policy::Block }).unwrap();
    assert_eq!(model.write(4), 4);
    assert_eq!(read_up(&mut reader, &model.payload, 3), Peek::Sealed);
    let attached = model.next(&reader);
    let reading = model.reading(reader, move |reader, payload| {
        follow(reader, attached);
        read_once(reader, payload);
    });
    model.write(2);
    model.settle_joined(reading);
}

/// A gating reader becomes non-gating after it has read what it borrows, and then borrows again.
///
/// Bound: 4 bytes, which fill the ring, then 2 more, concurrent with a read, the change and another
/// read; then 5 more.
pub fn set_non_gating() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    assert_eq!(model.write(4), 4);
    let reading = model.reading(reader, |reader, payload| {
        assert_eq!(reader.peek(), Peek::Bytes);
        check_borrowed(reader, payload);
        reader.set_non_gating();
        read_once(reader, payload);
    });
    model.write(2);
    let mut reader = reading.join().unwrap();
    // The reader pins nothing now, so every byte is stored.
    assert_eq!(model.write(CAPACITY + 1), CAPACITY + 1);
    model.settle(&mut reader);
}

/// A byte is ordered before its reader's load even if the index has no room for an entry.
///
/// Bound: 3 bytes with a gap behind each, then 1 more, concurrent with 1 read.
pub fn unnoted() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    for _ in 0..3 {
        model.write_and_drop();
    }
    read_up(&mut reader, &model.payload, 16);
    let reading = model.reading(reader, |reader, payload| {
        read_once(reader, payload);
    });
    assert_eq!(model.write(1), 1);
    model.settle_joined(reading);
}

/// Bytes that a reader released without consuming them are overwritten only after its last access
/// to them, even if it pins other bytes again.
///
/// Bound: 4 bytes, then 2 more, concurrent with 2 reads, of which the first consumes 1.
pub fn released() {
    let mut model = Model::new(Policy::DropOldest);
    let reader = model.reader(false);
    model.write(4);
    let reading = model.reading(reader, |reader, payload| {
        if reader.peek() == Peek::Bytes {
            check_borrowed(reader, payload);
            reader.consume(1);
            reader.release();
        }
        read_once(reader, payload);
    });
    model.write(2);
    model.settle_joined(reading);
}

/// The same for a reader that is dropped while it borrows.
///
/// Bound: 4 bytes, then 2 more, concurrent with 1 read.
pub fn dropped() {
    let mut model = Model::new(Policy::DropOldest);
    let mut reader = model.reader(false);
    model.write(4);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        if reader.peek() == Peek::Bytes {
            check_borrowed(&reader, &payload);
        }
    });
    model.write(2);
    reading.join().unwrap();
}

/// A copy that passes its check is whole, although it pins nothing.
///
/// Bound: 4 bytes, then 2 more, concurrent with 1 copy of 2 bytes.
pub fn copied() {
    let mut model =
        Model::with(StreamConfig { capacity: CAPACITY, policy: Policy::DropOldest }, Tracking::Racy);
    let reader = model.reader(false);
    model.write(4);
    let reading = model.reading(reader, |reader, payload| {
        copy_once(reader, payload, 2);
    });
    model.write(2);
    model.settle_joined(reading);
}

/// The bytes that a reader borrowed when it was killed do not change until it is detached, and the
/// writer continues.
///
/// Bound: 4 bytes, then 2 more, concurrent with 1 read.
pub fn killed() {
    let mut model = Model::new(Policy::DropOldest);
    let mut reader = ManuallyDrop::new(model.reader(false));
    model.write(4);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        let borrows = reader.peek() == Peek::Bytes;
        if borrows {
            check_borrowed(&reader, &payload);
        }
        // Its pinned position stays.
        (reader, borrows)
    });
    assert_eq!(model.write(2), 2);
    let (dead, borrows) = reading.join().unwrap();
    if borrows {
        check_borrowed(&dead, &model.payload);
    }
    assert!(model.stream.detach(&model.page, dead.id()));
    assert_eq!(model.write(3), 3);
    drop(ManuallyDrop::into_inner(dead));
}

/// A reader that is killed while it borrows costs nothing to a reader that keeps up.
///
/// Bound: 3 bytes, then 4 more, each read at once by the one reader, concurrent with 2 reads of the
/// other.
pub fn killed_beside_another() {
    let mut model = Model::new(Policy::DropNewest);
    let mut other = model.reader(false);
    let mut reader = ManuallyDrop::new(model.reader(false));
    assert_eq!(model.write(3), 3);
    let payload = model.payload.clone();
    read_once(&mut other, &payload);
    let reading = thread::spawn(move || {
        read_once(&mut reader, &payload);
        reader.peek();
        reader
    });
    for _ in 0..4 {
        assert_eq!(model.write(1), 1);
        if read_up(&mut other, &model.payload, 3) == Peek::Sealed {
            model.follow(&mut other);
            read_up(&mut other, &model.payload, 3);
        }
        assert_eq!((other.delivered(), other.lost()), (model.stream.stats().produced, 0));
    }
    drop(ManuallyDrop::into_inner(reading.join().unwrap()));
}
