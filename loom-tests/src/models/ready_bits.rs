//! Wake-ups are not lost: for updates, for room, and for an end after the last byte.

use std::sync::Arc;
use std::time::Duration;

use iof_shm_ring::{Grouping, Peek, Policy, Reader, Stepper, notify};
use loom::sync::Mutex;
use loom::thread;

use crate::{Model, Payload, read_once, rings};

/// The end is seen only after the last byte and the last gap.
///
/// Bound: 1 byte, then 1 more, a gap and the end, concurrent with 3 reads.
pub fn ended() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    assert_eq!(model.write(1), 1);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        for _ in 0..3 {
            if read_once(&mut reader, &payload) == Peek::Ended {
                assert_eq!(reader.produced(), 3, "the end came before the last byte and gap");
            }
        }
    });
    model.write_and_drop();
    model.stream.complete();
    reading.join().unwrap();
}

/// A tool that went to sleep has seen everything, or its doorbell rings.
///
/// Bound: 2 bytes, each with its own notification, concurrent with a reader until it sleeps.
pub fn woken() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    check_with_sleeper(model, reader);
}

/// The same if a byte may find the ring full and be dropped.
///
/// Bound: 4 bytes, then 2 more, each with its own notification, concurrent with a reader until it
/// sleeps.
pub fn woken_for_a_gap() {
    let mut model = Model::new(Policy::DropNewest);
    let reader = model.reader(false);
    model.write(4);
    notify([&model.stream]);
    check_with_sleeper(model, reader);
}

fn check_with_sleeper(mut model: Model, reader: Reader) {
    let reader = run_with_sleeper(&mut model, reader);
    let unread = model.stream.stats().produced - reader.produced();
    assert!(unread == 0 || rings(&model.doorbell), "a wake-up was lost");
}

/// The same for a reader with grouping: it is woken for a whole group, and for the first byte of
/// the next group, because that byte starts the group's time.
///
/// Bound: groups of 2; 1 byte, then 2 more, each with its own notification, concurrent with a
/// reader until it sleeps.
pub fn woken_for_a_group() {
    let mut model = Model::new(Policy::DropNewest);
    let mut reader = model.reader(false);
    reader.group(Some(Grouping { bytes: 2, time: Some(Duration::from_secs(3600)) }));
    model.write(1);
    assert_eq!(reader.peek(), Peek::Empty);
    let reader = run_with_sleeper(&mut model, reader);
    let unread = model.stream.stats().produced - reader.produced();
    let enough = match reader.deadline() {
        Some(_) => 2,
        None => 1,
    };
    assert!(unread < enough || rings(&model.doorbell), "a wake-up was lost");
}

/// Writes 2 bytes and notifies for each, while `reader` reads until its tool sleeps. The tool may
/// wake at most as often as it was notified, once before and twice here.
fn run_with_sleeper(model: &mut Model, mut reader: Reader) -> Reader {
    let (payload, page) = (model.payload.clone(), model.page.clone());
    let reading = thread::spawn(move || {
        let mut wakeups = 0;
        while !page.arm(1) {
            page.take_ready(1, |_| read_ready(&mut reader, &payload));
            wakeups += 1;
            assert!(wakeups <= 3, "a tool is kept awake without an update");
        }
        reader
    });
    for _ in 0..2 {
        model.write(1);
        notify([&model.stream]);
    }
    reading.join().unwrap()
}

fn read_ready(reader: &mut Reader, payload: &Payload) {
    while matches!(read_once(reader, payload), Peek::Bytes | Peek::Gap(_)) {}
}

/// A sleeping reader in the writer's process whose step has left bytes is woken.
///
/// Bound: 2 bytes, each with its own notification, concurrent with a reader until it sleeps.
pub fn stepped() {
    let stepper = Stepper::default();
    let mut model = Model::stepped(Policy::DropNewest, stepper.clone());
    let (payload, page) = (model.payload.clone(), model.page.clone());
    // The reader, and whether it sleeps.
    let reader = Arc::new(Mutex::new((model.reader(false), false)));
    let (stepping, step_payload, step_page) = (Arc::clone(&reader), payload.clone(), Arc::downgrade(&page));
    stepper.set(move || {
        let Ok(mut stepping) = stepping.try_lock() else { return false };
        let (reader, sleeps) = &mut *stepping;
        if let Some(page) = step_page.upgrade().filter(|_| *sleeps) {
            page.take_ready(1, |_| read_ready(reader, &step_payload));
        }
        *sleeps
    });
    let sleeping = Arc::clone(&reader);
    let reading = thread::spawn(move || {
        let mut sleeping = sleeping.lock().unwrap();
        while !page.arm(1) {
            page.take_ready(1, |_| read_ready(&mut sleeping.0, &payload));
        }
        sleeping.1 = true;
    });
    for _ in 0..2 {
        model.write(1);
        notify([&model.stream]);
    }
    reading.join().unwrap();
    let unread = model.stream.stats().produced - reader.lock().unwrap().0.produced();
    assert!(unread == 0 || rings(&model.doorbell), "a wake-up was lost");
}

/// A writer that waits for room is notified when there is enough.
///
/// Bound: 4 bytes, then 1 more, concurrent with 1 read.
pub fn room() {
    let mut model = Model::new(Policy::Block);
    let mut reader = model.reader(true);
    assert_eq!(model.write(4), 4);
    let payload = model.payload.clone();
    let reading = thread::spawn(move || {
        assert_eq!(read_once(&mut reader, &payload), Peek::Bytes);
        reader
    });
    let stored = model.write(1);
    let mut reader = reading.join().unwrap();
    assert!(stored == 1 || rings(&model.room.1), "the writer was not notified of room");
    if stored == 0 {
        assert_eq!(model.write(1), 1);
    }
    model.settle(&mut reader);
    assert_eq!(reader.lost(), 0);
}
