//! Jobs that use one name one after the other, and registrations that outlive them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{Config, Engine, Grant};
use iof_output::{Options, Output, Printer};
use iof_proto::limits::{MAX_FORGOTTEN_PER_TOOL, MAX_READERS_PER_TOOL, MAX_REGISTRATIONS_PER_TOOL};
use iof_proto::query::key::PMIX_QUERY_NAMESPACES;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_shm_ring::MAX_SLOTS;
use iof_testing::TIMEOUT;
use iof_testing::engine::stdins::engine_with_cache;
use iof_testing::engine::streams::{Pipes, all_of};
use iof_testing::engine::{engine, session, wait};
use iof_tool::{Delivery, Pull, RequestError, Tool};

fn persistent(channels: Channels) -> Pull {
    Pull { persistent: true, ..Pull::new(vec![all_of("job")], channels) }
}

fn name() -> Nspace {
    Nspace::new("job").unwrap()
}

/// Starts an engine that tools outside this process can find.
/// Runs a job `job` of one rank that writes `line`, and removes it.
fn run(engine: &Engine, line: &str) {
    let pipes = Pipes::adopt(engine, "job", 1);
    pipes.write(0, line.as_bytes());
    wait(&pipes.end(0));
    assert!(engine.remove(&name()));
}

/// Removes the job `job` once it has ended. There are too many of these jobs to sleep for each.
fn remove(engine: &Engine) {
    let deadline = Instant::now() + TIMEOUT;
    while !engine.remove(&name()) {
        assert!(Instant::now() < deadline, "timed out waiting for the end of the job");
        thread::yield_now();
    }
}

/// Reads until `jobs` jobs have ended. Returns the bytes, and the runs in the order of their ends.
fn take(tool: &mut Tool, jobs: usize) -> (String, Vec<u64>) {
    let (mut bytes, mut runs) = (Vec::new(), Vec::new());
    while runs.len() < jobs {
        match tool.recv_timeout(TIMEOUT).unwrap().expect("expected more deliveries") {
            Delivery::Bytes(got) => bytes.extend_from_slice(&got),
            Delivery::JobEnded { run, .. } => runs.push(run),
            Delivery::Complete { counts, .. } => assert_eq!(counts.lost, 0),
            other => panic!("{other:?}"),
        }
    }
    (String::from_utf8(bytes).unwrap(), runs)
}

#[test]
fn a_persistent_registration_receives_every_job_of_a_reused_name() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    let lines: Vec<String> = (0..20).map(|job| format!("line of job {job}\n")).collect();
    lines.iter().for_each(|line| run(&engine, line));
    let (bytes, runs) = take(&mut tool, lines.len());
    assert_eq!(bytes, lines.concat());
    assert!(runs.is_sorted_by(|one, next| one < next), "{runs:?}");
    assert!(!tool.is_done());
    assert!(tool.try_recv().unwrap().is_none());
}

#[test]
fn a_tool_sleeps_between_two_jobs_of_a_reused_name() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    run(&engine, "first\n");
    take(&mut tool, 1);
    let before = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    let waits = (0..20).filter(|_| tool.recv_timeout(Duration::from_millis(10)).unwrap().is_none()).count();
    let after = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    assert_eq!(waits, 20);
    assert!(Duration::from(after - before) < Duration::from_millis(100), "the tool spins");
    run(&engine, "second\n");
    assert_eq!(take(&mut tool, 1).0, "second\n");
}

