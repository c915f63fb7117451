//! Tools that look for an engine and find some that do not want them, or do not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::thread;

use common::helper::{As, Helper, NOBODY, argument, ready};
use common::wait_for;
use iof_engine::{ApprovalReply, Config, Engine, Host, Rendezvous};
use iof_proto::rendezvous::{FindError, Level, Listener, Search, Target};
use iof_proto::{Failure, Status, socket};
use iof_tool::{AttachError, Tool};

fn session(directory: &Path) -> Engine {
    let rendezvous = Rendezvous::Session(Some(directory.into()));
    Engine::start(Config { rendezvous, ..Config::default() }).unwrap()
}

/// Looks for `target` in `directory`, with patience.
fn find(target: Target, directory: &Path) -> Result<Tool, AttachError> {
    let search = Search { target, directory: Some(directory.into()) };
    let finding = thread::spawn(move || Tool::find(&search, "test"));
    wait_for("an engine, or the end of the search", || finding.is_finished().then_some(()));
    finding.join().unwrap()
}

/// An engine at one level that wants nobody.
fn unwilling(rendezvous: Rendezvous) -> Engine {
    Engine::start_with(Config { rendezvous, ..Config::default() }, Arc::new(Unwilling)).unwrap()
}

struct Unwilling;

impl Host for Unwilling {
    fn approve(&self, _: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(Err(Failure { status: Status::ERR_NO_PERMISSIONS, reason: "not you".into() }));
    }
}

#[test]
fn who_is_refused_by_the_only_engine_there_is_is_told_so_whatever_its_level() {
    for level in [Level::System, Level::Session] {
        let directory = tempfile::tempdir().unwrap();
        let here = Some(directory.path().to_owned());
        let _engine = unwilling(match level {
            Level::System => Rendezvous::System(here),
            Level::Session => Rendezvous::Session(here),
        });
        let error = find(Target::Any, directory.path()).err().unwrap();
        assert!(matches!(&error, AttachError::Refused { reason, .. } if reason == "not you"), "{error}");
    }
}

#[test]
fn where_there_is_no_engine_the_sessions_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = find(Target::Any, directory.path()).err().unwrap();
    assert!(
        matches!(&error, AttachError::Find(FindError::NotFound(path)) if path == directory.path()),
        "{error}"
    );
}

#[test]
fn an_engine_that_does_not_answer_is_given_up_and_said_to_be_there() {
    let directory = tempfile::tempdir().unwrap();
    // Accepts nobody, as one that was stopped.
    let _stopped = Listener::bind(Level::System, Some(directory.path())).unwrap();
    let error = find(Target::Any, directory.path()).err().unwrap();
    assert!(matches!(error, AttachError::Silent { pid } if pid == process::id()), "{error}");
}

#[test]
fn after_an_engine_that_does_not_answer_the_next_one_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let _stopped = Listener::bind(Level::System, Some(directory.path())).unwrap();
    let _engine = session(directory.path());
    find(Target::Any, directory.path()).unwrap();
}

#[test]
#[ignore = "listens for the test below"]
fn a_listener() {
    let _listener = UnixListener::bind(argument()).unwrap();
    ready();
}

#[test]
fn a_tool_attaches_to_no_engine_of_another_user_but_root() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let Some(_helper) = Helper::start("a_listener", path.to_str().unwrap(), As::Nobody) else { return };
    let refused = Tool::connect(&path, "test").err().unwrap();
    let AttachError::Foreign { path: of, uid } = &refused else { panic!("{refused}") };
    assert_eq!((of.as_path(), *uid), (path.as_path(), NOBODY));
}
