//! The command line of the simulator.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn an_invalid_argument_is_refused_in_one_line_with_its_name() {
    for (arguments, name) in [
        (&["--seconds"][..], "--seconds"),
        (&["--from", "18446744073709551616"], "--from"),
        (&["--seed", "1", "--steps", "-1"], "-1"),
        (&["--agents", "--nodes", "4294967296"], "--nodes"),
        (&["--step", "5"], "--step"),
        (&["--streams", "--agents"], "--streams"),
        (&["--linked"], "--agents"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_iof-sim")).args(arguments).output().unwrap();
        let lines = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), lines.lines().count()), (Some(2), 1), "{arguments:?}: {lines}");
        assert!(lines.starts_with("error: ") && lines.contains(name), "{arguments:?}: {lines}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
}

#[test]
fn help_is_printed_without_a_run() {
    let output = Command::new(env!("CARGO_BIN_EXE_iof-sim")).arg("--help").output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"Executes random scripts"));
}
