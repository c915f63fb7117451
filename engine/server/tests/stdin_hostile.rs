//! A tool that pushes and breaks the rules loses its own connection. No other tool loses a byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use iof_engine::{Config, Engine};
use iof_proto::directive::key;
use iof_proto::limits::MAX_PUSH_BYTES_PER_PROCESS;
use iof_proto::query::key as query;
use iof_proto::{FromTool, Info, PushGranted, Query, Status, ToTool};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::stdins::*;
use iof_testing::engine::{changed, session};
use iof_testing::noise::pattern;
use iof_testing::wait_for;
use iof_tool::{Push, Tool};
use tempfile::TempDir;

fn engine() -> (Engine, TempDir) {
    session(changed(Config::default(), |config| config.cache_size = Some(65_536)))
}

fn complete() -> Vec<Info> {
    vec![Info::required(key::PMIX_IOF_COMPLETE, true)]
}

/// A tool that has begun a push to rank 0.
struct Attack {
    ranks: Stdins,
    raw: RawTool,
    granted: PushGranted,
    inlet: File,
    engine: Engine,
    _directory: TempDir,
}

/// Starts an engine with a job of `ranks` ranks, and begins a push with these directives.
fn attack(ranks: u32, directives: Vec<Info>) -> Attack {
    let (engine, _directory) = engine();
    let ranks = Stdins::adopt(&engine, ranks);
    let mut raw = RawTool::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), directives).unwrap();
    Attack { ranks, raw, granted, inlet, engine, _directory }
}

/// Asserts that a well-behaved tool can push to this rank, whose end was not pushed yet.
fn assert_serves(engine: &Engine, ranks: &mut Stdins, rank: u32) {
    let bytes = pattern(50_000);
    assert_eq!(push(engine, &final_push(procs(&[rank])), &bytes), complete_report(bytes.len(), 1));
    assert!(ranks.rest(rank as usize) == bytes);
}

#[test]
fn filling_more_than_the_credit_ends_the_connection_and_earlier_bytes_arrive() {
    for too_much in [65_536 - 4, u64::MAX] {
        let Attack { engine, mut ranks, mut raw, granted, inlet, _directory } = attack(2, complete());
        inlet.write_all_at(b"whole", 0).unwrap();
        raw.fill(granted.push, 5, false);
        raw.fill(granted.push, too_much, false);
        raw.wait_for_disconnect();
        assert_eq!(ranks.rest(0), b"whole");
        assert_serves(&engine, &mut ranks, 1);
    }
}

#[test]
fn an_empty_fill_ends_the_connection_and_earlier_bytes_arrive() {
    let Attack { engine, mut ranks, mut raw, granted, inlet, _directory } = attack(2, complete());
    inlet.write_all_at(b"something", 0).unwrap();
    raw.fill(granted.push, 9, false);
    raw.fill(granted.push, 0, false);
    raw.wait_for_disconnect();
    assert_eq!(ranks.rest(0), b"something");
    assert_serves(&engine, &mut ranks, 1);
}

#[test]
fn an_ended_push_has_no_memory_even_if_its_tool_keeps_the_inlet() {
    let Attack { engine: _engine, mut ranks, mut raw, granted, inlet, _directory } = attack(1, complete());
    let blocks = || inlet.metadata().unwrap().blocks();
    assert!(blocks() > 0);
    raw.fill(granted.push, 100, true);
    assert_eq!(ranks.rest(0), [0; 100]);
    wait_for("the memory", || (blocks() == 0).then_some(()));
}

#[test]
fn filling_after_the_end_ends_the_connection_and_the_end_remains() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::adopt(&engine, 2);
    // So that the push has not ended when the bytes after its end arrive.
    let before = pushing(&engine, &push_to(procs(&[0])), vec![b'x'; 200_000]);
    ranks.wait_for_bytes(0);
    let mut raw = RawTool::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    inlet.write_all_at(b"end, and more", 0).unwrap();
    raw.fill(granted.push, 3, true);
    raw.fill(granted.push, 10, true);
    raw.wait_for_disconnect();
    assert_eq!(ranks.read(0, 200_000), vec![b'x'; 200_000]);
    assert_eq!((before.report(), ranks.rest(0)), (complete_report(200_000, 1), b"end".to_vec()));
    assert_serves(&engine, &mut ranks, 1);
}

