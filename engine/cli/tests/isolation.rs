//! A tool that is stopped, killed or hostile costs no other reader a byte, and the engine only a
//! bounded amount of memory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use iof_testing::bytes::{assert_accounted, assert_told, from_json, messages, noise_sum, sum};
use iof_testing::command::site::{Gate, Site, Stream, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Process;
use iof_testing::{Pending, wait_for};
use nix::sys::signal::Signal;

const TOTAL: u64 = 16 << 20;
const CACHE: u64 = 256 << 10;
/// The limit for the memory of `iof run`. A debug build with one rank and this cache uses a few
/// megabytes.
const MAX_MEMORY_KIB: u64 = 24 << 10;

/// A rank that writes [`TOTAL`] bytes to stdout once `first_byte` is open and ends once `end` is.
struct Job {
    site: Site,
    run: Process,
    first_byte: Gate,
    middle: Gate,
    end: Gate,
}

impl Job {
    fn start(cache: u64) -> Job {
        Job::start_with(cache, "none", &[])
    }

    fn start_with(cache: u64, drop: &str, options: &[&str]) -> Job {
        let site = Site::new();
        let (first_byte, middle, end) = (site.gate("first-byte"), site.gate("middle"), site.gate("end"));
        let gates = [
            format!("0:{}", first_byte.path()),
            format!("{}:{}", TOTAL / 2, middle.path()),
            format!("{TOTAL}:{}", end.path()),
        ];
        let program = rank(["--length", &TOTAL.to_string(), "--write-size", "30000"]);
        let gates = gates.iter().flat_map(|gate| ["--gate".to_owned(), gate.clone()]);
        let cache = cache.to_string();
        let options = [&["--cache-size", &cache, "--drop", drop], options].concat();
        let run = site.run(&options, program.into_iter().chain(gates));
        site.wait_for_ranks(1);
        Job { site, run, first_byte, middle, end }
    }

    fn pull(&self) -> Process {
        self.site.pull(&["--channel", "stdout"])
    }

    fn pull_json(&self) -> Process {
        self.site.pull(&["--channel", "stdout", "--output", "json"])
    }

    fn wait_for_pulls(&self, pulls: usize) {
        self.site.wait_for_pulls(0, "stdout", pulls);
    }

    fn open_all(&mut self) {
        self.first_byte.open();
        self.middle.open();
        self.end.open();
    }

    /// Connects to the engine without sending anything.
    fn connect(&self) -> UnixStream {
        let socket = self.site.sockets().pop().unwrap();
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(iof_testing::TIMEOUT)).unwrap();
        socket
    }
}

/// A process whose stdout and stderr are read. [`Reading::check`] compares them with the job.
struct Reading {
    process: Process,
    stdout: Pending<Vec<u8>>,
    stderr: Pending<Vec<u8>>,
}

impl Reading {
    fn of(mut process: Process) -> Reading {
        let (stdout, stderr) = process.collect();
        Reading { process, stdout, stderr }
    }

    /// Checks that no byte is missing.
    fn check_whole(self) {
        assert_accounted(0, &self.stdout.get(), &[], TOTAL);
        assert_eq!((self.stderr.get(), self.process.wait()), (Vec::new(), 0));
    }

    /// Checks that in JSON each byte is in its place, or missing and reported. Returns the number
    /// of missing bytes.
    fn check(self) -> u64 {
        let (stdout, stderr) = (self.stdout.get(), self.stderr.get());
        assert_eq!(self.process.wait(), 0);
        let (delivered, gaps) = from_json(0, "stdout", &stdout);
        assert_accounted(0, &delivered, &gaps, TOTAL);
        assert_told(0, "stdout", messages(&stdout).as_bytes(), &gaps);
        assert!(stderr.is_empty());
        gaps.iter().map(|gap| gap.lost).sum()
    }
}

