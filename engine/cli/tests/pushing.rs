//! `iof push`: what arrives at whom, what is said when it does not, and with which exit code.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use common::bytes::{Pending, Sum, assert_same, noise, sum};
use common::process::{Done, Process};
use common::site::Site;
use common::terminal::Terminal;
use common::{wait_for, without_waits};
use nix::sys::signal::Signal;

/// More than all pipes and caches on the way hold.
const LARGE: usize = 5_000_003;
/// Each rank leaves what it reads in a file.
const KEEP: &str = "cat > got.$IOF_RANK";

/// Starts `iof run OPTIONS -- sh -c SCRIPT` in the site's directory, and waits for its ranks.
fn run(site: &Site, ranks: usize, options: &[&str], script: &str) -> Process {
    let count = ranks.to_string();
    let place = ["-n", &count, "--wdir", site.path().to_str().unwrap()];
    let run = site.run_sh(&[&place, options].concat(), script);
    site.wait_for_ranks(ranks);
    run
}

fn got(site: &Site, rank: usize) -> Vec<u8> {
    fs::read(site.path().join(format!("got.{rank}"))).unwrap()
}

fn start(site: &Site, options: &[&str]) -> Process {
    Process::start(site.iof("push").args(options))
}

/// Pushes `bytes` by way of stdin.
fn push(site: &Site, options: &[&str], bytes: &[u8]) -> Done {
    let mut push = start(site, options);
    let (mut stdin, bytes) = (push.stdin(), bytes.to_vec());
    let feeding = Pending::start(move || drop(stdin.write_all(&bytes)));
    let done = push.finish();
    feeding.get();
    done
}

