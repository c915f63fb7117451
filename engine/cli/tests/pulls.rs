//! `iof pull` of jobs that begin later, of several jobs, and of jobs that have ended.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use iof_testing::command::site::{Gate, Site, Stream, found};
use iof_testing::process::{Done, Process};
use iof_testing::{wait_for, with_longer_times};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Starts a job of this name that writes a line, waits for a gate, and writes another one.
fn job(site: &Site, name: &str, gate: &Gate) -> Process {
    site.run_sh(&["--nspace", name], &format!("echo {name} one; : < {}; echo {name} two", gate.path()))
}

/// Waits until `count` pulls read the stdout of rank 0 of a job.
fn wait_for_pulls(site: &Site, name: &str, count: usize) {
    wait_for_pulls_of(site, name, 0, count);
}

fn wait_for_pulls_of(site: &Site, name: &str, rank: u32, count: usize) {
    wait_for(&format!("{count} pulls of {name}"), || {
        let done = site.query(&["stats", "--json", "--nspace", name]);
        let Value::Array(rows) = (done.code == 0).then(|| found(&done).remove(0))? else { return None };
        let stream = rows.into_iter().map(Stream).find(|stream| stream.is(rank, "stdout"))?;
        (stream.pulls() == count).then_some(())
    });
}

/// Returns the lines in alphabetical order.
fn sorted(done: &Done) -> Vec<&str> {
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    lines
}

/// Checks for one line with `reason`, exit code 2, and no output.
fn assert_refused(done: &Done, reason: &str) {
    assert_eq!((done.code, done.stdout.len(), done.stderr.lines().count()), (2, 0, 1), "{done:?}");
    assert!(done.stderr.contains(reason), "{reason}: {done:?}");
}

#[test]
fn jobs_that_end_before_they_can_be_pulled_are_reported() {
    let site = Site::new();
    let mut gates = [site.gate("long"), site.gate("next")];
    let long = job(&site, "long", &gates[0]);
    site.wait_for_ranks(1);
    let pull = site.pull(&["long", "short-*", "next", "--wait"]);
    wait_for_pulls(&site, "long", 1);
    pull.signal(Signal::SIGSTOP);
    for name in ["short-1", "short-2", "other"] {
        assert_eq!(site.run(&["--nspace", name], ["true"]).finish().code, 0);
    }
    pull.signal(Signal::SIGCONT);
    let next = job(&site, "next", &gates[1]);
    wait_for_pulls(&site, "next", 1);
    gates.iter_mut().for_each(|gate| gate.open());
    let done = pull.finish();
    let message = "iof: 2 jobs have ended before the output could be pulled (the jobs are short-1, short-2): iof run --keep \
                   DURATION keeps it\niof: 2 of 4 jobs were not pulled whole\n";
    assert_eq!((done.code, &*done.stderr), (1, message));
    assert_eq!(done.text().lines().count(), 4);
    assert_eq!((long.finish().code, next.finish().code), (0, 0));
}

#[test]
fn a_stopped_engine_delays_no_other_job_and_is_pulled_once_it_continues() {
    let site = Site::new();
    let mut gates = ["stopped", "long", "later"].map(|name| site.gate(name));
    let stopped = job(&site, "stopped", &gates[0]);
    wait_for_pulls(&site, "stopped", 0);
    stopped.signal(Signal::SIGSTOP);
    let long = job(&site, "long", &gates[1]);
    wait_for_pulls(&site, "long", 0);
    let pull = site.pull(&["--all"]);
    wait_for_pulls(&site, "long", 1);
    let later = job(&site, "later", &gates[2]);
    wait_for_pulls(&site, "later", 1);
    stopped.signal(Signal::SIGCONT);
    wait_for_pulls(&site, "stopped", 1);
    gates.iter_mut().for_each(|gate| gate.open());
    let done = pull.finish();
    assert_eq!((done.code, &*done.stderr, done.text().lines().count()), (0, "", 6), "{done:?}");
    [stopped, long, later].into_iter().for_each(|run| assert_eq!(run.finish().code, 0));
}

