//! `iof inspect` on the rings of a real `iof run`: running, stopped, killed. Nothing here waits for
//! time to pass.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use iof_shm_ring::{Policy, ReaderPage, Ring, Start, Stream, StreamConfig, doorbell};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(60);

/// An `iof run` whose one rank said what it had to and reads its stdin until we are gone.
struct Job {
    iof: Child,
    _rendezvous: TempDir,
}

impl Job {
    fn start(says: &str) -> Job {
        let rendezvous = tempfile::tempdir().unwrap();
        let mut iof = Command::new(env!("CARGO_BIN_EXE_iof"));
        iof.arg("run").arg("--rendezvous-dir").arg(rendezvous.path()).args(["--nspace", "demo", "--"]);
        iof.args(["sh", "-c", &format!("{says}; cat >/dev/null")]);
        let iof = iof.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Job { iof, _rendezvous: rendezvous }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.iof.id() as i32), signal).unwrap();
    }

    /// The file of the ring with this label, once the source has produced so much.
    fn ring(&self, label: &str, produced: u64) -> PathBuf {
        wait_for(label, || {
            let files = fs::read_dir(format!("/proc/{}/fd", self.iof.id())).ok()?;
            let mut files = files.map(|file| file.unwrap().path());
            files.find(|file| {
                let is_ring =
                    fs::read_link(file).is_ok_and(|target| target.to_string_lossy().contains("iof-ring"));
                // It may be closed between the two.
                let page = is_ring.then(|| inspect(file, &["--json"]));
                page.filter(|page| page.status.success()).is_some_and(|page| {
                    let page: Value = serde_json::from_slice(&page.stdout).unwrap();
                    page["label"] == label && page["produced"] == produced
                })
            })
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.iof.kill();
        // Closes the rank's stdin as well, which ends it.
        let _ = self.iof.wait();
    }
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {DEADLINE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn inspect(ring: impl AsRef<Path>, options: &[&str]) -> Output {
    let mut iof = Command::new(env!("CARGO_BIN_EXE_iof"));
    iof.arg("inspect").arg(ring.as_ref()).args(options).stdin(Stdio::null()).output().unwrap()
}

fn json(ring: impl AsRef<Path>) -> Value {
    let output = inspect(ring, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn page(ring: impl AsRef<Path>) -> String {
    let output = inspect(ring, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The cached bytes; what stands beside them is the page.
fn bytes(ring: impl AsRef<Path>) -> Vec<u8> {
    let output = inspect(ring, &["--bytes"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.starts_with(b"label "), "{output:?}");
    output.stdout
}

/// Lets our children have a descriptor by its number, which is given.
fn inherited(fd: impl AsFd) -> String {
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    fd.as_fd().as_raw_fd().to_string()
}

#[test]
fn a_running_writers_rings_can_be_told_apart_and_read() {
    let job = Job::start(r"printf 'hello\n'; printf 'oops\n\0' >&2");
    let (out, err) = (job.ring("demo.0 stdout", 6), job.ring("demo.0 stderr", 6));
    assert_eq!(bytes(&out), b"hello\n");
    assert_eq!(bytes(&err), b"oops\n\0");
    let said = json(&out);
    assert_eq!(said["writer_pid"], job.iof.id());
    assert_eq!(said["writer"], "running");
    let numbers = ["generation", "base", "dropped", "floor", "tail", "cached"].map(|field| &said[field]);
    assert_eq!(numbers, [0, 0, 0, 0, 6, 6]);
    assert_eq!([&said["sealed"], &said["complete"], &said["wanted"]], [&Value::Null; 3]);
    assert_eq!(said["gaps"], Value::Array(vec![]));
    assert_eq!(said["marks"][0]["position"], 0);
    assert!(said["marks"][0]["time"].as_str().unwrap().ends_with('Z'));
    let page = page(&out);
    for line in
        ["label       demo.0 stdout", "state       open", "cached      6, from 0 to 6", "gaps        0"]
    {
        assert!(page.lines().any(|found| found == line), "no {line:?} in\n{page}");
    }
}

#[test]
fn a_stopped_writers_ring_can_be_read() {
    let job = Job::start("printf 'before the stop'");
    let ring = job.ring("demo.0 stdout", 15);
    job.signal(Signal::SIGSTOP);
    wait_for("the stop", || (json(&ring)["writer"] == "stopped").then_some(()));
    assert_eq!(bytes(&ring), b"before the stop");
}

#[test]
fn a_killed_writers_ring_can_be_read_by_whoever_still_has_it() {
    let job = Job::start("printf 'last words'");
    let file = File::open(job.ring("demo.0 stdout", 10)).unwrap();
    let number = inherited(&file);
    job.signal(Signal::SIGKILL);
    // Not reaped yet, so that no other process can have its number.
    let said = wait_for("the end", || Some(json(&number)).filter(|said| said["writer"] == "dead"));
    assert_eq!(said["complete"], Value::Null);
    assert_eq!(bytes(&number), b"last words");
    assert_eq!(bytes(format!("/proc/{}/fd/{number}", std::process::id())), b"last words");
}

#[test]
fn a_killed_writers_ring_that_is_only_mapped_can_be_read_by_root() {
    let job = Job::start("printf 'last words'");
    // As a tool has it: its map keeps no descriptor.
    let _tool = Ring::open(File::open(job.ring("demo.0 stdout", 10)).unwrap().into()).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let map = maps.lines().find(|line| line.contains("iof-ring") && line.contains(" 00000000 ")).unwrap();
    let path = format!("/proc/{}/map_files/{}", std::process::id(), map.split(' ').next().unwrap());
    if File::open(&path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        return eprintln!("skipped: {path} is for who has CAP_CHECKPOINT_RESTORE");
    }
    job.signal(Signal::SIGKILL);
    let said = wait_for("the end", || Some(json(&path)).filter(|said| said["writer"] == "dead"));
    assert_eq!(said["label"], "demo.0 stdout");
    assert_eq!(bytes(&path), b"last words");
}

#[test]
fn losses_and_ends_stand_on_the_page_and_no_label_speaks_to_the_terminal() {
    let config = StreamConfig { capacity: 4096, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bad \x1b[2J").unwrap();
    let area = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let attached = stream.attach(&area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
    let number = inherited(attached.ring.as_fd().unwrap());
    stream.push(b"12345", 1_000_000_007);
    stream.discard(30, 2_000_000_000);
    stream.push(b"67", 3_000_000_000);
    stream.complete();
    let said = json(&number);
    assert_eq!(said["gaps"], serde_json::json!([{"offset": 5, "lost": 30}]));
    assert_eq!((&said["produced"], &said["complete"]), (&37.into(), &7.into()));
    let page = page(&number);
    for line in [
        r"label       bad \u{1b}[2J",
        "state       complete at 7",
        "dropped     30",
        "LOST AT  BYTES",
        "5        30",
        "0         1970-01-01T00:00:01.000000007Z  0",
        "5         1970-01-01T00:00:03.000000000Z  30",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line:?} in\n{page}");
    }
    assert_eq!(bytes(&number), b"1234567");
}

#[test]
fn what_is_no_ring_gets_one_line_and_exit_code_2() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let fifo = tempfile::tempdir().unwrap();
    let fifo_path = fifo.path().join("fifo");
    nix::unistd::mkfifo(&fifo_path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (empty, fifo_path) = (empty.path(), fifo_path.as_path());
    for wrong in [Path::new("4000000000"), Path::new("0"), Path::new("/nonexistent"), empty, fifo_path] {
        let output = inspect(wrong, &[]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("iof: ") && stderr.lines().count() == 1, "{wrong:?}: {stderr}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_iof")).arg("inspect").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("ls -l /proc/PID/fd | grep iof-ring") && stderr.lines().count() == 1, "{stderr}");
}
