//! Bytes in groups (`PMIX_IOF_BUFFERING_SIZE`, `PMIX_IOF_BUFFERING_TIME`), and what the end of a
//! registration brings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::PATIENCE;
use common::streams::{Ledger, Pipes, all_of, engine_that, wait_for_produced};
use iof_engine::{Engine, Grant, Policy};
use iof_proto::directive::key;
use iof_proto::{Channels, Info};
use iof_tool::{Delivery, Pull, Tool};

const CACHE: u32 = 65_536;

fn pull(directives: impl IntoIterator<Item = Info>) -> Pull {
    let directives = directives.into_iter().collect();
    Pull { directives, ..Pull::new(vec![all_of("job")], Channels::STDOUT) }
}

fn size(bytes: u32) -> Info {
    Info::required(key::PMIX_IOF_BUFFERING_SIZE, bytes)
}

fn time(millis: u32) -> Info {
    Info::required(key::IOF_BUFFERING_TIME_US, 1000 * millis)
}

/// A tool, one that only asks, and a job of one rank.
fn site(policy: Policy) -> (Engine, Tool, Tool, Pipes) {
    let engine = engine_that(policy, CACHE);
    let [tool, asker] = ["tool", "asker"].map(|name| engine.attach(name, Grant::Never).unwrap());
    let pipes = Pipes::of(&engine, "job", 1);
    (engine, tool, asker, pipes)
}

fn bytes(tool: &mut Tool, timeout: Duration) -> Option<Vec<u8>> {
    match tool.next(Some(timeout)).unwrap() {
        Some(Delivery::Bytes(bytes)) => Some(bytes.to_vec()),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_comes_before_a_group_is_full_and_all_of_it_when_it_is() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let (_engine, mut tool, mut asker, pipes) = site(policy);
        tool.pull(&pull([size(8)])).unwrap();
        let mut produced = 0;
        for _ in 0..3 {
            for part in [&b"01"[..], b"234", b"56"] {
                pipes.write(0, part);
                produced += part.len() as u64;
                wait_for_produced(&mut asker, "job", 0, produced);
                assert_eq!(bytes(&mut tool, Duration::ZERO), None);
                assert_eq!(tool.timeout(), None, "only bytes will do");
            }
            pipes.write(0, b"7");
            produced += 1;
            assert_eq!(bytes(&mut tool, PATIENCE).unwrap(), b"01234567");
        }
        pipes.write(0, b"rest");
        pipes.end(0);
        assert_eq!(bytes(&mut tool, PATIENCE).unwrap(), b"rest");
    }
}

#[test]
fn a_group_comes_when_its_time_is_over_and_not_before() {
    const TIME: Duration = Duration::from_millis(30);
    for directives in [vec![size(1000), time(30)], vec![time(30)]] {
        let (_engine, mut tool, _asker, pipes) = site(Policy::DropNewest);
        tool.pull(&pull(directives)).unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            pipes.write(0, b"a few");
            assert_eq!(bytes(&mut tool, PATIENCE).unwrap(), b"a few");
            assert!(start.elapsed() >= TIME);
        }
        // The same in small steps, as an event loop takes them.
        let start = Instant::now();
        pipes.write(0, b"again");
        let came = loop {
            if let Some(bytes) = bytes(&mut tool, Duration::from_millis(1)) {
                break bytes;
            }
            assert!(start.elapsed() < PATIENCE);
        };
        assert!(start.elapsed() >= TIME);
        assert_eq!(came, b"again");
    }
}

