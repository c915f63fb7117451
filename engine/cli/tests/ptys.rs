//! Ranks with a pseudo-terminal: what they see, what comes of their output, and whose the keyboard
//! is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::{Read, Write};

use common::bytes::{Pending, collect};
use common::process::Stat;
use common::site::Site;
use common::terminal::{CTRL_C, CTRL_D, CTRL_Z, Terminal};
use common::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::LocalFlags;
use nix::unistd::Pid;

/// Whether the terminal itself makes lines, echoes, and turns keys into signals.
fn is_cooked(terminal: &Terminal) -> bool {
    let flags = LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG;
    terminal.settings().local_flags.contains(flags)
}

fn wait_until_raw(terminal: &Terminal) {
    wait_for("the keyboard to be given", || (!is_cooked(terminal)).then_some(()));
}

fn wait_until_cooked(terminal: &Terminal) {
    wait_for("the keyboard to be taken back", || is_cooked(terminal).then_some(()));
}

const LOOK: &str = "for at in 0 1 2; do if [ -t $at ]; then printf $IOF_RANK; fi; done";

#[test]
fn the_ranks_of_the_list_have_terminals_and_no_others() {
    for (list, shown) in [("1", "111"), ("0,2-3", "000222333"), ("all", "000111222333")] {
        let done = Site::new().run_sh(&["-n", "4", "--pty", list], LOOK).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        let mut shown_sorted: Vec<char> = done.text().chars().collect();
        shown_sorted.sort_unstable();
        assert_eq!(shown_sorted.into_iter().collect::<String>(), shown, "{list}");
    }
}

#[test]
fn a_pty_for_a_rank_that_is_not_there_is_refused() {
    let done = Site::new().run(&["-n", "2", "--pty", "0-2"], ["true"]).finish();
    assert_eq!((done.code, done.text()), (2, ""));
    assert!(done.stderr.contains("invalid rank 2 for a pty: the job has 2"), "{done:?}");
}

#[test]
fn stderr_comes_with_stdout_in_the_order_of_writing_and_newlines_stay_as_they_are() {
    let script =
        "echo out; echo err >&2; echo tty >/dev/tty; printf 'a\\r\\n'; echo diag >/dev/fd/$IOF_STDDIAG_FD";
    let done = Site::new().run_sh(&["--pty", "0"], script).finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "out\nerr\ntty\na\r\n", "diag\n"));
}

#[test]
fn a_terminal_has_the_usual_size_where_the_command_has_none() {
    assert_eq!(
        Site::new().run(&["--pty", "all", "-n", "2"], ["stty", "size"]).finish().text(),
        "24 80\n24 80\n"
    );
}

#[test]
fn a_terminal_has_the_size_of_the_commands_and_follows_it() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 0 ] && exec sleep 1000; \
                  stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let (terminal, run) = site.run_at_terminal(["-n", "3", "--pty", "1-2", "--", "sh", "-c", script]);
    terminal.wait_for("24 80", 2);
    terminal.wait_for("ready", 2);
    terminal.resize(50, 132);
    terminal.wait_for("50 132", 2);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn stdin_that_is_no_terminal_is_typed_at_rank_0_without_an_echo_to_its_end() {
    let site = Site::new();
    let lines: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    let mut run = site.run(&["--pty", "0"], ["cat"]);
    let mut stdin = run.stdin();
    let fed = Pending::start({
        let lines = lines.clone();
        move || stdin.write_all(lines.as_bytes()).unwrap()
    });
    let stdout = collect(run.stdout());
    assert!(stdout.get() == lines.into_bytes());
    fed.get();
    assert_eq!(run.wait(), 0);

    let mut run = site.run_sh(&["--pty", "0"], "cat; echo; echo done");
    run.stdin().write_all(b"no newline").unwrap();
    assert_eq!(run.finish().text(), "no newline\ndone\n");
}

#[test]
fn the_other_ranks_read_the_end_at_once() {
    let site = Site::new();
    let mut run = site.run_sh(&["-n", "3", "--pty", "all"], "echo \"$IOF_RANK: $(cat)\"");
    for rank in [1, 2] {
        site.wait_for_state(rank, "terminated");
    }
    run.stdin().write_all(b"words\n").unwrap();
    let done = run.finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0: words", "1: ", "2: "]);
}

