//! A gibibyte of random bytes is pushed: whole at every target, in memory that does not grow.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, OnceLock, PoisonError};

use common::bytes::{Pending, noise_sum, sum};
use common::noise::Noise;
use common::process::Process;
use common::site::Site;
use common::{BULK_DEADLINE, wait_up_to, without_waits};

const GIB: u64 = 1 << 30;
/// What may come and go in an engine that carries it: its pages of code that were not touched
/// before, buffers of its allocator.
const SPARE_KIB: u64 = 4 * 1024;

/// One gibibyte on its way at a time: there are two processors.
static MACHINE: Mutex<()> = Mutex::new(());

/// The bytes in a file that has no name, and their SHA-256.
struct Gibibyte {
    path: PathBuf,
    sha256: String,
    _file: File,
}

fn gibibyte() -> &'static Gibibyte {
    static MADE: OnceLock<Gibibyte> = OnceLock::new();
    MADE.get_or_init(|| {
        let summed = noise_sum(0, "stdin", GIB);
        let mut file = tempfile::tempfile().unwrap();
        io::copy(&mut Noise::new(0, "stdin").take(GIB), &mut file).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
        Gibibyte { path: path.into(), sha256: summed.get_within(BULK_DEADLINE).sha256, _file: file }
    })
}

/// The most memory that the engine has had, over what it had at the beginning, in KiB.
struct Watched {
    run: Process,
    before: u64,
    most: u64,
}

impl Watched {
    fn of(run: Process) -> Watched {
        let before = run.memory_kib();
        Watched { run, before, most: before }
    }

    /// Looks until `process` has ended; gives its exit code.
    fn until_end_of(&mut self, process: &Process, what: &str) -> i32 {
        wait_up_to(BULK_DEADLINE, what, || {
            self.most = self.most.max(self.run.memory_kib());
            process.ended()
        })
    }

    /// That it never had more than `caches` and what comes and goes.
    fn assert_flat(&self, caches_kib: u64) {
        let grown = self.most - self.before;
        assert!(grown <= caches_kib + SPARE_KIB, "{grown} KiB more than {} KiB", self.before);
    }
}

/// Bytes of cache that a push has by default.
const CACHE_KIB: u64 = 1024;

/// Each rank of the list reads all of it and says what it has read; the others say what they read
/// as well.
fn pushed_to(site: &Site, ranks: u32, list: &str, targets: &[u32]) {
    let _one_at_a_time = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let gibibyte = gibibyte();
    // The engine stays until it has been looked at.
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_RANK $(sha256sum); : < {}", gate.path());
    let mut run = site.run_sh(&["-n", &ranks.to_string(), "--stdin", "none", "--stdin-open", list], &script);
    let stdout = common::bytes::collect(run.stdout());
    site.wait_for_ranks(ranks as usize);
    let mut engine = Watched::of(run);
    let mut push = site.iof("push");
    push.args(["--rank", list]).arg(&gibibyte.path);
    let push = Process::start(&mut push);
    assert_eq!(engine.until_end_of(&push, "the push"), 0);
    engine.assert_flat(CACHE_KIB);
    gate.open();
    assert_eq!(engine.run.wait_up_to(BULK_DEADLINE), 0);
    let stdout = String::from_utf8(stdout.get()).unwrap();
    let mut sums: Vec<&str> = stdout.lines().filter(|line| line.contains(&gibibyte.sha256)).collect();
    sums.sort_unstable();
    let wanted: Vec<String> = targets.iter().map(|rank| format!("{rank} {} -", gibibyte.sha256)).collect();
    assert_eq!(sums, wanted);
    assert_eq!(stdout.lines().count(), ranks as usize, "the others are at the end of nothing");
}

#[test]
fn a_gibibyte_arrives_whole_at_rank_0() {
    pushed_to(&Site::new(), 2, "0", &[0]);
}

