//! Tests of the frames, with regular and with hostile peers.
#![allow(clippy::unwrap_used, reason = "a test, helpers included, fails by panicking")]

use std::time::{Duration, SystemTime};

use iof_proto::limits::{
    MAX_ANSWER, MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_FIELDS, MAX_LOG_TEXT, MAX_MESSAGE,
    MAX_PROCS_PER_PULL, MAX_QUERY_KEYS, MAX_SLOTS_PER_MESSAGE, MAX_TEXT,
};
use iof_proto::log::key as log;
use iof_proto::{
    Answer, App, Attributes, Channel, Channels, DecodeError, Decoder, EffectiveOptions, EncodeError, Failure,
    Found, FromTool, Granted, Info, JobInfo, JobSpec, Log, LogEntry, LogOutcome, LogReport, LogValue,
    Message, Missed, Nspace, PartialCause, PartialDelivery, Position, Proc, ProcInfo, ProcState, PushGranted,
    PushReport, Query, Rank, ReaderStats, Skipped, SlowTarget, SlowTargets, Spawn, Status, StdinUnavailable,
    StreamStats, ToTool, UsedResources, Value, encode,
};
use proptest::prelude::*;

fn source(rank: Rank) -> Proc {
    Proc::new(Nspace::new("job").unwrap(), rank)
}

fn from_tool() -> Vec<FromTool> {
    vec![
        FromTool::Hello { version: 1, pid: 42, name: "tail".into() },
        FromTool::Pull {
            request: 1,
            procs: vec![source(Rank::WILDCARD)],
            channels: Channels::ALL,
            from: Position::Lines(7),
            persistent: true,
            reports_ranks: true,
            directives: vec![Info::required("pmix.iof.csize", 4096u32), Info::new("x", true)],
        },
        FromTool::Follow { slot: 3 },
        FromTool::Drained { slots: vec![0, 16_383] },
        FromTool::Deregister { request: 2, handler: 1 },
        FromTool::Barrier { request: 2 },
        FromTool::Query {
            request: 3,
            queries: vec![Query {
                qualifiers: vec![Info::new("pmix.nspace", "job")],
                ..Query::new(["pmix.qry.ns"])
            }],
        },
        FromTool::Push {
            request: 4,
            targets: vec![source(Rank(0)), source(Rank::WILDCARD)],
            size: Some(1 << 40),
            directives: vec![Info::required("pmix.iof.cmp", true)],
        },
        FromTool::Push { request: 5, targets: vec![], size: None, directives: vec![] },
        FromTool::Fill { push: 1, bytes: u64::MAX, last: true },
        FromTool::SlowTargets { request: 6, push: 1, cut_off: Some(7) },
        FromTool::SlowTargets { request: 7, push: 1, cut_off: None },
        FromTool::Log {
            request: 4,
            log: Log { directives: vec![Info::new("x", true)], ..Log::to(["pmix.log.email", "y"], "text") },
        },
        FromTool::Log { request: 5, log: Log { data: varied_entries(), directives: vec![] } },
        FromTool::Signal { request: 8, procs: vec![source(Rank(3))], signal: 15 },
        FromTool::Spawn { request: 9, spawn: Box::new(spawn()) },
    ]
}

fn spawn() -> Spawn {
    let mut spawn = Spawn::new(JobSpec::new(source(Rank(0)).nspace, vec![App::new("true", ["x"]).ranks(4)]));
    (spawn.rename, spawn.detached, spawn.is_bound) = (true, true, true);
    spawn.spec.parent = Some(source(Rank(1)));
    spawn
}

/// Returns entries with shared and with distinct messages, and emails with no message, with several
/// messages, and with a message between other fields.
fn varied_entries() -> Vec<LogEntry> {
    let message = |text: &str| Info::new(log::PMIX_LOG_EMAIL_MSG, text);
    let field = || Info::required("pmix.log.emsub", "a");
    let required = Info { required: true, ..message("b") };
    let emails = [
        vec![],
        vec![field()],
        vec![message("a")],
        vec![field(), required, field()],
        vec![message("a"), message("b"), Info::new(log::PMIX_LOG_EMAIL_MSG, true)],
        vec![Info::new(log::PMIX_LOG_EMAIL_MSG, true), message("c")],
    ];
    let email = |fields| LogEntry { channel: "e".into(), value: LogValue::Email(fields), required: true };
    let texts = ["a", "b", "a", ""].map(|text| LogEntry::new("t", text));
    emails.map(email).into_iter().chain(texts).collect()
}

