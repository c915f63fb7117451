//! A tool connected to a scripted engine, which sends exactly what the test wants and when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use iof_proto::{
    Channel, Channels, Failure, FromTool, Log, LogReport, PROTOCOL_VERSION, Proc, PushGranted, PushReport,
    Query, Rank, SlowTargets, Status, ToTool, Value, encode, socket,
};
use iof_shm_ring::{Inlet, notify};
use iof_testing::scripted::{Engine, connect, nspace, stream};
use iof_tool::{BatchReader, Delivery, LostError, Peeked, PollReady, Pull, Push, Reply, RequestError, Tool};

/// Registers for stdout of the job as handler 1; `with` arrives together with the answer.
fn pull(engine: &Engine, tool: &mut Tool, with: &[ToTool]) {
    iof_testing::scripted::pull(engine, tool, Channels::STDOUT, with);
}

fn job_ended() -> ToTool {
    ToTool::JobEnded { handler: 1, nspace: nspace(), run: 1, exit_code: Some(5), skipped: 0 }
}

fn assert_job_ended(delivery: Option<Delivery<'_>>) {
    let Some(Delivery::JobEnded { handler: 1, exit_code: Some(5), .. }) = delivery else {
        panic!("{delivery:?}")
    };
}

#[test]
fn messages_that_arrive_with_an_answer_make_the_timeout_zero() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    assert!(tool.try_recv().unwrap().is_none());
    assert_eq!(tool.timeout(), None);
    let found = iof_proto::Found { query: 0, key: "key".into(), value: Value::Text(String::new()) };
    let answer = iof_proto::Answer { status: Status::SUCCESS, found: vec![found] };
    engine.send(&[ToTool::Answer { request: 2, result: Ok(answer) }, job_ended()]);
    tool.query(&["key"]).unwrap();
    assert_eq!(tool.timeout(), Some(Duration::ZERO));
    assert_job_ended(tool.try_recv().unwrap());
    assert!(tool.is_done());
    assert_eq!(tool.timeout(), None);
}

#[test]
fn messages_that_arrive_with_the_answer_to_a_pull_are_delivered_once() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[ToTool::Announced { handler: 1 }, job_ended(), job_ended()]);
    assert_job_ended(tool.recv().unwrap());
    assert!(tool.recv().unwrap().is_none());
}

/// Answers the query that serves as a barrier when a tool deregisters.
fn answer_the_barrier(engine: &Engine) {
    engine.answer_barrier(engine.receive_barrier());
}

#[test]
fn a_registration_is_ended_only_after_everything_on_its_way_has_arrived() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    tool.deregister(1).unwrap();
    assert!(tool.try_recv().unwrap().is_none());
    // The tool reads one message, which is not an end, and asks the engine for the end.
    answer_the_barrier(&engine);
    assert!(tool.try_recv().unwrap().is_none());
    assert_eq!(engine.receive(), FromTool::Deregister { request: 3, handler: 1 });
}

#[test]
fn the_confirmation_of_a_deregistration_is_awaited_without_blocking() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    tool.deregister(1).unwrap();
    answer_the_barrier(&engine);
    assert!(tool.try_recv().unwrap().is_none());
    assert_eq!(engine.receive(), FromTool::Deregister { request: 3, handler: 1 });
    assert!(!tool.is_done());
    // The confirmation of another request.
    engine.send(&[ToTool::Deregistered { request: 77, result: Ok(()) }, job_ended()]);
    assert!(tool.try_recv().unwrap().is_none());
    let confirm = thread::spawn(move || {
        engine.send(&[ToTool::Deregistered { request: 3, result: Ok(()) }]);
        engine
    });
    let delivery = tool.recv().unwrap();
    assert!(matches!(delivery, Some(Delivery::Deregistered { handler: 1 })), "{delivery:?}");
    confirm.join().unwrap();
}

