//! Log requests: the way through the channels, what reaches whom, and what becomes of it all when somebody stalls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;
#[path = "../log/tests/common/mod.rs"]
mod peers;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::raw::Raw;
use common::{PATIENCE, nspace, shell, spec};
use iof_engine::{
    App, Config, Engine, Grant, Host, Job, LogConfig, MailServer, Policy, Rendezvous, Reply, Standalone,
    Syslog, ViaGateway,
};
use iof_proto::limits::{MAX_LOG_TEXT, MAX_LOGS, MAX_LOGS_PER_PROCESS, MAX_WAITING_PER_TOOL};
use iof_proto::log::key;
use iof_proto::query::key as query;
use iof_proto::{
    Channel, Channels, Failure, FromTool, Info, InfoValue, Log, LogEntry, LogReport, Proc, Query, Rank,
    Status, ToTool, Value,
};
use iof_tool::{Delivery, Pull, RequestError, Tool};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use peers::{SyslogSocket, mail_server, nobody, stalling_server};
use tempfile::TempDir;

const FAILED: Status = Status::ERR_OPERATION_FAILED;
const PARTIAL: Status = Status::ERR_PARTIAL_COMPLETION;

/// An engine in a directory of its own.
struct World {
    engine: Engine,
    directory: TempDir,
}

fn world(log: LogConfig, host: impl Host + 'static) -> World {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config { rendezvous, policy: Policy::Block, log, ..Config::default() };
    World { engine: Engine::start_with(config, Arc::new(host)).unwrap(), directory }
}

/// Without a syslog, so that what this machine has does not matter.
fn config() -> LogConfig {
    LogConfig { syslog: Syslog::at("/no/such/socket"), ..LogConfig::default() }
}

