//! The lists of jobs and ranks, and the bytes and events of their streams.

use std::fs;
use std::io::Read;
use std::path::Path;

use iof_engine::{App, Config, Engine, JobSpec, Rendezvous};
use iof_testing::engine::{shell, spec, wait};
use iof_testing::wait_for;
use serde_json::{Value, json};

use crate::site::{Event, Server, Site};

/// Starts a job of one rank, which ends when the engine does at the latest, and waits for its first bytes.
fn start(site: &Site, script: &str) {
    site.spawn(&spec([shell(&format!("{script}; exec sleep 1000"))]));
    wait_for("the output", || (stream(site)["produced"] != 0).then_some(()));
}

/// Returns the counters of stdout of rank 0.
fn stream(site: &Site) -> Value {
    let job = site.server.json("/jobs/job");
    let streams = job["streams"].as_array().unwrap();
    streams.iter().find(|one| one["rank"] == 0 && one["channel"] == "stdout").cloned().unwrap_or(Value::Null)
}

#[test]
fn jobs_are_listed_with_the_states_of_their_ranks_and_the_counters_of_their_streams() {
    let site = Site::new(&[]);
    assert_eq!(site.server.json("/jobs"), json!({ "jobs": [], "allowed": [] }));
    let script = "echo $IOF_RANK; test $IOF_RANK = 0 || exit 3; exec sleep 1000";
    site.spawn(&spec([shell(script).ranks(2)]));
    let listed = wait_for("the exit", || {
        let listed = site.server.json("/jobs/job");
        (listed["ranks"][1]["state"] == "failed" && listed["streams"][0]["produced"] == 2).then_some(listed)
    });
    assert_eq!(listed["ranks"][0]["state"], "running");
    assert_eq!(listed["ranks"][1]["exit_code"], 3);
    assert_eq!(listed["streams"][0]["cached"], 2);
    let jobs = site.server.json("/jobs");
    assert_eq!((&jobs["jobs"][0]["job"], &jobs["jobs"][0]["state"]), (&json!("job"), &json!("running")));
    for path in [
        "/jobs/none",
        "/jobs/job?engine=1",
        "/jobs/job/ranks/7/stdout",
        "/jobs/job/ranks/7/stdout?follow=true",
        "/jobs/job/ranks/4294967294/stdout?follow=true",
        "/jobs/job/ranks/4294967295/stdout?follow=true",
    ] {
        assert_eq!(site.server.get(path).status, 404, "{path}");
    }
    for path in [
        "/jobs/job?x=1",
        "/jobs/job/ranks/0/stdin",
        "/jobs/job/ranks/x/stdout",
        "/jobs/job/ranks/0/stdout?offset=-1",
        "/jobs/job/ranks/0/stdout?offset=1&tail=1",
        "/jobs/job/ranks/0/stdout?offset=1&offset=2",
        "/jobs/job/events?ranks=2-1",
        "/jobs/job/events?channels=all",
        "/jobs/job/events?tail=0",
    ] {
        let answer = site.server.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (400, "application/json"), "{path}");
        assert!(answer.json()["error"].is_string(), "{path}");
    }
    for (request, status) in [("GET /none", 404), ("PUT /jobs", 405)] {
        let answer = site.server.request(request, &[], b"");
        assert_eq!(answer.status, status, "{request}");
        assert!(answer.json()["error"].is_string(), "{request}");
    }
}

#[test]
fn the_bytes_of_a_stream_are_exact_as_a_whole_in_parts_and_in_ranges() {
    let site = Site::new(&[]);
    start(&site, "printf 'one\\ntwo\\nthr\\377ee\\n'");
    let all = b"one\ntwo\nthr\xffee\n";
    let path = "/jobs/job/ranks/0/stdout";
    for (query, range, status, offset) in [
        ("", "", 200, 0),
        ("?offset=5", "", 200, 5),
        ("?offset=15", "", 200, 15),
        ("?tail=2", "", 200, 4),
        ("?tail=9", "", 200, 0),
        ("", "bytes=2-5", 206, 2),
        ("", "bytes=-4", 206, 11),
        ("", "bytes=4-", 206, 4),
        ("", "lines=1-2", 200, 0),
    ] {
        let answer = site.server.request(&format!("GET {path}{query}"), &[&format!("Range: {range}")], b"");
        assert_eq!(
            (answer.status, answer.header("iof-offset")),
            (status, &*offset.to_string()),
            "{query} {range}"
        );
        let end = if range == "bytes=2-5" { 6 } else { all.len() };
        if status == 206 {
            assert_eq!(answer.header("content-range"), format!("bytes {offset}-{}/*", end - 1));
        }
        assert_eq!(answer.bytes().unwrap(), &all[offset..end], "{query} {range}");
    }
    let beyond = [
        site.server.get(&format!("{path}?offset=16")),
        site.server.request(&format!("GET {path}"), &["Range: bytes=15-"], b""),
    ];
    for answer in beyond {
        assert_eq!((answer.status, answer.header("content-range")), (416, "bytes */15"));
    }
}

