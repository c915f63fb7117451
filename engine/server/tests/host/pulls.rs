//! The host grants or denies pulls, and learns of sources that no tool wants any more.

use std::collections::BTreeSet;
use std::thread;

use iof_engine::Grant;
use iof_proto::Failure;
use iof_proto::limits::MAX_REGISTRATIONS_PER_TOOL;
use iof_proto::{Channels, FromTool, Info, Status, ToTool};
use iof_tool::{Delivery, Pull};

use super::{CREDENTIAL, Request, denied, fixture, granted, procs, pull, read, whole_job};
use iof_testing::TIMEOUT;
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{shell, spec, wait};

#[test]
fn a_tool_waits_for_the_hosts_grant_and_then_receives_the_first_byte() {
    let fixture = fixture();
    let directives = vec![Info::new("site.colour", true)];
    let mut tool = fixture.tool();
    let pulling = thread::spawn(move || {
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Request::Pull(procs, channels, directives, reply) = fixture.next() else { panic!("a stop") };
    assert_eq!((procs, channels), (whole_job(), Channels::STDOUT));
    assert_eq!(directives, [Info::new("site.colour", true)]);
    let job = fixture.engine.spawn(&spec([shell("echo first")])).unwrap();
    assert!(!pulling.is_finished());
    wait(&job);
    thread::spawn(move || reply.grant()).join().unwrap();
    let (mut tool, granted) = granted(pulling);
    assert_eq!((granted.handler, granted.ignored), (1, vec!["site.colour".to_owned()]));
    assert_eq!(read(&mut tool), b"first\n");
}

#[test]
fn only_new_sources_and_channels_are_requested_from_the_host() {
    let fixture = fixture();
    let (mut tool, _) = fixture.granted(procs(&[0, 1]), Channels::STDOUT);
    // All sources are granted, so the host receives no request.
    tool.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    fixture.assert_no_request(&mut tool);
    let pulling = fixture.pull(procs(&[1, 2]), Channels::STDOUT);
    let (requested, channels, reply) = fixture.next_pull();
    assert_eq!((requested, channels), (procs(&[2]), Channels::STDOUT));
    reply.grant();
    let _second = granted(pulling);
    let pulling = fixture.pull(procs(&[0]), Channels::STDOUT | Channels::STDERR);
    let (requested, channels, reply) = fixture.next_pull();
    assert_eq!((requested, channels), (procs(&[0]), Channels::STDERR));
    reply.grant();
    let _third = granted(pulling);
    fixture.assert_no_request(&mut tool);
}

#[test]
fn a_whole_job_covers_its_ranks() {
    let fixture = fixture();
    let (mut tool, _) = fixture.granted(whole_job(), Channels::STDOUT);
    tool.pull(&Pull::new(procs(&[0, 7]), Channels::STDOUT)).unwrap();
    fixture.assert_no_request(&mut tool);
}

#[test]
fn a_denied_tool_receives_the_reason_and_no_output() {
    let fixture = fixture();
    let job = fixture.engine.spawn(&spec([shell("echo secret; read x")])).unwrap();
    let pulling = fixture.pull(whole_job(), Channels::STDOUT);
    fixture.next_pull().2.deny(Status(-1234), "not today");
    let (mut tool, failure) = denied(pulling);
    assert_eq!(failure, Failure::new(Status(-1234), "not today"));
    wait(&job);
    assert_eq!(read(&mut tool), b"");
    assert_eq!(fixture.readers(), 0);
    // The tool may pull again.
    let pulling = pull(tool, whole_job(), Channels::STDOUT);
    fixture.next_pull().2.grant();
    assert_eq!(read(&mut granted(pulling).0), b"secret\n");
}

#[test]
fn a_request_that_the_host_drops_is_denied() {
    let fixture = fixture();
    let pulling = fixture.pull(whole_job(), Channels::STDOUT);
    drop(fixture.next_pull());
    assert_eq!(denied(pulling).1.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
fn concurrent_equal_requests_make_one_upcall_and_share_its_answer() {
    let fixture = fixture();
    let mut other = fixture.tool();
    for grants in [false, true] {
        let mut raws: Vec<RawTool> = (0..8).map(|_| fixture.raw()).collect();
        for raw in &mut raws {
            raw.pull(whole_job(), Channels::STDOUT);
            raw.sync();
        }
        let (_, _, reply) = fixture.next_pull();
        fixture.assert_no_request(&mut other);
        assert!(raws.iter().all(|raw| raw.pulled.is_empty()));
        if grants {
            reply.grant();
        } else {
            reply.deny(Status::ERR_NO_PERMISSIONS, "no");
        }
        for raw in &mut raws {
            assert_eq!(raw.next_pulled().is_ok(), grants);
        }
        fixture.assert_no_request(&mut other);
    }
    assert_eq!(fixture.next_stop(), (whole_job(), Channels::STDOUT));
}

#[test]
fn after_a_denial_different_requests_are_sent_to_the_host_separately() {
    let fixture = fixture();
    let (mut first, mut less, mut other) = (fixture.raw(), fixture.raw(), fixture.raw());
    first.pull(procs(&[0, 1]), Channels::STDOUT);
    less.pull(procs(&[0]), Channels::STDOUT);
    other.pull_with(procs(&[0, 1]), Channels::STDOUT, vec![Info::required(CREDENTIAL, true)]);
    let (requested, _, reply) = fixture.next_pull();
    [&mut first, &mut less, &mut other].into_iter().for_each(RawTool::sync);
    assert_eq!(requested, procs(&[0, 1]), "the others wait for the same answer");
    reply.deny(Status::ERR_NO_PERMISSIONS, "not rank 1");
    assert!(first.next_pulled().is_err());
    let mut again = BTreeSet::new();
    for _ in 0..2 {
        let Request::Pull(procs, _, directives, reply) = fixture.next() else { panic!("a stop") };
        again.insert((procs, directives.iter().any(|info| info.key == CREDENTIAL)));
        reply.grant();
    }
    assert_eq!(again, BTreeSet::from([(procs(&[0]), false), (procs(&[1]), true)]));
    assert!(less.next_pulled().is_ok() && other.next_pulled().is_ok());
}

#[test]
fn directives_that_only_the_host_understands_are_passed_to_it() {
    let fixture = fixture();
    let mut tool = fixture.tool();
    let pulling = thread::spawn(move || {
        let directives = vec![Info::required(CREDENTIAL, true), Info::new("unknown.key", true)];
        let granted = tool.pull(&Pull { directives, ..Pull::new(whole_job(), Channels::STDOUT) });
        (tool, granted)
    });
    let Request::Pull(_, _, directives, reply) = fixture.next() else { panic!("a stop") };
    assert!(directives.iter().any(|info| info.key == CREDENTIAL && info.required));
    reply.grant();
    assert_eq!(granted(pulling).1.ignored, ["unknown.key"]);
}

#[test]
fn the_waiting_requests_of_a_tool_are_limited() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    for rank in 0..=u32::try_from(MAX_REGISTRATIONS_PER_TOOL).unwrap() {
        raw.pull(procs(&[rank]), Channels::STDOUT);
    }
    raw.sync();
    let refused = raw.next_pulled().unwrap_err();
    assert_eq!(refused.status, Status::ERR_OUT_OF_RESOURCE);
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| fixture.next_pull().2.grant());
    (0..MAX_REGISTRATIONS_PER_TOOL).for_each(|_| drop(raw.next_pulled().unwrap()));
}

#[test]
fn a_waiting_request_is_not_a_registration_yet() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    raw.send(&FromTool::Deregister { request: 7, handler: 1 });
    let answer = loop {
        if let ToTool::Deregistered { result, .. } = raw.receive() {
            break result;
        }
    };
    assert_eq!(answer.unwrap_err().status, Status::ERR_NOT_FOUND);
    fixture.next_pull().2.grant();
    assert_eq!(raw.next_pulled().unwrap().handler, 1);
}

#[test]
fn the_host_is_informed_once_of_sources_that_no_tool_wants_any_more() {
    let fixture = fixture();
    let (mut first, registration) = fixture.granted(procs(&[0, 1]), Channels::STDOUT);
    let mut second = fixture.tool();
    second.pull(&Pull::new(procs(&[1]), Channels::STDOUT)).unwrap();
    first.deregister(registration.handler).unwrap();
    let ended = first.recv_timeout(TIMEOUT).unwrap();
    assert!(matches!(ended, Some(Delivery::Deregistered { .. })), "{ended:?}");
    assert_eq!(fixture.next_stop(), (procs(&[0]), Channels::STDOUT));
    drop(second);
    assert_eq!(fixture.next_stop(), (procs(&[1]), Channels::STDOUT));
    fixture.assert_no_request(&mut first);
}

#[test]
fn a_source_granted_after_its_tool_has_disconnected_is_stopped() {
    let fixture = fixture();
    let mut raw = fixture.raw();
    raw.pull(whole_job(), Channels::STDOUT);
    let (_, _, reply) = fixture.next_pull();
    drop(raw);
    // Tools are served in order, so the disconnection is processed first.
    let mut other = fixture.tool();
    fixture.assert_no_request(&mut other);
    reply.grant();
    assert_eq!(fixture.next_stop(), (whole_job(), Channels::STDOUT));
    // The next pull makes a new request.
    let pulling = pull(other, whole_job(), Channels::STDOUT);
    fixture.next_pull().2.grant();
    granted(pulling);
}

#[test]
fn partial_grants_of_a_denied_pull_are_undone() {
    let fixture = fixture();
    let (tool, _) = fixture.granted(procs(&[0]), Channels::STDERR);
    let pulling = fixture.pull(procs(&[0, 1]), Channels::STDOUT | Channels::STDERR);
    let (first, second) = (fixture.next_pull(), fixture.next_pull());
    first.2.grant();
    second.2.deny(Status::ERR_NOT_SUPPORTED, "not that one");
    denied(pulling);
    assert_eq!(fixture.next_stop(), (first.0, first.1));
    drop(tool);
    assert_eq!(fixture.next_stop(), (procs(&[0]), Channels::STDERR));
}

#[test]
fn the_embedders_own_tools_make_no_requests_to_the_host() {
    let fixture = fixture();
    let mut own = fixture.engine.attach("own", Grant::Block).unwrap();
    own.pull(&Pull::new(whole_job(), Channels::ALL)).unwrap();
    fixture.assert_no_request(&mut own);
}
