//! A tool that pushes and keeps to no rule costs itself its connection, and nobody else a byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use common::raw::Raw;
use common::stdins::*;
use common::wait_for;
use iof_engine::{Config, Engine, Rendezvous};
use iof_proto::directive::key;
use iof_proto::limits::MAX_PUSH_BYTES_PER_PROCESS;
use iof_proto::query::key as query;
use iof_proto::{FromTool, Info, Query, Status, ToTool};
use iof_tool::{Push, Tool};
use tempfile::TempDir;

fn engine() -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config { rendezvous, cache_size: 65_536, ..Config::default() };
    (Engine::start(config).unwrap(), directory)
}

fn complete() -> Vec<Info> {
    vec![Info::required(key::PMIX_IOF_COMPLETE, true)]
}

/// That a well-behaved tool can push to this rank, of which nobody has pushed the end.
fn assert_serves(engine: &Engine, ranks: &mut Stdins, rank: u32) {
    let bytes = pattern(50_000);
    assert_eq!(push(engine, &last(procs(&[rank])), &bytes), whole(bytes.len(), 1));
    assert!(ranks.rest(rank as usize) == bytes);
}

#[test]
fn who_says_more_than_there_is_room_for_is_let_go_and_what_came_before_arrives() {
    for too_much in [65_536 - 4, u64::MAX] {
        let (engine, _directory) = engine();
        let mut ranks = Stdins::of(&engine, 2);
        let mut raw = Raw::connect(&engine);
        let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
        inlet.write_all_at(b"whole", 0).unwrap();
        raw.fill(granted.push, 5, false);
        raw.fill(granted.push, too_much, false);
        raw.until_dismissed();
        assert_eq!(ranks.rest(0), b"whole");
        assert_serves(&engine, &mut ranks, 1);
    }
}

#[test]
fn who_fills_with_nothing_is_let_go_and_what_came_before_arrives() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 2);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    inlet.write_all_at(b"something", 0).unwrap();
    raw.fill(granted.push, 9, false);
    raw.fill(granted.push, 0, false);
    raw.until_dismissed();
    assert_eq!(ranks.rest(0), b"something");
    assert_serves(&engine, &mut ranks, 1);
}

#[test]
fn a_push_that_is_over_has_no_memory_though_its_tool_keeps_the_inlet() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 1);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    let blocks = || inlet.metadata().unwrap().blocks();
    assert!(blocks() > 0);
    raw.fill(granted.push, 100, true);
    assert_eq!(ranks.rest(0), [0; 100]);
    wait_for("the memory", || (blocks() == 0).then_some(()));
}

#[test]
fn who_goes_on_behind_the_end_is_let_go_and_the_end_stays_where_it_was() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 2);
    // So that the push is not over when the bytes behind its end come.
    let before = pushing(&engine, &to(procs(&[0])), vec![b'x'; 200_000]);
    ranks.wait_for_bytes(0);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    inlet.write_all_at(b"end, and more", 0).unwrap();
    raw.fill(granted.push, 3, true);
    raw.fill(granted.push, 10, true);
    raw.until_dismissed();
    assert_eq!(ranks.read(0, 200_000), vec![b'x'; 200_000]);
    assert_eq!((before.report(), ranks.rest(0)), (whole(200_000, 1), b"end".to_vec()));
    assert_serves(&engine, &mut ranks, 1);
}

