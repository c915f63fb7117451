//! Jobs that the engine forgets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{Got, engine, nspace, shell, spec, wait, wait_for};
use iof_engine::{App, Grant};
use iof_proto::{Channels, Proc, Rank};
use iof_tool::Pull;
use nix::sys::signal::Signal;

#[test]
fn jobs_that_are_over_and_forgotten_leave_nothing_behind_and_who_reads_them_has_them_to_the_end() {
    let engine = engine();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let job = || spec([App { nprocs: 4, ..App::new("echo", ["hello"]) }]);
    let mut opened = 0;
    for round in 0..20 {
        let mut tool = engine.attach("late", Grant::Never).unwrap();
        let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
        tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
        assert!(!engine.remove(&nspace()), "there is none yet");
        wait(&engine.spawn(&job()).unwrap());
        assert!(engine.remove(&nspace()));
        assert_eq!(Got::all(&mut tool).bytes, b"hello\n".repeat(4));
        drop(tool);
        // Whoever is slow to close something has a round's time.
        if round == 2 {
            opened = open();
        }
    }
    wait_for("descriptors to be closed", || (open() <= opened).then_some(()));
}

#[test]
fn a_job_that_runs_is_not_forgotten() {
    let engine = engine();
    let job = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    assert!(!engine.remove(&nspace()));
    job.signal(Signal::SIGKILL);
    wait(&job);
    assert!(engine.remove(&nspace()));
    assert!(!engine.remove(&nspace()));
}
