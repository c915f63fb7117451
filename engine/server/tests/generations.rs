//! The cost of tools in generations of rings: files and maps of the engine, and bytes of other
//! tools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use iof_engine::{Config, Engine, Grant, Policy};
use iof_proto::directive::key;
use iof_proto::query::key as query;
use iof_proto::{Channel, Channels, Found, FromTool, Info, Proc, Rank, ToTool, Value};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{Received, adopt_pipe, nspace, puller, session};
use iof_testing::{TIMEOUT, wait_for};
use iof_tool::{Delivery, Tool};
use tempfile::TempDir;

const CACHE: usize = 64 * 1024;
const MIB: u32 = 1 << 20;

/// The number of rings of one stream with an honest reader: the newest one, the honest reader's,
/// the hostile tool's, and a returned one.
const RINGS: usize = 4;

/// Rings are counted for the whole process, so only one test may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn engine() -> (Engine, TempDir) {
    let mut config = Config::default();
    (config.policy, config.cache_size) = (Policy::DropNewest, Some(CACHE as u32));
    session(config)
}

fn rank() -> Proc {
    Proc::new(nspace(), Rank(0))
}

/// Returns the inodes of the ring files that this process has open.
fn ring_files() -> BTreeSet<u64> {
    let files = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ring = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:iof-ring"))
    };
    files.filter(is_ring).filter_map(|path| Some(fs::metadata(path).ok()?.ino())).collect()
}

/// Returns the number of maps of rings. Each ring has three in the engine and three in each tool of
/// this process.
fn ring_maps() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:iof-ring").count()
}

fn wait_for_readers(tool: &mut Tool, readers: usize) {
    wait_for("readers to be attached", || {
        let found = tool.query(&[query::IOF_QUERY_STATS]).unwrap();
        let Some(Found { value: Value::Streams(streams), .. }) = found.into_iter().next() else {
            panic!("no streams")
        };
        let stdout = streams.into_iter().find(|stream| stream.channel == Channel::Stdout).unwrap();
        (stdout.readers.len() == readers).then_some(())
    });
}

/// A rank that never writes more than an honest tool has read.
struct HonestReader {
    stdout: File,
    honest: Tool,
    written: u64,
}

impl HonestReader {
    fn write(&mut self, bytes: usize) {
        let piece: Vec<u8> = (self.written..).take(bytes).map(|index| (index % 251) as u8).collect();
        self.stdout.write_all(&piece).unwrap();
        let mut got = Vec::new();
        while got.len() < bytes {
            match self.honest.recv_timeout(TIMEOUT).unwrap() {
                Some(Delivery::Bytes(bytes)) => got.extend_from_slice(&bytes),
                other => panic!("the honest tool got {other:?} after {} bytes", self.written),
            }
        }
        assert!(got == piece, "wrong bytes after {}", self.written);
        self.written += bytes as u64;
    }
}

#[test]
fn a_tool_that_follows_but_never_reads_its_socket_keeps_no_generations() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (engine, _directory) = engine();
    let (_job, stdout) = adopt_pipe(&engine, &[]);
    let mut honest_reader =
        HonestReader { stdout, honest: puller(&engine, Grant::Never, vec![]), written: 0 };
    let mut hostile = RawTool::connect(&engine);
    hostile.pull(vec![rank()], Channels::STDOUT);
    wait_for_readers(&mut honest_reader.honest, 2);
    let others = (ring_files().len(), ring_maps());
    for _ in 0..200 * 4 {
        honest_reader.write(CACHE / 4);
        hostile.send(&FromTool::Follow { slot: 0 });
    }
    let (files, maps) = (ring_files().len() - others.0, ring_maps() - others.1);
    assert!(files < RINGS, "{files} more files");
    assert!(maps < 6 * RINGS, "{maps} more maps");
    // A ring that was sent remains in memory while it may still be received.
    hostile.receive_files();
    let in_flight = ring_files().len() - others.0;
    assert!(in_flight <= 2 * RINGS, "{in_flight} more rings in flight");
}

#[test]
fn a_tool_that_has_shut_its_receiving_side_is_still_served() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (engine, _directory) = engine();
    let (_job, _stdout) = adopt_pipe(&engine, &[]);
    let mut honest = puller(&engine, Grant::Never, vec![]);
    let mut half_closed = RawTool::connect(&engine);
    assert!(matches!(half_closed.receive(), ToTool::Welcome { .. }));
    half_closed.shut_receiving();
    half_closed.pull(vec![rank()], Channels::STDOUT);
    wait_for_readers(&mut honest, 2);
    half_closed.send(&FromTool::Drained { slots: vec![0] });
    wait_for_readers(&mut honest, 1);
}

#[test]
fn each_stalled_reader_keeps_one_old_generation_until_it_disconnects() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const READERS: usize = 32;
    let (engine, _directory) = engine();
    let (_job, stdout) = adopt_pipe(&engine, &[]);
    let mut honest_reader =
        HonestReader { stdout, honest: puller(&engine, Grant::Never, vec![]), written: 0 };
    let others = ring_files().len();
    let mut stalled = RawTool::connect(&engine);
    for reader in 1..=READERS {
        stalled.pull(vec![rank()], Channels::STDOUT);
        wait_for_readers(&mut honest_reader.honest, 1 + reader);
        (0..8).for_each(|_| honest_reader.write(CACHE / 4));
    }
    let files = ring_files().len() - others;
    assert!(files <= READERS + RINGS, "{files} rings for {READERS} readers that stall");
    drop(stalled);
    wait_for_readers(&mut honest_reader.honest, 1);
    (0..8).for_each(|_| honest_reader.write(CACHE / 4));
    let files = ring_files().len().saturating_sub(others);
    assert!(files < RINGS, "{files} rings remain");
}

#[test]
fn changing_cache_sizes_of_other_tools_cost_a_paused_tool_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (engine, _directory) = engine();
    let (_job, mut stdout) = adopt_pipe(&engine, &[]);
    let sized_tool =
        |mib: u32| puller(&engine, Grant::Never, vec![Info::required(key::PMIX_IOF_CACHE_SIZE, mib * MIB)]);
    let mut paused = sized_tool(8);
    let all: Vec<u8> = (0..6 * MIB).map(|index| (index % 251) as u8).collect();
    let mut sized_tools = Vec::new();
    for (mib, piece) in [9, 10, 12].into_iter().cycle().zip(all.chunks(50_000)) {
        sized_tools.push(sized_tool(mib));
        stdout.write_all(piece).unwrap();
        if sized_tools.len() > 2 {
            sized_tools.remove(0);
        }
    }
    drop(stdout);
    let got = Received::read_all(&mut paused);
    assert_eq!(got.lost(), 0, "{:?}", got.gaps);
    assert!(got.bytes == all);
}
