//! The example launcher, as a process of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn the_launcher_ends_ranks_of_which_only_stderr_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    // `cargo test --test` alone does not build it.
    let program = test.parent().unwrap().with_file_name("examples").join("step_by_step");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut launcher = Command::new(&program);
    launcher.args(["2", "sh", "-c", "while echo more >&2; do :; done"]).env("TMPDIR", directory.path());
    launcher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
    let status = launcher.status().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert_eq!(status.code(), Some(128 + 15), "the code of a rank that SIGTERM has ended");
}
