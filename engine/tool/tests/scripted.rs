//! A tool connected to a scripted engine, which sends exactly what the test wants and when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use iof_proto::{
    Channel, Channels, Decoder, EffectiveOptions, Failure, FromTool, Granted, Log, LogReport, Nspace,
    PROTOCOL_VERSION, Proc, PushGranted, PushReport, Query, Rank, SlowTargets, Status, ToTool, Value, encode,
    socket,
};
use iof_shm_ring::{Inlet, Policy, ReaderPage, Start, Stream, StreamConfig, doorbell, notify};
use iof_tool::{BatchReader, Delivery, LostError, Peeked, PollReady, Pull, Push, Reply, RequestError, Tool};

/// The engine's end of a connection.
struct Engine {
    socket: UnixStream,
    /// The reader page. It holds the ringing end of the doorbell, which must stay open.
    page: Arc<ReaderPage>,
}

impl Engine {
    /// Sends `messages` so that they arrive together.
    fn send(&self, messages: &[ToTool]) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        assert_eq!(socket::send(&self.socket, &bytes, &[]).unwrap(), bytes.len());
    }

    /// Announces a stream to handler 1. It must be kept until the tool has read it.
    fn announce(&self, channel: Channel) -> Stream {
        let config = StreamConfig { capacity: 4096, policy: Policy::DropNewest };
        let mut stream = Stream::create(config, "stream").unwrap();
        let slot = self.page.take_slot().unwrap();
        let attached = stream.attach(&self.page, slot, Start::Oldest, false).unwrap();
        let ring = ToTool::Ring {
            handler: 1,
            source: Proc::new(nspace(), Rank(0)),
            channel,
            logged: false,
            run: 1,
            slot: attached.id.into(),
            follows: None,
            start: attached.start,
            dropped: attached.dropped,
            non_gating: attached.non_gating,
            options: EffectiveOptions::default(),
        };
        let frame = encode(&ring).unwrap();
        let sent = socket::send(&self.socket, &frame, &[attached.ring.as_fd().unwrap()]);
        assert_eq!(sent.unwrap(), frame.len());
        stream
    }

    /// Receives the next message of the tool; panics if more follows it.
    fn receive(&self) -> FromTool {
        let mut bytes = [0; 4096];
        let received = socket::receive(&self.socket, &mut bytes, &mut Default::default(), false, true);
        let mut unread = &bytes[..received.unwrap()];
        let message = Decoder::new().decode(&mut unread).unwrap().unwrap();
        assert!(unread.is_empty(), "more than {message:?}");
        message
    }
}

fn connect() -> (Engine, Tool) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (ringer, bell) = doorbell().unwrap();
    let page = ReaderPage::create(ringer).unwrap();
    let welcome = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid: 1, may_block: false };
    let frame = encode(&welcome).unwrap();
    socket::send(&ours, &frame, &[page.as_fd().unwrap(), bell.as_fd()]).unwrap();
    // SAFETY: the socket belongs to nothing else.
    let tool = unsafe { Tool::over(theirs, "test") }.unwrap();
    let engine = Engine { socket: ours, page: Arc::new(page) };
    engine.receive();
    (engine, tool)
}

fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

/// Registers for the job as handler 1; `with` arrives together with the answer.
fn pull(engine: &Engine, tool: &mut Tool, with: &[ToTool]) {
    let result = Ok(Granted { handler: 1, ignored: Vec::new() });
    engine.send(&[&[ToTool::Pulled { request: 1, result }], with].concat());
    let all = Proc::all(nspace());
    assert_eq!(tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap().handler, 1);
    engine.receive();
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
    let query = engine.receive();
    answer_query(engine, &query);
}

/// Refuses request 2, a query without keys.
fn answer_query(engine: &Engine, query: &FromTool) {
    assert_eq!(*query, FromTool::Query { request: 2, queries: Vec::new() });
    let refused = Failure::new(Status::ERR_NOT_FOUND, "no key");
    engine.send(&[ToTool::Answer { request: 2, result: Err(refused) }]);
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
    let mut stdout = engine.announce(Channel::Stdout);
    stdout.complete();
    thread::scope(|threads| {
        // The second stream comes late, but before the answer to what follows the pull.
        let stderr = threads.spawn(|| {
            let query = engine.receive();
            let mut stderr = engine.announce(Channel::Stderr);
            stderr.complete();
            answer_query(&engine, &query);
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
    let mut stdout = engine.announce(Channel::Stdout);
    let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
    assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
    let inactive = streams[0];
    assert_eq!(reader.peek(inactive), Peeked::Nothing);
    assert_eq!(reader.poll_ready(Some(Instant::now()), &mut streams).unwrap(), PollReady::Quiet);
    assert!(streams.is_empty());
    stdout.complete();
    assert!(matches!(reader.peek(inactive), Peeked::Complete(_)));
    notify([&stdout]);
    let _stderr = engine.announce(Channel::Stderr);
    assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
    let channels: Vec<_> = streams.iter().map(|id| reader.origin(*id).unwrap().channel).collect();
    assert_eq!(channels, [Channel::Stderr]);
}

#[test]
fn a_stream_whose_end_was_found_is_not_listed_while_it_keeps_its_id() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    let mut stdout = engine.announce(Channel::Stdout);
    stdout.complete();
    thread::scope(|threads| {
        let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
        assert_eq!(reader.poll_ready(None, &mut streams).unwrap(), PollReady::Ready);
        assert_eq!(reader.listed(), streams);
        assert!(matches!(reader.peek(streams[0]), Peeked::Complete(_)));
        assert_eq!(reader.listed(), []);
        // A stream that is announced in the same turn is listed, and does not take the id.
        let stderr = threads.spawn(|| {
            let query = engine.receive();
            let stderr = engine.announce(Channel::Stderr);
            answer_query(&engine, &query);
            stderr
        });
        reader.wait_for_streams().unwrap();
        let listed = reader.listed();
        assert!(listed.len() == 1 && listed != streams, "{listed:?}");
        drop(stderr.join());
    });
}
