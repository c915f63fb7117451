//! C programs in unusual situations. Nothing may hang or crash.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use iof_testing::compiler::{compiler, environment, library_directory, source};

/// Runs a scenario of tests/c/edges.c. Returns `None` without a compiler.
fn run_scenario(scenario: &str) -> Option<Output> {
    run_scenario_of("edges.c", scenario)
}

/// Runs a scenario of a program in tests/c. Returns `None` without a compiler.
fn run_scenario_of(program: &str, scenario: &str) -> Option<Output> {
    let compiler = compiler()?;
    let program = compiler.program(&source(program), &[]);
    let sockets = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    environment(&mut command, &program, sockets.path())
        .args(["--signal=KILL", "60"])
        .arg(&program)
        .arg(scenario)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = Output { status: ExitStatusExt::from_raw(0), stdout: Vec::new(), stderr: Vec::new() };
    child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
    output.status = child.wait().unwrap();
    assert!(output.status.success(), "{scenario}: {output:?}");
    Some(output)
}

/// Checks that a scenario runs to its end.
fn assert_completes(scenario: &str) {
    assert_completes_of("edges.c", scenario);
}

fn assert_completes_of(program: &str, scenario: &str) {
    if let Some(output) = run_scenario_of(program, scenario) {
        assert_eq!(output.stdout, b"done\n", "{scenario}: {output:?}");
    }
}

#[test]
fn an_atexit_handler_may_finalize() {
    run_scenario("exit");
}

#[test]
fn in_a_forked_child_the_library_is_not_initialized() {
    assert_completes("fork");
}

#[test]
fn a_waiting_thread_holds_up_no_other_thread_and_returns_when_finalized() {
    assert_completes("threads");
}

#[test]
fn an_upcall_may_use_the_session_while_another_thread_creates_it() {
    assert_completes("upcall");
}

#[test]
fn unanswered_upcalls_end_with_the_engine() {
    assert_completes("unanswered");
}

#[test]
fn finalize_waits_for_calls_in_progress_on_other_threads() {
    assert_completes("busy");
}

#[test]
fn a_wait_for_a_running_job_returns_when_the_library_is_finalized() {
    assert_completes("wait");
}

#[test]
fn a_push_of_the_programs_own_stdin_is_stopped_by_the_directive_or_its_end() {
    assert_completes("stdin");
}

#[test]
fn a_push_of_stdin_whose_targets_have_ended_makes_way_for_the_next_one() {
    assert_completes("stdin-again");
}

#[test]
fn ranks_see_the_end_of_a_stdin_that_cannot_be_read() {
    assert_completes("stdin-error");
}

#[test]
fn a_launcher_announces_directives_queries_log_channels_and_a_gateway() {
    assert_completes_of("host.c", "host");
}

#[test]
fn a_launcher_grants_jobs_that_tools_start_or_refuses_them() {
    assert_completes_of("host.c", "spawns");
    assert_completes_of("host.c", "no-spawns");
}

#[test]
fn a_launcher_flushes_closes_and_types_and_each_program_has_its_own_stdin() {
    assert_completes_of("host.c", "streams");
}

#[test]
fn a_tool_without_a_connection_has_handlers_and_answers_and_can_connect_later() {
    assert_completes_of("host.c", "server");
}

#[test]
fn queries_of_several_jobs_and_wrong_arguments_have_the_results_of_pmix() {
    assert_completes_of("host.c", "queries");
}

#[test]
fn the_library_can_be_unloaded_while_its_engine_runs() {
    let library = library_directory().join("libiof_c.so");
    assert_completes_of("unload.c", library.to_str().unwrap());
}

#[test]
fn a_refused_adoption_leaves_the_descriptors_open() {
    assert_completes("adopt");
}

#[test]
fn a_job_of_mpi_programs_has_the_protocol_that_its_info_names() {
    assert_completes("mpi");
}

#[test]
fn a_push_too_large_for_memory_is_refused() {
    assert_completes("huge");
}

#[test]
fn output_printed_to_a_full_non_blocking_pipe_is_whole() {
    if let Some(output) = run_scenario("nonblocking") {
        let expected: String = (1..=100_000).map(|line| format!("{line}\n")).collect();
        assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    }
}

#[test]
fn bytes_that_the_printer_loses_are_reported_exactly() {
    let Some(output) = run_scenario("slow") else { return };
    let messages = String::from_utf8(output.stderr).unwrap();
    let lost = |line: &str| {
        let rest = line.strip_prefix("iof: rank 0 stdout: ")?;
        rest.split(' ').next()?.parse::<usize>().ok()
    };
    let lost: usize = messages.lines().map(|line| lost(line).expect(line)).sum();
    assert!(lost > 0, "{messages}");
    assert_eq!(output.stdout.len() + lost, 6_888_896, "{messages}");
}