fn file(site: &Site, name: &str, bytes: &[u8]) -> String {
    let path: PathBuf = site.path().join(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn assert_fine(done: &Done) {
    assert_eq!((done.code, done.text(), without_waits(&done.stderr)), (0, "", String::new()), "{done:?}");
}

fn assert_refused(done: &Done, said: &str) {
    assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
    assert!(done.stderr.starts_with("iof: ") && done.stderr.lines().count() == 1, "{done:?}");
    assert!(done.stderr.contains(said), "'{said}' is not in {done:?}");
}

#[test]
fn a_file_or_our_stdin_goes_to_rank_0_or_whom_we_name_and_is_all() {
    let site = Site::new();
    let ranks = run(&site, 5, &["--stdin-open", "all"], KEEP);
    let bytes = noise(0, "stdin", 0, LARGE);
    let large = file(&site, "large", &bytes);
    assert_fine(&start(&site, &[&large]).finish());
    assert_fine(&push(&site, &["--rank", "1,3-4"], &bytes));
    assert_fine(&push(&site, &["--rank", "2"], b""));
    assert_eq!(ranks.wait(), 0);
    for rank in [0, 1, 3, 4] {
        assert_same(&format!("rank {rank}"), &got(&site, rank), &bytes);
    }
    assert_eq!(got(&site, 2), b"");
}

#[test]
fn what_is_kept_open_takes_the_next_push_behind_the_last() {
    let site = Site::new();
    let ranks = run(&site, 2, &["--stdin-open", "all"], KEEP);
    let file = file(&site, "file", b"one ");
    assert_fine(&start(&site, &["--rank", "all", "--keep-open", &file]).finish());
    assert_fine(&push(&site, &["--keep-open", "--rank", "1"], b"two "));
    assert_fine(&push(&site, &["--rank", "all"], b"end"));
    assert_eq!(ranks.wait(), 0);
    assert_eq!((got(&site, 0), got(&site, 1)), (b"one end".into(), b"one two end".into()));
}

#[test]
fn refusals_name_the_ranks_and_nothing_was_pushed() {
    let site = Site::new();
    let ranks = run(&site, 5, &["--stdin", "none", "--stdin-open", "0-1,4"], KEEP);
    assert_fine(&push(&site, &["--rank", "1"], b"the end"));
    let closed = push(&site, &["--rank", "0-1"], b"x");
    assert_refused(&closed, "nothing was pushed: rank 1: stdin is closed");
    let not_open = push(&site, &["--rank", "all"], b"x");
    assert_refused(
        &not_open,
        "nothing was pushed: ranks 2-3: stdin was not left open; rank 1: stdin is closed",
    );
    assert_refused(&not_open, "(iof run --stdin-open leaves it open, --partial leaves ranks out)");
    assert_refused(&push(&site, &["--rank", "0,5"], b"x"), "rank 5 does not exist");
    assert_refused(&push(&site, &["--rank", "none"], b"x"), "'none'");
    assert_refused(&start(&site, &["/no/such/file"]).finish(), "/no/such/file: No such file");
    assert_refused(&start(&site, &["/"]).finish(), "/: is a directory");
    assert_refused(&push(&site, &["--nspace", "other"], b"x"), "other");

    let partly = push(&site, &["--rank", "all", "--partial"], b"some");
    assert_eq!((partly.code, partly.text()), (0, ""));
    let lines = [(1, "is closed"), (2, "was not left open"), (3, "was not left open")]
        .map(|(rank, why)| format!("iof: rank {rank} is left out: stdin {why}\n"));
    assert_eq!(partly.stderr, lines.concat());
    assert_eq!(ranks.wait(), 0);
    assert_eq!([0, 1, 4].map(|rank| got(&site, rank)), [b"some".to_vec(), b"the end".into(), b"some".into()]);
}

#[test]
fn a_rank_that_has_the_commands_own_stdin_or_a_file_is_no_target() {
    let site = Site::new();
    let mut ranks = run(&site, 2, &[], "cat >/dev/null");
    let stdin = ranks.stdin();
    assert_refused(&push(&site, &[], b"x"), "rank 0: reads the stdin of the command that started it");
    drop(stdin);
    assert_eq!(ranks.wait(), 0);
    let mut gate = site.gate("gate");
    let script = format!(": < {}", gate.path());
    let ranks = run(&site, 1, &["--stdin-file", "/dev/null"], &script);
    assert_refused(&push(&site, &[], b"x"), "rank 0: stdin was not left open");
    gate.open();
    assert_eq!(ranks.wait(), 0);
}

#[test]
fn without_an_engine_or_with_several_there_is_nobody_to_push_to() {
    let site = Site::new();
    assert_refused(&push(&site, &[], b"x"), "no engine has a socket");
}

#[test]
fn ranks_that_read_a_part_are_named_with_what_they_got_and_the_others_have_all() {
    let site = Site::new();
    let script =
        "case $IOF_RANK in 0) cat > got.0;; 1) head -c 1000 >/dev/null;; 2) exec <&-; cat < gate;; esac";
    let mut gate = site.gate("gate");
    let ranks = run(&site, 3, &["--stdin-open", "all"], script);
    let bytes = noise(0, "stdin", 0, LARGE);
    // Rank 2 may be seen to have closed its stdin before anything is pushed.
    let done = push(&site, &["--rank", "all", "--partial"], &bytes);
    assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
    let short =
        |rank: u32| done.stderr.lines().find(|line| line.starts_with(&format!("iof: rank {rank} got ")));
    let line = short(1).unwrap_or_else(|| panic!("{done:?}"));
    let words: Vec<&str> = line.split(' ').collect();
    let delivered: usize = words[4].parse().unwrap();
    assert!((1000..LARGE).contains(&delivered), "{line}");
    let rest = format!("of {LARGE} bytes: it has closed its stdin or ended");
    assert!(line.ends_with(&rest), "{line}");
    assert!(short(2).is_some() || done.stderr.contains("rank 2 is left out"), "{done:?}");
    assert!(done.stderr.ends_with("did not get all\n"), "{done:?}");
    gate.open();
    drop(gate);
    assert_eq!(ranks.wait(), 0);
    assert_same("rank 0", &got(&site, 0), &bytes);
}

#[test]
fn a_rank_that_never_reads_is_waited_for_and_named_or_cut_off() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 1 ] || : < {}; {KEEP}", gate.path());
    let ranks = run(&site, 3, &["--stdin-open", "all"], &script);
    let bytes = noise(0, "stdin", 0, LARGE);
    let large = file(&site, "large", &bytes);

    // Cut off: it has the end behind what it got.
    let done = start(&site, &["--rank", "0-1", "--drop", &large]).finish();
    assert_eq!(done.code, 1, "{done:?}");
    let stderr = without_waits(&done.stderr);
    let delivered = stderr.split(' ').nth(4).unwrap().to_owned();
    let said = format!(
        "iof: rank 1 got {delivered} of {LARGE} bytes: it did not read and was cut off\niof: one rank did not get all\n"
    );
    assert_eq!(stderr, said);
    wait_for("rank 0", || {
        site.procs()?.iter().any(|of| of["rank"] == 0 && of["state"] == "terminated").then_some(())
    });
    assert_same("rank 0", &got(&site, 0), &bytes);
    assert_fine(&push(&site, &["--rank", "2"], b""));
    gate.open();
    assert_eq!(ranks.wait(), 0);
    assert_same("rank 1", &got(&site, 1), &bytes[..delivered.parse().unwrap()]);

    // Waited for.
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 1 ] || : < {}; {KEEP}", gate.path());
    let ranks = run(&site, 2, &["--stdin-open", "all"], &script);
    let large = file(&site, "large", &bytes);
    let mut push = start(&site, &["--rank", "all", &large]);
    let mut stderr = BufReader::new(push.stderr());
    let mut line = String::new();
    let line = Pending::start(move || {
        stderr.read_line(&mut line).unwrap();
        (line, stderr)
    });
    let (line, mut stderr) = line.get();
    assert_eq!(line, "iof: waiting for rank 1: it does not read its stdin\n");
    assert_eq!(push.ended(), None);
    gate.open();
    assert_eq!((push.wait(), ranks.wait()), (0, 0));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(without_waits(&rest), "");
    for rank in [0, 1] {
        assert_same(&format!("rank {rank}"), &got(&site, rank), &bytes);
    }
}