#[test]
fn a_persistent_printer_prints_every_job_until_the_engine_ends() {
    let engine = engine();
    let mut tool = engine.attach("printer", Grant::Block).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Output::new(file.as_file()).unwrap();
    let printer = Printer::start(tool, output, Options::default(), |_, _, _| {}).unwrap();
    let lines: Vec<String> = (0..50).map(|job| format!("line of job {job}\n")).collect();
    for line in &lines {
        let pipes = Pipes::adopt(&engine, "job", 1);
        pipes.write(0, line.as_bytes());
        let job = pipes.end(0);
        wait(&job);
        assert!(job.flush(Some(TIMEOUT)));
        assert!(engine.remove(&name()));
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
    assert!(tool.recv().unwrap().is_none() && tool.is_done());
}

#[test]
fn registrations_of_ended_jobs_count_towards_no_limit() {
    let (engine, _directory) = session(Config::default());
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let other = Pull { persistent: true, ..Pull::new(vec![all_of("other")], Channels::STDOUT) };
    (1..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| drop(tool.pull(&other).unwrap()));
    for _ in 0..3 {
        tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
        run(&engine, "line\n");
        take(&mut tool, 1);
    }
    tool.pull(&other).unwrap();
    let refused = tool.pull(&other).unwrap_err();
    let RequestError::Denied(failure) = refused else { panic!("{refused}") };
    assert!(failure.reason.contains(&MAX_REGISTRATIONS_PER_TOOL.to_string()), "{failure}");
}

#[test]
fn the_readers_of_a_tool_on_one_stream_are_limited_and_the_loss_is_reported() {
    let (engine, _directory) = session(Config::default());
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    (0..=MAX_READERS_PER_TOOL).for_each(|_| drop(tool.pull(&persistent(Channels::STDOUT)).unwrap()));
    let pipes = Pipes::adopt(&engine, "job", 1);
    let RequestError::Denied(failure) = tool.pull(&persistent(Channels::STDOUT)).unwrap_err() else {
        panic!("not denied");
    };
    assert!(failure.reason.contains(&MAX_READERS_PER_TOOL.to_string()), "{failure}");
    pipes.write(0, b"a line\n");
    wait(&pipes.end(0));
    let (mut bytes, mut missed) = (0, None);
    while bytes < 7 * MAX_READERS_PER_TOOL || missed.is_none() {
        match tool.recv_timeout(TIMEOUT).unwrap().expect("expected more deliveries") {
            Delivery::Bytes(got) => bytes += got.len(),
            Delivery::Missed { missed: lost, .. } => missed = Some((lost.rank, lost.streams, lost.bytes)),
            _ => {}
        }
    }
    assert_eq!((bytes, missed), (7 * MAX_READERS_PER_TOOL, Some((Rank(0), 1, 7))));
}

/// Has one tool read more streams of jobs `job` than it has slots.
fn read_more_streams_than_slots(engine: &Engine, tool: &mut Tool) {
    const RANKS: usize = 200;
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    for job in 0..MAX_SLOTS / RANKS + 2 {
        for rank in 0..RANKS {
            let from = Proc::new(name(), Rank(u32::try_from(rank).unwrap()));
            engine.deliver(&from, Channel::Stdout, vec![b'x'; 10], &[], || {}).unwrap();
        }
        assert!(engine.end_job(&name(), Some(0)));
        assert_eq!(take(tool, 1).0.len(), 10 * RANKS, "job {job}");
        remove(engine);
    }
}

#[test]
fn a_tool_in_this_process_can_read_more_streams_than_it_has_slots() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    read_more_streams_than_slots(&engine, &mut tool);
}

#[test]
fn a_tool_from_outside_can_read_more_streams_than_it_has_slots() {
    let (engine, _directory) = session(Config::default());
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    read_more_streams_than_slots(&engine, &mut tool);
}

/// The output that a tool received of jobs `job`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    jobs: u64,
    streams: u64,
    bytes: u64,
    /// The number of ended jobs that were reported only in sum.
    skipped: u64,
    missed_streams: u64,
    missed_bytes: u64,
}

/// Reads until `jobs` jobs have ended.
fn account(tool: &mut Tool, jobs: u64) -> Account {
    let mut account = Account::default();
    while account.jobs < jobs {
        match tool.recv_timeout(TIMEOUT).unwrap().expect("expected more deliveries") {
            Delivery::Bytes(got) => account.bytes += got.len() as u64,
            Delivery::Complete { counts, .. } => {
                assert_eq!(counts.lost, 0);
                account.streams += 1;
            }
            Delivery::Missed { missed, .. } => {
                assert_eq!((&missed.nspace, missed.channel), (&name(), Channel::Stdout));
                account.streams += missed.streams;
                account.missed_streams += missed.streams;
                account.bytes += missed.bytes;
                account.missed_bytes += missed.bytes;
            }
            Delivery::JobEnded { skipped, .. } => {
                account.jobs += 1 + skipped;
                account.skipped += skipped;
            }
            other => panic!("{other:?}"),
        }
    }
    account
}

