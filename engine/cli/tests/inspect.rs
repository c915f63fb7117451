//! `iof inspect` on the rings of a real `iof run` that runs, is stopped, or was killed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use iof_shm_ring::{Policy, ReaderPage, Ring, Start, Stream, StreamConfig, doorbell};
use iof_testing::wait_for;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// An `iof run` with one rank, which runs a command and then reads its stdin until the test ends.
struct Job {
    iof: Child,
    _rendezvous: TempDir,
}

impl Job {
    fn start(command: &str) -> Job {
        let rendezvous = tempfile::tempdir().unwrap();
        let mut iof = Command::new(env!("CARGO_BIN_EXE_iof"));
        iof.arg("run").arg("--rendezvous-dir").arg(rendezvous.path()).args(["--nspace", "demo", "--"]);
        iof.args(["sh", "-c", &format!("{command}; cat >/dev/null")]);
        let iof = iof.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Job { iof, _rendezvous: rendezvous }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.iof.id() as i32), signal).unwrap();
    }

    /// Waits until the stream with this label has produced `produced` bytes, and returns the file
    /// of its ring.
    fn ring(&self, label: &str, produced: u64) -> PathBuf {
        wait_for(label, || {
            let files = fs::read_dir(format!("/proc/{}/fd", self.iof.id())).ok()?;
            let mut files = files.map(|file| file.unwrap().path());
            files.find(|file| {
                let is_ring =
                    fs::read_link(file).is_ok_and(|target| target.to_string_lossy().contains("iof-ring"));
                // The descriptor may be closed meanwhile.
                let output = is_ring.then(|| inspect(file, &["--json"]));
                output.filter(|output| output.status.success()).is_some_and(|output| {
                    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                    report["label"] == label && report["produced"] == produced
                })
            })
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.iof.kill();
        // This also closes the stdin of the rank, which ends the rank.
        let _ = self.iof.wait();
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

fn text(ring: impl AsRef<Path>) -> String {
    let output = inspect(ring, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the cached bytes, and checks that the report is on stderr.
fn bytes(ring: impl AsRef<Path>) -> Vec<u8> {
    let output = inspect(ring, &["--bytes"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.starts_with(b"label "), "{output:?}");
    output.stdout
}

/// Makes a descriptor inheritable by child processes, and returns its number.
fn inherited(fd: impl AsFd) -> String {
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    fd.as_fd().as_raw_fd().to_string()
}

#[test]
fn rings_of_a_running_writer_have_labels_and_can_be_read() {
    let job = Job::start(r"printf 'hello\n'; printf 'oops\n\0' >&2");
    let (out, err) = (job.ring("demo.0 stdout", 6), job.ring("demo.0 stderr", 6));
    assert_eq!(bytes(&out), b"hello\n");
    assert_eq!(bytes(&err), b"oops\n\0");
    let report = json(&out);
    assert_eq!(report["writer_pid"], job.iof.id());
    assert_eq!(report["writer"], "running");
    let numbers = ["generation", "base", "dropped", "floor", "tail", "cached"].map(|field| &report[field]);
    assert_eq!(numbers, [0, 0, 0, 0, 6, 6]);
    assert_eq!([&report["sealed"], &report["complete"], &report["wanted"]], [&Value::Null; 3]);
    assert_eq!(report["gaps"], Value::Array(vec![]));
    assert_eq!(report["marks"][0]["position"], 0);
    assert!(report["marks"][0]["time"].as_str().unwrap().ends_with('Z'));
    let text = text(&out);
    for line in
        ["label       demo.0 stdout", "state       open", "cached      6, from 0 to 6", "gaps        0"]
    {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
    }
}

#[test]
fn the_ring_of_a_stopped_writer_can_be_read() {
    let job = Job::start("printf 'before the stop'");
    let ring = job.ring("demo.0 stdout", 15);
    job.signal(Signal::SIGSTOP);
    wait_for("the stop", || (json(&ring)["writer"] == "stopped").then_some(()));
    assert_eq!(bytes(&ring), b"before the stop");
}

#[test]
fn the_ring_of_a_killed_writer_can_be_read_through_a_descriptor() {
    let job = Job::start("printf 'last words'");
    let file = File::open(job.ring("demo.0 stdout", 10)).unwrap();
    let number = inherited(&file);
    job.signal(Signal::SIGKILL);
    // The process is not reaped yet, so that its pid is not reused.
    let report = wait_for("the end", || Some(json(&number)).filter(|report| report["writer"] == "dead"));
    assert_eq!(report["complete"], Value::Null);
    assert_eq!(bytes(&number), b"last words");
    assert_eq!(bytes(format!("/proc/{}/fd/{number}", std::process::id())), b"last words");
}

#[test]
fn the_ring_of_a_killed_writer_that_is_only_mapped_can_be_read_by_root() {
    let job = Job::start("printf 'last words'");
    // A tool maps the ring and closes the descriptor.
    let file = File::open(job.ring("demo.0 stdout", 10)).unwrap();
    // Other tests of this process map rings, too.
    let inode = file.metadata().unwrap().ino().to_string();
    let _tool = Ring::open(file.into()).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    // The offset, the device, the inode and the path follow the addresses and permissions, see
    // proc_pid_maps(5).
    let is_start = |map: &&str| {
        let fields: Vec<&str> = map.split_whitespace().collect();
        fields[2] == "00000000" && fields[4] == inode
    };
    let map = maps.lines().find(is_start).unwrap();
    let path = format!("/proc/{}/map_files/{}", std::process::id(), map.split(' ').next().unwrap());
    if File::open(&path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        return eprintln!("skipped: {path} needs CAP_CHECKPOINT_RESTORE");
    }
    job.signal(Signal::SIGKILL);
    let report = wait_for("the end", || Some(json(&path)).filter(|report| report["writer"] == "dead"));
    assert_eq!(report["label"], "demo.0 stdout");
    assert_eq!(bytes(&path), b"last words");
}

#[test]
fn the_report_shows_losses_and_the_end_and_escapes_the_label() {
    let config = StreamConfig { capacity: 4096, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bad \x1b[2J").unwrap();
    let reader_page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    let attached =
        stream.attach(&reader_page, reader_page.take_slot().unwrap(), Start::Oldest, false).unwrap();
    let number = inherited(attached.ring.as_fd().unwrap());
    stream.push(b"12345", 1_000_000_007);
    stream.discard(30, 2_000_000_000);
    stream.push(b"67", 3_000_000_000);
    stream.complete();
    let report = json(&number);
    assert_eq!(report["gaps"], serde_json::json!([{"offset": 5, "lost": 30}]));
    assert_eq!((&report["produced"], &report["complete"]), (&37.into(), &7.into()));
    let text = text(&number);
    for line in [
        r"label       bad \u{1b}[2J",
        "state       complete at 7",
        "dropped     30",
        "LOST AT  BYTES",
        "5        30",
        "0         1970-01-01T00:00:01.000000007Z  0",
        "5         1970-01-01T00:00:03.000000000Z  30",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
    }
    assert_eq!(bytes(&number), b"1234567");
}

#[test]
fn a_file_that_is_not_a_ring_is_rejected_in_one_line() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let fifo = tempfile::tempdir().unwrap();
    let fifo_path = fifo.path().join("fifo");
    nix::unistd::mkfifo(&fifo_path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (empty, fifo_path) = (empty.path(), fifo_path.as_path());
    for invalid in [Path::new("4000000000"), Path::new("0"), Path::new("/nonexistent"), empty, fifo_path] {
        let output = inspect(invalid, &[]);
        assert_eq!(output.status.code(), Some(2), "{invalid:?}: {output:?}");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("iof: ") && stderr.lines().count() == 1, "{invalid:?}: {stderr}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_iof")).arg("inspect").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("ls -l /proc/PID/fd | grep iof-ring") && stderr.lines().count() == 1, "{stderr}");
}
