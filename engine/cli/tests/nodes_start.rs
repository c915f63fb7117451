//! Starts on several nodes that hang, or that the nodes refuse at first. A script in place of ssh starts
//! the agents on this node.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read};

use iof_testing::command::nodes::send;
use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process, Stat};
use iof_testing::wait_for;
use nix::sys::signal::Signal;

/// A login for each kind of node. `late` waits for the gate `late`. `busy` refuses as sshd with MaxStartups does, as often as the file
/// `refusals` has bytes.
const LOGIN: &str = r#"#!/bin/sh
case $1 in
    hangs) echo 'Enter PIN:' >&2; sleep 1000 ;;
    late) : > "$FILES/begun"; : < "$FILES/late" ;;
    busy)
        if [ -s "$FILES/refusals" ]; then
            truncate -s -1 "$FILES/refusals"
            echo "Connection closed by remote host" >&2
            exit 255
        fi ;;
    broken) echo once >> "$FILES/logins"; exit 1 ;;
esac
exec sh -c "$2"
"#;

fn start(site: &Site, hosts: &str, options: &[&str]) -> Process {
    start_ranks(site, hosts, options, &["echo", "ran"])
}

fn start_ranks(site: &Site, hosts: &str, options: &[&str], program: &[&str]) -> Process {
    let rsh = format!("{} %h", site.install_script(LOGIN, "login").display());
    let nodes = ["--nspace", "demo", "-n", "2", "--rsh", &rsh, "--hosts", hosts];
    let mut command = site.iof("run");
    command.env("FILES", site.path()).args(nodes).args(options).arg("--").args(program);
    Process::start(&mut command)
}

/// Waits until the login on the node `late` has begun.
fn wait_for_login(site: &Site) {
    wait_for("the login", || site.path().join("begun").exists().then_some(()));
}

fn run(site: &Site, hosts: &str, options: &[&str]) -> Done {
    start(site, hosts, options).finish()
}

#[test]
fn a_node_at_which_a_login_hangs_is_named_and_ends_the_job_in_time() {
    // What it has printed is shown whether its end or this command is faster.
    for _ in 0..2 {
        let done = run(&Site::new(), "a,hangs", &["--start-timeout", "2"]);
        assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
        let told = "iof: hangs: Enter PIN:\niof: the ranks did not start within 2 s: no answer from hangs (";
        assert!(done.stderr.starts_with(told), "{done:?}");
    }
}

#[test]
fn the_time_limit_of_a_job_counts_its_start() {
    let done = run(&Site::new(), "hangs,a", &["--timeout", "2"]);
    let told =
        "iof: hangs: Enter PIN:\niof: job demo: not started after 2s (--timeout): no answer from hangs\n";
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (124, "", told));
}

#[test]
fn after_a_while_a_line_names_who_is_waited_for_and_an_interrupt_repeats_it() {
    let site = Site::new();
    // Of two limits, the line names the smaller one.
    let mut run = start(&site, "a,hangs", &["--timeout", "50", "--start-timeout", "1m"]);
    let mut stderr = BufReader::new(run.stderr());
    let line = "iof: job demo: waiting for the agents of hangs, for at most 50s (--timeout)\n";
    let mut told = String::new();
    stderr.read_line(&mut told).unwrap();
    run.signal(Signal::SIGINT);
    stderr.read_to_string(&mut told).unwrap();
    assert_eq!(told, format!("{line}{line}iof: hangs: Enter PIN:\n"));
}

#[test]
fn an_interrupt_names_who_is_waited_for_also_when_the_start_has_just_begun() {
    let site = Site::new();
    let _gate = site.gate("late");
    let run = start(&site, "a,late", &[]);
    wait_for_login(&site);
    run.signal(Signal::SIGINT);
    let done = run.finish();
    assert_eq!((done.code, done.text()), (130, ""), "{done:?}");
    assert!(done.stderr.starts_with("iof: job demo: waiting for the agents of "), "{done:?}");
    assert!(done.stderr.ends_with("late, for at most 60s (--start-timeout)\n"), "{done:?}");
}

