//! Every kind of output arrives as it was written: binary data, very long lines, output of killed
//! ranks, late output, and output of a thousand ranks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Command, Stdio};

use iof_testing::bytes::{assert_same, noise, sum};
use iof_testing::command::site::{Site, iof, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Process;
use iof_testing::{BULK_TIMEOUT, wait_for};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn bytes_arrive_unchanged_with_nuls_and_without_trailing_newline() {
    let site = Site::new();
    let script = r"printf 'a\000\000b\377\376\n\033[1m\r\000last'; printf '\000err\200' >&2";
    let done = site.run_sh(&[], script).finish();
    assert_eq!(done.code, 0);
    assert_eq!(done.stdout, b"a\0\0b\xff\xfe\n\x1b[1m\r\0last");
    assert_eq!(done.stderr.as_bytes(), "\0err\u{fffd}".as_bytes(), "as lossy text");
}

#[test]
fn random_bytes_written_one_by_one_to_both_channels_arrive_complete() {
    let site = Site::new();
    let program = rank(["--channels", "stdout,stderr", "--length", "20011", "--write-size", "1"]);
    let mut run = site.run::<String>(&[], program);
    let (stdout, stderr) = run.collect();
    assert_eq!(run.wait(), 0);
    assert_same("stdout", &stdout.get(), &noise(0, "stdout", 0, 20_011));
    assert_same("stderr", &stderr.get(), &noise(0, "stderr", 0, 20_011));
}

#[test]
fn a_nonblocking_output_pipe_receives_all_bytes_in_order() {
    let site = Site::new();
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).unwrap();
    let mut command = site.iof("run");
    command.arg("--").args(rank(["--length", "3000000", "--channels", "stdout,stderr"]));
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let run = Process::start_with_its_files(&mut command);
    // Drops the command's copy of the write end.
    drop(command);
    site.wait_for_stream(0, "stdout", |stream| stream.number("produced") > 1_000_000);
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    assert_same("stdout", &collect(File::from(reader)).get(), &noise(0, "stdout", 0, 3_000_000));
    assert_eq!(run.wait(), 0);
}

#[test]
fn stdout_and_stderr_may_be_the_same_pipe() {
    let site = Site::new();
    let script = r#"{ "$0" run --rendezvous-dir "$1" -n 3 -- sh -c 'echo out; echo err >&2'; } 2>&1"#;
    let mut shell = Command::new("sh");
    let done = Process::start(shell.arg("-c").arg(script).arg(iof().get_program()).arg(site.path())).finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "err", "err", "out", "out", "out"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn a_job_without_output_ends_without_output() {
    let done = Site::new().run(&["-n", "3"], ["true"]).finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
}

#[test]
fn a_line_of_100_megabytes_arrives_complete_at_the_terminal_and_at_a_pull() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(": < {}; head -c 100000000 /dev/zero | tr '\\0' x; echo", gate.path());
    let mut run = site.run_sh(&["--cache-size", "128M"], &script);
    let terminal = sum(run.stdout());
    site.wait_for_ranks(1);
    let mut pull = site.pull(&["--channel", "stdout"]);
    let pulled = sum(pull.stdout());
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();

    let line = std::io::Read::take(std::io::repeat(b'x'), 100_000_000);
    let wanted = sum(std::io::Read::chain(line, &b"\n"[..])).get_within(BULK_TIMEOUT);
    assert_eq!(terminal.get_within(BULK_TIMEOUT), wanted, "terminal");
    assert_eq!(pulled.get_within(BULK_TIMEOUT), wanted, "pull");
    assert_eq!((run.wait(), pull.wait()), (0, 0));
}

#[test]
fn all_output_of_a_rank_that_kills_itself_arrives() {
    let site = Site::new();
    let script = "head -c 50000 /dev/zero; printf last; printf end >&2; kill -KILL $$; echo never";
    let done = site.run_sh(&["--quiet"], script).finish();
    assert_eq!(done.code, 137);
    assert_eq!(done.stdout.len(), 50_004);
    assert!(done.stdout.ends_with(b"\0last"));
    assert_eq!(done.stderr, "end");
}

#[test]
fn all_output_of_a_rank_that_is_killed_while_it_writes_arrives() {
    const WRITE: u64 = 100_000;
    let site = Site::new();
    let progress = site.path().join("progress");
    let forever = u64::MAX.to_string();
    let write_size = WRITE.to_string();
    let args = ["--length", &forever, "--write-size", &write_size, "--progress", progress.to_str().unwrap()];
    let mut run = site.run(&["--quiet"], rank(args));
    let (stdout, stderr) = run.collect();
    site.wait_for_bytes(0, "stdout", 3_000_000);
    let pid = site.procs().unwrap()[0]["pid"].as_i64().unwrap();
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();

    assert_eq!(run.wait(), 137);
    let (stdout, stderr) = (stdout.get(), stderr.get());
    let written = u64::from_ne_bytes(fs::read(&progress).unwrap().try_into().unwrap());
    let (received, min) = (stdout.len() as u64, written.max(3_000_000));
    assert!(
        (min..=written + WRITE).contains(&received),
        "{received} bytes received, at least {written} written"
    );
    assert_same("stdout", &stdout, &noise(0, "stdout", 0, stdout.len()));
    assert_same("stderr", &stderr, b"");
}