#[test]
fn a_pull_of_a_stopped_engine_names_it_once_and_goes_on_when_it_continues() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = job(&site, "stopped", &gate);
    wait_for_pulls(&site, "stopped", 0);
    run.signal(Signal::SIGSTOP);
    let mut pull = site.pull(&["--nspace", "stopped"]);
    let mut stderr = BufReader::new(pull.stderr());
    let pid = run.pid();
    let line = format!(
        "iof: the engine (pid {pid}) is stopped: its output is written when it continues, such as by kill -CONT {pid}\n"
    );
    let mut told = String::new();
    stderr.read_line(&mut told).unwrap();
    assert_eq!(told, line);
    run.signal(Signal::SIGCONT);
    gate.open();
    assert_eq!((pull.wait(), run.finish().code), (0, 0));
    stderr.read_to_string(&mut told).unwrap();
    assert_eq!(told, line);
}

#[test]
fn each_job_of_a_burst_is_shown_or_reported() {
    // As many as a report names.
    const JOBS: usize = 16;
    let site = Site::new();
    let mut gate = site.gate("gate");
    let long = job(&site, "long", &gate);
    site.wait_for_ranks(1);
    let pull = site.pull(&["--all"]);
    wait_for_pulls(&site, "long", 1);
    let names: Vec<String> = (0..JOBS).map(|job| format!("short-{job}")).collect();
    let jobs: Vec<Process> =
        names.iter().map(|name| site.run_sh(&["--nspace", name], "echo short")).collect();
    jobs.into_iter().for_each(|job| assert_eq!(job.finish().code, 0));
    gate.open();
    assert_eq!(long.finish().code, 0);
    let done = pull.finish();
    // A job may have ended before it was found, or before its engine answered.
    let words: Vec<&str> = done.stderr.split([' ', ',', ':', '(', ')']).collect();
    let is_reported = |name: &String| words.contains(&name.as_str());
    let is_shown = |name: &String| done.text().contains(&format!("[{name},0]<stdout>: short\n"));
    assert!(names.iter().all(|name| is_shown(name) || is_reported(name)), "{done:?}");
    assert_eq!(done.code, i32::from(names.iter().any(is_reported)), "{done:?}");
}

#[test]
fn a_job_that_was_announced_before_the_pull_and_ends_at_once_is_reported() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let long = job(&site, "long", &gate);
    wait_for_pulls(&site, "long", 0);
    // The engine has no run of it yet.
    let link = fs::read_dir(site.path()).unwrap().map(|entry| entry.unwrap().path());
    let link = link.into_iter().find(|path| path.extension().is_some_and(|name| name == "long")).unwrap();
    let late = link.with_extension("late");
    symlink(fs::read_link(&link).unwrap(), &late).unwrap();
    let pull = site.pull(&["--all"]);
    wait_for_pulls(&site, "long", 1);
    fs::remove_file(late).unwrap();
    gate.open();
    assert_eq!(long.finish().code, 0);
    let done = pull.finish();
    let message = "iof: 1 job has ended before the output could be pulled (the only job is late): iof run --keep DURATION \
                   keeps it\niof: 1 of 2 jobs were not pulled whole\n";
    assert_eq!((done.code, &*done.stderr), (1, message));
    assert_eq!(done.text().lines().count(), 2);
}

#[test]
fn the_parts_of_a_job_that_agents_here_have_are_no_jobs() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let long = job(&site, "long", &gate);
    let on_nodes = |name: &str| {
        let nodes = ["--hosts", "a,b", "--rsh", "env NODE=%h sh -c", "--reattach", "10"];
        let options = [&["--nspace", name, "-n", "2"][..], &nodes].concat();
        let script = format!("echo {name}; : < {}", gate.path());
        site.run_sh(&options, &script)
    };
    let before = on_nodes("before");
    ["long", "before"].into_iter().for_each(|name| wait_for_pulls(&site, name, 0));
    let pull = site.pull(&["--all"]);
    wait_for_pulls(&site, "long", 1);
    let later = on_nodes("later");
    ["before", "later"].into_iter().for_each(|name| wait_for_pulls(&site, name, 1));
    gate.open();
    let done = pull.finish();
    assert_eq!((done.code, &*done.stderr), (0, ""), "{done:?}");
    assert_eq!(done.text().lines().count(), 6);
    assert_eq!([long, before, later].map(|job| job.finish().code), [0; 3]);
}

