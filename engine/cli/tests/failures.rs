//! Failed ranks: what `iof run` tells about them, and how a failure or a time limit ends a job.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use iof_testing::command::site::{Site, iof};
use iof_testing::command::terminal::CTRL_C;
use iof_testing::process::{Done, Process, Stat};
use iof_testing::{wait_for, with_longer_times};
use nix::sys::signal::Signal;

/// Returns the host's name as the kernel knows it.
fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim_end().to_owned()
}

/// Returns the lines of stderr, each without `iof: job demo: `, which all of them must have.
fn told(done: &Done) -> Vec<&str> {
    done.stderr
        .lines()
        .map(|line| line.strip_prefix("iof: job demo: ").unwrap_or_else(|| panic!("{line} in {done:?}")))
        .collect()
}

/// Replaces the pid and the host in a line about a rank by `PID on HOST`.
fn without_pid(line: &str) -> String {
    let (start, rest) = line.split_once(", pid ").unwrap_or_else(|| panic!("no pid: {line}"));
    let (pid, rest) = rest.split_once(&format!(" on {}) ", host())).unwrap_or_else(|| panic!("{line}"));
    assert!(pid.parse::<u32>().is_ok_and(|pid| pid > 1), "{line}");
    format!("{start}, PID on HOST) {rest}")
}

const DEMO: [&str; 2] = ["--nspace", "demo"];

/// Starts a job that is named demo.
fn start(site: &Site, options: &[&str], script: &str) -> Process {
    site.run_sh(&[&DEMO, options].concat(), script)
}

/// A rank that waits for a signal.
const WAIT: &str = "exec sleep 1000";

#[test]
fn a_rank_that_fails_has_one_line_with_its_pid_and_cause() {
    for (script, line, code) in [
        ("exit 7", "rank 1 (sh, PID on HOST) ended with exit code 7", 7),
        ("kill -KILL $$", "rank 1 (sh, PID on HOST) was killed by SIGKILL", 137),
        ("kill -USR1 $$", "rank 1 (sh, PID on HOST) was killed by SIGUSR1", 138),
        ("kill -35 $$", "rank 1 (sh, PID on HOST) was killed by signal 35", 163),
        ("ulimit -c 0; kill -SEGV $$", "rank 1 (sh, PID on HOST) was killed by SIGSEGV (no core dump)", 139),
    ] {
        let site = Site::new();
        let script = format!("[ $IOF_RANK = 0 ] || {{ echo $$; {script}; }}");
        // Rank 0 may still run when rank 1 is killed: if it were terminated, a second line would
        // say so.
        let done = start(&site, &["-n", "2", "--kill-on-bad-exit=0"], &script).finish();
        let lines = told(&done);
        assert_eq!((lines.len(), done.code), (1, code), "{done:?}");
        assert_eq!(without_pid(lines[0]), line);
        assert!(lines[0].contains(&format!(", pid {} on ", done.text().trim_end())), "{done:?}");
    }
}

#[test]
fn a_dumped_core_is_told_if_the_kernel_reports_it() {
    // Whether the kernel dumps a core depends on core_pattern and the limits of this machine.
    let site = Site::new();
    let script = "ulimit -c unlimited; kill -SEGV $$";
    let child = Command::new("sh").args(["-c", script]).current_dir(site.path()).status().unwrap();
    let dumps = child.core_dumped();
    let done = start(&site, &["--wdir", site.path().to_str().unwrap()], script).finish();
    let expected = if dumps { "(core dumped)" } else { "(no core dump)" };
    assert!(told(&done)[0].ends_with(&format!("was killed by SIGSEGV {expected}")), "{done:?}");
}

/// Rank 1 fails, after 12 lines of stderr.
const TWELVE_LINES: &str = "[ $IOF_RANK = 0 ] || { seq 12 >&2; printf '\\033[mlast' >&2; exit 3; }";