#[test]
fn output_of_a_grandchild_that_outlives_its_rank_is_forwarded() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("(: < {}; echo late; echo too >&2) & echo early; exit 4", gate.path());
    let mut run = site.run_sh(&["--quiet"], &script);
    let (stdout, stderr) = run.collect();
    let rank = site.wait_for_state(0, "failed");
    assert_eq!(rank["exit_code"], 4);
    let stream = site.wait_for_bytes(0, "stdout", 6);
    assert!(!stream.is_complete(), "{stream:?}");
    assert_eq!(run.exit_code(), None);
    gate.open();
    assert_eq!(stdout.get(), b"early\nlate\n");
    assert_eq!(stderr.get(), b"too\n");
    assert_eq!(run.wait(), 4);
}

#[test]
fn each_line_of_a_thousand_ranks_arrives_once_at_the_terminal_and_at_a_pull() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo out $IOF_RANK; echo err $IOF_RANK >&2; : < {}", gate.path());
    let mut run = site.run_sh(&["-n", "1000", "--cache-size", "16K"], &script);
    let terminal = run.collect();
    wait_for("1000 lines", || {
        let streams = site.streams()?.into_iter().filter(|stream| stream.number("produced") > 0);
        (streams.count() == 2000).then_some(())
    });
    let mut pull = site.pull(&[]);
    let pulled = pull.collect();
    wait_for("the pull of all streams", || {
        let streams = site.streams()?.into_iter().filter(|stream| stream.pulls() == 1);
        (streams.count() == 3000).then_some(())
    });
    gate.open();

    for (reader, (stdout, stderr)) in [("terminal", terminal), ("pull", pulled)] {
        for (word, bytes) in [("out", stdout.get()), ("err", stderr.get())] {
            let text = String::from_utf8(bytes).unwrap();
            let lines: BTreeSet<&str> = text.lines().collect();
            let wanted: Vec<String> = (0..1000).map(|rank| format!("{word} {rank}")).collect();
            assert_eq!(lines, wanted.iter().map(String::as_str).collect(), "{reader}");
            assert_eq!(text.lines().count(), 1000, "{reader}: each line once");
        }
    }
    assert_eq!((run.wait(), pull.wait()), (0, 0));
}

#[test]
fn stddiag_goes_to_the_commands_stderr_and_to_a_pull_of_stddiag() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let gate_option = format!("100000:{}", gate.path());
    let mut run =
        site.run(&[], rank(["--channels", "stddiag", "--length", "100000", "--gate", &gate_option]));
    let terminal = run.collect();
    site.wait_for_bytes(0, "stddiag", 100_000);
    let mut pull = site.pull(&["--channel", "stddiag"]);
    let pulled = pull.collect();
    site.wait_for_pulls(0, "stddiag", 1);
    let mut other = site.pull(&["--channel", "stdout,stderr"]);
    let other_output = other.collect();
    site.wait_for_pulls(0, "stderr", 1);
    gate.open();
    for (reader, (stdout, stderr)) in [("terminal", terminal), ("pull", pulled)] {
        assert_same(reader, &stdout.get(), b"");
        assert_same(reader, &stderr.get(), &noise(0, "stddiag", 0, 100_000));
    }
    assert_same("stdout", &other_output.0.get(), b"");
    assert_same("stderr", &other_output.1.get(), b"");
    assert_eq!((run.wait(), pull.wait(), other.wait()), (0, 0, 0));
}

#[test]
fn a_shell_can_write_to_its_stddiag() {
    let done = Site::new().run_sh(&["-n", "2"], r#"eval "echo diag >&$IOF_STDDIAG_FD""#).finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", "diag\ndiag\n"));
}

#[test]
fn the_order_within_a_channel_is_kept_for_every_rank() {
    let site = Site::new();
    let script = r#"i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "$IOF_RANK $i"; done"#;
    let done = site.run_sh(&["-n", "4"], script).finish();
    assert_eq!(done.code, 0, "{}", done.stderr);
    for rank in 0..4 {
        let lines = done.text().lines().filter(|line| line.starts_with(&format!("{rank} ")));
        assert!(lines.eq((1..=2000).map(|i| format!("{rank} {i}"))), "rank {rank}");
    }
}
