//! What a tool in C hears when its engine goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{Running, compiler, environment, source};

#[test]
fn a_tool_pushes_its_own_stdin_and_hears_that_its_engine_was_killed() {
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
        let said = BufReader::new(running.0.stdout.take().unwrap()).lines();
        (running, said.map(Result::unwrap))
    };
    let (mut engine, mut said) = start(&launcher, &[]);
    let uri = said.next().unwrap().strip_prefix("uri ").unwrap().to_owned();
    // It reads a line, says what it got, and stays: so that its stream is open when the engine goes.
    engine.say("stay\n");
    assert_eq!(said.next().unwrap(), "spawned");
    let (mut tool, mut heard) = start(&tool, &[&uri]);
    tool.say("pushed by the tool\n");
    drop(tool.0.stdin.take());
    assert_eq!(heard.next().unwrap(), "heard");
    engine.0.kill().unwrap();
    assert_eq!(heard.next().unwrap(), "lost");
    assert!(tool.0.wait().unwrap().success());
}
