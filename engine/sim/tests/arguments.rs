//! The command line of the simulator.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn a_number_that_is_invalid_is_refused_in_one_line() {
    for arguments in [
        &["--seconds"][..],
        &["--from", "18446744073709551616"],
        &["--seed", "1", "--steps", "-1"],
        &["--tree", "--nodes", "4294967296"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_iof-sim")).args(arguments).output().unwrap();
        let lines = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), lines.lines().count()), (Some(2), 1), "{arguments:?}: {lines}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
}
