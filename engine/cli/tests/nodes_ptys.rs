//! `iof run --hosts --pty`: ranks on other nodes with a pseudo-terminal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;

use iof_testing::command::site::Site;
use iof_testing::command::terminal::CTRL_C;
use iof_testing::pipes::collect;
use iof_testing::{Pending, wait_for};
use nix::sys::signal::Signal;

const NODES: [&str; 4] = ["--rsh", "sh -c", "--hosts", "a:2,b:2"];

#[test]
fn only_the_listed_ranks_on_other_nodes_have_terminals() {
    // Prints the rank once for each standard file that is a terminal.
    let script = "for fd in 0 1 2; do if [ -t $fd ]; then printf $IOF_RANK; fi; done";
    for (list, wanted) in [("1", "111"), ("0,2-3", "000222333"), ("all", "000111222333")] {
        let options = [&NODES[..], &["-n", "4", "--pty", list]].concat();
        let done = Site::new().run_sh(&options, script).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        let mut digits: Vec<char> = done.text().chars().collect();
        digits.sort_unstable();
        assert_eq!(digits.into_iter().collect::<String>(), wanted, "{list}");
    }
    let run = |options: &[&str]| {
        Site::new().run_sh(&[&NODES[..], &["-n", "2"], options].concat(), "echo started").finish()
    };
    let done = run(&["--pty", "0-2"]);
    assert!(done.code == 2 && done.stderr.contains("invalid rank 2 for a pty: the job has 2"), "{done:?}");
    let done = run(&["--pty", "1", "--stdin", "all"]);
    assert!(done.code == 2 && done.text().is_empty() && done.stderr.contains("rank 1"), "{done:?}");
}

#[test]
fn stdin_that_is_not_a_terminal_is_typed_at_a_rank_of_another_node_without_echo() {
    let lines: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    for rank in ["0", "3"] {
        let site = Site::new();
        let script = format!("[ $IOF_RANK != {rank} ] || exec cat");
        let options = [&NODES[..], &["-n", "4", "--pty", rank, "--stdin", rank]].concat();
        let mut run = site.run_sh(&options, &script);
        let mut stdin = run.stdin();
        let fed = Pending::start({
            let lines = lines.clone();
            move || stdin.write_all(lines.as_bytes()).unwrap()
        });
        let stdout = collect(run.stdout());
        assert!(stdout.get() == lines.clone().into_bytes());
        fed.get();
        assert_eq!(run.wait(), 0);
    }
    let options = [&NODES[..], &["--pty", "0"]].concat();
    let site = Site::new();
    let mut run = site.run_sh(&options, "cat; echo; echo done");
    run.stdin().write_all(b"no newline").unwrap();
    assert_eq!(run.finish().text(), "no newline\ndone\n");
}

#[test]
fn each_key_goes_to_a_rank_of_another_node_when_it_is_typed_and_is_echoed_once() {
    Site::new().check_keys(&[&NODES[..], &["--pty", "0"]].concat());
}

#[test]
fn terminals_on_other_nodes_have_the_size_of_the_commands_terminal_and_follow_it() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 0 ] && exec sleep 1000; \
                  trap 'stty size; exit 0' WINCH; stty size; echo ready; while :; do sleep 0.05; done";
    let words = ["-n", "4", "--pty", "1-2", "--", "sh", "-c", script];
    let (terminal, run) = site.run_at_terminal([&NODES[..], &words].concat());
    terminal.wait_for("24 80", 2);
    terminal.wait_for("ready", 2);
    terminal.resize(50, 132);
    terminal.wait_for("50 132", 2);
    run.signal(Signal::SIGTERM);
    run.wait();
}

#[test]
fn ctrl_c_goes_to_the_rank_of_another_node_while_it_runs_and_then_to_all_ranks() {
    let site = Site::new();
    let script = "trap 'echo interrupted $IOF_RANK; exit 0' INT; echo ready; while :; do sleep 0.1; done";
    let words = ["-n", "3", "--pty", "0-1", "--", "sh", "-c", script];
    let (terminal, run) = site.run_at_terminal([&NODES[..], &words].concat());
    terminal.wait_for("ready", 3);
    terminal.wait_until_raw();
    terminal.type_keys(CTRL_C);
    site.wait_for_state(0, "terminated");
    for rank in [1, 2] {
        site.wait_for_state(rank, "running");
    }
    terminal.wait_until_cooked();
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 0);
    for rank in 0..3 {
        terminal.wait_for(&format!("interrupted {rank}"), 1);
    }
}

#[test]
fn keys_interrupt_the_job_after_a_rank_of_another_node_closed_its_terminal() {
    let site = Site::new();
    let script = "echo ready; exec </dev/null >/dev/null 2>&1; exec sleep 1000";
    let (terminal, run) =
        site.run_at_terminal([&NODES[..], &["--pty", "0", "--", "sh", "-c", script]].concat());
    terminal.wait_for("ready", 1);
    terminal.wait_until_raw();
    wait_for("the command to have the keyboard back", || {
        terminal.type_keys("k");
        terminal.is_cooked().then_some(())
    });
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 130);
}
