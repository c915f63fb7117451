//! What a tool is handed out: bytes, gaps, ends, each once and in order, whatever the policy and
//! however it asks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::streams::{Ledger, Pipes, all_of, assert_gone, engine_that, wait_for_produced};
use common::{PATIENCE, shell, wait};
use iof_engine::{App, Grant, JobSpec, Policy};
use iof_proto::limits::MAX_FDS_IN_FLIGHT_PER_TOOL;
use iof_proto::query::key;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank, Status};
use iof_tool::{Delivery, Pull, RequestError};

const OUTPUTS: Channels = Channels::STDOUT.union(Channels::STDERR).union(Channels::STDDIAG);
/// What each rank writes to stdout, and a byte less than half of it to stderr.
const BYTES: usize = 300_000;

#[test]
fn every_stream_is_complete_once_and_every_job_ends_once_with_their_books_under_all_policies() {
    for policy in [Policy::DropNewest, Policy::DropOldest, Policy::Block] {
        for along in [true, false] {
            let engine = engine_that(policy, 65_536);
            let mut tool = engine.attach("test", Grant::Block).unwrap();
            let all = Pull::new(vec![all_of("job")], OUTPUTS);
            assert_eq!(tool.pull(&all).unwrap().handler, 1);
            assert_eq!(tool.pull(&Pull::new(vec![all_of("job")], Channels::STDERR)).unwrap().handler, 2);
            let script =
                format!("head -c {BYTES} /dev/zero; head -c {} /dev/zero >&2; exit 3", BYTES / 2 - 1);
            let spec = JobSpec::new(Nspace::new("job").unwrap(), vec![App { nprocs: 3, ..shell(&script) }]);
            let job = engine.spawn(&spec).unwrap();
            if !along && policy != Policy::Block {
                wait(&job);
            }
            let ledger = Ledger::of(&mut tool);
            assert_eq!(ledger.streams.len(), 3 * 3 + 3, "{policy:?}");
            for ((_, source, channel), stream) in &ledger.streams {
                let written = match channel {
                    Channel::Stdout => BYTES,
                    Channel::Stderr => BYTES / 2 - 1,
                    _ => 0,
                };
                let counts = stream.complete.unwrap();
                assert_eq!(counts.produced, written as u64, "{source} {channel}");
                assert_eq!(counts.delivered + counts.lost, counts.produced);
                assert!(policy != Policy::Block || counts.lost == 0);
                assert!(along || policy == Policy::Block || written == 0 || counts.lost > 0);
            }
            let ends = [(1, "job"), (2, "job")].map(|(handler, job)| ((handler, job.to_owned()), Some(3)));
            assert_eq!(ledger.job_ends, ends.into());
        }
    }
}