fn to_tool() -> Vec<ToTool> {
    let failure = Failure::new(Status::ERR_BAD_PARAM, "no");
    let proc = ProcInfo {
        proc: source(Rank(0)),
        pid: 9,
        host: "node".into(),
        executable: "/bin/a".into(),
        state: ProcState::Killed,
        exit_code: Some(137),
        began: Some(SystemTime::UNIX_EPOCH),
        used: Some(UsedResources { ended: SystemTime::now(), cpu: Duration::MAX, peak_memory: u64::MAX }),
    };
    let stream = StreamStats {
        source: source(Rank(0)),
        channel: Channel::Stderr,
        logged: false,
        produced: u64::MAX,
        cached: 1,
        dropped: 2,
        generation: 3,
        complete: false,
        missing: Some(5),
        readers: vec![ReaderStats { tool: "tail".into(), pid: 42, handler: 1, lag: 7 }],
    };
    let job = JobInfo {
        nspace: source(Rank(0)).nspace,
        procs: 1,
        status: Status::EVENT_JOB_START,
        exit_code: None,
        command: "a : b".into(),
        run: u128::MAX,
    };
    let found = [
        Value::Text("job".into()),
        Value::Procs(vec![proc.clone()]),
        Value::Streams(vec![stream]),
        Value::Status(Status::EVENT_JOB_END),
        Value::Jobs(vec![job]),
        Value::Attributes(vec![Attributes { function: "f".into(), keys: vec!["k".into()] }]),
        Value::Infos(vec![Info::new("k", true)]),
    ]
    .map(|value| Found { query: 1, key: "k".into(), value });
    vec![
        ToTool::Welcome { version: 1, engine_pid: 5, may_block: true },
        ToTool::Refused { status: Status(-9999), reason: "busy".into() },
        ToTool::Pulled { request: 1, result: Ok(Granted { handler: 1, ignored: vec!["x".into()] }) },
        ToTool::Ranks { handler: 1, run: 7, ranks: vec![proc] },
        ToTool::JobEnded {
            handler: 1,
            nspace: Nspace::new("job").unwrap(),
            run: 7,
            exit_code: Some(3),
            skipped: 2,
        },
        ToTool::Missed {
            handler: 1,
            missed: Missed {
                ended: vec![(Rank(7), 300)],
                offset: None,
                nspace: Nspace::new("job").unwrap(),
                rank: Rank::WILDCARD,
                channel: Channel::Stderr,
                streams: 3,
                bytes: 1 << 40,
            },
        },
        ToTool::Pulled { request: 1, result: Err(failure.clone()) },
        ToTool::Ring {
            handler: 1,
            source: source(Rank(7)),
            channel: Channel::Stdout,
            logged: true,
            run: 7,
            slot: 2,
            follows: Some(1),
            start: 1 << 40,
            dropped: 1 << 41,
            non_gating: true,
            options: EffectiveOptions { buffering_size: 80, buffering_time: Some(1) },
        },
        ToTool::Cached { handler: 1 },
        ToTool::Announced { handler: 1 },
        ToTool::Deregistered { request: 2, result: Ok(()) },
        ToTool::Logged {
            request: 4,
            result: Ok(LogReport {
                status: Status::ERR_PARTIAL_COMPLETION,
                outcomes: vec![LogOutcome { channel: "k".into(), result: Err(failure.clone()) }],
                ignored: vec!["x".into()],
            }),
        },
        ToTool::Logged { request: 4, result: Err(failure.clone()) },
        ToTool::Signalled { request: 8, result: Ok(4) },
        ToTool::Signalled { request: 9, result: Err(failure.clone()) },
        ToTool::Spawned { request: 9, result: Ok(Nspace::new("job-2").unwrap()) },
        ToTool::Spawned { request: 9, result: Err(failure.clone()) },
        ToTool::Answer {
            request: 3,
            result: Ok(Answer { status: Status::ERR_PARTIAL_SUCCESS, found: found.into() }),
        },
        ToTool::PushBegun {
            request: 4,
            result: Ok(PushGranted {
                push: 1,
                skipped: [
                    StdinUnavailable::NotOpen,
                    StdinUnavailable::Inherited,
                    StdinUnavailable::Closed,
                    StdinUnavailable::Elsewhere,
                ]
                .map(|reason| Skipped { target: source(Rank(3)), reason })
                .into(),
                ignored: vec!["x".into()],
            }),
        },
        ToTool::PushBegun { request: 5, result: Err(failure) },
        ToTool::Room { push: 1, position: 1 << 40 },
        ToTool::SlowTargets {
            request: 6,
            slow: SlowTargets {
                position: 9,
                targets: vec![SlowTarget { target: source(Rank(0)), stalled: true }],
            },
        },
        ToTool::Pushed {
            push: 1,
            report: PushReport {
                bytes: 10,
                complete: 1,
                partial: [
                    PartialCause::Closed,
                    PartialCause::CutOff,
                    PartialCause::Stopped,
                    PartialCause::Failed("no".into()),
                ]
                .map(|cause| PartialDelivery { target: source(Rank(2)), delivered: 3, cause })
                .into(),
            },
        },
    ]
}

