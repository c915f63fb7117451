//! `--backend`, and machines that forbid io_uring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::bytes::{assert_same, noise};
use common::process::Process;
use common::site::{BACKENDS, Site, rank};
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

/// Runs a rank that writes a mebibyte. Returns whether the engine has an io_uring meanwhile, and
/// the messages of `iof`.
fn run_rank(site: &Site) -> (bool, String) {
    let mut end = site.gate("end");
    let mut run = site.run(&[], rank(["--length", "1048576", "--gate", &format!("1048576:{}", end.path())]));
    let (stdout, stderr) = run.collect();
    site.wait_for_bytes(0, "stdout", 1 << 20);
    let has_uring = has_io_uring(&run);
    end.open();
    assert_same("stdout", &stdout.get(), &noise(0, "stdout", 0, 1 << 20));
    assert_eq!(run.wait(), 0);
    (has_uring, String::from_utf8(stderr.get()).unwrap())
}

#[test]
fn the_requested_backend_is_used() {
    let run_on = |backend| run_rank(&Site::on(backend));
    assert_eq!(BACKENDS.map(run_on), [(true, String::new()), (false, String::new())]);
}

#[test]
fn without_io_uring_the_job_runs_on_epoll_by_default() {
    let (has_uring, stderr) = without_io_uring(|| run_rank(&Site::on_default_backend()));
    assert!(!has_uring);
    let [line] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    assert!(line.contains("falls back on epoll") && line.contains("io_uring"), "{line}");
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