#[test]
fn filling_a_push_that_never_existed_is_an_error_but_not_one_that_has_ended() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::adopt(&engine, 3);
    for unknown in [0, 2, u32::MAX] {
        let mut raw = RawTool::connect(&engine);
        let (granted, _inlet) = raw.begin_push(procs(&[0]), vec![]).unwrap();
        assert_eq!(granted.push, 1);
        raw.fill(unknown, 0, false);
        raw.wait_for_disconnect();
    }
    let mut raw = RawTool::connect(&engine);
    let (granted, _inlet) = raw.begin_push(procs(&[1]), complete()).unwrap();
    raw.fill(granted.push, 0, true);
    while !matches!(raw.receive(), ToTool::Pushed { push: 1, .. }) {}
    // The tool may not have received the end yet.
    raw.fill(granted.push, 1, false);
    raw.send(&FromTool::SlowTargets { request: 9, push: granted.push, cut_off: Some(u64::MAX) });
    raw.send(&FromTool::SlowTargets { request: 9, push: 77, cut_off: None });
    raw.sync();
    assert_serves(&engine, &mut ranks, 0);
    assert_serves(&engine, &mut ranks, 2);
}

#[test]
fn a_tool_cannot_cut_off_a_rank_that_reads_or_at_which_it_has_no_turn() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::adopt(&engine, 1);
    let first = pushing(&engine, &push_to(procs(&[0])), vec![b'x'; 200_000]);
    ranks.wait_for_bytes(0);
    let mut raw = RawTool::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), vec![]).unwrap();
    inlet.write_all_at(b"later", 0).unwrap();
    raw.fill(granted.push, 5, true);
    raw.send(&FromTool::SlowTargets { request: 9, push: granted.push, cut_off: Some(u64::MAX) });
    raw.sync();
    assert_eq!(ranks.read(0, 200_000), vec![b'x'; 200_000]);
    assert_eq!(first.report(), complete_report(200_000, 1));
    assert_eq!(ranks.read(0, 5), b"later");
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn requests_without_reading_the_answers_are_deferred_and_others_are_served() {
    let Attack { engine, mut ranks, raw: mut flooding, granted, inlet: _inlet, _directory } =
        attack(2, vec![]);
    let unknown = FromTool::Push { request: 1, targets: procs(&[9]), size: None, directives: vec![] };
    let lagging = FromTool::SlowTargets { request: 1, push: granted.push, cut_off: None };
    for message in [&unknown, &lagging] {
        let read = flooding.flood(message);
        assert!(read < 1 << 20, "{read} bytes of requests were read");
        let bytes = pattern(30_000);
        assert_eq!(push(&engine, &push_to(procs(&[1])), &bytes), complete_report(bytes.len(), 1));
        assert!(ranks.read(1, bytes.len()) == bytes);
    }
    drop(flooding);
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn a_tool_that_reads_no_answers_is_still_served_where_it_needs_none() {
    // Many ranks make the answers long.
    let Attack { engine: _engine, mut ranks, mut raw, granted, inlet, _directory } = attack(100, complete());
    inlet.write_all_at(b"handed over", 0).unwrap();
    for request in 0..200 {
        raw.send(&FromTool::Query { request, queries: vec![Query::new([query::IOF_QUERY_STATS])] });
    }
    raw.fill(granted.push, 11, true);
    assert_eq!(ranks.rest(0), b"handed over");
    assert!((0..200).all(|request| raw.next_answer() == request), "then every request is answered, in order");
}

#[test]
fn bytes_filled_by_a_tool_that_dies_with_unread_answers_arrive() {
    // Many ranks make the answers long.
    let Attack { engine: _engine, mut ranks, mut raw, granted, inlet, _directory } = attack(100, complete());
    inlet.write_all_at(b"handed over", 0).unwrap();
    // These are more than a socket holds, so the engine reads what follows only after the tool's
    // end.
    for request in 0..200 {
        raw.send(&FromTool::Query { request, queries: vec![Query::new([query::IOF_QUERY_STATS])] });
    }
    raw.fill(granted.push, 11, true);
    drop(raw);
    assert_eq!(ranks.rest(0), b"handed over");
}

#[test]
fn overwriting_filled_bytes_changes_only_those_bytes() {
    let Attack { engine, mut ranks, mut raw, granted, inlet, _directory } = attack(2, vec![]);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = thread::spawn({
        let (inlet, stop) = (inlet.try_clone().unwrap(), Arc::clone(&stop));
        move || {
            let mut byte = 0u8;
            while !stop.load(Relaxed) {
                byte = byte.wrapping_add(1);
                inlet.write_all_at(&vec![byte; 65_536], 0).unwrap();
            }
        }
    });
    let well_behaved = pushing(&engine, &final_push(procs(&[1])), pattern(2_000_000));
    let other = ranks.take(1);
    let other = thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut &other, &mut got).unwrap();
        got
    });
    let (mut credited, mut filled) = (0, 0);
    while filled < 4_000_000 {
        let room = 65_536 - (filled - credited);
        raw.fill(granted.push, room, false);
        filled += room;
        assert_eq!(ranks.read(0, room as usize).len() as u64, room);
        credited = loop {
            if let ToTool::Room { position, .. } = raw.receive() {
                break position;
            }
        };
    }
    stop.store(true, Relaxed);
    scribbler.join().unwrap();
    assert_eq!(well_behaved.report(), complete_report(2_000_000, 1));
    assert!(other.join().unwrap() == pattern(2_000_000));
    drop(raw);
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn the_file_of_an_inlet_cannot_be_truncated_under_the_engine() {
    let Attack { engine: _engine, mut ranks, mut raw, granted, inlet, _directory } = attack(1, complete());
    assert!(inlet.set_len(0).is_err() && inlet.set_len(1 << 20).is_err());
    // A hole in the file reads as zeros.
    inlet.write_all_at(b"gone", 0).unwrap();
    let flags =
        nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&inlet, flags, 0, 4096).unwrap();
    raw.fill(granted.push, 4, true);
    assert_eq!(ranks.rest(0), [0; 4]);
}

