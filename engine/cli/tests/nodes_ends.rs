//! Ends of jobs on several nodes: failed ranks, signals, nodes that die or do not answer. `sh -c`
//! starts the agents on this node.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ChildStdout;
use std::time::Instant;

use iof_nodes::limits::{MAX_ANSWERS_OF_NODE, MAX_EXCHANGE, MAX_GREETING, MAX_PIECE};
use iof_nodes::{Frame, HEADER, ToFrontEnd};
use iof_proto::{Exchange, Log, Nspace, Proc, Rank};
use iof_testing::command::nodes::{agent_of, by_rank, find_agent, has_thread, run, send, start};
use iof_testing::command::site::{Gate, Site, iof};
use iof_testing::process::{Done, Process, Stat};
use iof_testing::{wait_for, with_longer_times};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gethostname};

#[test]
fn a_failed_rank_is_told_with_its_host_and_gives_the_exit_code() {
    let done = run("a,b", &["-n", "2", "--summary"], "[ $IOF_RANK = 0 ] || exit 7");
    assert_eq!(done.code, 7);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(lines[0].starts_with("iof: job demo: rank 1 (sh, pid "), "{done:?}");
    assert!(lines[0].ends_with(" on b) ended with exit code 7"), "{done:?}");
    assert!(
        lines[1].contains("exit code 0: 1 rank, exit code 7: 1 rank (1); 0 bytes forwarded, 0 lost"),
        "{done:?}"
    );
}

#[test]
fn a_killed_rank_ends_the_ranks_of_all_nodes() {
    let done = run("a,b,c", &["-n", "3"], "[ $IOF_RANK = 1 ] && kill -KILL $$; exec sleep 1000");
    assert_eq!(done.code, 137);
    let told = "iof: job demo: terminated 2 other ranks (0,2) because rank 1 failed (see --kill-on-bad-exit)";
    assert_eq!(done.stderr.lines().last(), Some(told));
}

#[test]
fn a_time_limit_ends_the_ranks_of_all_nodes() {
    let done = run("a,b", &["-n", "2", "--timeout", "5"], "exec sleep 1000");
    assert_eq!(done.code, 124, "{done:?}");
    let told = "iof: job demo: not finished after 5s (--timeout): terminating ranks 0-1\n";
    assert_eq!(done.stderr, told);
}

#[test]
fn a_signal_reaches_the_ranks_of_all_nodes() {
    let site = Site::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = start(&site, "a,b", &["-n", "2"], script);
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    assert_eq!(line, "ready\nready\n");
    run.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got it\ngot it\n");
    assert_eq!(run.wait(), 3);
}

