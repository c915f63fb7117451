//! A launcher and a tool in C, end to end on real ranks: as they are, and under what finds their errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Running, compiler, environment, has, run, source};

const RANKS: &str = "3";
/// `seq 1000`, `oops`, and what the ranks got, of three ranks.
const BYTES: usize = 3 * (3893 + 5 + 10);

/// Runs the launcher, and `tool` beside it, each as `how` says, to their ends.
fn together(launcher: &Path, tool: &Path, how: &[&str], tool_args: &[&str]) {
    let sockets = tempfile::tempdir().unwrap();
    let command = |program: &Path| {
        let mut words = how.iter().map(Path::new).chain([program]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        environment(&mut command, program, sockets.path());
        command
    };
    let mut starting = command(launcher);
    let mut running = Running(starting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut hear = || said.next().expect("the launcher says no more").unwrap();

    let uri = hear().strip_prefix("uri ").unwrap().to_owned();
    running.say(&format!("spawn {RANKS}\n"));
    assert_eq!(hear(), "spawned");
    run(command(tool).args([&uri, RANKS]).args(tool_args));
    running.say("wait\n");
    let told = hear();
    // A pull is granted once for all that ask for the same; the second asks for nothing new.
    let expected = format!("exit 0 bytes {BYTES} lost 0 pulls 1 tools 1 logs 2 pushed hello");
    assert_eq!(told, expected);
    assert_eq!(hear(), "$");
    drop(running.0.stdin.take());
    let last = hear();
    assert!(last.starts_with("ends 6 stops "), "{last}");
    assert!(running.0.wait().unwrap().success());
}

/// Both, compiled with `flags`.
fn programs(flags: &[&str]) -> Option<(common::Compiler, PathBuf, PathBuf)> {
    let compiler = compiler()?;
    let launcher = compiler.program(&source("launcher.c"), flags);
    let tool = compiler.program(&source("tool.c"), flags);
    Some((compiler, launcher, tool))
}

#[test]
fn a_launcher_and_a_tool_work_together() {
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    together(&launcher, &tool, &[], &[]);
}

#[test]
fn a_tool_with_an_event_loop_of_its_own_needs_no_thread() {
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    together(&launcher, &tool, &[], &["own-loop"]);
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if !has("valgrind") {
        return;
    }
    let Some((_files, launcher, tool)) = programs(&[]) else { return };
    let how = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    together(&launcher, &tool, &how, &[]);
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let Some(compiler) = compiler() else { return };
    let mut trial = compiler.syntax("int main(void) { return 0; }\n");
    if !trial.args(flags).arg("-o").arg(compiler.directory.path().join("trial")).status().unwrap().success() {
        eprintln!("skipped: the compiler has no sanitizers here");
        return;
    }
    let Some((_files, launcher, tool)) = programs(&flags) else { return };
    together(&launcher, &tool, &[], &[]);
}

#[test]
fn the_example_runs_ranks_prints_their_lines_and_ends_with_their_exit_code() {
    let Some(compiler) = compiler() else { return };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/launcher.c");
    let launcher = compiler.program(&example, &[]);
    let sockets = tempfile::tempdir().unwrap();
    let mut command = Command::new(&launcher);
    environment(&mut command, &launcher, sockets.path()).args([
        "4",
        "sh",
        "-c",
        "seq 2000; echo $IOF_RANK >&2; exit $IOF_RANK",
    ]);
    let output = common::output(&mut command);
    assert!((1..4).contains(&output.status.code().unwrap()), "{output:?}");
    let mut lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    let mut expected: Vec<String> =
        (1..=2000).flat_map(|line| [const { String::new() }; 4].map(|_| line.to_string())).collect();
    expected.push(String::new());
    expected.sort_unstable();
    assert_eq!(lines, expected.iter().map(String::as_bytes).collect::<Vec<_>>());
    let mut said: Vec<u8> = output.stderr;
    said.sort_unstable();
    assert_eq!(said, b"\n\n\n\n0123");

    // And gives rank 0 its stdin.
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
