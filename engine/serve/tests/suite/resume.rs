//! Clients that lose their connection, and clients that do not read.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use iof_engine::{Config, Edges, Exit, Node, NodeId, NodeReport, NodeRequest};
use iof_proto::{Channel, NodeStream, Rank};
use iof_testing::engine::{changed, shell, spec, wait};

use crate::site::{Event, Site};

/// The bytes that a client has received of each rank's stdout, and their places.
#[derive(Default)]
struct History {
    bytes: BTreeMap<u64, Vec<u8>>,
    lost: BTreeMap<u64, u64>,
    exit: Option<i64>,
}

impl History {
    /// Adds an event, which must continue exactly where the last one of its stream ended.
    fn add(&mut self, event: &Event) {
        if event.name == "exit" {
            self.exit = event.data["exit_code"].as_i64();
        }
        if !["output", "gap", "end"].contains(&&*event.name) {
            return;
        }
        let rank = event.number("rank");
        let (bytes, lost) = (self.bytes.entry(rank).or_default(), self.lost.entry(rank).or_default());
        assert_eq!(event.number("offset"), bytes.len() as u64 + *lost, "{event:?}");
        match &*event.name {
            "output" => bytes.extend(event.bytes()),
            "gap" => *lost += event.number("lost"),
            _ => assert_eq!(event.data["missing"], 0),
        }
    }
}

/// The output of a rank of a job that counts.
fn counted(rank: u64, lines: u32) -> Vec<u8> {
    (1..=lines).flat_map(|line| format!("{rank} {line} \u{e9}\n").into_bytes()).collect()
}

const LINES: u32 = 20_000;

#[test]
fn a_client_that_is_cut_a_hundred_times_gets_each_byte_once() {
    let site = Site::new(&[]);
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo \"$IOF_RANK $i \u{e9}\"; [ $((i % 50)) != 0 ] || sleep 0.01; done; exit 7"
    );
    // The cache holds all of it: each byte is due.
    let job = site.spawn(&spec([shell(&script).ranks(2)]));
    let (mut history, mut last, mut cuts, mut random) = (History::default(), None::<String>, 0, 1u64);
    while history.exit.is_none() {
        let line = last.as_ref().map(|id| format!("Last-Event-ID: {id}"));
        let lines: Vec<&str> = line.as_deref().into_iter().collect();
        let mut answer = site.server.request("GET /jobs/job/events?channels=stdout", &lines, b"");
        assert_eq!(answer.status, 200);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = if cuts < 100 { 1 + (random >> 33) % 3 } else { u64::MAX };
        for _ in 0..length {
            let Some(event) = answer.event().unwrap() else { break };
            history.add(&event);
            last = event.id.or(last);
        }
        // The cut is in the middle of an event.
        if length < u64::MAX {
            let _ = answer.read(&mut vec![0; 1 + (random >> 40) as usize % 200]);
        }
        cuts += 1;
    }
    assert!(cuts > 100, "{cuts}");
    assert_eq!(history.exit, Some(7));
    for rank in 0..2 {
        assert_eq!(history.lost[&rank], 0);
        assert!(history.bytes[&rank] == counted(rank, LINES), "rank {rank}");
    }
    wait(&job);
}

#[test]
fn clients_that_do_not_read_delay_neither_the_job_nor_others_and_learn_what_they_lost() {
    let config =
        changed(Config::new(iof_engine::Rendezvous::None), |config| config.cache_size = Some(64 << 10));
    let site = Site::with(config, &[]);
    let lines = 200_000;
    let gate = site.directory.path().join("gate");
    let script =
        format!("while ! test -e {}; do sleep 0.02; done; seq -f '0 %.0f \u{e9}' {lines}", gate.display());
    let job = site.spawn(&spec([shell(&script)]));
    let follow = || site.server.get("/jobs/job/events?channels=stdout");
    let stalled: Vec<_> = (0..20).map(|_| follow()).collect();
    let readers: Vec<_> = (0..3).map(|_| follow()).collect();
    let read = |mut answer: crate::site::Answer| {
        let mut history = History::default();
        while let Some(event) = answer.event().unwrap() {
            history.add(&event);
        }
        history
    };
    let readers: Vec<_> = readers.into_iter().map(|reader| thread::spawn(move || read(reader))).collect();
    std::fs::write(gate, "").unwrap();
    // The job ends although most of its readers do not read.
    wait(&job);
    let whole = counted(0, lines);
    for reader in readers {
        let history = reader.join().unwrap();
        assert_eq!(history.exit, Some(0));
        assert_eq!(history.bytes[&0].len() as u64 + history.lost[&0], whole.len() as u64);
    }
    for answer in stalled {
        let history = read(answer);
        assert_eq!(history.exit, Some(0));
        assert!(history.lost[&0] > 0, "it did not fall behind");
        assert_eq!(history.bytes[&0].len() as u64 + history.lost[&0], whole.len() as u64);
    }
}

/// The edges of nodes that do nothing.
struct NoEdges;

impl Edges for NoEdges {
    fn send(&self, _: NodeId, _: NodeRequest<'_>) {}
}

#[test]
fn a_client_that_comes_when_the_nodes_have_ended_gets_what_it_lacks_of_each_stream_as_a_gap() {
    let site = Site::new(&[]);
    let nodes = [Node { host: "a".into(), ranks: [Rank(0), Rank(1)].into() }];
    let spec = spec([shell("true").ranks(2)]);
    let job = site.engine.begin_on_nodes(&spec, &nodes, Arc::new(NoEdges), true).unwrap();
    let report = |report| job.report_node(NodeId(0), report);
    report(NodeReport::Started { pids: vec![10, 11], began: SystemTime::UNIX_EPOCH });
    let (channel, lost, missing) = (Channel::Stdout, 0, None);
    let stream =
        |rank, produced| NodeStream { rank: Rank(rank), channel, produced, lost, ended: true, missing };
    report(NodeReport::Streams(vec![stream(0, 9), stream(1, 5)]));
    let exit = Exit::Status(ExitStatus::from_raw(0));
    let exited = |rank| report(NodeReport::Exited { rank: Rank(rank), exit, requested: false, used: None });
    (0..2).for_each(exited);
    report(NodeReport::Over { cut_off: Vec::new() });
    assert!(site.engine.end_job(job.nspace(), Some(0)));
    let run = site.server.json("/jobs/job")["run"].as_str().unwrap().to_owned();
    for (last, wanted) in [
        (String::new(), vec![(0, 0, 9), (1, 0, 5)]),
        (format!("Last-Event-ID: {run}:0.stdout.4"), vec![(0, 4, 5), (1, 0, 5)]),
        (format!("Last-Event-ID: {run}:0.stdout.9,1.stdout.5"), Vec::new()),
    ] {
        let lines: Vec<&str> = [&*last].into_iter().filter(|line| !line.is_empty()).collect();
        let mut answer = site.server.request("GET /jobs/job/events", &lines, b"");
        let mut gaps = Vec::new();
        while let Some(event) = answer.event().unwrap() {
            if event.name == "gap" {
                gaps.push((event.number("rank"), event.number("offset"), event.number("lost")));
            }
        }
        assert_eq!(gaps, wanted, "{last}");
    }
    for (query, status, offset) in [("", 200, "9"), ("?follow=true", 200, "9"), ("?offset=4", 410, "")] {
        let answer = site.server.get(&format!("/jobs/job/ranks/0/stdout{query}"));
        assert_eq!((answer.status, answer.header("iof-offset")), (status, offset), "{query}");
        assert!(status != 200 || answer.bytes().unwrap().is_empty());
    }
}
