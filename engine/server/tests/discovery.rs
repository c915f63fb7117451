//! Discovery of engines that refuse tools or do not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::thread;

use iof_engine::{ApprovalReply, Config, Engine, Host, Rendezvous};
use iof_proto::rendezvous::{FindError, Level, Listener, Search, Target};
use iof_proto::{Failure, Status, socket};
use iof_testing::helper::{Helper, HelperUser, NOBODY, argument, ready};
use iof_testing::wait_for;
use iof_tool::{AttachError, Tool};

fn session(directory: &Path) -> Engine {
    let rendezvous = Rendezvous::Session(Some(directory.into()));
    Engine::start(Config::new(rendezvous)).unwrap()
}

/// Searches `directory` for `target`, for at most [`TIMEOUT`](iof_testing::TIMEOUT).
fn find(target: Target, directory: &Path) -> Result<Tool, AttachError> {
    let search = Search { target, ..Search::default() }.within(Some(directory.into()));
    let finding = thread::spawn(move || Tool::find(&search, "test"));
    wait_for("an engine, or the end of the search", || finding.is_finished().then_some(()));
    finding.join().unwrap()
}

/// Starts an engine at one level that refuses every tool.
fn refusing_engine(rendezvous: Rendezvous) -> Engine {
    Engine::start_with(Config::new(rendezvous), Arc::new(RefusingHost)).unwrap()
}

struct RefusingHost;

impl Host for RefusingHost {
    fn approve(&self, _: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(Err(Failure::new(Status::ERR_NO_PERMISSIONS, "not you")));
    }
}

#[test]
fn the_refusal_of_the_only_engine_is_reported_at_every_level() {
    for rendezvous in [Rendezvous::System, Rendezvous::Session, Rendezvous::Agent] {
        let directory = tempfile::tempdir().unwrap();
        let _engine = refusing_engine(rendezvous(Some(directory.path().to_owned())));
        let error = find(Target::Any, directory.path()).err().unwrap();
        assert!(matches!(&error, AttachError::Refused { reason, .. } if reason == "not you"), "{error}");
    }
}

#[test]
fn without_an_engine_the_error_names_the_sessions_directory() {
    let directory = tempfile::tempdir().unwrap();
    let error = find(Target::Any, directory.path()).err().unwrap();
    assert!(
        matches!(&error, AttachError::Find(FindError::NotFound(path)) if path == directory.path()),
        "{error}"
    );
}

#[test]
fn an_engine_that_does_not_answer_is_given_up_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    // Accepts no connection, like a stopped engine.
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
#[ignore = "helper of the next test: listens on a socket"]
fn a_listener() {
    let _listener = UnixListener::bind(argument()).unwrap();
    ready();
}

#[test]
fn a_tool_attaches_to_another_users_engine_only_if_that_user_is_root() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let Some(_helper) = Helper::start("a_listener", path.to_str().unwrap(), HelperUser::Nobody) else {
        return;
    };
    let refused = Tool::connect(&path, "test").err().unwrap();
    let AttachError::Foreign { path: foreign, uid } = &refused else { panic!("{refused}") };
    assert_eq!((foreign.as_path(), *uid), (path.as_path(), NOBODY));
}
