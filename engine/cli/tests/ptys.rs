//! Ranks with a pseudo-terminal: its settings and size, their output, and the keyboard.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{Read, Write};

use iof_testing::bytes::assert_same;
use iof_testing::command::site::Site;
use iof_testing::command::terminal::{CTRL_C, CTRL_D, CTRL_Z};
use iof_testing::pipes::collect;
use iof_testing::process::Stat;
use iof_testing::{Pending, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Prints the rank once for each standard file that is a terminal.
const TEST_FILES: &str = "for fd in 0 1 2; do if [ -t $fd ]; then printf $IOF_RANK; fi; done";

/// Options for a job on other nodes.
const NODES: &[&str] = &["--rsh", "sh -c", "--hosts", "a:2,b:2"];
/// Options for a job on this node, and for one on other nodes.
const PLACES: [&[&str]; 2] = [&[], NODES];

#[test]
fn only_the_listed_ranks_have_terminals() {
    for place in PLACES {
        for (list, wanted) in [("1", "111"), ("0,2-3", "000222333"), ("all", "000111222333")] {
            let options = [place, &["-n", "4", "--pty", list]].concat();
            let done = Site::new().run_sh(&options, TEST_FILES).finish();
            assert_eq!((done.code, done.stderr.as_str()), (0, ""));
            let mut digits: Vec<char> = done.text().chars().collect();
            digits.sort_unstable();
            assert_eq!(digits.into_iter().collect::<String>(), wanted, "{list} {place:?}");
        }
    }
}

#[test]
fn a_pty_for_an_unknown_rank_is_rejected() {
    for place in PLACES {
        let done =
            Site::new().run_sh(&[place, &["-n", "2", "--pty", "0-2"]].concat(), "echo started").finish();
        assert_eq!((done.code, done.text()), (2, ""));
        assert!(done.stderr.contains("invalid rank 2 for a pty: the job has 2"), "{done:?}");
    }
}

#[test]
fn a_pty_on_another_node_for_a_rank_whose_stdin_others_share_is_rejected() {
    let options = [NODES, &["-n", "2", "--pty", "1", "--stdin", "all"]].concat();
    let done = Site::new().run_sh(&options, "echo started").finish();
    assert!(done.code == 2 && done.text().is_empty() && done.stderr.contains("rank 1"), "{done:?}");
}

#[test]
fn stderr_joins_stdout_in_the_order_of_writing_with_unchanged_newlines() {
    let script =
        "echo out; echo err >&2; echo tty >/dev/tty; printf 'a\\r\\n'; echo diag >/dev/fd/$IOF_STDDIAG_FD";
    let done = Site::new().run_sh(&["--pty", "0"], script).finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "out\nerr\ntty\na\r\n", "diag\n"));
}

#[test]
fn a_terminal_has_the_default_size_if_the_command_has_no_terminal() {
    assert_eq!(
        Site::new().run(&["--pty", "all", "-n", "2"], ["stty", "size"]).finish().text(),
        "24 80\n24 80\n"
    );
}

#[test]
fn a_terminal_has_the_size_of_the_commands_terminal_and_follows_it() {
    for place in PLACES {
        let site = Site::new();
        let script = "[ $IOF_RANK = 0 ] && exec sleep 1000; \
                      trap 'stty size; exit 0' WINCH; stty size; echo ready; while :; do sleep 0.05; done";
        let words = ["-n", "3", "--pty", "1-2", "--", "sh", "-c", script];
        let (terminal, run) = site.run_at_terminal([place, &words].concat());
        terminal.wait_for("24 80", 2);
        terminal.wait_for("ready", 2);
        terminal.resize(50, 132);
        terminal.wait_for("50 132", 2);
        run.signal(Signal::SIGTERM);
        assert_eq!(run.wait(), 143);
    }
}

