//! A tool that may hold back sources and misuses the bell with which it signals room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::sync::Arc;
use std::thread;

use iof_engine::{ApprovalReply, Config, Grant, Host};
use iof_proto::{ToTool, socket};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{run, session_with, shell, spec};
use iof_testing::wait_for;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{read, write};

struct Trusting;

impl Host for Trusting {
    fn approve(&self, _: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(Ok(Grant::Block));
    }
}

#[test]
fn a_tool_cannot_block_an_engine_thread_through_its_room_bell() {
    let (engine, _directory) = session_with(Config::default(), Arc::new(Trusting));
    let mut raw = RawTool::connect(&engine);
    assert!(matches!(raw.receive(), ToTool::Welcome { may_block: true, .. }));
    let bell = raw.take_last_fd();
    // With the flag cleared, a thread that reads the bell blocks, as every ring is taken away here.
    fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let thief = bell.try_clone().unwrap();
    thread::spawn(move || while read(&thief, &mut [0; 8]).is_ok() {});
    let served = thread::spawn(move || {
        let (status, lines) = run(&engine, &spec([shell("echo hi")]));
        assert_eq!((status.code(), lines), (0, vec!["hi".to_owned()]));
        (0..200).for_each(|_| raw.sync());
    });
    wait_for("the engine to serve", || served.is_finished().then_some(()));
    served.join().unwrap();
    // Nor may a full counter block the engine.
    write(&bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
}