#[test]
fn a_job_whose_stopped_engine_is_killed_is_reported() {
    let site = Site::new();
    let mut gates = ["stopped", "long"].map(|name| site.gate(name));
    let stopped = job(&site, "stopped", &gates[0]);
    let long = job(&site, "long", &gates[1]);
    ["stopped", "long"].into_iter().for_each(|name| wait_for_pulls(&site, name, 0));
    stopped.signal(Signal::SIGSTOP);
    let pull = site.pull(&["--all"]);
    wait_for_pulls(&site, "long", 1);
    stopped.signal(Signal::SIGKILL);
    stopped.wait();
    gates.iter_mut().for_each(Gate::open);
    let done = pull.finish();
    let message = "iof: 1 job has ended before the output could be pulled (the only job is stopped): iof run --keep DURATION \
                   keeps it\niof: 1 of 2 jobs were not pulled whole\n";
    assert_eq!((done.code, &*done.stderr), (1, message));
    assert_eq!(long.finish().code, 0);
}

#[test]
fn a_pull_that_does_not_follow_ends_when_its_wait_for_a_job_is_over() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let here = job(&site, "here", &gate);
    wait_for_pulls(&site, "here", 0);
    let done = site.pull(&["--wait=0.1", "--no-follow", "here", "gone"]).finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("no running engine has a job gone"), "{done:?}");
    gate.open();
    assert_eq!(here.finish().code, 0);
}

#[test]
fn a_pull_waits_for_a_job_that_begins_later_but_not_longer_than_it_may() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let pulls = [&["--wait", "late"][..], &["--wait=1h", "late"], &["--wait"]].map(|args| site.pull(args));
    let run = job(&site, "late", &gate);
    site.wait_for_pulls(0, "stdout", pulls.len());
    gate.open();
    for pull in pulls {
        assert_eq!(pull.finish().text(), "late one\nlate two\n");
    }
    assert_eq!(run.finish().code, 0);
    assert_refused(&site.pull(&["--wait=0.1", "late"]).finish(), "has a job late; there are no jobs");
    assert_refused(&site.pull(&["--wait=0.1"]).finish(), "no engine");
}

#[test]
fn several_jobs_are_pulled_with_tags_also_those_that_begin_meanwhile() {
    let site = Site::new();
    let mut gates = ["a", "b", "c"].map(|name| site.gate(name));
    let first = job(&site, "train-a", &gates[0]);
    let other = job(&site, "other", &gates[2]);
    wait_for("the jobs", || (site.sockets().len() == 2).then_some(()));
    let pulls = [&["train-*"][..], &["--all"], &["train-a", "other"], &["train-?", "--output", "json"]];
    let pulls = pulls.map(|args| site.pull(args));
    let pattern = site.path().join("out.%j").into_os_string().into_string().unwrap();
    let files = site.pull(&["train-?", "-o", &pattern]);
    wait_for_pulls(&site, "train-a", 5);
    wait_for_pulls(&site, "other", 2);
    let second = job(&site, "train-b", &gates[1]);
    wait_for_pulls(&site, "train-b", 4);
    gates.iter_mut().for_each(Gate::open);
    let [matched, all, named, json] = pulls.map(Process::finish);
    let lines = |name: &str| ["one", "two"].map(|line| format!("[{name},0]<stdout>: {name} {line}"));
    let expected = |names: &[&str]| names.iter().flat_map(|name| lines(name)).collect::<Vec<_>>();
    assert_eq!(sorted(&matched), expected(&["train-a", "train-b"]));
    assert_eq!(sorted(&all), expected(&["other", "train-a", "train-b"]));
    assert_eq!(sorted(&named), expected(&["other", "train-a"]));
    assert_eq!(
        json.text()
            .lines()
            .filter(|line| line.starts_with("{\"type\":\"output\",\"nspace\":\"train-"))
            .count(),
        4
    );
    let done = files.finish();
    let file = fs::read_to_string(site.path().join("out.train-b")).unwrap();
    assert_eq!(file, "train-b one\ntrain-b two\n", "the name of the file has the job: {done:?}");
    for done in [matched, all, named, json] {
        assert_eq!((done.code, &*done.stderr), (0, ""));
    }
    assert_eq!([first, second, other].map(|run| run.finish().code), [0; 3]);
}