#[test]
fn the_last_lines_of_stderr_of_the_first_failed_rank_end_the_report() {
    let site = Site::new();
    let files = format!("dir={}", site.path().join("out").display());
    for (options, count) in [
        (&["--output", "tag"][..], 10),
        (&["--output", &files], 10),
        (&["--error-lines", "2"], 2),
        (&["--error-lines", "1000"], 13),
        (&["--error-lines", "0"], 0),
        (&["--quiet"], 0),
    ] {
        let options = [&["-n", "2", "--kill-on-bad-exit=0"], options].concat();
        let done = start(&site, &options, TWELVE_LINES).finish();
        let lines: Vec<&str> =
            done.stderr.lines().filter_map(|line| line.strip_prefix("iof: job demo: rank 1 ")).collect();
        let all = (1..=12).map(|line| format!("stderr: {line}")).chain(["stderr: \\u{1b}[mlast".into()]);
        let all: Vec<String> = all.collect();
        let repeated = lines.get(1..).unwrap_or_default();
        assert_eq!(repeated, &all[13 - count..], "{options:?}: {done:?}");
        assert!(options.contains(&"--quiet") || lines[0].ends_with("ended with exit code 3"), "{done:?}");
        assert!(count == 0 || done.stderr.ends_with("last\n"), "{done:?}");
    }
}

#[test]
fn stderr_is_not_repeated_without_need() {
    let site = Site::new();
    let only = start(&site, &[], "echo why >&2; exit 3").finish();
    assert_eq!(only.stderr.matches("why").count(), 1, "{only:?}");
    let success = start(&site, &["-n", "2", "--output", "tag"], "echo why >&2").finish();
    assert_eq!(success.stderr.matches("why").count(), 2, "{success:?}");
}

#[test]
fn a_long_last_line_is_cut() {
    let site = Site::new();
    let script = "head -c 200000 /dev/zero | tr '\\0' x >&2; exit 3";
    let done = start(&site, &["--no-forward", "stderr"], script).finish();
    let lines: Vec<&str> = done.stderr.lines().collect();
    let text = format!("iof: job demo: rank 0 stderr: {}...", "x".repeat(4096));
    assert_eq!(lines[1..], [text]);
}

#[test]
fn quiet_turns_the_lines_off_and_keeps_the_exit_code() {
    for option in ["--quiet", "-q", "-Q"] {
        let site = Site::new();
        let done = start(&site, &["-n", "3", option], "kill -KILL $$").finish();
        assert_eq!((done.code, done.stderr.as_str()), (137, ""));
    }
}

#[test]
fn the_line_follows_the_output_of_its_rank() {
    for options in [&["-n", "2"][..], &["-n", "2", "--output", "tag"]] {
        let site = Site::new();
        let mut command = Command::new("sh");
        let script = r#"iof=$1; shift; exec "$iof" run "$@" 2>&1"#;
        let rank = "[ $IOF_RANK = 0 ] && exec sleep 1000; seq 20000; printf end; kill -KILL $$";
        command.args(["-c", script, "sh"]).arg(iof().get_program()).arg("--rendezvous-dir");
        command.arg(site.path()).args(DEMO).args(options).args(["--", "sh", "-c", rank]);
        let done = Process::start(&mut command).finish();
        let lines: Vec<&str> = done.text().lines().collect();
        assert_eq!(lines.len(), 20_003, "{}", lines[lines.len().saturating_sub(5)..].join("\n"));
        assert!(lines[20_000].ends_with("end"), "{}", lines[20_000]);
        assert!(lines[20_001].starts_with("iof: job demo: rank 1 (sh, pid "), "{}", lines[20_001]);
    }
}

#[test]
fn among_a_hundred_ranks_the_one_that_failed_is_told() {
    let site = Site::new();
    let done = start(&site, &["-n", "100"], "[ $IOF_RANK != 42 ] || exit 3").finish();
    let lines = told(&done);
    assert_eq!((lines.len(), done.code), (1, 3), "{done:?}");
    assert_eq!(without_pid(lines[0]), "rank 42 (sh, PID on HOST) ended with exit code 3");
}

#[test]
fn many_failed_ranks_have_ten_lines_and_one_for_all_others() {
    let site = Site::new();
    let script = "[ $IOF_RANK -lt 40 ] || exit 4; exit 3";
    let done = start(&site, &["-n", "60"], script).finish();
    let lines = told(&done);
    assert_eq!(lines.len(), 11, "{done:?}");
    assert!(lines[..10].iter().all(|line| line.contains(" ended with exit code ")), "{done:?}");
    let counts = lines[10].strip_prefix("50 more ranks failed: ").unwrap();
    let count = |code: u32, ranks: usize| {
        let own = format!("ended with exit code {code}");
        let shown = lines[..10].iter().filter(|line| line.ends_with(&own)).count();
        format!("exit code {code}: {} rank", ranks - shown)
    };
    assert!(counts.contains(&count(3, 40)) && counts.contains(&count(4, 20)), "{done:?}");
}

