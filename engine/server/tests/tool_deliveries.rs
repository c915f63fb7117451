//! Deliveries to a tool: bytes, gaps and ends, each once and in order, under every policy and
//! through every interface.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::sync::{Arc, Mutex};

use iof_engine::{Grant, JobSpec, Policy};
use iof_proto::limits::MAX_FDS_IN_FLIGHT_PER_TOOL;
use iof_proto::query::key;
use iof_proto::{Channel, Channels, Nspace, Position, Proc, Rank, Status};
use iof_testing::TIMEOUT;
use iof_testing::engine::streams::{
    DeliveryRecord, Pipes, all_of, assert_gone, engine_with_policy, wait_for_produced,
};
use iof_testing::engine::{shell, wait};
use iof_tool::{CopyError, Delivery, Pull, RequestError};

const OUTPUTS: Channels = Channels::STDOUT.union(Channels::STDERR).union(Channels::STDDIAG);
/// The number of bytes that each rank writes to stdout. It writes one byte less than half of that
/// to stderr.
const BYTES: usize = 300_000;

#[test]
fn every_stream_completes_once_and_every_job_ends_once_under_all_policies() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        for concurrent in [true, false] {
            let engine = engine_with_policy(policy, 65_536);
            let mut tool = engine.attach("test", Grant::Block).unwrap();
            let all = Pull::new(vec![all_of("job")], OUTPUTS);
            assert_eq!(tool.pull(&all).unwrap().handler, 1);
            assert_eq!(tool.pull(&Pull::new(vec![all_of("job")], Channels::STDERR)).unwrap().handler, 2);
            let script =
                format!("head -c {BYTES} /dev/zero; head -c {} /dev/zero >&2; exit 3", BYTES / 2 - 1);
            let spec = JobSpec::new(Nspace::new("job").unwrap(), vec![shell(&script).ranks(3)]);
            let job = engine.spawn(&spec).unwrap();
            if !concurrent && policy != Policy::Block {
                wait(&job);
            }
            let record = DeliveryRecord::read_all(&mut tool);
            assert_eq!(record.streams.len(), 3 * 3 + 3, "{policy:?}");
            for ((_, source, channel), stream) in &record.streams {
                let written = match channel {
                    Channel::Stdout => BYTES,
                    Channel::Stderr => BYTES / 2 - 1,
                    _ => 0,
                };
                let counts = stream.complete.unwrap();
                assert_eq!(counts.produced, written as u64, "{source} {channel}");
                assert_eq!(counts.delivered + counts.lost, counts.produced);
                assert!(policy != Policy::Block || counts.lost == 0);
                assert!(concurrent || policy == Policy::Block || written == 0 || counts.lost > 0);
            }
            let ends = [(1, "job"), (2, "job")].map(|(handler, job)| ((handler, job.to_owned()), Some(3)));
            assert_eq!(record.job_ends, ends.into());
        }
    }
}

#[test]
fn copying_writes_every_byte_and_counts_the_lost_ones() {
    for policy in [Policy::Block, Policy::DropNewest] {
        let engine = engine_with_policy(policy, 65_536);
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        tool.pull(&Pull::new(vec![all_of("job")], OUTPUTS)).unwrap();
        let ranks = shell(&format!("head -c {BYTES} /dev/zero"));
        let job = engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![ranks])).unwrap();
        if policy == Policy::DropNewest {
            wait(&job);
        }
        let mut copy = Vec::new();
        let lost = tool.copy_to(&mut copy).unwrap();
        assert_eq!((copy.len() as u64 + lost, lost > 0), (BYTES as u64, policy == Policy::DropNewest));
    }
}

#[test]
fn copying_fails_if_the_output_cannot_be_written() {
    let engine = engine_with_policy(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let _job = engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![shell("echo long")])).unwrap();
    let failed = tool.copy_to(&mut [0; 3].as_mut_slice()).unwrap_err();
    assert!(matches!(failed, CopyError::Write(_)), "{failed}");
}

