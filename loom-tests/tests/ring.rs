//! One writer and one reader, in every order.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a model may panic")]

use iof_loom_tests::{Model, read_once};
use iof_shm_ring::{Peek, Policy};
use loom::thread;

/// Preemptions that are tried in one run of a model, unless LOOM_MAX_PREEMPTIONS says more.
const PREEMPTIONS: usize = 2;

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.check(model);
}

/// Bound: capacity 4, 6 bytes written, 3 looks, two preemptions.
#[test]
fn a_gated_writer_never_touches_what_its_reader_may_read() {
    bounded(|| {
        let mut model = Model::new(4, Policy::Block);
        let mut reader = model.reader(true);
        let payload = model.payload.clone();
        let reading = thread::spawn(move || {
            for _ in 0..3 {
                assert!(matches!(read_once(&mut reader, &payload), Peek::Bytes | Peek::Empty));
            }
            (reader.delivered(), reader.lost())
        });
        let stored = model.write(6);
        let (delivered, lost) = reading.join().unwrap();
        assert!(delivered <= stored);
        assert_eq!(lost, 0);
    });
}

/// Bound: capacity 4, 7 bytes written (so that the first are lapped), 2 looks, two preemptions.
#[test]
fn an_overwriting_writer_never_touches_what_a_reader_borrows_and_every_lap_is_counted() {
    bounded(|| {
        let mut model = Model::new(4, Policy::DropOldest);
        let mut reader = model.reader(false);
        let payload = model.payload.clone();
        let reading = thread::spawn(move || {
            for _ in 0..2 {
                let before = reader.produced();
                let (delivered, lost) = (reader.delivered(), reader.lost());
                let peek = read_once(&mut reader, &payload);
                let moved = reader.produced() - before;
                assert_eq!(moved, reader.delivered() - delivered + reader.lost() - lost);
                assert!(matches!(peek, Peek::Bytes | Peek::Empty | Peek::Gap(_) | Peek::Sealed));
            }
        });
        model.write(7);
        reading.join().unwrap();
    });
}

/// Bound: 2 bytes, complete, 4 looks, two preemptions.
#[test]
fn the_end_is_seen_only_after_the_last_byte() {
    bounded(|| {
        let mut model = Model::new(4, Policy::DropNewest);
        let mut reader = model.reader(false);
        let payload = model.payload.clone();
        let reading = thread::spawn(move || {
            for _ in 0..4 {
                if read_once(&mut reader, &payload) == Peek::Ended {
                    assert_eq!(reader.delivered(), 2);
                }
            }
        });
        assert_eq!(model.write(2), 2);
        model.stream.complete();
        reading.join().unwrap();
    });
}