#[test]
fn an_engine_that_violates_the_protocol_is_an_error_once_and_then_gone() {
    for case in ["a second welcome", "a ring without its descriptor", "bytes that are not a message"] {
        let (engine, mut tool) = connect();
        pull(&engine, &mut tool, &[]);
        if case == "a second welcome" {
            engine.send(&[ToTool::Refused { status: Status::ERR_BAD_PARAM, reason: "no".into() }]);
        } else {
            let bytes: &[u8] = if case == "bytes that are not a message" { &[0xff; 64] } else { &ring() };
            socket::send(&engine.socket, bytes, &[]).unwrap();
        }
        let lost = tool.recv().unwrap_err();
        assert!(!matches!(lost, LostError::Closed), "{lost}");
        assert!(tool.recv().unwrap().is_none() && tool.is_done());
        let error = tool.query(&["key"]).unwrap_err();
        assert!(matches!(error, RequestError::Lost(LostError::Closed)), "{error}");
    }
}

fn ring() -> Vec<u8> {
    let ring = ToTool::Ring {
        handler: 1,
        source: Proc { nspace: nspace(), rank: Rank(0) },
        channel: iof_proto::Channel::Stdout,
        logged: false,
        run: 1,
        slot: 0,
        follows: None,
        start: 0,
        dropped: 0,
        non_gating: false,
        options: Default::default(),
    };
    encode(&ring).unwrap()
}

#[test]
fn an_engine_that_ends_during_a_request_fails_it_and_drops_the_callback() {
    let (engine, mut tool) = connect();
    drop(engine);
    let all = Proc::all(nspace());
    let lost = tool.pull_with(&Pull::new(vec![all], Channels::STDOUT), |_| {}).unwrap_err();
    assert!(matches!(lost, RequestError::Lost(LostError::Closed)), "{lost}");
    assert_eq!(lost.to_string(), "the engine has ended or closed the connection");
    assert!(!tool.dispatch(None).unwrap());
    let _ = tool.as_fd();
}

