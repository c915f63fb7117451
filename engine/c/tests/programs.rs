//! C programs end to end with real ranks: a launcher with a tool, run plainly, under valgrind and
//! with sanitizers; a program that passes invalid arguments; and the example.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iof_testing::compiler::{compiler, environment, has, run, run_launcher_and_tool, source};

/// Compiles the launcher and the tool with `flags`.
fn programs(flags: &[&str]) -> Option<(iof_testing::compiler::Compiler, PathBuf, PathBuf)> {
    let compiler = compiler()?;
    let launcher = compiler.program(&source("launcher.c"), flags);
    let tool = compiler.program(&source("tool.c"), flags);
    Some((compiler, launcher, tool))
}

#[test]
fn a_launcher_and_a_tool_work_together() {
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    run_launcher_and_tool(&launcher, &tool, &[], &[], &[]);
}

#[test]
fn a_tool_with_an_event_loop_of_its_own_needs_no_thread() {
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    run_launcher_and_tool(&launcher, &tool, &[], &["own-loop"], &[]);
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if !has("valgrind") {
        return;
    }
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    run_launcher_and_tool(&launcher, &tool, &valgrind, &[], &[]);
}

/// Returns the compiler flags of the sanitizers, or none if the compiler does not support them.
fn sanitizers() -> &'static [&'static str] {
    const FLAGS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let Some(compiler) = compiler() else { return &[] };
    let mut trial = compiler.command("int main(void) { return 0; }\n");
    let program = compiler.directory.path().join("trial");
    if trial.args(FLAGS).arg("-o").arg(program).status().unwrap().success() {
        return FLAGS;
    }
    eprintln!("skipped: the compiler does not support sanitizers");
    &[]
}

#[test]
fn the_sanitizers_find_no_error() {
    let Some((_files, launcher, tool)) = programs(sanitizers()) else { return };
    run_launcher_and_tool(&launcher, &tool, &[], &[], &[]);
}

#[test]
fn invalid_arguments_crash_nothing_and_the_library_works_afterwards() {
    let Some(compiler) = compiler() else { return };
    let hostile = compiler.program(&source("hostile.c"), sanitizers());
    let sockets = tempfile::tempdir().unwrap();
    for seed in 1..=4 {
        let mut command = Command::new(&hostile);
        environment(&mut command, &hostile, sockets.path()).args([&seed.to_string(), "3000"]);
        let output = run(&mut command);
        assert!(output.stdout.ends_with(b"survived\n"), "seed {seed}: {output:?}");
    }
}

#[test]
fn the_example_runs_ranks_prints_their_lines_and_returns_their_exit_code() {
    let Some(compiler) = compiler() else { return };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/examples/launcher.c");
    let launcher = compiler.program(&example, &[]);
    let sockets = tempfile::tempdir().unwrap();
    let mut command = Command::new(&launcher);
    environment(&mut command, &launcher, sockets.path()).args([
        "4",
        "sh",
        "-c",
        "seq 2000; echo $IOF_RANK >&2; exit $IOF_RANK",
    ]);
    let output = iof_testing::compiler::output(&mut command);
    assert!((1..4).contains(&output.status.code().unwrap()), "{output:?}");
    let mut lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    let mut expected: Vec<String> =
        (1..=2000).flat_map(|line| [const { String::new() }; 4].map(|_| line.to_string())).collect();
    expected.push(String::new());
    expected.sort_unstable();
    assert_eq!(lines, expected.iter().map(String::as_bytes).collect::<Vec<_>>());
    let mut stderr: Vec<u8> = output.stderr;
    stderr.sort_unstable();
    assert_eq!(stderr, b"\n\n\n\n0123");

    // The example forwards its stdin to rank 0.
    let mut command = Command::new(&launcher);
    environment(&mut command, &launcher, sockets.path())
        .args(["2", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"for rank 0\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"for rank 0\n"[..]));
}