#[test]
fn the_rank_that_ended_the_job_has_a_line_after_ten_others() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        "[ $IOF_RANK -lt 12 ] && exit 3; [ $IOF_RANK = 13 ] && {WAIT}; : < {}; echo last; kill -KILL $$",
        gate.path()
    );
    let run = start(&site, &["-n", "14"], &script);
    (0..12).for_each(|rank| drop(site.wait_for_state(rank, "failed")));
    gate.open();
    let done = run.finish();
    let lines = told(&done);
    assert_eq!((lines.len(), done.code), (13, 3), "{done:?}");
    assert_eq!(without_pid(lines[10]), "rank 12 (sh, PID on HOST) was killed by SIGKILL");
    assert!(lines[11].starts_with("2 more ranks failed: exit code 3: 2 ranks"), "{done:?}");
    assert!(lines[12].ends_with("because rank 12 failed (see --kill-on-bad-exit)"), "{done:?}");
}

#[test]
fn a_rank_killed_by_a_signal_ends_the_job_by_default() {
    let site = Site::new();
    let script = format!("[ $IOF_RANK = 2 ] || {WAIT}; kill -KILL $$");
    let done = start(&site, &["-n", "5"], &script).finish();
    assert_eq!(done.code, 137);
    let lines = told(&done);
    assert_eq!(without_pid(lines[0]), "rank 2 (sh, PID on HOST) was killed by SIGKILL");
    let others = "terminated 4 other ranks (0-1,3-4) because rank 2 failed (see --kill-on-bad-exit)";
    assert_eq!(lines[1..], [others]);
}

#[test]
fn another_exit_code_does_not_end_the_job_by_default() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK = 0 ] && exit 5; : < {}; echo still here", gate.path());
    let run = start(&site, &["-n", "2"], &script);
    site.wait_for_state(0, "failed");
    gate.open();
    let done = run.finish();
    assert_eq!((done.code, done.text()), (5, "still here\n"));
    assert_eq!(told(&done).len(), 1, "{done:?}");
}

#[test]
fn kill_on_bad_exit_0_lets_the_other_ranks_run_on() {
    for option in ["--kill-on-bad-exit=0", "-K=0", "-K0"] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = format!("[ $IOF_RANK = 0 ] && kill -KILL $$; : < {}; echo still here", gate.path());
        let run = start(&site, &["-n", "2", option], &script);
        site.wait_for_state(0, "killed");
        gate.open();
        let done = run.finish();
        assert_eq!((done.code, done.text()), (137, "still here\n"), "{option}");
        assert_eq!(told(&done).len(), 1, "{done:?}");
    }
}

#[test]
fn a_rank_that_iof_kill_ends_does_not_end_the_job() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(": < {}; [ $IOF_RANK != 1 ] || kill -KILL $$; echo still here", gate.path());
    let run = start(&site, &["-n", "3", "-K"], &script);
    site.wait_for_ranks(3);
    let kill = Process::start(site.iof("kill").args(["demo", "KILL", "--rank", "0"])).finish();
    assert_eq!(kill.code, 0, "{kill:?}");
    site.wait_for_state(0, "killed");
    assert_eq!(run.exit_code(), None);
    // The signal was sent to rank 0 only, so the same end of rank 1 is a failure.
    gate.open();
    let done = run.finish();
    assert_eq!(done.code, 137);
    let lines = told(&done);
    assert_eq!(without_pid(lines[0]), "rank 1 (sh, PID on HOST) was killed by SIGKILL");
    let requested = "terminated 1 rank on request: SIGKILL: 1 rank (0)";
    assert_eq!(lines.last(), Some(&requested), "{done:?}");
}

#[test]
fn kill_on_bad_exit_1_ends_the_job_after_any_failure() {
    for option in ["--kill-on-bad-exit=1", "--kill-on-bad-exit", "-K", "-K=1", "-K1"] {
        let site = Site::new();
        let script = format!("[ $IOF_RANK = 0 ] && exit 5; {WAIT}");
        let done = start(&site, &["-n", "2", option], &script).finish();
        let others = "terminated 1 other rank (1) because rank 0 failed (see --kill-on-bad-exit)";
        assert_eq!((done.code, told(&done)[1]), (5, others), "{option}");
    }
}