#[test]
fn jobs_can_be_registered_for_before_they_exist_and_end_independently() {
    let engine = engine_with_policy(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let one_rank = Proc { rank: Rank(1), ..all_of("second") };
    tool.pull(&Pull::new(vec![all_of("first"), one_rank], Channels::STDOUT)).unwrap();
    assert!(tool.try_recv().unwrap().is_none());
    let second = Pipes::adopt(&engine, "second", 2);
    second.write(0, b"not asked for");
    second.write(1, b"second");
    second.end(0);
    let mut record = DeliveryRecord::default();
    record.add_until(&mut tool, |record| !record.job_ends.is_empty());
    assert!(!tool.is_done());
    let first = Pipes::adopt(&engine, "first", 1);
    first.write(0, b"first");
    first.end(7);
    record.add_until(&mut tool, |_| false);
    assert_eq!(record.streams.len(), 2);
    assert_eq!(record.stdout(1, "first", 0).bytes, b"first");
    assert_eq!(record.stdout(1, "second", 1).bytes, b"second");
    let ends = [("first", 7), ("second", 0)].map(|(job, code)| ((1, job.to_owned()), Some(code)));
    assert_eq!(record.job_ends, ends.into());
}

#[test]
fn a_pull_receives_the_backlog_or_not_as_it_specifies() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let pipes = Pipes::adopt(&engine, "job", 1);
    pipes.write(0, b"before");
    wait_for_produced(&mut tool, "job", 0, 6);
    let with = Pull::new(vec![all_of("job")], Channels::STDOUT);
    tool.pull(&with).unwrap();
    tool.pull(&with.from(Position::Newest)).unwrap();
    pipes.write(0, b"after");
    pipes.end(0);
    let record = DeliveryRecord::read_all(&mut tool);
    let (with, without) = (record.stdout(1, "job", 0), record.stdout(2, "job", 0));
    assert_eq!((&with.bytes[..], &without.bytes[..]), (&b"beforeafter"[..], &b"after"[..]));
    let counts = without.complete.unwrap();
    assert_eq!((counts.produced, counts.delivered, counts.lost), (11, 5, 0));
}

#[test]
fn a_tool_that_deregisters_at_once_receives_the_backlog_of_every_stream() {
    // More rings than may be in flight to a tool at a time.
    let ranks = 3 * u32::try_from(MAX_FDS_IN_FLIGHT_PER_TOOL).unwrap();
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    for rank in 0..ranks {
        let source = Proc { rank: Rank(rank), ..all_of("job") };
        engine.deliver(&source, Channel::Stdout, vec![b'x'; 100], &[], || {}).unwrap();
        wait_for_produced(&mut tool, "job", rank, 100);
    }
    // The number of rings that have arrived at the deregistration varies.
    for _ in 0..20 {
        let handler = tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap().handler;
        tool.deregister(handler).unwrap();
        let mut record = DeliveryRecord::default();
        record.add_until(&mut tool, |record| record.deregistered == [handler]);
        for rank in 0..ranks {
            assert_eq!(record.stdout(handler, "job", rank).bytes, [b'x'; 100], "rank {rank}");
        }
    }
}

