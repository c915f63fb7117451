//! Log requests that other servers process: a gateway, the syslog daemon and mail servers. What
//! happens when one of them stalls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::net::UnixListener;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{Config, Grant, LogConfig, Standalone, Syslog, ViaGateway};
use iof_proto::limits::MAX_LOG_TEXT;
use iof_proto::log::key;
use iof_proto::query::key as query;
use iof_proto::{Channels, Failure, FromTool, Info, InfoValue, Log, LogReport, Proc, Rank, Status, Value};
use iof_testing::TIMEOUT;
use iof_testing::engine::logging::{
    Scripted, WaitingJob, config, email, email_by, fixture, flag, mail_to, source, tried, with,
};
use iof_testing::engine::nspace;
use iof_testing::engine::raw::RawTool;
use iof_testing::servers::{SyslogSocket, mail_server, stalling_server, unused_address};
use iof_tool::Pull;

const FAILED: Status = Status::ERR_OPERATION_FAILED;

#[test]
fn the_longest_message_fits_all_channels_of_one_request() {
    let syslog = SyslogSocket::bind();
    let (server, inbox) = mail_server();
    let log =
        LogConfig { syslog: Syslog::at(syslog.path()), mail: Some(mail_to(server, TIMEOUT)), ..config() };
    let fixture = fixture(log, Standalone);
    let job = WaitingJob::start(&fixture);
    let channels = [
        key::PMIX_LOG_STDOUT,
        key::PMIX_LOG_STDERR,
        key::PMIX_LOG_LOCAL_SYSLOG,
        key::PMIX_LOG_EMAIL,
        key::PMIX_LOG_JOB_RECORD,
    ];
    let text = "x".repeat(MAX_LOG_TEXT);
    let report = fixture.log(&Log { directives: email("").directives, ..Log::to(channels, &text) });
    assert_eq!(tried(&report), channels.map(|channel| (channel, true)), "{report:?}");
    assert!(syslog.next().ends_with(&text) && fixture.record()[0].contains(&text));
    assert!(inbox.recv_timeout(TIMEOUT).unwrap().text.len() > MAX_LOG_TEXT);
    job.end();
}

#[test]
fn a_gateway_serves_channels_that_other_engines_lack() {
    let syslog = SyslogSocket::bind();
    let (server, inbox) = mail_server();
    let gateway = LogConfig {
        syslog: Syslog::at(syslog.path()),
        mail: Some(mail_to(server, TIMEOUT)),
        gateway: true,
        ..config()
    };
    let gateway = fixture(gateway, Standalone);
    let socket = gateway.engine.socket().unwrap().to_owned();
    let backend = fixture(config(), ViaGateway { socket: socket.clone() });
    let job = WaitingJob::start(&backend);
    let priority = Info::required(key::PMIX_LOG_SYSLOG_PRI, 2u32);
    let log = with(vec![source(Rank(0)), priority.clone()], Log::to([key::PMIX_LOG_GLOBAL_SYSLOG], "far"));
    assert_eq!(backend.log(&log).status, Status::SUCCESS);
    let message = syslog.next();
    assert!(
        message.starts_with("<10>")
            && message.ends_with(&format!(
                ":CRITICAL PROC job.0 by test (pid {0}) through iof gateway (pid {0}) REPORTS: far",
                std::process::id()
            )),
        "{message}"
    );
    // `PMIX_LOG_SYSLOG` selects the global syslog if there is one.
    let report = backend.log(&Log::to([key::PMIX_LOG_SYSLOG], "either"));
    assert_eq!(tried(&report), [(key::PMIX_LOG_GLOBAL_SYSLOG, true)]);
    assert!(syslog.next().ends_with("REPORTS: either"));
    assert_eq!(backend.log(&email("by mail")).status, Status::SUCCESS);
    assert!(inbox.recv_timeout(TIMEOUT).unwrap().body().starts_with("by mail"));
    let found = backend.tool().query(&[query::PMIX_QUERY_LOG_CHANNELS]).unwrap();
    let Value::Text(channels) = &found[0].value else { panic!("{found:?}") };
    assert!(channels.contains(key::PMIX_LOG_GLOBAL_SYSLOG), "{channels}");
    // The gateway's own syslog is the global one.
    assert_eq!(gateway.log(&Log::to([key::PMIX_LOG_GLOBAL_SYSLOG], "near")).status, Status::SUCCESS);
    assert!(syslog.next().ends_with("REPORTS: near"));
    drop(gateway);
    let report = backend.log(&log);
    assert_eq!(report.status, FAILED);
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.starts_with(&format!("the gateway at {}: ", socket.display())), "{failure}");
    job.end();
}

