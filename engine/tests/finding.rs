//! Tools that look for an engine and find some that do not want them, or do not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::path::Path;
use std::process;
use std::thread;

use common::wait_for;
use iof_engine::{Config, Engine, Rendezvous};
use iof_proto::rendezvous::{Level, Listener, Search, Target};
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

#[test]
fn an_engine_that_does_not_answer_is_given_up_and_said_to_be_there() {
    let directory = tempfile::tempdir().unwrap();
    // Accepts nobody, as one that was stopped.
    let _stopped = Listener::bind(Level::System, Some(directory.path())).unwrap();
    let error = find(Target::System, directory.path()).err().unwrap();
    assert!(matches!(error, AttachError::Silent { pid } if pid == process::id()), "{error}");
}

#[test]
fn after_an_engine_that_does_not_answer_the_next_one_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let _stopped = Listener::bind(Level::System, Some(directory.path())).unwrap();
    let _engine = session(directory.path());
    find(Target::Any, directory.path()).unwrap();
}
