//! Requests that a tool does not wait for: their answers come as deliveries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::stdins::{Stdins, engine_with_cache, last, procs};
use common::{PATIENCE, engine, nspace, shell, spec, wait};
use iof_engine::{
    AdoptSpec, AdoptedRank, Config, Engine, Exit, Grant, Host, Process, Rendezvous, Reply as HostReply,
};
use iof_proto::query::{Query, key};
use iof_proto::{Channels, Info, Log, Proc, Rank, Status};
use iof_tool::{Delivery, Pull, Reply, Tool};

fn all() -> Pull {
    Pull::new(vec![Proc { nspace: nspace(), rank: Rank::WILDCARD }], Channels::STDOUT)
}

/// The next delivery, which is a reply.
fn reply(tool: &mut Tool) -> (u32, Reply) {
    match tool.next(Some(PATIENCE)).unwrap() {
        Some(Delivery::Reply { request, reply }) => (request, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pull_is_answered_before_the_first_byte_that_it_brings() {
    let engine = engine();
    let job = engine.spawn(&spec([shell("echo hello")])).unwrap();
    wait(&job);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let asked = tool.submit_pull(&all()).unwrap();
    assert!(!tool.is_done(), "the reply is to come");
    let (request, Reply::Pulled(Ok(granted))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, granted.handler), (asked, 1));
    let Some(Delivery::Bytes(bytes)) = tool.next(Some(PATIENCE)).unwrap() else { panic!() };
    assert_eq!((&bytes[..], bytes.origin().handler), (&b"hello\n"[..], 1));
    while tool.next(Some(PATIENCE)).unwrap().is_some() {}
    assert!(tool.is_done());
}

#[test]
fn what_is_denied_is_told_and_leaves_nothing_behind() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let stdin = Pull { channels: Channels::STDIN, ..all() };
    tool.submit_pull_with(&stdin, |delivery| panic!("{delivery:?}")).unwrap();
    let (_, Reply::Pulled(Err(denied))) = reply(&mut tool) else { panic!() };
    assert_eq!(denied.status, Status::ERR_NOT_SUPPORTED);
    assert!(tool.is_done());
}

#[test]
fn several_requests_are_answered_each_by_its_number() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::of(&engine, 1);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let query = tool.submit_query(vec![Query::new([key::PMIX_QUERY_NAMESPACES])]).unwrap();
    let push = tool.submit_push(&last(procs(&[0])), Some(2)).unwrap();
    let unknown = tool.submit_query(vec![Query::new(["no.such.key"])]).unwrap();
    // One that is waited for, among them.
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
fn a_log_that_is_not_waited_for_is_answered_by_its_number() {
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let asked = tool.submit_log(&Log::to(["site.nowhere"], "half done")).unwrap();
    assert!(!tool.is_done() && !tool.is_gone());
    let (request, Reply::Logged(Ok(report))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, report.status), (asked, Status::ERR_OPERATION_FAILED));
    drop(engine);
    assert!(tool.next(Some(PATIENCE)).unwrap().is_none() && tool.is_gone());
}

/// Keeps the request that it gets.
struct Slow(Mutex<Sender<HostReply>>);

impl Host for Slow {
    fn iof_pull(&self, _: &[Proc], _: Channels, _: &[Info], reply: HostReply) {
        self.0.lock().unwrap().send(reply).unwrap();
    }
}

#[test]
fn a_tool_does_other_things_while_the_host_takes_its_time_and_learns_that_the_engine_went() {
    let directory = tempfile::tempdir().unwrap();
    let (tell, asked) = channel();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config { rendezvous, ..Config::default() };
    let engine = Engine::start_with(config, Arc::new(Slow(Mutex::new(tell)))).unwrap();
    let mut tool = Tool::connect(engine.socket().unwrap(), "test").unwrap();
    let asks = tool.submit_pull(&all()).unwrap();
    let open = asked.recv_timeout(PATIENCE).unwrap();
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none() && !tool.is_done());
    assert_eq!(tool.query(&[key::PMIX_QUERY_NAMESPACES]).unwrap().len(), 1);
    drop(engine);
    let (request, Reply::Pulled(Err(failure))) = reply(&mut tool) else { panic!() };
    assert_eq!((request, failure.status), (asks, Status::ERR_UNREACH));
    assert!(tool.is_done());
    assert!(tool.submit_pull(&all()).is_err());
    open.grant();
}

#[test]
fn a_thousand_long_answers_reach_a_tool_that_waited_for_none_of_them() {
    let engine = engine();
    let names = (0..200).map(|rank| AdoptedRank {
        rank: Rank(rank),
        executable: "rank".into(),
        stdin: None,
        stdout: None,
        stderr: None,
        stddiag: None,
        process: Process::Reported { pid: 0 },
    });
    let job = engine.adopt(AdoptSpec::new(nspace(), names.collect())).unwrap();
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    let (over, is_over) = channel();
    let asking = thread::spawn(move || {
        for _ in 0..1000 {
            tool.submit_query(vec![Query::new([key::PMIX_QUERY_PROC_TABLE])]).unwrap();
        }
        for request in 1..=1000 {
            let (of, Reply::Answered(Ok(answer))) = reply(&mut tool) else { panic!("it was refused") };
            assert_eq!((of, answer.found.len()), (request, 1));
        }
        over.send(()).unwrap();
    });
    is_over.recv_timeout(PATIENCE).expect("every answer comes");
    asking.join().unwrap();
    (0..200).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
}
