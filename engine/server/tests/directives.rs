//! The effect of directives on streams and their readers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;
use std::thread;

use iof_engine::{AdoptSpec, Config, Engine, Exit, Grant, Job, MIN_CACHE_SIZE, Policy, Rendezvous};
use iof_proto::directive::{DirectiveLevel, key};
use iof_proto::query::key as query;
use iof_proto::{Channel, Channels, Directives, Found, Info, Proc, Rank, Status, StreamStats, Value};
use iof_testing::engine::streams::engine_with_policy;
use iof_testing::engine::{Received, adopt_pipe, nspace, puller, reported_rank, session};
use iof_testing::noise::pattern;
use iof_testing::pipes::pipe;
use iof_testing::wait_for;
use iof_tool::{Pull, RequestError, Tool};

const CACHE: usize = 64 * 1024;

fn engine(policy: Policy) -> Engine {
    engine_with_policy(policy, CACHE as u32)
}

fn rank() -> Proc {
    Proc::new(nspace(), Rank(0))
}

fn stdout_stats(tool: &mut Tool) -> StreamStats {
    let found = tool.query(&[query::IOF_QUERY_STATS]).unwrap();
    let Some(Found { value: Value::Streams(streams), .. }) = found.into_iter().next() else {
        panic!("no streams")
    };
    streams.into_iter().find(|stream| stream.channel == Channel::Stdout).unwrap()
}

fn wait_until_read(tool: &mut Tool, bytes: usize) {
    wait_for("the engine to read", || (stdout_stats(tool).produced >= bytes as u64).then_some(()));
}

#[test]
fn directives_at_the_start_set_the_engines_defaults() {
    let mut config = Config::default();
    let ignored = config
        .apply_directives(&[
            Info::required(key::PMIX_IOF_CACHE_SIZE, CACHE as u32),
            Info::required(key::PMIX_IOF_DROP_OLDEST, true),
            Info::new(key::PMIX_FWD_STDOUT, true),
        ])
        .unwrap();
    assert_eq!(ignored, [key::PMIX_FWD_STDOUT], "the server has nothing to forward");
    assert_eq!((config.cache_size, config.policy), (Some(CACHE as u32), Policy::DropOldest));
    let before = config.clone().cache_size;
    config
        .apply_directives(&[Info::new(key::PMIX_IOF_CACHE_SIZE, 1u32), Info::required("x", true)])
        .unwrap_err();
    assert_eq!(config.cache_size, before);
}

/// Calls `prepare` for a job, then writes more than the cache holds before any tool registers.
/// Returns the written bytes and what a late tool receives.
fn read_late(prepare: fn(&Job)) -> (Vec<u8>, Received) {
    let engine = engine(Policy::DropNewest);
    let (job, mut stdout) = adopt_pipe(&engine, &[]);
    prepare(&job);
    let written = pattern(5 * CACHE);
    stdout.write_all(&written).unwrap();
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    wait_until_read(&mut observer, written.len());
    let mut tool = puller(&engine, Grant::Never, vec![]);
    drop(stdout);
    let got = Received::read_all(&mut tool);
    assert!(got.bytes.len() >= CACHE / 2, "{}", got.bytes.len());
    assert_eq!(got.bytes.len() as u64 + got.lost(), written.len() as u64);
    (written, got)
}

#[test]
fn without_a_registration_the_first_bytes_are_cached_and_the_newest_dropped() {
    let (written, got) = read_late(|_| {});
    assert!(written.starts_with(&got.bytes), "the first bytes");
}

#[test]
fn after_its_last_reader_leaves_a_stream_is_cached_from_where_it_stopped() {
    let engine = engine(Policy::DropNewest);
    let (_job, mut stdout) = adopt_pipe(&engine, &[]);
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    let mut first = puller(&engine, Grant::Never, vec![]);
    let early = pattern(CACHE / 2);
    stdout.write_all(&early).unwrap();
    let mut got = Received::default();
    wait_for("the first bytes", || {
        got.take_available(&mut first);
        (got.bytes.len() == early.len()).then_some(())
    });
    drop(first);
    wait_for("the tool to disconnect", || stdout_stats(&mut observer).readers.is_empty().then_some(()));
    let late = vec![b'x'; 5 * CACHE];
    stdout.write_all(&late).unwrap();
    wait_until_read(&mut observer, early.len() + late.len());
    let mut second = puller(&engine, Grant::Never, vec![]);
    drop(stdout);
    let got = Received::read_all(&mut second);
    let since = got.bytes.iter().filter(|byte| **byte == b'x').count();
    assert!(since >= CACHE / 2, "{since}");
    assert_eq!(
        got.gaps.last().map(|(_, lost)| *lost),
        Some((late.len() - since) as u64),
        "the newest, at the end"
    );
    assert_eq!(got.bytes.len() as u64 + got.lost(), (early.len() + late.len()) as u64);
}

