//! Non-blocking requests: their replies arrive as deliveries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use iof_engine::{Config, Exit, Grant, Host, HostReply};
use iof_proto::query::{Query, key};
use iof_proto::{Channels, Info, Log, Proc, Rank, Status};
use iof_testing::TIMEOUT;
use iof_testing::engine::stdins::{Stdins, engine_with_cache, final_push, procs};
use iof_testing::engine::{adopt_reported, engine, nspace, session_with, shell, spec, wait};
use iof_tool::{Delivery, Pull, Reply, Tool};

fn all() -> Pull {
    Pull::new(vec![Proc::all(nspace())], Channels::STDOUT)
}

/// Returns the next delivery, which must be a reply.
fn reply(tool: &mut Tool) -> (u32, Reply) {
    match tool.recv_timeout(TIMEOUT).unwrap() {
        Some(Delivery::Reply { request, reply }) => (request, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_reply_to_a_pull_arrives_before_its_first_byte() {
    let engine = engine();
    let job = engine.spawn(&spec([shell("echo hello")])).unwrap();
    wait(&job);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let submitted = tool.submit_pull(&all()).unwrap();
    assert!(!tool.is_done(), "the reply is outstanding");
    let (request, Reply::Pulled(Ok(granted))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, granted.handler), (submitted, 1));
    let Some(Delivery::Bytes(bytes)) = tool.recv_timeout(TIMEOUT).unwrap() else { panic!() };
    assert_eq!((&bytes[..], bytes.origin().handler), (&b"hello\n"[..], 1));
    while tool.recv_timeout(TIMEOUT).unwrap().is_some() {}
    assert!(tool.is_done());
}

#[test]
fn a_denied_request_is_reported_and_leaves_nothing_behind() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let stdin = Pull { channels: Channels::STDIN, ..all() };
    tool.submit_pull_with(&stdin, |delivery| panic!("{delivery:?}")).unwrap();
    let (_, Reply::Pulled(Err(denied))) = reply(&mut tool) else { panic!() };
    assert_eq!(denied.status, Status::ERR_NOT_SUPPORTED);
    assert!(tool.is_done());
}

#[test]
fn replies_to_several_requests_carry_their_numbers() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 1);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let query = tool.submit_query(vec![Query::new([key::PMIX_QUERY_NAMESPACES])]).unwrap();
    let push = tool.submit_push(&final_push(procs(&[0])), Some(2)).unwrap();
    let unknown = tool.submit_query(vec![Query::new(["no.such.key"])]).unwrap();
    // A blocking request among them.
    assert_eq!(tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap().len(), 1);
    let (request, Reply::Answered(Ok(answer))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, answer.found.len()), (query, 1));
    let (request, Reply::PushBegun(Ok(granted))) = reply(&mut tool) else { panic!() };
    assert_eq!(request, push);
    let (request, Reply::Answered(Err(failure))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, failure.status), (unknown, Status::ERR_NOT_FOUND));
    tool.push_room(granted.push)[..2].copy_from_slice(b"hi");
    tool.fill(granted.push, 2, true).unwrap();
    assert_eq!(ranks.rest(0), b"hi");
}

#[test]
fn the_reply_to_a_log_request_carries_its_number() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let submitted = tool.submit_log(&Log::to(["site.nowhere"], "half done")).unwrap();
    assert!(!tool.is_done() && !tool.is_gone());
    let (request, Reply::Logged(Ok(report))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, report.status), (submitted, Status::ERR_OPERATION_FAILED));
    drop(engine);
    assert!(tool.recv_timeout(TIMEOUT).unwrap().is_none() && tool.is_gone());
}

/// A host that passes the reply to the test.
struct SlowHost(Mutex<Sender<HostReply>>);

impl Host for SlowHost {
    fn iof_pull(&self, _: &[Proc], _: Channels, _: &[Info], reply: HostReply) {
        self.0.lock().unwrap().send(reply).unwrap();
    }
}

#[test]
fn a_tool_works_while_the_host_is_slow_and_sees_the_end_of_the_engine() {
    let (sender, replies) = channel();
    let (engine, _directory) = session_with(Config::default(), Arc::new(SlowHost(Mutex::new(sender))));
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let submitted = tool.submit_pull(&all()).unwrap();
    let open = replies.recv_timeout(TIMEOUT).unwrap();
    assert!(tool.try_recv().unwrap().is_none() && !tool.is_done());
    assert_eq!(tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap().len(), 1);
    drop(engine);
    let (request, Reply::Pulled(Err(failure))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, failure.status), (submitted, Status::ERR_UNREACH));
    assert!(tool.is_done());
    assert!(tool.submit_pull(&all()).is_err());
    open.grant();
}

#[test]
fn a_tool_receives_a_thousand_long_replies_that_it_did_not_wait_for() {
    let engine = engine();
    let job = adopt_reported(&engine, 200).unwrap();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (finished, is_finished) = channel();
    let asking = thread::spawn(move || {
        for _ in 0..1000 {
            tool.submit_query(vec![Query::new([key::PMIX_QUERY_PROC_TABLE])]).unwrap();
        }
        for request in 1..=1000 {
            let (number, Reply::Answered(Ok(answer))) = reply(&mut tool) else {
                panic!("the query was refused")
            };
            assert_eq!((number, answer.found.len()), (request, 1));
        }
        finished.send(()).unwrap();
    });
    is_finished.recv_timeout(TIMEOUT).expect("every reply arrives");
    asking.join().unwrap();
    (0..200).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
}
