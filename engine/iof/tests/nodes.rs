//! The example of a launcher of several nodes, run as its users run it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns the path of the example, which Cargo builds with all targets of this crate.
fn example() -> PathBuf {
    let own = env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples/nodes");
    assert!(path.exists(), "{} is missing: run cargo build -p ioforward --examples", path.display());
    path
}

/// Runs `script` as two ranks on each of two hosts.
fn run(script: &str) -> Output {
    Command::new(example()).args(["sh -c", "a,b", "sh", "-c", script]).output().unwrap()
}

#[test]
fn an_embedder_runs_a_job_on_two_nodes_and_has_all_output_on_its_stdout() {
    let output = run("echo rank $IOF_RANK");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0", "rank 1", "rank 2", "rank 3"], "{:?}", output.stderr);
    assert!(output.status.success());
}

#[test]
fn the_exit_code_of_a_rank_on_another_node_is_that_of_the_embedder() {
    let output = run("if [ $IOF_RANK = 3 ]; then exit 7; fi");
    assert_eq!(output.status.code(), Some(7), "{:?}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_carrier_that_starts_nothing_is_an_error_that_names_the_host() {
    let output = Command::new(example()).args(["false", "a", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("cannot start ranks on a: its carrier ended with exit status: 1"), "{message}");
}