impl World {
    fn tool(&self) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), "test").unwrap()
    }

    fn log(&self, log: &Log) -> LogReport {
        self.tool().log(log).unwrap()
    }

    fn record(&self) -> Vec<String> {
        let mut files = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let record = files.find(|path| path.extension().is_some_and(|extension| extension == "record"));
        let text = record.map(|path| fs::read_to_string(path).unwrap()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// A job of one rank, which writes a line and then waits for its end.
struct Waiting {
    job: Job,
    gate: PathBuf,
}

impl Waiting {
    fn start(world: &World) -> Waiting {
        let gate = world.directory.path().join("gate");
        mkfifo(&gate, Mode::S_IRWXU).unwrap();
        let script = format!("echo own; : < {}", gate.display());
        Waiting { job: world.engine.spawn(&spec([shell(&script)])).unwrap(), gate }
    }

    fn end(self) {
        // For reading, too, so that this does not wait for anybody.
        let _open = fs::File::options().read(true).write(true).open(self.gate).unwrap();
        common::wait(&self.job);
    }
}

fn source(rank: Rank) -> Info {
    let value = InfoValue::Proc(Proc { nspace: nspace(), rank });
    Info { key: key::PMIX_LOG_SOURCE.into(), value, required: true }
}

fn with(directives: Vec<Info>, log: Log) -> Log {
    Log { directives, ..log }
}

fn flag(key: &str) -> Info {
    Info::required(key, true)
}

fn required(channel: &str, text: &str) -> LogEntry {
    LogEntry { required: true, ..LogEntry::new(channel, text) }
}

/// The channels that were tried, each with whether it took the message.
fn tried(report: &LogReport) -> Vec<(&str, bool)> {
    report.outcomes.iter().map(|of| (of.channel.as_str(), of.result.is_ok())).collect()
}

fn denied(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => failure,
        other => panic!("{other}"),
    }
}

fn mail_to(server: SocketAddr, patience: Duration) -> MailServer {
    MailServer { host: server.ip().to_string(), port: server.port(), patience }
}

/// An email as a tool asks for it.
fn email(text: &str) -> Log {
    let to = Info::required(key::PMIX_LOG_EMAIL_ADDR, "a@example.org");
    with(vec![to], Log::to([key::PMIX_LOG_EMAIL], text))
}

/// One for another server than the engine's.
fn email_by(server: SocketAddr, text: &str) -> Log {
    let mut log = email(text);
    log.directives.extend([
        Info::required(key::PMIX_LOG_EMAIL_SERVER, server.ip().to_string().as_str()),
        Info::required(key::PMIX_LOG_EMAIL_SRVR_PORT, u32::from(server.port())),
    ]);
    log
}

/// Tells the test what it is to log, and leaves the answer to it.
struct Scripted {
    asked: Mutex<Sender<(Log, Reply)>>,
}

impl Host for Scripted {
    fn log_channels(&self) -> Vec<String> {
        vec![key::PMIX_LOG_GLOBAL_DATASTORE.into(), "site.pager".into()]
    }

    fn directives(&self) -> Vec<String> {
        vec!["site.credential".into()]
    }

    fn log(&self, log: &Log, reply: Reply) {
        // The test may be over.
        let _ = self.asked.lock().unwrap().send((log.clone(), reply));
    }
}

fn scripted(log: LogConfig) -> (World, Receiver<(Log, Reply)>) {
    let (tell, asked) = channel();
    (world(log, Scripted { asked: Mutex::new(tell) }), asked)
}

#[test]
fn what_a_rank_logs_is_a_stream_of_its_own_that_is_complete_before_its_job_ends() {
    let world = world(config(), Standalone);
    let job = Waiting::start(&world);
    let mut reader = world.tool();
    let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
    reader.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    let log = |directives, text: &str| {
        let report = world.log(&with(directives, Log::to([key::PMIX_LOG_STDOUT], text)));
        assert_eq!((report.status, tried(&report)), (Status::SUCCESS, vec![(key::PMIX_LOG_STDOUT, true)]));
    };
    log(vec![source(Rank(0))], "first");
    log(vec![source(Rank(0)), flag(key::PMIX_LOG_TAG_OUTPUT)], "second");
    // Of no rank: the job's.
    log(vec![], "third");
    log(vec![source(Rank::WILDCARD), flag(key::PMIX_LOG_XML_OUTPUT)], "<4>");
    // Who comes late gets it, too, apart from what the rank writes.
    let mut late = world.tool();
    late.pull(&Pull::new(vec![Proc { nspace: nspace(), rank: Rank(0) }], Channels::STDOUT)).unwrap();
    job.end();
    let read = |tool: &mut Tool| {
        let (mut streams, mut complete) = (std::collections::BTreeMap::new(), 0);
        loop {
            match tool.next(Some(PATIENCE)).unwrap().expect("the end of the job") {
                Delivery::Bytes(bytes) => {
                    let origin = bytes.origin();
                    assert_eq!(origin.channel, Channel::Stdout);
                    let of = (origin.source.rank, origin.logged);
                    let text: &mut String = streams.entry(of).or_default();
                    text.push_str(std::str::from_utf8(&bytes).unwrap());
                }
                Delivery::Complete { .. } => complete += 1,
                Delivery::JobEnded { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(tool.is_done());
        (streams, complete)
    };
    let own = ((Rank(0), false), "own\n".to_owned());
    let logged = ((Rank(0), true), "first\n[job,0]<stdout>: second\n".to_owned());
    let of_job = ((Rank::UNDEF, true), "third\n<stdout rank=\"-\">&lt;4&gt;</stdout>\n".to_owned());
    assert_eq!(read(&mut reader), ([own.clone(), logged.clone(), of_job].into(), 3));
    assert_eq!(read(&mut late), ([own, logged].into(), 2));

    // The job is over: it has no output any more.
    let report = world.log(&with(vec![source(Rank(0))], Log::to([key::PMIX_LOG_STDOUT], "late")));
    assert_eq!(report.status, FAILED);
    assert!(report.outcomes[0].result.as_ref().unwrap_err().reason.contains("the job job is over"));
    assert!(world.engine.forget(&nspace()));
}

#[test]
fn whose_output_is_meant_has_to_be_clear() {
    let world = world(config(), Standalone);
    let to_stderr = |directives| world.log(&with(directives, Log::to([key::PMIX_LOG_STDERR], "x")));
    let status = |report: &LogReport| report.outcomes[0].result.as_ref().unwrap_err().status;
    assert_eq!(status(&to_stderr(vec![])), Status::ERR_BAD_PARAM);
    let job = Waiting::start(&world);
    assert_eq!(to_stderr(vec![]).status, Status::SUCCESS);
    job.end();
}

/// Knows processes that the engine does not.
struct Knowing;

impl Host for Knowing {
    fn directives(&self) -> Vec<String> {
        vec![key::PMIX_LOG_SOURCE.into()]
    }
}

#[test]
fn nobody_speaks_for_processes_that_the_engine_does_not_know_unless_the_host_does() {
    let of = |rank| with(vec![source(rank)], Log::to([key::PMIX_LOG_JOB_RECORD], "m"));
    let relayed = |rank| {
        let mut log = of(rank);
        log.directives.push(Info::required(key::IOF_LOG_RELAYED, "somebody"));
        log
    };
    let world = world(config(), Standalone);
    let refused = |log: &Log| {
        let failure = denied(world.tool().log(log).unwrap_err());
        assert_eq!(failure.status, Status::ERR_NOT_FOUND);
        failure.reason
    };
    for log in [of(Rank(0)), of(Rank::WILDCARD), relayed(Rank(0))] {
        assert!(refused(&log).starts_with("there is no job."), "{log:?}");
    }
    let job = Waiting::start(&world);
    assert!(refused(&of(Rank(1))).starts_with("there is no job.1 here"));
    for rank in [Rank(0), Rank::WILDCARD, Rank::UNDEF] {
        assert_eq!(world.log(&of(rank)).status, Status::SUCCESS, "{rank}");
    }
    let (told, reports) = channel();
    world.engine.log(&of(Rank(1)), move |report| told.send(report).unwrap()).unwrap();
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap().status, Status::SUCCESS, "the embedder may");
    job.end();
    assert_eq!(world.record().len(), 4);
    assert_eq!(self::world(config(), Knowing).log(&of(Rank(1))).status, Status::SUCCESS);
    let gateway = self::world(LogConfig { gateway: true, ..config() }, Standalone);
    assert_eq!(gateway.log(&relayed(Rank(1))).status, Status::SUCCESS);
}

#[test]
fn statistics_and_channels_are_told_by_queries() {
    let syslog = SyslogSocket::bind();
    let (world, _asked) = scripted(LogConfig { syslog: Syslog::at(syslog.path()), ..config() });
    let job = Waiting::start(&world);
    assert_eq!(world.log(&Log::to([key::PMIX_LOG_STDERR], "x")).status, Status::SUCCESS);
    let found = world.tool().query(&[query::PMIX_QUERY_LOG_CHANNELS, query::IOF_STATS]).unwrap();
    let channels = [
        key::PMIX_LOG_STDOUT,
        key::PMIX_LOG_STDERR,
        key::PMIX_LOG_SYSLOG,
        key::PMIX_LOG_LOCAL_SYSLOG,
        key::PMIX_LOG_EMAIL,
        key::PMIX_LOG_JOB_RECORD,
        key::PMIX_LOG_GLOBAL_DATASTORE,
        "site.pager",
    ];
    assert_eq!(found[0].value, Value::Text(channels.join(",")));
    let Value::Streams(streams) = &found[1].value else { panic!("{found:?}") };
    let logged: Vec<_> = streams.iter().filter(|of| of.logged).collect();
    assert_eq!((streams.len(), logged.len()), (4, 1));
    assert_eq!((logged[0].source.rank, logged[0].channel), (Rank::UNDEF, Channel::Stderr));
    job.end();
}

#[test]
fn the_status_says_whether_all_some_or_none_of_the_channels_have_it() {
    let syslog = SyslogSocket::bind();
    let world = world(LogConfig { syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let (works, fails) = (key::PMIX_LOG_LOCAL_SYSLOG, "site.unknown");
    let report = |data: Vec<LogEntry>, once: bool| {
        let directives = if once { vec![flag(key::PMIX_LOG_ONCE)] } else { vec![] };
        world.log(&Log { data, directives })
    };
    let to =
        |channels: &[&str]| channels.iter().map(|channel| LogEntry::new(*channel, "m")).collect::<Vec<_>>();
    let cases = [
        (to(&[works, key::PMIX_LOG_JOB_RECORD]), false, Status::SUCCESS),
        (to(&[works, fails]), false, PARTIAL),
        (to(&[fails, "site.other"]), false, FAILED),
        (vec![LogEntry::new(works, "m"), required(fails, "m")], false, FAILED),
        (vec![required(works, "m"), LogEntry::new(fails, "m")], false, PARTIAL),
        (to(&[fails, works, key::PMIX_LOG_JOB_RECORD]), true, Status::SUCCESS),
        (to(&[fails, "site.other"]), true, FAILED),
    ];
    for (data, once, wanted) in cases {
        let got = report(data.clone(), once);
        assert_eq!(got.status, wanted, "{data:?} gave {got:?}");
    }
    let once = report(to(&[fails, works, key::PMIX_LOG_JOB_RECORD]), true);
    assert_eq!(tried(&once), [(fails, false), (works, true)], "the first that takes it is the last");
    assert_eq!(world.record().len(), 1, "the first of the cases alone came so far");
    (0..6).for_each(|_| assert!(syslog.next().ends_with("REPORTS: m")));
    assert!(syslog.is_empty());
}

#[test]
fn a_message_without_a_channel_takes_the_engines_order() {
    let syslog = SyslogSocket::bind();
    let there = Syslog::at(syslog.path());
    let of = |order: &str, once, syslog: &Syslog| {
        let log = LogConfig { order: order.parse().unwrap(), once, syslog: syslog.clone(), ..config() };
        world(log, Standalone)
    };
    let default = world(LogConfig { syslog: there.clone(), ..config() }, Standalone);
    let job = Waiting::start(&default);
    let report = default.log(&Log::new("m"));
    let all = [key::PMIX_LOG_LOCAL_SYSLOG, key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_STDERR];
    assert_eq!(
        (report.status, tried(&report)),
        (Status::SUCCESS, all.map(|channel| (channel, true)).to_vec())
    );
    job.end();

    let order = "local_syslog:req,global_syslog,Job_Record";
    let report = of(order, true, &there).log(&Log::new("m"));
    assert_eq!((report.status, tried(&report)), (Status::SUCCESS, vec![(key::PMIX_LOG_LOCAL_SYSLOG, true)]));
    // The required one is tried though it is not there, the other that is not there is left out.
    let report = of(order, false, &config().syslog).log(&Log::new("m"));
    assert_eq!(report.status, FAILED);
    assert_eq!(tried(&report), [(key::PMIX_LOG_LOCAL_SYSLOG, false), (key::PMIX_LOG_JOB_RECORD, true)]);
    let nowhere = denied(of("email", false, &there).tool().log(&Log::new("m")).unwrap_err());
    assert_eq!(nowhere.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
fn unreasonable_messages_are_refused_and_cost_nothing() {
    let world = world(config(), Standalone);
    let mut tool = world.tool();
    let record = |text: String| Log::to([key::PMIX_LOG_JOB_RECORD], &text);
    let huge = tool.log(&record("x".repeat(1 << 20))).unwrap_err();
    assert!(matches!(huge, RequestError::Unsendable(_)), "{huge}");
    assert!(
        huge.to_string().starts_with("1048576 bytes to be logged in one message, and the limit is 32768")
    );
    let nul = denied(tool.log(&record("a\0b".into())).unwrap_err());
    assert_eq!(nul.status, Status::ERR_BAD_PARAM);
    assert!(nul.reason.contains("NUL byte at 1"), "{nul}");
    for directive in [flag("site.unknown"), Info::required(key::PMIX_LOG_SYSLOG_PRI, 8u32)] {
        assert!(tool.log(&with(vec![directive], record("x".into()))).is_err());
    }
    let ignored = tool.log(&with(vec![Info::new("site.unknown", true)], record("x".into()))).unwrap();
    assert_eq!((ignored.status, ignored.ignored), (Status::SUCCESS, vec!["site.unknown".to_owned()]));
    assert_eq!(tool.log(&record("y".repeat(MAX_LOG_TEXT))).unwrap().status, Status::SUCCESS);
    assert_eq!(world.record().len(), 2);
}

#[test]
fn the_embedder_logs_without_waiting_and_is_told() {
    let world = world(config(), Standalone);
    let (told, reports) = channel();
    let done = move |report| told.send(report).unwrap();
    world.engine.log(&Log::to([key::PMIX_LOG_JOB_RECORD, "site.unknown"], "m"), done).unwrap();
    let report: LogReport = reports.recv_timeout(PATIENCE).unwrap();
    assert_eq!(report.status, PARTIAL);
    assert!(world.record()[0].contains("\"by\":\"engine (pid "), "{:?}", world.record());
    let channel = [key::PMIX_LOG_JOB_RECORD];
    let long = "x".repeat(MAX_LOG_TEXT + 1);
    for log in [Log::to([""; 0], "m"), Log::to(channel, &long), Log::to([channel[0]; 17], "m")] {
        let refused = world.engine.log(&log, |_| panic!("it was refused")).unwrap_err();
        assert_eq!(refused.status, Status::ERR_BAD_PARAM, "{refused}");
    }
    assert_eq!(world.record().len(), 1);
}

#[test]
fn what_the_engine_does_not_know_goes_to_the_host_as_it_came() {
    let (world, asked) = scripted(config());
    let directives = vec![flag("site.credential"), Info::new(key::PMIX_LOG_SYSLOG_PRI, 3u32)];
    let channels = [key::PMIX_LOG_GLOBAL_DATASTORE, "site.new", key::PMIX_LOG_GLOBAL_SYSLOG];
    let log = with(directives.clone(), Log::to(channels, "m"));
    let mut tool = world.tool();
    let asking = thread::spawn(move || tool.log(&log).unwrap());
    for channel in channels {
        let (log, reply) = asked.recv_timeout(PATIENCE).expect("the host is asked");
        assert_eq!((&log.data, &log.directives), (&vec![LogEntry::new(channel, "m")], &directives));
        match channel {
            key::PMIX_LOG_GLOBAL_DATASTORE => reply.grant(),
            "site.new" => reply.deny(Status::ERR_NO_PERMISSIONS, "not you"),
            // Dropped without a word.
            _ => {}
        }
    }
    let report = asking.join().unwrap();
    assert_eq!(report.status, PARTIAL);
    let results: Vec<Result<(), Status>> =
        report.outcomes.into_iter().map(|of| of.result.map_err(|failure| failure.status)).collect();
    assert_eq!(results, [Ok(()), Err(Status::ERR_NO_PERMISSIONS), Err(Status::ERR_NOT_AVAILABLE)]);
}

#[test]
fn a_host_that_never_answers_costs_one_process_no_more_than_its_share_and_nothing_when_it_has_gone() {
    let (world, asked) = scripted(config());
    // Gives a refusal, or else none, as the host does not answer.
    let refused = |raw: &mut Raw| {
        raw.send(&FromTool::Log { request: 100, log: Log::to(["site.pager"], "m") });
        raw.send(&FromTool::Query {
            request: 101,
            queries: vec![Query::new([query::PMIX_QUERY_NAMESPACES])],
        });
        let mut refused = None;
        loop {
            match raw.receive() {
                ToTool::Logged { result, .. } => refused = Some(result.unwrap_err()),
                ToTool::Answer { .. } => return refused,
                _ => {}
            }
        }
    };
    let fill = |raw: &mut Raw| {
        (0..MAX_WAITING_PER_TOOL).for_each(|at| assert_eq!(refused(raw), None, "message {at}"));
    };
    let mut tools: Vec<Raw> = Vec::new();
    for _ in 0..MAX_LOGS_PER_PROCESS / MAX_WAITING_PER_TOOL {
        let mut raw = Raw::connect(&world.engine);
        fill(&mut raw);
        let failure = refused(&mut raw).unwrap();
        assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
        assert!(failure.reason.contains("of this tool"), "{failure}");
        tools.push(raw);
    }
    let mut raw = Raw::connect(&world.engine);
    let failure = refused(&mut raw).unwrap();
    assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
    assert!(failure.reason.contains("of this process"), "{failure}");
    // Others are served meanwhile.
    let (told, reports) = channel();
    let done = move |report| told.send(report).unwrap();
    world.engine.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m"), done).unwrap();
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap().status, Status::SUCCESS);

    // What tools leave that have gone takes nobody's place, however many they are.
    drop(tools);
    for _ in 0..=MAX_LOGS / MAX_WAITING_PER_TOOL {
        common::wait_for("room", || refused(&mut raw).is_none().then_some(()));
        (1..MAX_WAITING_PER_TOOL).for_each(|at| assert_eq!(refused(&mut raw), None, "message {at}"));
        raw = Raw::connect(&world.engine);
    }
    drop(raw);
    // Nobody misses the answers.
    asked.try_iter().for_each(|(_, reply)| reply.grant());
    assert_eq!(world.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
}

#[test]
fn a_gateway_serves_what_others_cannot() {
    let syslog = SyslogSocket::bind();
    let (server, inbox) = mail_server();
    let gateway = LogConfig {
        syslog: Syslog::at(syslog.path()),
        mail: Some(mail_to(server, PATIENCE)),
        gateway: true,
        ..config()
    };
    let gateway = world(gateway, Standalone);
    let socket = gateway.engine.socket().unwrap().to_owned();
    let backend = world(config(), ViaGateway { socket: socket.clone() });
    let job = Waiting::start(&backend);
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
    // The syslog is the global one where there is one.
    let report = backend.log(&Log::to([key::PMIX_LOG_SYSLOG], "either"));
    assert_eq!(tried(&report), [(key::PMIX_LOG_GLOBAL_SYSLOG, true)]);
    assert!(syslog.next().ends_with("REPORTS: either"));
    assert_eq!(backend.log(&email("by mail")).status, Status::SUCCESS);
    assert!(inbox.recv_timeout(PATIENCE).unwrap().body().starts_with("by mail"));
    let found = backend.tool().query(&[query::PMIX_QUERY_LOG_CHANNELS]).unwrap();
    let Value::Text(channels) = &found[0].value else { panic!("{found:?}") };
    assert!(channels.contains(key::PMIX_LOG_GLOBAL_SYSLOG), "{channels}");
    // At the gateway itself its own syslog is the global one.
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
fn a_gateway_has_what_its_host_has_and_the_longest_message_reaches_it() {
    let syslog = SyslogSocket::bind();
    let (tell, asked) = channel();
    let log = LogConfig { gateway: true, syslog: Syslog::at(syslog.path()), ..config() };
    let gateway = world(log, Scripted { asked: Mutex::new(tell) });
    let backend = world(config(), ViaGateway { socket: gateway.engine.socket().unwrap().to_owned() });
    let job = Waiting::start(&backend);
    let text = "x".repeat(MAX_LOG_TEXT);
    let long = "y".repeat(1000);
    let mut directives = vec![source(Rank(0)), flag("site.unknown-here"), flag(key::PMIX_LOG_TAG_OUTPUT)];
    directives[1].required = false;
    directives.extend((0..14).map(|_| Info::new("site.filler", long.as_str())));
    let log = with(directives, Log::to(["site.pager", key::PMIX_LOG_JOB_RECORD, "site.unknown"], &text));
    let mut tool = backend.tool();
    let asking = thread::spawn(move || tool.log(&log).unwrap());
    for grants in [true, false] {
        let (log, reply) = asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!((log.data.len(), log.data[0].text()), (1, Some(text.as_str())));
        let value = |key: &str| log.directives.iter().find(|info| info.key == key).map(|info| &info.value);
        assert_eq!(value(key::PMIX_LOG_TAG_OUTPUT), Some(&InfoValue::Bool(true)));
        assert_eq!(value("site.unknown-here"), Some(&InfoValue::Bool(true)));
        let InfoValue::Text(by) = value(key::IOF_LOG_RELAYED).unwrap() else { panic!("{log:?}") };
        assert_eq!(*by, format!("test (pid {})", std::process::id()));
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
fn the_longest_message_goes_to_all_channels_of_one_request() {
    let syslog = SyslogSocket::bind();
    let (server, inbox) = mail_server();
    let log =
        LogConfig { syslog: Syslog::at(syslog.path()), mail: Some(mail_to(server, PATIENCE)), ..config() };
    let world = world(log, Standalone);
    let job = Waiting::start(&world);
    let channels = [
        key::PMIX_LOG_STDOUT,
        key::PMIX_LOG_STDERR,
        key::PMIX_LOG_LOCAL_SYSLOG,
        key::PMIX_LOG_EMAIL,
        key::PMIX_LOG_JOB_RECORD,
    ];
    let text = "x".repeat(MAX_LOG_TEXT);
    let report = world.log(&Log { directives: email("").directives, ..Log::to(channels, &text) });
    assert_eq!(tried(&report), channels.map(|channel| (channel, true)), "{report:?}");
    assert!(syslog.next().ends_with(&text) && world.record()[0].contains(&text));
    assert!(inbox.recv_timeout(PATIENCE).unwrap().text.len() > MAX_LOG_TEXT);
    job.end();
}

#[test]
fn what_is_required_and_a_channel_cannot_do_is_an_error_of_that_channel() {
    let world = world(config(), Standalone);
    let job = Waiting::start(&world);
    let log = |directives| {
        world.log(&with(directives, Log::to([key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_STDERR], "m")))
    };
    for key in [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT] {
        let report = log(vec![flag(key)]);
        assert_eq!(tried(&report), [(key::PMIX_LOG_JOB_RECORD, false), (key::PMIX_LOG_STDERR, true)]);
        let failure = report.outcomes[0].result.as_ref().unwrap_err();
        assert_eq!((report.status, failure.status), (PARTIAL, Status::ERR_NOT_SUPPORTED), "{failure}");
        let report = log(vec![Info::new(key, true)]);
        assert_eq!((report.status, report.ignored), (Status::SUCCESS, vec![]));
        let nowhere = with(vec![Info::new(key, true)], Log::to([key::PMIX_LOG_JOB_RECORD], "m"));
        assert_eq!(world.log(&nowhere).ignored, [key]);
    }
    // Every channel has the time.
    let timed = [key::PMIX_LOG_TIMESTAMP_OUTPUT, key::PMIX_LOG_GENERATE_TIMESTAMP].map(flag);
    assert_eq!(log(timed.into()).status, Status::SUCCESS);
    assert_eq!(world.record().len(), 5);
    job.end();
}

#[test]
fn a_message_that_tags_make_too_long_is_refused() {
    let world = world(config(), Standalone);
    let job = Waiting::start(&world);
    let lines = Log::to([key::PMIX_LOG_STDOUT], &"\n".repeat(32_000));
    assert_eq!(world.log(&lines).status, Status::SUCCESS);
    let report = world.log(&with(vec![flag(key::PMIX_LOG_TAG_OUTPUT)], lines));
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.starts_with("with tags its 32000 lines are "), "{failure}");
    job.end();
}

#[test]
fn the_record_says_whose_message_it_is_and_who_says_so_and_an_earlier_one_is_put_away() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
        let config = Config { rendezvous, policy: Policy::Block, log: config(), ..Config::default() };
        Engine::start(config).unwrap()
    };
    let log = |engine: &Engine, directives| {
        let log = with(directives, Log::to([key::PMIX_LOG_JOB_RECORD], "m"));
        let report = Tool::connect(engine.socket().unwrap(), "test\x1b").unwrap().log(&log).unwrap();
        assert_eq!(report.status, Status::SUCCESS);
    };
    let engine = start();
    let record = PathBuf::from(format!("{}.record", engine.socket().unwrap().display()));
    log(&engine, vec![]);
    let job = engine.spawn(&spec([shell("true")])).unwrap();
    log(&engine, vec![]);
    log(&engine, vec![source(Rank(0))]);
    common::wait(&job);
    let text = fs::read_to_string(&record).unwrap();
    let whose = [r#""nspace":null,"#, r#""nspace":"job","#, r#""nspace":"job","#];
    let ranks = [r#""rank":null,"#, r#""rank":null,"#, r#""rank":0,"#];
    let by = format!(r#""by":"test? (pid {})""#, std::process::id());
    for ((line, nspace), rank) in text.lines().zip(whose).zip(ranks) {
        assert!([nspace, rank, &by].iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(text.lines().count(), 3);
    drop((job, engine));
    let engine = start();
    log(&engine, vec![]);
    assert_eq!(fs::read_to_string(&record).unwrap().lines().count(), 1);
    assert_eq!(fs::read_to_string(record.with_extension("record.old")).unwrap(), text);
}

#[test]
fn a_gateway_that_says_nothing_is_given_up_and_then_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("gateway");
    let silent = UnixListener::bind(&socket).unwrap();
    let backend = world(config(), ViaGateway { socket });
    let log = Log::to([key::PMIX_LOG_GLOBAL_SYSLOG], "x");
    let reason = || backend.log(&log).outcomes[0].result.clone().unwrap_err().reason;
    let first = reason();
    assert!(first.contains("has not answered for 5 s"), "{first}");
    let second = reason();
    assert!(second.contains("has stalled, and is sent nothing for 60 s"), "{second}");
    silent.set_nonblocking(true).unwrap();
    assert_eq!(silent.incoming().map_while(Result::ok).count(), 1, "it was asked once");
}

#[test]
fn what_was_relayed_once_is_not_relayed_again() {
    let syslog = SyslogSocket::bind();
    let end = world(LogConfig { gateway: true, syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let middle = world(config(), ViaGateway { socket: end.engine.socket().unwrap().to_owned() });
    let first = world(config(), ViaGateway { socket: middle.engine.socket().unwrap().to_owned() });
    let report = first.log(&Log::to([key::PMIX_LOG_GLOBAL_SYSLOG], "x"));
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.contains("this engine is no gateway"), "{failure}");
    assert!(syslog.is_empty());
}

#[test]
fn the_gateways_role_is_a_directive_for_who_starts_an_engine() {
    let mut config = Config::default();
    let gateway = "pmix.srv.gway";
    assert!(!config.log.gateway);
    assert_eq!(config.direct(&[Info::required(gateway, true)]).unwrap(), [""; 0]);
    assert!(config.log.gateway);
    assert!(config.direct(&[Info::required(gateway, 1u32)]).is_err());
}

#[test]
fn a_mail_server_that_is_down_or_stalls_is_reported() {
    let down = world(LogConfig { mail: Some(mail_to(nobody(), PATIENCE)), ..config() }, Standalone);
    let report = down.log(&email("x"));
    assert_eq!((report.status, tried(&report)), (FAILED, vec![(key::PMIX_LOG_EMAIL, false)]));
    let (address, _listener) = stalling_server();
    let server = mail_to(address, Duration::from_millis(50));
    let stalls = world(LogConfig { mail: Some(server), ..config() }, Standalone);
    let report = stalls.log(&email("x"));
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.contains("has not taken the mail within 0.05 s"), "{failure}");
}

#[test]
fn while_a_mail_server_stalls_the_job_and_the_other_channels_go_on_and_too_much_mail_is_refused() {
    let (address, listener) = stalling_server();
    let world = world(LogConfig { mail: Some(mail_to(address, PATIENCE)), ..config() }, Standalone);
    let (told, reports) = channel();
    let send = || {
        let told = told.clone();
        world.engine.log(&email("x"), move |report| drop(told.send(report))).unwrap();
    };
    // One that is being sent, 64 that wait, and some too many.
    send();
    let first = listener.accept().unwrap();
    (0..69).for_each(|_| send());
    let next = || {
        let report: LogReport = reports.recv_timeout(PATIENCE).unwrap();
        assert_eq!(report.status, FAILED);
        report.outcomes[0].result.clone().unwrap_err()
    };
    let refused: Vec<Failure> = (0..5).map(|_| next()).collect();
    assert!(refused.iter().all(|failure| failure.status == Status::ERR_RESOURCE_BUSY), "{refused:?}");
    assert_eq!(world.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
    let job = Waiting::start(&world);
    assert_eq!(world.log(&Log::to([key::PMIX_LOG_STDOUT], "m")).status, Status::SUCCESS);
    job.end();
    assert!(reports.try_recv().is_err(), "the server has said nothing so far");
    // When it closes its connections each of them is told so.
    drop((first, listener));
    (0..65).for_each(|_| assert_eq!(next().status, Status::ERR_NOT_AVAILABLE));
}

#[test]
fn mail_behind_a_server_that_stalls_is_soon_told_so_and_other_servers_get_theirs() {
    let (address, _listener) = stalling_server();
    let server = mail_to(address, Duration::from_secs(3));
    let world = world(LogConfig { mail: Some(server), ..config() }, Standalone);
    let (told, reports) = channel();
    for _ in 0..64 {
        let told = told.clone();
        world.engine.log(&email("x"), move |report| drop(told.send(report))).unwrap();
    }
    let (other, inbox) = mail_server();
    let log = email_by(other, "to another");
    // Until the queue has room.
    let deadline = Instant::now() + PATIENCE;
    while world.log(&log).status != Status::SUCCESS {
        assert!(Instant::now() < deadline, "the queue stays full");
    }
    assert!(inbox.recv_timeout(PATIENCE).unwrap().body().starts_with("to another"));
    let reasons: Vec<String> = (0..64)
        .map(|_| reports.recv_timeout(PATIENCE).unwrap().outcomes[0].result.clone().unwrap_err().reason)
        .collect();
    let of = |words: &str| reasons.iter().filter(|reason| reason.contains(words)).count();
    assert_eq!((of("has not taken the mail within"), of("has stalled")), (1, 63), "{reasons:#?}");
}

#[test]
fn a_syslog_that_stalls_holds_up_no_other_channel_and_too_much_for_it_is_refused() {
    let syslog = SyslogSocket::bind();
    syslog.fill();
    let world = world(LogConfig { syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let (told, reports) = channel();
    for _ in 0..100 {
        let told = told.clone();
        let log = Log::to([key::PMIX_LOG_LOCAL_SYSLOG], "x");
        world.engine.log(&log, move |report| drop(told.send(report))).unwrap();
    }
    assert_eq!(world.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
    let report: LogReport = reports.recv_timeout(PATIENCE).unwrap();
    let refused = report.outcomes[0].result.clone().unwrap_err();
    assert!(refused.reason.contains("64 messages wait to be logged"), "{refused}");
}

#[test]
fn mail_whose_asker_has_gone_is_not_begun() {
    let (address, listener) = stalling_server();
    let world = world(LogConfig { mail: Some(mail_to(address, PATIENCE)), ..config() }, Standalone);
    let (told, reports) = channel();
    world.engine.log(&email("first"), move |report| drop(told.send(report))).unwrap();
    let (first, _) = listener.accept().unwrap();
    let (other, inbox) = mail_server();
    let mut raw = Raw::connect(&world.engine);
    raw.until_heard();
    raw.send(&FromTool::Log { request: 1, log: email_by(other, "of one that goes") });
    raw.until_heard();
    drop(raw);
    let mut stays = Raw::connect(&world.engine);
    stays.until_heard();
    stays.send(&FromTool::Log { request: 1, log: email_by(other, "of one that stays") });
    stays.until_heard();
    // The engine has heard by now that the first has gone: it serves tools in their order.
    drop(first);
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap().status, FAILED);
    assert!(inbox.recv_timeout(PATIENCE).unwrap().body().starts_with("of one that stays"));
}

#[test]
fn what_nobody_reads_is_refused_beyond_a_limit_where_a_reader_holds_it_back() {
    let world = world(config(), Standalone);
    let job = Waiting::start(&world);
    let mut stalled = world.engine.attach("stalled", Grant::Block).unwrap();
    let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
    stalled.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    let log = Log::to([key::PMIX_LOG_STDOUT], &"x".repeat(MAX_LOG_TEXT));
    let mut tool = world.tool();
    let mut refused = None;
    for _ in 0..1000 {
        let report = tool.log(&log).unwrap();
        refused = report.outcomes[0].result.clone().err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused.expect("a limit").status, Status::ERR_RESOURCE_BUSY);
    drop(stalled);
    job.end();
}

#[test]
fn what_was_logged_to_a_job_whose_start_has_failed_has_an_end_for_its_readers() {
    let world = world(config(), Standalone);
    // It looks like a program until the kernel has to run it.
    let bad = world.directory.path().join("bad");
    fs::write(&bad, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).unwrap();
    let apps = [App { nprocs: 50, ..App::new("true", [""; 0]) }, App::new(bad, [""; 0])];
    let mut reader = world.tool();
    let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
    reader.pull(&Pull::new(vec![all], Channels::STDERR)).unwrap();
    let log = with(vec![source(Rank(50))], Log::to([key::PMIX_LOG_STDERR], "early"));
    let mut tool = world.tool();
    // Until something was logged while the job was being started: otherwise it is as if it had never been.
    let logged = common::wait_for("a message while the job was being started", || {
        let mut logged = 0;
        thread::scope(|scope| {
            let spawning =
                scope.spawn(|| world.engine.spawn(&spec(apps.clone())).err().expect("a bad program"));
            while !spawning.is_finished() {
                logged += usize::from(tool.log(&log).is_ok_and(|report| report.status == Status::SUCCESS));
            }
        });
        (logged > 0).then_some(logged)
    });
    let mut text = Vec::new();
    loop {
        match reader.next(Some(PATIENCE)).unwrap().expect("the end of the job") {
            Delivery::Bytes(bytes) => text.extend_from_slice(&bytes),
            Delivery::JobEnded { .. } => break,
            _ => {}
        }
    }
    assert_eq!(String::from_utf8(text).unwrap(), "early\n".repeat(logged));
    assert!(world.engine.forget(&nspace()));
}
