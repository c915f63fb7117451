//! Programs in C at the edges of what they may do: nothing hangs, nothing dies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use common::{compiler, environment, source};

/// Runs tests/c/edges.c, if there is a compiler.
fn edge(what: &str) -> Option<Output> {
    let compiler = compiler()?;
    let program = compiler.program(&source("edges.c"), &[]);
    let sockets = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    environment(&mut command, &program, sockets.path())
        .args(["--signal=KILL", "60"])
        .arg(&program)
        .arg(what)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = Output { status: ExitStatusExt::from_raw(0), stdout: Vec::new(), stderr: Vec::new() };
    child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
    output.status = child.wait().unwrap();
    assert!(output.status.success(), "{what}: {output:?}");
    Some(output)
}

fn ends(what: &str) {
    if let Some(output) = edge(what) {
        assert_eq!(output.stdout, b"over\n", "{what}: {output:?}");
    }
}

#[test]
fn a_handler_of_atexit_may_finalize() {
    edge("exit");
}

#[test]
fn a_forked_child_is_told_that_it_has_nothing() {
    ends("fork");
}

#[test]
fn who_waits_and_progresses_holds_up_no_other_thread_and_hears_that_the_library_is_finalized() {
    ends("threads");
}

#[test]
fn an_upcall_may_call_what_needs_the_session_while_that_is_being_begun() {
    ends("upcall");
}

#[test]
fn what_a_launcher_never_answers_ends_with_its_engine() {
    ends("unanswered");
}

#[test]
fn finalizing_waits_for_calls_of_other_threads_that_are_under_way() {
    ends("busy");
}

#[test]
fn who_waits_for_a_job_that_does_not_end_hears_that_the_library_is_finalized() {
    ends("wait");
}

#[test]
fn what_cannot_be_adopted_is_not_taken() {
    ends("adopt");
}

#[test]
fn bytes_that_there_is_no_memory_for_are_refused() {
    ends("huge");
}

#[test]
fn what_is_printed_to_a_full_pipe_that_does_not_block_is_printed_whole() {
    if let Some(output) = edge("nonblocking") {
        let expected: String = (1..=100_000).map(|line| format!("{line}\n")).collect();
        assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    }
}

#[test]
fn what_is_missing_where_output_is_printed_is_told_to_the_byte() {
    let Some(output) = edge("slow") else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    let lost = |line: &str| {
        let rest = line.strip_prefix("iof: rank 0 stdout: ")?;
        rest.split(' ').next()?.parse::<usize>().ok()
    };
    let lost: usize = said.lines().map(|line| lost(line).expect(line)).sum();
    assert!(lost > 0, "{said}");
    assert_eq!(output.stdout.len() + lost, 6_888_896, "{said}");
}