#[test]
fn after_the_backlog_is_released_the_newest_bytes_are_kept() {
    let (written, got) = read_late(Job::release_backlog);
    assert!(written.ends_with(&got.bytes), "the last bytes");
}

#[test]
fn under_block_a_forwarded_stream_waits_for_a_registration_and_loses_nothing() {
    let engine = engine(Policy::Block);
    let (_job, mut stdout) = adopt_pipe(&engine, &[Info::required(key::PMIX_FWD_STDOUT, true)]);
    let written = pattern(10 * CACHE);
    let writer = thread::spawn({
        let written = written.clone();
        move || stdout.write_all(&written).unwrap()
    });
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    wait_until_read(&mut observer, CACHE / 2);
    let mut tool = puller(&engine, Grant::Block, vec![]);
    let got = Received::read_all(&mut tool);
    writer.join().unwrap();
    assert!(got == Received { bytes: written, gaps: vec![] }, "{:?}", got.gaps);
}

#[test]
fn under_block_a_stream_of_a_large_job_waits_long_for_a_registration_and_loses_nothing() {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let (stdout, write) = pipe();
    let first = reported_rank(0).with(Channel::Stdout, stdout);
    // With this number of ranks, the caches of streams that are read begin with 512 KiB.
    let ranks = std::iter::once(first).chain((1..16).map(reported_rank)).collect();
    let forward = [Info::required(key::PMIX_FWD_STDOUT, true)];
    let (directives, _) = Directives::read(&forward, DirectiveLevel::Spawn).unwrap();
    let job = engine.adopt(AdoptSpec { directives, ..AdoptSpec::new(nspace(), ranks) }).unwrap();
    // The exits are irrelevant here; the stream ends when the pipe is closed.
    (0..16).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
    let written = pattern(2 << 20);
    let writer = thread::spawn({
        let (written, mut stdout) = (written.clone(), write);
        move || stdout.write_all(&written).unwrap()
    });
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    wait_until_read(&mut observer, 700 << 10);
    let mut tool = puller(&engine, Grant::Block, vec![]);
    let got = Received::read_all(&mut tool);
    writer.join().unwrap();
    assert!(got == Received { bytes: written, gaps: vec![] }, "{:?}", got.gaps);
}

#[test]
fn under_block_a_stream_that_is_not_forwarded_does_not_wait() {
    for directives in [vec![], vec![Info::required(key::PMIX_FWD_STDOUT, false)]] {
        let engine = engine(Policy::Block);
        let (_job, mut stdout) = adopt_pipe(&engine, &directives);
        // More than the cache and the pipe hold.
        stdout.write_all(&pattern(10 * CACHE)).unwrap();
    }
}

#[test]
fn a_stream_without_forwarding_goes_to_tools_but_not_to_the_launchers_readers() {
    let (engine, _directory) = session(Config::default());
    let mut own = puller(&engine, Grant::Block, vec![]);
    let (_job, mut stdout) = adopt_pipe(&engine, &[Info::required(key::PMIX_FWD_STDOUT, false)]);
    let mut late = puller(&engine, Grant::Block, vec![]);
    let mut tool = Tool::connect(engine.socket().unwrap(), "tap").unwrap();
    tool.pull(&Pull::new(vec![rank()], Channels::STDOUT)).unwrap();
    stdout.write_all(b"hello").unwrap();
    drop(stdout);
    assert_eq!(Received::read_all(&mut tool).bytes, b"hello");
    assert_eq!(Received::read_all(&mut own), Received::default());
    assert_eq!(Received::read_all(&mut late), Received::default());
}

#[test]
fn one_tool_can_keep_the_oldest_bytes_while_another_keeps_the_newest() {
    let engine = engine(Policy::DropNewest);
    let mut keeps_oldest =
        puller(&engine, Grant::Never, vec![Info::required(key::PMIX_IOF_DROP_NEWEST, true)]);
    let mut keeps_newest =
        puller(&engine, Grant::Never, vec![Info::required(key::PMIX_IOF_DROP_OLDEST, true)]);
    let (_job, mut stdout) = adopt_pipe(&engine, &[]);
    let written = pattern(20 * CACHE);
    stdout.write_all(&written).unwrap();
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    wait_until_read(&mut observer, written.len());
    drop(stdout);
    let oldest = Received::read_all(&mut keeps_oldest);
    let held = CACHE / 2;
    assert!(oldest.bytes.starts_with(&written[..held]), "the first bytes");
    let newest = Received::read_all(&mut keeps_newest);
    assert!(newest.bytes.ends_with(&written[written.len() - held..]), "the last bytes");
    for got in [oldest, newest] {
        assert_eq!(got.bytes.len() as u64 + got.lost(), written.len() as u64);
        assert!(got.lost() > 0);
    }
}

