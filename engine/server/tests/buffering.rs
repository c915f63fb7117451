//! Buffering (`PMIX_IOF_BUFFERING_SIZE`, `PMIX_IOF_BUFFERING_TIME`), and the flush at the end of a
//! registration.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{Engine, Grant, MAX_CACHE_SIZE, Policy};
use iof_proto::directive::key;
use iof_proto::{Channels, Info, Status};
use iof_testing::TIMEOUT;
use iof_testing::engine::streams::{DeliveryRecord, Pipes, all_of, engine_with_policy, wait_for_produced};
use iof_tool::{Delivery, Pull, RequestError, Tool};

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

/// Starts an engine with a tool, an observer that only queries, and a job of one rank.
fn setup(policy: Policy) -> (Engine, Tool, Tool, Pipes) {
    let engine = engine_with_policy(policy, CACHE);
    let [tool, observer] = ["tool", "observer"].map(|name| engine.attach(name, Grant::Never).unwrap());
    let pipes = Pipes::adopt(&engine, "job", 1);
    (engine, tool, observer, pipes)
}

fn bytes(tool: &mut Tool, timeout: Duration) -> Option<Vec<u8>> {
    match tool.recv_timeout(timeout).unwrap() {
        Some(Delivery::Bytes(bytes)) => Some(bytes.to_vec()),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn buffered_bytes_arrive_when_the_size_is_reached_and_not_before() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let (_engine, mut tool, mut observer, pipes) = setup(policy);
        tool.pull(&pull([size(8)])).unwrap();
        let mut produced = 0;
        for _ in 0..3 {
            for part in [&b"01"[..], b"234", b"56"] {
                pipes.write(0, part);
                produced += part.len() as u64;
                wait_for_produced(&mut observer, "job", 0, produced);
                assert_eq!(bytes(&mut tool, Duration::ZERO), None);
                assert_eq!(tool.timeout(), None, "only further bytes can end the wait");
            }
            pipes.write(0, b"7");
            produced += 1;
            assert_eq!(bytes(&mut tool, TIMEOUT).unwrap(), b"01234567");
        }
        pipes.write(0, b"rest");
        pipes.end(0);
        assert_eq!(bytes(&mut tool, TIMEOUT).unwrap(), b"rest");
    }
}

#[test]
fn a_group_above_half_the_cache_enlarges_the_cache_up_to_the_limit() {
    let (_engine, mut tool, _observer, pipes) = setup(Policy::DropNewest);
    tool.pull(&pull([size(CACHE)])).unwrap();
    // A read that is under way may put up to 64 KiB into the smaller cache.
    pipes.write(0, &vec![b'x'; 2 * CACHE as usize]);
    pipes.end(0);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 2 * CACHE as usize {
        sizes.push(bytes(&mut tool, TIMEOUT).unwrap().len());
    }
    assert!(sizes.iter().any(|size| *size >= CACHE as usize), "{sizes:?}");
    let too_large = MAX_CACHE_SIZE / 2 + 1;
    let refused = tool.pull(&pull([size(too_large)])).unwrap_err();
    let RequestError::Denied(failure) = refused else { panic!("{refused}") };
    assert_eq!(failure.status, Status::ERR_OUT_OF_RESOURCE);
    let optional = pull([Info::new(key::PMIX_IOF_BUFFERING_SIZE, too_large)]);
    assert_eq!(tool.pull(&optional).unwrap().ignored, [key::PMIX_IOF_BUFFERING_SIZE]);
}

#[test]
fn buffered_bytes_arrive_when_the_time_has_passed_and_not_before() {
    const TIME: Duration = Duration::from_millis(30);
    for directives in [vec![size(1000), time(30)], vec![time(30)]] {
        let (_engine, mut tool, _observer, pipes) = setup(Policy::DropNewest);
        tool.pull(&pull(directives)).unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            pipes.write(0, b"a few");
            assert_eq!(bytes(&mut tool, TIMEOUT).unwrap(), b"a few");
            assert!(start.elapsed() >= TIME);
        }
        // The same in short steps, as in an event loop.
        let start = Instant::now();
        pipes.write(0, b"again");
        let arrived = loop {
            if let Some(bytes) = bytes(&mut tool, Duration::from_millis(1)) {
                break bytes;
            }
            assert!(start.elapsed() < TIMEOUT);
        };
        assert!(start.elapsed() >= TIME);
        assert_eq!(arrived, b"again");
    }
}

#[test]
fn a_full_buffer_does_not_wait_for_its_time() {
    let (_engine, mut tool, _observer, pipes) = setup(Policy::DropNewest);
    tool.pull(&pull([size(4), time(u32::MAX / 1000)])).unwrap();
    pipes.write(0, b"four");
    assert_eq!(bytes(&mut tool, TIMEOUT).unwrap(), b"four");
    pipes.write(0, b"two");
    // An event loop can see the remaining time.
    let start = Instant::now();
    let left = loop {
        assert_eq!(bytes(&mut tool, Duration::from_millis(1)), None);
        if let Some(left) = tool.timeout() {
            break left;
        }
        assert!(start.elapsed() < TIMEOUT);
    };
    assert!(left > TIMEOUT, "{left:?}");
}

