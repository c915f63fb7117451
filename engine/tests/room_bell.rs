//! A tool that was granted to hold sources back, and misuses the bell by which it tells of room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::thread;

use common::raw::Raw;
use common::{run, shell, spec, wait_for};
use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, Policy, Rendezvous};
use iof_proto::{ToTool, socket};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{read, write};

struct Trusting;

impl Host for Trusting {
    fn approve(&self, _: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(Ok(Grant::Block));
    }
}

#[test]
fn a_granted_tool_can_block_no_thread_of_the_engine_by_its_bell() {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config { rendezvous, policy: Policy::Block, ..Config::default() };
    let engine = Engine::start_with(config, Arc::new(Trusting)).unwrap();
    let mut raw = Raw::connect(&engine);
    assert!(matches!(raw.receive(), ToTool::Welcome { may_block: true, .. }));
    let bell = raw.take_fd();
    // Whoever reads it waits, and finds that all rings were taken away.
    fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let thief = bell.try_clone().unwrap();
    thread::spawn(move || while read(&thief, &mut [0; 8]).is_ok() {});
    let served = thread::spawn(move || {
        let (status, lines) = run(&engine, &spec([shell("echo hi")]));
        assert_eq!((status.code(), lines), (0, vec!["hi".to_owned()]));
        (0..200).for_each(|_| raw.until_heard());
    });
    wait_for("the engine to serve", || served.is_finished().then_some(()));
    served.join().unwrap();
    // Nor does it matter how full it is.
    write(&bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
}