#[test]
fn a_gateway_offers_its_hosts_channels_and_takes_the_longest_message() {
    let syslog = SyslogSocket::bind();
    let (sender, requests) = channel();
    let log = LogConfig { gateway: true, syslog: Syslog::at(syslog.path()), ..config() };
    let gateway = fixture(log, Scripted { requests: Mutex::new(sender) });
    let backend = fixture(config(), ViaGateway { socket: gateway.engine.socket().unwrap().to_owned() });
    let job = WaitingJob::start(&backend);
    let text = "x".repeat(MAX_LOG_TEXT);
    let long = "y".repeat(1000);
    let mut directives = vec![source(Rank(0)), flag("site.unknown-here"), flag(key::PMIX_LOG_TAG_OUTPUT)];
    directives[1].required = false;
    directives.extend((0..14).map(|_| Info::new("site.filler", long.as_str())));
    let log = with(directives, Log::to(["site.pager", key::PMIX_LOG_JOB_RECORD, "site.unknown"], &text));
    let mut tool = backend.tool();
    let asking = thread::spawn(move || tool.log(&log).unwrap());
    for grants in [true, false] {
        let (log, reply) = requests.recv_timeout(TIMEOUT).unwrap();
        assert_eq!((log.data.len(), log.data[0].text()), (1, Some(text.as_str())));
        let value = |key: &str| log.directives.iter().find(|info| info.key == key).map(|info| &info.value);
        assert_eq!(value(key::PMIX_LOG_TAG_OUTPUT), Some(&InfoValue::Bool(true)));
        assert_eq!(value("site.unknown-here"), Some(&InfoValue::Bool(true)));
        let InfoValue::Text(requester) = value(key::IOF_LOG_RELAYED).unwrap() else { panic!("{log:?}") };
        assert_eq!(*requester, format!("test (pid {})", std::process::id()));
        if grants { reply.grant() } else { reply.deny(Status::ERR_NOT_SUPPORTED, "no such channel") }
    }
    let report = asking.join().unwrap();
    let names = ["site.pager", key::PMIX_LOG_JOB_RECORD, "site.unknown"];
    assert_eq!(tried(&report), [(names[0], true), (names[1], false), (names[2], false)], "{report:?}");
    let failure = report.outcomes[2].result.as_ref().unwrap_err();
    assert!(failure.reason.ends_with("no such channel"), "{failure}");
    job.end();
}

#[test]
fn a_silent_gateway_is_given_up_and_then_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("gateway");
    let silent = UnixListener::bind(&socket).unwrap();
    let backend = fixture(config(), ViaGateway { socket });
    let log = Log::to([key::PMIX_LOG_GLOBAL_SYSLOG], "x");
    let reason = || backend.log(&log).outcomes[0].result.clone().unwrap_err().reason;
    let first = reason();
    assert!(first.contains("has not answered for 5 s"), "{first}");
    let second = reason();
    assert!(second.contains("stalled and is skipped for 60 s"), "{second}");
    silent.set_nonblocking(true).unwrap();
    assert_eq!(silent.incoming().map_while(Result::ok).count(), 1, "expected one connection");
}