#[test]
fn a_node_that_dies_is_told_with_figures_and_ends_the_job() {
    let site = Site::new();
    let script = "echo $IOF_RANK; exec sleep 1000";
    let mut run = start(&site, "a,b:2", &["-n", "3", "--output", "rank", "--summary"], script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut line = String::new();
    for _ in 0..3 {
        stdout.read_line(&mut line).unwrap();
    }
    send(agent_of(&run, "b"), Signal::SIGKILL);
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let lines: Vec<&str> = stderr.lines().collect();
    let lost = "iof: job demo: node b is lost with ranks 1-2: its carrier ended with signal: 9 (SIGKILL); of its \
                unfinished output 4 bytes arrived, at least 0 are missing, and what";
    assert!(lines[0].starts_with(lost), "{stderr}");
    let ended = "iof: job demo: terminated 1 other rank (0) because node b was lost (see --kill-on-bad-exit)";
    assert_eq!(lines[1], ended, "{stderr}");
    let ranks = "ended by iof (SIGTERM): 1 rank (0), unknown exit status: 2 ranks (1-2); ";
    assert!(lines[2].contains(ranks), "{stderr}");
}

#[test]
fn a_node_that_is_lost_with_output_of_ranks_that_have_exited_gives_the_exit_code_1() {
    let site = Site::new();
    // A reader that stands still: a window of up to 4M is full, and the rest is in the agent's cache.
    let mut run = start(&site, "a", &["-n", "1", "--cache-size", "8M"], "head -c 8M /dev/zero");
    site.wait_for_state(0, "terminated");
    send(agent_of(&run, "a"), Signal::SIGKILL);
    let (output, errors) = run.collect();
    let (code, errors) = (run.wait(), String::from_utf8(errors.get()).unwrap());
    assert!(output.get().len() < 8 << 20);
    let lost = "iof: job demo: node a is lost: its carrier ended with signal: 9 (SIGKILL); of its unfinished output ";
    assert!(code == 1 && errors.starts_with(lost), "{code}: {errors}");
}

#[test]
fn a_node_that_is_lost_after_a_signal_to_end_leaves_the_exit_code_to_the_signal() {
    let site = Site::new();
    let script = "echo ready; exec sleep 1000";
    let mut run = start(&site, "a,b", &["-n", "2", "--kill-on-bad-exit=0"], script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    // Until all agents have told that their ranks run, a signal ends the command.
    wait_for("the end of the start", || has_thread(run.pid(), "iof-job").then_some(()));
    let agent = agent_of(&run, "b");
    send(agent, Signal::SIGSTOP);
    run.signal(Signal::SIGTERM);
    wait_for("the end of the rank on a", || (run.running("sleep").len() == 1).then_some(()));
    send(agent, Signal::SIGKILL);
    let code = run.wait();
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("node b is lost with rank 1: its carrier ended with signal: 9"), "{stderr}");
    assert_eq!(code, 143, "{stderr}");
}

#[test]
fn a_signal_gives_the_exit_code_although_all_nodes_that_run_ranks_are_lost_after_it() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let site = Site::new();
        // The default of --kill-on-bad-exit: the loss of a node ends a job that was not asked to end.
        let script = "[ $IOF_RANK = 3 ] || { echo ready; exec sleep 1000; }
                      trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.01; done";
        let mut run = start(&site, "a,b:2,c", &["-n", "4"], script);
        let mut stdout = BufReader::new(run.stdout());
        let stderr = iof_testing::pipes::collect(run.stderr());
        let mut line = String::new();
        for _ in 0..4 {
            stdout.read_line(&mut line).unwrap();
        }
        wait_for("the end of the start", || has_thread(run.pid(), "iof-job").then_some(()));
        let agents = ["a", "b"].map(|node| agent_of(&run, node));
        agents.iter().for_each(|agent| send(*agent, Signal::SIGSTOP));
        run.signal(signal);
        site.wait_for_state(3, "terminated");
        agents.iter().for_each(|agent| send(*agent, Signal::SIGKILL));
        let exit = run.wait();
        let stderr = String::from_utf8(stderr.get()).unwrap();
        assert!(["node a is lost", "node b is lost"].iter().all(|line| stderr.contains(line)), "{stderr}");
        assert!(exit == code && !stderr.contains("failed"), "{exit}: {stderr}");
    }
}

#[test]
fn a_signal_that_ends_a_job_of_which_only_output_is_left_cuts_no_object_of_json() {
    for hosts in [&[][..], &["--rsh", "sh -c", "--hosts", "a"]] {
        let site = Site::new();
        let options = [hosts, &["-n", "1", "--nspace", "demo", "--output", "json"]].concat();
        let mut run = site.run_sh(&options, "seq 100000");
        site.wait_for_state(0, "terminated");
        // It is being written, into a pipe that is too small.
        let mut output = run.stdout();
        output.read_exact(&mut [0]).unwrap();
        run.signal(Signal::SIGTERM);
        let lines = String::from_utf8(iof_testing::pipes::collect(output).get()).unwrap();
        assert_eq!(run.wait(), 143);
        assert!(lines.ends_with("}\n") && lines.lines().count() < 100_000, "{hosts:?}");
    }
}

/// Starts a job whose agent of b stands still, and checks that the job ends after `timeout`, or after two
/// interrupts. Fails if the time has passed before.
fn give_up_a_node(timeout: Option<&str>) -> Result<(), String> {
    let site = Site::new();
    let mut options = vec!["-n", "2", "--kill-wait", "0.1"];
    options.extend(timeout.iter().flat_map(|seconds| ["--timeout", seconds]));
    let began = Instant::now();
    let mut run = start(&site, "a,b", &options, "echo ready; exec sleep 1000");
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut lines = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut lines).unwrap();
    }
    let agent = find_agent(&run, "b").and_then(|agent| i32::try_from(agent).ok());
    agent.into_iter().for_each(|agent| _ = kill(Pid::from_raw(agent), Signal::SIGSTOP));
    if timeout.is_some_and(|seconds| began.elapsed().as_secs_f64() >= seconds.parse().unwrap()) {
        return Err(format!("the agent was stopped too late: {lines:?}"));
    }
    if timeout.is_none() {
        run.signal_twice(Signal::SIGINT);
    }
    let code = run.wait();
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("node b is lost with rank 1: its agent does not answer; of its"), "{stderr}");
    assert_eq!(code, if timeout.is_some() { 124 } else { 130 }, "{stderr}");
    Ok(())
}

