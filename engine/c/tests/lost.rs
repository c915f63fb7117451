//! Notifications of a C tool whose engine is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{Running, compiler, environment, source};

#[test]
fn a_tool_pushes_its_own_stdin_and_is_notified_when_its_engine_is_killed() {
    let Some(compiler) = compiler() else { return };
    let (launcher, tool) =
        (compiler.program(&source("launcher.c"), &[]), compiler.program(&source("lost.c"), &[]));
    let sockets = tempfile::tempdir().unwrap();
    let start = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        environment(&mut command, program, sockets.path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        (running, lines.map(Result::unwrap))
    };
    let (mut engine, mut engine_lines) = start(&launcher, &[]);
    let uri = engine_lines.next().unwrap().strip_prefix("uri ").unwrap().to_owned();
    // The rank echoes its stdin and then runs on, so its stream is open when the engine is killed.
    engine.write("stay\n");
    assert_eq!(engine_lines.next().unwrap(), "spawned");
    let (mut tool, mut tool_lines) = start(&tool, &[&uri]);
    tool.write("pushed by the tool\n");
    drop(tool.0.stdin.take());
    assert_eq!(tool_lines.next().unwrap(), "received");
    engine.0.kill().unwrap();
    assert_eq!(tool_lines.next().unwrap(), "lost");
    assert!(tool.0.wait().unwrap().success());
}