#[test]
fn a_relayed_message_is_not_relayed_again() {
    let syslog = SyslogSocket::bind();
    let end = fixture(LogConfig { gateway: true, syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let middle = fixture(config(), ViaGateway { socket: end.engine.socket().unwrap().to_owned() });
    let first = fixture(config(), ViaGateway { socket: middle.engine.socket().unwrap().to_owned() });
    // Also with a source that only the first engine knows.
    let job = WaitingJob::start(&first);
    let channels = [key::PMIX_LOG_GLOBAL_SYSLOG, key::PMIX_LOG_EMAIL, "site.pager"];
    for directives in [email("").directives, [email("").directives, vec![source(Rank(0))]].concat()] {
        let report = first.log(&with(directives, Log::to(channels, "x")));
        for outcome in &report.outcomes {
            let failure = outcome.result.as_ref().unwrap_err();
            assert!(failure.reason.contains("this engine is not a gateway"), "{failure}");
        }
        assert_eq!(tried(&report), channels.map(|channel| (channel, false)));
    }
    assert!(syslog.is_empty());
    job.end();
}

#[test]
fn the_gateway_role_is_a_directive_of_the_engines_start() {
    let mut config = Config::default();
    let gateway = "pmix.srv.gway";
    assert!(!config.log.gateway);
    assert_eq!(config.apply_directives(&[Info::required(gateway, true)]).unwrap(), [""; 0]);
    assert!(config.log.gateway);
    assert!(config.apply_directives(&[Info::required(gateway, 1u32)]).is_err());
}

#[test]
fn a_mail_server_that_is_down_or_stalls_is_reported() {
    let down = fixture(LogConfig { mail: Some(mail_to(unused_address(), TIMEOUT)), ..config() }, Standalone);
    let report = down.log(&email("x"));
    assert_eq!((report.status, tried(&report)), (FAILED, vec![(key::PMIX_LOG_EMAIL, false)]));
    let (address, _listener) = stalling_server();
    let server = mail_to(address, Duration::from_millis(50));
    let stalls = fixture(LogConfig { mail: Some(server), ..config() }, Standalone);
    let report = stalls.log(&email("x"));
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.contains("did not accept the mail within 0.05 s"), "{failure}");
}

#[test]
fn a_stalled_mail_server_delays_no_other_channel_and_its_queue_is_bounded() {
    let (address, listener) = stalling_server();
    let fixture = fixture(LogConfig { mail: Some(mail_to(address, TIMEOUT)), ..config() }, Standalone);
    let (sender, reports) = channel();
    let send = || {
        let sender = sender.clone();
        fixture.engine.log(&email("x"), move |report| drop(sender.send(report))).unwrap();
    };
    // One message is being sent, 64 wait, and some are too many.
    send();
    let first = listener.accept().unwrap();
    (0..69).for_each(|_| send());
    let next = || {
        let report: LogReport = reports.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(report.status, FAILED);
        report.outcomes[0].result.clone().unwrap_err()
    };
    let refused: Vec<Failure> = (0..5).map(|_| next()).collect();
    assert!(refused.iter().all(|failure| failure.status == Status::ERR_RESOURCE_BUSY), "{refused:?}");
    assert_eq!(fixture.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
    let job = WaitingJob::start(&fixture);
    assert_eq!(fixture.log(&Log::to([key::PMIX_LOG_STDOUT], "m")).status, Status::SUCCESS);
    job.end();
    assert!(reports.try_recv().is_err(), "the server has not answered yet");
    // When it closes its connections, each remaining message fails.
    drop((first, listener));
    (0..65).for_each(|_| assert_eq!(next().status, Status::ERR_NOT_AVAILABLE));
}

#[test]
fn mail_queued_for_a_stalled_server_fails_soon_and_other_servers_get_theirs() {
    let (address, _listener) = stalling_server();
    let server = mail_to(address, Duration::from_secs(3));
    let fixture = fixture(LogConfig { mail: Some(server), ..config() }, Standalone);
    let (sender, reports) = channel();
    for _ in 0..64 {
        let sender = sender.clone();
        fixture.engine.log(&email("x"), move |report| drop(sender.send(report))).unwrap();
    }
    let (other, inbox) = mail_server();
    let log = email_by(other, "to another");
    // Repeats until the queue has room.
    let deadline = Instant::now() + TIMEOUT;
    while fixture.log(&log).status != Status::SUCCESS {
        assert!(Instant::now() < deadline, "the queue stays full");
    }
    assert!(inbox.recv_timeout(TIMEOUT).unwrap().body().starts_with("to another"));
    let reasons: Vec<String> = (0..64)
        .map(|_| reports.recv_timeout(TIMEOUT).unwrap().outcomes[0].result.clone().unwrap_err().reason)
        .collect();
    let count = |words: &str| reasons.iter().filter(|reason| reason.contains(words)).count();
    assert_eq!((count("did not accept the mail within"), count("stalled")), (1, 63), "{reasons:#?}");
}

#[test]
fn a_stalled_syslog_delays_no_other_channel_and_later_messages_fail_soon() {
    let syslog = SyslogSocket::bind();
    syslog.fill();
    let fixture = fixture(LogConfig { syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let (sender, reports) = channel();
    for _ in 0..100 {
        let sender = sender.clone();
        let log = Log::to([key::PMIX_LOG_LOCAL_SYSLOG], "x");
        fixture.engine.log(&log, move |report| drop(sender.send(report))).unwrap();
    }
    assert_eq!(fixture.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
    let reasons: Vec<String> = (0..100)
        .map(|_| {
            let report: LogReport = reports.recv_timeout(TIMEOUT).unwrap();
            report.outcomes[0].result.clone().unwrap_err().reason
        })
        .collect();
    let count = |words: &str| reasons.iter().filter(|reason| reason.contains(words)).count();
    assert_eq!(count("has not read for 2 s"), 1, "{reasons:#?}");
    assert_eq!(count("stalled") + count("64 messages are already queued for logging"), 99, "{reasons:#?}");
}

#[test]
fn mail_of_a_disconnected_tool_is_not_begun() {
    let (address, listener) = stalling_server();
    let fixture = fixture(LogConfig { mail: Some(mail_to(address, TIMEOUT)), ..config() }, Standalone);
    let (sender, reports) = channel();
    fixture.engine.log(&email("first"), move |report| drop(sender.send(report))).unwrap();
    let (first, _) = listener.accept().unwrap();
    let (other, inbox) = mail_server();
    let mut raw = RawTool::connect(&fixture.engine);
    raw.sync();
    raw.send(&FromTool::Log { request: 1, log: email_by(other, "of a tool that disconnects") });
    raw.sync();
    drop(raw);
    let mut connected = RawTool::connect(&fixture.engine);
    connected.sync();
    connected.send(&FromTool::Log { request: 1, log: email_by(other, "of a tool that stays") });
    connected.sync();
    // Tools are served in order, so the engine has noticed the first tool's disconnection.
    drop(first);
    assert_eq!(reports.recv_timeout(TIMEOUT).unwrap().status, FAILED);
    assert!(inbox.recv_timeout(TIMEOUT).unwrap().body().starts_with("of a tool that stays"));
}

#[test]
fn logged_output_that_a_stalled_reader_holds_back_is_limited() {
    let fixture = fixture(config(), Standalone);
    let job = WaitingJob::start(&fixture);
    let mut stalled = fixture.engine.attach("stalled", Grant::Block).unwrap();
    let all = Proc::all(nspace());
    stalled.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    let log = Log::to([key::PMIX_LOG_STDOUT], &"x".repeat(MAX_LOG_TEXT));
    let mut tool = fixture.tool();
    let mut refused = None;
    for _ in 0..1000 {
        let report = tool.log(&log).unwrap();
        refused = report.outcomes[0].result.clone().err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused.expect("the limit is reached").status, Status::ERR_RESOURCE_BUSY);
    drop(stalled);
    job.end();
}
