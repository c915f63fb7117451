//! `iof run --tree`: agents that relay for further agents, which `sh -c` starts on this node.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};

use common::nodes::{agent_of, by_rank, has_thread, run_on_a_hundred_nodes, send};
use common::process::{Done, Process};
use common::site::Site;
use common::wait_for;
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

/// Returns the names of this number of hosts, each with a slot.
fn hosts(count: usize) -> String {
    (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>().join(",")
}

/// Starts a job named demo with a rank on each of `count` hosts. With 3 edges at each node, n0 of
/// 13 nodes relays for n1 to n4, and n1 for n2; with 2 edges, n0 of 7 nodes relays for n1, n3.
fn start(site: &Site, (count, radix): (usize, &str), options: &[&str], script: &str) -> Process {
    let (hosts, ranks) = (hosts(count), count.to_string());
    let nodes = ["--nspace", "demo", "--rsh", "env NODE=%h sh -c", "--hosts", &hosts, "-n", &ranks];
    site.run_sh(&[&nodes[..], &["--tree", radix], options].concat(), script)
}

fn run(tree: (usize, &str), options: &[&str], script: &str) -> Done {
    start(&Site::new(), tree, options, script).finish()
}

/// Reads one line of each rank.
fn read_lines(stdout: &mut impl BufRead, count: usize) -> String {
    let mut lines = String::new();
    for _ in 0..count {
        stdout.read_line(&mut lines).unwrap();
    }
    lines
}

#[test]
fn all_bytes_of_40_agents_in_trees_arrive_once_and_in_order() {
    // Lines of 16 bytes, so that none is divided between two writes of seq(1).
    let script = "seq -f %015.0f 2000; echo $IOF_RANK >&2";
    for radix in ["1", "4", "39"] {
        let done = run((40, radix), &["--output", "rank", "--summary"], script);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let output = by_rank(done.text());
        assert_eq!(output.len(), 40);
        for lines in output.values() {
            assert!(lines.iter().zip(1..).all(|(line, number)| *line == format!("{number:015}")));
            assert_eq!(lines.len(), 2000);
        }
        assert!(done.stderr.contains(" 0 lost"), "{}", done.stderr);
    }
}

#[test]
fn the_line_of_each_rank_of_a_hundred_agents_in_a_tree_arrives_once() {
    run_on_a_hundred_nodes(&["--tree", "10"]);
}

/// Returns the number of bytes that a process has passed to write(2) and its relatives.
fn written(process: &Process) -> Option<usize> {
    let io = fs::read_to_string(format!("/proc/{}/io", process.pid())).ok()?;
    io.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

#[test]
fn stdin_for_all_ranks_passes_the_edge_of_the_front_end_once() {
    const BYTES: usize = 4 << 20;
    let site = Site::new();
    let mut run = start(&site, (6, "1"), &["--stdin", "all"], "wc -c; exec sleep 1000");
    let mut stdin = run.stdin();
    stdin.write_all(&vec![b'x'; BYTES]).unwrap();
    drop(stdin);
    let mut stdout = BufReader::new(run.stdout());
    assert_eq!(read_lines(&mut stdout, 6), format!("{BYTES}\n").repeat(6));
    let written = written(&run).unwrap();
    assert!((BYTES..BYTES * 2).contains(&written), "{written}");
    run.signal(Signal::SIGTERM);
    run.wait();
}

#[test]
fn stdin_for_all_ranks_waits_for_one_that_does_not_read_yet_and_for_none_that_has_ended() {
    let site = Site::new();
    let go = site.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let script =
        format!("case $IOF_RANK in 2) exit 0 ;; 3) {wait} ;; esac; read line; echo begins; sha256sum");
    let mut run = start(&site, (6, "2"), &["--stdin", "all"], &script);
    let input: String = (0..600_000).map(|number| format!("{number}\n")).collect();
    let sum = sum(input.strip_prefix("0\n").unwrap());
    let mut stdin = run.stdin();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let mut stdout = BufReader::new(run.stdout());
    assert_eq!(read_lines(&mut stdout, 4), "begins\n".repeat(4));
    fs::write(go, "").unwrap();
    let output = read_lines(&mut stdout, 6);
    assert_eq!(output.lines().filter(|line| line.starts_with(&sum)).count(), 5, "{output}");
    writer.join().unwrap().unwrap();
    assert_eq!(run.wait(), 0);
}

/// Returns the SHA-256 sum of a text as `sha256sum` prints it.
fn sum(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn stdin_goes_through_relays_to_one_rank_and_to_all() {
    for (options, ranks) in [(&["--stdin", "all"] as &[&str], 13), (&["--stdin", "4"], 1)] {
        let site = Site::new();
        let mut run = start(&site, (13, "3"), options, "sha256sum");
        let input: String = (0..100_000).map(|number| format!("{number}\n")).collect();
        let mut stdin = run.stdin();
        let (stdout, stderr) = run.collect();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        assert_eq!(run.wait(), 0, "{}", String::from_utf8_lossy(&stderr.get()));
        let output = String::from_utf8(stdout.get()).unwrap();
        let with_input = output.lines().filter(|line| line.starts_with(&sum(&input))).count();
        let without = output.lines().filter(|line| line.starts_with(&sum(""))).count();
        assert_eq!((with_input, without), (ranks, 13 - ranks), "{output}");
    }
}

#[test]
fn signals_and_exit_codes_go_through_relays() {
    let site = Site::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut run = start(&site, (13, "3"), &["--summary"], script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    assert_eq!(read_lines(&mut stdout, 13), "ready\n".repeat(13));
    // Until all agents have told that their ranks run, a signal ends the command.
    wait_for("the end of the start", || has_thread(run.pid(), "iof-nodes").then_some(()));
    run.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest, run.wait()), ("got it\n".repeat(13), 3));
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("exit code 3: 13 ranks (0-12)"), "{stderr}");
}

#[test]
fn a_failed_rank_behind_a_relay_is_told_with_its_host_and_ends_the_job() {
    let done = run((13, "3"), &["-K"], "[ $IOF_RANK != 3 ] || exit 7; exec sleep 1000");
    assert_eq!(done.code, 7);
    assert!(done.stderr.contains(" on n3) ended with exit code 7"), "{done:?}");
    let told = "terminated 12 other ranks (0-2,4-12) because rank 3 failed (see --kill-on-bad-exit)\n";
    assert!(done.stderr.ends_with(told), "{done:?}");
}

#[test]
fn the_death_of_a_relay_breaks_its_whole_subtree_and_no_other_stream() {
    let site = Site::new();
    let script = "echo $IOF_RANK; exec sleep 1000";
    let mut run = start(&site, (13, "3"), &["--kill-on-bad-exit=0", "--output", "json"], script);
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    read_lines(&mut stdout, 13);
    // Its subtree is n1 and n2.
    send(agent_of(&run, "n1"), Signal::SIGKILL);
    let broken = |rank| site.stream(rank, "stdout").is_some_and(|stream| stream.0["missing"] == 0);
    wait_for("the broken streams", || (broken(1) && broken(2)).then_some(()));
    assert!((0..13).filter(|rank| ![1, 2].contains(rank)).all(|rank| !broken(rank)));
    // Their ranks have ended, too: the agent of n2 has lost the front end, and n1 has a guardian.
    wait_for("the ranks to end", || (run.running("sleep").len() == 11).then_some(()));
    // The other relays still pass signals.
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let lost = |line: &str| stderr.lines().any(|other| other.starts_with(line));
    assert!(
        lost(
            "iof: job demo: node n1 is lost with rank 1: its carrier ended with signal: 9 (SIGKILL); of its \
              unfinished output 2 bytes arrived, at least 0 are missing, and"
        ),
        "{stderr}"
    );
    assert!(
        lost(
            "iof: job demo: node n2 is lost with rank 2: its relay n1 is lost: its carrier ended with signal: 9"
        ),
        "{stderr}"
    );
    assert_eq!(stderr.matches(" is lost with rank").count(), 2, "{stderr}");
}

#[test]
fn the_death_of_a_node_behind_a_relay_ends_the_job() {
    let site = Site::new();
    let mut run = start(&site, (7, "2"), &[], "echo $IOF_RANK; exec sleep 1000");
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    read_lines(&mut stdout, 7);
    send(agent_of(&run, "n2"), Signal::SIGKILL);
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(
        lines[0].starts_with("iof: job demo: node n2 is lost with rank 2: its carrier ended"),
        "{stderr}"
    );
    let told = "terminated 6 other ranks (0-1,3-6) because rank 2 failed (see --kill-on-bad-exit)";
    assert!(lines[1].ends_with(told) && lines.len() == 2, "{stderr}");
}

#[test]
fn a_relay_that_stands_still_holds_back_its_subtree_alone_and_bounds_its_memory() {
    const LENGTH: u64 = 8 << 20;
    let site = Site::new();
    // Of 9 nodes, n0 relays for n1 to n4, and n5 for n6 to n8.
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' x; echo; exec sleep 1000");
    let mut run = start(&site, (9, "2"), &["--output", "rank"], &script);
    let mut stdout = BufReader::new(run.stdout());
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    let relay = agent_of(&run, "n0");
    send(relay, Signal::SIGSTOP);
    let output = common::bytes::collect(stdout);
    let has_ended =
        |rank| site.stream(rank, "stdout").is_some_and(|stream| stream.number("produced") == LENGTH + 1);
    wait_for("the output of the other subtree", || (5..9).all(has_ended).then_some(()));
    assert!(!(0..5).all(has_ended));
    // An agent has a cache of 1 MiB for each rank. A relay holds little of each child, and what it
    // has read down.
    let memory = |pid: u32| -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        field.trim().trim_end_matches(" kB").parse().unwrap()
    };
    assert!(memory(relay) < 32 << 10, "{} KiB", memory(relay));
    send(relay, Signal::SIGCONT);
    wait_for("all output", || (0..9).all(has_ended).then_some(()));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    let x = output.get().into_iter().chain(first).filter(|byte| *byte == b'x').count();
    assert_eq!(x as u64, 9 * LENGTH);
}

