//! Signals from tools: of other users, and to processes elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, Rendezvous, Signal};
use iof_proto::socket::PeerCredentials;
use iof_proto::{Channel, Channels, Proc, Rank, Status};
use iof_testing::engine::{changed, nspace, shell, spec};
use iof_testing::helper::{Helper, HelperUser, NOBODY, argument, ready};
use iof_tool::{Delivery, RequestError, Tool};

/// A host that lets all users attach.
struct Public;

impl Host for Public {
    fn approve(&self, _: &PeerCredentials, reply: ApprovalReply) {
        reply.answer(Ok(Grant::Never));
    }
}

#[test]
#[ignore = "helper of the next test: a tool of another user"]
fn a_tool_that_signals() {
    let mut tool = Tool::connect(Path::new(&argument()), "test").unwrap();
    for signal in [Signal::KILL, Signal::CONT] {
        match tool.signal(&[Proc::all(nspace())], signal.number()) {
            Err(RequestError::Denied(failure)) => {
                assert_eq!(failure.status, Status::ERR_NO_PERMISSIONS);
                let reason = format!("user {NOBODY} may not signal the ranks of user 0");
                assert_eq!(failure.reason, reason);
            }
            other => panic!("{other:?}"),
        }
    }
    ready();
}

#[test]
fn signals_from_another_user_are_refused_even_if_the_host_lets_the_user_attach() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let engine = Engine::start_with(Config::new(rendezvous), Arc::new(Public)).unwrap();
    let socket = engine.socket().unwrap();
    for path in [directory.path(), socket] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let job = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    let path = socket.to_str().unwrap();
    let Some(_helper) = Helper::start("a_tool_that_signals", path, HelperUser::Nobody) else { return };
    assert!(job.try_wait_exit().is_none());
    // A tool of the engine's user may signal.
    let mut tool = Tool::connect(socket, "test").unwrap();
    assert_eq!(tool.signal(&[Proc::all(nspace())], Signal::KILL.number()).unwrap(), 1);
    assert_eq!(iof_testing::engine::wait(&job).code(), 137);
}

/// A host with remote processes, which notes what it is to signal.
#[derive(Default)]
struct Elsewhere(Mutex<Vec<(Vec<Proc>, Signal)>>);

impl Host for Elsewhere {
    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        self.0.lock().unwrap().push((procs.to_vec(), signal));
        3
    }
}

#[test]
fn signals_to_remote_processes_go_to_the_host_and_both_counts_are_added() {
    let host = Arc::new(Elsewhere::default());
    let config = Config::new(Rendezvous::None);
    let engine = Engine::start_with(config, Arc::<Elsewhere>::clone(&host)).unwrap();
    let job = changed(spec([shell("exec sleep 1000")]), |job| job.elsewhere = true);
    let job = engine.spawn(&job).unwrap();
    let remote = Proc::new(nspace(), Rank(7));
    engine.deliver(&remote, Channel::Stdout, b"far\n".to_vec(), &[], || {}).unwrap();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let local = Proc::new(nspace(), Rank(0));
    // A local rank does not concern the host.
    assert_eq!(tool.signal(std::slice::from_ref(&local), Signal::CONT.number()).unwrap(), 1);
    assert!(host.0.lock().unwrap().is_empty());
    assert_eq!(tool.signal(&[remote.clone(), local], Signal::CONT.number()).unwrap(), 4);
    assert_eq!(tool.signal(&[Proc::all(nspace())], Signal::KILL.number()).unwrap(), 4);
    let sent = host.0.lock().unwrap().clone();
    assert_eq!(sent, [(vec![remote], Signal::CONT), (vec![Proc::all(nspace())], Signal::KILL)]);
    engine.end_job(&nspace(), Some(0));
    assert_eq!(iof_testing::engine::wait(&job).code(), 137);
    // The host's processes have ended.
    assert!(tool.signal(&[Proc::new(nspace(), Rank(7))], Signal::TERM.number()).is_err());
}

#[test]
fn the_output_of_a_remote_rank_is_flushed_as_that_of_a_local_one() {
    let engine = iof_testing::engine::engine();
    let remote = Proc::new(nspace(), Rank(7));
    assert!(engine.job(&nspace()).is_none());
    let mut reader = engine.attach("test", Grant::Block).unwrap();
    reader.pull(&iof_tool::Pull::new(vec![remote.clone()], Channels::STDOUT)).unwrap();
    engine.deliver(&remote, Channel::Stdout, b"far\n".to_vec(), &[], || {}).unwrap();
    let job = engine.job(&nspace()).unwrap();
    assert!(!job.flush_rank(remote.rank, Some(std::time::Duration::ZERO)));
    assert!(matches!(reader.recv(), Ok(Some(Delivery::Bytes(_)))));
    // What was received is consumed by the next call.
    assert!(matches!(reader.try_recv(), Ok(None)));
    assert!(job.flush_rank(remote.rank, Some(std::time::Duration::from_secs(60))));
}
