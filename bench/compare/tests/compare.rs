//! The comparison as users run it, with the subjects that are installed.
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

const COMPARE: &str = env!("CARGO_BIN_EXE_iof-compare");

/// Returns the command of a quick comparison of the workloads whose names contain `workload`.
fn quick(workload: &str) -> Command {
    build_iof();
    let mut command = Command::new(COMPARE);
    command.args(["--quick", "--only", workload]);
    command
}

/// Builds `iof` into the directory of `iof-compare`, unless it is there already. Testing this
/// package alone does not build the programs of other packages.
fn build_iof() {
    let profile = Path::new(COMPARE).parent().unwrap();
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
    // Shows the subjects that were skipped.
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());

    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("\n80-byte lines to a pipe, 8 ranks\n"), "{table}");
    assert!(table.contains("\n  bare loop "), "{table}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.path().join("report.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let bare = rows.iter().find(|row| row["system"] == "bare loop").unwrap();
    // The bare loop does not cut lines, because each line is one write to a pipe, and the kernel
    // returns whole writes.
    assert_eq!(bare["verdict"]["lines"]["whole"], bare["verdict"]["lines"]["written"], "{bare}");
    assert!(bare["figures"]["cpu_per_million_lines"]["median"].as_f64().unwrap() > 0.0, "{bare}");
    assert!(directory.path().join("80-byte-lines-to-a-pipe-cpu-s-m-lines.svg").exists());
}

#[test]
fn an_unknown_workload_is_an_error_even_beside_a_known_one() {
    let output = Command::new(COMPARE)
        .args(["--quick", "--only", "latency", "--only", "no such work"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("unknown workload 'no such work': expected a part of"), "{stderr}");
    assert!(stderr.contains("\n  latency of a lone line, 1 rank\n"), "{stderr}");
}

#[test]
fn a_comparison_without_iof_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("iof-compare");
    assert!(Command::new("cp").arg(COMPARE).arg(&alone).status().unwrap().success());
    let output = Command::new(alone).args(["--quick"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("iof run is required") && stderr.contains("cargo build --release -p iof-cli"),
        "{stderr}"
    );
}

#[test]
fn the_report_is_written_even_if_stdout_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = quick("latency of a lone line, 1 rank");
    let output = command.arg("--out").arg(directory.path()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot print the tables: ") && !stderr.contains("panicked"), "{stderr}");
    let report: Value =
        serde_json::from_slice(&fs::read(directory.path().join("report.json")).unwrap()).unwrap();
    assert!(!report["rows"].as_array().unwrap().is_empty());
}

#[test]
fn a_signal_ends_the_comparison_and_leaves_no_process_and_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let left = || fs::read_dir(&directory).unwrap().count();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut command = quick("bulk");
        command.env("TMPDIR", directory.path()).env(MARK, directory.path());
        let mut comparison = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The comparison itself consists of two processes.
        while marked(directory.path()).len() <= 2 {
            assert!(comparison.try_wait().unwrap().is_none(), "the comparison started no job");
            sleep(Duration::from_millis(1));
        }
        assert!(left() > 0);
        kill(Pid::from_raw(comparison.id() as i32), signal).unwrap();
        assert_eq!(comparison.wait().unwrap().signal(), Some(signal as i32));
        assert_eq!((left(), marked(directory.path())), (0, vec![]));
    }
}

#[test]
fn a_signal_while_launchers_are_searched_for_leaves_no_process_and_no_file() {
    let (directory, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let launcher = "#!/bin/sh\nmktemp >$0.started\nexec sleep 1000\n";
    // Written by another process: a descriptor of this one may be in processes that other tests start,
    // and a file that is open for writing cannot be executed.
    let script = "printf '%s' \"$1\" >$0 && chmod +x $0";
    let name = programs.path().join("mpirun.openmpi");
    assert!(Command::new("sh").args(["-c", script]).arg(&name).arg(launcher).status().unwrap().success());
    let mut command = quick("bulk");
    command.env("TMPDIR", directory.path()).env(MARK, directory.path());
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mut comparison = command.env("PATH", path).stdout(Stdio::null()).spawn().unwrap();
    while fs::read(name.with_extension("openmpi.started")).unwrap_or_default().is_empty() {
        assert!(comparison.try_wait().unwrap().is_none(), "the comparison searched for no launcher");
        sleep(Duration::from_millis(1));
    }
    kill(Pid::from_raw(comparison.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(comparison.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
    assert_eq!((fs::read_dir(&directory).unwrap().count(), marked(directory.path())), (0, vec![]));
}

/// The environment variable that marks the processes of a comparison.
const MARK: &str = "IOF_BENCH_TEST";

/// Returns the processes in whose environment [`MARK`] has this value.
fn marked(mark: &Path) -> Vec<PathBuf> {
    let variable = format!("{MARK}={}", mark.display());
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let has_it = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    processes.filter(has_it).collect()
}