#[test]
fn a_frozen_node_behind_a_relay_is_given_up_after_a_time_limit() {
    let site = Site::new();
    let options = ["--kill-wait", "0.1", "--timeout", "2"];
    let mut run = start(&site, (7, "2"), &options, "echo ready; exec sleep 1000");
    let mut stdout = BufReader::new(run.stdout());
    let stderr = common::bytes::collect(run.stderr());
    read_lines(&mut stdout, 7);
    send(agent_of(&run, "n2"), Signal::SIGSTOP);
    assert_eq!(run.wait(), 124);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    // Its relay may have ended it first.
    assert!(stderr.contains("node n2 is lost with rank 2: its "), "{stderr}");
    assert_eq!(stderr.matches(" is lost with rank").count(), 1, "{stderr}");
    wait_for("the frozen agent to end", || run.running("iof").is_empty().then_some(()));
}

#[test]
fn agents_and_ranks_end_when_their_front_end_dies() {
    let site = Site::new();
    let mut run = start(&site, (13, "3"), &[], "echo ready; exec sleep 1000");
    read_lines(&mut BufReader::new(run.stdout()), 13);
    assert_eq!(run.running("sleep").len(), 13);
    run.signal(Signal::SIGKILL);
    wait_for("the agents and their ranks to end", || (run.living().len() <= 1).then_some(()));
}