#[test]
fn a_follower_gets_all_bytes_up_to_the_end_of_the_stream() {
    let site = Site::new(&[]);
    let gate = site.directory.path().join("gate");
    let wait_at_gate = format!("while ! test -e {}; do sleep 0.02; done", gate.display());
    site.spawn(&spec([shell(&format!("echo one; {wait_at_gate}; echo two"))]));
    let mut answer = site.server.get("/jobs/job/ranks/0/stdout?follow=true");
    let mut first = [0; 4];
    answer.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"one\n");
    let beyond = site.server.get("/jobs/job/ranks/0/stdout?follow=true&offset=99");
    fs::write(gate, "").unwrap();
    assert_eq!(answer.bytes().unwrap(), b"two\n");
    // The stream ends before the first byte that was asked for.
    assert!(beyond.bytes().is_err());
}

/// Bytes that do not fit into the cache.
fn overflow(site: &Site) -> u64 {
    start(site, "head -c 3000000 /dev/zero | tr '\\0' x");
    wait_for("all bytes", || (stream(site)["produced"] == 3_000_000).then_some(()));
    3_000_000 - stream(site)["cached"].as_u64().unwrap()
}

#[test]
fn an_offset_that_is_no_longer_cached_is_an_error_with_the_oldest_one_and_events_count_what_is_lost() {
    let site = Site::new(&[]);
    let oldest = overflow(&site);
    assert!(oldest > 1, "the cache has all bytes");
    for (query, range) in [("?offset=1", ""), ("?offset=1&follow=true", ""), ("", "bytes=1-7")] {
        let request = format!("GET /jobs/job/ranks/0/stdout{query}");
        let answer = site.server.request(&request, &[&format!("Range: {range}")], b"");
        assert_eq!(answer.status, 410, "{query} {range}");
        let body = answer.json();
        assert_eq!((&body["asked"], &body["oldest"]), (&json!(1), &json!(oldest)), "{query} {range}");
    }
    let answer = site.server.get("/jobs/job/ranks/0/stdout");
    assert_eq!((answer.status, answer.header("iof-offset")), (200, &*oldest.to_string()));
    assert_eq!(answer.bytes().unwrap().len() as u64, 3_000_000 - oldest);
    let mut events = site.server.get("/jobs/job/events?channels=stdout");
    let gap = events.event().unwrap().unwrap();
    assert_eq!((&*gap.name, gap.number("offset"), gap.number("lost")), ("gap", 0, oldest));
    let run = gap.id.unwrap().split_once(':').unwrap().0.to_owned();
    let last = format!("Last-Event-ID: {run}:0.stdout.1000");
    let mut events = site.server.request("GET /jobs/job/events?channels=stdout", &[&last], b"");
    let gap = events.event().unwrap().unwrap();
    assert_eq!((&*gap.name, gap.number("offset"), gap.number("lost")), ("gap", 1000, oldest - 1000));
}

#[test]
fn events_have_all_output_the_ends_of_streams_and_the_exit_code_of_the_job() {
    let site = Site::new(&[]);
    let script = "echo out; printf '\\033[1m<b>\\377' >&2; exec >&- 2>&-; sleep 0.5; exit 3";
    let job = site.spawn(&spec([shell(script)]));
    let mut answer = site.server.get("/jobs/job/events?channels=stdout,stderr");
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let mut events: Vec<Event> = Vec::new();
    while let Some(event) = answer.event().unwrap() {
        events.push(event);
    }
    let of = |name: &str, channel: &str| {
        let mut found = events.iter().filter(|event| event.name == name && event.data["channel"] == channel);
        found.next().unwrap_or_else(|| panic!("no {name} of {channel} in {events:?}"))
    };
    assert_eq!(of("output", "stdout").bytes(), b"out\n");
    assert_eq!(of("output", "stderr").bytes(), b"\x1b[1m<b>\xff");
    assert_eq!(
        of("end", "stdout").data,
        json!({ "rank": 0, "channel": "stdout", "logged": false, "offset": 4, "missing": 0 })
    );
    let exit = events.last().unwrap();
    assert_eq!((&*exit.name, &exit.data), ("exit", &json!({ "exit_code": 3 })));
    // A job that failed has ended, too.
    assert_eq!(site.server.json("/jobs/job")["state"], "ended");
    let last = format!("Last-Event-ID: {}", exit.id.as_ref().unwrap());
    assert_eq!(site.server.request("GET /jobs/job/events", &[&last], b"").status, 204);
    let (run, _) = exit.id.as_ref().unwrap().split_once(':').unwrap();
    for (offset, status) in [(4, 200), (5, 416)] {
        let last = format!("Last-Event-ID: {run}:0.stdout.{offset}");
        assert_eq!(site.server.request("GET /jobs/job/events", &[&last], b"").status, status, "{offset}");
    }
    wait(&job);
}

