//! `iof query`: correct answers while the job runs and after its ranks have ended.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_engine::{Config, Engine, Host, QueryReply, Rendezvous};
use iof_proto::query::key;
use iof_proto::{self as proto, Channels, Found, Info, Nspace, Proc, Query};
use iof_testing::command::site::{Site, found, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Process;
use iof_testing::wait_for;
use iof_tool::{Pull, Tool};
use nix::sys::signal::Signal;
use nix::unistd::gethostname;
use serde_json::{Value, json};

fn host() -> String {
    gethostname().unwrap().to_string_lossy().into_owned()
}

#[test]
fn namespaces_are_printed_one_per_line_or_as_a_json_array() {
    let site = Site::new();
    let run = site.run(&["--nspace", "job-17"], ["cat"]);
    site.wait_for_ranks(1);
    let done = site.query(&["namespaces"]);
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "job-17\n", ""));
    let json = site.query(&["namespaces", "--json"]);
    assert_eq!(found(&json), [json!(["job-17"])]);
    assert_eq!(run.finish().code, 0);
}

#[test]
fn procs_shows_running_ranks_with_pids_and_ended_ones_with_exit_codes() {
    let site = Site::new();
    let (mut first, mut second) = (site.gate("first"), site.gate("second"));
    // A grandchild keeps the engine alive when all ranks have ended.
    let script = format!(
        "echo $$; [ $IOF_RANK = 3 ] && (: < {}) & : < {}; [ $IOF_RANK != 1 ] || kill -9 $$; exit $IOF_RANK",
        second.path(),
        first.path()
    );
    let mut run = site.run_sh(&["-n", "4", "--nspace", "job", "--kill-on-bad-exit=0"], &script);
    let (stdout, _stderr) = run.collect();
    (0..4).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 2)));
    let running = site.procs().unwrap();
    first.open();
    (0..4).for_each(|rank| {
        drop(site.wait_for_state(rank, ["terminated", "killed", "failed", "failed"][rank as usize]))
    });
    let ended = site.procs().unwrap();
    let table = site.query(&["procs"]);
    second.open();
    assert!([137, 2, 3].contains(&run.wait()));

    let pids: Vec<u64> = running.iter().map(|proc| proc["pid"].as_u64().unwrap()).collect();
    let mut printed: Vec<u64> =
        String::from_utf8(stdout.get()).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    let mut sorted = pids.clone();
    sorted.sort_unstable();
    printed.sort_unstable();
    assert_eq!(sorted, printed, "the pids are those of the ranks");
    let row = |rank: usize, state: &str, code: Value| {
        json!({
            "nspace": "job", "rank": rank, "pid": pids[rank], "host": host(), "executable": "sh",
            "state": state, "exit_code": code,
        })
    };
    assert_eq!(running, [0, 1, 2, 3].map(|rank| row(rank, "running", Value::Null)));
    let wanted = [
        row(0, "terminated", json!(0)),
        row(1, "killed", json!(137)),
        row(2, "failed", json!(2)),
        row(3, "failed", json!(3)),
    ];
    assert_eq!(ended, wanted);
    let cells: Vec<Vec<&str>> = table.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0], ["NSPACE", "RANK", "PID", "HOST", "STATE", "EXIT", "EXECUTABLE"]);
    assert_eq!(cells[2], ["job", "1", &pids[1].to_string(), &host(), "killed", "137", "sh"]);
    assert_eq!(cells.len(), 5);
}