#[test]
fn sources_of_several_jobs_are_registered_for_before_they_exist_and_each_job_ends_by_itself() {
    let engine = engine_that(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let one_rank = Proc { rank: Rank(1), ..all_of("second") };
    tool.pull(&Pull::new(vec![all_of("first"), one_rank], Channels::STDOUT)).unwrap();
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    let second = Pipes::of(&engine, "second", 2);
    second.write(0, b"not asked for");
    second.write(1, b"second");
    second.end(0);
    let mut ledger = Ledger::default();
    ledger.note_until(&mut tool, |ledger| !ledger.job_ends.is_empty());
    assert!(!tool.is_done());
    let first = Pipes::of(&engine, "first", 1);
    first.write(0, b"first");
    first.end(7);
    ledger.note_until(&mut tool, |_| false);
    assert_eq!(ledger.streams.len(), 2);
    assert_eq!(ledger.stdout(1, "first", 0).bytes, b"first");
    assert_eq!(ledger.stdout(1, "second", 1).bytes, b"second");
    let ends = [("first", 7), ("second", 0)].map(|(job, code)| ((1, job.to_owned()), Some(code)));
    assert_eq!(ledger.job_ends, ends.into());
}

#[test]
fn the_backlog_is_handed_out_or_left_out_as_asked() {
    let engine = engine_that(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let pipes = Pipes::of(&engine, "job", 1);
    pipes.write(0, b"before");
    wait_for_produced(&mut tool, "job", 0, 6);
    let with = Pull::new(vec![all_of("job")], Channels::STDOUT);
    tool.pull(&with).unwrap();
    tool.pull(&Pull { backlog: false, ..with }).unwrap();
    pipes.write(0, b"after");
    pipes.end(0);
    let ledger = Ledger::of(&mut tool);
    let (with, without) = (ledger.stdout(1, "job", 0), ledger.stdout(2, "job", 0));
    assert_eq!((&with.bytes[..], &without.bytes[..]), (&b"beforeafter"[..], &b"after"[..]));
    let counts = without.complete.unwrap();
    assert_eq!((counts.produced, counts.delivered, counts.lost), (11, 5, 0));
}

#[test]
fn who_deregisters_at_once_is_handed_out_the_backlog_of_every_stream_there_is() {
    // More rings than may be on their way to a tool at a time.
    let ranks = 3 * u32::try_from(MAX_FDS_IN_FLIGHT_PER_TOOL).unwrap();
    let engine = engine_that(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    for rank in 0..ranks {
        let source = Proc { rank: Rank(rank), ..all_of("job") };
        engine.deliver(&source, Channel::Stdout, vec![b'x'; 100], &[], || {}).unwrap();
        wait_for_produced(&mut tool, "job", rank, 100);
    }
    // How many rings are there when it deregisters is not the same each time.
    for _ in 0..20 {
        let handler = tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap().handler;
        tool.deregister(handler).unwrap();
        let mut ledger = Ledger::default();
        ledger.note_until(&mut tool, |ledger| ledger.deregistered == [handler]);
        for rank in 0..ranks {
            assert_eq!(ledger.stdout(handler, "job", rank).bytes, [b'x'; 100], "rank {rank}");
        }
    }
}

#[test]
fn what_is_not_consumed_comes_again_and_one_stream_does_not_keep_the_others_waiting() {
    let engine = engine_that(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let pipes = Pipes::of(&engine, "job", 2);
    pipes.write(0, b"0123456789");
    pipes.write(1, b"abcdefghij");
    for rank in 0..2 {
        wait_for_produced(&mut tool, "job", rank, 10);
    }
    let mut turns: Vec<(u32, Vec<u8>)> = Vec::new();
    while turns.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() < 20 {
        let Some(Delivery::Bytes(bytes)) = tool.next(Some(PATIENCE)).unwrap() else { panic!("no bytes") };
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
fn each_registration_has_its_callback_and_what_has_none_is_left_for_next() {
    let engine = engine_that(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let ledgers: [Arc<Mutex<Ledger>>; 2] = Default::default();
    for (ledger, nspace) in ledgers.iter().zip(["first", "second"]) {
        let ledger = Arc::clone(ledger);
        let note = move |delivery: &Delivery<'_>| ledger.lock().unwrap().note(delivery);
        tool.pull_with(&Pull::new(vec![all_of(nspace)], Channels::STDOUT), note).unwrap();
    }
    tool.pull(&Pull::new(vec![all_of("third")], Channels::STDOUT)).unwrap();
    for nspace in ["first", "second", "third"] {
        let pipes = Pipes::of(&engine, nspace, 1);
        pipes.write(0, nspace.as_bytes());
        pipes.end(0);
    }
    let over = |ledger: &Mutex<Ledger>| !ledger.lock().unwrap().job_ends.is_empty();
    let mut left = Ledger::default();
    let mut called = 0;
    while !ledgers.iter().all(|ledger| over(ledger)) || !tool.is_done() {
        while tool.dispatch(Some(PATIENCE)).unwrap() {
            called += 1;
            assert!(called < 100, "more calls than there is to tell");
        }
        assert!(!tool.dispatch(None).unwrap(), "what has no callback does not get one by asking again");
        if let Some(delivery) = tool.next(Some(Duration::ZERO)).unwrap() {
            assert_eq!(delivery.handler(), 3);
            left.note(&delivery);
        }
    }
    assert!(!tool.dispatch(None).unwrap());
    assert_eq!(left.stdout(3, "third", 0).bytes, b"third");
    let [first, second] = ledgers.map(|ledger| std::mem::take(&mut *ledger.lock().unwrap()));
    assert_eq!(first.stdout(1, "first", 0).bytes, b"first");
    assert_eq!(second.stdout(2, "second", 0).bytes, b"second");
    assert_eq!((first.streams.len(), second.streams.len(), left.streams.len()), (1, 1, 1));
}

#[test]
fn requests_between_deliveries_lose_nothing() {
    let engine = engine_that(Policy::Block, 65_536);
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let app = App { nprocs: 5, ..shell("seq 1 100000") };
    engine.spawn(&JobSpec::new(Nspace::new("job").unwrap(), vec![app])).unwrap();
    let mut ledger = Ledger::default();
    let mut more = 0;
    while let Some(delivery) = tool.next(None).unwrap() {
        ledger.note(&delivery);
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
        assert!(ledger.stdout(1, "job", rank).bytes == expected.as_bytes(), "rank {rank}");
    }
    assert_eq!(ledger.deregistered.len(), more);
}

#[test]
fn when_the_engine_ends_every_stream_is_drained_to_its_end_once_and_requests_fail() {
    let engine = engine_that(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let mut asker = engine.attach("asker", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job"), all_of("never")], Channels::STDOUT)).unwrap();
    let mut pipes = Pipes::of(&engine, "job", 3);
    for rank in 0..3 {
        pipes.write(rank, b"last words");
        wait_for_produced(&mut asker, "job", rank.try_into().unwrap(), 10);
    }
    pipes.close(2);
    let mut ledger = Ledger::default();
    ledger.note_until(&mut tool, |ledger| !ledger.streams.is_empty());
    drop(engine);
    ledger.note_until(&mut tool, |_| false);
    for rank in 0..3 {
        let stream = ledger.stdout(1, "job", rank);
        assert_eq!(stream.bytes, b"last words");
        assert!(stream.gone != stream.complete.is_some());
    }
    assert!(ledger.job_ends.is_empty());
    assert_eq!(tool.timeout(), None);
    assert_gone(tool.query(&[key::PMIX_QUERY_NAMESPACES]));
    assert_gone(tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)));
    assert_gone(tool.deregister(1));
    assert!(tool.next(None).unwrap().is_none());
}
