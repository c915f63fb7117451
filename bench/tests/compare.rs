//! The comparison as its users run it, with what is installed here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_iof-bench");

/// A short comparison of the works that have this in their names, with iof beside it.
fn quick(work: &str) -> Command {
    build_iof();
    let mut command = Command::new(BENCH);
    command.args(["compare", "--quick", "--only", work]);
    command
}

/// Has it built beside iof-bench, unless it is there already: who tests this package alone gets no other's programs.
fn build_iof() {
    let profile = Path::new(BENCH).parent().unwrap();
    if profile.join("iof").exists() {
        return;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "iof-cli", "--target-dir"]).arg(profile.parent().unwrap());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
}

#[test]
fn a_quick_comparison_ends_with_a_table_a_report_and_plots() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = quick("80-byte lines to a pipe, 8 ranks");
    let output = command.arg("--out").arg(directory.path()).output().unwrap();
    // What is not installed is named here.
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());

    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("\n80-byte lines to a pipe, 8 ranks\n"), "{table}");
    assert!(table.contains("\n  bare loop "), "{table}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.path().join("report.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let bare = rows.iter().find(|row| row["system"] == "bare loop").unwrap();
    // Lines that no reader's piece cuts: what the kernel takes at once from a rank it gives at once.
    assert_eq!(bare["verdict"]["lines"]["whole"], bare["verdict"]["lines"]["written"], "{bare}");
    assert!(bare["figures"]["cpu_per_million_lines"]["median"].as_f64().unwrap() > 0.0, "{bare}");
    assert!(directory.path().join("80-byte-lines-to-a-pipe-cpu-s-m-lines.svg").exists());
}

#[test]
fn a_work_that_there_is_not_is_no_comparison_even_beside_one_that_there_is() {
    let output = Command::new(BENCH)
        .args(["compare", "--quick", "--only", "latency", "--only", "no such work"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("No work has a name with no such work in it."), "{said}");
    assert!(said.contains("\n  latency of a lone line, 1 rank\n"), "{said}");
}

#[test]
fn without_iof_there_is_no_comparison() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("iof-bench");
    fs::copy(BENCH, &alone).unwrap();
    let output = Command::new(alone).args(["compare", "--quick"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("iof run is needed") && said.contains("cargo build --release -p iof-cli"),
        "{said}"
    );
}

#[test]
fn on_a_full_stdout_the_report_is_written_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = quick("latency of a lone line, 1 rank");
    let output = command.arg("--out").arg(directory.path()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("The tables can't be printed: ") && !said.contains("panicked"), "{said}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.path().join("report.json")).unwrap()).unwrap();
    assert!(!report["rows"].as_array().unwrap().is_empty());
}

#[test]
fn a_signal_ends_the_comparison_and_all_that_belongs_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let left = || fs::read_dir(&directory).unwrap().count();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut command = quick("bulk");
        command.env("TMPDIR", directory.path()).env(MARK, directory.path());
        let mut comparison = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Two are the comparison itself.
        while marked(directory.path()).len() <= 2 {
            assert!(comparison.try_wait().unwrap().is_none(), "it began nothing");
            sleep(Duration::from_millis(1));
        }
        assert!(left() > 0);
        kill(Pid::from_raw(comparison.id() as i32), signal).unwrap();
        assert_eq!(comparison.wait().unwrap().signal(), Some(signal as i32));
        assert_eq!((left(), marked(directory.path())), (0, vec![]));
    }
}

/// The variable by which all that belongs to a comparison is found.
const MARK: &str = "IOF_BENCH_TEST";

/// The processes in whose environment the mark is this.
fn marked(mark: &Path) -> Vec<PathBuf> {
    let variable = format!("{MARK}={}", mark.display());
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let has_it = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    processes.filter(has_it).collect()
}