#[test]
fn an_empty_list_of_targets_is_refused_and_duplicates_count_once() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::adopt(&engine, 1);
    let mut raw = RawTool::connect(&engine);
    let refused = raw.begin_push(vec![], vec![]).unwrap_err();
    assert_eq!(refused.status, Status::ERR_BAD_PARAM);
    // Repeated targets count once.
    let (granted, _inlet) = raw.begin_push(procs(&[0; 1000]), complete()).unwrap();
    raw.fill(granted.push, 0, true);
    assert_eq!(ranks.rest(0), b"");
    loop {
        if let ToTool::Pushed { report, .. } = raw.receive() {
            break assert_eq!(report, complete_report(0, 1));
        }
    }
}

#[test]
fn the_memory_of_one_processs_pushes_is_limited_even_if_it_leaves_them_behind() {
    const CACHE: u32 = 16 << 20;
    const FIT: usize = MAX_PUSH_BYTES_PER_PROCESS / CACHE as usize;
    let (engine, _directory) = engine();
    let mut ranks = Stdins::adopt(&engine, 2);
    let connect = || Tool::connect(engine.socket().unwrap(), "greedy").unwrap();
    let large = |complete| Push {
        directives: vec![
            Info::required(key::PMIX_IOF_CACHE_SIZE, CACHE),
            Info::required(key::PMIX_IOF_COMPLETE, complete),
        ],
        ..push_to(procs(&[0]))
    };
    let mut greedy = connect();
    for number in 1..=FIT {
        let push = greedy.begin_push(&large(number == FIT), None).unwrap().push;
        // More than the pipe holds, so the push does not end when its tool disconnects.
        greedy.fill(push, MORE_THAN_A_PIPE, false).unwrap();
    }
    let other = Push { targets: procs(&[1]), ..large(false) };
    let refused = refusal(greedy.begin_push(&other, None));
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(refused.reason.contains("67108864"), "{refused}");
    drop(greedy);
    let mut again = connect();
    assert_eq!(refusal(again.begin_push(&other, None)).status, Status::ERR_OUT_OF_RESOURCE);
    // The limit does not apply to the embedder.
    assert_eq!(push(&engine, &other, b"own"), complete_report(3, 1));
    assert_eq!(ranks.rest(0).len(), FIT * MORE_THAN_A_PIPE);
    wait_for("the pushes to end", || again.begin_push(&other, None).ok());
}