#[test]
fn stats_counts_open_and_complete_streams() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("printf 12345; printf 123 >&2; [ $IOF_RANK = 1 ] || : < {}", gate.path());
    let mut run = site.run_sh(&["-n", "2", "--nspace", "job"], &script);
    let _read = run.collect();
    site.wait_for_state(1, "terminated");
    let settled = |stream: &iof_testing::command::site::Stream| {
        let readers = stream.readers("iof run");
        // A stream that was read to its end has no readers.
        let is_over = stream.number("rank") == 1;
        let is_read = readers.is_empty() == is_over && readers.iter().all(|reader| reader["lag"] == 0);
        is_read && stream.is_complete() == is_over
    };
    site.wait_for_bytes(0, "stderr", 3);
    let streams = wait_for("the printers", || site.streams().filter(|all| all.iter().all(settled)));
    let row = |rank: u32, channel: &str, bytes: u64, handler: &Value| {
        let reader = json!({ "tool": "iof run", "pid": run.pid(), "handler": handler, "lag": 0 });
        json!({
            "nspace": "job", "rank": rank, "channel": channel, "logged": false, "produced": bytes, "cached": bytes, "dropped": 0,
            "generation": 0, "complete": rank == 1, "missing": null,
            "readers": if rank == 1 { vec![] } else { vec![reader] },
        })
    };
    let mut wanted = Vec::new();
    for rank in [0, 1] {
        for (channel, bytes) in [("stdout", 5), ("stderr", 3), ("stddiag", 0)] {
            wanted.push(row(rank, channel, bytes, &json!(1)));
        }
    }
    let streams: Vec<Value> = streams.into_iter().map(|stream| stream.0).collect();
    assert_eq!(streams, wanted);

    let table = site.query(&["stats"]);
    let lines: Vec<&str> = table.text().lines().collect();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(lines.len(), 7);
    assert_eq!(cells(lines[0]), "NSPACE RANK CHANNEL PRODUCED CACHED DROPPED GEN STATE READERS (LAG)");
    assert_eq!(cells(lines[1]), format!("job 0 stdout 5 5 0 0 open iof run:{} (0)", run.pid()));
    assert_eq!(cells(lines[5]), "job 1 stderr 3 3 0 0 complete");
    gate.open();
    assert_eq!(run.wait(), 0);
}

#[test]
fn stats_shows_each_pull_with_its_pid_and_its_lag() {
    let site = Site::new();
    let (mut first_byte, mut end) = (site.gate("first-byte"), site.gate("end"));
    let gates = [format!("0:{}", first_byte.path()), format!("100000:{}", end.path())];
    let program = rank(["--length", "100000", "--gate", &gates[0], "--gate", &gates[1]]);
    let _run = site.run(&[], program);
    site.wait_for_ranks(1);
    let pulls = [site.pull(&[]), site.pull(&[])];
    site.wait_for_pulls(0, "stdout", 2);
    pulls[1].stop();
    first_byte.open();
    let lags = |stream: &iof_testing::command::site::Stream| {
        let lag =
            |pid: u32| stream.readers("iof pull").into_iter().find(|reader| reader["pid"] == pid).cloned();
        pulls.each_ref().map(|pull| lag(pull.pid()).unwrap()["lag"].as_u64().unwrap())
    };
    site.wait_for_stream(0, "stdout", |stream| {
        stream.number("produced") == 100_000 && lags(stream)[1] == 100_000
    });
    pulls[1].signal(Signal::SIGCONT);
    // From now on the outputs of the pulls are read.
    let read = pulls.map(|mut pull| (collect(pull.stdout()), pull));
    site.wait_for_stream(0, "stdout", |stream| {
        stream.readers("iof pull").iter().all(|reader| reader["lag"] == 0)
    });
    end.open();
    for (stdout, pull) in read {
        assert_eq!(stdout.get().len(), 100_000);
        assert_eq!(pull.wait(), 0);
    }
}

#[test]
fn stats_counts_the_dropped_bytes_of_a_stream() {
    const TOTAL: u64 = 1 << 20;
    let site = Site::new();
    let (mut first_byte, mut end) = (site.gate("first-byte"), site.gate("end"));
    let gates = [format!("0:{}", first_byte.path()), format!("{TOTAL}:{}", end.path())];
    let program = rank(["--length", &TOTAL.to_string(), "--gate", &gates[0], "--gate", &gates[1]]);
    let mut run = site.run(&["--cache-size", "64K", "--drop", "newest"], program);
    let _unread = run.stdout();
    site.wait_for_ranks(1);
    first_byte.open();
    let stream = site.wait_for_bytes(0, "stdout", TOTAL);
    let dropped = stream.number("dropped");
    assert!((TOTAL - 3 * 65_536..=TOTAL - 65_536).contains(&dropped), "{stream:?}");
    assert_eq!((stream.number("generation"), stream.number("cached")), (0, 65_536));
    end.open();
}

