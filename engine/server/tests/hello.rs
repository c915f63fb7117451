//! Connections that send no hello or an invalid one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use iof_engine::Config;
use iof_proto::limits::{HELLO_LIMIT, MAX_CONNECTIONS_PER_PROCESS};
use iof_proto::query::key;
use iof_proto::{Decoder, FromTool, PROTOCOL_VERSION, Status, ToTool, encode};
use iof_testing::TIMEOUT;
use iof_testing::engine::session;
use iof_testing::helper::{Helper, HelperUser, argument, ready};
use iof_tool::Tool;

/// Returns the one message that arrives before the connection is closed.
fn refusal(mut socket: UnixStream) -> (Status, String) {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("the engine closes the connection");
    match Decoder::new().decode(&mut bytes.as_slice()).unwrap() {
        Some(ToTool::Refused { status, reason }) => (status, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "helper of the next test: holds connections"]
fn silent_connections() {
    let path = argument();
    let sockets: Vec<UnixStream> =
        (0..MAX_CONNECTIONS_PER_PROCESS).map(|_| UnixStream::connect(&path).unwrap()).collect();
    ready();
    drop(sockets);
}

#[test]
fn connections_without_a_hello_do_not_keep_tools_out() {
    let (engine, _directory) = session(Config::default());
    let path = engine.socket().unwrap().to_str().unwrap().to_owned();
    let helpers: Vec<Helper> =
        (0..4).map(|_| Helper::start("silent_connections", &path, HelperUser::Current).unwrap()).collect();
    let mut tools: Vec<Tool> =
        (0..4).map(|_| Tool::connect(engine.socket().unwrap(), "test").unwrap()).collect();
    for tool in &mut tools {
        tool.query(&[key::PMIX_QUERY_NAMESPACES]).expect("the engine serves the tool");
    }
    drop(helpers);
}

#[test]
fn a_new_tool_replaces_the_oldest_connection_without_a_hello_of_its_process() {
    let (engine, _directory) = session(Config::default());
    let path = engine.socket().unwrap();
    let mut silent: Vec<UnixStream> =
        (0..MAX_CONNECTIONS_PER_PROCESS).map(|_| UnixStream::connect(path).unwrap()).collect();
    let _tool = Tool::connect(path, "test").unwrap();
    let (status, reason) = refusal(silent.remove(0));
    assert_eq!(status, Status::ERR_OUT_OF_RESOURCE, "{reason}");
}

#[test]
fn a_connection_that_sends_no_hello_is_closed() {
    let (engine, _directory) = session(Config::default());
    let began = Instant::now();
    let (status, reason) = refusal(UnixStream::connect(engine.socket().unwrap()).unwrap());
    assert_eq!(status, Status::ERR_TIMEOUT);
    assert!(reason.contains("no hello"), "{reason}");
    assert!(began.elapsed() >= HELLO_LIMIT);
}

#[test]
fn a_tool_of_another_protocol_version_is_refused_with_a_reason() {
    let (engine, _directory) = session(Config::default());
    let mut socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
    let hello = FromTool::Hello { version: PROTOCOL_VERSION + 1, pid: 0, name: "newer".into() };
    socket.write_all(&encode(&hello).unwrap()).unwrap();
    let (status, reason) = refusal(socket);
    assert_eq!(status, Status::ERR_NOT_SUPPORTED);
    let versions = format!("{} of the tool differs from version {PROTOCOL_VERSION} of", PROTOCOL_VERSION + 1);
    assert!(reason.contains(&versions), "{reason}");
}