/// Runs a job that fills its cache 64 times, while two of three pulls are stopped, one of them
/// from the beginning.
fn run_beside_stopped_pulls(drop: &str) {
    let mut job = Job::start_with(CACHE, drop, &["--output", "json"]);
    let (terminal, reports) = job.run.collect();
    let at_the_start = Reading::of(job.pull_json());
    // The output of this pull is not read, so it blocks in the middle of the job.
    let mut in_the_middle = job.pull_json();
    let (unread, stderr) = (in_the_middle.stdout(), collect(in_the_middle.stderr()));
    let other = Reading::of(job.pull_json());
    job.wait_for_pulls(3);

    at_the_start.process.stop();
    job.first_byte.open();
    job.site.wait_for_bytes(0, "stdout", TOTAL / 2);
    in_the_middle.stop();
    assert!(job.run.memory_kib() < MAX_MEMORY_KIB, "{} KiB", job.run.memory_kib());
    job.middle.open();
    // The rank writes its last byte.
    let stream = job.site.wait_for_bytes(0, "stdout", TOTAL);
    if drop == "none" {
        assert_eq!(stream.number("dropped"), 0, "a stopped reader does not drop bytes for all readers");
    }
    assert!(job.run.memory_kib() < MAX_MEMORY_KIB, "{} KiB", job.run.memory_kib());

    in_the_middle.signal(Signal::SIGCONT);
    let in_the_middle = Reading { process: in_the_middle, stdout: collect(unread), stderr };
    job.end.open();
    let (terminal, reports) = (terminal.get(), reports.get());
    let (delivered, gaps) = from_json(0, "stdout", &terminal);
    assert_accounted(0, &delivered, &gaps, TOTAL);
    assert_told(0, "stdout", messages(&terminal).as_bytes(), &gaps);
    assert!(reports.is_empty());
    if drop == "none" {
        assert!(gaps.is_empty(), "{gaps:?}");
    }
    assert_eq!(job.run.wait(), 0);
    // The first pull continues after the end of the job, the second continued before it.
    at_the_start.process.signal(Signal::SIGCONT);
    other.check();
    for stopped in [at_the_start, in_the_middle] {
        let lost = stopped.check();
        assert!(lost >= TOTAL - 4 * CACHE, "only {lost} bytes were lost");
    }
}

#[test]
fn under_block_stopped_pulls_delay_no_other_reader_and_account_for_every_byte() {
    run_beside_stopped_pulls("none");
}

#[test]
fn under_drop_newest_stopped_pulls_delay_no_reader_and_account_for_every_byte() {
    run_beside_stopped_pulls("newest");
}

#[test]
fn under_drop_oldest_stopped_pulls_delay_no_reader_and_account_for_every_byte() {
    run_beside_stopped_pulls("oldest");
}

#[test]
fn a_stopped_pull_misses_nothing_that_the_cache_still_holds() {
    // The cache holds the first half, so the pull misses nothing when it continues.
    let mut job = Job::start(TOTAL / 2 + (1 << 20));
    let terminal = sum(job.run.stdout());
    let stopped = Reading::of(job.pull());
    job.wait_for_pulls(1);
    stopped.process.stop();
    job.first_byte.open();
    job.site.wait_for_bytes(0, "stdout", TOTAL / 2);
    stopped.process.signal(Signal::SIGCONT);
    job.site.wait_for_stream(0, "stdout", |stream| stream.readers("iof pull")[0]["lag"] == 0);
    job.middle.open();
    job.end.open();
    stopped.check_whole();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
}

#[test]
fn a_pull_that_falls_behind_repeatedly_costs_no_more_memory_than_once() {
    const STEPS: u64 = 40;
    const STEP: u64 = 2 << 20;
    let site = Site::new();
    let mut gates: Vec<Gate> = (0..=STEPS).map(|step| site.gate(&format!("gate-{step}"))).collect();
    let mut program = rank(["--length", &(STEPS * STEP).to_string()]);
    for (step, gate) in (0..).zip(&gates) {
        program.extend(["--gate".to_owned(), format!("{}:{}", step * STEP, gate.path())]);
    }
    let mut run = site.run(&["--cache-size", &(STEP / 2).to_string()], program);
    let terminal = sum(run.stdout());
    site.wait_for_ranks(1);
    let pull = Reading::of(site.pull(&["--channel", "stdout", "--output", "json"]));
    site.wait_for_pulls(0, "stdout", 1);
    let mut end = gates.pop().unwrap();
    for (step, gate) in (1..).zip(&mut gates) {
        pull.process.stop();
        gate.open();
        site.wait_for_bytes(0, "stdout", STEP * step);
        pull.process.signal(Signal::SIGCONT);
        let lag = |stream: &Stream| stream.readers("iof pull")[0]["lag"].as_u64().unwrap();
        let stream = site.wait_for_stream(0, "stdout", |stream| lag(stream) == 0);
        assert!(stream.number("generation") >= step, "{stream:?}");
        assert!(run.memory_kib() < MAX_MEMORY_KIB, "step {step}: {} KiB", run.memory_kib());
    }
    end.open();
    let (stdout, stderr) = (pull.stdout.get(), pull.stderr.get());
    let (delivered, gaps) = from_json(0, "stdout", &stdout);
    assert_accounted(0, &delivered, &gaps, STEPS * STEP);
    assert_told(0, "stdout", messages(&stdout).as_bytes(), &gaps);
    assert!(stderr.is_empty());
    assert_eq!(terminal.get(), noise_sum(0, "stdout", STEPS * STEP).get());
    assert_eq!((pull.process.wait(), run.wait()), (0, 0));
}

