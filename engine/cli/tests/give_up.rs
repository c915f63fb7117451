//! Outputs that accept nothing: how long a run waits for them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::io::{PipeReader, Read, pipe};
use std::process::Stdio;

use iof_testing::command::site::{Site, Stream};
use iof_testing::process::Process;
use iof_testing::{wait_for, with_longer_times};
use nix::sys::signal::Signal;

#[test]
fn give_up_ends_a_job_whose_output_is_not_accepted() {
    let site = Site::new();
    let mut run = site.run_sh(&["--give-up", "0.3"], "exec yes");
    let _unread = run.stdout();
    let mut message = String::new();
    run.stderr().read_to_string(&mut message).unwrap();
    assert_eq!(run.wait(), 1, "{message}");
    assert!(message.starts_with("iof: stdout has accepted nothing for 0.3s"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    wait_for("the end of the rank", || run.living().is_empty().then_some(()));
}

#[test]
fn give_up_ends_a_job_whose_messages_are_not_accepted_either() {
    let site = Site::new();
    let (_unread, output) = pipe().unwrap();
    let mut command = site.iof("run");
    command.args(["--give-up", "0.3", "--", "yes"]).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let run = Process::start_with_its_files(&mut command);
    drop(command);
    assert_eq!(run.wait(), 1);
    wait_for("the end of the rank", || run.living().is_empty().then_some(()));
}

/// Starts `iof run OPTIONS -- sh -c SCRIPT` with a stdout and stderr of one pipe, which nothing
/// reads.
fn run_into_one_pipe(site: &Site, options: &[&str], script: &str) -> (Process, PipeReader) {
    let (unread, output) = pipe().unwrap();
    let mut command = site.iof("run");
    command.args(options).args(["--", "sh", "-c", script]).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output);
    (Process::start_with_its_files(&mut command), unread)
}

/// Waits until the output of the rank, in a cache of 64 KiB, is no longer written.
fn wait_until_blocked(site: &Site, rank: u32) {
    let is_blocked = |stream: &Stream| {
        stream.readers("iof run").first().is_some_and(|reader| reader["lag"].as_u64() > Some(32 << 10))
    };
    site.wait_for_stream(rank, "stdout", is_blocked);
}

/// Checks that a run ends with this exit code, and tells that its stdout was not written.
fn assert_given_up(mut run: Process, code: i32) {
    let mut message = String::new();
    run.stderr().read_to_string(&mut message).unwrap();
    assert_eq!(run.wait(), code, "{message}");
    is_told(&message, "stdout").unwrap();
}

/// Fails if `message` does not tell that the output was not written.
fn is_told(message: &str, name: &str) -> Result<(), String> {
    let start = format!("iof: {name} has accepted nothing for 2s after the end of all ranks: at least ");
    let told = message.lines().find_map(|line| line.strip_prefix(&start));
    let bytes = told.and_then(|told| told.strip_suffix(" bytes of output were not written"));
    let is_told = bytes.is_some_and(|bytes| bytes.parse::<u64>().unwrap() > 0);
    is_told.then_some(()).ok_or_else(|| message.to_owned())
}

#[test]
fn a_time_limit_ends_a_run_whose_output_is_not_accepted_with_code_124() {
    with_longer_times(|limit| {
        let site = Site::new();
        let mut run = site.run(&["--timeout", limit, "--summary", "-n", "2"], ["yes"]);
        let _unread = run.stdout();
        let mut message = String::new();
        run.stderr().read_to_string(&mut message).unwrap();
        assert_eq!(run.wait(), 124, "{message}");
        // The ranks may not have filled the pipe.
        is_told(&message, "stdout")?;
        assert!(message.contains("not counting an output that failed or was given up"), "{message}");
        Ok(())
    });
}

#[test]
fn one_signal_ends_a_run_whose_output_is_not_accepted() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let site = Site::new();
        let mut run = site.run(&["-n", "2", "--cache-size", "64K"], ["yes"]);
        let _unread = run.stdout();
        (0..2).for_each(|rank| wait_until_blocked(&site, rank));
        run.signal(signal);
        assert_given_up(run, code);
    }
}

#[test]
fn a_signal_does_not_make_a_success_of_output_that_is_not_accepted() {
    let site = Site::new();
    let mut run = site.run_sh(&["--cache-size", "64K"], "trap 'exit 0' TERM; yes");
    let _unread = run.stdout();
    wait_until_blocked(&site, 0);
    run.signal(Signal::SIGTERM);
    assert_given_up(run, 1);
}

