//! [`iof::Launcher`] as a program that uses it runs it: in a process of its own, whose output is
//! read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

use iof::prelude::*;

/// The environment variable with the script that the ranks run.
const SCRIPT: &str = "IOF_TEST_SCRIPT";
/// The environment variable with the number of files that the launcher may open.
const FILES: &str = "IOF_TEST_FILES";
/// The exit code of a launcher that failed.
const FAILED: i32 = 77;
/// The environment variable with the file that becomes the launcher's stdout, if not a pipe.
const STDOUT: &str = "IOF_TEST_STDOUT";

/// Not a test of its own: runs the launcher if a test below has started this program for that.
#[test]
fn runs_the_script_of_another_test() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    if let Ok(path) = std::env::var(STDOUT) {
        nix::unistd::dup2_stdout(File::options().write(true).open(path).unwrap()).unwrap();
    }
    if let Ok(files) = std::env::var(FILES) {
        let files = files.parse().unwrap();
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, files, files).unwrap();
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
            let _ = writeln!(std::io::stderr(), "{}: {error}", variant(&error));
            std::process::exit(FAILED);
        }
    }
}

fn variant(error: &RunError) -> &'static str {
    match error {
        RunError::Start(_) => "start",
        RunError::Launch(_) => "launch",
        RunError::Attach(_) => "attach",
        RunError::Pull(_) => "pull",
        RunError::Output(_) => "output",
        RunError::Print(_) => "print",
        _ => "unknown",
    }
}

/// Returns the command of a launcher whose three ranks run `script`.
fn launcher(script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // With one test thread, the default on one processor, the harness writes the start of a line first.
    command.args(["--exact", "runs_the_script_of_another_test", "--nocapture", "--test-threads=2"]);
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
    assert_eq!(output.status.code(), Some(FAILED));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "print: cannot write the output: No space left on device (os error 28)\n");
}

#[test]
fn output_to_a_closed_stdout_is_an_error_and_no_output_is_none() {
    // The test harness reports a test only if its stdout can be written.
    let closed = |script: &str, redirection: &str| {
        let launcher = launcher(script);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}")).arg(launcher.get_program());
        shell.args(launcher.get_args()).env(SCRIPT, script).stdin(Stdio::null());
        shell.output().unwrap()
    };
    let output = closed("echo lost", ">&-");
    assert_eq!(output.status.code(), Some(FAILED), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "print: cannot write the output: Bad file descriptor (os error 9)\n");
    assert_eq!(closed("echo lost >&2", "2>&-").status.code(), Some(FAILED));
    let output = closed("echo kept >&2", ">&-");
    assert_eq!((output.status.code(), output.stderr), (Some(0), b"kept\nkept\nkept\n".to_vec()));
}

#[test]
fn ranks_are_ended_if_only_their_stderr_cannot_be_written() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = launcher("while echo more >&2; do :; done").stdout(Stdio::null()).stderr(full).status();
    assert_eq!(status.unwrap().code(), Some(FAILED));
}

#[test]
fn a_launcher_without_enough_files_says_which_limit_to_raise_and_to_what() {
    let fail = |files: u64| {
        let output = launcher("true").env(FILES, files.to_string()).output().unwrap();
        assert_eq!(output.status.code(), Some(FAILED), "{files} files: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    /// Returns the limit that the message names.
    fn limit(message: &str) -> u64 {
        let (_, rest) = message.split_once("raise it to ").unwrap_or_else(|| panic!("{message}"));
        rest.split_once(' ').unwrap().0.parse().unwrap()
    }
    let no_engine = fail(20);
    assert!(no_engine.starts_with("start: too few files for an engine and one rank: "), "{no_engine}");
    let no_job = fail(limit(&no_engine));
    assert!(no_job.starts_with("launch: too few files for 3 ranks: "), "{no_job}");
    let enough = launcher("true").env(FILES, limit(&no_job).to_string()).output().unwrap();
    assert!(enough.status.success(), "{enough:?}");
}

/// An engine in the same process has no reason to refuse its launcher's readers.
#[test]
fn errors_of_the_readers_tell_that_the_output_is_concerned() {
    let refused = Failure::new(Status::ERR_NO_PERMISSIONS, "not granted");
    let (status, reason) = (refused.status, refused.reason.clone());
    let denied = |by: &str| format!("cannot read the job's output: {by}not granted ({status})");
    let errors: [(RunError, String); 3] = [
        (
            iof::tool::AttachError::Refused { status, reason }.into(),
            format!("attach: {}", denied("the engine refused the connection: ")),
        ),
        (iof::tool::RequestError::from(refused).into(), format!("pull: {}", denied(""))),
        (
            std::io::Error::from_raw_os_error(nix::libc::EMFILE).into(),
            "output: cannot write the job's output: Too many open files (os error 24)".into(),
        ),
    ];
    for (error, text) in errors {
        assert_eq!(format!("{}: {error}", variant(&error)), text);
    }
}

#[test]
fn a_rank_that_a_signal_kills_ends_the_job() {
    let output = launcher("[ $IOF_RANK = 1 ] && kill -KILL $$; exec sleep 1000").output().unwrap();
    assert_eq!(output.status.code(), Some(137));
}