#[test]
fn who_fills_a_push_that_never_was_is_let_go_and_one_that_is_over_is_no_offence() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 3);
    for never in [0, 2, u32::MAX] {
        let mut raw = Raw::connect(&engine);
        let (granted, _inlet) = raw.begin_push(procs(&[0]), vec![]).unwrap();
        assert_eq!(granted.push, 1);
        raw.fill(never, 0, false);
        raw.until_dismissed();
    }
    let mut raw = Raw::connect(&engine);
    let (granted, _inlet) = raw.begin_push(procs(&[1]), complete()).unwrap();
    raw.fill(granted.push, 0, true);
    while !matches!(raw.receive(), ToTool::Pushed { push: 1, .. }) {}
    // It might not have heard of the end yet.
    raw.fill(granted.push, 1, false);
    raw.send(&FromTool::SlowTargets { request: 9, push: granted.push, cut_off: Some(u64::MAX) });
    raw.send(&FromTool::SlowTargets { request: 9, push: 77, cut_off: None });
    raw.until_heard();
    assert_serves(&engine, &mut ranks, 0);
    assert_serves(&engine, &mut ranks, 2);
}

#[test]
fn no_tool_cuts_off_who_reads_or_whose_turn_it_is_not() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 1);
    let first = pushing(&engine, &to(procs(&[0])), vec![b'x'; 200_000]);
    ranks.wait_for_bytes(0);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), vec![]).unwrap();
    inlet.write_all_at(b"later", 0).unwrap();
    raw.fill(granted.push, 5, true);
    raw.send(&FromTool::SlowTargets { request: 9, push: granted.push, cut_off: Some(u64::MAX) });
    raw.until_heard();
    assert_eq!(ranks.read(0, 200_000), vec![b'x'; 200_000]);
    assert_eq!(first.report(), whole(200_000, 1));
    assert_eq!(ranks.read(0, 5), b"later");
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn who_asks_without_reading_the_answers_is_not_heard_for_long_and_others_are() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 2);
    let mut flooding = Raw::connect(&engine);
    let (granted, _inlet) = flooding.begin_push(procs(&[0]), vec![]).unwrap();
    let unknown = FromTool::Push { request: 1, targets: procs(&[9]), size: None, directives: vec![] };
    let lagging = FromTool::SlowTargets { request: 1, push: granted.push, cut_off: None };
    for message in [&unknown, &lagging] {
        let heard = flooding.flood(message);
        assert!(heard < 1 << 20, "{heard} bytes of requests were heard");
        let bytes = pattern(30_000);
        assert_eq!(push(&engine, &to(procs(&[1])), &bytes), whole(bytes.len(), 1));
        assert!(ranks.read(1, bytes.len()) == bytes);
    }
    drop(flooding);
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn a_tool_that_reads_no_answers_is_still_heard_where_it_waits_for_none() {
    let (engine, _directory) = engine();
    // So that answers are long.
    let mut ranks = Stdins::of(&engine, 100);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    inlet.write_all_at(b"handed over", 0).unwrap();
    for request in 0..200 {
        raw.send(&FromTool::Query { request, queries: vec![Query::new([query::IOF_STATS])] });
    }
    raw.fill(granted.push, 11, true);
    assert_eq!(ranks.rest(0), b"handed over");
    assert!(
        (0..200).all(|request| raw.next_answer() == request),
        "and then every request is answered, in order"
    );
}

#[test]
fn of_a_tool_that_dies_with_its_answers_unread_all_arrives_that_it_handed_over() {
    let (engine, _directory) = engine();
    // So that answers are long.
    let mut ranks = Stdins::of(&engine, 100);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    inlet.write_all_at(b"handed over", 0).unwrap();
    // More than a socket holds, so the engine hears what comes behind these only after the tool's end.
    for request in 0..200 {
        raw.send(&FromTool::Query { request, queries: vec![Query::new([query::IOF_STATS])] });
    }
    raw.fill(granted.push, 11, true);
    drop(raw);
    assert_eq!(ranks.rest(0), b"handed over");
}

