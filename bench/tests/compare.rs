//! The comparison as its users run it, with what is installed here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::process::Command;

use serde_json::Value;

#[test]
fn a_quick_comparison_ends_with_a_table_a_report_and_plots() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_iof-bench"));
    command.args(["compare", "--quick", "--only", "80-byte lines to a pipe, 8 ranks", "--out"]);
    let output = command.arg(directory.path()).output().unwrap();
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
    let output = Command::new(env!("CARGO_BIN_EXE_iof-bench"))
        .args(["compare", "--quick", "--only", "latency", "--only", "no such work"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("No work has a name with no such work in it."), "{said}");
    assert!(said.contains("\n  latency of a lone line, 1 rank\n"), "{said}");
}