#[test]
fn a_node_that_does_not_answer_is_given_up_after_a_time_limit_or_two_interrupts() {
    with_longer_times(|seconds| give_up_a_node(Some(seconds)));
    give_up_a_node(None).unwrap();
}

#[test]
fn a_start_that_hangs_ends_at_an_interrupt() {
    let site = Site::new();
    let path = site.path().join("carrier");
    fs::write(&path, "exec sleep 1000\n").unwrap();
    let run =
        site.run_sh(&["-n", "2", "--hosts", "a,b", "--rsh", &format!("sh {} %h", path.display())], "true");
    wait_for("the carriers", || (run.running("sleep").len() == 2).then_some(()));
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    wait_for("the end of the carriers", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn a_carrier_that_still_connects_ends_when_another_node_refuses_its_ranks() {
    let site = Site::new();
    let (carrier, pid) = (site.path().join("carrier"), site.path().join("pid"));
    let script = "[ $1 = b ] && { echo $$ >PID; exec sleep 1000; }
                  until [ -s PID ]; do sleep 0.01; done; exec sh -c \"$2\"\n";
    fs::write(&carrier, script.replace("PID", pid.to_str().unwrap())).unwrap();
    let mut run = site.iof("run");
    run.args(["--rsh", &format!("sh {} %h", carrier.display()), "--hosts", "a,b", "-n", "2"]);
    let done = Process::start(run.arg("/no/such/program")).finish();
    assert_eq!(done.code, 2, "{done:?}");
    let pid = fs::read_to_string(pid).unwrap();
    wait_for("the end of the carrier", || {
        // Its new parent may not have reaped it yet.
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn carriers_have_no_blocked_signals() {
    let site = Site::new();
    let path = site.path().join("carrier");
    // By the shell itself: it blocks signals while it starts a program.
    let script =
        "while read key value; do [ $key != SigBlk: ] || echo $value; done </proc/self/status >&2; exit 1\n";
    fs::write(&path, script).unwrap();
    let done = site.run_sh(&["--hosts", "a", "--rsh", &format!("sh {} %h", path.display())], "true").finish();
    let told = "its carrier ended with exit status: 1: 0000000000000000 (";
    assert!(done.stderr.contains(told), "{done:?}");
}

/// Starts ranks on the nodes a and b. What the agent of b sends after it is ready arrives when the
/// gate is opened. Returns when the rank on a runs.
fn start_with_delay(site: &Site, script: &str, gate: &Gate) -> (Process, BufReader<ChildStdout>) {
    // A hello, and the message with the padding after it.
    let length = ToFrontEnd::Ready.frame().unwrap().len() + 2 * HEADER;
    let path = site.path().join("carrier");
    let delay = format!("{{ dd bs=1 count={length} 2>/dev/null; : < {}; exec cat; }}", gate.path());
    fs::write(&path, format!("[ $1 = a ] && exec sh -c \"$2\"; sh -c \"$2\" | {delay}\n")).unwrap();
    let carrier = format!("sh {} %h", path.display());
    let mut run = site.run_sh(&["--hosts", "a,b", "-n", "2", "--rsh", &carrier], script);
    let (mut stdout, mut line) = (BufReader::new(run.stdout()), String::new());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (run, stdout)
}

#[test]
fn a_signal_while_some_nodes_have_started_their_ranks_is_for_the_ranks() {
    let site = Site::new();
    let (mut gate, ready) = (site.gate("gate"), site.path().join("ready"));
    let script = format!(
        "trap 'echo got it; exit 3' TERM; echo ready; : > {}.$IOF_RANK; while :; do sleep 0.01; done",
        ready.display()
    );
    let (run, mut stdout) = start_with_delay(&site, &script, &gate);
    wait_for("the rank on b", || ready.with_extension("1").exists().then_some(()));
    run.signal(Signal::SIGTERM);
    run.wait_for_signals();
    gate.open();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let mut lines: Vec<&str> = rest.lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, run.wait()), (vec!["got it", "got it", "ready"], 3));
}

#[test]
fn two_signals_end_a_start_although_a_node_does_not_answer() {
    let site = Site::new();
    let gate = site.gate("gate");
    let (run, _stdout) = start_with_delay(&site, "echo ready; exec sleep 1000", &gate);
    run.signal_twice(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    wait_for("the ranks to end", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn tools_tell_the_broken_streams_of_a_dead_node_from_complete_ones() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_RANK; [ $IOF_RANK = 1 ] && exec sleep 1000; : < {}", gate.path());
    let options = ["-n", "2", "--output", "json", "--kill-on-bad-exit=0"];
    let mut run = start(&site, "a,b", &options, &script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = iof_testing::pipes::collect(run.stderr());
    let mut lines = String::new();
    while lines.matches("\"output\"").count() < 2 {
        stdout.read_line(&mut lines).unwrap();
    }
    let pull = site.pull(&["--output", "rank"]);
    // A stream from which nothing has arrived has no ring.
    site.wait_for_pulls(1, "stdout", 1);
    send(agent_of(&run, "b"), Signal::SIGKILL);
    site.wait_for_stream(1, "stdout", |stream| stream.0["missing"] == 0);
    assert!(!site.stream(0, "stdout").unwrap().is_complete());
    gate.open();
    stdout.read_to_string(&mut lines).unwrap();
    assert_eq!(run.wait(), 1);
    assert!(stderr.get().is_empty() && lines.contains("node b is lost with rank 1"), "{lines}");
    let broken: Vec<&str> = lines
        .lines()
        .filter(|line| line.starts_with("{\"type\":\"end\"") && line.ends_with(",\"missing\":0}"))
        .collect();
    assert_eq!(broken.len(), 3, "{lines}");
    assert!(broken.iter().all(|line| line.contains("\"rank\":1") && line.contains("\"host\":\"b\"")));
    let done = pull.finish();
    let told = "iof: 3 streams are broken, because nodes were lost or did not answer, a rank could not be read, or \
                a job was ended before its output was read: at least 0 bytes at their ends are missing\n";
    assert_eq!((done.code, done.stderr.as_str()), (1, told), "{done:?}");
    assert_eq!(by_rank(done.text()).len(), 2);
}

#[test]
fn ranks_end_when_their_front_end_dies() {
    let site = Site::new();
    let mut run = start(&site, "a,b", &["-n", "2"], "(trap '' TERM; exec sleep 1000) & echo ready; wait");
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    wait_for("the children", || (run.running("sleep").len() == 2).then_some(()));
    run.signal(Signal::SIGKILL);
    wait_for("the agents, their ranks and the children of these to end", || {
        (run.living().len() <= 1).then_some(())
    });
}

#[test]
fn no_rank_starts_if_one_node_cannot_start_its_ranks() {
    let site = Site::new();
    let nodes =
        ["--rsh", "sh -c", "--hosts", "a,b", "-n", "1", "echo", "started", ":", "-n", "1", "/no/such"];
    let done = Process::start(site.iof("run").args(nodes)).finish();
    assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
    assert!(done.stderr.starts_with("iof: b: ") && done.stderr.contains("/no/such"), "{done:?}");
    let by = |rsh| site.run_sh(&["--hosts", "a", "--rsh", rsh], "true").finish();
    let done = by("/no/such");
    assert!(done.code == 2 && done.stderr.contains("cannot start an agent on a: "), "{done:?}");
}

#[test]
fn a_start_that_fails_at_its_carrier_is_told_with_the_remedy_for_its_exit_status() {
    let site = Site::new();
    let run = "the command of --rsh must run its last word, a shell command, on the node";
    let reach = "the command of --rsh must reach the node without a password: try it with the command true";
    let install = "each node needs iof at the path that it has here";
    let login = "sshd of the node lets nobody log in: see /etc/nologin there";
    for (status, hint) in [(1, run), (126, install), (127, install), (254, login), (255, reach)] {
        let path = site.install_script(&format!("#!/bin/sh\nexit {status}\n"), "carrier");
        let done = site.run_sh(&["--hosts", "a", "--rsh", path.to_str().unwrap()], "true").finish();
        let reason = format!("its carrier ended with exit status: {status}");
        let told = format!("iof: cannot start ranks on a: {reason} ({hint})");
        assert_eq!((done.code, done.stderr.lines().last()), (1, Some(told.as_str())));
    }
}

#[test]
fn an_agent_that_speaks_wrongly_is_cut_off() {
    let site = Site::over_stdin();
    let start = |message: ToFrontEnd| [Frame::HELLO.header().unwrap().to_vec(), message.frame().unwrap()];
    let frames = start(ToFrontEnd::Started { pids: vec![1] }).concat();
    let done = run_hostile(&site, &frames, "a");
    let told = "iof: cannot start ranks on a: its agent is cut off: unexpected control message\n";
    assert_eq!((done.code, done.stderr.as_str()), (1, told));
}

#[test]
fn an_agent_that_speaks_wrongly_has_time_to_end_its_ranks() {
    let site = Site::over_stdin();
    let (mut gate, mut end, path) = (site.gate("gate"), site.gate("end"), site.path().join("carrier"));
    // The carrier of b is its agent. Another process passes on its output, and adds bytes that are
    // not a frame.
    let fifo = site.path().join("fifo");
    let carrier = format!(
        "[ $1 = a ] && exec sh -c \"$2\"; mkfifo {0}
         {{ cat < {0} & : < {1}; echo not a frame, but a text of 32 bytes or more; wait; }} &
         exec sh -c \"$2\" > {0}\n",
        fifo.display(),
        gate.path(),
    );
    fs::write(&path, carrier).unwrap();
    let template = format!("env NODE=%h sh {} %h", path.display());
    let options = ["--hosts", "a,b", "-n", "2", "--rsh", &template, "--nspace", "demo"];
    let options = [&options[..], &["--kill-on-bad-exit=0", "--kill-wait", "1.5"]].concat();
    // That of b ends by SIGKILL only.
    let script = format!(
        "echo ready; [ $IOF_RANK = 1 ] || {{ : < {}; exit; }}; trap '' TERM; exec sleep 1000",
        end.path()
    );
    let mut run = site.run_sh(&options, &script);
    let (mut stdout, mut lines) = (BufReader::new(run.stdout()), String::new());
    for _ in 0..2 {
        stdout.read_line(&mut lines).unwrap();
    }
    assert_eq!(lines, "ready\nready\n");
    let stderr = iof_testing::pipes::collect(run.stderr());
    wait_for("the rank", || (run.running("sleep").len() == 1).then_some(()));
    let agent = agent_of(&run, "b");
    gate.open();
    wait_for("the end of the rank", || run.running("sleep").is_empty().then_some(()));
    // The front end has waited for its carrier.
    wait_for("the end of the agent", || (!fs::exists(format!("/proc/{agent}")).unwrap()).then_some(()));
    end.open();
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("node b is lost with rank 1: its agent is cut off: "), "{stderr}");
}

/// Runs one rank on each host. An agent on host a sends these frames, and reads nothing; those on other
/// hosts do not start.
fn run_hostile(site: &Site, frames: &[u8], hosts: &str) -> Done {
    let path = site.path().join("frames");
    fs::write(&path, frames).unwrap();
    let agent = format!("#!/bin/sh\n[ $1 != a ] || cat {}; exec sleep 1000\n", path.display());
    let rsh = format!("{} %h", site.install_script(&agent, "agent").display());
    let ranks = hosts.split(',').count().to_string();
    let options = ["--nspace", "demo", "--hosts", hosts, "-n", &ranks, "--rsh", &rsh];
    site.run_sh(&options, "true").finish()
}

/// Returns what an agent sends until its only rank runs, and then this message a number of times.
fn started_and(message: &ToFrontEnd, times: usize) -> Vec<u8> {
    let start = [ToFrontEnd::Ready, ToFrontEnd::Started { pids: vec![1] }];
    let mut frames = Frame::HELLO.header().unwrap().to_vec();
    start.iter().for_each(|message| frames.extend(message.frame().unwrap()));
    frames.extend(message.frame().unwrap().repeat(times));
    frames
}

#[test]
fn an_agent_that_answers_what_it_was_not_asked_is_cut_off_in_each_phase() {
    let site = Site::over_stdin();
    let frames = started_and(&ToFrontEnd::StdinTaken { call: 7, answer: Ok(Vec::new()) }, 1);
    let reason = "its agent is cut off: no piece of stdin with number 7 waits for an answer of this node";
    let done = run_hostile(&site, &frames, "a,b");
    let told = format!("iof: cannot start ranks on a: {reason}\n");
    assert_eq!((done.code, done.stderr), (1, told), "while another node has not started");
    let done = run_hostile(&site, &frames, "a");
    let told = format!("iof: job demo: node a is lost with rank 0: {reason}; ");
    assert!(done.code == 1 && done.stderr.starts_with(&told), "{done:?}");
}

#[test]
fn an_agent_that_sends_values_of_wrong_sizes_is_cut_off_and_the_line_has_the_limit() {
    let site = Site::over_stdin();
    let piece = |bytes| ToFrontEnd::Piece(vec![0; bytes]);
    let limits = "expected pieces of at most 65536, and 16777216 in all (MAX_EXCHANGE)";
    let of_another = ToFrontEnd::Exchange {
        call: 1,
        rank: Rank(1),
        exchange: Exchange::Modex(Proc::new(Nspace::new("demo").unwrap(), Rank(0))),
    };
    for (message, times, reason) in [
        (piece(MAX_PIECE + 1), 1, format!("65537 bytes of values, {limits}")),
        (piece(0), 1, format!("0 bytes of values, {limits}")),
        (piece(MAX_PIECE), MAX_EXCHANGE / MAX_PIECE + 1, format!("16842752 bytes of values, {limits}")),
        (of_another, 1, "rank 1 does not run on this node".to_owned()),
    ] {
        let done = run_hostile(&site, &started_and(&message, times), "a");
        let told = format!("iof: job demo: node a is lost with rank 0: its agent is cut off: {reason}; ");
        assert!(done.code == 1 && done.stderr.starts_with(&told), "{reason}: {done:?}");
    }
}

#[test]
fn an_agent_that_does_not_read_the_answers_to_its_log_requests_is_cut_off() {
    let site = Site::over_stdin();
    let log = ToFrontEnd::Log { call: 1, log: Log { data: Vec::new(), directives: Vec::new() } };
    // More than the pipe of the carrier takes in addition.
    let done = run_hostile(&site, &started_and(&log, 4 * MAX_ANSWERS_OF_NODE), "a");
    let reason = "its agent is cut off: more than 8192 answers wait for it (MAX_ANSWERS_OF_NODE)";
    let told = format!("iof: job demo: node a is lost with rank 0: {reason}; ");
    assert!(done.code == 1 && done.stderr.starts_with(&told), "{done:?}");
}

#[test]
fn a_node_that_is_silent_is_given_up_after_its_time_limit_and_leaves_no_agent() {
    let site = Site::new();
    let options = ["-n", "2", "--node-timeout", "5", "--kill-wait", "0.1"];
    let mut run = start(&site, "a,b", &options, "echo ready; exec sleep 1000");
    let mut stdout = BufReader::new(run.stdout());
    let mut line = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut line).unwrap();
    }
    let stderr = iof_testing::pipes::collect(run.stderr());
    let agent = agent_of(&run, "b");
    send(agent, Signal::SIGSTOP);
    assert_eq!(run.wait(), 1);
    wait_for("the agent that stands still to end", || Stat::of(agent).is_none().then_some(()));
    let told = String::from_utf8(stderr.get()).unwrap();
    assert!(told.contains("node b is lost with rank 1: its agent was silent for 5 s; of its"), "{told}");
}

#[test]
fn a_pause_of_the_front_end_is_not_a_silence_of_its_nodes() {
    let site = Site::new();
    let stop = site.path().join("stop");
    let script = format!("echo ready; while [ ! -e {} ]; do sleep 0.05; done; echo end", stop.display());
    let mut run = start(&site, "a,b", &["-n", "2", "--node-timeout", "5"], &script);
    let mut stdout = BufReader::new(run.stdout());
    let mut lines = String::new();
    for _ in 0..2 {
        stdout.read_line(&mut lines).unwrap();
    }
    run.stop();
    // Longer than the limit.
    std::thread::sleep(std::time::Duration::from_secs(6));
    run.signal(Signal::SIGCONT);
    fs::write(&stop, "").unwrap();
    stdout.read_to_string(&mut lines).unwrap();
    assert_eq!((run.wait(), lines.as_str()), (0, "ready\nready\nend\nend\n"));
}

#[test]
fn stopped_ranks_of_other_nodes_end_at_a_signal_that_asks_to_end() {
    let site = Site::new();
    let run = start(&site, "a,b", &["-n", "2"], "kill -STOP $$");
    let is_stopped = |pid: &u32| Stat::of(*pid).is_some_and(|stat| stat.state == 'T');
    let stopped = || run.running("sh").iter().filter(|pid| is_stopped(pid)).count();
    wait_for("the ranks to stop", || (stopped() == 2).then_some(()));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 128 + Signal::SIGTERM as i32);
}

#[test]
fn text_before_the_first_frame_of_an_agent_is_shown_up_to_a_limit() {
    let site = Site::over_stdin();
    let greet = |text: &str| {
        let script = format!("#!/bin/sh\n{text}\nexec sh -c \"$1\"\n");
        site.install_script(&script, "greet").to_str().unwrap().to_owned()
    };
    // The bytes with which frames begin, and a part of a hello.
    let rsh = greet(r"echo Welcome; printf '\6\0\0\0\0\5\t\11iofedge\n'");
    let broken = "\u{6}\0\0\0\0\u{5}\t\tiofedge";
    for options in [&[][..], &["--reattach", "100"]] {
        let nodes = ["--hosts", "a,b", "-n", "2", "--rsh", &rsh];
        let done = site.run_sh(&[&nodes, options].concat(), "echo x").finish();
        assert_eq!((done.code, done.text()), (0, "x\nx\n"), "{options:?}");
        let mut shown: Vec<&str> = done.stderr.lines().collect();
        shown.sort_unstable();
        let broken = |host| format!("iof: {host}: {}", broken.escape_default());
        assert_eq!(shown, ["iof: a: Welcome", &broken("a"), "iof: b: Welcome", &broken("b")], "{options:?}");
    }
    let rsh = greet(&format!("yes '' | head -c {}", MAX_GREETING + 1));
    let done = site.run_sh(&["--hosts", "a", "--rsh", &rsh], "true").finish();
    let told = "iof: cannot start ranks on a: cannot read from its carrier: more than 65536 bytes \
                (MAX_GREETING) precede the first frame (the command of --rsh must not write to stdout)\n";
    assert_eq!((done.code, done.stderr.as_str()), (1, told));
}

#[test]
fn what_a_carrier_writes_on_stderr_is_shown_with_its_node_up_to_a_limit() {
    let site = Site::new();
    // A process that outlives the carrier, as that of a ControlMaster.
    let script = "#!/bin/sh\n[ $1 = b ] || sleep 1000 </dev/null >/dev/null &\n\
                  echo \"Last login: $1\" >&2; [ $1 = a ] || yes text | head -c 1M >&2; exec sh -c \"$2\"\n";
    let rsh = format!("{} %h", site.install_script(script, "login").display());
    let mut run = site.run_sh(&["--hosts", "a,b", "-n", "2", "--rsh", &rsh], "echo x");
    let (output, errors) = run.collect();
    assert_eq!((run.wait(), output.get().as_slice()), (0, &b"x\nx\n"[..]));
    let told = String::from_utf8(errors.get()).unwrap();
    run.running("sleep").into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
    for line in ["a: Last login: a", "b: Last login: b", "b: more than 65536 bytes: the rest is not shown"] {
        assert_eq!(told.lines().filter(|told| *told == format!("iof: {line}")).count(), 1, "{line}");
    }
    let shown = told.lines().filter(|line| *line == "iof: b: text").count();
    assert!(shown * "text\n".len() <= MAX_GREETING && shown > 10_000, "{shown}");
}

#[test]
fn what_a_failed_start_wrote_on_stderr_is_a_part_of_its_line() {
    let site = Site::new();
    let script = "#!/bin/sh\nsleep 1000 </dev/null >/dev/null &\nprintf 'no\\r\\n\\nroute\\7' >&2; exit 3\n";
    let rsh = site.install_script(script, "login").display().to_string();
    let mut run = site.run_sh(&["--hosts", "a", "--rsh", &rsh], "true");
    let errors = iof_testing::pipes::collect(run.stderr());
    assert_eq!(run.wait(), 1);
    run.running("sleep").into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
    let told = "iof: cannot start ranks on a: its carrier ended with exit status: 3: no; route\\u{7} (";
    let errors = String::from_utf8(errors.get()).unwrap();
    assert!(errors.starts_with(told) && errors.lines().count() == 1, "{errors}");
}

#[test]
fn binary_text_of_a_failed_start_is_cut_and_escaped() {
    for (text, shown) in [("\\0", "\\u{0}"), ("\\377", "\u{fffd}"), ("\\33", "\\u{1b}")] {
        let site = Site::new();
        let script = format!("#!/bin/sh\nhead -c 20000 /dev/zero | tr '\\0' '{text}' >&2; exit 3\n");
        let rsh = site.install_script(&script, "login").display().to_string();
        let done = site.run_sh(&["--hosts", "a", "--rsh", &rsh], "true").finish();
        let told = "iof: cannot start ranks on a: its carrier ended with exit status: 3: ...";
        assert!(done.code == 1 && done.stderr.starts_with(told), "{done:?}");
        assert!(done.stderr.contains(shown) && done.stderr.len() < 1200, "{done:?}");
    }
}

#[test]
fn an_agent_cuts_off_a_front_end_that_speaks_wrongly() {
    let mut agent = Process::start(iof().arg("agent"));
    let mut stdin = agent.stdin();
    stdin.write_all(&[99; 32]).unwrap();
    let done = agent.finish();
    assert_eq!(done.code, 1, "{done:?}");
    let (host, reason) = (gethostname().unwrap(), "the front end is cut off: unknown kind of frame 99");
    assert_eq!(done.stderr, format!("iof: {}: {reason}\n", host.to_str().unwrap()));
}

#[test]
fn a_front_end_and_an_agent_of_another_version_refuse_each_other_with_both_numbers() {
    let Frame::Hello { version: ours } = Frame::HELLO else { panic!() };
    let theirs = ours + 1;
    let hello = Frame::Hello { version: theirs }.header().unwrap();
    let reason = format!(
        "is cut off: the other end has version {theirs} of the frames, and this one version {ours}: install the same \
         iof"
    );
    let done = run_hostile(&Site::over_stdin(), &hello, "a");
    let told = format!("iof: cannot start ranks on a: its agent {reason}\n");
    assert_eq!((done.code, done.stderr), (1, told));
    let mut agent = Process::start(iof().arg("agent"));
    agent.stdin().write_all(&hello).unwrap();
    let done = agent.finish();
    let host = gethostname().unwrap();
    let told = format!("iof: {}: the front end {reason}\n", host.to_str().unwrap());
    assert_eq!((done.code, done.stderr), (1, told));
}

#[test]
fn iof_kill_signals_all_or_some_ranks_on_other_nodes() {
    let site = Site::new();
    let script = "trap 'echo got it' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let options = ["-n", "3", "--output", "rank", "--no-forward", "stderr"];
    let mut run = start(&site, "a:2,b:1", &options, script);
    let mut stdout = BufReader::new(run.stdout());
    let mut lines = |count: usize| {
        let mut lines = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            lines.push(line);
        }
        lines.sort_unstable();
        lines.concat()
    };
    lines(3);
    let kill = |words: &[&str]| Process::start(site.iof("kill").args(words)).finish();
    let done = kill(&["demo", "USR1"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(lines(3), "[0]<stdout>: got it\n[1]<stdout>: got it\n[2]<stdout>: got it\n");
    assert_eq!(kill(&["demo", "USR1", "--rank", "1"]).code, 0);
    assert_eq!(lines(1), "[1]<stdout>: got it\n");
    let done = kill(&["demo", "--rank", "7"]);
    assert_eq!((done.code, done.stderr.as_str()), (2, "iof: job demo has no rank 7\n"));
    assert_eq!(kill(&["demo"]).code, 0);
    assert_eq!(run.wait(), 0);
}

#[test]
fn the_line_about_a_failed_rank_follows_its_last_output() {
    let done = run("a:2,b:2", &["-n", "4"], "seq 20000 >&2; exit 3");
    assert_eq!(done.code, 3, "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("iof: job demo: rank ")).unwrap();
    assert!(lines[..first].contains(&"20000"), "{}", lines[first]);
    for line in lines.iter().filter(|line| line.starts_with("iof: ")) {
        assert!(line.contains(") ended with exit code 3") || line.contains("terminated"), "{line}");
    }
}