#[test]
fn no_rank_starts_if_a_node_behind_a_relay_does_not_start() {
    let site = Site::new();
    let path = site.path().join("carrier");
    // The carrier of n4 fails, as one that can't connect; that of n2 runs no agent.
    for (host, does, reason) in [
        ("n4", "echo no such host >&2; exit 255", "its carrier ended with exit status: 255"),
        ("n2", "echo Welcome", "its carrier ended with exit status: 0"),
    ] {
        fs::write(&path, format!("[ $1 != {host} ] || {{ {does}; exit; }}; exec sh -c \"$2\"\n")).unwrap();
        let carrier = format!("sh {} %h", path.display());
        let options = ["--hosts", &hosts(7), "-n", "7", "--tree", "2", "--rsh", &carrier];
        let done = site.run_sh(&options, "echo started").finish();
        assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
        let told = format!("iof: cannot start ranks on {host}: {reason}");
        assert!(done.stderr.lines().any(|line| line.starts_with(&told)), "{done:?}");
        // What the carrier of a relay writes to stderr arrives, too.
        assert_eq!(done.stderr.contains("no such host\n"), host == "n4", "{done:?}");
    }
}

#[test]
fn a_start_that_hangs_behind_a_relay_ends_at_an_interrupt() {
    let site = Site::new();
    let path = site.path().join("carrier");
    fs::write(&path, "[ $1 = n0 ] || exec sleep 1000; exec sh -c \"$2\"\n").unwrap();
    let carrier = format!("sh {} %h", path.display());
    let options = ["--hosts", "n0,n1,n2", "-n", "3", "--tree", "1", "--rsh", &carrier];
    let run = site.run_sh(&options, "true");
    wait_for("the carriers", || (run.running("sleep").len() == 1).then_some(()));
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    wait_for("the end of the carriers", || run.running("sleep").is_empty().then_some(()));
}

