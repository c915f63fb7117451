//! A push of a gibibyte of random bytes: it arrives complete at every target, and the memory of the
//! engine does not grow.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, OnceLock, PoisonError};

use iof_testing::bytes::{noise_sum, sum};
use iof_testing::command::site::Site;
use iof_testing::command::without_waits;
use iof_testing::noise::Noise;
use iof_testing::process::Process;
use iof_testing::{BULK_TIMEOUT, Pending, wait_up_to};

const GIB: u64 = 1 << 30;
/// Allowance for memory of an engine that does not depend on the push: pages that were not
/// touched before, and buffers of the allocator.
const SPARE_KIB: u64 = 4 * 1024;

/// Lets one test at a time push a gibibyte, because each uses two processors.
static MACHINE: Mutex<()> = Mutex::new(());

/// The bytes in an unlinked file, and their SHA-256.
struct Gibibyte {
    path: PathBuf,
    sha256: String,
    _file: File,
}

fn gibibyte() -> &'static Gibibyte {
    static GIBIBYTE: OnceLock<Gibibyte> = OnceLock::new();
    GIBIBYTE.get_or_init(|| {
        let sum = noise_sum(0, "stdin", GIB);
        let mut file = tempfile::tempfile().unwrap();
        io::copy(&mut Noise::new(0, "stdin").take(GIB), &mut file).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
        Gibibyte { path: path.into(), sha256: sum.get_within(BULK_TIMEOUT).sha256, _file: file }
    })
}

/// An engine with its memory at the start and its largest memory since then, in KiB.
struct MemoryWatch {
    run: Process,
    start: u64,
    max: u64,
}

impl MemoryWatch {
    fn of(run: Process) -> MemoryWatch {
        let start = run.memory_kib();
        MemoryWatch { run, start, max: start }
    }

    /// Samples the memory.
    fn sample(&mut self) {
        self.max = self.max.max(self.run.memory_kib());
    }

    /// Samples the memory until `process` has ended, and returns its exit code.
    fn until_end_of(&mut self, process: &Process, what: &str) -> i32 {
        wait_up_to(BULK_TIMEOUT, what, || {
            self.sample();
            process.exit_code()
        })
    }

    /// Checks that the memory never grew by more than the caches and the allowance.
    fn assert_flat(&self, caches_kib: u64) {
        let growth = self.max - self.start;
        assert!(growth <= caches_kib + SPARE_KIB, "{growth} KiB more than {} KiB", self.start);
    }
}

/// The default cache of a push, in KiB.
const CACHE_KIB: u64 = 1024;

/// Pushes the gibibyte to `targets`, which are the ranks of `list`, and checks the sums that all
/// ranks print of their stdin.
fn push_to(site: &Site, ranks: u32, list: &str, targets: &[u32]) {
    let _one_at_a_time = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let gibibyte = gibibyte();
    // The gate keeps the engine alive until the memory was checked.
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_RANK $(sha256sum); : < {}", gate.path());
    let mut run = site.run_sh(&["-n", &ranks.to_string(), "--stdin", "none", "--stdin-open", list], &script);
    let stdout = iof_testing::pipes::collect(run.stdout());
    site.wait_for_ranks(ranks as usize);
    let mut engine = MemoryWatch::of(run);
    let mut push = site.iof("push");
    push.args(["--rank", list]).arg(&gibibyte.path);
    let push = Process::start(&mut push);
    assert_eq!(engine.until_end_of(&push, "the push"), 0);
    engine.assert_flat(CACHE_KIB);
    gate.open();
    assert_eq!(engine.run.wait_up_to(BULK_TIMEOUT), 0);
    let stdout = String::from_utf8(stdout.get()).unwrap();
    let mut sums: Vec<&str> = stdout.lines().filter(|line| line.contains(&gibibyte.sha256)).collect();
    sums.sort_unstable();
    let wanted: Vec<String> = targets.iter().map(|rank| format!("{rank} {} -", gibibyte.sha256)).collect();
    assert_eq!(sums, wanted);
    assert_eq!(stdout.lines().count(), ranks as usize, "the other ranks read end of file");
}

#[test]
fn a_gibibyte_arrives_complete_at_rank_0() {
    push_to(&Site::new(), 2, "0", &[0]);
}

#[test]
fn a_gibibyte_arrives_complete_at_all_of_8_ranks() {
    push_to(&Site::new(), 8, "0-7", &[0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_gibibyte_arrives_complete_at_3_of_8_ranks_without_io_uring() {
    push_to(&Site::on("epoll"), 8, "1,3,5", &[1, 3, 5]);
}

#[test]
fn stdin_arrives_complete_while_one_rank_reads_a_part_and_one_nothing() {
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
    let mut process = Process::start_with_its_files(&mut run);
    let (stdout, stderr) = process.collect();
    site.wait_for_ranks(4);
    let mut engine = MemoryWatch::of(process);
    // The engine's process also reads the file, so it contains the pusher as well.
    wait_up_to(BULK_TIMEOUT, "the ranks that read all", || {
        engine.sample();
        let done = |rank: u32| {
            let matches = |proc: &serde_json::Value| proc["rank"] == rank && proc["state"] == "terminated";
            site.procs().is_some_and(|procs| procs.iter().any(matches))
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
fn a_slow_reader_gets_all_bytes_and_the_memory_of_the_engine_stays_flat() {
    let site = Site::new();
    let length = 40_000_000;
    let mut run = site.run_sh(&["-n", "2", "--stdin-open", "all"], "cat");
    let mut stdout = run.stdout();
    site.wait_for_ranks(2);
    // The ranks wait for their output to be read by the test, which therefore limits the speed at
    // which they read stdin.
    let mut engine = MemoryWatch::of(run);
    let mut push = Process::start(site.iof("push").args(["--rank", "0", "--keep-open"]));
    let mut stdin = push.stdin();
    let feeding =
        Pending::start(move || io::copy(&mut Noise::new(0, "stdin").take(length), &mut stdin).unwrap());
    let received = {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(0);
        let pending = sum(Chunks { receiver, chunk: Vec::new(), used: 0 });
        let mut buffer = vec![0; 1 << 20];
        let mut left = length;
        while left > 0 {
            let n = stdout.read(&mut buffer).unwrap();
            assert!(n > 0);
            left -= n as u64;
            sender.send(buffer[..n].to_vec()).unwrap();
            engine.sample();
        }
        pending
    };
    assert_eq!(feeding.get(), length);
    assert_eq!(push.wait(), 0);
    assert_eq!(received.get(), noise_sum(0, "stdin", length).get());
    // Twice: the cache of the push and the cache of the rank's stdout.
    engine.assert_flat(2 * CACHE_KIB);
}

/// A reader of the bytes that a channel delivers.
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