fn decode_all<M: Message>(mut bytes: &[u8]) -> Result<Vec<M>, DecodeError> {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    while let Some(message) = decoder.decode(&mut bytes)? {
        messages.push(message);
    }
    Ok(messages)
}

/// Returns a frame with any header and body, as a hostile peer can send it.
fn frame(length: u32, fds: u8, body: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes(), &[fds][..], body].concat()
}

fn assert_survives_any_cut<M: Message + PartialEq + std::fmt::Debug>(messages: &[M]) {
    let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
    assert_eq!(decode_all::<M>(&bytes).unwrap(), messages);
    for cut in 0..=bytes.len() {
        let mut decoder = Decoder::<M>::new();
        let mut decoded = Vec::new();
        let (first, second) = bytes.split_at(cut);
        for mut part in [first, second] {
            while let Some(message) = decoder.decode(&mut part).unwrap() {
                decoded.push(message);
            }
            assert!(part.is_empty());
        }
        assert_eq!(decoded, messages, "cut at {cut}");
    }
}

#[test]
fn every_message_survives_a_cut_at_every_byte() {
    assert_survives_any_cut(&from_tool());
    assert_survives_any_cut(&to_tool());
}

#[test]
fn the_encoding_of_hello_welcome_and_refused_never_changes() {
    let hello = encode(&FromTool::Hello { version: 1, pid: 2, name: "t".into() }).unwrap();
    assert_eq!(hello, [5, 0, 0, 0, 0, 0, 1, 2, 1, b't']);
    let welcome = encode(&ToTool::Welcome { version: 1, engine_pid: 2, may_block: false }).unwrap();
    assert_eq!(welcome, [4, 0, 0, 0, 2, 0, 1, 2, 0]);
    let refused = encode(&ToTool::Refused { status: Status(-1), reason: "n".into() }).unwrap();
    assert_eq!(refused, [4, 0, 0, 0, 0, 1, 1, 1, b'n']);
}

#[test]
fn an_oversize_length_is_refused_before_the_body_arrives() {
    let too_long = u32::try_from(MAX_MESSAGE + 1).unwrap();
    let error = decode_all::<FromTool>(&frame(too_long, 0, &[])).unwrap_err();
    assert!(
        matches!(error, DecodeError::TooLong { length, cap } if length == MAX_MESSAGE + 1 && cap == MAX_MESSAGE)
    );
    assert!(matches!(decode_all::<ToTool>(&frame(u32::MAX, 0, &[])), Err(DecodeError::TooLong { .. })));
    assert!(decode_all::<ToTool>(&frame(u32::try_from(MAX_ANSWER).unwrap(), 0, &[])).unwrap().is_empty());
}

