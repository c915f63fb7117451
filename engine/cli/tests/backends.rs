//! `--backend`, and machines that refuse io_uring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::bytes::{assert_same, noise};
use common::process::Process;
use common::site::{BACKENDS, Site, rank};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// What `f` gives where the kernel refuses io_uring, as it does in many a container: on a thread of
/// its own, whose children inherit that.
fn without_io_uring<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    let body = || {
        seccompiler::apply_filter(&filter).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// What the engine's descriptors are, see proc_pid_fd(5).
fn descriptors(run: &Process) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", run.pid())).unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect()
}

fn has_io_uring(run: &Process) -> bool {
    descriptors(run).iter().any(|target| target.to_string_lossy().contains("io_uring"))
}

/// Runs a rank that writes a mebibyte, and looks whether the engine has an io_uring meanwhile; also
/// what `iof` says.
fn works_with_io_uring(site: &Site) -> (bool, String) {
    let mut end = site.gate("end");
    let mut run = site.run(&[], rank(["--length", "1048576", "--gate", &format!("1048576:{}", end.path())]));
    let (stdout, stderr) = run.collect();
    site.wait_for_bytes(0, "stdout", 1 << 20);
    let uring = has_io_uring(&run);
    end.open();
    assert_same("stdout", &stdout.get(), &noise(0, "stdout", 0, 1 << 20));
    assert_eq!(run.wait(), 0);
    (uring, String::from_utf8(stderr.get()).unwrap())
}

#[test]
fn the_backend_that_was_asked_for_does_the_work() {
    let work = |backend| works_with_io_uring(&Site::on(backend));
    assert_eq!(BACKENDS.map(work), [(true, String::new()), (false, String::new())]);
}

#[test]
fn where_io_uring_is_refused_the_job_runs_on_epoll_unasked() {
    let (uring, said) = without_io_uring(|| works_with_io_uring(&Site::on_any_backend()));
    assert!(!uring);
    let [line] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(line.contains("falls back on epoll") && line.contains("io_uring"), "{line}");
}

#[test]
fn io_uring_asked_for_where_it_is_refused_is_one_line_that_says_why_and_what_to_do() {
    let done = without_io_uring(|| Site::on("io-uring").run(&[], ["true"]).finish());
    assert_eq!(done.code, 2, "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    for said in ["iof: io_uring is refused", "seccomp", "--backend epoll"] {
        assert!(done.stderr.contains(said), "'{said}' is not in {done:?}");
    }
}
