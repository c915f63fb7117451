//! The grace period, for which children of a rank may hold its output open. Its end does not lose
//! bytes of the rank itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use iof_testing::bytes::{assert_same, noise};
use iof_testing::command::site::{Site, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Stat;
use iof_testing::wait_for;

#[test]
fn at_the_end_of_the_grace_period_the_run_ends_and_reports_cut_off_output() {
    let site = Site::new();
    let script = "if [ $IOF_RANK = 1 ]; then sleep 1000 & fi; echo out; echo err >&2; exit $IOF_RANK";
    let mut run = site.run_sh(&["-n", "3", "--nspace", "demo", "--grace", "0.1"], script);
    let (stdout, stderr) = (collect(run.stdout()), collect(run.stderr()));
    // The code of the rank that failed first, 1 or 2.
    assert!([1, 2].contains(&run.wait()));
    assert_eq!(stdout.get(), b"out\nout\nout\n");
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let messages: Vec<&str> = stderr.lines().filter(|line| line.contains(" cut off: ")).collect();
    assert!(matches!(messages[..], [message] if message.starts_with("iof: job demo: rank 1: ")), "{stderr}");
    for channel in ["stdout", "stderr", "stddiag"] {
        assert_eq!(messages[0].matches(channel).count(), 1, "{stderr}");
    }
    wait_for("the child alone, which still runs", || (run.living().len() == 1).then_some(()));
}

#[test]
fn cut_off_output_of_many_ranks_has_one_line_and_none_with_quiet() {
    let script = "sleep 1000 & exit 0";
    let run = |options: &[&str]| {
        let options = [&["-n", "30", "--nspace", "demo", "--grace", "0"], options].concat();
        let done = Site::new().run_sh(&options, script).finish();
        assert_eq!(done.code, 0, "{done:?}");
        done.stderr
    };
    let line = "ranks 0-29: stdout, stderr, stddiag cut off: processes that outlived the ranks hold it open";
    assert_eq!(run(&[]), format!("iof: job demo: {line}\n"));
    assert_eq!(run(&["--quiet"]), "");
}

#[test]
fn a_daemon_that_holds_only_stddiag_open_does_not_hold_the_run() {
    let site = Site::new();
    let script = "sleep 1000 > /dev/null 2>&1 & echo diagnosis >&6; exit 3";
    let mut run = site.run_sh(&["-n", "2", "--quiet", "--nspace", "job@1", "--output", "tag"], script);
    let stderr = collect(run.stderr());
    assert_eq!(run.wait(), 3);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let mut lines: Vec<&str> = stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[1,0]<stddiag>: diagnosis", "[1,1]<stddiag>: diagnosis"]);
    assert_eq!(run.living().len(), 2, "the daemons still run");
}

#[test]
fn output_of_a_child_that_ends_within_the_grace_period_is_complete() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("(: < {}; echo child) & exit 0", gate.path());
    let run = site.run_sh(&["--grace", "1000"], &script);
    site.wait_for_state(0, "terminated");
    gate.open();
    let done = run.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "child\n", ""));
}

#[test]
fn ranks_without_children_lose_nothing_even_without_a_grace_period() {
    let done = Site::new().run_sh(&["-n", "40", "--grace", "0"], "seq 1000; seq 10 >&2").finish();
    assert_eq!(done.code, 0);
    assert_eq!(done.text().lines().count(), 40_000);
    assert_eq!(done.stderr.lines().count(), 400, "{}", done.stderr);
    assert!(!done.stderr.contains("iof"), "{}", done.stderr);
}

#[test]
fn output_of_a_rank_is_kept_for_a_slow_reader_after_the_grace_period() {
    const LENGTH: usize = 100_000;
    let site = Site::new();
    // When the rank ends, its last bytes are still in its pipe.
    let program = rank(["--length", &LENGTH.to_string()]);
    let script = ["sh", "-c", "\"$@\"; sleep 1000 & exit 0", "sh"].map(str::to_owned);
    let mut run = site.run(&["--grace", "0", "--cache-size", "16K"], script.into_iter().chain(program));
    site.wait_for_state(0, "terminated");
    let stream = site.stream(0, "stdout").unwrap();
    assert!(stream.number("produced") < LENGTH as u64 && !stream.is_complete(), "{stream:?}");
    let (stdout, stderr) = run.collect();
    assert_same("the rank's bytes", &stdout.get(), &noise(0, "stdout", 0, LENGTH));
    assert_eq!(run.wait(), 0);
    assert!(String::from_utf8(stderr.get()).unwrap().contains("cut off"));
}

#[test]
fn a_child_that_writes_after_the_grace_period_gets_sigpipe() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    // Rank 1 keeps the run alive.
    let script = format!(
        "if [ $IOF_RANK = 1 ]; then : < {end}; exit; fi; (: < {gate}; exec cat /dev/zero) & echo $!; exit 0",
        end = site.gate("end").path(),
        gate = gate.path()
    );
    let mut run = site.run_sh(&["-n", "2", "--grace", "0"], &script);
    let stdout = run.stdout();
    site.wait_for_stream(0, "stdout", |stream| stream.is_complete());
    let child: u32 = {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(Stat::of(child).is_some());
    gate.open();
    wait_for("the end of the child", || Stat::of(child).is_none_or(|stat| stat.state == 'Z').then_some(()));
}
