//! `iof push`: the bytes that arrive at each rank, its messages and its exit codes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use iof_testing::bytes::{Sum, assert_same, noise, sum};
use iof_testing::command::site::Site;
use iof_testing::command::terminal::Terminal;
use iof_testing::command::{wait_for_slow_rank, without_waits};
use iof_testing::process::{Done, Process};
use iof_testing::{Pending, wait_for};
use nix::sys::signal::Signal;

/// More bytes than all pipes and caches on the way hold.
const LARGE: usize = 5_000_003;
/// Each rank writes its stdin to a file.
const KEEP: &str = "cat > got.$IOF_RANK";

/// Starts `iof run OPTIONS -- sh -c SCRIPT` in the site's directory, and waits for its ranks.
fn run(site: &Site, ranks: usize, options: &[&str], script: &str) -> Process {
    let count = ranks.to_string();
    let app = ["-n", &count, "--wdir", site.path().to_str().unwrap()];
    let run = site.run_sh(&[&app, options].concat(), script);
    site.wait_for_ranks(ranks);
    run
}

/// Returns the bytes that a rank has read.
fn received(site: &Site, rank: usize) -> Vec<u8> {
    fs::read(site.path().join(format!("got.{rank}"))).unwrap()
}

fn start(site: &Site, options: &[&str]) -> Process {
    Process::start(site.iof("push").args(options))
}

/// Pushes `bytes` through the stdin of `iof push`.
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

fn assert_success(done: &Done) {
    assert_eq!((done.code, done.text(), without_waits(&done.stderr)), (0, "", String::new()), "{done:?}");
}

fn assert_refused(done: &Done, message: &str) {
    assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
    assert!(done.stderr.starts_with("iof: ") && done.stderr.lines().count() == 1, "{done:?}");
    assert!(done.stderr.contains(message), "no '{message}' in {done:?}");
}

#[test]
fn a_file_or_stdin_is_pushed_to_rank_0_or_the_given_ranks() {
    let site = Site::new();
    let ranks = run(&site, 5, &["--stdin-open", "all"], KEEP);
    let bytes = noise(0, "stdin", 0, LARGE);
    let large = file(&site, "large", &bytes);
    assert_success(&start(&site, &[&large]).finish());
    assert_success(&push(&site, &["--rank", "1,3-4"], &bytes));
    assert_success(&push(&site, &["--rank", "2"], b""));
    assert_eq!(ranks.wait(), 0);
    for rank in [0, 1, 3, 4] {
        assert_same(&format!("rank {rank}"), &received(&site, rank), &bytes);
    }
    assert_eq!(received(&site, 2), b"");
}

#[test]
fn a_stdin_that_is_kept_open_receives_the_next_push() {
    let site = Site::new();
    let ranks = run(&site, 2, &["--stdin-open", "all"], KEEP);
    let file = file(&site, "file", b"one ");
    assert_success(&start(&site, &["--rank", "all", "--keep-open", &file]).finish());
    assert_success(&push(&site, &["--keep-open", "--rank", "1"], b"two "));
    assert_success(&push(&site, &["--rank", "all"], b"end"));
    assert_eq!(ranks.wait(), 0);
    assert_eq!((received(&site, 0), received(&site, 1)), (b"one end".into(), b"one two end".into()));
}

#[test]
fn a_denied_push_names_the_ranks_and_pushes_nothing() {
    let site = Site::new();
    let ranks = run(&site, 5, &["--stdin", "none", "--stdin-open", "0-1,4"], KEEP);
    assert_success(&push(&site, &["--rank", "1"], b"the end"));
    let closed = push(&site, &["--rank", "0-1"], b"x");
    assert_refused(&closed, "nothing was pushed: rank 1: stdin is closed");
    let not_open = push(&site, &["--rank", "all"], b"x");
    assert_refused(
        &not_open,
        "nothing was pushed: ranks 2-3: stdin was not left open; rank 1: stdin is closed",
    );
    assert_refused(&not_open, "(iof run --stdin-open leaves it open, --partial skips such ranks)");
    assert_refused(&push(&site, &["--rank", "0,5"], b"x"), "rank 5 does not exist");
    assert_refused(&push(&site, &["--rank", "none"], b"x"), "'none'");
    assert_refused(&start(&site, &["/no/such/file"]).finish(), "/no/such/file: No such file");
    assert_refused(&start(&site, &["/"]).finish(), "/: is a directory");
    assert_refused(&push(&site, &["--nspace", "other"], b"x"), "other");

    let partial = push(&site, &["--rank", "all", "--partial"], b"some");
    assert_eq!((partial.code, partial.text()), (0, ""));
    let lines = [(1, "is closed"), (2, "was not left open"), (3, "was not left open")]
        .map(|(rank, why)| format!("iof: rank {rank} is skipped: stdin {why}\n"));
    assert_eq!(without_waits(&partial.stderr), lines.concat());
    assert_eq!(ranks.wait(), 0);
    assert_eq!(
        [0, 1, 4].map(|rank| received(&site, rank)),
        [b"some".to_vec(), b"the end".into(), b"some".into()]
    );
}