#[test]
fn a_signal_ends_the_wait_for_an_output_after_another_has_failed() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("yes & : < {}; echo x >&2; wait", gate.path());
    let mut command = site.iof("run");
    command.args(["--cache-size", "64K", "--kill-wait", "1h", "--", "sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(File::options().write(true).open("/dev/full").unwrap());
    let mut run = Process::start_with_its_files(&mut command);
    let _unread = run.stdout();
    wait_until_blocked(&site, 0);
    gate.open();
    site.wait_for_state(0, "killed");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn a_bad_exit_ends_a_run_whose_output_is_not_accepted() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK = 0 ] && exec yes; : < {}; exit 3", gate.path());
    let mut run = site.run_sh(&["-n", "2", "-K", "--cache-size", "64K"], &script);
    let _unread = run.stdout();
    wait_until_blocked(&site, 0);
    gate.open();
    assert_given_up(run, 3);
}

#[test]
fn a_run_whose_messages_are_not_accepted_either_ends_as_one_whose_output_is_not() {
    let site = Site::new();
    let (run, _unread) = run_into_one_pipe(&site, &["--timeout", "0.3"], "exec yes");
    assert_eq!(run.wait(), 124);
    let (run, _unread) = run_into_one_pipe(&site, &["--cache-size", "64K"], "exec yes");
    wait_until_blocked(&site, 0);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn a_signal_is_passed_on_although_a_message_is_not_accepted() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 0 ] && exec yes; [ $IOF_RANK = 1 ] && exit 3; exec sleep 1000";
    let (run, _unread) = run_into_one_pipe(&site, &["-n", "3", "--cache-size", "64K"], script);
    wait_until_blocked(&site, 0);
    // The line about rank 1 waits for the reader of the output.
    site.wait_for_state(1, "failed");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 3);
    wait_for("the end of the ranks", || run.living().is_empty().then_some(()));
}

#[test]
fn a_fifo_that_is_not_read_is_given_up_like_stdout() {
    let site = Site::new();
    let fifo = site.gate("fifo");
    let _unread = File::options().read(true).write(true).open(fifo.path()).unwrap();
    let done = site.run(&["-o", fifo.path(), "--give-up", "0.3"], ["yes"]).finish();
    assert_eq!(done.code, 1, "{done:?}");
    let message = format!("iof: {} has accepted nothing for 0.3s", fifo.path());
    assert!(done.stderr.starts_with(&message), "{done:?}");
    with_longer_times(|limit| {
        let fifo = site.gate(&format!("fifo.{limit}"));
        let _unread = File::options().read(true).write(true).open(fifo.path()).unwrap();
        let done = site.run(&["-o", fifo.path(), "--timeout", limit], ["yes"]).finish();
        assert_eq!(done.code, 124, "{done:?}");
        // The rank may not have filled the FIFO.
        is_told(&done.stderr, fifo.path())
    });
}

#[test]
fn give_up_limits_the_wait_for_the_reader_of_a_fifo() {
    let site = Site::new();
    let (fifo, proof) = (site.gate("fifo"), site.path().join("proof"));
    let script = format!(": > {}", proof.display());
    let done = site.run_sh(&["-o", fifo.path(), "--give-up", "0.3"], &script).finish();
    let message =
        format!("iof: no process has read the FIFO {} for 0.3s: the job was not started\n", fifo.path());
    assert_eq!((done.code, done.stderr), (1, message));
    assert!(!proof.exists());
}

#[test]
fn a_pull_reports_bytes_that_a_run_which_was_ended_has_left_in_a_pipe() {
    let site = Site::new();
    let mut run = site.run(&["--cache-size", "64K"], ["yes"]);
    let _unread = run.stdout();
    site.wait_for_ranks(1);
    let pull = site.pull(&["--output", "json"]);
    site.wait_for_pulls(0, "stdout", 1);
    wait_until_blocked(&site, 0);
    run.signal_twice(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    let done = pull.finish();
    let ends: Vec<&str> = done.text().lines().filter(|line| line.contains("\"type\":\"end\"")).collect();
    let broken = ends.iter().filter(|line| line.contains("\"stdout\"") && line.contains("\"missing\":"));
    assert_eq!((done.code, broken.count()), (1, 1), "{ends:?}");
    assert!(done.text().contains("1 stream is broken"), "{ends:?}");
}