#[test]
fn a_signal_for_the_ranks_that_arrives_during_a_login_waits_for_them() {
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        let site = Site::new();
        let mut gate = site.gate("late");
        let run = start_ranks(&site, "a,late", &[], &["sleep", "1000"]);
        wait_for_login(&site);
        run.signal(signal);
        run.wait_for_signals();
        gate.open();
        assert_eq!(run.wait(), 128 + signal as i32);
    }
}

#[test]
fn a_stop_that_arrives_during_a_login_stops_the_command_and_its_ranks_when_they_run() {
    let site = Site::new();
    let mut gate = site.gate("late");
    let rsh = format!("{} %h", site.install_script(LOGIN, "login").display());
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys(&format!("export FILES={}\n", site.path().display()));
    terminal.type_keys(&format!("run -n 2 --hosts a,late --rsh '{rsh}' sleep 1000\n"));
    wait_for_login(&site);
    let run = shell.running("iof")[0];
    send(run, Signal::SIGTSTP);
    wait_for("the signal to be taken", || {
        let status = fs::read_to_string(format!("/proc/{run}/status")).unwrap();
        status.lines().any(|line| line == "ShdPnd:\t0000000000000000").then_some(())
    });
    gate.open();
    terminal.wait_for("Stopped", 1);
    let ranks = || shell.running("sleep");
    let are_stopped = || ranks().iter().all(|pid| Stat::of(*pid).is_some_and(|stat| stat.state == 'T'));
    wait_for("the ranks to stop", || (ranks().len() == 2 && are_stopped()).then_some(()));
    terminal.type_keys("fg\n");
    wait_for("the ranks to go on", || (!are_stopped()).then_some(()));
    send(run, Signal::SIGTERM);
    wait_for("the end", || ranks().is_empty().then_some(()));
}

#[test]
fn a_stop_and_a_continue_during_a_login_leave_the_ranks_running() {
    let site = Site::new();
    let mut gate = site.gate("late");
    let run = start(&site, "a,late", &[]);
    wait_for_login(&site);
    for signal in [Signal::SIGTSTP, Signal::SIGCONT] {
        run.signal(signal);
        run.wait_for_signals();
    }
    gate.open();
    let done = run.finish();
    assert_eq!((done.code, done.text()), (0, "ran\nran\n"), "{done:?}");
}

#[test]
fn a_connection_that_is_refused_is_tried_three_times_and_no_agent_is_started_twice() {
    let site = Site::new();
    fs::write(site.path().join("refusals"), "12").unwrap();
    let done = run(&site, "a,busy", &[]);
    assert_eq!((done.code, done.text()), (0, "ran\nran\n"), "{done:?}");
    assert_eq!(done.stderr.matches("trying again").count(), 2, "{done:?}");

    fs::write(site.path().join("refusals"), "1234").unwrap();
    let done = run(&site, "a,busy", &[]);
    assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
    assert!(done.stderr.contains("cannot start ranks on busy: its carrier ended with exit status: 255: Connection closed by remote host ("));
    assert_eq!(fs::read(site.path().join("refusals")).unwrap().len(), 1, "{done:?}");
}

#[test]
fn a_start_that_has_failed_for_another_reason_is_not_tried_again() {
    let site = Site::new();
    let done = run(&site, "a,broken", &[]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(fs::read_to_string(site.path().join("logins")).unwrap(), "once\n");
}

#[test]
fn agents_are_started_one_after_the_other_if_that_is_asked_for() {
    let site = Site::new();
    let done = run(&site, "hangs,broken", &["--starts", "1", "--start-timeout", "0.5"]);
    assert!(done.stderr.contains("no answer from hangs (1 more node waits for its turn) ("), "{done:?}");
    assert!(!site.path().join("logins").exists());
}