#[test]
fn stdin_and_signals_need_to_be_allowed() {
    let site = Site::new(&[]);
    for path in ["stdin", "signal?signal=TERM"] {
        assert_eq!(site.server.request(&format!("POST /jobs/job/{path}"), &[], b"").status, 403, "{path}");
    }
    drop(site);
    let site = Site::new(&["--allow", "stdin,signals"]);
    let mut job = spec([shell("trap 'echo trapped; exit 0' USR1; cat; while :; do sleep 0.1; done")]);
    job.stdin = [(iof_proto::Rank(0), iof_engine::Stdin::Pipe)].into();
    let job = site.spawn(&job);
    let pushed = site.server.request("POST /jobs/job/stdin?ranks=0&complete=true", &[], b"hello\n");
    assert_eq!(pushed.json(), json!({ "bytes": 6, "complete": 1, "partial": [] }));
    wait_for("the bytes", || (stream(&site)["produced"] == 6).then_some(()));
    let sent = site.server.request("POST /jobs/job/signal?signal=USR1", &[], b"");
    assert_eq!(sent.status, 200);
    wait(&job);
    assert_eq!(site.server.request("POST /jobs/job/signal?signal=USR1", &[], b"").status, 409);
    assert_eq!(site.server.request("POST /jobs/job/signal?signal=NONE", &[], b"").status, 400);
    assert_eq!(site.server.request("POST /jobs/job/stdin", &[], &[0; (1 << 20) + 1]).status, 413);
}

#[test]
fn a_push_of_which_a_rank_takes_a_part_fails_with_its_report() {
    let site = Site::new(&["--allow", "stdin"]);
    let mut job = spec([shell("head -c 1; exec <&-; exec sleep 1000")]);
    job.stdin = [(iof_proto::Rank(0), iof_engine::Stdin::Pipe)].into();
    site.spawn(&job);
    let bytes = vec![b'x'; 1 << 20];
    let pushed = site.server.request("POST /jobs/job/stdin?ranks=0&complete=true", &[], &bytes);
    assert_eq!(pushed.status, 409);
    let (report, error) = (pushed.json(), "some ranks did not get all bytes");
    assert_eq!((&report["complete"], &report["error"]), (&json!(0), &json!(error)), "{report}");
    assert_eq!(report["partial"].as_array().map(Vec::len), Some(1), "{report}");
}

#[test]
fn only_the_chosen_jobs_are_served_and_those_of_the_system_only_if_asked_for() {
    let site = Site::new(&["other-*"]);
    start_named(&site, &site.engine, "job");
    start_named(&site, &site.engine, "other-1");
    let system = Engine::start(Config::new(Rendezvous::System(Some(site.directory.path().into())))).unwrap();
    start_named(&site, &system, "other-2");
    let served = |server: &Server| -> Vec<String> {
        let jobs = server.json("/jobs");
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(served(&site.server), ["other-1"]);
    for path in ["/jobs/job", "/jobs/other-2", "/jobs/job/events", "/jobs/job/ranks/0/stdout"] {
        assert_eq!(site.server.get(path).status, 404, "{path}");
    }
    let site_of_all = Server::start(Path::new(site.directory.path()), &["--port", "0", "--system"]);
    let mut all = served(&site_of_all);
    all.sort();
    assert_eq!(all, ["job", "other-1", "other-2"]);
}

fn start_named(site: &Site, engine: &Engine, name: &str) {
    let spec = JobSpec::new(name.parse().unwrap(), vec![App::new("sleep", ["1000"])]);
    site.keep(engine.spawn(&spec).unwrap());
}