#[test]
fn runs_of_one_name_are_pulled_one_after_the_other() {
    with_longer_times(|wait| {
        let site = Site::new();
        let pull = site.pull(&["--persistent", &format!("--wait={wait}"), "again"]);
        for round in ["first", "second", "third"] {
            let mut gate = site.gate(round);
            let run = job(&site, "again", &gate);
            let is_pulled = || site.stream(0, "stdout").is_some_and(|stream| stream.pulls() == 1);
            let has_ended = || pull.exit_code().is_some();
            wait_for("the pull", || (is_pulled() || has_ended()).then_some(()));
            if has_ended() {
                return Err(format!("the {round} run began too late"));
            }
            gate.open();
            assert_eq!(run.finish().code, 0);
        }
        let done = pull.finish();
        assert_eq!((done.code, done.text()), (0, &*"again one\nagain two\n".repeat(3)), "{done:?}");
        Ok(())
    });
}

#[test]
fn a_job_that_is_not_pulled_whole_is_named_and_the_others_are_pulled() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let lost = job(&site, "lost", &gate);
    let whole = job(&site, "whole", &gate);
    wait_for("the jobs", || (site.sockets().len() == 2).then_some(()));
    let pull = site.pull(&["lost", "whole"]);
    wait_for_pulls(&site, "lost", 1);
    wait_for_pulls(&site, "whole", 1);
    lost.signal(Signal::SIGKILL);
    lost.wait();
    gate.open();
    let done = pull.finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.text().contains("whole two"), "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(lines[0].starts_with("iof: job lost: lost the engine"), "{done:?}");
    assert_eq!(lines[1..], ["iof: 1 of 2 jobs were not pulled whole"]);
    assert_eq!(whole.finish().code, 0);
}

#[test]
fn a_job_without_the_selected_rank_is_named_and_the_others_are_pulled() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let small = job(&site, "small", &gate);
    let script = format!("echo $IOF_RANK; : < {}", gate.path());
    let large = site.run_sh(&["--nspace", "large", "-n", "2"], &script);
    ["small", "large"].into_iter().for_each(|name| wait_for_pulls(&site, name, 0));
    let pull = site.pull(&["--all", "--rank", "1"]);
    wait_for_pulls_of(&site, "large", 1, 1);
    gate.open();
    let done = pull.finish();
    assert_eq!((done.code, done.text()), (1, "[large,1]<stdout>: 1\n"), "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    assert!(lines[0].starts_with("iof: job small: rank 1 does not exist"), "{done:?}");
    assert_eq!(lines[1], "iof: 1 of 2 jobs were not pulled whole");
    assert_eq!([small, large].map(|run| run.finish().code), [0; 2]);
}

#[test]
fn an_idle_pull_of_all_jobs_costs_next_to_nothing() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = job(&site, "idle", &gate);
    let pull = site.pull(&["--all", "--wait"]);
    wait_for_pulls(&site, "idle", 1);
    let switches = || {
        let status = fs::read_to_string(format!("/proc/{}/status", pull.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).unwrap();
        line.split_whitespace().last().unwrap().parse::<u32>().unwrap()
    };
    let before = switches();
    thread::sleep(Duration::from_secs(2));
    let count = switches() - before;
    assert!(count <= 20, "{count} wake-ups in 2 s");
    gate.open();
    assert_eq!(pull.finish().text().lines().count(), 2);
    assert_eq!(run.finish().code, 0);
}