#[test]
fn ranks_and_children_that_ignore_sigterm_are_killed_after_the_kill_wait() {
    let stubborn = "trap '' TERM; echo ready; sleep 1000 & wait; sleep 1000";
    let script = format!(
        "if [ $IOF_RANK = 0 ]; then read line; kill -KILL $$; fi; trap 'echo got it' TERM;
        ({stubborn}) & while :; do wait; done"
    );
    with_longer_times(|kill_wait| {
        let site = Site::new();
        let mut run = start(&site, &["-n", "3", "--kill-wait", kill_wait], &script);
        for rank in 1..3 {
            site.wait_for_bytes(rank, "stdout", 6);
        }
        // Closes stdin: rank 0 fails.
        drop(run.stdin());
        let (stdout, stderr) = run.collect();
        assert_eq!(run.wait(), 137);
        let stderr = String::from_utf8(stderr.get()).unwrap();
        let others =
            "terminated 2 other ranks (1-2), 2 by SIGKILL, because rank 0 failed (see --kill-on-bad-exit)";
        assert!(stderr.ends_with(&format!("iof: job demo: {others}\n")), "{stderr}");
        wait_for("the end of all children", || run.living().is_empty().then_some(()));
        let warned = String::from_utf8(stdout.get()).unwrap().matches("got it").count();
        if warned == 2 { Ok(()) } else { Err(format!("{warned} of 2 ranks got SIGTERM")) }
    });
}

#[test]
fn without_kill_wait_sigkill_comes_two_seconds_after_sigterm_and_not_earlier() {
    let help = Process::start(iof().args(["run", "--help"])).finish();
    let (_, own) = help.text().split_once("--kill-wait <DURATION>").unwrap();
    assert!(own.split("--timeout <DURATION>").next().unwrap().contains("[default: 2]"), "{own}");
    let site = Site::new();
    let script = "if [ $IOF_RANK = 0 ]; then read line; kill -KILL $$; fi
        trap 'echo got it' TERM; echo ready; while :; do (trap '' TERM; exec sleep 0.05); done";
    let mut run = start(&site, &["-n", "2"], script);
    site.wait_for_bytes(1, "stdout", 6);
    // Closes stdin: rank 0 fails.
    let failed = Instant::now();
    drop(run.stdin());
    let done = run.finish();
    assert!(failed.elapsed() >= Duration::from_secs(2), "{:?}: {done:?}", failed.elapsed());
    assert_eq!((done.code, done.text()), (137, "ready\ngot it\n"), "{done:?}");
    let lines = told(&done);
    assert_eq!(without_pid(lines[0]), "rank 0 (sh, PID on HOST) was killed by SIGKILL");
    let killed = "terminated 1 other rank (1), 1 by SIGKILL, because rank 0 failed (see --kill-on-bad-exit)";
    assert_eq!(lines[1..], [killed]);
}

#[test]
fn a_stopped_rank_is_continued_so_that_it_can_end() {
    let site = Site::new();
    let script = "if [ $IOF_RANK = 0 ]; then read line; kill -KILL $$; fi
        trap 'echo ended; exit 0' TERM; kill -STOP $$; while :; do sleep 0.1; done";
    let mut run = start(&site, &["-n", "2", "--kill-wait", "1h"], script);
    site.wait_for_ranks(2);
    let pid = site.procs().unwrap()[1]["pid"].as_u64().unwrap();
    let is_stopped = || Stat::of(pid.try_into().unwrap()).is_some_and(|stat| stat.state == 'T');
    wait_for("rank 1 to stop", || is_stopped().then_some(()));
    drop(run.stdin());
    let (stdout, _stderr) = run.collect();
    assert_eq!(run.wait(), 137);
    assert_eq!(stdout.get(), b"ended\n");
}

