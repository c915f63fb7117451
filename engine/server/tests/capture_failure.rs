//! A failure of the kernel facility that reads the ranks' output. The test breaks a descriptor of
//! its own process, so it has a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::thread;

use iof_engine::{BackendKind, Engine, Exit, Grant, JobSpec, Signal};
use iof_proto::query::key;
use iof_proto::{Channel, Channels, Proc, Rank};
use iof_testing::engine::{Output, Received, engine_on, nspace, shell, spec, wait};
use iof_testing::wait_for;
use iof_tool::{Pull, Tool};

/// Returns the descriptor of the capture thread's ring or epoll instance. Called before tools
/// attach, which may have epoll instances of their own.
fn facility(engine: &Engine) -> RawFd {
    let name = match engine.backend() {
        BackendKind::IoUring => "anon_inode:[io_uring]",
        _ => "anon_inode:[eventpoll]",
    };
    let is_facility = |fd: &RawFd| {
        fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|target| target.to_str() == Some(name))
    };
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // The control thread's epoll instance is created first, so its number is lower.
    fds.filter(is_facility).max().expect("the facility has a descriptor")
}

/// Puts a file that no backend can wait for in the place of `facility`.
fn break_facility(facility: RawFd) {
    let null = fs::File::open("/dev/null").unwrap();
    // SAFETY: the descriptor stays open, and its owner still closes it: `into_raw_fd` gives it
    // back.
    let mut facility = unsafe { OwnedFd::from_raw_fd(facility) };
    nix::unistd::dup2(&null, &mut facility).unwrap();
    let _ = facility.into_raw_fd();
}

#[test]
fn a_failure_of_the_capture_thread_ends_jobs_and_tools() {
    for backend in [None, Some(BackendKind::Epoll)] {
        check_failure(&engine_on(backend));
    }
}

fn check_failure(engine: &Engine) {
    let facility = facility(engine);
    let output = Output::start(engine, Channels::STDOUT | Channels::STDERR);
    let mut counters = engine.attach("counters", Grant::Never).unwrap();
    let job = engine.spawn(&spec([shell("echo begun; exec sleep 1000")])).unwrap();
    wait_for("the first output", || (output.so_far() == "begun\n").then_some(()));
    // The job stays silent, so the thread notices the failure at its next command.
    let late = engine.attach("late", Grant::Never).unwrap();
    break_facility(facility);
    let pulled = thread::spawn(move || pull_to_the_end(late));
    let status = wait(&job);
    assert!(matches!(status.first_failure, Some((Rank(0), Exit::Unknown))), "{status:?}");
    assert_eq!(output.all(), "begun\n");
    wait_for("the end of the late tool", || pulled.is_finished().then_some(()));
    pulled.join().unwrap();
    assert_eq!(job.endings().count(), 1);
    // What comes later is refused or answered at once, not kept waiting.
    let again = JobSpec::new("again".parse().unwrap(), vec![shell("true")]);
    assert!(engine.spawn(&again).is_err());
    let rank = Proc::new("far".parse().unwrap(), Rank(0));
    assert!(engine.deliver(&rank, Channel::Stdout, b"late".to_vec(), &[], || {}).is_err());
    counters.query(&[key::IOF_QUERY_STATS, key::PMIX_QUERY_NAMESPACES]).unwrap();
    job.signal(Signal::KILL);
    assert!(engine.remove(&nspace()));
}

/// Pulls stdout and receives everything.
fn pull_to_the_end(mut tool: Tool) {
    tool.pull(&Pull::new(vec![Proc::all(nspace())], Channels::STDOUT)).unwrap();
    Received::read_all(&mut tool);
}