#[test]
fn a_gibibyte_arrives_whole_at_all_of_8_ranks() {
    pushed_to(&Site::new(), 8, "0-7", &[0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_gibibyte_arrives_whole_at_ranks_1_3_and_5_of_8_without_io_uring() {
    pushed_to(&Site::on("epoll"), 8, "1,3,5", &[1, 3, 5]);
}

#[test]
fn the_commands_own_stdin_arrives_whole_at_some_ranks_while_one_reads_a_part_and_one_nothing() {
    let _one_at_a_time = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let gibibyte = gibibyte();
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        "case $IOF_RANK in \
         0|3) exec sha256sum;; \
         1) head -c 100000000 >/dev/null;; \
         2) exec <&-; : < {};; \
         esac",
        gate.path()
    );
    let mut run = site.iof("run");
    run.args(["-n", "4", "--stdin", "all", "--", "sh", "-c", &script]);
    run.stdin(File::open(&gibibyte.path).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::start_as_it_is(&mut run);
    let (stdout, stderr) = process.collect();
    site.wait_for_ranks(4);
    let mut engine = Watched::of(process);
    // It reads the file itself, so it is the pusher, too.
    wait_up_to(BULK_DEADLINE, "those who read all", || {
        engine.most = engine.most.max(engine.run.memory_kib());
        let done = |rank: u32| {
            let is = |of: &serde_json::Value| of["rank"] == rank && of["state"] == "terminated";
            site.procs().is_some_and(|procs| procs.iter().any(is))
        };
        (done(0) && done(3)).then_some(())
    });
    engine.assert_flat(2 * CACHE_KIB);
    gate.open();
    assert_eq!(engine.run.wait(), 0);
    let wanted = format!("{} -", gibibyte.sha256);
    let stdout = String::from_utf8(stdout.get()).unwrap().replace("  ", " ");
    assert_eq!(stdout.lines().collect::<Vec<_>>(), [wanted.as_str(); 2]);
    assert_eq!(without_waits(&String::from_utf8(stderr.get()).unwrap()), "");
}

#[test]
fn a_slow_reader_gets_everything_at_its_pace_and_the_engine_waits_in_flat_memory() {
    let site = Site::new();
    let length = 40_000_000;
    let mut run = site.run_sh(&["-n", "2", "--stdin-open", "all"], "cat");
    let mut stdout = run.stdout();
    site.wait_for_ranks(2);
    // The ranks wait for their output, which waits for us: so nobody reads stdin faster than this.
    let mut engine = Watched::of(run);
    let mut push = Process::start(site.iof("push").args(["--rank", "0", "--keep-open"]));
    let mut stdin = push.stdin();
    let feeding =
        Pending::start(move || io::copy(&mut Noise::new(0, "stdin").take(length), &mut stdin).unwrap());
    let got = {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(0);
        let summed = sum(Chunks { receiver, chunk: Vec::new(), used: 0 });
        let mut buffer = vec![0; 1 << 20];
        let mut left = length;
        while left > 0 {
            let n = stdout.read(&mut buffer).unwrap();
            assert!(n > 0);
            left -= n as u64;
            sender.send(buffer[..n].to_vec()).unwrap();
            engine.most = engine.most.max(engine.run.memory_kib());
        }
        summed
    };
    assert_eq!(feeding.get(), length);
    assert_eq!(push.wait(), 0);
    assert_eq!(got.get(), noise_sum(0, "stdin", length).get());
    // The cache of the push, and that of the rank's stdout.
    engine.assert_flat(2 * CACHE_KIB);
}

/// What comes of a channel, as a file.
struct Chunks {
    receiver: std::sync::mpsc::Receiver<Vec<u8>>,
    chunk: Vec<u8>,
    used: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() {
            let Ok(chunk) = self.receiver.recv() else { return Ok(0) };
            (self.chunk, self.used) = (chunk, 0);
        }
        let n = buffer.len().min(self.chunk.len() - self.used);
        buffer[..n].copy_from_slice(&self.chunk[self.used..self.used + n]);
        self.used += n;
        Ok(n)
    }
}
