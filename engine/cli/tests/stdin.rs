//! The stdin of the ranks of `iof run`, and the time of its end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use iof_testing::bytes::noise;
use iof_testing::command::site::Site;
use iof_testing::command::terminal::CTRL_D;
use iof_testing::command::{wait_for_slow_rank, without_waits};
use iof_testing::process::{Done, Process};
use iof_testing::{Pending, wait_for};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Each rank prints the number of bytes that it has read.
const COUNT: &str = "echo $IOF_RANK $(wc -c)";
/// More bytes than all pipes and caches on the way hold.
const LARGE: usize = 5_000_003;

/// Writes `bytes` to the stdin of a process, closes it, and waits for the end of the process.
fn finish_with_stdin(mut process: Process, bytes: impl Into<Vec<u8>>) -> Done {
    let (mut stdin, bytes) = (process.stdin(), bytes.into());
    // The write may fail, because ranks need not read all bytes.
    let feeding = Pending::start(move || drop(stdin.write_all(&bytes)));
    let done = process.finish();
    feeding.get();
    done
}

fn sorted(done: &Done) -> Vec<&str> {
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    lines
}

fn assert_success(done: &Done) {
    assert_eq!((done.code, without_waits(&done.stderr)), (0, String::new()), "{done:?}");
}

#[test]
fn selected_ranks_read_the_stdin_of_the_command_and_all_others_nothing() {
    for (options, counts) in [
        (&[][..], ["5", "0", "0", "0"]),
        (&["--stdin", "0"], ["5", "0", "0", "0"]),
        (&["--stdin", "2"], ["0", "0", "5", "0"]),
        (&["--stdin", "none"], ["0"; 4]),
        (&["--stdin", "all"], ["5"; 4]),
        (&["--stdin", "0,2-3"], ["5", "0", "5", "5"]),
    ] {
        let done = finish_with_stdin(Site::new().run_sh(&[&["-n", "4"], options].concat(), COUNT), "12345");
        assert_success(&done);
        let wanted: Vec<String> =
            counts.iter().enumerate().map(|(rank, count)| format!("{rank} {count}")).collect();
        assert_eq!(sorted(&done), wanted, "{options:?}");
    }
}

#[test]
fn stdin_that_cannot_be_read_is_a_failure_of_a_job_whose_ranks_succeed() {
    let of_several = (&["-n", "2", "--stdin", "all"][..], "cannot read the input of the push");
    let typed = (&["--pty", "0"][..], "cannot read what rank 0 is to read");
    for ((options, reason), script, code) in
        [(of_several, "cat", 1), (of_several, "cat; exit 7", 7), (typed, "cat", 1), (typed, "cat; exit 7", 7)]
    {
        let site = Site::new();
        let mut run = site.iof("run");
        run.args(options).args(["--quiet", "--", "sh", "-c", script]);
        // Reading a directory fails.
        let directory = fs::File::open(site.path()).unwrap();
        run.stdin(directory).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = Process::start_with_its_files(&mut run).finish();
        let message = format!("iof: stdin: {reason}: Is a directory (os error 21)\n");
        assert_eq!((done.code, done.text(), &*done.stderr), (code, "", &*message));
    }
}

#[test]
fn input_for_several_ranks_arrives_without_delay() {
    let site = Site::new();
    let mut run = site.run_sh(&["-n", "2", "--stdin", "all"], "while read word; do echo $word; done");
    let (mut stdin, mut stdout) = (run.stdin(), BufReader::new(run.stdout()));
    for word in ["one", "two", "three"] {
        writeln!(stdin, "{word}").unwrap();
        for _ in 0..2 {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line.trim_end(), word);
        }
    }
    drop(stdin);
    assert_eq!(run.wait(), 0);
}

