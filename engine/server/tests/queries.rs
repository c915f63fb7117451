//! Queries: the engine's own answers, its host's additions and unknown keys.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use iof_engine::{Config, Engine, Grant, Host, QueryReply};
use iof_proto::attribute::{self, Place, ValueType};
use iof_proto::limits::{MAX_ANSWER, MAX_FAILURE_REASON, MAX_QUERIES_PER_TOOL, STATS_AGE};
use iof_proto::query::key;
use iof_proto::{
    Answer, Attributes, Channel, Failure, Found, FromTool, Info, JobInfo, Nspace, Proc, ProcInfo, ProcState,
    Query, Rank, Status, ToTool, Value,
};
use iof_testing::TIMEOUT;
use iof_testing::engine::raw::RawTool;
use iof_testing::engine::{changed, nspace, run, session_with, shell, spec};
use iof_tool::{Delivery, Reply, RequestError, Tool};
use tempfile::TempDir;

/// A host that passes each request to the test, which answers it.
struct ScriptedHost {
    requests: Mutex<Sender<(Vec<Query>, QueryReply)>>,
}

impl Host for ScriptedHost {
    fn directives(&self) -> Vec<String> {
        vec!["site.credential".into()]
    }

    fn queries(&self) -> Vec<String> {
        vec![key::PMIX_QUERY_PROC_TABLE.into(), key::PMIX_QUERY_NAMESPACES.into()]
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        // The test may have ended already.
        let _ = self.requests.lock().unwrap().send((queries.to_vec(), reply));
    }
}

struct Fixture {
    engine: Engine,
    requests: Receiver<(Vec<Query>, QueryReply)>,
    _directory: TempDir,
}

fn fixture() -> Fixture {
    let (sender, requests) = channel();
    let host = Arc::new(ScriptedHost { requests: Mutex::new(sender) });
    let (engine, _directory) = session_with(Config::default(), host);
    Fixture { engine, requests, _directory }
}

impl Fixture {
    /// Sends `queries` as a new tool, and answers the host's part with `answer`. Returns the
    /// queries that the host received and the tool's answer.
    fn ask(
        &self,
        queries: Vec<Query>,
        answer: impl FnOnce(QueryReply),
    ) -> (Vec<Query>, Result<Answer, RequestError>) {
        let mut tool = Tool::connect(self.engine.socket().unwrap(), "test").unwrap();
        let asking = thread::spawn(move || tool.queries(queries));
        let (received, reply) = self.requests.recv_timeout(TIMEOUT).expect("the host receives the queries");
        answer(reply);
        (received, asking.join().unwrap())
    }
}

fn own(engine: &Engine, queries: Vec<Query>) -> Result<Answer, Failure> {
    engine.attach("test", Grant::Never).unwrap().queries(queries).map_err(denied)
}

fn denied(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => failure,
        other => panic!("{other}"),
    }
}

fn query_for(key: &str, qualifiers: Vec<Info>) -> Query {
    Query { qualifiers, ..Query::new([key]) }
}

