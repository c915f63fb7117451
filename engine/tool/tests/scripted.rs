//! A tool against an engine that says what the test wants, when it wants it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use iof_proto::{
    Channels, Decoder, Failure, FromTool, Granted, Nspace, PROTOCOL_VERSION, Proc, PushGranted, PushReport,
    Rank, SlowTargets, Status, ToTool, Value, encode, socket,
};
use iof_shm_ring::{Inlet, ReaderPage, doorbell};
use iof_tool::{Delivery, LostError, PollReady, Pull, Push, RequestError, Tool};

/// The engine's end of a connection.
struct Engine {
    socket: UnixStream,
    /// With the doorbell's ringing end, which a tool that lives may count on.
    _area: ReaderPage,
}

impl Engine {
    /// Sends `messages` so that they arrive together.
    fn send(&self, messages: &[ToTool]) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        assert_eq!(socket::send(&self.socket, &bytes, &[]).unwrap(), bytes.len());
    }

    /// What the tool sends next, if it is no more than one message.
    fn hear(&self) -> FromTool {
        let mut bytes = [0; 4096];
        let received = socket::receive(&self.socket, &mut bytes, &mut Default::default(), false, true);
        let mut heard = &bytes[..received.unwrap()];
        let message = Decoder::new().decode(&mut heard).unwrap().unwrap();
        assert!(heard.is_empty(), "more than {message:?}");
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
    // SAFETY: the socket is nobody else's.
    let tool = unsafe { Tool::over(theirs, "test") }.unwrap();
    let engine = Engine { socket: ours, _area: page };
    engine.hear();
    (engine, tool)
}

fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

/// Registers for the job as handler 1; `with` comes together with the answer.
fn pull(engine: &Engine, tool: &mut Tool, with: &[ToTool]) {
    let result = Ok(Granted { handler: 1, ignored: Vec::new() });
    engine.send(&[&[ToTool::Pulled { request: 1, result }], with].concat());
    let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
    assert_eq!(tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap().handler, 1);
    engine.hear();
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
fn what_came_together_with_an_answer_is_no_reason_to_sleep() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    assert_eq!(tool.timeout(), None);
    let found = iof_proto::Found { query: 0, key: "key".into(), value: Value::Text(String::new()) };
    let answer = iof_proto::Answer { status: Status::SUCCESS, found: vec![found] };
    engine.send(&[ToTool::Answer { request: 2, result: Ok(answer) }, job_ended()]);
    tool.query(&["key"]).unwrap();
    assert_eq!(tool.timeout(), Some(Duration::ZERO));
    assert_job_ended(tool.next(Some(Duration::ZERO)).unwrap());
    assert!(tool.is_done());
    assert_eq!(tool.timeout(), None);
}

#[test]
fn what_comes_together_with_the_answer_to_a_pull_belongs_to_it_and_comes_once() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[ToTool::Announced { handler: 1 }, job_ended(), job_ended()]);
    assert_job_ended(tool.next(None).unwrap());
    assert!(tool.next(None).unwrap().is_none());
}

/// Answers, as an engine does, what the tool asks when it has begun to deregister.
fn answer_the_barrier(engine: &Engine) {
    assert_eq!(engine.hear(), FromTool::Query { request: 2, queries: Vec::new() });
    let refused = Failure { status: Status::ERR_NOT_FOUND, reason: "no key".into() };
    engine.send(&[ToTool::Answer { request: 2, result: Err(refused) }]);
}

#[test]
fn a_registration_is_not_ended_before_all_that_was_on_its_way_has_come() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    tool.deregister(1).unwrap();
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    // One message, and it is no end.
    answer_the_barrier(&engine);
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    assert_eq!(engine.hear(), FromTool::Deregister { request: 3, handler: 1 });
}

#[test]
fn the_confirmation_of_a_deregistration_is_awaited_without_blocking() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, &[]);
    tool.deregister(1).unwrap();
    answer_the_barrier(&engine);
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    assert_eq!(engine.hear(), FromTool::Deregister { request: 3, handler: 1 });
    assert!(!tool.is_done());
    // Another one's.
    engine.send(&[ToTool::Deregistered { request: 77, result: Ok(()) }, job_ended()]);
    assert!(tool.next(Some(Duration::ZERO)).unwrap().is_none());
    let confirm = thread::spawn(move || {
        engine.send(&[ToTool::Deregistered { request: 3, result: Ok(()) }]);
        engine
    });
    let delivery = tool.next(None).unwrap();
    assert!(matches!(delivery, Some(Delivery::Deregistered { handler: 1 })), "{delivery:?}");
    confirm.join().unwrap();
}