#[test]
fn a_command_whose_ranks_have_all_ended_does_not_wait_for_its_stdin() {
    for stdin in ["0", "all"] {
        let site = Site::new();
        let run = site.run(&["-n", "2", "--stdin", stdin], ["true"]);
        // The stdin of the command is still open.
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn ranks_that_stop_reading_do_not_affect_others_and_are_not_reported() {
    let script = "case $IOF_RANK in 0) wc -c;; 1) head -c 10 | wc -c;; 2) exec <&-; echo closed;; esac";
    let done = finish_with_stdin(
        Site::new().run_sh(&["-n", "4", "--stdin", "all"], script),
        noise(0, "stdin", 0, LARGE),
    );
    assert_success(&done);
    assert_eq!(sorted(&done), ["10", &LARGE.to_string(), "closed"]);
}

#[test]
fn a_rank_that_does_not_read_is_reported_and_holds_the_others_back() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 1 ] || : < {}; {COUNT}", gate.path());
    let mut run = site.run_sh(&["-n", "3", "--stdin", "all"], &script);
    let mut stdin = run.stdin();
    let feeding = Pending::start(move || stdin.write_all(&noise(0, "stdin", 0, LARGE)).unwrap());
    let mut stderr = BufReader::new(run.stderr());
    let reported = Pending::start(move || {
        wait_for_slow_rank(&mut stderr, 1);
        stderr
    });
    let _stderr = reported.get();
    gate.open();
    feeding.get();
    let mut lines: Vec<String> = BufReader::new(run.stdout()).lines().map(Result::unwrap).collect();
    lines.sort_unstable();
    assert_eq!(lines, [0, 1, 2].map(|rank| format!("{rank} {LARGE}")));
    assert_eq!(run.wait(), 0);
}

#[test]
fn a_file_is_read_by_each_rank_from_its_beginning() {
    let site = Site::new();
    let file = site.path().join("file");
    fs::write(&file, noise(0, "stdin", 0, LARGE)).unwrap();
    let file = file.to_str().unwrap();
    for (options, counts) in [
        (&["--stdin-file", file][..], [LARGE; 3]),
        (&["--stdin-file", file, "--stdin", "all"], [LARGE; 3]),
        (&["--stdin-file", file, "--stdin", "1"], [0, LARGE, 0]),
        (&["--stdin-file", file, "--stdin", "0-1"], [LARGE, LARGE, 0]),
        (&["--stdin-file", "/dev/null", "--stdin", "1"], [0; 3]),
    ] {
        let done = finish_with_stdin(site.run_sh(&[&["-n", "3"], options].concat(), COUNT), "not read");
        assert_success(&done);
        let wanted = [0, 1, 2].map(|rank| format!("{rank} {}", counts[rank]));
        assert_eq!(sorted(&done), wanted, "{options:?}");
    }
    // A relative path is relative to the directory of the command, not of the ranks.
    let script = "readlink /proc/self/fd/0";
    let mut run = site.iof("run");
    run.current_dir(site.path()).args(["--stdin-file", "file", "--wdir", "/", "--", "sh", "-c", script]);
    assert_eq!(Process::start(&mut run).finish().text().trim_end(), file);
}

/// Checks for exit code 2 and one line that contains `message`.
fn assert_refused(site: &Site, options: &[&str], message: &str) {
    let done = site.run(options, ["echo", "started"]).finish();
    assert_eq!((done.code, done.text()), (2, ""), "{options:?}: {done:?}");
    assert!(done.stderr.starts_with("iof: ") && done.stderr.lines().count() == 1, "{done:?}");
    assert!(done.stderr.contains(message), "no '{message}' in {done:?}");
}

#[test]
fn an_impossible_stdin_is_rejected_in_one_line() {
    let site = Site::new();
    let fifo = site.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    for (options, message) in [
        (&["--stdin", "2"][..], "invalid rank 2 for stdin: the job has 2 ranks"),
        (&["--stdin-open", "0,7"], "invalid rank 7 for stdin"),
        (&["--stdin", "some"], "'some'"),
        (&["--stdin-open", "none"], "'none'"),
        (&["--stdin-file", "/no/such/file"], "/no/such/file"),
        (&["--stdin-file", "/"], "Is a directory"),
        (&["--stdin-file", fifo.to_str().unwrap()], "which is a FIFO: redirect"),
        (&["--stdin-file", "/dev/null", "--stdin", "none"], "--stdin-file has no ranks"),
        (
            &["--stdin-file", "/dev/null", "--stdin", "1", "--stdin-open", "1"],
            "rank 1 cannot have both --stdin-file",
        ),
        (&["--pty", "1", "--stdin-open", "1"], "rank 1 has a pty, which is its stdin"),
        (&["--pty", "0", "--stdin", "all"], "rank 0 has a pty, which is its stdin"),
        (&["--pty", "0", "--stdin", "0", "--stdin-file", "/dev/null"], "rank 0 has a pty"),
    ] {
        assert_refused(&site, &[&["-n", "2"], options].concat(), message);
    }
}

