//! Jobs that have one name one after the other, and registrations that outlive them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::streams::{Pipes, all_of};
use common::{PATIENCE, engine, wait, wait_for};
use iof_engine::{Config, Engine, Grant, Rendezvous};
use iof_output::{Options, Output, Printer};
use iof_proto::limits::MAX_REGISTRATIONS_PER_TOOL;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_shm_ring::MAX_SLOTS;
use iof_tool::{Delivery, Pull, RequestError, Tool};

fn persistent(channels: Channels) -> Pull {
    Pull { persistent: true, ..Pull::new(vec![all_of("job")], channels) }
}

fn name() -> Nspace {
    Nspace::new("job").unwrap()
}

/// Runs a job called `job` of one rank, which writes `line`, and forgets it.
fn run(engine: &Engine, line: &str) {
    let pipes = Pipes::of(engine, "job", 1);
    pipes.write(0, line.as_bytes());
    wait(&pipes.end(0));
    assert!(engine.forget(&name()));
}

/// Takes what comes until `jobs` have ended; returns the bytes and the runs, in the order of their ends.
fn take(tool: &mut Tool, jobs: usize) -> (String, Vec<u64>) {
    let (mut bytes, mut runs) = (Vec::new(), Vec::new());
    while runs.len() < jobs {
        match tool.next(Some(PATIENCE)).unwrap().expect("more is to come") {
            Delivery::Bytes(got) => bytes.extend_from_slice(&got),
            Delivery::JobEnded { run, .. } => runs.push(run),
            Delivery::Complete { counts, .. } => assert_eq!(counts.lost, 0),
            other => panic!("{other:?}"),
        }
    }
    (String::from_utf8(bytes).unwrap(), runs)
}

#[test]
fn a_persistent_registration_gets_each_line_and_each_end_of_a_name_used_again() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    let lines: Vec<String> = (0..20).map(|job| format!("line of job {job}\n")).collect();
    lines.iter().for_each(|line| run(&engine, line));
    let (bytes, runs) = take(&mut tool, lines.len());
    assert_eq!(bytes, lines.concat());
    assert!(runs.is_sorted_by(|one, next| one < next), "{runs:?}");
    assert!(!tool.is_done());
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
}

#[test]
fn a_tool_that_waits_between_two_jobs_of_a_name_sleeps() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    run(&engine, "first\n");
    take(&mut tool, 1);
    let before = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    let waits = (0..20).filter(|_| tool.next(Some(Duration::from_millis(10))).unwrap().is_none()).count();
    let after = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    assert_eq!(waits, 20);
    assert!(Duration::from(after - before) < Duration::from_millis(100), "it spins");
    run(&engine, "second\n");
    assert_eq!(take(&mut tool, 1).0, "second\n");
}

#[test]
fn a_printer_of_a_persistent_registration_prints_every_job_until_the_engine_ends() {
    let engine = engine();
    let mut tool = engine.attach("printer", Grant::Block).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Output::new(file.as_file()).unwrap();
    let printer = Printer::start(tool, output, Options::default(), |_, _, _| {}).unwrap();
    let lines: Vec<String> = (0..50).map(|job| format!("line of job {job}\n")).collect();
    for line in &lines {
        let pipes = Pipes::of(&engine, "job", 1);
        pipes.write(0, line.as_bytes());
        let job = pipes.end(0);
        wait(&job);
        assert!(job.flush(Some(PATIENCE)));
        assert!(engine.forget(&name()));
    }
    drop(engine);
    assert_eq!(printer.join().unwrap().unfinished, 0);
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), lines.concat());
}

#[test]
fn a_registration_that_is_not_persistent_ends_with_the_first_job_of_its_name() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    run(&engine, "first\n");
    run(&engine, "second\n");
    assert_eq!(take(&mut tool, 1).0, "first\n");
    assert!(tool.next(None).unwrap().is_none() && tool.is_done());
}

#[test]
fn registrations_of_jobs_that_have_ended_count_towards_no_limit() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    for _ in 0..=2 * MAX_REGISTRATIONS_PER_TOOL {
        tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
        run(&engine, "line\n");
        take(&mut tool, 1);
    }
    for _ in 0..MAX_REGISTRATIONS_PER_TOOL {
        tool.pull(&persistent(Channels::STDOUT)).unwrap();
    }
    let refused = tool.pull(&persistent(Channels::STDOUT)).unwrap_err();
    let RequestError::Denied(failure) = refused else { panic!("{refused}") };
    assert!(failure.reason.contains(&MAX_REGISTRATIONS_PER_TOOL.to_string()), "{failure}");
}

/// Has one tool read more streams of jobs called `job` than it has slots; returns the lines of the last job.
fn read_more_streams_than_slots(engine: &Engine, tool: &mut Tool) {
    const RANKS: usize = 200;
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    for job in 0..MAX_SLOTS / RANKS + 2 {
        for rank in 0..RANKS {
            let from = Proc { nspace: name(), rank: Rank(u32::try_from(rank).unwrap()) };
            engine.deliver(&from, Channel::Stdout, vec![b'x'; 10], &[], || {}).unwrap();
        }
        assert!(engine.end_job(&name(), Some(0)));
        assert_eq!(take(tool, 1).0.len(), 10 * RANKS, "job {job}");
        wait_for("the job to be over", || engine.forget(&name()).then_some(()));
    }
}

#[test]
fn a_tool_within_the_process_reads_more_streams_than_it_has_slots() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    read_more_streams_than_slots(&engine, &mut tool);
}

#[test]
fn a_tool_from_outside_reads_more_streams_than_it_has_slots() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let engine = Engine::start(Config { rendezvous, ..Config::default() }).unwrap();
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    read_more_streams_than_slots(&engine, &mut tool);
}