#[test]
fn a_time_limit_ends_the_job_with_code_124_and_lists_the_ranks_left() {
    let script = format!("case $IOF_RANK in 1|2) exit 0;; 4) exit 3;; esac; {WAIT}");
    with_longer_times(|limit| {
        let site = Site::new();
        let done = start(&site, &["-n", "9", "--timeout", limit], &script).finish();
        assert_eq!(done.code, 124);
        // Three ranks may still be about to exit.
        let wanted = format!("not finished after {limit}s (--timeout): terminating ranks 0,3,5-8");
        if told(&done).get(1..) == Some(&[wanted.as_str()]) { Ok(()) } else { Err(format!("{done:?}")) }
    });
}

#[test]
fn a_time_limit_also_ends_a_job_whose_output_is_held_by_others() {
    // The child is in a session of its own, which no signal to the rank's group reaches.
    let script = "setsid sleep 1000 & exit 0";
    with_longer_times(|limit| {
        let site = Site::new();
        let done = start(&site, &["--timeout", limit, "--kill-wait", "0"], script).finish();
        assert_eq!(done.code, 124);
        let wanted = format!(
            "iof: job demo: not finished after {limit}s (--timeout): all ranks have exited, but another process \
             holds their output open"
        );
        // The rank may still be about to exit, and its child about to create its session.
        match done.stderr.lines().collect::<Vec<_>>()[..] {
            [first, second]
                if first == wanted && second.starts_with("iof: job demo: rank 0: stdout, stderr") =>
            {
                Ok(())
            }
            _ => Err(format!("{done:?}")),
        }
    });
}

#[test]
fn a_time_limit_is_understood_in_the_forms_of_other_launchers_and_in_its_own() {
    let timed_out = |limit: &str| {
        let site = Site::new();
        let done = start(&site, &["--timeout", limit], WAIT).finish();
        assert_eq!(done.code, 124, "{limit}: {done:?}");
        let told = told(&done)[0].to_owned();
        let (_, rest) = told.split_once("not finished after ").unwrap();
        rest.split_once(' ').unwrap().0.to_owned()
    };
    for (limit, shown) in [("500ms", "0.5s"), ("0:01", "1s"), ("0:00:0.25", "0.25s"), ("0.004m", "0.24s")] {
        assert_eq!(timed_out(limit), shown, "{limit}");
        assert_eq!(timed_out(shown), shown, "{limit}");
    }
}

#[test]
fn a_job_that_ends_in_time_is_not_affected_by_its_limit() {
    let site = Site::new();
    let done = start(&site, &["-n", "2", "--timeout", "1h"], "exit 0").finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn a_passed_on_signal_is_no_bad_exit_and_has_one_line() {
    let site = Site::new();
    // Rank 0 ends at once, the others clean up first.
    let script = "[ $IOF_RANK = 0 ] && exec sleep 1000
        trap 'sleep 0.3; echo clean; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let options = ["-n", "3", "--kill-on-bad-exit=1", "--kill-wait", "0"];
    let mut run = start(&site, &options, script);
    let (stdout, stderr) = run.collect();
    (1..3).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 6)));
    wait_for("rank 0", || (!run.running("sleep").is_empty()).then_some(()));
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    assert_eq!(String::from_utf8(stdout.get()).unwrap().matches("clean\n").count(), 2);
    let line =
        "iof: job demo: terminated 3 ranks on request: exit code 9: 2 ranks (1-2), SIGINT: 1 rank (0)\n";
    assert_eq!(String::from_utf8(stderr.get()).unwrap(), line);
}

#[test]
fn the_exit_code_is_that_of_a_crash_rather_than_of_ranks_that_ended_on_request() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    // Rank 0 crashes in its handler when the others have ended.
    let script = format!(
        "[ $IOF_RANK = 0 ] || {{ echo ready; exec sleep 1000; }}
        trap ': < {}; kill -SEGV $$' TERM; echo ready; while :; do sleep 0.05; done",
        gate.path()
    );
    let mut run = start(&site, &["-n", "3", "--error-lines", "0"], &script);
    let (_stdout, stderr) = run.collect();
    (0..3).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 6)));
    run.signal(Signal::SIGTERM);
    [1, 2].into_iter().for_each(|rank| drop(site.wait_for_state(rank, "killed")));
    gate.open();
    assert_eq!(run.wait(), 139);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    // The shell of rank 0 may tell that its child was terminated.
    let lines: Vec<&str> = stderr.lines().filter_map(|line| line.strip_prefix("iof: job demo: ")).collect();
    assert!(without_pid(lines[0]).starts_with("rank 0 (sh, PID on HOST) was killed by SIGSEGV"), "{stderr}");
    assert_eq!(lines[1..], ["terminated 2 ranks on request: SIGTERM: 2 ranks (1-2)"]);
}