#[test]
fn pushes_of_two_tools_do_not_interleave() {
    let site = Site::new();
    let ranks = run(&site, 2, &["--stdin-open", "all"], KEEP);
    let contents = [b"a", b"b", b"c", b"d"].map(|byte| byte.repeat(LARGE / 4));
    let pushes: Vec<Process> = contents
        .iter()
        .map(|bytes| {
            let name = format!("{}", bytes[0]);
            start(&site, &["--rank", "all", "--keep-open", &file(&site, &name, bytes)])
        })
        .collect();
    for push in pushes {
        assert_fine(&push.finish());
    }
    assert_fine(&push(&site, &["--rank", "all"], b""));
    assert_eq!(ranks.wait(), 0);
    let first = got(&site, 0);
    let runs: Vec<(u8, usize)> = first.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    assert_eq!(runs.len(), 4, "{runs:?}");
    assert!(runs.iter().all(|(_, length)| *length == LARGE / 4), "{runs:?}");
    assert_same("rank 1", &got(&site, 1), &first);
}

#[test]
fn a_push_before_a_rank_reads_arrives_and_one_after_it_has_exited_is_refused() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(": < {}; [ $IOF_RANK = 1 ] || {KEEP}", gate.path());
    let ranks = run(&site, 2, &["--stdin-open", "all"], &script);
    // It fits the pipe, so nobody needs to have read it.
    assert_fine(&push(&site, &["--keep-open"], b"early"));
    gate.open();
    site.wait_for_state(1, "terminated");
    assert_refused(&push(&site, &["--rank", "1"], b"late"), "nothing was pushed: rank 1: stdin is closed");
    assert_fine(&push(&site, &[], b" and late"));
    assert_eq!(ranks.wait(), 0);
    assert_eq!(got(&site, 0), b"early and late");
}

#[test]
fn what_a_killed_push_has_handed_over_arrives_and_then_the_end() {
    let site = Site::new();
    let ranks = run(&site, 1, &["--stdin-open", "all"], KEEP);
    let mut push = start(&site, &[]);
    let mut stdin = push.stdin();
    stdin.write_all(b"so far").unwrap();
    wait_for("the first bytes", || {
        fs::read(site.path().join("got.0")).is_ok_and(|got| got == b"so far").then_some(())
    });
    push.signal(Signal::SIGKILL);
    assert_eq!((push.wait(), ranks.wait()), (137, 0));
    assert_eq!(got(&site, 0), b"so far");
}

