//! Tools that use the library, attached to a real `iof run` that is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::process::Stdio;

use iof_proto::directive::key;
use iof_proto::query::key as query;
use iof_proto::rendezvous::Search;
use iof_proto::{Channel, Channels, Info, Nspace, Proc, Rank};
use iof_testing::command::site::{Site, Stream};
use iof_testing::process::Process;
use iof_testing::{TIMEOUT, wait_for};
use iof_tool::{Delivery, LostError, Pull, RequestError, Tool};
use nix::sys::signal::Signal;

/// Attaches a tool with the name `test`.
fn attach(site: &Site) -> Tool {
    let search = Search::default().within(Some(site.path().into()));
    wait_for("the engine", || Tool::find(&search, "test").ok())
}

/// Waits until the tool `test` reads `streams` streams.
fn wait_for_attached(site: &Site, streams: usize) {
    let is_read = |stream: &Stream| stream.readers("test").len() == 1;
    wait_for("the streams of the tool", || {
        (site.streams()?.into_iter().filter(is_read).count() == streams).then_some(())
    });
}

fn pull(directives: &[Info]) -> Pull {
    let all = Proc::all(Nspace::new("job").unwrap());
    Pull { directives: directives.to_vec(), ..Pull::new(vec![all], Channels::STDOUT | Channels::STDERR) }
}

/// The bytes received of one stream, and whether its end was reported.
#[derive(Debug, Default)]
struct StreamCount {
    bytes: u64,
    lost: u64,
    gone: bool,
}

/// Reads all deliveries after the engine was killed, and counts them by rank and channel. The ranks
/// write `line` repeatedly.
fn drain(tool: &mut Tool, streams: &mut BTreeMap<(Rank, Channel), StreamCount>, line: &str) {
    while let Some(delivery) = tool.recv_timeout(TIMEOUT).unwrap() {
        note(&delivery, streams, line);
    }
    assert!(tool.is_done());
}

fn note(delivery: &Delivery<'_>, streams: &mut BTreeMap<(Rank, Channel), StreamCount>, line: &str) {
    let origin = delivery.origin().unwrap_or_else(|| panic!("{delivery:?}"));
    let stream = streams.entry((origin.source.rank, origin.channel)).or_default();
    assert!(!stream.gone, "after its end: {delivery:?}");
    match delivery {
        Delivery::Bytes(bytes) => {
            assert_eq!(bytes.offset(), stream.bytes + stream.lost);
            let skipped = usize::try_from(bytes.offset() % line.len() as u64).unwrap();
            let written = line.bytes().cycle().skip(skipped);
            assert!(bytes.iter().copied().eq(written.take(bytes.len())), "wrong bytes");
            stream.bytes += bytes.len() as u64;
        }
        Delivery::Gap { gap, .. } => {
            assert_eq!(gap.offset, stream.bytes + stream.lost);
            stream.lost += gap.lost;
        }
        Delivery::Gone { counts, .. } => {
            assert_eq!((counts.delivered, counts.lost), (stream.bytes, stream.lost));
            stream.gone = true;
        }
        other => panic!("{other:?}"),
    }
}

fn kill(run: &Process) {
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait(), 137);
}

#[test]
fn after_the_engine_was_killed_cached_bytes_are_read_then_each_stream_is_gone() {
    let site = Site::new();
    let options = ["--nspace", "job", "-n", "3", "--drop", "newest"];
    let run = site.run_sh(&options, "echo yyyy; sleep 1000");
    for rank in 0..3 {
        site.wait_for_bytes(rank, "stdout", 5);
    }
    let mut tool = attach(&site);
    // The buffering size holds the bytes back while more may arrive.
    tool.pull(&pull(&[Info::required(key::PMIX_IOF_BUFFERING_SIZE, 1000u32)])).unwrap();
    assert!(tool.try_recv().unwrap().is_none());
    wait_for_attached(&site, 6);
    kill(&run);
    let mut streams = BTreeMap::new();
    drain(&mut tool, &mut streams, "yyyy\n");
    let stdout = |rank| &streams[&(Rank(rank), Channel::Stdout)];
    for rank in 0..3 {
        assert_eq!((stdout(rank).bytes, stdout(rank).gone), (5, true));
        assert!(streams[&(Rank(rank), Channel::Stderr)].gone);
    }
    for lost in [
        tool.query(&[query::PMIX_QUERY_NAMESPACES]).unwrap_err(),
        tool.pull(&pull(&[])).unwrap_err(),
        tool.deregister(1).unwrap_err(),
    ] {
        assert!(matches!(lost, RequestError::Lost(LostError::Closed)), "{lost}");
    }
}

#[test]
fn an_engine_killed_under_load_leaves_correct_bytes_and_counters() {
    // A line of an odd number of different bytes: an offset that is wrong by a page or a power of
    // two does not look right.
    let line: String = ('!'..='~').chain(['\n']).collect();
    let word = line.trim_end();
    for policy in ["newest", "oldest", "none"] {
        let site = Site::new();
        let mut command = site.iof("run");
        command.args(["--nspace", "job", "-n", "4", "--cache-size", "64K", "--drop", policy, "yes", word]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let run = Process::start_with_its_files(&mut command);
        let mut tool = attach(&site);
        tool.pull(&pull(&[])).unwrap();
        wait_for_attached(&site, 8);
        let mut streams = BTreeMap::new();
        let mut deliveries = 0;
        while deliveries < 500 {
            if let Some(delivery) = tool.recv_timeout(TIMEOUT).unwrap() {
                note(&delivery, &mut streams, &line);
                deliveries += 1;
            }
        }
        kill(&run);
        drain(&mut tool, &mut streams, &line);
        assert_eq!(streams.len(), 8, "{policy}");
        assert!(streams.values().all(|stream| stream.gone), "{policy}: {streams:?}");
    }
}