#[test]
fn ctrl_c_at_a_terminal_has_one_line() {
    let site = Site::new();
    let args = [&DEMO[..], &["-n", "3", "--", "sh", "-c", "echo ready; exec sleep 1000"]].concat();
    let (terminal, run) = site.run_at_terminal(args);
    terminal.wait_for("ready", 3);
    wait_for("the ranks", || (run.running("sleep").len() == 3).then_some(()));
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 130);
    let shown = terminal.all_shown();
    // The terminal echoes the key before it sends the signal.
    let (_, after) = shown.split_once("^C").unwrap_or_else(|| panic!("no echo: {shown:?}"));
    assert_eq!(after, "iof: job demo: terminated 3 ranks on request: SIGINT: 3 ranks (0-2)\r\n");
}

#[test]
fn a_line_at_a_terminal_in_raw_mode_starts_and_ends_at_the_left() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        "if [ $IOF_RANK = 1 ]; then : < {}; exit 6; fi; stty raw -echo; printf 'prompt> '; head -c 1 >/dev/null; echo",
        gate.path()
    );
    let args = [&DEMO[..], &["-n", "2", "--pty", "0", "--", "sh", "-c", &script]].concat();
    let (terminal, run) = site.run_at_terminal(args);
    terminal.wait_for("prompt> ", 1);
    gate.open();
    terminal.wait_for("ended with exit code 6", 1);
    terminal.type_keys("x");
    assert_eq!(run.wait(), 6);
    let shown = terminal.all_shown();
    assert!(shown.contains("prompt> \r\niof: job demo: rank 1 (sh, pid "), "{shown:?}");
    assert!(shown.contains("ended with exit code 6\r\n"), "{shown:?}");
}

#[test]
fn a_rank_that_fails_while_stdin_is_pushed_is_told() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 1 ] && { read line; exit 6; }; cat";
    let mut run = start(&site, &["-n", "2", "--stdin", "all"], script);
    let mut stdin = run.stdin();
    stdin.write_all(b"one\n").unwrap();
    site.wait_for_state(1, "failed");
    stdin.write_all(b"two\n").unwrap();
    drop(stdin);
    let (stdout, stderr) = run.collect();
    assert_eq!(run.wait(), 6);
    assert_eq!(stdout.get(), b"one\ntwo\n");
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let line = stderr.strip_prefix("iof: job demo: ").unwrap();
    assert_eq!(without_pid(line), "rank 1 (sh, PID on HOST) ended with exit code 6\n");
}

#[test]
fn the_summary_names_signals() {
    let site = Site::new();
    let script = "case $IOF_RANK in 1) kill -SEGV $$;; 2) exit 3;; esac";
    let options = ["-n", "4", "--summary", "--quiet", "--kill-on-bad-exit=0"];
    let done = start(&site, &options, script).finish();
    let exits = "exit code 0: 2 ranks, exit code 3: 1 rank (2), SIGSEGV: 1 rank (1); ";
    assert!(done.stderr.contains(exits), "{done:?}");
}

#[test]
fn the_exit_code_is_that_of_the_first_failure_also_if_that_ends_the_job() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 1 ] && exit 3; trap 'exit 77' TERM; while :; do sleep 0.05; done";
    assert_eq!(start(&site, &["-n", "3", "-K"], script).finish().code, 3);
}

#[test]
fn bad_values_are_refused_before_anything_starts() {
    for (option, message) in [
        ("--kill-on-bad-exit=2", "'2'"),
        ("--kill-on-bad-exit=yes", "'yes'"),
        ("--kill-wait=-1", "invalid time '-1'"),
        ("--kill-wait=1d", "invalid time '1d'"),
        ("--timeout=0", "invalid timeout '0'"),
        ("--timeout=soon", "invalid time 'soon'"),
        ("--timeout=", "invalid time ''"),
    ] {
        let site = Site::new();
        let done = site.run(&[option], ["touch", site.path().join("started").to_str().unwrap()]).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
        assert!(done.stderr.contains(message), "{done:?}");
        assert!(!site.path().join("started").exists(), "{option}");
    }
}