#[test]
fn a_decoder_refuses_everything_after_an_oversize_length() {
    let mut decoder = Decoder::<FromTool>::new();
    let bytes = [frame(u32::MAX, 0, &[]), encode(&FromTool::Follow { slot: 1 }).unwrap()].concat();
    let mut rest = &bytes[..];
    for _ in 0..3 {
        assert!(matches!(decoder.decode(&mut rest), Err(DecodeError::TooLong { .. })));
    }
}

#[test]
fn a_truncated_body_and_trailing_bytes_are_refused() {
    for message in from_tool() {
        let whole = encode(&message).unwrap();
        let body = &whole[5..];
        let short = frame(u32::try_from(body.len() - 1).unwrap(), 0, &body[..body.len() - 1]);
        assert!(matches!(decode_all::<FromTool>(&short), Err(DecodeError::Body { .. })), "{message:?}");
        let long = frame(u32::try_from(body.len() + 2).unwrap(), 0, &[body, &[0, 0]].concat());
        assert!(matches!(decode_all::<FromTool>(&long), Err(DecodeError::Trailing { left: 2, .. })));
    }
    assert!(matches!(decode_all::<FromTool>(&frame(0, 0, &[])), Err(DecodeError::Body { length: 0, .. })));
}

#[test]
fn a_wrong_descriptor_count_is_refused() {
    let mut bytes = encode(&FromTool::Follow { slot: 1 }).unwrap();
    bytes[4] = 1;
    assert!(matches!(decode_all::<FromTool>(&bytes), Err(DecodeError::WrongFds { announced: 1, due: 0 })));
    bytes[4] = 4;
    assert!(matches!(decode_all::<FromTool>(&bytes), Err(DecodeError::TooManyFds { announced: 4 })));
}

#[test]
fn only_a_granted_push_comes_with_a_descriptor() {
    let granted = PushGranted { push: 1, skipped: Vec::new(), ignored: Vec::new() };
    assert_eq!(ToTool::PushBegun { request: 1, result: Ok(granted) }.fds(), 1);
    let failure = Failure::new(Status::ERR_BAD_PARAM, String::new());
    assert_eq!(ToTool::PushBegun { request: 1, result: Err(failure) }.fds(), 0);
    assert_eq!(ToTool::Room { push: 1, position: 0 }.fds(), 0);
}

#[test]
fn sender_and_receiver_enforce_the_limits() {
    let pull = |procs| FromTool::Pull {
        request: 1,
        procs: vec![source(Rank(0)); procs],
        channels: Channels::STDOUT,
        from: Position::Newest,
        persistent: false,
        reports_ranks: false,
        directives: Vec::new(),
    };
    let push = |targets, directives: usize| FromTool::Push {
        request: 1,
        targets: vec![source(Rank(0)); targets],
        size: None,
        directives: vec![Info::new("k", true); directives],
    };
    let too_large = [
        pull(MAX_PROCS_PER_PULL + 1),
        push(MAX_PROCS_PER_PULL + 1, 0),
        push(1, MAX_DIRECTIVES + 1),
        FromTool::Query { request: 1, queries: vec![Query::new(vec![""; MAX_QUERY_KEYS + 1])] },
        FromTool::Query { request: 1, queries: vec![Query::new(["k"]); MAX_QUERY_KEYS + 1] },
        FromTool::Query { request: 1, queries: vec![Query::new(["k".repeat(MAX_TEXT + 1)])] },
        FromTool::Log { request: 1, log: Log::new("x".repeat(MAX_LOG_TEXT + 1)) },
        FromTool::Log { request: 1, log: Log::to([log::PMIX_LOG_EMAIL], &"x".repeat(MAX_LOG_TEXT + 1)) },
        FromTool::Log { request: 1, log: Log { directives: large_directives(17), ..Log::new("text") } },
        FromTool::Hello { version: 1, pid: 1, name: "n".repeat(MAX_TEXT + 1) },
        FromTool::Drained { slots: vec![0; MAX_SLOTS_PER_MESSAGE + 1] },
    ];
    encode(&FromTool::Drained { slots: vec![u32::MAX; MAX_SLOTS_PER_MESSAGE] }).unwrap();
    encode(&pull(MAX_PROCS_PER_PULL)).unwrap();
    encode(&push(MAX_PROCS_PER_PULL, MAX_DIRECTIVES)).unwrap();
    for message in too_large {
        assert!(matches!(encode(&message), Err(EncodeError::Limit(_))));
        let body = postcard::to_stdvec(&message).unwrap();
        let bytes = frame(u32::try_from(body.len()).unwrap(), 0, &body);
        assert!(matches!(decode_all::<FromTool>(&bytes), Err(DecodeError::Limit(_))));
    }
    let mut long_name = source(Rank(0));
    long_name.nspace = Nspace::new("x".repeat(255)).unwrap();
    let too_long = FromTool::Pull {
        request: 1,
        procs: vec![long_name; 1000],
        channels: Channels::STDOUT,
        from: Position::Newest,
        persistent: false,
        reports_ranks: false,
        directives: Vec::new(),
    };
    assert!(matches!(encode(&too_long), Err(EncodeError::TooLong { cap: MAX_MESSAGE, .. })));
}