fn value(engine: &Engine, query: Query) -> Value {
    let Answer { status, mut found } = own(engine, vec![query]).unwrap();
    assert_eq!((status, found.len()), (Status::SUCCESS, 1));
    found.remove(0).value
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn qualifiers_select_jobs_and_ranks() {
    let engine = iof_testing::engine::engine();
    run(&engine, &spec([shell(":").ranks(3)]));
    let other = Nspace::new("other").unwrap();
    engine.spawn(&iof_engine::JobSpec::new(other.clone(), vec![shell("exit 3")])).unwrap().wait();

    let procs = |qualifiers| match value(&engine, query_for(key::PMIX_QUERY_PROC_TABLE, qualifiers)) {
        Value::Procs(procs) => procs.into_iter().map(|info| info.proc.to_string()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let rank = |rank: u32| Info::required(key::PMIX_RANK, rank);
    let name = |name: &str| Info::required(key::PMIX_NSPACE, name);
    assert_eq!(procs(vec![]), ["job.0", "job.1", "job.2", "other.0"]);
    assert_eq!(procs(vec![name("other")]), ["other.0"]);
    assert_eq!(procs(vec![name("job"), rank(0), rank(2)]), ["job.0", "job.2"]);
    assert_eq!(procs(vec![rank(0)]), ["job.0", "other.0"]);
    assert_eq!(procs(vec![name("job"), rank(Rank::WILDCARD.0)]), ["job.0", "job.1", "job.2"]);
    assert_eq!(procs(vec![Info::new("site.optional", true), name("other")]), ["other.0"]);
    let proc = Info {
        key: key::PMIX_PROCID.into(),
        value: iof_proto::InfoValue::Proc(Proc::new(nspace(), Rank(1))),
        required: true,
    };
    assert_eq!(procs(vec![proc.clone()]), ["job.1"]);
    let Value::Streams(streams) = value(&engine, query_for(key::IOF_QUERY_STATS, vec![proc.clone()])) else {
        panic!()
    };
    assert_eq!(streams.len(), Channel::OUTPUTS.len());

    let status = |qualifiers| value(&engine, query_for(key::PMIX_QUERY_JOB_STATUS, qualifiers));
    assert_eq!(status(vec![name("job")]), Value::Status(Status::EVENT_JOB_END));
    assert_eq!(status(vec![name("other")]), Value::Status(Status::ERR_JOB_NON_ZERO_TERM));
    let job = JobInfo {
        nspace: other,
        procs: 1,
        status: Status::ERR_JOB_NON_ZERO_TERM,
        exit_code: Some(3),
        command: "sh".into(),
        run: 0,
    };
    let run = |name: &str| {
        let qualifiers = vec![Info::new(key::PMIX_NSPACE, name)];
        match value(&engine, query_for(key::PMIX_QUERY_NAMESPACE_INFO, qualifiers)) {
            Value::Jobs(mut jobs) => (jobs[0].run, JobInfo { run: 0, ..jobs.remove(0) }),
            value => panic!("{value:?}"),
        }
    };
    assert_eq!(run("other").1, job);
    assert!(run("other").0 == run("other").0 && run("other").0 != run("job").0);

    assert_eq!(status(vec![name("job"), rank(2)]), Value::Status(Status::EVENT_JOB_END));
    let size = value(&engine, query_for(key::PMIX_JOB_SIZE, vec![name("job")]));
    assert_eq!(size, Value::Infos(vec![Info::new(key::PMIX_JOB_SIZE, 3u32)]));
    // The status of several jobs is a list.
    let Value::Jobs(jobs) = status(vec![name("job"), name("other")]) else { panic!() };
    let jobs: Vec<_> = jobs.iter().map(|job| (job.nspace.as_str(), job.status)).collect();
    assert_eq!(jobs, [("job", Status::EVENT_JOB_END), ("other", Status::ERR_JOB_NON_ZERO_TERM)]);
    let names = |qualifiers| value(&engine, query_for(key::PMIX_QUERY_NAMESPACES, qualifiers));
    assert_eq!(names(vec![]), text(""), "both jobs have ended");
    let running = Nspace::new("running").unwrap();
    let running = engine.spawn(&iof_engine::JobSpec::new(running, vec![shell("exec sleep 1000")])).unwrap();
    assert_eq!(names(vec![]), text("running"));
    assert_eq!(names(vec![rank(0)]), text("running"));
    assert_eq!(names(vec![rank(2)]), text(""));
    assert_eq!(names(vec![name("other")]), text(""));
    running.signal(iof_engine::Signal::KILL);
    running.wait();
    assert!(engine.remove(running.nspace()));
    assert!(matches!(
        value(&engine, query_for(key::PMIX_QUERY_LOG_CHANNELS, vec![name("job")])),
        Value::Text(_)
    ));

    // One key requires a single job, but two match: the other key is answered.
    let keys = [key::PMIX_QUERY_JOB_STATUS, key::PMIX_QUERY_NAMESPACES];
    let Answer { status, found } = own(&engine, vec![Query::new(keys)]).unwrap();
    let found: Vec<&str> = found.iter().map(|found| found.key.as_str()).collect();
    assert_eq!((status, &found[..]), (Status::ERR_PARTIAL_SUCCESS, &keys[1..]));

    let refused = |query| own(&engine, vec![query]).unwrap_err().status;
    let bad = [
        // Requires a single job, but two match.
        query_for(key::PMIX_QUERY_JOB_STATUS, vec![]),
        query_for(key::PMIX_JOB_SIZE, vec![]),
        query_for(key::PMIX_LOCAL_PEERS, vec![name("job"), name("other")]),
        query_for(key::PMIX_QUERY_PROC_TABLE, vec![name("a/b")]),
        query_for(key::PMIX_QUERY_PROC_TABLE, vec![Info::new(key::PMIX_RANK, "0")]),
        query_for(key::PMIX_QUERY_PROC_TABLE, vec![proc.clone(), name("job")]),
        query_for(key::PMIX_QUERY_PROC_TABLE, vec![proc, rank(1)]),
    ];
    for query in bad {
        assert_eq!(refused(query.clone()), Status::ERR_BAD_PARAM, "{query:?}");
    }
    let unknown = [
        query_for(key::PMIX_QUERY_PROC_TABLE, vec![name("no-job")]),
        query_for(key::PMIX_QUERY_JOB_STATUS, vec![name("no-job")]),
        query_for(key::IOF_QUERY_STATS, vec![rank(77)]),
        query_for(key::PMIX_QUERY_JOB_STATUS, vec![name("job"), rank(7)]),
        query_for(key::PMIX_QUERY_NAMESPACE_INFO, vec![name("other"), rank(2)]),
        query_for(key::PMIX_QUERY_NAMESPACES, vec![name("no-job")]),
        query_for(key::PMIX_QUERY_LOG_CHANNELS, vec![name("no-job")]),
        query_for(key::PMIX_QUERY_ATTRIBUTE_SUPPORT, vec![rank(77)]),
        query_for(key::PMIX_QUERY_NAMESPACES, vec![Info::required("site.required", true)]),
        Query::new([key::PMIX_QUERY_QUEUE_LIST, key::PMIX_QUERY_QUEUE_STATUS]),
        Query::new([""; 0]),
    ];
    for query in unknown {
        assert_eq!(refused(query.clone()), Status::ERR_NOT_FOUND, "{query:?}");
    }
}

#[test]
fn a_job_counts_as_started_until_all_its_ranks_have_ended_everywhere() {
    let engine = iof_testing::engine::engine();
    let status = || value(&engine, Query::new([key::PMIX_QUERY_JOB_STATUS]));
    let job = changed(spec([shell("kill -9 $$")]), |job| job.elsewhere = true);
    let remote = Proc::new(nspace(), Rank(7));
    engine.spawn(&job).unwrap().wait();
    engine.deliver(&remote, Channel::Stdout, b"far\n".to_vec(), &[], || {}).unwrap();
    assert_eq!(status(), Value::Status(Status::EVENT_JOB_START));
    let Value::Procs(procs) = value(&engine, Query::new([key::PMIX_QUERY_PROC_TABLE])) else { panic!() };
    assert_eq!((procs.len(), &procs[1].proc, procs[1].state), (2, &remote, ProcState::Unknown));
    let local = value(&engine, Query::new([key::PMIX_QUERY_LOCAL_PROC_TABLE]));
    assert_eq!(local, Value::Procs(vec![procs[0].clone()]));
    engine.end_job(&nspace(), None);
    assert_eq!(status(), Value::Status(Status::ERR_JOB_ABORTED_BY_SIG));
}

#[test]
fn local_processes_are_those_of_this_node_or_of_the_nodes_that_the_host_knows() {
    let fixture = fixture();
    let job = changed(spec([shell(":").ranks(2)]), |job| job.elsewhere = true);
    iof_testing::engine::wait(&fixture.engine.spawn(&job).unwrap());
    let far = Proc::new(nspace(), Rank(5));
    fixture.engine.deliver(&far, iof_proto::Channel::Stdout, b"far".to_vec(), &[], || {}).unwrap();
    let name = || Info::required(key::PMIX_NSPACE, "job");
    let procs = |value| match value {
        Value::Procs(procs) => procs.into_iter().map(|info| info.proc.to_string()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let engine = &fixture.engine;
    let here = value(engine, query_for(key::PMIX_LOCAL_PROCS, vec![name()]));
    let Value::Procs(table) = &here else { panic!() };
    let node = Info::required(key::PMIX_HOSTNAME, table[0].host.as_str());
    assert_eq!(procs(here), ["job.0", "job.1"]);
    let by_name = query_for(key::PMIX_LOCAL_PROCS, vec![node.clone()]);
    assert_eq!(procs(value(engine, by_name)), ["job.0", "job.1"]);
    assert_eq!(value(engine, query_for(key::PMIX_LOCAL_PEERS, vec![name(), node.clone()])), text("0,1"));
    assert_eq!(
        procs(value(engine, query_for(key::PMIX_QUERY_LOCAL_PROC_TABLE, vec![node]))),
        ["job.0", "job.1"]
    );
    // Other nodes, and numbers of nodes, are known to the host only.
    for qualifier in [Info::required(key::PMIX_HOSTNAME, "n7"), Info::new(key::PMIX_NODEID, 5u32)] {
        let query = query_for(key::PMIX_LOCAL_PEERS, vec![name(), qualifier]);
        let (received, answer) = fixture.ask(vec![query.clone()], |reply| {
            reply.answer(vec![Found { query: 0, key: key::PMIX_LOCAL_PEERS.into(), value: text("5") }]);
        });
        assert_eq!((received, &answer.unwrap().found[0].value), (vec![query], &text("5")));
    }
}

#[test]
fn the_engines_node_has_number_0_and_all_processes_until_others_are_known() {
    let fixture = fixture();
    run(&fixture.engine, &spec([shell(":").ranks(2)]));
    let node = |number: u32| vec![Info::required(key::PMIX_NODEID, number)];
    let size = |qualifiers| value(&fixture.engine, query_for(key::PMIX_UNIV_SIZE, qualifiers));
    let found = |size: u32| Value::Infos(vec![Info::new(key::PMIX_UNIV_SIZE, size)]);
    assert_eq!(size(node(0)), found(2));
    let peers = |number| query_for(key::PMIX_LOCAL_PEERS, node(number));
    assert_eq!(value(&fixture.engine, peers(0)), text("0,1"));
    let is_asked = |query: Query| fixture.ask(vec![query.clone()], drop).0 == [query];
    assert!(is_asked(peers(1)));
    let far = Proc::new(Nspace::new("far").unwrap(), Rank(7));
    fixture.engine.deliver(&far, Channel::Stdout, b"far".to_vec(), &[], || {}).unwrap();
    assert!(is_asked(peers(0)));
    assert_eq!(size(Vec::new()), found(3));
}

#[test]
fn several_queries_are_answered_together_with_their_indices() {
    let engine = iof_testing::engine::engine();
    run(&engine, &spec([shell(":")]));
    let queries = vec![
        Query::new([key::PMIX_QUERY_NAMESPACES, "no.such.key", key::PMIX_QUERY_NAMESPACES]),
        Query::new(["no.such.key"]),
        Query::new([key::PMIX_QUERY_JOB_STATUS]),
    ];
    let found = |query, key: &str, value| Found { query, key: key.into(), value };
    let wanted = vec![
        found(0, key::PMIX_QUERY_NAMESPACES, text("")),
        found(2, key::PMIX_QUERY_JOB_STATUS, Value::Status(Status::EVENT_JOB_END)),
    ];
    let answer = own(&engine, queries).unwrap();
    assert_eq!(answer, Answer { status: Status::ERR_PARTIAL_SUCCESS, found: wanted });
}

#[test]
fn the_host_answers_what_the_engine_does_not_know() {
    let fixture = fixture();
    let queue = Query {
        qualifiers: vec![Info::required("pmix.alloc.queue", "night")],
        ..Query::new([key::PMIX_QUERY_QUEUE_STATUS, key::PMIX_QUERY_ATTRIBUTE_SUPPORT])
    };
    let queries =
        vec![Query::new([key::PMIX_QUERY_LOCAL_PROC_TABLE]), queue.clone(), Query::new(["site.colour"])];
    let (received, answer) = fixture.ask(queries, |reply| {
        let all = [(0, key::PMIX_QUERY_QUEUE_STATUS, "full"), (1, "site.colour", "red"), (1, "unasked", "x")];
        let found =
            |(query, key, value): (u32, &str, &str)| Found { query, key: key.into(), value: text(value) };
        reply.answer(all.map(found).into_iter().chain([found((9, "site.colour", "x"))]).collect());
    });
    assert_eq!(received, [queue, Query::new(["site.colour"])]);
    let Answer { status, found } = answer.unwrap();
    let found: Vec<(u32, &str)> = found.iter().map(|found| (found.query, found.key.as_str())).collect();
    let wanted =
        [(0, key::PMIX_QUERY_LOCAL_PROC_TABLE), (1, key::PMIX_QUERY_QUEUE_STATUS), (2, "site.colour")];
    assert_eq!((status, &found[..]), (Status::ERR_PARTIAL_SUCCESS, &wanted[..]));
}

#[test]
fn answers_of_the_engine_and_its_host_are_combined() {
    let fixture = fixture();
    run(&fixture.engine, &spec([shell(":")]));
    let remote = Proc::new(Nspace::new("far").unwrap(), Rank(0));
    fixture.engine.deliver(&remote, Channel::Stdout, b"far\n".to_vec(), &[], || {}).unwrap();
    let row = |proc: &Proc, pid| ProcInfo {
        pid,
        host: "n2".into(),
        executable: "air".into(),
        ..ProcInfo::new(proc.clone(), ProcState::Running)
    };
    let local_proc = Proc::new(nspace(), Rank(0));
    let theirs = vec![row(&local_proc, 1), row(&remote, 22)];
    let queries = vec![Query::new([key::PMIX_QUERY_PROC_TABLE, key::PMIX_QUERY_NAMESPACES])];
    let (received, answer) = fixture.ask(queries.clone(), |reply| {
        let found = |key: &str, value| Found { query: 0, key: key.into(), value };
        reply.answer(vec![
            found(key::PMIX_QUERY_PROC_TABLE, Value::Procs(theirs)),
            found(key::PMIX_QUERY_NAMESPACES, text("job,third")),
        ]);
    });
    assert_eq!(received, queries);
    let Answer { status, found } = answer.unwrap();
    let Value::Procs(procs) = &found[0].value else { panic!("{found:?}") };
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(procs[0], row(&remote, 22), "only the host knows it");
    assert_eq!(
        (procs.len(), procs[1].state),
        (2, ProcState::Terminated),
        "the engine's own answer takes precedence"
    );
    assert_eq!(found[1].value, text("far,job,third"));

    // The engine's own part remains, whatever the host answers.
    for deny in [true, false] {
        let (_, answer) = fixture.ask(queries.clone(), |reply| {
            if deny {
                reply.deny(Status::ERR_NO_PERMISSIONS, "no");
            }
        });
        assert_eq!(answer.unwrap().status, Status::SUCCESS);
    }
    let (_, answer) =
        fixture.ask(vec![Query::new(["site.colour"])], |reply| reply.deny(Status::ERR_NO_PERMISSIONS, "no"));
    assert_eq!(denied(answer.unwrap_err()).status, Status::ERR_NO_PERMISSIONS);
}

#[test]
fn a_reason_of_the_host_that_exceeds_the_limit_of_messages_is_cut() {
    let fixture = fixture();
    let reason = "ü".repeat(MAX_ANSWER);
    let (_, answer) = fixture.ask(vec![Query::new(["site.colour"])], |reply| {
        reply.deny(Status::ERR_NO_PERMISSIONS, reason.as_str());
    });
    let failure = denied(answer.unwrap_err());
    assert_eq!(failure.status, Status::ERR_NO_PERMISSIONS);
    assert_eq!(failure.reason.matches('ü').count(), MAX_FAILURE_REASON / 'ü'.len_utf8());
}

#[test]
fn a_host_that_never_answers_blocks_no_other_tool_and_uses_bounded_memory() {
    let fixture = fixture();
    let mut raw = RawTool::connect(&fixture.engine);
    raw.sync();
    let ask = |request| FromTool::Query { request, queries: vec![Query::new(["site.colour"])] };
    let limit = u32::try_from(MAX_QUERIES_PER_TOOL).unwrap();
    (0..=limit).for_each(|request| raw.send(&ask(100 + request)));
    let ToTool::Answer { request, result: Err(failure) } = raw.receive() else { panic!() };
    assert_eq!((request, failure.status), (100 + limit, Status::ERR_RESOURCE_BUSY));
    let replies: Vec<QueryReply> = (0..limit)
        .map(|_| fixture.requests.recv_timeout(TIMEOUT).expect("the host receives the query").1)
        .collect();
    // Other tools are served meanwhile, and so is this one.
    let (_, answer) = fixture.ask(vec![Query::new([key::PMIX_QUERY_NAMESPACES])], drop);
    assert_eq!(answer.unwrap().found[0].value, text(""));
    raw.sync();
    // Answers for a tool that has disconnected are dropped.
    drop(raw);
    let (_, answer) = fixture.ask(vec![Query::new([key::PMIX_QUERY_NAMESPACES])], drop);
    answer.unwrap();
    replies.into_iter().for_each(|reply| reply.answer(vec![]));
    let (_, answer) = fixture.ask(vec![Query::new([key::PMIX_QUERY_NAMESPACES])], drop);
    answer.unwrap();
}

#[test]
fn attributes_are_listed_with_those_of_the_host() {
    let fixture = fixture();
    let Value::Attributes(all) = value(&fixture.engine, Query::new([key::PMIX_QUERY_ATTRIBUTE_SUPPORT]))
    else {
        panic!()
    };
    let places = [
        ("PMIx_IOF_pull", Place::Pull),
        ("PMIx_IOF_push", Place::Push),
        ("PMIx_Query_info", Place::Qualifier),
        ("PMIx_Log", Place::LogDirective),
    ];
    let expected = places.map(|(function, place)| {
        let mut keys: Vec<String> = attribute::at(place).map(|attribute| attribute.key.into()).collect();
        // The host's directives are not qualifiers.
        keys.extend((place != Place::Qualifier).then(|| "site.credential".into()));
        keys.sort();
        Attributes { function: function.into(), keys }
    });
    assert_eq!(all, expected);
}

#[test]
fn each_query_key_of_the_table_has_its_type_and_only_queues_need_a_host() {
    let engine = iof_testing::engine::engine();
    run(&engine, &spec([shell(":")]));
    for attribute in attribute::at(Place::Query) {
        let kind =
            match own(&engine, vec![Query::new([attribute.key])]).map(|mut all| all.found.remove(0).value) {
                Ok(Value::Text(_)) if attribute.types == [ValueType::Names] => ValueType::Names,
                Ok(Value::Text(_)) => ValueType::Text,
                Ok(Value::Status(_)) => ValueType::Status,
                Ok(Value::Procs(_)) => ValueType::Processes,
                Ok(Value::Jobs(_)) => ValueType::Jobs,
                Ok(Value::Streams(_)) => ValueType::Streams,
                Ok(Value::Attributes(_)) => ValueType::Attributes,
                Ok(Value::Infos(infos)) if infos[0].key == attribute.key => ValueType::Number,
                Ok(Value::Infos(_)) => ValueType::Any,
                Err(failure) => {
                    let queues = [key::PMIX_QUERY_QUEUE_LIST, key::PMIX_QUERY_QUEUE_STATUS];
                    assert!(queues.contains(&attribute.key), "{}: {failure}", attribute.key);
                    continue;
                }
            };
        assert_eq!(attribute.types[0], kind, "{}", attribute.key);
    }
}

#[test]
fn many_tools_that_query_counters_share_one_read_of_the_streams() {
    let fixture = fixture();
    let job = fixture.engine.spawn(&spec([shell("exec yes")])).unwrap();
    let mut tool = Tool::connect(fixture.engine.socket().unwrap(), "test").unwrap();
    let began = Instant::now();
    for _ in 0..500 {
        tool.submit_query(vec![Query::new([key::IOF_QUERY_STATS])]).unwrap();
    }
    let mut figures = BTreeSet::new();
    for _ in 0..500 {
        let Some(Delivery::Reply { reply: Reply::Answered(Ok(answer)), .. }) =
            tool.recv_timeout(TIMEOUT).unwrap()
        else {
            panic!("expected an answer")
        };
        let Value::Streams(streams) = &answer.found[0].value else { panic!("{answer:?}") };
        figures.insert(streams.iter().map(|stream| stream.produced).collect::<Vec<_>>());
    }
    // One read each 10 ms, and those caused by the first bytes and the rank's start.
    let most = began.elapsed().as_millis() / STATS_AGE.as_millis() + 6;
    job.signal(iof_engine::Signal::KILL);
    assert!((figures.len() as u128) < most, "{} reads, expected fewer than {most}", figures.len());
}
