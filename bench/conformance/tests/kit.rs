//! The kit finds what a launcher does wrong, and accepts one that does nothing wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::process::Command;

/// A launcher of one rank that only executes it, one whose ranks share a pipe, one that loses the end of the output, one
/// that has exit code 0 always, and one that replaces a byte.
const LAUNCHERS: &str = r#"
[direct]
command = ["env", "RANK=0", "{program}"]
rank = "RANK"
version = "env --version"
options = { channels = "", stdin-first = "" }
[mixing]
command = ["sh", "-c", "n=$1; shift; for r in $(seq 0 $((n - 1))); do RANK=$r \"$@\" & done; wait", "sh", "{ranks}", "{program}"]
rank = "RANK"
version = "env --version"
options = { ranks = "" }
[losing]
command = ["sh", "-c", "RANK=0 \"$@\" | head -c 3000", "sh", "{program}"]
rank = "RANK"
version = "env --version"
[silent]
command = ["sh", "-c", "RANK=0 \"$@\"; exit 0", "sh", "{program}"]
rank = "RANK"
version = "env --version"
[changing]
command = ["sh", "-c", "RANK=0 \"$@\" | tr '\\000' ' '", "sh", "{program}"]
rank = "RANK"
version = "env --version"
"#;

/// Runs cases with a launcher. Returns the exit code and the names of those that failed.
fn failed(launcher: &str, cases: &[&str]) -> (i32, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let (table, json) = (folder.path().join("launchers.toml"), folder.path().join("results.json"));
    fs::write(&table, LAUNCHERS).unwrap();
    let mut kit = Command::new(env!("CARGO_BIN_EXE_iof-conformance"));
    kit.arg("--launchers").arg(&table).args(["--launcher", launcher]).arg("--json").arg(&json);
    kit.args(cases.iter().flat_map(|case| ["--case", case]));
    let output = kit.output().unwrap();
    let rows = fs::read_to_string(&json).unwrap();
    let rows = rows.lines().map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap());
    let failed =
        rows.filter(|row| row["result"] == "fail").map(|row| row["case"].as_str().unwrap().to_owned());
    (output.status.code().unwrap(), failed.collect())
}

#[test]
fn a_program_that_runs_without_a_launcher_passes_but_for_a_closed_stdout() {
    // Rust opens /dev/null in place of a closed stdout, into which the program itself writes without an error.
    assert_eq!(failed("direct", &[]), (1, vec!["outputs-closed".to_owned()]));
}

#[test]
fn ranks_that_share_a_pipe_keep_single_writes_whole_but_no_lines_of_a_buffer() {
    assert_eq!(
        failed("mixing", &["lines-one-write", "lines-block-4k"]),
        (1, vec!["lines-block-4k".to_owned()])
    );
}

#[test]
fn an_output_that_is_cut_is_found() {
    let (code, failed) = failed("losing", &["ends-exit", "content-noise-16m", "content-nul"]);
    assert_eq!((code, failed.len()), (1, 2), "{failed:?}");
}

#[test]
fn an_exit_code_that_hides_a_failure_is_found() {
    assert_eq!(failed("silent", &["outputs-full", "content-nul"]), (1, vec!["outputs-full".to_owned()]));
}

#[test]
fn a_byte_that_is_replaced_is_found() {
    assert_eq!(failed("changing", &["content-nul", "content-cr"]), (1, vec!["content-nul".to_owned()]));
}