#[test]
fn a_full_group_does_not_wait_for_its_time() {
    let (_engine, mut tool, _asker, pipes) = site(Policy::DropNewest);
    tool.pull(&pull([size(4), time(u32::MAX / 1000)])).unwrap();
    pipes.write(0, b"four");
    assert_eq!(bytes(&mut tool, PATIENCE).unwrap(), b"four");
    pipes.write(0, b"two");
    // The time that is left is known to an event loop.
    let start = Instant::now();
    let left = loop {
        assert_eq!(bytes(&mut tool, Duration::from_millis(1)), None);
        if let Some(left) = tool.timeout() {
            break left;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(left > PATIENCE, "{left:?}");
}

#[test]
fn the_end_of_a_registration_brings_what_was_held_back_then_the_confirmation_then_nothing() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let (_engine, mut tool, mut asker, pipes) = site(policy);
        let handler = tool.pull(&pull([size(1000)])).unwrap().handler;
        let other = tool.pull(&pull([])).unwrap().handler;
        pipes.write(0, b"held back");
        wait_for_produced(&mut asker, "job", 0, 9);
        let mut ledger = Ledger::default();
        ledger.note_until(&mut tool, |ledger| ledger.streams.len() == 1);
        assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
        tool.deregister(handler).unwrap();
        pipes.write(0, b", too late");
        wait_for_produced(&mut asker, "job", 0, 19);
        ledger.note_until(&mut tool, |ledger| ledger.deregistered == [handler]);
        pipes.end(0);
        ledger.note_until(&mut tool, |_| false);
        let of_it = ledger.stdout(handler, "job", 0);
        assert_eq!(of_it.bytes, b"held back");
        assert!(of_it.complete.is_none());
        assert_eq!(ledger.stdout(other, "job", 0).bytes, b"held back, too late");
        assert_eq!(ledger.job_ends.keys().map(|(handler, _)| *handler).collect::<Vec<_>>(), [other]);
    }
}

#[test]
fn a_registration_without_any_stream_is_ended_at_once() {
    let (_engine, mut tool, _asker, _pipes) = site(Policy::DropNewest);
    let never = Pull::new(vec![all_of("never")], Channels::STDOUT);
    let handler = tool.pull(&never).unwrap().handler;
    tool.deregister(handler).unwrap();
    assert!(!tool.is_done());
    let delivery = tool.next(None).unwrap();
    assert!(
        matches!(delivery, Some(Delivery::Deregistered { handler: of }) if of == handler),
        "{delivery:?}"
    );
    assert!(tool.is_done() && tool.next(None).unwrap().is_none());
    assert_ne!(tool.pull(&never).unwrap().handler, handler);
}

#[test]
fn a_source_that_never_pauses_does_not_put_the_end_of_a_registration_off() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let engine = engine_that(policy, CACHE);
        let mut tool = engine.attach("tool", Grant::Block).unwrap();
        // So that the source never waits.
        let mut other = engine.attach("other", Grant::Never).unwrap();
        other.pull(&pull([])).unwrap();
        let handler = tool.pull(&pull([])).unwrap().handler;
        let pipes = Pipes::of(&engine, "job", 1);
        let mut writer = pipes.writer(0);
        let over = Arc::new(AtomicBool::new(false));
        let source = thread::spawn({
            let over = Arc::clone(&over);
            move || {
                while !over.load(Ordering::Relaxed) {
                    writer.write_all(&[7; 4096]).unwrap();
                }
            }
        });
        let mut ledger = Ledger::default();
        let read = |ledger: &Ledger| ledger.streams.values().map(|stream| stream.bytes.len()).sum::<usize>();
        ledger.note_until(&mut tool, |ledger| read(ledger) > 1 << 20);
        tool.deregister(handler).unwrap();
        let before = read(&ledger);
        ledger.note_until(&mut tool, |ledger| ledger.deregistered == [handler]);
        // The last delivery, a ring of an old generation and one of the newest.
        assert!(read(&ledger) - before <= 3 * CACHE as usize, "{policy:?}: {}", read(&ledger) - before);
        over.store(true, Ordering::Relaxed);
        source.join().unwrap();
    }
}

#[test]
fn a_reader_that_was_left_behind_is_flushed_up_to_the_newest_byte() {
    let (engine, mut tool, mut asker, pipes) = site(Policy::DropNewest);
    let handler = tool.pull(&pull([])).unwrap().handler;
    // Its stream is announced, and it reads nothing from now on.
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    let mut along = engine.attach("along", Grant::Never).unwrap();
    along.pull(&pull([])).unwrap();
    let mut ledger = Ledger::default();
    let mut produced = 0u64;
    for round in 0..100u8 {
        pipes.write(0, &[round; 4096]);
        produced += 4096;
        wait_for_produced(&mut asker, "job", 0, produced);
        ledger.note_until(&mut along, |ledger| {
            ledger.streams.values().any(|stream| stream.bytes.len() as u64 + stream.lost == produced)
        });
    }
    tool.deregister(handler).unwrap();
    let mut late = Ledger::default();
    late.note_until(&mut tool, |ledger| ledger.deregistered == [handler]);
    let stream = late.stdout(handler, "job", 0);
    assert_eq!(stream.bytes.len() as u64 + stream.lost, produced);
    assert!(stream.lost > 0);
    assert_eq!((stream.bytes.first(), stream.bytes.last()), (Some(&0), Some(&99)));
}
