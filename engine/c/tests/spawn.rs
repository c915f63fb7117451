//! A C tool that has an engine start jobs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::process::Command;
use std::sync::Arc;

use iof_engine::{Config, Engine, Host, Rendezvous, SpawnReply, SpawnRequest};
use iof_testing::compiler::{compiler, environment, source};
use iof_testing::process::Process;

/// A host that grants every job.
struct Granting;

impl Host for Granting {
    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        reply.grant(request.spec);
    }
}

#[test]
fn a_c_tool_starts_jobs_and_receives_their_output_from_the_first_byte() {
    let Some(compiler) = compiler() else { return };
    let program = compiler.program(&source("spawn.c"), &[]);
    let sockets = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(sockets.path().to_owned()));
    let engine = Engine::start_with(Config::new(rendezvous), Arc::new(Granting)).unwrap();
    let mut command = Command::new(&program);
    environment(&mut command, &program, sockets.path()).arg(engine.socket().unwrap());
    command.arg(sockets.path().join("gate"));
    let done = Process::start(&mut command).finish();
    assert_eq!((done.code, done.text()), (0, "untagged\nuntagged\n"), "{done:?}");
}