#[test]
fn unconsumed_bytes_are_delivered_again_and_streams_take_turns() {
    let engine = engine_with_policy(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let pipes = Pipes::adopt(&engine, "job", 2);
    pipes.write(0, b"0123456789");
    pipes.write(1, b"abcdefghij");
    for rank in 0..2 {
        wait_for_produced(&mut tool, "job", rank, 10);
    }
    let mut turns: Vec<(u32, Vec<u8>)> = Vec::new();
    while turns.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() < 20 {
        let Some(Delivery::Bytes(bytes)) = tool.recv_timeout(TIMEOUT).unwrap() else { panic!("no bytes") };
        let rank = bytes.origin().source.rank.0;
        turns.push((rank, bytes[..5].to_vec()));
        tool.consume(5);
    }
    turns[..2].sort();
    turns[2..].sort();
    let expected = [(0, "01234"), (1, "abcde"), (0, "56789"), (1, "fghij")];
    assert_eq!(turns, expected.map(|(rank, bytes)| (rank, bytes.as_bytes().to_vec())));
}

#[test]
fn each_registration_uses_its_callback_and_others_are_left_for_next() {
    let engine = engine_with_policy(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let records: [Arc<Mutex<DeliveryRecord>>; 2] = Default::default();
    for (record, nspace) in records.iter().zip(["first", "second"]) {
        let record = Arc::clone(record);
        let note = move |delivery: &Delivery<'_>| record.lock().unwrap().add(delivery);
        tool.pull_with(&Pull::new(vec![all_of(nspace)], Channels::STDOUT), note).unwrap();
    }
    tool.pull(&Pull::new(vec![all_of("third")], Channels::STDOUT)).unwrap();
    for nspace in ["first", "second", "third"] {
        let pipes = Pipes::adopt(&engine, nspace, 1);
        pipes.write(0, nspace.as_bytes());
        pipes.end(0);
    }
    let has_ended = |record: &Mutex<DeliveryRecord>| !record.lock().unwrap().job_ends.is_empty();
    let mut rest = DeliveryRecord::default();
    let mut called = 0;
    while !records.iter().all(|record| has_ended(record)) || !tool.is_done() {
        while tool.dispatch(Some(TIMEOUT)).unwrap() {
            called += 1;
            assert!(called < 100, "more calls than deliveries");
        }
        assert!(!tool.dispatch(None).unwrap(), "deliveries without a callback stay for next");
        if let Some(delivery) = tool.try_recv().unwrap() {
            assert_eq!(delivery.handler(), 3);
            rest.add(&delivery);
        }
    }
    assert!(!tool.dispatch(None).unwrap());
    assert_eq!(rest.stdout(3, "third", 0).bytes, b"third");
    let [first, second] = records.map(|record| std::mem::take(&mut *record.lock().unwrap()));
    assert_eq!(first.stdout(1, "first", 0).bytes, b"first");
    assert_eq!(second.stdout(2, "second", 0).bytes, b"second");
    assert_eq!((first.streams.len(), second.streams.len(), rest.streams.len()), (1, 1, 1));
}

#[test]
fn requests_between_deliveries_lose_nothing() {
    let engine = engine_with_policy(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let app = shell("seq 1 100000").ranks(5);
    engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![app])).unwrap();
    let mut record = DeliveryRecord::default();
    let mut more = 0;
    while let Some(delivery) = tool.recv().unwrap() {
        record.add(&delivery);
        tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap();
        assert!(matches!(tool.query(&["no.such.key"]), Err(RequestError::Denied(_))));
        if more < 20 {
            more += 1;
            let handler = tool.pull(&Pull::new(vec![all_of("other")], Channels::STDOUT)).unwrap().handler;
            tool.deregister(handler).unwrap();
            let again = tool.deregister(handler).unwrap_err();
            assert!(
                matches!(again, RequestError::Denied(failure) if failure.status == Status::ERR_NOT_FOUND)
            );
        }
    }
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    for rank in 0..5 {
        assert!(record.stdout(1, "job", rank).bytes == expected.as_bytes(), "rank {rank}");
    }
    assert_eq!(record.deregistered.len(), more);
}

#[test]
fn after_the_engine_ends_every_stream_is_drained_once_and_requests_fail() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job"), all_of("never")], Channels::STDOUT)).unwrap();
    let mut pipes = Pipes::adopt(&engine, "job", 3);
    for rank in 0..3 {
        pipes.write(rank, b"last words");
        wait_for_produced(&mut observer, "job", rank.try_into().unwrap(), 10);
    }
    pipes.close(2);
    let mut record = DeliveryRecord::default();
    record.add_until(&mut tool, |record| !record.streams.is_empty());
    drop(engine);
    record.add_until(&mut tool, |_| false);
    for rank in 0..3 {
        let stream = record.stdout(1, "job", rank);
        assert_eq!(stream.bytes, b"last words");
        assert!(stream.gone != stream.complete.is_some());
    }
    assert!(record.job_ends.is_empty());
    assert_eq!(tool.timeout(), None);
    assert_gone(tool.query(&[key::PMIX_QUERY_NAMESPACES]));
    assert_gone(tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)));
    assert_gone(tool.deregister(1));
    assert!(tool.recv().unwrap().is_none());
}