#[test]
fn a_killed_pull_costs_the_run_and_other_pulls_nothing() {
    let mut job = Job::start(TOTAL + (1 << 20));
    let terminal = sum(job.run.stdout());
    let mut killed = job.pull();
    // Its output is not read, so it is killed in the middle of the job.
    let _unread = killed.stdout();
    let other = Reading::of(job.pull());
    job.wait_for_pulls(2);
    job.first_byte.open();
    job.site.wait_for_bytes(0, "stdout", TOTAL / 2);
    killed.signal(Signal::SIGKILL);
    job.wait_for_pulls(1);
    job.middle.open();
    job.end.open();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
    other.check_whole();
    assert_eq!((job.run.wait(), killed.wait()), (0, 137));
}

#[test]
fn many_killed_pulls_leave_no_memory_and_no_reader_behind() {
    let mut job = Job::start(CACHE);
    let terminal = sum(job.run.stdout());
    job.first_byte.open();
    job.site.wait_for_bytes(0, "stdout", TOTAL / 2);
    let start_and_kill_pulls = || {
        let pulls: Vec<Process> = (0..8).map(|_| job.pull()).collect();
        job.wait_for_pulls(8);
        pulls.iter().for_each(|pull| pull.signal(Signal::SIGKILL));
        job.wait_for_pulls(0);
    };
    start_and_kill_pulls();
    let before = open_files(&job.run);
    for _ in 0..4 {
        start_and_kill_pulls();
    }
    // The engine may not yet have closed the connection of the last query, in either count.
    wait_for("the engine to close their descriptors", || (open_files(&job.run) <= before).then_some(()));
    assert!(job.run.memory_kib() < MAX_MEMORY_KIB, "{} KiB", job.run.memory_kib());
    job.open_all();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
}

fn open_files(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().count()
}

/// Checks that a client that sends one of `messages` is disconnected, and that no other client is
/// affected.
fn assert_disconnected(messages: &[&[u8]]) {
    let mut job = Job::start(TOTAL + (1 << 20));
    let terminal = sum(job.run.stdout());
    let pull = Reading::of(job.pull());
    job.wait_for_pulls(1);
    job.first_byte.open();
    for message in messages {
        let mut client = job.connect();
        // The engine may disconnect the client before it has sent all.
        if let Err(error) = client.write_all(message) {
            assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
        }
        let mut answer = Vec::new();
        match client.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "is still connected"),
        }
        assert!(answer.is_empty(), "{answer:?}");
    }
    assert_eq!(job.site.query(&["namespaces"]).code, 0, "the engine serves others");
    job.middle.open();
    job.end.open();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
    pull.check_whole();
    assert_eq!(job.run.wait(), 0);
}

#[test]
fn a_client_that_sends_garbage_is_disconnected_and_affects_no_other() {
    assert_disconnected(&[
        b"GET / HTTP/1.0\r\n\r\n",
        &iof_testing::bytes::noise(0, "garbage", 0, 1 << 20),
        &[0xff; 5],
        &[0; 64],
    ]);
}

#[test]
fn a_client_that_announces_a_huge_message_is_disconnected() {
    let frame = |length: u32| [&length.to_le_bytes()[..], &[0], b"x"].concat();
    assert_disconnected(&[&frame(u32::MAX), &frame(1 << 30), &frame((64 << 10) + 1)]);
}

#[test]
fn clients_that_send_nothing_or_half_a_message_affect_no_other() {
    let mut job = Job::start(TOTAL + (1 << 20));
    let terminal = sum(job.run.stdout());
    let silent: Vec<UnixStream> = (0..20).map(|_| job.connect()).collect();
    let half = |length: u32| {
        let mut client = job.connect();
        client.write_all(&length.to_le_bytes()).unwrap();
        client.write_all(b"\0hal").unwrap();
        client
    };
    let half: Vec<UnixStream> = (0..20).map(|_| half(1000)).collect();
    let pull = Reading::of(job.pull());
    job.wait_for_pulls(1);
    job.open_all();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
    pull.check_whole();
    assert_eq!(job.run.wait(), 0);
    // The clients were connected to the end.
    for mut client in silent.into_iter().chain(half) {
        match client.read(&mut [0; 8]) {
            Ok(n) => assert_eq!(n, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn a_pull_whose_output_is_not_read_does_not_delay_the_end_of_the_run() {
    let mut job = Job::start(CACHE);
    let terminal = sum(job.run.stdout());
    let mut stuck = job.pull_json();
    let (unread, stderr) = (stuck.stdout(), collect(stuck.stderr()));
    job.wait_for_pulls(1);
    job.open_all();
    assert_eq!(terminal.get(), noise_sum(0, "stdout", TOTAL).get());
    assert_eq!(job.run.wait(), 0);
    wait_for("the end of the socket", || job.site.sockets().is_empty().then_some(()));
    assert_eq!(stuck.exit_code(), None);
    // The rings that the pull has mapped stay readable, and the bytes that it missed are reported.
    let stuck = Reading { process: stuck, stdout: collect(unread), stderr };
    assert!(stuck.check() > 0);
}