#[test]
fn a_rank_with_the_stdin_of_the_command_or_a_file_is_not_a_target() {
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
fn a_push_without_an_engine_is_rejected() {
    let site = Site::new();
    assert_refused(&push(&site, &[], b"x"), "no engine has a socket");
}

#[test]
fn ranks_that_read_a_part_are_reported_and_the_others_get_all_bytes_here_and_on_nodes() {
    for nodes in [&[][..], &["--hosts", "a:2,b:1", "--rsh", "sh -c"]] {
        let site = Site::new();
        let script = "case $IOF_RANK in 0) cat > got.0;; 1) head -c 1000 >/dev/null; exec <&-; cat < gate;; \
                      2) exec <&-; cat < gate;; esac";
        let mut gate = site.gate("gate");
        let ranks = run(&site, 3, &[&["--stdin-open", "all"], nodes].concat(), script);
        let bytes = noise(0, "stdin", 0, LARGE);
        // Rank 2 may be seen to have closed its stdin before anything is pushed.
        let done = push(&site, &["--rank", "all", "--partial"], &bytes);
        assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
        let short =
            |rank: u32| done.stderr.lines().find(|line| line.starts_with(&format!("iof: rank {rank} got ")));
        let line = short(1).unwrap_or_else(|| panic!("{done:?}"));
        let fields: Vec<&str> = line.split(' ').collect();
        let delivered: usize = fields[4].parse().unwrap();
        assert!((1000..LARGE).contains(&delivered), "{line}");
        let rest = format!("of {LARGE} bytes: it has closed its stdin or ended");
        assert!(line.ends_with(&rest), "{line}");
        assert!(short(2).is_some() || done.stderr.contains("rank 2 is skipped"), "{done:?}");
        assert!(done.stderr.ends_with("did not get all bytes\n"), "{done:?}");
        // Both run, and it is known that they read nothing.
        let again = push(&site, &["--rank", "1,2"], b"x");
        assert_refused(&again, "nothing was pushed: ranks 1-2: stdin is closed");
        gate.open();
        drop(gate);
        assert_eq!(ranks.wait(), 0);
        assert_same("rank 0", &received(&site, 0), &bytes);
    }
}

#[test]
fn a_rank_that_never_reads_is_reported_and_waited_for_or_cut_off() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 1 ] || : < {}; {KEEP}", gate.path());
    let ranks = run(&site, 3, &["--stdin-open", "all"], &script);
    let bytes = noise(0, "stdin", 0, LARGE);
    let large = file(&site, "large", &bytes);

    // With --drop the rank is cut off: it reads end of file after the bytes that it got.
    let done = start(&site, &["--rank", "0-1", "--drop", &large]).finish();
    assert_eq!(done.code, 1, "{done:?}");
    let stderr = without_waits(&done.stderr);
    let delivered = stderr.split(' ').nth(4).unwrap().to_owned();
    let wanted = format!(
        "iof: rank 1 got {delivered} of {LARGE} bytes: it did not read and was cut off\niof: one rank did not get all bytes\n"
    );
    assert_eq!(stderr, wanted);
    wait_for("rank 0", || {
        site.procs()?.iter().any(|proc| proc["rank"] == 0 && proc["state"] == "terminated").then_some(())
    });
    assert_same("rank 0", &received(&site, 0), &bytes);
    assert_success(&push(&site, &["--rank", "2"], b""));
    gate.open();
    assert_eq!(ranks.wait(), 0);
    assert_same("rank 1", &received(&site, 1), &bytes[..delivered.parse().unwrap()]);

    // Without --drop the push waits for the rank.
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 1 ] || : < {}; {KEEP}", gate.path());
    let ranks = run(&site, 2, &["--stdin-open", "all"], &script);
    let large = file(&site, "large", &bytes);
    let mut push = start(&site, &["--rank", "all", &large]);
    let mut stderr = BufReader::new(push.stderr());
    let reported = Pending::start(move || {
        wait_for_slow_rank(&mut stderr, 1);
        stderr
    });
    let mut stderr = reported.get();
    assert_eq!(push.exit_code(), None);
    gate.open();
    assert_eq!((push.wait(), ranks.wait()), (0, 0));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(without_waits(&rest), "");
    for rank in [0, 1] {
        assert_same(&format!("rank {rank}"), &received(&site, rank), &bytes);
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
        assert_success(&push.finish());
    }
    assert_success(&push(&site, &["--rank", "all"], b""));
    assert_eq!(ranks.wait(), 0);
    let first = received(&site, 0);
    let runs: Vec<(u8, usize)> = first.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    assert_eq!(runs.len(), 4, "{runs:?}");
    assert!(runs.iter().all(|(_, length)| *length == LARGE / 4), "{runs:?}");
    assert_same("rank 1", &received(&site, 1), &first);
}

