//! Pushes to jobs that are being started, to stdin reserved for the embedder, and behind a push
//! whose tool has disconnected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::thread;

use iof_engine::{App, Engine, Stdin};
use iof_proto::directive::key;
use iof_proto::{PartialCause, PushReport, Rank, Status};
use iof_testing::engine::stdins::*;
use iof_testing::engine::{session, spec};
use iof_tool::PushError;

const RANKS: u32 = 100;

fn spawn(engine: &Engine, own: &[u32]) {
    let mut job = spec([App::new("cat", [""; 0]).ranks(RANKS)]);
    job.stdin = BTreeMap::from([(Rank::WILDCARD, Stdin::Pipe)]);
    job.own_stdin = own.iter().copied().map(Rank).collect();
    engine.spawn(&job).unwrap();
}

#[test]
fn a_push_to_a_starting_job_reaches_all_its_ranks() {
    let engine = engine_with_cache(65_536);
    let (mut for_all, mut for_last) = (tool(&engine), tool(&engine));
    thread::scope(|scope| {
        scope.spawn(|| spawn(&engine, &[]));
        let last = scope.spawn(move || {
            loop {
                match for_last.push(&push_to(procs(&[RANKS - 1])), b"hello\n", |_| {}) {
                    Ok(report) => return report,
                    Err(error) => assert_eq!(refusal::<()>(Err(error)).status, Status::ERR_NOT_FOUND),
                }
            }
        });
        let all = loop {
            match for_all.push(&push_to(iof_testing::engine::stdins::all_ranks()), b"hello\n", |_| {}) {
                Ok(report) => break report,
                // The job does not exist yet.
                Err(error) => assert_eq!(refusal::<()>(Err(error)).status, Status::ERR_NOT_FOUND),
            }
        };
        assert_eq!(all, complete_report(6, RANKS.into()));
        assert_eq!(last.join().unwrap(), complete_report(6, 1));
    });
}

#[test]
fn tools_from_outside_cannot_push_to_the_embedders_own_stdin() {
    let (engine, _directory) = session(iof_engine::Config::default());
    spawn(&engine, &[0]);
    let mut outside = iof_tool::Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let refused = refusal(outside.push(&push_to(procs(&[0, 1])), b"foreign", |_| {}));
    assert!(refused.reason.contains("rank 0: reads the stdin of the command"), "{refused}");
    assert_eq!(outside.push(&push_to(procs(&[1])), b"foreign", |_| {}).unwrap(), complete_report(7, 1));
    assert_eq!(push(&engine, &push_to(procs(&[0])), b"own"), complete_report(3, 1));
}

#[test]
fn a_dropping_push_cuts_off_a_rank_stalled_by_a_disconnected_tools_push() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 2);
    let mut first = tool(&engine);
    let granted = first.begin_push(&push_to(procs(&[0])), None).unwrap();
    // More than the pipe holds.
    for _ in 0..4 {
        let n = first.push_room(granted.push).len();
        first.fill(granted.push, n, false).unwrap();
        ranks.wait_for_bytes(0);
        while first.push_room(granted.push).is_empty()
            && first.slow_targets(granted.push, None).unwrap().position == 0
        {}
    }
    drop(first);
    let pushed =
        tool(&engine).push(&push_with(procs(&[0, 1]), &[key::PMIX_IOF_DROP_NEWEST]), b"after", |_| {});
    let expected =
        PushReport { bytes: 5, complete: 1, partial: vec![partial_delivery(0, 0, PartialCause::Closed)] };
    assert!(
        matches!(&pushed, Ok(report) if *report == expected),
        "{:?}",
        pushed.map_err(|error: PushError| error)
    );
    assert_eq!(ranks.read(1, 5), b"after");
    assert!(ranks.rest(0).len() >= 65_536, "the bytes in its pipe, then the end");
}
