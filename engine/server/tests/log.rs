//! Log requests: their channels, their sources and their receivers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use iof_engine::{App, Config, Engine, Host, LogConfig, Rendezvous, Standalone, Syslog};
use iof_proto::limits::{MAX_LOG_TEXT, MAX_LOGS, MAX_LOGS_PER_PROCESS, MAX_LOGS_PER_TOOL};
use iof_proto::log::key;
use iof_proto::query::key as query;
use iof_proto::{
    Channel, Channels, Failure, FromTool, Info, Log, LogEntry, LogReport, Proc, Query, Rank, Status, ToTool,
    Value,
};
use iof_testing::TIMEOUT;
use iof_testing::engine::logging::{WaitingJob, config, fixture, flag, scripted, source, tried, with};
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{changed, nspace, shell, spec};
use iof_testing::servers::SyslogSocket;
use iof_tool::{Delivery, Pull, RequestError, Tool};

const FAILED: Status = Status::ERR_OPERATION_FAILED;
const PARTIAL: Status = Status::ERR_PARTIAL_COMPLETION;

fn required(channel: &str, text: &str) -> LogEntry {
    LogEntry { required: true, ..LogEntry::new(channel, text) }
}

fn denied(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn logged_output_is_a_separate_stream_that_completes_before_its_job_ends() {
    let fixture = fixture(config(), Standalone);
    let job = WaitingJob::start(&fixture);
    let mut reader = fixture.tool();
    let all = Proc::all(nspace());
    reader.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    let log = |directives, text: &str| {
        let report = fixture.log(&with(directives, Log::to([key::PMIX_LOG_STDOUT], text)));
        assert_eq!((report.status, tried(&report)), (Status::SUCCESS, vec![(key::PMIX_LOG_STDOUT, true)]));
    };
    log(vec![source(Rank(0))], "first");
    log(vec![source(Rank(0)), flag(key::PMIX_LOG_TAG_OUTPUT)], "second");
    // Without a rank, the message belongs to the job.
    log(vec![], "third");
    log(vec![source(Rank::WILDCARD), flag(key::PMIX_LOG_XML_OUTPUT)], "<4>");
    // A late reader receives it, too, separate from the rank's own output.
    let mut late = fixture.tool();
    late.pull(&Pull::new(vec![Proc::new(nspace(), Rank(0))], Channels::STDOUT)).unwrap();
    job.end();
    let read = |tool: &mut Tool| {
        let (mut streams, mut complete) = (std::collections::BTreeMap::new(), 0);
        loop {
            match tool.recv_timeout(TIMEOUT).unwrap().expect("the end of the job") {
                Delivery::Bytes(bytes) => {
                    let origin = bytes.origin();
                    assert_eq!(origin.channel, Channel::Stdout);
                    let stream = (origin.source.rank, origin.logged);
                    let text: &mut String = streams.entry(stream).or_default();
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
    let job_wide = ((Rank::UNDEF, true), "third\n<stdout rank=\"-\">&lt;4&gt;</stdout>\n".to_owned());
    assert_eq!(read(&mut reader), ([own.clone(), logged.clone(), job_wide].into(), 3));
    assert_eq!(read(&mut late), ([own, logged].into(), 2));

    // The job has ended, so nothing can be logged to it.
    let report = fixture.log(&with(vec![source(Rank(0))], Log::to([key::PMIX_LOG_STDOUT], "late")));
    assert_eq!(report.status, FAILED);
    assert!(report.outcomes[0].result.as_ref().unwrap_err().reason.contains("job job has ended"));
    assert!(fixture.engine.remove(&nspace()));
}

#[test]
fn logging_to_output_requires_a_process_or_a_single_job() {
    let fixture = fixture(config(), Standalone);
    let to_stderr = |directives| fixture.log(&with(directives, Log::to([key::PMIX_LOG_STDERR], "x")));
    let status = |report: &LogReport| report.outcomes[0].result.as_ref().unwrap_err().status;
    assert_eq!(status(&to_stderr(vec![])), Status::ERR_BAD_PARAM);
    let job = WaitingJob::start(&fixture);
    assert_eq!(to_stderr(vec![]).status, Status::SUCCESS);
    job.end();
}

/// A host that knows processes which the engine does not.
struct KnowingHost;

impl Host for KnowingHost {
    fn directives(&self) -> Vec<String> {
        vec![key::PMIX_LOG_SOURCE.into()]
    }
}

#[test]
fn unknown_sources_are_refused_unless_the_host_vouches_for_them() {
    let record_for = |rank| with(vec![source(rank)], Log::to([key::PMIX_LOG_JOB_RECORD], "m"));
    let relayed = |rank| {
        let mut log = record_for(rank);
        log.directives.push(Info::required(key::IOF_LOG_RELAYED, "relaying engine"));
        log
    };
    let fixture = fixture(config(), Standalone);
    let refused = |log: &Log| {
        let failure = denied(fixture.tool().log(log).unwrap_err());
        (failure.status, failure.reason)
    };
    for log in [record_for(Rank(0)), record_for(Rank::WILDCARD)] {
        let (status, reason) = refused(&log);
        assert_eq!(status, Status::ERR_NOT_FOUND);
        assert!(reason.starts_with("the source job."), "{reason}");
    }
    assert_eq!(refused(&relayed(Rank(0))).0, Status::ERR_NOT_SUPPORTED, "the engine is not a gateway");
    let job = WaitingJob::start(&fixture);
    assert!(refused(&record_for(Rank(1))).1.starts_with("the source job.1 does not exist"));
    for rank in [Rank(0), Rank::WILDCARD, Rank::UNDEF] {
        assert_eq!(fixture.log(&record_for(rank)).status, Status::SUCCESS, "{rank}");
    }
    let (sender, reports) = channel();
    fixture.engine.log(&record_for(Rank(1)), move |report| sender.send(report).unwrap()).unwrap();
    assert_eq!(reports.recv_timeout(TIMEOUT).unwrap().status, Status::SUCCESS, "the embedder may");
    job.end();
    assert_eq!(fixture.record().len(), 4);
    assert_eq!(self::fixture(config(), KnowingHost).log(&record_for(Rank(1))).status, Status::SUCCESS);
    let gateway = self::fixture(LogConfig { gateway: true, ..config() }, Standalone);
    assert_eq!(gateway.log(&relayed(Rank(1))).status, Status::SUCCESS);
}

#[test]
fn queries_report_log_channels_and_logged_streams() {
    let syslog = SyslogSocket::bind();
    let (fixture, _asked) = scripted(LogConfig { syslog: Syslog::at(syslog.path()), ..config() });
    let job = WaitingJob::start(&fixture);
    assert_eq!(fixture.log(&Log::to([key::PMIX_LOG_STDERR], "x")).status, Status::SUCCESS);
    let found = fixture.tool().query(&[query::PMIX_QUERY_LOG_CHANNELS, query::IOF_QUERY_STATS]).unwrap();
    let channels = [
        key::PMIX_LOG_STDOUT,
        key::PMIX_LOG_STDERR,
        key::PMIX_LOG_SYSLOG,
        key::PMIX_LOG_LOCAL_SYSLOG,
        #[cfg(feature = "mail")]
        key::PMIX_LOG_EMAIL,
        key::PMIX_LOG_JOB_RECORD,
        key::PMIX_LOG_GLOBAL_DATASTORE,
        "site.pager",
    ];
    assert_eq!(found[0].value, Value::Text(channels.join(",")));
    let Value::Streams(streams) = &found[1].value else { panic!("{found:?}") };
    let logged: Vec<_> = streams.iter().filter(|stream| stream.logged).collect();
    assert_eq!((streams.len(), logged.len()), (Channel::OUTPUTS.len() + 1, 1));
    assert_eq!((logged[0].source.rank, logged[0].channel), (Rank::UNDEF, Channel::Stderr));
    job.end();
}

#[test]
fn the_status_tells_whether_all_some_or_no_channels_accepted_a_message() {
    let syslog = SyslogSocket::bind();
    let fixture = fixture(LogConfig { syslog: Syslog::at(syslog.path()), ..config() }, Standalone);
    let (accepting, failing) = (key::PMIX_LOG_LOCAL_SYSLOG, "site.unknown");
    let report = |data: Vec<LogEntry>, once: bool| {
        let directives = if once { vec![flag(key::PMIX_LOG_ONCE)] } else { vec![] };
        fixture.log(&Log { data, directives })
    };
    let to =
        |channels: &[&str]| channels.iter().map(|channel| LogEntry::new(*channel, "m")).collect::<Vec<_>>();
    let cases = [
        (to(&[accepting, key::PMIX_LOG_JOB_RECORD]), false, Status::SUCCESS),
        (to(&[accepting, failing]), false, PARTIAL),
        (to(&[failing, "site.other"]), false, FAILED),
        (vec![LogEntry::new(accepting, "m"), required(failing, "m")], false, FAILED),
        (vec![required(accepting, "m"), LogEntry::new(failing, "m")], false, PARTIAL),
        (to(&[failing, accepting, key::PMIX_LOG_JOB_RECORD]), true, Status::SUCCESS),
        (to(&[failing, "site.other"]), true, FAILED),
    ];
    for (data, once, wanted) in cases {
        let got = report(data.clone(), once);
        assert_eq!(got.status, wanted, "{data:?} gave {got:?}");
    }
    let once = report(to(&[failing, accepting, key::PMIX_LOG_JOB_RECORD]), true);
    assert_eq!(
        tried(&once),
        [(failing, false), (accepting, true)],
        "no channel is tried after an accepting one"
    );
    assert_eq!(fixture.record().len(), 1, "only the first case has reached the record");
    (0..6).for_each(|_| assert!(syslog.next().ends_with("REPORTS: m")));
    assert!(syslog.is_empty());
}

#[test]
fn a_message_without_a_channel_uses_the_engines_order() {
    let syslog = SyslogSocket::bind();
    let available = Syslog::at(syslog.path());
    let with_order = |order: &str, once, syslog: &Syslog| {
        let log = LogConfig { order: order.parse().unwrap(), once, syslog: syslog.clone(), ..config() };
        fixture(log, Standalone)
    };
    let default = fixture(LogConfig { syslog: available.clone(), ..config() }, Standalone);
    let job = WaitingJob::start(&default);
    let report = default.log(&Log::new("m"));
    let all = [key::PMIX_LOG_LOCAL_SYSLOG, key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_STDERR];
    assert_eq!(
        (report.status, tried(&report)),
        (Status::SUCCESS, all.map(|channel| (channel, true)).to_vec())
    );
    job.end();

    let order = "local_syslog:req,global_syslog,Job_Record";
    let report = with_order(order, true, &available).log(&Log::new("m"));
    assert_eq!((report.status, tried(&report)), (Status::SUCCESS, vec![(key::PMIX_LOG_LOCAL_SYSLOG, true)]));
    // The required channel is tried although it is missing. The other missing channel is skipped.
    let report = with_order(order, false, &config().syslog).log(&Log::new("m"));
    assert_eq!(report.status, FAILED);
    assert_eq!(tried(&report), [(key::PMIX_LOG_LOCAL_SYSLOG, false), (key::PMIX_LOG_JOB_RECORD, true)]);
    let nowhere = denied(with_order("email", false, &available).tool().log(&Log::new("m")).unwrap_err());
    assert_eq!(nowhere.status, Status::ERR_NOT_AVAILABLE);
}

#[test]
#[cfg(not(feature = "mail"))]
fn an_engine_without_a_mail_client_refuses_email_and_says_why() {
    let fixture = fixture(config(), Standalone);
    let report = fixture.log(&Log::to([key::PMIX_LOG_EMAIL, key::PMIX_LOG_JOB_RECORD], "m"));
    assert_eq!(report.status, PARTIAL);
    assert_eq!(tried(&report), [(key::PMIX_LOG_EMAIL, false), (key::PMIX_LOG_JOB_RECORD, true)]);
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert_eq!(failure.status, Status::ERR_NOT_SUPPORTED);
    assert_eq!(failure.reason, "this engine was built without the feature `mail`: use the syslog");
    let found = fixture.tool().query(&[query::PMIX_QUERY_LOG_CHANNELS]).unwrap();
    let Value::Text(channels) = &found[0].value else { panic!("{found:?}") };
    assert!(!channels.contains("email"), "{channels}");
}

#[test]
fn invalid_messages_are_refused_without_side_effects() {
    let fixture = fixture(config(), Standalone);
    let mut tool = fixture.tool();
    let record = |text: String| Log::to([key::PMIX_LOG_JOB_RECORD], &text);
    let huge = tool.log(&record("x".repeat(1 << 20))).unwrap_err();
    assert!(matches!(huge, RequestError::Unsendable(_)), "{huge}");
    assert!(
        huge.to_string().starts_with("1048576 bytes to be logged in one message exceed the limit of 32768")
    );
    let nul = denied(tool.log(&record("a\0b".into())).unwrap_err());
    assert_eq!(nul.status, Status::ERR_BAD_PARAM);
    assert!(nul.reason.contains("NUL byte at offset 1"), "{nul}");
    for directive in [flag("site.unknown"), Info::required(key::PMIX_LOG_SYSLOG_PRI, 8u32)] {
        assert!(tool.log(&with(vec![directive], record("x".into()))).is_err());
    }
    let ignored = tool.log(&with(vec![Info::new("site.unknown", true)], record("x".into()))).unwrap();
    assert_eq!((ignored.status, ignored.ignored), (Status::SUCCESS, vec!["site.unknown".to_owned()]));
    assert_eq!(tool.log(&record("y".repeat(MAX_LOG_TEXT))).unwrap().status, Status::SUCCESS);
    assert_eq!(fixture.record().len(), 2);
}

#[test]
fn the_embedder_logs_without_blocking_and_receives_a_report() {
    let fixture = fixture(config(), Standalone);
    let (sender, reports) = channel();
    let done = move |report| sender.send(report).unwrap();
    fixture.engine.log(&Log::to([key::PMIX_LOG_JOB_RECORD, "site.unknown"], "m"), done).unwrap();
    let report: LogReport = reports.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(report.status, PARTIAL);
    assert!(fixture.record()[0].contains("\"by\":\"engine (pid "), "{:?}", fixture.record());
    let channel = [key::PMIX_LOG_JOB_RECORD];
    let long = "x".repeat(MAX_LOG_TEXT + 1);
    for log in [Log::to([""; 0], "m"), Log::to(channel, &long), Log::to([channel[0]; 17], "m")] {
        let refused = fixture.engine.log(&log, |_| panic!("the message was refused")).unwrap_err();
        assert_eq!(refused.status, Status::ERR_BAD_PARAM, "{refused}");
    }
    assert_eq!(fixture.record().len(), 1);
}

#[test]
fn messages_for_unknown_channels_go_to_the_host_unchanged() {
    let (fixture, requests) = scripted(config());
    let directives = vec![flag("site.credential"), Info::new(key::PMIX_LOG_SYSLOG_PRI, 3u32)];
    let channels = [key::PMIX_LOG_GLOBAL_DATASTORE, "site.new", key::PMIX_LOG_GLOBAL_SYSLOG];
    let log = with(directives.clone(), Log::to(channels, "m"));
    let mut tool = fixture.tool();
    let asking = thread::spawn(move || tool.log(&log).unwrap());
    for channel in channels {
        let (log, reply) = requests.recv_timeout(TIMEOUT).expect("the host receives the message");
        assert_eq!((&log.data, &log.directives), (&vec![LogEntry::new(channel, "m")], &directives));
        match channel {
            key::PMIX_LOG_GLOBAL_DATASTORE => reply.grant(),
            "site.new" => reply.deny(Status::ERR_NO_PERMISSIONS, "not you"),
            // The reply is dropped, which denies the request.
            _ => {}
        }
    }
    let report = asking.join().unwrap();
    assert_eq!(report.status, PARTIAL);
    let results: Vec<Result<(), Status>> =
        report.outcomes.into_iter().map(|outcome| outcome.result.map_err(|failure| failure.status)).collect();
    assert_eq!(results, [Ok(()), Err(Status::ERR_NO_PERMISSIONS), Err(Status::ERR_NOT_AVAILABLE)]);
}

#[test]
fn messages_that_a_host_never_answers_are_limited_per_tool_and_process() {
    let (fixture, requests) = scripted(config());
    // Returns the refusal, or `None` if the message waits for the host.
    let refused = |raw: &mut RawTool| {
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
    let fill = |raw: &mut RawTool| {
        (0..MAX_LOGS_PER_TOOL).for_each(|index| assert_eq!(refused(raw), None, "message {index}"));
    };
    let mut tools: Vec<RawTool> = Vec::new();
    for _ in 0..MAX_LOGS_PER_PROCESS / MAX_LOGS_PER_TOOL {
        let mut raw = RawTool::connect(&fixture.engine);
        fill(&mut raw);
        let failure = refused(&mut raw).unwrap();
        assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
        assert!(failure.reason.contains("MAX_LOGS_PER_TOOL"), "{failure}");
        tools.push(raw);
    }
    let mut raw = RawTool::connect(&fixture.engine);
    let failure = refused(&mut raw).unwrap();
    assert_eq!(failure.status, Status::ERR_RESOURCE_BUSY);
    assert!(failure.reason.contains("MAX_LOGS_PER_PROCESS"), "{failure}");
    // Other requesters are served meanwhile.
    let (sender, reports) = channel();
    let done = move |report| sender.send(report).unwrap();
    fixture.engine.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m"), done).unwrap();
    assert_eq!(reports.recv_timeout(TIMEOUT).unwrap().status, Status::SUCCESS);

    // Messages of disconnected tools count towards no limit, however many tools there were.
    drop(tools);
    for _ in 0..=MAX_LOGS / MAX_LOGS_PER_TOOL {
        iof_testing::wait_for("room", || refused(&mut raw).is_none().then_some(()));
        (1..MAX_LOGS_PER_TOOL).for_each(|index| assert_eq!(refused(&mut raw), None, "message {index}"));
        raw = RawTool::connect(&fixture.engine);
    }
    drop(raw);
    // Answers for disconnected tools are ignored.
    requests.try_iter().for_each(|(_, reply)| reply.grant());
    assert_eq!(fixture.log(&Log::to([key::PMIX_LOG_JOB_RECORD], "m")).status, Status::SUCCESS);
}

#[test]
fn a_required_directive_fails_only_the_channels_that_do_not_support_it() {
    let fixture = fixture(config(), Standalone);
    let job = WaitingJob::start(&fixture);
    let log = |directives| {
        fixture.log(&with(directives, Log::to([key::PMIX_LOG_JOB_RECORD, key::PMIX_LOG_STDERR], "m")))
    };
    for key in [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT] {
        let report = log(vec![flag(key)]);
        assert_eq!(tried(&report), [(key::PMIX_LOG_JOB_RECORD, false), (key::PMIX_LOG_STDERR, true)]);
        let failure = report.outcomes[0].result.as_ref().unwrap_err();
        assert_eq!((report.status, failure.status), (PARTIAL, Status::ERR_NOT_SUPPORTED), "{failure}");
        let report = log(vec![Info::new(key, true)]);
        assert_eq!((report.status, report.ignored), (Status::SUCCESS, vec![]));
        let nowhere = with(vec![Info::new(key, true)], Log::to([key::PMIX_LOG_JOB_RECORD], "m"));
        assert_eq!(fixture.log(&nowhere).ignored, [key]);
    }
    // Every channel supports time stamps.
    let timed = [key::PMIX_LOG_TIMESTAMP_OUTPUT, key::PMIX_LOG_GENERATE_TIMESTAMP].map(flag);
    assert_eq!(log(timed.into()).status, Status::SUCCESS);
    assert_eq!(fixture.record().len(), 5);
    job.end();
}

#[test]
fn a_message_that_its_tags_make_too_long_is_refused() {
    let fixture = fixture(config(), Standalone);
    let job = WaitingJob::start(&fixture);
    let lines = Log::to([key::PMIX_LOG_STDOUT], &"\n".repeat(32_000));
    assert_eq!(fixture.log(&lines).status, Status::SUCCESS);
    let report = fixture.log(&with(vec![flag(key::PMIX_LOG_TAG_OUTPUT)], lines));
    let failure = report.outcomes[0].result.as_ref().unwrap_err();
    assert!(failure.reason.starts_with("with tags the message's 32000 lines are "), "{failure}");
    job.end();
}

#[test]
fn the_record_names_source_and_requester_and_an_old_record_is_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
        Engine::start(changed(Config::new(rendezvous), |it| it.log = config())).unwrap()
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
    iof_testing::engine::wait(&job);
    let text = fs::read_to_string(&record).unwrap();
    let whose = [r#""nspace":null,"#, r#""nspace":"job","#, r#""nspace":"job","#];
    let ranks = [r#""rank":null,"#, r#""rank":null,"#, r#""rank":0,"#];
    let requester = format!(r#""by":"test? (pid {})""#, std::process::id());
    for ((line, nspace), rank) in text.lines().zip(whose).zip(ranks) {
        assert!([nspace, rank, &requester].iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(text.lines().count(), 3);
    drop((job, engine));
    let engine = start();
    log(&engine, vec![]);
    assert_eq!(fs::read_to_string(&record).unwrap().lines().count(), 1);
    assert_eq!(fs::read_to_string(record.with_extension("record.old")).unwrap(), text);
}

#[test]
fn messages_logged_to_a_job_that_fails_to_start_reach_their_readers() {
    let fixture = fixture(config(), Standalone);
    // The file looks like a program until the kernel runs it: the interpreter of its interpreter is
    // missing.
    let [interpreter, bad] = ["interpreter", "bad"].map(|name| fixture.directory.path().join(name));
    for (file, interpreter) in [(&interpreter, Path::new("/no/such/interpreter")), (&bad, &interpreter)] {
        fs::write(file, format!("#!{}\n", interpreter.display())).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let apps = [App::new("true", [""; 0]).ranks(50), App::new(bad, [""; 0])];
    let mut reader = fixture.tool();
    let all = Proc::all(nspace());
    reader.pull(&Pull::new(vec![all], Channels::STDERR)).unwrap();
    let log = with(vec![source(Rank(50))], Log::to([key::PMIX_LOG_STDERR], "early"));
    let mut tool = fixture.tool();
    // Repeats until a message was logged during the start. Otherwise the job leaves no trace.
    let logged = iof_testing::wait_for("a message while the job was being started", || {
        let mut logged = 0;
        thread::scope(|scope| {
            let spawning =
                scope.spawn(|| fixture.engine.spawn(&spec(apps.clone())).expect_err("a bad program"));
            while !spawning.is_finished() {
                logged += usize::from(tool.log(&log).is_ok_and(|report| report.status == Status::SUCCESS));
            }
        });
        (logged > 0).then_some(logged)
    });
    let mut text = Vec::new();
    loop {
        match reader.recv_timeout(TIMEOUT).unwrap().expect("the end of the job") {
            Delivery::Bytes(bytes) => text.extend_from_slice(&bytes),
            Delivery::JobEnded { .. } => break,
            _ => {}
        }
    }
    assert_eq!(String::from_utf8(text).unwrap(), "early\n".repeat(logged));
    assert!(fixture.engine.remove(&nspace()));
}