#[test]
fn stdin_that_is_not_a_terminal_is_typed_at_its_rank_without_echo() {
    let lines: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    for (place, rank) in [(PLACES[0], "0"), (NODES, "0"), (NODES, "3")] {
        let script = format!("[ $IOF_RANK != {rank} ] || exec cat");
        let options = [place, &["-n", "4", "--pty", rank, "--stdin", rank]].concat();
        let site = Site::new();
        let mut run = site.run_sh(&options, &script);
        let (mut stdin, bytes) = (run.stdin(), lines.clone().into_bytes());
        let fed = Pending::start(move || stdin.write_all(&bytes).unwrap());
        assert!(collect(run.stdout()).get() == lines.as_bytes(), "{rank} {place:?}");
        fed.get();
        assert_eq!(run.wait(), 0);
    }
    for place in PLACES {
        let site = Site::new();
        let mut run = site.run_sh(&[place, &["--pty", "0"]].concat(), "cat; echo; echo done");
        run.stdin().write_all(b"no newline").unwrap();
        assert_eq!(run.finish().text(), "no newline\ndone\n");
    }
}

#[test]
fn stdin_that_is_not_a_terminal_arrives_unchanged_with_control_characters_and_long_lines() {
    let all: Vec<u8> = (0..=255).collect();
    // A terminal cuts lines of more than 4095 bytes. Pieces of a line end at any byte of a read.
    let input = [&all[..], b"\n", &vec![b'x'; 100_000], b"\r\n", &all, &vec![b'y'; 2048]].concat();
    // Neither signals nor stops come from bytes that a program reads without the quotes.
    let settings = Site::new().run_sh(&["--pty", "0"], "stty -a").finish();
    assert!(["-isig", "-ixon"].iter().all(|flag| settings.text().contains(flag)), "{settings:?}");
    for reader in ["cat", "dd bs=1024 status=none", "dd bs=1023 status=none"] {
        let site = Site::new();
        let mut run = site.run_sh(&["--pty", "0"], reader);
        let (mut stdin, bytes) = (run.stdin(), input.clone());
        let fed = Pending::start(move || stdin.write_all(&bytes).unwrap());
        let stdout = collect(run.stdout());
        assert_same(reader, &stdout.get(), &input);
        fed.get();
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn the_other_ranks_read_end_of_file_at_once() {
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
fn each_key_goes_to_rank_0_when_it_is_typed_and_is_echoed_once() {
    for place in PLACES {
        Site::new().check_keys(&[place, &["--pty", "0"]].concat());
    }
}

#[test]
fn ctrl_c_goes_to_rank_0_while_it_runs_and_then_to_all_ranks() {
    for place in PLACES {
        let site = Site::new();
        let script = "trap 'echo interrupted $IOF_RANK; exit 0' INT; echo ready; while :; do sleep 0.1; done";
        let words = ["-n", "3", "--pty", "0-1", "--", "sh", "-c", script];
        let (terminal, run) = site.run_at_terminal([place, &words].concat());
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
}

#[test]
fn keys_interrupt_the_job_after_a_rank_of_another_node_closed_its_terminal() {
    let site = Site::new();
    let script = "echo ready; exec </dev/null >/dev/null 2>&1; exec sleep 1000";
    let (terminal, run) = site.run_at_terminal([NODES, &["--pty", "0", "--", "sh", "-c", script]].concat());
    terminal.wait_for("ready", 1);
    terminal.wait_until_raw();
    wait_for("the command to have the keyboard back", || {
        terminal.type_keys("k");
        terminal.is_cooked().then_some(())
    });
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 130);
}

#[test]
fn the_terminal_is_restored_when_a_signal_ends_the_command() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let site = Site::new();
        let (terminal, run) = site.run_at_terminal(["--pty", "0", "--", "sleep", "1000"]);
        terminal.wait_until_raw();
        run.signal(signal);
        assert_eq!(run.wait(), 128 + signal as i32);
        assert!(terminal.is_cooked());
    }
}

#[test]
fn a_line_about_a_failed_rank_waits_until_the_screen_of_another_is_closed() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    // Rank 0 draws on the terminal as an editor does.
    let script = format!(
        "[ $IOF_RANK = 0 ] || {{ : < {}; exit 3; }}; printf '\\033[?1049hscreen'; read line; \
         printf 'drawn\\033[?1049l'; echo closed",
        gate.path()
    );
    let (terminal, run) = site.run_at_terminal(["-n", "2", "--pty", "0", "--", "sh", "-c", &script]);
    terminal.wait_for("screen", 1);
    terminal.wait_until_raw();
    gate.open();
    site.wait_for_state(1, "failed");
    terminal.type_keys("\r");
    assert_eq!(run.wait(), 3);
    let shown = terminal.all_shown();
    let (screen, rest) = shown.split_once("\x1b[?1049l").unwrap();
    assert!(!screen.contains("iof:"), "{shown:?}");
    let (_, after) = rest.split_once("closed\r\n").unwrap();
    assert!(after.starts_with("iof: job sh: rank 1 (sh, pid ") && after.lines().count() == 1, "{shown:?}");
}

