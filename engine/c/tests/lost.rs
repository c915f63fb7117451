//! Notifications of a C tool whose engine is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::process::Command;

use iof_testing::compiler::{compiler, environment, source};
use iof_testing::process::Dialog;

#[test]
fn a_tool_pushes_its_own_stdin_and_is_notified_when_its_engine_is_killed() {
    let Some(compiler) = compiler() else { return };
    let (launcher, tool) =
        (compiler.program(&source("launcher.c"), &[]), compiler.program(&source("lost.c"), &[]));
    let sockets = tempfile::tempdir().unwrap();
    let start = |program: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(program);
        Dialog::start(environment(&mut command, program, sockets.path()).args(args))
    };
    let mut engine = start(&launcher, &[]);
    let uri = engine.next_line().strip_prefix("uri ").unwrap().to_owned();
    // The rank echoes its stdin and then runs on, so its stream is open when the engine is killed.
    engine.write("stay");
    assert_eq!(engine.next_line(), "spawned");
    let mut tool = start(&tool, &[&uri]);
    tool.write("pushed by the tool");
    tool.close();
    assert_eq!(tool.next_line(), "received");
    engine.kill();
    assert_eq!(tool.finish(), ("lost\n".to_owned(), 0));
}