#[test]
fn a_rank_of_a_starting_job_finds_all_ranks_and_itself() {
    let site = Site::new();
    let script = "echo $($IOF query procs | wc -l) $($IOF query NAMESPACE_INFO | tail -1) \
                  $($IOF query stats --rank $IOF_RANK | wc -l) $IOF_RANK = $($IOF query procs --rank $IOF_RANK)";
    let mut run = site.iof("run");
    run.env("IOF", env!("CARGO_BIN_EXE_iof")).args(["-n", "40", "--nspace", "job", "--", "sh", "-c", script]);
    let done = Process::start(&mut run).finish();
    assert_eq!((done.code, done.text().lines().count(), done.stderr.as_str()), (0, 40, ""));
    for line in done.text().lines() {
        let (before, after) = line.split_once(" = ").unwrap();
        let (counts, rank) = before.rsplit_once(' ').unwrap();
        assert_eq!(counts, "41 job 40 running (PMIX_EVENT_JOB_START, -191) - sh 4");
        let row = after.strip_prefix("NSPACE RANK PID HOST STATE EXIT EXECUTABLE job ").unwrap();
        assert!(row.starts_with(&format!("{rank} ")) && row.ends_with(" - sh"), "{row}");
    }
}

#[test]
fn keys_are_accepted_in_all_spellings_and_several_are_answered_together() {
    let site = Site::new();
    let run = site.run(&["-n", "2", "--nspace", "job"], ["cat"]);
    site.wait_for_ranks(2);
    for name in ["JOB_STATUS", "job-status", "PMIX_QUERY_JOB_STATUS", "pmix.qry.jst"] {
        let done = site.query(&[name]);
        assert_eq!((done.code, done.text()), (0, "running (PMIX_EVENT_JOB_START, -191)\n"), "{done:?}");
    }
    let done = site.query(&["namespaces", "NAMESPACE_INFO"]);
    let lines: Vec<String> =
        done.text().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let wanted = [
        "pmix.qry.ns:",
        "job",
        "",
        "pmix.qry.nsinfo:",
        "NSPACE PROCS STATUS EXIT COMMAND",
        "job 2 running (PMIX_EVENT_JOB_START, -191) - cat",
    ];
    assert_eq!((done.code, &lines[..]), (0, &wanted.map(str::to_owned)[..]));
    let procs = site.query(&["LOCAL_PROC_TABLE", "--json", "--rank", "1"]);
    let procs = found(&procs).remove(0);
    assert_eq!((procs.as_array().unwrap().len(), &procs[0]["rank"]), (1, &json!(1)));
    let attributes = site.query(&["ATTRIBUTE_SUPPORT"]);
    assert!(attributes.text().contains("PMIx_IOF_pull") && attributes.text().contains("pmix.iof.csize"));
    assert_eq!(run.finish().code, 0);
}

#[test]
fn json_is_one_object_with_the_status_and_the_results_in_order() {
    let site = Site::new();
    let run = site.run(&["--nspace", "job"], ["cat"]);
    site.wait_for_ranks(1);
    let ns = json!({"key": "pmix.qry.ns", "value": ["job"]});
    let status = json!({"key": "pmix.qry.jst", "value": {"code": -191, "name": "PMIX_EVENT_JOB_START", "state": "running"}});
    let cases = [
        (&["namespaces"][..], 0, 0, "PMIX_SUCCESS", vec![ns.clone()]),
        (&["JOB_STATUS", "namespaces"], 0, 0, "PMIX_SUCCESS", vec![status, ns.clone()]),
        (&["QUEUE_LIST", "namespaces"], 1, -52, "PMIX_ERR_PARTIAL_SUCCESS", vec![ns]),
        (&["QUEUE_LIST"], 1, -46, "PMIX_ERR_NOT_FOUND", vec![]),
        (&["procs", "--qualifier", "pmix.procid"], 2, -27, "PMIX_ERR_BAD_PARAM", vec![]),
    ];
    for (args, exit_code, code, name, results) in cases {
        let done = site.query(&[args, &["--json"]].concat());
        let answer: Value = serde_json::from_str(done.text()).unwrap();
        let wanted = json!({"status": {"code": code, "name": name}, "results": results});
        assert_eq!((done.code, answer), (exit_code, wanted), "{args:?}");
        assert_eq!(done.stderr.lines().count(), usize::from(exit_code != 0), "{done:?}");
    }
    assert_eq!(run.finish().code, 0);
}