#[test]
fn who_writes_over_bytes_that_are_on_their_way_changes_those_and_no_others() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 2);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), vec![]).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let scribbler = thread::spawn({
        let (inlet, over) = (inlet.try_clone().unwrap(), Arc::clone(&over));
        move || {
            let mut byte = 0u8;
            while !over.load(Relaxed) {
                byte = byte.wrapping_add(1);
                inlet.write_all_at(&vec![byte; 65_536], 0).unwrap();
            }
        }
    });
    let well_behaved = pushing(&engine, &last(procs(&[1])), pattern(2_000_000));
    let other = ranks.take(1);
    let other = thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut &other, &mut got).unwrap();
        got
    });
    let (mut told, mut filled) = (0, 0);
    while filled < 4_000_000 {
        let room = 65_536 - (filled - told);
        raw.fill(granted.push, room, false);
        filled += room;
        assert_eq!(ranks.read(0, room as usize).len() as u64, room);
        told = loop {
            if let ToTool::Room { position, .. } = raw.receive() {
                break position;
            }
        };
    }
    over.store(true, Relaxed);
    scribbler.join().unwrap();
    assert_eq!(well_behaved.report(), whole(2_000_000, 1));
    assert!(other.join().unwrap() == pattern(2_000_000));
    drop(raw);
    assert_serves(&engine, &mut ranks, 0);
}

#[test]
fn the_file_of_an_inlet_cannot_be_cut_short_under_the_engine() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 1);
    let mut raw = Raw::connect(&engine);
    let (granted, inlet) = raw.begin_push(procs(&[0]), complete()).unwrap();
    assert!(inlet.set_len(0).is_err() && inlet.set_len(1 << 20).is_err());
    // A hole in it is zeros.
    inlet.write_all_at(b"gone", 0).unwrap();
    let flags =
        nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&inlet, flags, 0, 4096).unwrap();
    raw.fill(granted.push, 4, true);
    assert_eq!(ranks.rest(0), [0; 4]);
}

#[test]
fn an_empty_or_endless_list_of_targets_is_refused_and_the_tool_stays() {
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 1);
    let mut raw = Raw::connect(&engine);
    let refused = raw.begin_push(vec![], vec![]).unwrap_err();
    assert_eq!(refused.status, Status::ERR_BAD_PARAM);
    // The same again and again is one.
    let (granted, _inlet) = raw.begin_push(procs(&[0; 1000]), complete()).unwrap();
    raw.fill(granted.push, 0, true);
    assert_eq!(ranks.rest(0), b"");
    loop {
        if let ToTool::Pushed { report, .. } = raw.receive() {
            break assert_eq!(report, whole(0, 1));
        }
    }
}

#[test]
fn one_process_cannot_take_all_memory_for_pushes_not_even_by_leaving_them_behind() {
    const CACHE: u32 = 16 << 20;
    const FIT: usize = (MAX_PUSH_BYTES_PER_PROCESS / CACHE as u64) as usize;
    let (engine, _directory) = engine();
    let mut ranks = Stdins::of(&engine, 2);
    let connect = || Tool::connect(engine.socket().unwrap(), "greedy").unwrap();
    let large = |complete| Push {
        directives: vec![
            Info::required(key::PMIX_IOF_CACHE_SIZE, CACHE),
            Info::required(key::PMIX_IOF_COMPLETE, complete),
        ],
        ..to(procs(&[0]))
    };
    let mut greedy = connect();
    for number in 1..=FIT {
        let push = greedy.begin_push(&large(number == FIT), None).unwrap().push;
        // More than the pipe holds, so it is not over when its tool is gone.
        greedy.fill(push, MORE_THAN_A_PIPE, false).unwrap();
    }
    let other = Push { targets: procs(&[1]), ..large(false) };
    let refused = refusal(greedy.begin_push(&other, None));
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(refused.reason.contains("67108864"), "{refused}");
    drop(greedy);
    let mut again = connect();
    assert_eq!(refusal(again.begin_push(&other, None)).status, Status::ERR_OUT_OF_RESOURCE);
    // The embedder is another matter, and so are other processes.
    assert_eq!(push(&engine, &other, b"own"), whole(3, 1));
    assert_eq!(ranks.rest(0).len(), FIT * MORE_THAN_A_PIPE);
    wait_for("the pushes to be over", || again.begin_push(&other, None).ok());
}