#[test]
fn a_registration_gets_its_own_cache_size_without_shrinking_anothers() {
    let engine = engine(Policy::DropNewest);
    let (_job, mut stdout) = adopt_pipe(&engine, &[]);
    let large = Info::required(key::PMIX_IOF_CACHE_SIZE, 8 * CACHE as u32);
    let small = Info::required(key::PMIX_IOF_CACHE_SIZE, MIN_CACHE_SIZE);
    let wants_more = puller(&engine, Grant::Never, vec![large]);
    let wants_less = puller(&engine, Grant::Never, vec![small]);
    let written = pattern(6 * CACHE);
    stdout.write_all(&written).unwrap();
    drop(stdout);
    for mut tool in [wants_more, wants_less] {
        assert!(
            Received::read_all(&mut tool) == Received { bytes: written.clone(), gaps: vec![] },
            "all bytes fit"
        );
    }
}

#[test]
fn a_cache_shrinks_for_its_only_reader_and_grows_back_afterwards() {
    let engine = engine(Policy::DropNewest);
    let (_job, mut stdout) = adopt_pipe(&engine, &[]);
    let mut observer = engine.attach("observer", Grant::Never).unwrap();
    let mut tool =
        puller(&engine, Grant::Never, vec![Info::required(key::PMIX_IOF_CACHE_SIZE, MIN_CACHE_SIZE)]);
    stdout.write_all(&pattern(CACHE)).unwrap();
    wait_until_read(&mut observer, CACHE);
    assert!(stdout_stats(&mut observer).cached <= u64::from(MIN_CACHE_SIZE));
    let got = {
        let mut got = Received::default();
        wait_for("the bytes that fit", || {
            got.take_available(&mut tool);
            (got.bytes.len() as u64 + got.lost() == CACHE as u64).then_some(())
        });
        got
    };
    assert!(got.lost() > 0);
    drop(tool);
    wait_for("the tool to disconnect", || stdout_stats(&mut observer).readers.is_empty().then_some(()));
    stdout.write_all(&pattern(CACHE / 2)).unwrap();
    wait_until_read(&mut observer, CACHE + CACHE / 2);
    assert_eq!(stdout_stats(&mut observer).cached, CACHE as u64 / 2, "no byte was dropped");
}

#[test]
fn an_unsupported_directive_is_refused_if_required_and_listed_if_optional() {
    let engine = engine(Policy::DropNewest);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let too_large = Info::required(key::PMIX_IOF_CACHE_SIZE, u32::MAX);
    let mut pull = |directives| tool.pull(&Pull { directives, ..Pull::new(vec![rank()], Channels::STDOUT) });
    for (info, status) in [
        (too_large.clone(), Status::ERR_OUT_OF_RESOURCE),
        (Info::required("vendor.colour", true), Status::ERR_NOT_SUPPORTED),
        (Info::required(key::PMIX_IOF_PUSH_STDIN, true), Status::ERR_NOT_SUPPORTED),
        (Info::required(key::PMIX_IOF_DROP_OLDEST, 1u32), Status::ERR_BAD_PARAM),
    ] {
        let Err(RequestError::Denied(failure)) = pull(vec![info.clone()]) else { panic!("{info:?}") };
        assert_eq!(failure.status, status, "{failure}");
        let granted = pull(vec![Info { required: false, ..info.clone() }]).unwrap();
        assert_eq!(granted.ignored, [info.key]);
    }
}

#[test]
fn flush_blocks_until_the_launchers_readers_have_all_earlier_bytes() {
    let engine = engine(Policy::Block);
    let (job, mut stdout) = adopt_pipe(&engine, &[]);
    let mut tool = puller(&engine, Grant::Block, vec![]);
    let written = pattern(CACHE / 2);
    stdout.write_all(&written).unwrap();
    assert!(!job.flush(Some(std::time::Duration::ZERO)), "the bytes are unread");
    let flushing = thread::spawn(move || job.flush(None));
    let mut got = Received::default();
    wait_for("the bytes", || {
        assert!(got.bytes.len() == written.len() || !flushing.is_finished(), "flushed too early");
        got.take_available(&mut tool);
        flushing.is_finished().then_some(())
    });
    assert_eq!(got.bytes, written);
    assert!(flushing.join().unwrap());
}

#[test]
fn a_closed_stream_keeps_earlier_bytes_and_its_writer_gets_an_error() {
    let engine = engine(Policy::Block);
    let (job, mut stdout) = adopt_pipe(&engine, &[]);
    let mut tool = puller(&engine, Grant::Block, vec![]);
    stdout.write_all(b"before").unwrap();
    assert!(job.close(Rank(0), Channel::Stdout));
    assert_eq!(Received::read_all(&mut tool).bytes, b"before");
    assert!(!job.close(Rank(0), Channel::Stdout), "the stream is complete");
    assert!(!job.close(Rank(7), Channel::Stdout), "the rank does not exist");
    // Rust programs ignore SIGPIPE by default.
    assert_eq!(stdout.write_all(b"after").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}