#[test]
fn a_carrier_that_still_connects_ends_with_a_relay_that_cannot_start_its_ranks() {
    let site = Site::new();
    let (carrier, pid) = (site.path().join("carrier"), site.path().join("pid"));
    let script = "[ $1 = n1 ] && { echo $$ >PID; exec sleep 1000; }; exec sh -c \"$2\"\n";
    fs::write(&carrier, script.replace("PID", pid.to_str().unwrap())).unwrap();
    let mut run = site.iof("run");
    run.args(["--rsh", &format!("sh {} %h", carrier.display()), "--hosts", "n0,n1", "--tree", "1"]);
    let done = Process::start(run.args(["-n", "2", "/no/such/program"])).finish();
    assert_eq!(done.code, 2, "{done:?}");
    // If the refusal came first, no carrier was started.
    if let Ok(pid) = fs::read_to_string(pid) {
        wait_for("the end of the carrier", || {
            // Its new parent may not have reaped it yet.
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
        });
    }
}

#[test]
fn a_node_behind_a_relay_that_speaks_wrongly_has_time_to_end_its_ranks() {
    let site = Site::new();
    let (mut gate, mut end, path) = (site.gate("gate"), site.gate("end"), site.path().join("carrier"));
    // The carrier of n1 is its agent. Another process passes on its output, and adds bytes that are
    // not a frame.
    let fifo = site.path().join("fifo");
    let carrier = format!(
        "[ $1 = n0 ] && exec sh -c \"$2\"; mkfifo {0}
         {{ cat < {0} & : < {1}; echo not a frame, but a text of 32 bytes or more; wait; }} &
         exec sh -c \"$2\" > {0}\n",
        fifo.display(),
        gate.path(),
    );
    fs::write(&path, carrier).unwrap();
    let template = format!("env NODE=%h sh {} %h", path.display());
    let options = ["--hosts", "n0,n1", "-n", "2", "--tree", "1", "--rsh", &template];
    let options =
        [&options[..], &["--nspace", "demo", "--kill-on-bad-exit=0", "--kill-wait", "1.5"]].concat();
    // That of n1 ends by SIGKILL only.
    let script = format!(
        "echo ready; [ $IOF_RANK = 1 ] || {{ : < {}; exit; }}; trap '' TERM; exec sleep 1000",
        end.path()
    );
    let mut run = site.run_sh(&options, &script);
    assert_eq!(read_lines(&mut BufReader::new(run.stdout()), 2), "ready\nready\n");
    let stderr = common::bytes::collect(run.stderr());
    wait_for("the rank", || (run.running("sleep").len() == 1).then_some(()));
    let agent = agent_of(&run, "n1");
    gate.open();
    wait_for("the end of the rank", || run.running("sleep").is_empty().then_some(()));
    // The relay has waited for its carrier.
    wait_for("the end of the agent", || (!fs::exists(format!("/proc/{agent}")).unwrap()).then_some(()));
    end.open();
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("node n1 is lost with rank 1: its agent is cut off: "), "{stderr}");
}

#[test]
fn a_tree_needs_nodes_and_a_positive_radix() {
    let site = Site::new();
    let done = site.run_sh(&["--tree", "2"], "true").finish();
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (2, "iof: --tree needs nodes: write --hosts or --hostfile\n")
    );
    assert_eq!(run((2, "0"), &[], "true").code, 2);
}