#[test]
fn an_engine_that_speaks_nonsense_is_an_error_once_and_gone_from_then_on() {
    for nonsense in ["a second welcome", "a ring without its descriptor", "no message"] {
        let (engine, mut tool) = connect();
        pull(&engine, &mut tool, &[]);
        if nonsense == "a second welcome" {
            engine.send(&[ToTool::Refused { status: Status::ERR_BAD_PARAM, reason: "no".into() }]);
        } else {
            let bytes: &[u8] = if nonsense == "no message" { &[0xff; 64] } else { &ring() };
            socket::send(&engine.socket, bytes, &[]).unwrap();
        }
        let lost = tool.next(None).unwrap_err();
        assert!(!matches!(lost, LostError::Closed), "{lost}");
        assert!(tool.next(None).unwrap().is_none() && tool.is_done());
        let refused = tool.query(&["key"]).unwrap_err();
        assert!(matches!(refused, RequestError::Lost(LostError::Closed)), "{refused}");
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
fn an_engine_that_ends_in_the_middle_of_a_request_is_said_so_and_callbacks_are_dropped_with_the_tool() {
    let (engine, mut tool) = connect();
    drop(engine);
    let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
    let lost = tool.pull_with(&Pull::new(vec![all], Channels::STDOUT), |_| {}).unwrap_err();
    assert!(matches!(lost, RequestError::Lost(LostError::Closed)), "{lost}");
    assert_eq!(lost.to_string(), "the engine has ended or closed the connection");
    assert!(!tool.dispatch(None).unwrap());
    let _ = tool.as_fd();
}

#[test]
fn a_tool_that_only_pushes_does_not_sleep_over_what_came_together_with_an_answer() {
    let (engine, mut tool) = connect();
    let inlet = Inlet::create(4096, "stdin").unwrap();
    let granted = PushGranted { push: 1, skipped: Vec::new(), ignored: Vec::new() };
    let begun = encode(&ToTool::PushBegun { request: 1, result: Ok(granted) }).unwrap();
    socket::send(&engine.socket, &begun, &[inlet.as_fd()]).unwrap();
    let target = Proc { nspace: nspace(), rank: Rank(0) };
    assert_eq!(tool.begin_push(&Push::new(vec![target]), None).unwrap().push, 1);
    assert!(matches!(engine.hear(), FromTool::Push { request: 1, .. }));
    assert!(!tool.dispatch(Some(Duration::ZERO)).unwrap());
    assert_eq!(tool.timeout(), None);
    let lagging = ToTool::SlowTargets { request: 2, slow: SlowTargets::default() };
    let report = PushReport { bytes: 7, complete: 1, partial: Vec::new() };
    engine.send(&[lagging, ToTool::Pushed { push: 1, report: report.clone() }]);
    tool.lagging(1, None).unwrap();
    assert_eq!(tool.timeout(), Some(Duration::ZERO));
    assert!(!tool.dispatch(Some(Duration::ZERO)).unwrap());
    assert_eq!(tool.take_report(1).unwrap(), Some(report));
    assert_eq!(tool.timeout(), None);
}

#[test]
fn room_where_nothing_was_filled_is_nonsense_and_of_unknown_pushes_no_news() {
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
    tool.begin_push(&Push::new(vec![Proc { nspace: nspace(), rank: Rank(0) }]), None).unwrap();
    tool.fill(1, 10, false).unwrap();
    engine.send(&[ToTool::Room { push: 1, position: 11 }]);
    let nonsense = tool.dispatch(Some(Duration::ZERO));
    assert!(matches!(nonsense, Err(LostError::Unexpected { .. })), "{nonsense:?}");
    assert!(matches!(tool.take_report(1), Err(LostError::Closed)));
}

/// Gathers until nothing more comes.
fn gather_all(tool: &mut Tool) {
    let mut streams = Vec::new();
    while tool.poll_ready(None, &mut streams).unwrap() != PollReady::Done {}
}

#[test]
fn an_engine_that_goes_before_it_has_announced_all_streams_leaves_some_missing() {
    for (with, misses) in [(Vec::new(), true), (vec![ToTool::Announced { handler: 1 }], false)] {
        let (engine, mut tool) = connect();
        pull(&engine, &mut tool, &with);
        drop(engine);
        gather_all(&mut tool);
        assert_eq!(tool.misses_streams(), misses, "{with:?}");
    }
}