#[test]
fn a_line_about_a_failed_rank_follows_the_screen_while_other_ranks_run() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        "[ $IOF_RANK = 0 ] && {{ printf '\\033[?1049hscreen'; read line; printf '\\033[?1049lleft'; read line; exit 0; }}; \
         [ $IOF_RANK = 1 ] && {{ : < {}; exit 3; }}; exec sleep 1000",
        gate.path()
    );
    let (terminal, run) = site.run_at_terminal(["-n", "3", "--pty", "0", "--", "sh", "-c", &script]);
    terminal.wait_for("screen", 1);
    terminal.wait_until_raw();
    gate.open();
    site.wait_for_state(1, "failed");
    terminal.type_keys("\r");
    terminal.wait_for("iof: job sh: rank 1 (sh, pid ", 1);
    assert!(terminal.shown().find("left") < terminal.shown().find("iof: job"), "{:?}", terminal.shown());
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 3);
}

#[test]
fn a_stopped_command_restores_the_terminal_while_it_is_stopped() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("stty echo; run --pty 0 cat\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    terminal.wait_until_raw();
    // Ctrl-Z goes to the terminal of rank 0. It does not stop rank 0, because its process group is
    // orphaned.
    terminal.type_keys(CTRL_Z);
    // Waits for the echo, because otherwise the shell might read the key.
    terminal.wait_for("^Z", 1);
    kill(Pid::from_raw(run.try_into().unwrap()), Signal::SIGTSTP).unwrap();
    terminal.wait_for("Stopped", 1);
    terminal.wait_until_cooked();
    terminal.type_keys("fg\n");
    terminal.wait_until_raw();
    terminal.type_keys("words\r");
    // The echo and the output of cat.
    terminal.wait_for("words", 2);
    terminal.type_keys(CTRL_D);
    terminal.wait_until_cooked();
    terminal.type_keys("echo un''harmed\n");
    terminal.wait_for("unharmed", 1);
}

#[test]
fn a_command_that_sigstop_has_stopped_takes_the_keyboard_again() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("stty echo; run --pty 0 cat\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    terminal.wait_until_raw();
    kill(Pid::from_raw(run.try_into().unwrap()), Signal::SIGSTOP).unwrap();
    terminal.wait_for("Stopped", 1);
    // As some shells do.
    terminal.type_keys("stty sane\n");
    terminal.wait_until_cooked();
    terminal.type_keys("fg\n");
    terminal.wait_until_raw();
    terminal.type_keys("words\r");
    terminal.wait_for("words", 2);
}

#[test]
fn in_the_background_the_command_waits_for_the_keyboard() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("stty echo; run --pty 0 cat &\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    wait_for("the command to be stopped", || (Stat::of(run)?.state == 'T').then_some(()));
    terminal.type_keys("fg\n");
    terminal.wait_until_raw();
    terminal.type_keys("words\r");
    terminal.wait_for("words", 2);
}

#[test]
fn the_rank_gets_sighup_when_the_command_is_killed() {
    let site = Site::new();
    let note = site.path().join("note");
    let script = format!(
        "trap '' TERM; trap 'echo hup > {}; exit' HUP; echo ready; while :; do sleep 0.1; done",
        note.display()
    );
    let mut run = site.run_sh(&["--pty", "0"], &script);
    let mut ready = [0; 6];
    run.stdout().read_exact(&mut ready).unwrap();
    run.signal(Signal::SIGKILL);
    wait_for("the note", || fs::read_to_string(&note).ok().filter(|note| note == "hup\n"));
}