#[test]
fn keys_go_to_rank_0_as_they_are_typed_and_are_echoed_once() {
    let site = Site::new();
    // One key at a time, as editors and debuggers read them.
    let script = "stty -icanon min 1; echo ready; key=$(dd bs=1 count=1 2>/dev/null); echo \"<$key>\"; \
                  stty icanon; read line; echo \"<$line>\"";
    let (terminal, run) = site.run_at_terminal(["--pty", "0", "--", "sh", "-c", script]);
    terminal.wait_for("ready", 1);
    wait_until_raw(&terminal);
    terminal.type_keys("k");
    terminal.wait_for("<k>", 1);
    terminal.type_keys("words\r");
    terminal.wait_for("<words>", 1);
    assert_eq!(run.wait(), 0);
    assert_eq!(terminal.shown().replace('\r', ""), "ready\nk<k>\nwords\n<words>\n");
    assert!(is_cooked(&terminal), "the command leaves the terminal as it was");
}

#[test]
fn ctrl_c_goes_to_rank_0_while_it_runs_and_then_to_all() {
    let site = Site::new();
    let script = "trap 'echo interrupted $IOF_RANK; exit 0' INT; echo ready; while :; do sleep 0.1; done";
    let (terminal, run) = site.run_at_terminal(["-n", "3", "--pty", "0-1", "--", "sh", "-c", script]);
    terminal.wait_for("ready", 3);
    wait_until_raw(&terminal);
    terminal.type_keys(CTRL_C);
    site.wait_for_state(0, "terminated");
    for rank in [1, 2] {
        site.wait_for_state(rank, "running");
    }
    wait_until_cooked(&terminal);
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 0);
    for rank in 0..3 {
        terminal.wait_for(&format!("interrupted {rank}"), 1);
    }
}

#[test]
fn the_terminal_is_as_it_was_when_a_signal_has_ended_the_command() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let site = Site::new();
        let (terminal, run) = site.run_at_terminal(["--pty", "0", "--", "sleep", "1000"]);
        wait_until_raw(&terminal);
        run.signal(signal);
        assert_eq!(run.wait(), 128 + signal as i32);
        assert!(is_cooked(&terminal));
    }
}

#[test]
fn a_command_that_stands_still_gives_the_terminal_back_for_that_time() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("stty echo; run --pty 0 cat\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    wait_until_raw(&terminal);
    // Ctrl-Z stops rank 0 at its own terminal, where nobody continues it: it is an orphan, which the
    // kernel spares.
    terminal.type_keys(CTRL_Z);
    // Its echo: else the shell might be the one to read it.
    terminal.wait_for("^Z", 1);
    kill(Pid::from_raw(run.try_into().unwrap()), Signal::SIGTSTP).unwrap();
    terminal.wait_for("Stopped", 1);
    wait_until_cooked(&terminal);
    terminal.type_keys("fg\n");
    wait_until_raw(&terminal);
    terminal.type_keys("words\r");
    // The echo, and what cat says.
    terminal.wait_for("words", 2);
    terminal.type_keys(CTRL_D);
    wait_until_cooked(&terminal);
    terminal.type_keys("echo un''harmed\n");
    terminal.wait_for("unharmed", 1);
}

#[test]
fn in_the_background_the_command_waits_until_it_may_have_the_keyboard() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("stty echo; run --pty 0 cat &\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    wait_for("it to wait", || (Stat::of(run)?.state == 'T').then_some(()));
    terminal.type_keys("fg\n");
    wait_until_raw(&terminal);
    terminal.type_keys("words\r");
    terminal.wait_for("words", 2);
}

#[test]
fn the_rank_gets_sighup_when_the_command_is_killed() {
    let site = Site::new();
    let note = site.path().join("note");
    let script =
        format!("trap 'echo hup > {}; exit' HUP; echo ready; while :; do sleep 0.1; done", note.display());
    let mut run = site.run_sh(&["--pty", "0"], &script);
    let mut ready = [0; 6];
    run.stdout().read_exact(&mut ready).unwrap();
    run.signal(Signal::SIGKILL);
    wait_for("the note", || fs::read_to_string(&note).ok().filter(|note| note == "hup\n"));
}