/// Runs jobs `job` of three ranks that write ten bytes each, and removes them.
fn run_many(engine: &Engine, jobs: u64, mut after: impl FnMut()) {
    for _ in 0..jobs {
        for rank in 0..3 {
            let from = Proc::new(name(), Rank(rank));
            engine.deliver(&from, Channel::Stdout, vec![b'x'; 10], &[], || {}).unwrap();
        }
        assert!(engine.end_job(&name(), Some(0)));
        remove(engine);
        after();
    }
}

/// Asserts that a tool which has read everything receives another job completely.
fn assert_has_room(engine: &Engine, tool: &mut Tool) {
    assert!(tool.try_recv().unwrap().is_none());
    tool.query(&[PMIX_QUERY_NAMESPACES]).expect("the engine knows what the tool has read");
    run(engine, "there is room again\n");
    assert_eq!(take(tool, 1).0, "there is room again\n");
}

fn engine_with_small_caches() -> Engine {
    engine_with_cache(16 * 1024)
}

#[test]
fn a_tool_that_does_not_read_learns_how_much_of_removed_jobs_it_misses() {
    const JOBS: u64 = 2 * MAX_FORGOTTEN_PER_TOOL as u64;
    let engine = engine_with_small_caches();
    let mut tool = engine.attach("stopped", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    run_many(&engine, JOBS, || {});
    let got = account(&mut tool, JOBS);
    assert_eq!((got.jobs, got.streams, got.bytes), (JOBS, 3 * JOBS, 30 * JOBS), "{got:?}");
    assert_eq!(got.missed_bytes, 10 * got.missed_streams);
    assert!(got.missed_streams > 0 && got.skipped > 0, "{got:?}");
    assert!(3 * JOBS - got.missed_streams <= MAX_FORGOTTEN_PER_TOOL as u64 + 64, "{got:?}");
    assert_has_room(&engine, &mut tool);
}

#[test]
fn a_tool_that_receives_rings_without_reading_them_learns_what_it_misses() {
    const JOBS: u64 = MAX_FORGOTTEN_PER_TOOL as u64;
    let engine = engine_with_small_caches();
    let mut tool = engine.attach("slow", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    run_many(&engine, JOBS, || drop(tool.query(&[PMIX_QUERY_NAMESPACES]).unwrap()));
    let got = account(&mut tool, JOBS);
    assert_eq!((got.jobs, got.streams, got.bytes), (JOBS, 3 * JOBS, 30 * JOBS), "{got:?}");
    assert!(got.missed_streams > 0, "{got:?}");
    assert_has_room(&engine, &mut tool);
}

#[test]
fn a_tool_that_does_not_read_costs_another_tool_nothing() {
    const JOBS: u64 = 2 * MAX_FORGOTTEN_PER_TOOL as u64 / 3;
    let engine = engine_with_small_caches();
    let mut stopped = engine.attach("stopped", Grant::Never).unwrap();
    stopped.pull(&persistent(Channels::STDOUT)).unwrap();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&persistent(Channels::STDOUT)).unwrap();
    let mut all = Account::default();
    run_many(&engine, JOBS, || {
        let got = account(&mut tool, 1);
        all = Account {
            jobs: all.jobs + got.jobs,
            streams: all.streams + got.streams,
            bytes: all.bytes + got.bytes,
            skipped: all.skipped + got.skipped,
            missed_streams: all.missed_streams + got.missed_streams,
            missed_bytes: all.missed_bytes + got.missed_bytes,
        };
    });
    let complete = Account { jobs: JOBS, streams: 3 * JOBS, bytes: 30 * JOBS, ..Account::default() };
    assert_eq!(all, complete);
    let got = account(&mut stopped, JOBS);
    assert_eq!((got.jobs, got.streams, got.bytes), (JOBS, 3 * JOBS, 30 * JOBS), "{got:?}");
}
