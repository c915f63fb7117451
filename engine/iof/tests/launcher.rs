//! [`iof::Launcher`] as a program that uses it runs it: in a process of its own, whose output is
//! read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

use iof::prelude::*;

/// The environment variable with the script that the ranks run.
const SCRIPT: &str = "IOF_TEST_SCRIPT";
/// The environment variable with the file that becomes the launcher's stdout, if not a pipe.
const STDOUT: &str = "IOF_TEST_STDOUT";

/// Not a test of its own: runs the launcher if a test below has started this program for that.
#[test]
fn runs_the_script_of_another_test() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    if let Ok(path) = std::env::var(STDOUT) {
        nix::unistd::dup2_stdout(File::options().write(true).open(path).unwrap()).unwrap();
    }
    let nspace = Nspace::new(format!("test-{}", std::process::id())).unwrap();
    let ranks = App::new("sh", ["-c", &script]).ranks(3);
    let launcher = Launcher::new(nspace).app(ranks).config(|config| {
        config.rendezvous = iof::engine::Rendezvous::None;
    });
    match launcher.run() {
        Ok(status) => std::process::exit(status.code()),
        Err(error) => {
            // A test may have made stderr unwritable.
            let _ = writeln!(std::io::stderr(), "{error}");
            std::process::exit(77);
        }
    }
}

/// Returns the command of a launcher whose three ranks run `script`.
fn launcher(script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "runs_the_script_of_another_test", "--nocapture"]);
    command.env(SCRIPT, script).stdin(Stdio::null());
    command
}

#[test]
fn all_output_is_written_before_the_call_returns_the_first_failure() {
    let script = "seq 100000; echo end >&2; [ $IOF_RANK != 1 ] || exit 3";
    let output = launcher(script).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.lines().filter(|line| *line == "100000").count(), 3);
    assert_eq!(stdout.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 300_000);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "end\nend\nend\n");
}

#[test]
fn ranks_are_ended_if_their_output_cannot_be_written() {
    let output = launcher("while echo more; do :; done").env(STDOUT, "/dev/full").output().unwrap();
    assert_eq!(output.status.code(), Some(77));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("No space left on device"), "{stderr}");
}

#[test]
fn ranks_are_ended_if_only_their_stderr_cannot_be_written() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = launcher("while echo more >&2; do :; done").stdout(Stdio::null()).stderr(full).status();
    assert_eq!(status.unwrap().code(), Some(77));
}
