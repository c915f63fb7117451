//! Removal of ended jobs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use iof_engine::{App, Grant};
use iof_proto::{Channels, Proc};
use iof_testing::engine::{Received, engine, nspace, shell, spec, wait};
use iof_testing::wait_for;
use iof_tool::Pull;

#[test]
fn removed_jobs_leave_nothing_behind_and_their_readers_read_to_the_end() {
    let engine = engine();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let job = || spec([App::new("echo", ["hello"]).ranks(4)]);
    let mut opened = 0;
    for round in 0..20 {
        let mut tool = engine.attach("late", Grant::Never).unwrap();
        let all = Proc::all(nspace());
        tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
        assert!(!engine.remove(&nspace()), "the job does not exist yet");
        wait(&engine.spawn(&job()).unwrap());
        assert!(engine.remove(&nspace()));
        assert_eq!(Received::read_all(&mut tool).bytes, b"hello\n".repeat(4));
        drop(tool);
        // Descriptors that are closed late have a round's time.
        if round == 2 {
            opened = open();
        }
    }
    wait_for("descriptors to be closed", || (open() <= opened).then_some(()));
}

#[test]
fn a_running_job_cannot_be_removed() {
    let engine = engine();
    let job = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    assert!(!engine.remove(&nspace()));
    job.signal(iof_engine::Signal::KILL);
    wait(&job);
    assert!(engine.remove(&nspace()));
    assert!(!engine.remove(&nspace()));
}

#[test]
fn the_handle_of_a_removed_job_returns_its_own_status() {
    let engine = engine();
    let failed = engine.spawn(&spec([shell("exit 3")])).unwrap();
    wait(&failed);
    assert!(engine.remove(&nspace()));
    // A later job has the same name, and still runs.
    let later = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    assert_eq!(failed.wait().code(), 3);
    assert_eq!(failed.wait_exit().code(), 3);
    assert_eq!(failed.try_wait_exit().map(|status| status.code()), Some(3));
    assert_eq!(failed.signal(iof_engine::Signal::KILL), 0);
    assert!(later.try_wait_exit().is_none());
    let entries = std::fs::read_dir("/proc").unwrap();
    let mut pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let pid = pids.find(|pid| later.rank_of_process(*pid).is_some()).unwrap();
    assert_eq!(failed.rank_of_process(pid), None);
    later.signal(iof_engine::Signal::KILL);
    wait(&later);
}