/// Returns `count` directives with 1 KiB of text each.
fn large_directives(count: usize) -> Vec<Info> {
    vec![Info::new("k", "x".repeat(1024).as_str()); count]
}

#[test]
fn the_longest_text_can_be_logged_to_all_channels_in_one_request() {
    let channels = [log::PMIX_LOG_EMAIL].into_iter().chain(vec!["x"; MAX_LOG_ENTRIES - 1]);
    let text = "x".repeat(MAX_LOG_TEXT);
    let message = FromTool::Log {
        request: 1,
        log: Log { directives: large_directives(15), ..Log::to(channels, &text) },
    };
    let bytes = encode(&message).unwrap();
    assert_eq!(decode_all::<FromTool>(&bytes).unwrap(), [message]);
    assert!(bytes.len() < MAX_LOG_TEXT + MAX_LOG_FIELDS + 1024, "{} bytes", bytes.len());
}

#[test]
fn a_small_request_does_not_become_large_when_decoded() {
    let log = |channels: usize| FromTool::Log { request: 1, log: Log::to(vec!["x"; channels], "text") };
    let limit = encode(&log(MAX_LOG_ENTRIES + 1)).unwrap_err();
    assert!(matches!(limit, EncodeError::Limit(_)), "{limit}");
    let body = postcard::to_stdvec(&log(10_000)).unwrap();
    let bytes = frame(u32::try_from(body.len()).unwrap(), 0, &body);
    let refused = decode_all::<FromTool>(&bytes).unwrap_err();
    assert!(matches!(refused, DecodeError::Body { .. }), "{refused}");
    // An entry that refers to a missing message.
    let mut body = postcard::to_stdvec(&log(1)).unwrap();
    let index = body.windows(3).position(|bytes| bytes == [b'x', 0, 0]).unwrap() + 2;
    body[index] = 1;
    let bytes = frame(u32::try_from(body.len()).unwrap(), 0, &body);
    assert!(matches!(decode_all::<FromTool>(&bytes), Err(DecodeError::Body { .. })));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(parts: Vec<Vec<u8>>) {
        let mut from_tool = Decoder::<FromTool>::new();
        let mut to_tool = Decoder::<ToTool>::new();
        for part in parts {
            let mut rest = &part[..];
            while let Ok(Some(_)) = from_tool.decode(&mut rest) {}
            let mut rest = &part[..];
            while let Ok(Some(_)) = to_tool.decode(&mut rest) {}
        }
    }

    #[test]
    fn random_bodies_never_panic(variant in 0_u8..14, fds in 0_u8..3, rest: Vec<u8>) {
        let body = [&[variant], &rest[..]].concat();
        let bytes = frame(u32::try_from(body.len()).unwrap(), fds, &body);
        let _ = decode_all::<FromTool>(&bytes);
        let _ = decode_all::<ToTool>(&bytes);
    }
}
