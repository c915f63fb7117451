//! The limit on open files. It applies to the whole process, so these tests have their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use iof_engine::{AdoptError, AdoptSpec, Grant};
use iof_proto::limits::MAX_PUSHES_PER_TOOL;
use iof_proto::{Channel, Channels, Info, Nspace, Proc, Status, directive::key};
use iof_testing::engine::stdins::{Stdins, procs, push_to, refusal, tool};
use iof_testing::engine::{adopt_reported, engine, report_exits, reported_rank, wait};
use iof_testing::pipes::pipe;
use iof_testing::wait_for;
use iof_tool::{Pull, Push};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Serializes the tests, which change the limit.
static LIMIT: Mutex<()> = Mutex::new(());

#[test]
fn ranks_are_adopted_at_the_file_limit_that_the_refusal_specifies() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    const RANKS: u32 = 30;
    let engine = engine();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let adopt = |limit: u64| {
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        let adopted = adopt_reported(&engine, RANKS);
        setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
        adopted
    };
    let Err(AdoptError::Files { ranks: 30, files }) = adopt(64) else { panic!("the adoption must fail") };
    let enough = files.open + files.needed;
    let refused = adopt(enough - 1).expect_err("the adoption must fail");
    assert!(matches!(refused, AdoptError::Files { .. }), "{refused}");
    let job = adopt(enough).unwrap();
    report_exits(&job, RANKS);
    wait(&job);
}

#[test]
fn a_job_leaves_files_to_streams_that_have_no_bytes_yet() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    const RANKS: u32 = 8;
    let engine = engine();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = || {
        setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
        let adopted = adopt_reported(&engine, 30);
        setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
        let Err(AdoptError::Files { files, .. }) = adopted else { panic!("the adoption must fail") };
        files.needed
    };
    let without = needed();
    let (ranks, mut writers): (Vec<_>, Vec<_>) = (0..RANKS)
        .map(|rank| {
            let (stdout, write) = pipe();
            (reported_rank(rank).with(Channel::Stdout, stdout), write)
        })
        .unzip();
    let silent = Nspace::new("silent").unwrap();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![Proc::all(silent.clone())], Channels::STDOUT)).unwrap();
    let job = engine.adopt(AdoptSpec::new(silent, ranks)).unwrap();
    // The channels without a descriptor end soon.
    wait_for("one file for each stdout", || (needed() == without + u64::from(RANKS)).then_some(()));
    for writer in &mut writers {
        writer.write_all(b"x").unwrap();
    }
    wait_for("a ring for each stdout", || (needed() == without).then_some(()));
    drop(writers);
    report_exits(&job, RANKS);
    wait(&job);
}

#[test]
fn pushes_leave_files_for_the_job() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = engine();
    let _ranks = Stdins::adopt(&engine, 8);
    let mut tools: Vec<_> = (0..8).map(|_| tool(&engine)).collect();
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let limit = fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 64;
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    let mut begun = 0;
    let refused = (0..8 * MAX_PUSHES_PER_TOOL).find_map(|number| {
        let rank = (number % 8) as u32;
        let directives = vec![Info::required(key::PMIX_IOF_CACHE_SIZE, 1u32)];
        let push = Push { directives, ..push_to(procs(&[rank])) };
        let result = tools[number / MAX_PUSHES_PER_TOOL].begin_push(&push, None);
        begun += usize::from(result.is_ok());
        result.is_err().then(|| refusal(result))
    });
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
    let refused = refused.expect("the pushes use up all files");
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    assert!(refused.reason.contains("for its jobs"), "{refused}");
    assert!(begun > 8, "{begun}");
    assert!(limit - next as u64 >= 32, "{next} of {limit}");
}