#[test]
fn a_fifo_can_be_read_as_the_stdin_of_the_command() {
    let site = Site::new();
    let fifo = site.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let writer = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let mut run = site.iof("run");
    run.args(["-n", "2", "--stdin", "all", "--", "sh", "-c", COUNT]);
    run.stdin(fs::File::open(&fifo).unwrap()).stdout(std::process::Stdio::piped());
    let mut process = Process::start_with_its_files(&mut run);
    // Drops the copy of the fifo in the command.
    run.stdin(std::process::Stdio::null());
    (&writer).write_all(b"fifo").unwrap();
    drop(writer);
    let mut lines: Vec<String> = BufReader::new(process.stdout()).lines().map(Result::unwrap).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 4", "1 4"]);
    assert_eq!(process.wait(), 0);
}

#[test]
fn a_rank_with_a_pty_has_the_keyboard_only_if_stdin_is_for_it() {
    let done =
        finish_with_stdin(Site::new().run_sh(&["-n", "2", "--pty", "0"], "cat; echo $IOF_RANK"), "keys\n");
    assert_eq!(sorted(&done), ["0", "1", "keys"]);
    let done = finish_with_stdin(
        Site::new().run_sh(&["-n", "2", "--pty", "1", "--stdin", "1"], "cat; echo $IOF_RANK"),
        "keys\n",
    );
    assert_eq!(sorted(&done), ["0", "1", "keys"]);
    for options in [&["--stdin", "none"][..], &["--stdin", "1"]] {
        let options = [&["-n", "2", "--pty", "0"], options].concat();
        let done =
            finish_with_stdin(Site::new().run_sh(&options, "[ $IOF_RANK = 1 ] || echo $(wc -c)"), "keys\n");
        assert_eq!((done.code, done.text()), (0, "0\n"), "{options:?}");
    }
}

#[test]
fn at_a_terminal_several_ranks_read_the_keys_and_ctrl_d_is_the_end() {
    let site = Site::new();
    let script = "while read word; do echo \"<$IOF_RANK $word>\"; done; echo \"end of $IOF_RANK\"";
    let (terminal, run) = site.run_at_terminal(["-n", "2", "--stdin", "all", "--", "sh", "-c", script]);
    terminal.type_keys("words\r");
    terminal.wait_for("<0 words>", 1);
    terminal.wait_for("<1 words>", 1);
    terminal.type_keys(CTRL_D);
    terminal.wait_for("end of 0", 1);
    terminal.wait_for("end of 1", 1);
    assert_eq!(run.wait(), 0);
}

#[test]
fn an_open_stdin_stays_open_after_the_end_of_the_commands_stdin() {
    let site = Site::new();
    let options = ["-n", "3", "--stdin", "all", "--stdin-open", "1"];
    let mut run = site.run_sh(&options, COUNT);
    run.stdin().write_all(b"ours").unwrap();
    let (stdout, _stderr) = run.collect();
    for rank in [0, 2] {
        site.wait_for_state(rank, "terminated");
    }
    site.wait_for_state(1, "running");
    let mut push = Process::start(site.iof("push").args(["--rank", "1"]));
    push.stdin().write_all(b" and theirs").unwrap();
    assert_success(&push.finish());
    let mut lines: Vec<String> =
        String::from_utf8(stdout.get()).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 4", "1 15", "2 4"]);
    assert_eq!(run.wait(), 0);
}

#[test]
fn signals_reach_ranks_that_wait_for_an_open_stdin() {
    let site = Site::new();
    let run = site.run(&["-n", "3", "--stdin-open", "all"], ["cat"]);
    site.wait_for_ranks(3);
    wait_for("the ranks", || (run.running("cat").len() == 3).then_some(()));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}