#[test]
fn names_from_other_processes_are_printed_without_control_characters() {
    let site = Site::new();
    let program = site.path().join("a\x1b]0;x\x07\u{9b}2Jb");
    std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
    let run = site.run(&["--nspace", "job"], [&program]);
    site.wait_for_ranks(1);
    let mut tool = Tool::connect(&site.sockets()[0], "evil\x1b[2J").unwrap();
    let all = Proc::all(Nspace::new("job").unwrap());
    tool.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
    for (keys, shows) in
        [(&["stats"][..], "evil?[2J"), (&["procs", "NAMESPACE_INFO", "a.\x1b"], "a?]0;x??2Jb")]
    {
        let done = site.query(keys);
        assert!(done.text().contains(shows), "{done:?}");
        let raw = |text: &str| text.chars().any(|letter| letter.is_control() && letter != '\n');
        assert!(!raw(done.text()) && !raw(&done.stderr), "{done:?}");
        let json = site.query(&[keys, &["--json"]].concat());
        assert!(!raw(json.text()), "{json:?}");
    }
    let procs = found(&site.query(&["procs", "--json"])).remove(0);
    assert_eq!(procs[0]["executable"], program.to_str().unwrap(), "nothing is lost in JSON");
    drop(tool);
    assert_eq!(run.finish().code, 0);
}

/// A host that knows the status of the queue `night`.
struct Scheduler;

impl Host for Scheduler {
    fn query(&self, queries: &[Query], reply: QueryReply) {
        let night = Info::required("pmix.alloc.queue", "night");
        let known = queries[0].qualifiers == [night, Info::required("site.detailed", true)];
        let value = proto::Value::Text("full".into());
        let status = Found { query: 0, key: key::PMIX_QUERY_QUEUE_STATUS.into(), value };
        reply.answer(if known { vec![status] } else { vec![] });
    }
}

#[test]
fn qualifiers_are_passed_to_the_launcher_that_embeds_the_engine() {
    let site = Site::new();
    let rendezvous = Rendezvous::Session(Some(site.path().to_owned()));
    let config = Config::new(rendezvous);
    let _engine = Engine::start_with(config, std::sync::Arc::new(Scheduler)).unwrap();
    let query =
        |queue: &str| site.query(&["QUEUE_STATUS", "--qualifier", queue, "--qualifier", "site.detailed"]);
    let done = query("pmix.alloc.queue=night");
    assert_eq!((done.code, done.text()), (0, "full\n"), "{done:?}");
    assert_eq!(query("pmix.alloc.queue=day").code, 1);
    let done = query("queue=night");
    assert!(done.code == 2 && done.stderr.contains("invalid qualifier 'queue'"), "{done:?}");
}

#[test]
fn unknown_keys_are_reported_and_known_ones_are_answered() {
    let site = Site::new();
    let run = site.run(&["--nspace", "job"], ["cat"]);
    site.wait_for_ranks(1);
    let partial = site.query(&["namespaces", "QUEUE_LIST", "site.colour"]);
    assert_eq!((partial.code, partial.text()), (1, "pmix.qry.ns:\njob\n"));
    let message = "no answer for pmix.qry.qlst, site.colour (PMIX_ERR_PARTIAL_SUCCESS (-52))";
    assert_eq!(partial.stderr, format!("iof: {message}\n"));
    let none = site.query(&["QUEUE_LIST"]);
    let message = "no answer for pmix.qry.qlst (PMIX_ERR_NOT_FOUND (-46))";
    assert_eq!((none.code, none.text(), &none.stderr), (1, "", &format!("iof: {message}\n")));
    let nonsense = site.query(&["nonsense"]);
    assert_eq!(nonsense.code, 2);
    assert!(
        nonsense.stderr.contains("invalid key 'nonsense': expected namespaces, procs, stats, "),
        "{nonsense:?}"
    );
    assert_eq!(site.query(&[]).code, 2);
    assert_eq!(run.finish().code, 0);
}

#[test]
fn the_counters_of_streams_are_a_page_for_prometheus() {
    let site = Site::new();
    let run = site.run_sh(&["--nspace", "job"], "printf 12345; exec cat");
    site.wait_for_bytes(0, "stdout", 5);
    let done = site.query(&["stats", "--output", "prometheus"]);
    let line =
        "iof_stream_produced_bytes_total{nspace=\"job\",rank=\"0\",channel=\"stdout\",logged=\"false\"} 5";
    assert_eq!((done.code, done.text().lines().filter(|found| *found == line).count()), (0, 1), "{done:?}");
    let metric = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    let mut described = "";
    for line in done.text().lines() {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) {
            Some(name) => described = name,
            None if line.starts_with('#') => {}
            None => assert_eq!(metric(line), described, "{done:?}"),
        }
    }
    assert_eq!(run.finish().code, 0);
}
