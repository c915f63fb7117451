//! A C tool with one registration that reads all jobs of one nspace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::process::Command;

use iof_engine::{Config, Engine, Rendezvous};
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_testing::compiler::{compiler, environment, source};
use iof_testing::process::Dialog;
use iof_testing::wait_for;

/// More streams than a tool can read at a time.
const STREAMS: usize = 16 * 1024 + 400;
const RANKS: usize = 200;

#[test]
fn a_c_registration_reads_each_job_of_a_name_and_more_streams_than_slots() {
    let Some(compiler) = compiler() else { return };
    let program = compiler.program(&source("names.c"), &[]);
    let sockets = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(sockets.path().to_owned()));
    let engine = Engine::start(Config::new(rendezvous)).unwrap();
    let mut command = Command::new(&program);
    environment(&mut command, &program, sockets.path()).arg(engine.socket().unwrap());
    let mut tool = Dialog::start(&mut command);
    assert_eq!(tool.next_line(), "ready");
    let nspace = Nspace::new("job").unwrap();
    for job in 1..=STREAMS / RANKS {
        for rank in 0..RANKS {
            let from = Proc::new(nspace.clone(), Rank(u32::try_from(rank).unwrap()));
            engine.deliver(&from, Channel::Stdout, vec![b'x'; 10], &[], || {}).unwrap();
        }
        assert!(engine.end_job(&nspace, Some(0)));
        wait_for("the end of the job", || engine.remove(&nspace).then_some(()));
        // The tool answers when it has read this job, so it loses nothing.
        tool.write(&job.to_string());
        let streams = job * RANKS;
        assert_eq!(tool.next_line(), format!("jobs {job} ends {streams} bytes {} lost 0", 10 * streams));
    }
    assert_eq!(tool.finish(), (String::new(), 0));
}
