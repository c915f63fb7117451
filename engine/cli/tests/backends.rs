//! `--backend`, and machines that forbid io_uring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use iof_testing::bytes::{assert_same, noise};
use iof_testing::command::site::{BACKENDS, Site, rank};
use iof_testing::process::Process;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Runs `body` on a thread on which the kernel refuses io_uring, as in many containers. Child
/// processes inherit the refusal.
fn without_io_uring<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    let filtered = || {
        seccompiler::apply_filter(&filter).unwrap();
        body()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join().unwrap())
}

/// Returns the targets of the engine's descriptors, see proc_pid_fd(5).
fn descriptors(run: &Process) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", run.pid())).unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect()
}

fn has_io_uring(run: &Process) -> bool {
    descriptors(run).iter().any(|target| target.to_string_lossy().contains("io_uring"))
}

/// Returns whether a message is about the cost of forwarding.
fn is_cost(message: &str) -> bool {
    let is_channel = |name| message.starts_with(&format!("iof: timings: {name} "));
    let is_other = ["CPU of iof itself", "timings: MPI "].iter().any(|text| message.contains(text));
    is_other || ["stdout", "stderr", "stddiag"].into_iter().any(is_channel)
}

/// Runs a rank that writes a mebibyte. Returns whether the engine has an io_uring meanwhile, and
/// the only message of `iof` that is not about the cost of forwarding.
fn run_rank(site: &Site) -> (bool, String) {
    let mut end = site.gate("end");
    let gate = format!("1048576:{}", end.path());
    let mut run = site.run(&["--timings"], rank(["--length", "1048576", "--gate", &gate]));
    let (stdout, stderr) = run.collect();
    site.wait_for_bytes(0, "stdout", 1 << 20);
    let has_uring = has_io_uring(&run);
    end.open();
    assert_same("stdout", &stdout.get(), &noise(0, "stdout", 0, 1 << 20));
    assert_eq!(run.wait(), 0);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let messages: Vec<&str> = stderr.lines().filter(|line| !is_cost(line)).collect();
    let [backend] = messages[..] else { panic!("{stderr}") };
    (has_uring, backend.into())
}

#[test]
fn the_requested_backend_is_used() {
    let run_on = |backend| run_rank(&Site::on(backend));
    let reported = |name| format!("iof: timings: backend {name}");
    assert_eq!(BACKENDS.map(run_on), [(true, reported("io_uring")), (false, reported("epoll"))]);
}

#[test]
fn without_io_uring_the_job_runs_on_epoll_and_only_timings_tell() {
    let (has_uring, message) = without_io_uring(|| run_rank(&Site::on_default_backend()));
    assert!(!has_uring);
    assert!(message.starts_with("iof: timings: backend epoll; io_uring is refused"), "{message}");
    let done = without_io_uring(|| Site::on_default_backend().run(&[], ["true"]).finish());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn requested_io_uring_that_is_refused_is_reported_with_cause_and_remedy() {
    let done = without_io_uring(|| Site::on("io-uring").run(&[], ["true"]).finish());
    assert_eq!(done.code, 2, "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    for part in ["iof: io_uring is refused", "seccomp", "--backend epoll"] {
        assert!(done.stderr.contains(part), "no '{part}' in {done:?}");
    }
}
