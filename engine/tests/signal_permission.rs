//! Signals from tools of other users.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::helper::{Helper, HelperUser, NOBODY, argument, ready};
use common::{nspace, shell, spec};
use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, Rendezvous, Signal};
use iof_proto::socket::PeerCredentials;
use iof_proto::{Proc, Status};
use iof_tool::{RequestError, Tool};

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
    let engine = Engine::start_with(Config { rendezvous, ..Config::default() }, Arc::new(Public)).unwrap();
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
    assert_eq!(common::wait(&job).code(), 137);
}