#[test]
fn a_push_before_a_rank_reads_arrives_and_one_after_its_exit_is_rejected() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(": < {}; [ $IOF_RANK = 1 ] || {KEEP}", gate.path());
    let ranks = run(&site, 2, &["--stdin-open", "all"], &script);
    // The bytes fit into the pipe, so the rank need not have read them.
    assert_success(&push(&site, &["--keep-open"], b"early"));
    gate.open();
    site.wait_for_state(1, "terminated");
    assert_refused(&push(&site, &["--rank", "1"], b"late"), "nothing was pushed: rank 1: stdin is closed");
    assert_success(&push(&site, &[], b" and late"));
    assert_eq!(ranks.wait(), 0);
    assert_eq!(received(&site, 0), b"early and late");
}

#[test]
fn the_bytes_of_a_killed_push_arrive_and_then_end_of_file() {
    let site = Site::new();
    let ranks = run(&site, 1, &["--stdin-open", "all"], KEEP);
    let mut push = start(&site, &[]);
    let mut stdin = push.stdin();
    stdin.write_all(b"so far").unwrap();
    wait_for("the first bytes", || {
        fs::read(site.path().join("got.0")).is_ok_and(|bytes| bytes == b"so far").then_some(())
    });
    push.signal(Signal::SIGKILL);
    assert_eq!((push.wait(), ranks.wait()), (137, 0));
    assert_eq!(received(&site, 0), b"so far");
}

#[test]
fn a_push_that_waits_for_input_ends_when_its_ranks_have_exited() {
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
    let message = "iof: rank 0 got 4 of 4 bytes: it has closed its stdin or ended\n";
    assert_eq!(without_waits(&stderr), format!("{message}iof: one rank did not get all bytes\n"));
    gate.open();
    assert_eq!(ranks.wait(), 0);
    assert_eq!(received(&site, 0), b"four");
}

#[test]
fn a_push_ends_with_the_command_that_runs_the_ranks() {
    let site = Site::new();
    let ranks = run(&site, 1, &["--stdin-open", "all"], "read word; echo $word; sleep 1000");
    // The first push waits for its input, the second for the first.
    let mut idle = start(&site, &["--keep-open"]);
    let mut stdin = idle.stdin();
    stdin.write_all(b"x\n").unwrap();
    site.wait_for_bytes(0, "stdout", 2);
    let mut full = start(&site, &[&file(&site, "large", &vec![0; LARGE])]);
    let mut stderr = BufReader::new(full.stderr());
    let first_line = Pending::start(move || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        (line, stderr)
    });
    let (line, _stderr) = first_line.get();
    assert_eq!(line, "iof: waiting for rank 0: another push to it is not finished\n");
    ranks.signal(Signal::SIGKILL);
    for push in [idle, full] {
        assert_eq!(push.wait(), 1);
    }
    drop(stdin);
}

/// The size in the progress bar.
const BAR: &str = "4.77 MiB";

#[test]
fn a_push_from_a_file_shows_a_progress_bar_only_at_a_terminal() {
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
            // A shell redirects stdin, because stdin would otherwise be the terminal, which has no
            // end.
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
        assert_same("the rank", &received(&site, 0), &bytes);
    }
}

#[test]
fn a_push_with_several_jobs_goes_to_the_one_it_names() {
    let site = Site::new();
    let runs = ["first", "second"].map(|name| {
        let mut run = site.run_sh(&["--nspace", name, "--stdin-open", "all"], "cat");
        let stdout: Pending<Sum> = sum(run.stdout());
        (run, stdout)
    });
    wait_for("both sockets", || (site.sockets().len() == 2).then_some(()));
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