#[test]
fn selections_of_jobs_that_cannot_be_are_refused() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = job(&site, "here", &gate);
    site.wait_for_ranks(1);
    let partly = site.pull(&["--wait=0.1", "here", "gone"]);
    for (args, reason) in [
        (&["here", "z-gone"][..], "no running engine has a job z-gone; the only job is here"),
        (&["here", "gone"], "no running engine has a job gone; the only job is here"),
        (&["gone-*"], "no job matches 'gone-*'; the only job is here"),
        (&["--wait=x", "here"], "invalid time 'x' for"),
        (&["--wait=-1", "here"], "'-1'"),
        (&["--persistent"], "--persistent needs the name of a job"),
        (&["--persistent", "--no-follow", "here"], "cannot be used with"),
        (&["--all", "here"], "cannot be used with"),
        (&["--all", "--nspace", "here"], "cannot be used with"),
        (&["--all", "--session"], "cannot be used with"),
        (&["a/*"], "'/'"),
        (&["--all", "--from", "1"], "--from applies to one run of one job"),
        (&["he*", "--resume", "f", "--output", "json"], "--resume applies to one run"),
        (&["he*", "--rank", "7"], "rank 7 does not exist"),
        (&["he*", "-o", "out"], "files of several jobs or runs would replace each other"),
        (&["--persistent", "here", "-o", "out.%j"], "--open-mode append"),
    ] {
        assert_refused(&site.pull(args).finish(), reason);
    }
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    assert_eq!(run.finish().code, 0);
    let partly = partly.finish();
    assert_eq!((partly.code, partly.text().lines().count()), (1, 2), "{partly:?}");
    assert!(
        partly
            .stderr
            .ends_with("has a job gone; the only job is here\niof: 1 of 2 jobs were not pulled whole\n")
    );
    assert_refused(&site.pull(&["--all"]).finish(), "there are no jobs");
}

#[test]
fn the_output_of_a_job_that_has_ended_is_kept_until_the_time_is_over_or_it_is_killed() {
    let site = Site::new();
    for end in ["kill", "signal"] {
        let run = site.run_sh(&["--keep", "1h", "--nspace", "kept", "-n", "2"], "echo out $IOF_RANK; exit 3");
        site.wait_for_state(0, "failed");
        site.wait_for_state(1, "failed");
        for _ in 0..2 {
            let done = site.pull(&["kept"]).finish();
            assert_eq!((done.code, sorted(&done)), (0, vec!["out 0", "out 1"]), "{done:?}");
        }
        let inside = Process::start(site.iof("run").args(["--in", "kept", "echo", "inside"])).finish();
        assert_eq!((inside.code, inside.text()), (0, "inside\n"));
        let kill = |signal| Process::start(site.iof("kill").args(["kept", signal])).finish();
        let ignored = kill("USR1");
        assert_eq!((ignored.code, &*ignored.stderr), (1, "iof: no selected rank of job kept is running\n"));
        if end == "kill" {
            assert_eq!(kill("TERM").code, 0);
        } else {
            run.signal(Signal::SIGINT);
        }
        let done = run.finish();
        assert_eq!((done.code, sorted(&done)), (3, vec!["out 0", "out 1"]), "{end}: {done:?}");
        let line =
            "iof: job kept has ended with exit code 3; its output is kept for 3600s: iof pull kept shows it";
        assert!(done.stderr.contains(line), "{done:?}");
    }
    let done = site.run(&["--keep", "0.1"], ["echo", "soon"]).finish();
    assert_eq!((done.code, done.text()), (0, "soon\n"));
    assert_refused(&site.pull(&["kept"]).finish(), "iof run --keep DURATION keeps the output");
}

#[test]
fn a_job_that_a_signal_ends_is_not_kept_and_one_that_cannot_be_is_refused() {
    let site = Site::new();
    let run = site.run_sh(&["--keep", "1h"], "echo ready; exec sleep 1000");
    site.wait_for_bytes(0, "stdout", 6);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.finish().code, 143);
    let run = |args: &[&str]| Process::start(site.iof("run").args(args)).finish();
    assert_refused(&run(&["--keep", "x", "true"]), "invalid time 'x'");
    assert_refused(&run(&["--keep", "1", "--hosts", "a,b", "true"]), "on this node only");
    let mut none = iof_testing::command::site::iof();
    none.args(["run", "--keep", "1", "--rendezvous-dir", "none", "true"]);
    assert_refused(&Process::start(&mut none).finish(), "--keep needs a socket for tools");
}
