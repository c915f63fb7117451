//! Output that the C library writes itself, when something is in its way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use iof_testing::compiler::{compiler, environment, source};
use nix::sys::stat::Mode;
use nix::unistd::{gethostname, mkfifo};

/// Runs a case of the program with a shell's redirections. Returns its stdout and stderr.
fn run(case: &str, directory: &Path, redirections: &str) -> Option<[String; 2]> {
    let compiler = compiler()?;
    let program = compiler.program(&source("printing.c"), &[]);
    let mut command = Command::new("timeout");
    environment(&mut command, &program, directory);
    command.args(["--signal=KILL", "60", "sh", "-c", &format!("exec \"$@\" {redirections}"), "sh"]);
    command.arg(&program).arg(case).current_dir(directory);
    let output = iof_testing::compiler::output(&mut command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let written = [text(output.stdout), text(output.stderr)];
    assert!(output.status.success(), "{}: {written:?}", output.status);
    Some(written)
}

#[test]
fn files_of_the_library_never_have_the_numbers_of_closed_standard_files() {
    let directory = tempfile::tempdir().unwrap();
    let Some(written) = run("closed", directory.path(), "<&- >&- 2>&-") else { return };
    assert_eq!(written, ["", ""]);
}

#[test]
fn a_closed_stdin_is_not_pushed() {
    let directory = tempfile::tempdir().unwrap();
    let Some([out, err]) = run("push-stdin", directory.path(), "<&-") else { return };
    assert_eq!(
        (&*out, &*err),
        ("push -27 stdin is closed or closes on exec: open it or clear FD_CLOEXEC, or push bytes\n", "")
    );
}

#[test]
fn output_is_tagged_before_a_wait_with_external_progress_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let Some([out, err]) = run("external-progress", directory.path(), "</dev/null") else { return };
    let (tag, pid) = out.trim_end().split_once("<stdout>: ").unwrap();
    let host = gethostname().unwrap().into_string().unwrap();
    assert_eq!((tag, &*err), (&*format!("[job,0][{host}:{pid}]"), ""));
}

#[test]
fn a_host_can_answer_the_query_for_a_tag_in_the_loop_that_progresses_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let Some([out, err]) = run("answer-in-loop", directory.path(), "</dev/null") else { return };
    let texts: Vec<_> = out.lines().filter_map(|line| line.split_once("<stdout>: ")).collect();
    let texts: Vec<_> = texts.into_iter().map(|(_, text)| text).collect();
    assert_eq!((texts, &*err), (vec!["tagged", "last"], ""));
}

#[test]
fn a_flush_ends_in_time_while_output_waits_for_its_tag() {
    let directory = tempfile::tempdir().unwrap();
    let Some([out, err]) = run("flush-in-time", directory.path(), "</dev/null") else { return };
    let lines: Vec<&str> = out.lines().collect();
    let is_line = |line: &str| line.ends_with("<stdout>: x");
    assert!(matches!(lines[..], [a, "flushed", b, "flushed"] if is_line(a) && is_line(b)), "{out}");
    assert_eq!(err, "");
}

#[test]
fn a_flush_with_external_progress_calls_no_callback_after_its_time_limit() {
    let directory = tempfile::tempdir().unwrap();
    let Some(written) = run("flush-slow-callbacks", directory.path(), "</dev/null") else { return };
    assert_eq!(written, ["", ""]);
}

#[test]
fn a_job_keeps_its_format_when_another_one_of_its_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some([out, err]) = run("same-names", directory.path(), "</dev/null") else { return };
    assert_eq!((out.lines().count(), &*err), (10, ""));
    assert!(out.lines().all(|line| line.ends_with(",0]<stdout>: x")), "{out}");
}

#[test]
fn the_file_of_a_registration_contains_the_output_of_all_jobs_of_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.job.0.out");
    for _ in 0..2 {
        let Some(written) = run("one-after-the-other", directory.path(), "</dev/null") else { return };
        assert_eq!(written, ["", ""]);
        // The file of an earlier registration is emptied.
        assert_eq!(fs::read_to_string(&file).unwrap(), "first\nsecond\n");
    }
}

#[test]
fn a_fifo_without_a_reader_is_an_error_and_delays_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["fifo.out", "fifo.err"] {
        mkfifo(&directory.path().join(name), Mode::S_IRWXU).unwrap();
    }
    let Some([out, err]) = run("unread-fifo", directory.path(), "</dev/null") else { return };
    let fifo = directory.path().canonicalize().unwrap().join("fifo.out");
    let fifo = fifo.display();
    let spawned = format!("spawn -172 no process reads the FIFO {fifo}: start its reader first\n");
    assert_eq!(out, format!("{spawned}received 2\n"));
    assert_eq!(err, format!("iof: cannot write the stdout of rank 0: {fifo}: no process reads this FIFO\n"));
}