#[test]
fn a_push_that_waits_for_its_input_ends_when_its_ranks_have_exited() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK = 1 ] || exec head -c 4 > got.0; : < {}", gate.path());
    let ranks = run(&site, 2, &["--stdin-open", "all"], &script);
    let mut push = start(&site, &[]);
    let mut stdin = push.stdin();
    stdin.write_all(b"four").unwrap();
    assert_eq!(push.wait(), 1);
    let mut stderr = String::new();
    push.stderr().read_to_string(&mut stderr).unwrap();
    let said = "iof: rank 0 got 4 of 4 bytes: it has closed its stdin or ended\n";
    assert_eq!(without_waits(&stderr), format!("{said}iof: one rank did not get all\n"));
    gate.open();
    assert_eq!(ranks.wait(), 0);
    assert_eq!(got(&site, 0), b"four");
}

#[test]
fn a_push_ends_with_the_command_that_runs_the_ranks() {
    let site = Site::new();
    let ranks = run(&site, 1, &["--stdin-open", "all"], "read word; echo $word; sleep 1000");
    // One waits for its input, the other for its turn.
    let mut idle = start(&site, &["--keep-open"]);
    let mut stdin = idle.stdin();
    stdin.write_all(b"x\n").unwrap();
    site.wait_for_bytes(0, "stdout", 2);
    let mut full = start(&site, &[&file(&site, "large", &vec![0; LARGE])]);
    let mut stderr = BufReader::new(full.stderr());
    let said = Pending::start(move || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        (line, stderr)
    });
    let (line, _stderr) = said.get();
    assert_eq!(line, "iof: waiting for rank 0: another push is not over there\n");
    ranks.signal(Signal::SIGKILL);
    for push in [idle, full] {
        assert_eq!(push.wait(), 1);
    }
    drop(stdin);
}

/// The bar, without what moves the cursor.
const BAR: &str = "4.77 MiB";

#[test]
fn a_file_has_a_progress_bar_at_a_terminal_and_nowhere_else() {
    let bytes = noise(0, "stdin", 0, LARGE);
    for (by_file, at_terminal) in [(true, true), (false, true), (true, false)] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = format!(": < {}; {KEEP}", gate.path());
        let ranks = run(&site, 1, &["--stdin-open", "all"], &script);
        let large = file(&site, "large", &bytes);
        let mut push = site.iof("push");
        if by_file {
            push.arg(&large);
        }
        let shown = if at_terminal {
            // Where stdin is the terminal, the end of the file is not its end: a shell gives it another.
            let mut shell = std::process::Command::new("sh");
            let stdin = if by_file { "/dev/null" } else { &large };
            shell
                .args(["-c", &format!("exec \"$@\" < {stdin}"), "sh"])
                .arg(push.get_program())
                .args(push.get_args());
            let (terminal, process) = Terminal::start(&mut shell, 24, 100);
            terminal.wait_for(BAR, 1);
            gate.open();
            assert_eq!(process.wait(), 0);
            terminal.shown()
        } else {
            let process = Process::start(&mut push);
            gate.open();
            let done = process.finish();
            assert_eq!(done.code, 0);
            done.stderr
        };
        assert_eq!(shown.contains(BAR), at_terminal, "{shown:?}");
        assert_eq!(ranks.wait(), 0);
        assert_same("the rank", &got(&site, 0), &bytes);
    }
}

#[test]
fn of_several_jobs_a_push_goes_to_the_one_it_names() {
    let site = Site::new();
    let runs = ["first", "second"].map(|name| {
        let mut run = site.run_sh(&["--nspace", name, "--stdin-open", "all"], "cat");
        let stdout: Pending<Sum> = sum(run.stdout());
        (run, stdout)
    });
    wait_for("both", || (site.sockets().len() == 2).then_some(()));
    let done = push(&site, &[], b"x");
    assert!(
        done.code == 2 && done.stderr.contains("2 engines are running: choose one with --pid"),
        "{done:?}"
    );
    for name in ["second", "first"] {
        wait_for("the job", || (push(&site, &["--nspace", name], name.as_bytes()).code == 0).then_some(()));
    }
    for ((run, stdout), name) in runs.into_iter().zip(["first", "second"]) {
        assert_eq!((run.wait(), stdout.get().length), (0, name.len() as u64));
    }
}
