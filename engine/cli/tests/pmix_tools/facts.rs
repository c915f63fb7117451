//! The facts about jobs that tools of PMIx get, by functions that libpmix itself answers.
//!
//! The versions 4.2.2 and 5 of libpmix ask in different ways for the data of another job than their
//! own. Each finds at least what the other one's server understands.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::embedders::{IOF, compile_embedder};
use super::{Place, TOOL, compile, for_each_place, lines};
use iof_testing::process::Process;
use nix::unistd::gethostname;

static FACTS: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("facts"));
static JOBS: LazyLock<PathBuf> = LazyLock::new(|| compile_embedder("jobs"));

/// Starts a tool that asks questions about a job.
fn facts(place: &Place, job: &str, questions: &[&str]) -> Process {
    place.start(FACTS.as_deref().unwrap(), job, questions)
}

/// Returns the lines of a tool that asks `questions`, without them.
fn answers(place: &Place, questions: &[&str]) -> Vec<String> {
    let done = facts(place, "demo", questions).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done.text().lines().map(|line| line.split_once(' ').unwrap().1.replace("PMIX_", "")).collect()
}

#[test]
fn tools_find_the_keys_of_jobs_and_ranks_and_resolve_nodes_and_peers() {
    let host = gethostname().unwrap().into_string().unwrap();
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&["-n", "2"], &format!(": < {}", gate.path()));
        place.site.wait_for_ranks(2);
        let job = ["pmix.job.size", "pmix.max.size", "pmix.num.nodes", "pmix.jobid"];
        assert_eq!(answers(place, &job), ["2", "2", "1", "demo"]);
        let node = ["pmix.local.size", "pmix.node.size", "pmix.lpeers", "pmix.lldr", "peers", "nodes"];
        // A tool of version 5 asks a server of version 4.2.2 in a way that it does not understand.
        if place.server.is_some() || place.tools.is_none() {
            let resolved = format!("SUCCESS {host}");
            assert_eq!(answers(place, &node), ["2", "2", "0,1", "0", "SUCCESS demo:0 demo:1", &resolved]);
        }
        // A tool of version 4.2.2 asks for the job instead of the rank.
        if place.server.is_some() && place.tools.is_some() {
            let rank = ["pmix.lrank/1", "pmix.nrank/1", "pmix.grank/1", "pmix.nodeid/1"];
            assert_eq!(answers(place, &rank), ["1", "1", "1", "0"]);
            let pid = place.site.procs().unwrap()[1]["pid"].to_string();
            // libpmix does not ask the server for the node.
            let own = ["pmix.ppid/1", "pmix.hname/1", "pmix.univ.size"];
            assert_eq!(answers(place, &own), [&pid, &host, "2"]);
        }
        let file = place.rendezvous_file().unwrap();
        let queries = [
            ("query:pmix.srvr.uri", file.lines().next().unwrap()),
            ("query:pmix.univ.size", "2"),
            ("query:pmix.qry.psetnum", "0"),
            ("query:pmix.qry.psets", ""),
            // Arrays of texts and of processes.
            ("query:pmix.qry.pgrp", "0 of type 3"),
            ("query:pmix.lprocs:0", "2 of type 22"),
            ("query:pmix.lpeers:0", "0,1"),
        ];
        assert_eq!(answers(place, &queries.map(|(question, _)| question)), queries.map(|(_, answer)| answer));
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn tools_find_the_system_level_engine_of_their_user() {
    for_each_place(|place| {
        let mut run = place.start_launcher(Command::new(&*JOBS).arg(IOF).arg(place.site.path()));
        let tool = place.start(TOOL.as_ref().unwrap(), "system:", ["namespaces"]);
        assert_eq!(lines(&tool.finish()), ["attached", "demo"]);
        drop(run.stdin());
        assert_eq!(run.wait(), 0);
        let left = fs::read_dir(place.site.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!left.into_iter().any(|name| name.to_str().unwrap().starts_with("pmix.sys.")));
    });
}

#[test]
fn what_the_host_denies_or_can_do_reaches_the_tools() {
    for_each_place(|place| {
        let mut run = place.start_launcher(Command::new(&*JOBS).arg(IOF));
        let denied = place.tool(["pull", "demo", "all", "4", "print"]).finish();
        assert!(denied.code == 3 && denied.text().replace('_', "-").contains("NO-PERMISSIONS"), "{denied:?}");
        let spawn = place.tool(["query", "pmix.qry.spawn"]).finish();
        let keys: Vec<&str> = lines(&spawn)[1].split(',').collect();
        for key in ["vendor.colour", "pmix.wdir", "pmix.dbg.tgt"] {
            assert_eq!(keys.iter().filter(|found| **found == key).count(), 1, "{key}: {spawn:?}");
        }
        drop(run.stdin());
        assert_eq!(run.wait(), 0);
    });
}

#[test]
fn jobs_that_begin_later_are_known_until_they_end() {
    for_each_place(|place| {
        let mut run = place.start_launcher(Command::new(&*JOBS).arg(IOF));
        let (mut jobs, mut done) = (run.stdin(), BufReader::new(run.stdout()));
        let mut change = || {
            jobs.write_all(b"\n").unwrap();
            assert_eq!(done.by_ref().lines().next().unwrap().unwrap(), "done");
        };
        let keys = ["pmix.job.size", "wait", "pmix.job.size", "wait", "pmix.max.size"];
        let mut tool = facts(place, "late", &keys);
        let (mut questions, mut output) = (tool.stdin(), BufReader::new(tool.stdout()));
        let mut answer = || output.by_ref().lines().next().unwrap().unwrap();
        assert!(answer().contains("NOT"), "the job has not begun");
        change();
        questions.write_all(b"\n").unwrap();
        assert_eq!(answer(), "pmix.job.size 2");
        change();
        questions.write_all(b"\n").unwrap();
        assert!(answer().contains("NOT"), "the job has ended");
        assert_eq!(tool.wait(), 0);
        drop(jobs);
        assert_eq!(run.wait(), 0);
    });
}