/// Returns the next delivery, which must be a reply.
fn reply(tool: &mut Tool) -> (u32, Reply) {
    match tool.try_recv().unwrap() {
        Some(Delivery::Reply { request, reply }) => (request, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_end_of_the_connection_ends_a_wait_once_and_every_other_request() {
    let (engine, mut tool) = connect();
    let query = tool.submit_query(vec![Query::new(["key"])]).unwrap();
    engine.receive();
    let slow = tool.submit_slow_targets(1, None).unwrap();
    engine.receive();
    let ends = thread::spawn(move || assert!(matches!(engine.receive(), FromTool::Log { request: 3, .. })));
    let lost = tool.log(&Log::to(["site.log"], "text")).unwrap_err();
    assert!(matches!(lost, RequestError::Lost(LostError::Closed)), "{lost}");
    ends.join().unwrap();
    assert!(tool.is_gone() && !tool.is_done());
    let (first, Reply::Answered(Err(failure))) = reply(&mut tool) else { panic!() };
    assert_eq!((first, failure.status), (query, Status::ERR_UNREACH));
    let (second, Reply::SlowTargets(Err(failure))) = reply(&mut tool) else { panic!() };
    assert_eq!((second, failure.status), (slow, Status::ERR_UNREACH));
    // The request that was waited for has no reply.
    assert!(tool.try_recv().unwrap().is_none() && tool.is_done());
}

#[test]
fn a_violation_of_the_protocol_during_a_wait_ends_the_wait_with_its_error() {
    let (engine, mut tool) = connect();
    engine.send(&[ToTool::Refused { status: Status::ERR_BAD_PARAM, reason: "no".into() }]);
    let lost = tool.query(&["key"]).unwrap_err();
    assert!(matches!(lost, RequestError::Lost(LostError::Unexpected { .. })), "{lost}");
    assert!(tool.try_recv().unwrap().is_none() && tool.is_done());
}

#[test]
fn an_answer_after_the_end_of_its_wait_is_ignored() {
    let (engine, mut tool) = connect();
    let log = Log::to(["site.log"], "text");
    assert!(tool.log_within(&log, Duration::ZERO).unwrap().is_none());
    assert!(tool.is_done(), "nothing is left of the request");
    let logged = |request, status| ToTool::Logged {
        request,
        result: Ok(LogReport { status, outcomes: Vec::new(), ignored: Vec::new() }),
    };
    engine.send(&[logged(1, Status::ERR_TIMEOUT), logged(2, Status::SUCCESS)]);
    assert_eq!(tool.log(&log).unwrap().status, Status::SUCCESS);
    assert!(tool.try_recv().unwrap().is_none());
}

#[test]
fn a_reply_that_arrives_during_a_wait_is_delivered_afterwards() {
    let (engine, mut tool) = connect();
    let submitted = tool.submit_slow_targets(1, None).unwrap();
    let answer = iof_proto::Answer { status: Status::SUCCESS, found: Vec::new() };
    let slow = SlowTargets::default();
    engine.send(&[
        ToTool::SlowTargets { request: 1, slow: slow.clone() },
        ToTool::Answer { request: 2, result: Ok(answer.clone()) },
    ]);
    assert_eq!(tool.queries(vec![Query::new(["key"])]).unwrap(), answer);
    assert_eq!(reply(&mut tool), (submitted, Reply::SlowTargets(Ok(slow))));
}

#[test]
fn an_answer_of_another_kind_than_its_request_is_an_error() {
    let denied = || Err(Failure::new(Status::ERR_NOT_FOUND, "no key"));
    let (engine, mut tool) = connect();
    engine.send(&[ToTool::Logged { request: 1, result: denied() }]);
    let lost = tool.query(&["key"]).unwrap_err();
    assert!(matches!(lost, RequestError::Lost(LostError::Unexpected { .. })), "{lost}");
    let (engine, mut tool) = connect();
    tool.submit_pull(&Pull::new(vec![Proc::all(nspace())], Channels::STDOUT)).unwrap();
    engine.send(&[ToTool::Deregistered { request: 1, result: Ok(()) }]);
    let lost = tool.try_recv().unwrap_err();
    assert!(matches!(lost, LostError::Unexpected { .. }), "{lost}");
}

#[test]
fn a_tool_that_only_pushes_reports_what_arrived_with_an_answer_as_ready() {
    let (engine, mut tool) = connect();
    let inlet = Inlet::create(4096, "stdin").unwrap();
    let granted = PushGranted { push: 1, skipped: Vec::new(), ignored: Vec::new() };
    let begun = encode(&ToTool::PushBegun { request: 1, result: Ok(granted) }).unwrap();
    socket::send(&engine.socket, &begun, &[inlet.as_fd()]).unwrap();
    let target = Proc::new(nspace(), Rank(0));
    assert_eq!(tool.begin_push(&Push::new(vec![target]), None).unwrap().push, 1);
    assert!(matches!(engine.receive(), FromTool::Push { request: 1, .. }));
    assert!(!tool.dispatch(Some(Duration::ZERO)).unwrap());
    assert_eq!(tool.timeout(), None);
    let lagging = ToTool::SlowTargets { request: 2, slow: SlowTargets::default() };
    let report = PushReport { bytes: 7, complete: 1, partial: Vec::new() };
    engine.send(&[lagging, ToTool::Pushed { push: 1, report: report.clone() }]);
    tool.slow_targets(1, None).unwrap();
    assert_eq!(tool.timeout(), Some(Duration::ZERO));
    assert!(!tool.dispatch(Some(Duration::ZERO)).unwrap());
    assert_eq!(tool.take_report(1).unwrap(), Some(report));
    assert_eq!(tool.timeout(), None);
}

#[test]
fn room_for_unfilled_bytes_is_an_error_and_for_unknown_pushes_is_ignored() {
    let (engine, mut tool) = connect();
    engine.send(&[
        ToTool::Room { push: 9, position: 1 },
        ToTool::Pushed { push: 9, report: PushReport::default() },
    ]);
    assert!(!tool.dispatch(Some(Duration::ZERO)).unwrap());
    assert_eq!((tool.take_report(9).unwrap(), tool.push_room(9).len()), (None, 0));
    let inlet = Inlet::create(4096, "stdin").unwrap();
    let granted = PushGranted { push: 1, skipped: Vec::new(), ignored: Vec::new() };
    let begun = encode(&ToTool::PushBegun { request: 1, result: Ok(granted) }).unwrap();
    socket::send(&engine.socket, &begun, &[inlet.as_fd()]).unwrap();
    tool.begin_push(&Push::new(vec![Proc::new(nspace(), Rank(0))]), None).unwrap();
    tool.fill(1, 10, false).unwrap();
    engine.send(&[ToTool::Room { push: 1, position: 11 }]);
    let error = tool.dispatch(Some(Duration::ZERO));
    assert!(matches!(error, Err(LostError::Unexpected { .. })), "{error:?}");
    assert!(matches!(tool.take_report(1), Err(LostError::Closed)));
}

/// Polls until nothing more is announced.
fn drain(tool: Tool) -> BatchReader {
    let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
    while reader.poll_ready(None, &mut streams).unwrap() != PollReady::Done {}
    reader
}

#[test]
fn an_engine_that_ends_before_announcing_all_streams_leaves_some_missing() {
    for (with, misses) in [(Vec::new(), true), (vec![ToTool::Announced { handler: 1 }], false)] {
        let (engine, mut tool) = connect();
        pull(&engine, &mut tool, &with);
        drop(engine);
        let reader = drain(tool);
        assert_eq!(reader.tool().misses_streams(), misses, "{with:?}");
    }
}

#[test]
fn a_reader_that_waits_for_the_existing_streams_finds_them_together() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    let mut stdout = engine.announce(0, Channel::Stdout, stream(&[]));
    stdout.complete();
    thread::scope(|threads| {
        // The second stream comes late, but before the answer to what follows the pull.
        let stderr = threads.spawn(|| {
            let query = engine.receive_barrier();
            let mut stderr = engine.announce(0, Channel::Stderr, stream(&[]));
            stderr.complete();
            engine.answer_barrier(query);
            stderr
        });
        let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
        reader.wait_for_streams().unwrap();
        assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
        assert_eq!(streams.len(), 2);
        drop(stderr.join());
    });
}

#[test]
fn a_stream_whose_end_was_found_while_it_was_inactive_is_not_listed_again() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    let mut stdout = engine.announce(0, Channel::Stdout, stream(&[]));
    let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
    assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
    let inactive = streams[0];
    assert_eq!(reader.peek(inactive), Peeked::Nothing);
    assert_eq!(reader.poll_ready(Some(Instant::now()), &mut streams).unwrap(), PollReady::Quiet);
    assert!(streams.is_empty());
    stdout.complete();
    assert!(matches!(reader.peek(inactive), Peeked::Complete(_)));
    notify([&stdout]);
    let _stderr = engine.announce(0, Channel::Stderr, stream(&[]));
    assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
    let channels: Vec<_> = streams.iter().map(|id| reader.origin(*id).unwrap().channel).collect();
    assert_eq!(channels, [Channel::Stderr]);
}

#[test]
fn an_engine_of_another_protocol_version_is_refused_with_both_numbers() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let other = PROTOCOL_VERSION + 1;
    let welcome = ToTool::Welcome { version: other, engine_pid: 1, may_block: false };
    let files: Vec<OwnedFd> = (0..2).map(|_| File::open("/dev/null").unwrap().into()).collect();
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    socket::send(&ours, &encode(&welcome).unwrap(), &fds).unwrap();
    // SAFETY: the socket belongs to nothing else.
    let refused = unsafe { Tool::over(theirs, "test") }.unwrap_err().to_string();
    let reason = format!("version {other} of the engine differs from version {PROTOCOL_VERSION} of the tool");
    assert!(refused.contains(&reason), "{refused}");
}