#[test]
fn deregistering_delivers_buffered_bytes_then_the_confirmation_then_nothing() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let (_engine, mut tool, mut observer, pipes) = setup(policy);
        let handler = tool.pull(&pull([size(1000)])).unwrap().handler;
        let other = tool.pull(&pull([])).unwrap().handler;
        pipes.write(0, b"held back");
        wait_for_produced(&mut observer, "job", 0, 9);
        let mut record = DeliveryRecord::default();
        record.add_until(&mut tool, |record| record.streams.len() == 1);
        assert!(tool.try_recv().unwrap().is_none());
        tool.deregister(handler).unwrap();
        pipes.write(0, b", too late");
        wait_for_produced(&mut observer, "job", 0, 19);
        record.add_until(&mut tool, |record| record.deregistered == [handler]);
        pipes.end(0);
        record.add_until(&mut tool, |_| false);
        let stream = record.stdout(handler, "job", 0);
        assert_eq!(stream.bytes, b"held back");
        assert!(stream.complete.is_none());
        assert_eq!(record.stdout(other, "job", 0).bytes, b"held back, too late");
        assert_eq!(record.job_ends.keys().map(|(handler, _)| *handler).collect::<Vec<_>>(), [other]);
    }
}

#[test]
fn a_registration_without_any_stream_ends_at_once() {
    let (_engine, mut tool, _observer, _pipes) = setup(Policy::DropNewest);
    let never = Pull::new(vec![all_of("never")], Channels::STDOUT);
    let handler = tool.pull(&never).unwrap().handler;
    tool.deregister(handler).unwrap();
    assert!(!tool.is_done());
    let delivery = tool.recv().unwrap();
    assert!(
        matches!(delivery, Some(Delivery::Deregistered { handler: ended }) if ended == handler),
        "{delivery:?}"
    );
    assert!(tool.is_done() && tool.recv().unwrap().is_none());
    assert_ne!(tool.pull(&never).unwrap().handler, handler);
}

#[test]
fn a_source_that_never_pauses_does_not_delay_the_end_of_a_registration() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        let engine = engine_with_policy(policy, CACHE);
        let mut tool = engine.attach("tool", Grant::Block).unwrap();
        // Makes the source never wait.
        let mut other = engine.attach("other", Grant::Never).unwrap();
        other.pull(&pull([])).unwrap();
        let handler = tool.pull(&pull([])).unwrap().handler;
        let pipes = Pipes::adopt(&engine, "job", 1);
        let mut writer = pipes.writer(0);
        let stop = Arc::new(AtomicBool::new(false));
        let source = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    writer.write_all(&[7; 4096]).unwrap();
                }
            }
        });
        let mut record = DeliveryRecord::default();
        let read =
            |record: &DeliveryRecord| record.streams.values().map(|stream| stream.bytes.len()).sum::<usize>();
        record.add_until(&mut tool, |record| read(record) > 1 << 20);
        tool.deregister(handler).unwrap();
        let before = read(&record);
        record.add_until(&mut tool, |record| record.deregistered == [handler]);
        // The last delivery, a ring of an old generation and a ring of the newest one.
        assert!(read(&record) - before <= 3 * CACHE as usize, "{policy:?}: {}", read(&record) - before);
        stop.store(true, Ordering::Relaxed);
        source.join().unwrap();
    }
}

#[test]
fn a_reader_in_an_old_generation_is_flushed_up_to_the_newest_byte() {
    let (engine, mut tool, mut observer, pipes) = setup(Policy::DropNewest);
    let handler = tool.pull(&pull([])).unwrap().handler;
    // The stream is announced to this tool, which reads nothing from now on.
    assert!(tool.try_recv().unwrap().is_none());
    let mut other = engine.attach("other", Grant::Never).unwrap();
    other.pull(&pull([])).unwrap();
    let mut record = DeliveryRecord::default();
    let mut produced = 0u64;
    for round in 0..100u8 {
        pipes.write(0, &[round; 4096]);
        produced += 4096;
        wait_for_produced(&mut observer, "job", 0, produced);
        record.add_until(&mut other, |record| {
            record.streams.values().any(|stream| stream.bytes.len() as u64 + stream.lost == produced)
        });
    }
    tool.deregister(handler).unwrap();
    let mut late = DeliveryRecord::default();
    late.add_until(&mut tool, |record| record.deregistered == [handler]);
    let stream = late.stdout(handler, "job", 0);
    assert_eq!(stream.bytes.len() as u64 + stream.lost, produced);
    assert!(stream.lost > 0);
    assert_eq!((stream.bytes.first(), stream.bytes.last()), (Some(&0), Some(&99)));
}
