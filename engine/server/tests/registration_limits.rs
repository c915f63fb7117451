//! Limits on what tools can make the engine keep. One test, because it measures the memory of its
//! process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;

use iof_engine::{Config, Grant};
use iof_proto::limits::{
    MAX_PROCS_PER_PROCESS, MAX_PROCS_PER_PULL, MAX_PROCS_PER_TOOL, MAX_REGISTRATIONS_PER_TOOL,
};
use iof_proto::{Channels, Nspace, Proc, Rank, Status};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{Received, nspace, session, shell, spec, wait};
use iof_tool::Pull;

/// Returns the resident memory of this process in MiB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

/// Returns the `number`th list of processes that do not exist.
fn unknown(number: usize) -> Vec<Proc> {
    let nspace = Nspace::new(format!("none{number}")).unwrap();
    let ranks = 0..u32::try_from(MAX_PROCS_PER_PULL).unwrap();
    ranks.map(|rank| Proc { nspace: nspace.clone(), rank: Rank(rank) }).collect()
}

/// Pulls until a pull is refused. Returns how many processes were pulled, and the reason.
fn pull_all(raw: &mut RawTool) -> (usize, String) {
    for number in 0..64 {
        raw.pull(unknown(number), Channels::ALL);
        if let Err(refused) = raw.next_pulled() {
            assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
            return (number * MAX_PROCS_PER_PULL, refused.reason);
        }
    }
    panic!("the engine keeps {} processes for one tool", 64 * MAX_PROCS_PER_PULL);
}

#[test]
fn registrations_are_bounded_and_do_not_affect_other_tools() {
    let (engine, _directory) = session(Config::default());
    let mut honest = engine.attach("test", Grant::Never).unwrap();
    let before = resident();
    let mut first = RawTool::connect(&engine);
    let (pulled, reason) = pull_all(&mut first);
    assert_eq!(pulled, MAX_PROCS_PER_TOOL);
    assert!(reason.contains(&MAX_PROCS_PER_TOOL.to_string()), "{reason}");
    let mut others: Vec<RawTool> = (0..2).map(|_| RawTool::connect(&engine)).collect();
    let pulled: Vec<(usize, String)> = others.iter_mut().map(pull_all).collect();
    assert_eq!(pulled[0].0, MAX_PROCS_PER_TOOL);
    assert_eq!(pulled[1].0, 0, "the process has pulled {MAX_PROCS_PER_PROCESS}");
    assert!(pulled[1].1.contains(&MAX_PROCS_PER_PROCESS.to_string()), "{}", pulled[1].1);
    let grown = resident().saturating_sub(before);
    assert!(grown < 64, "{MAX_PROCS_PER_PROCESS} processes cost {grown} MiB");
    println!("{MAX_PROCS_PER_PROCESS} processes cost {grown} MiB");

    let all = Proc::all(nspace());
    honest.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    wait(&engine.spawn(&spec([shell("seq 1000")])).unwrap());
    let got = Received::read_all(&mut honest);
    assert_eq!((got.bytes.iter().filter(|byte| **byte == b'\n').count(), got.lost()), (1000, 0));

    // Released budget is available again, also after the tool has disconnected.
    drop((first, others));
    let mut many = RawTool::connect(&engine);
    let later = Proc::all(Nspace::new("later").unwrap());
    for _ in 0..MAX_REGISTRATIONS_PER_TOOL {
        many.pull(vec![later.clone()], Channels::STDERR);
        many.next_pulled().expect("as many registrations as there are ranks on a node");
    }
    many.pull(vec![later], Channels::STDERR);
    let refused = many.next_pulled().unwrap_err();
    assert!(refused.reason.contains(&MAX_REGISTRATIONS_PER_TOOL.to_string()), "{refused}");
}
