//! The limit on open files. A process of its own, because it has but one limit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{engine, nspace, wait};
use iof_engine::{AdoptError, AdoptSpec, AdoptedRank, Exit, Process};
use iof_proto::Rank;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A rank without any descriptors.
fn rank(number: u32) -> AdoptedRank {
    AdoptedRank {
        rank: Rank(number),
        executable: "test".into(),
        stdin: None,
        stdout: None,
        stderr: None,
        stddiag: None,
        process: Process::Reported { pid: 0 },
    }
}

#[test]
fn ranks_without_descriptors_are_adopted_where_the_refusal_says_that_they_fit() {
    const RANKS: u32 = 30;
    let engine = engine();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let adopt = |limit: u64| {
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        let adopted = engine.adopt(AdoptSpec::new(nspace(), (0..RANKS).map(rank).collect()));
        setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
        adopted
    };
    let Err(AdoptError::Files { ranks: 30, files }) = adopt(64) else { panic!("it was taken") };
    let enough = files.open + files.needed;
    let refused = adopt(enough - 1).err().expect("it was taken");
    assert!(matches!(refused, AdoptError::Files { .. }), "{refused}");
    let job = adopt(enough).unwrap();
    (0..RANKS).for_each(|number| assert!(job.report_exit(Rank(number), Exit::Unknown)));
    wait(&job);
}
