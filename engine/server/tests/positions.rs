//! A registration begins where its position specifies, and ends at its time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iof_engine::{Grant, Policy};
use iof_proto::{Channels, Position};
use iof_testing::engine::streams::{DeliveryRecord, Pipes, all_of, engine_with_policy, wait_for_produced};
use iof_tool::{Delivery, Pull, Tool};

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

fn pull(tool: &mut Tool, from: Position) -> u32 {
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT).from(from)).unwrap().handler
}

/// Writes a line of a rank, and waits until it is read.
fn write(tool: &mut Tool, pipes: &Pipes, line: &[u8], produced: &mut u64) {
    pipes.write(0, line);
    *produced += line.len() as u64;
    wait_for_produced(tool, "job", 0, *produced);
}

#[test]
fn each_position_delivers_exactly_the_bytes_behind_it() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (pipes, mut produced) = (Pipes::adopt(&engine, "job", 1), 0);
    write(&mut tool, &pipes, b"one\ntwo\n", &mut produced);
    thread::sleep(Duration::from_millis(3));
    let time = now();
    write(&mut tool, &pipes, b"three\nfo", &mut produced);
    let wanted: [(Position, &[u8]); 12] = [
        (Position::Oldest, b"one\ntwo\nthree\nfour\n"),
        (Position::Newest, b"ur\n"),
        (Position::Offset(0), b"one\ntwo\nthree\nfour\n"),
        (Position::Offset(5), b"wo\nthree\nfour\n"),
        (Position::Offset(18), b"\n"),
        (Position::Offset(1000), b""),
        (Position::Time(0), b"one\ntwo\nthree\nfour\n"),
        (Position::Time(time), b"three\nfour\n"),
        (Position::Time(u64::MAX), b""),
        (Position::Lines(0), b"ur\n"),
        (Position::Lines(2), b"three\nfour\n"),
        (Position::Lines(99), b"one\ntwo\nthree\nfour\n"),
    ];
    let handlers = wanted.map(|(from, _)| pull(&mut tool, from));
    write(&mut tool, &pipes, b"ur\n", &mut produced);
    pipes.end(0);
    let record = DeliveryRecord::read_all(&mut tool);
    for ((from, bytes), handler) in wanted.into_iter().zip(handlers) {
        let stream = record.stdout(handler, "job", 0);
        assert_eq!(stream.bytes, bytes, "{from:?}");
        let counts = stream.complete.unwrap();
        assert_eq!((counts.produced, counts.delivered, counts.lost), (produced, bytes.len() as u64, 0));
    }
}

#[test]
fn an_offset_that_is_no_longer_cached_gives_the_gap_of_exactly_what_is_missing() {
    let engine = engine_with_policy(Policy::DropOldest, 16_384);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (pipes, mut produced) = (Pipes::adopt(&engine, "job", 1), 0);
    for i in 0..20_000u32 {
        pipes.write(0, format!("{i:06}\n").as_bytes());
        produced += 7;
    }
    wait_for_produced(&mut tool, "job", 0, produced);
    pipes.end(0);
    let handlers =
        [Position::Offset(700), Position::Offset(produced - 700)].map(|from| pull(&mut tool, from));
    let record = DeliveryRecord::read_all(&mut tool);
    let [early, late] = handlers.map(|handler| record.stdout(handler, "job", 0));
    let counts = early.complete.unwrap();
    assert_eq!(counts.delivered + counts.lost, produced - 700);
    assert!(counts.lost > 100_000 && early.bytes.ends_with(b"019999\n"));
    assert_eq!((late.complete.unwrap().lost, late.bytes.len()), (0, 700));
    assert!(late.bytes.starts_with(b"019900\n"));
}

#[test]
fn a_job_that_begins_after_the_registration_is_delivered_from_its_first_line() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let mut other = engine.attach("other", Grant::Never).unwrap();
    let handlers =
        [Position::Newest, Position::Lines(1), Position::Time(now())].map(|from| pull(&mut tool, from));
    let pipes = Pipes::adopt(&engine, "job", 1);
    write(&mut other, &pipes, b"one\ntwo\nthree\n", &mut 0);
    pipes.end(0);
    let record = DeliveryRecord::read_all(&mut tool);
    for handler in handlers {
        assert_eq!(record.stdout(handler, "job", 0).bytes, b"one\ntwo\nthree\n");
    }
}

#[test]
fn a_registration_ends_at_its_time_without_what_was_read_later() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (pipes, mut produced) = (Pipes::adopt(&engine, "job", 1), 0);
    write(&mut tool, &pipes, b"before\n", &mut produced);
    thread::sleep(Duration::from_millis(3));
    let time = now();
    write(&mut tool, &pipes, b"behind\n", &mut produced);
    let until = |time: u64| Pull { until: Some(time), ..Pull::new(vec![all_of("job")], Channels::STDOUT) };
    // One that has come, and one that comes while nothing is written.
    for (time, bytes) in [(time, &b"before\n"[..]), (now() + 50_000_000, b"before\nbehind\n")] {
        let handler = tool.pull(&until(time)).unwrap().handler;
        let mut record = DeliveryRecord::default();
        record.add_until(&mut tool, |record| record.deregistered == [handler]);
        assert_eq!(record.stdout(handler, "job", 0).bytes, bytes);
        assert!(now() >= time && tool.is_done());
    }
    pipes.end(0);
}

#[test]
fn the_end_of_what_was_cached_is_reported_once_if_requested() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (pipes, mut produced) = (Pipes::adopt(&engine, "job", 2), 0);
    write(&mut tool, &pipes, b"cached\n", &mut produced);
    let reports = Pull { reports_cached: true, ..Pull::new(vec![all_of("job")], Channels::STDOUT) };
    let handler = tool.pull(&reports).unwrap().handler;
    let mut bytes = Vec::new();
    loop {
        match tool.recv().unwrap().unwrap() {
            Delivery::Bytes(found) => bytes.extend_from_slice(&found),
            Delivery::Cached { handler: of } => break assert_eq!(of, handler),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, b"cached\n");
    pipes.end(0);
    while let Some(delivery) = tool.recv().unwrap() {
        assert!(!matches!(delivery, Delivery::Cached { .. } | Delivery::Bytes(_)), "{delivery:?}");
    }
}
