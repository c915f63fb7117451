//! `iof run` on several nodes, with a process that is stopped by SIGSTOP for a while: the front
//! end or an agent, in each phase of a job.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read};

use iof_testing::command::nodes::{agent_of, has_thread, send};
use iof_testing::command::site::Site;
use iof_testing::process::{Process, Stat};
use iof_testing::wait_for;
use nix::sys::signal::Signal;

/// The processes that are stopped: the front end, and the agent on n1.
const FROZEN: [Option<&str>; 2] = [None, Some("n1")];

/// Starts a rank on each of 4 nodes.
fn start(site: &Site, carrier: &str, options: &[&str], script: &str) -> Process {
    let rsh = format!("env NODE=%h {carrier}");
    let nodes = ["--nspace", "demo", "--rsh", &rsh, "--hosts", "n0,n1,n2,n3", "-n", "4"];
    site.run_sh(&[&nodes, options].concat(), script)
}

/// Stops the agent on a node, or the front end.
fn freeze(run: &Process, node: Option<&str>) {
    match node {
        Some(node) => {
            let agent = agent_of(run, node);
            send(agent, Signal::SIGSTOP);
            wait_for("the agent to stop", || is_stopped(agent).then_some(()));
        }
        None => run.stop(),
    }
}

fn thaw(run: &Process, node: Option<&str>) {
    match node {
        Some(node) => send(agent_of(run, node), Signal::SIGCONT),
        None => run.signal(Signal::SIGCONT),
    }
}

fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.state == 'T')
}

/// Returns the number in a line of a file in /proc.
fn number(pid: u32, file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the lines, sorted.
fn sorted(text: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> =
        String::from_utf8(text.to_vec()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_job_starts_although_carriers_and_its_front_end_stand_still_before_the_first_hello() {
    let site = Site::new();
    let carrier = site.path().join("carrier");
    fs::write(&carrier, "kill -STOP $$; exec sh -c \"$1\"\n").unwrap();
    let mut run = start(&site, &format!("sh {}", carrier.display()), &[], "echo $IOF_RANK");
    let (stdout, stderr) = run.collect();
    let stopped = || run.running("sh").into_iter().filter(|pid| is_stopped(*pid)).collect::<Vec<u32>>();
    wait_for("the carriers to stop", || (stopped().len() == 4).then_some(()));
    run.stop();
    stopped().into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
    wait_for("the agents", || (run.running("iof").len() == 5).then_some(()));
    run.signal(Signal::SIGCONT);
    assert_eq!(run.wait(), 0, "{}", String::from_utf8_lossy(&stderr.get()));
    assert_eq!(sorted(&stdout.get()), ["0", "1", "2", "3"]);
}

#[test]
fn a_job_starts_although_a_process_stands_still_between_the_preparation_and_the_start() {
    for frozen in FROZEN {
        let site = Site::new();
        let (held, carrier) = (site.path().join("held"), site.path().join("carrier"));
        fs::write(&held, "").unwrap();
        // No rank starts before the agent of n3 is ready.
        let script = "while [ $NODE = n3 ] && [ -e ${0%/*}/held ]; do sleep 0.01; done; exec sh -c \"$1\"\n";
        fs::write(&carrier, script).unwrap();
        let carrier = format!("sh {}", carrier.display());
        let mut run = start(&site, &carrier, &["--stdin", "all"], "cat; echo $IOF_RANK");
        let (stdout, stderr) = run.collect();
        drop(run.stdin());
        let is_preparing = |pid: &&u32| has_thread(**pid, "iof-capture");
        let wait_for_agents = |count: usize| {
            // The front end as well.
            wait_for("the agents", || {
                (run.running("iof").iter().filter(is_preparing).count() == count + 1).then_some(())
            });
        };
        wait_for_agents(3);
        freeze(&run, frozen);
        fs::remove_file(&held).unwrap();
        wait_for("the carrier of n3", || (run.running("iof").len() == 5).then_some(()));
        if frozen.is_some() {
            // Others go on.
            wait_for_agents(4);
        }
        thaw(&run, frozen);
        assert_eq!(run.wait(), 0, "{frozen:?}: {}", String::from_utf8_lossy(&stderr.get()));
        assert_eq!(sorted(&stdout.get()), ["0", "1", "2", "3"], "{frozen:?}");
    }
}

#[test]
fn all_output_arrives_after_any_process_has_stood_still_and_memory_stays_bounded() {
    const LENGTH: u64 = 24 << 20;
    for frozen in FROZEN {
        let site = Site::new();
        let script = format!("head -c {LENGTH} /dev/zero; exec sleep 1000");
        let mut run = start(&site, "sh -c", &["--output", "rank"], &script);
        let mut stdout = BufReader::new(run.stdout());
        stdout.read_exact(&mut [0]).unwrap();
        freeze(&run, frozen);
        let output = iof_testing::pipes::collect(stdout);
        let has_stalled = |pid: &u32| {
            let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let written = io.lines().find_map(|line| line.strip_prefix("wchar: "));
            written.is_some_and(|written| written.parse::<u64>().unwrap() > 1 << 20)
        };
        // Behind a front end that stands still, ranks write until caches and pipes are full. Behind an
        // agent, those of other nodes end.
        wait_for("the ranks to stall or end", || {
            let (writing, ended) = (run.running("head"), run.running("sleep").len());
            let stalled = || writing.iter().filter(|pid| has_stalled(pid)).count();
            (if frozen.is_none() { ended + stalled() == 4 } else { ended == 3 }).then_some(())
        });
        thaw(&run, frozen);
        let has_ended =
            |rank| site.stream(rank, "stdout").is_some_and(|stream| stream.number("produced") == LENGTH);
        wait_for("all output", || (0..4).all(has_ended).then_some(()));
        for pid in run.running("iof") {
            // Without the pages of the executable. Less than the output of one rank.
            let most = number(pid, "status", "VmHWM:") - number(pid, "status", "RssFile:");
            assert!(most < 20 << 10, "{frozen:?}: {most} KiB");
        }
        run.signal(Signal::SIGTERM);
        assert_eq!(run.wait(), 143);
        // The first byte that was read is the bracket before a rank.
        let zeros = output.get().into_iter().filter(|byte| *byte == 0).count();
        assert_eq!(zeros as u64, 4 * LENGTH);
    }
}

#[test]
fn exit_codes_and_last_lines_arrive_after_a_process_has_stood_still_while_ranks_ended() {
    for frozen in FROZEN {
        let site = Site::new();
        let go = site.path().join("go");
        let script = format!(
            "echo ready; until [ -e {} ]; do sleep 0.05; done; echo $IOF_RANK; [ $IOF_RANK != 1 ] || exit 7",
            go.display()
        );
        let mut run = start(&site, "sh -c", &["--kill-on-bad-exit=0"], &script);
        let mut stdout = BufReader::new(run.stdout());
        let stderr = iof_testing::pipes::collect(run.stderr());
        let mut lines = String::new();
        for _ in 0..4 {
            stdout.read_line(&mut lines).unwrap();
        }
        // A child that has not executed its program yet has the name of its parent.
        wait_for("the ranks alone", || (run.running("sh").len() == 4).then_some(()));
        freeze(&run, frozen);
        fs::write(&go, "").unwrap();
        wait_for("the ranks to end", || run.running("sh").is_empty().then_some(()));
        thaw(&run, frozen);
        assert_eq!(run.wait(), 7, "{}", String::from_utf8_lossy(&stderr.get()));
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert_eq!(sorted(&rest), ["0", "1", "2", "3"], "{frozen:?}");
    }
}
