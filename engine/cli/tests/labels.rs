//! The text before lines: `--label`, times and colours.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use nix::unistd::gethostname;

/// Runs `iof run OPTIONS sh -c SCRIPT` with these variables and without those about colours.
fn run(variables: &[(&str, &str)], options: &[&str], script: &str) -> Done {
    let mut command: Command = iof();
    command.args(["run", "--rendezvous-dir", "none", "--nspace", "job"]).args(options);
    command.args(["sh", "-c", script]).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command.env("TZ", "UTC-5").envs(variables.iter().copied());
    Process::start(&mut command).finish()
}

#[test]
fn a_label_shows_what_its_placeholders_stand_for() {
    let host = gethostname().unwrap().into_string().unwrap();
    for (label, shown) in [
        ("{nspace}.{rank} ", "job.0 one\njob.0 two\n".to_owned()),
        ("{rank:4}|", "0000|one\n0000|two\n".into()),
        ("{{{channel}}} ", "{stdout} one\n{stdout} two\n".into()),
        ("{host}: ", format!("{host}: one\n{host}: two\n")),
    ] {
        let done = run(&[], &["--label", label], "echo one; echo two");
        assert_eq!((done.code, &*done.stderr, done.text()), (0, "", &*shown), "{label}");
    }
    let done = run(&[], &["--label", "{pid} "], "echo $$");
    let (label, pid) = done.text().trim().split_once(' ').unwrap();
    assert_eq!(label, pid);
    // Also with what selects lines, and with a suffix.
    let options = ["--label", "{rank} ", "--match", "o$", "--tag-suffix", "."];
    assert_eq!(run(&[], &options, "echo one; echo two").text(), "0 two.\n");
}

#[test]
fn times_are_those_of_the_reads_in_the_local_time_zone() {
    let script = "date -u +%H:%M:%S; sleep 1.1; date -u +%H:%M:%S";
    let hour = |time: &str| time[..2].parse::<u32>().unwrap();
    for options in [&["--label", "{time:%H:%M:%S} {elapsed} "][..], &["--label", "{time} {elapsed} "]] {
        let done = run(&[], options, script);
        let rows: Vec<Vec<&str>> = done.text().lines().map(|line| line.split(' ').collect()).collect();
        for row in &rows {
            assert_eq!((hour(row[2]) + 5) % 24, hour(row[0]), "{rows:?}");
            assert_eq!(row[0].len(), 8);
        }
        let elapsed: Vec<f64> = rows.iter().map(|row| row[1].parse().unwrap()).collect();
        assert!(elapsed[0] >= 0.0 && elapsed[1] - elapsed[0] >= 1.0, "{elapsed:?}");
        assert_ne!(rows[0][0], rows[1][0]);
    }
    let done = run(&[], &["--output", "timestamp=local,rank"], script);
    for line in done.text().lines() {
        let (stamp, time) = line.strip_prefix('[').unwrap().split_once("][0]<stdout>: ").unwrap();
        assert_eq!((stamp.len(), (hour(time) + 5) % 24), ("13:17:58.123".len(), hour(stamp)));
    }
}

#[test]
fn labels_and_habits_of_other_log_commands_apply_to_pulls() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let job = site.run_sh(&["-n", "2", "--nspace", "job"], &format!("echo one; : < {}", gate.path()));
    site.wait_for_bytes(0, "stdout", 4);
    site.wait_for_bytes(1, "stdout", 4);
    let label = ["-f", "job", "--label", "{nspace}/{rank:2} {elapsed} "];
    let stamped = ["-ft", "--rank", "1", "job"];
    let pulls = [site.pull(&label), site.pull(&stamped), site.pull(&["--timestamps", "--rank", "1", "job"])];
    site.wait_for_pulls(1, "stdout", 3);
    gate.open();
    let [label, stamped, long] = pulls.map(Process::finish);
    let mut lines: Vec<Vec<&str>> = label.text().lines().map(|line| line.split(' ').collect()).collect();
    lines.sort_unstable();
    for (rank, line) in lines.iter().enumerate() {
        assert_eq!((line[0], line[2]), (&*format!("job/{rank:02}"), "one"));
        // The line was read before the command began.
        assert!(line[1].starts_with('-'), "{line:?}");
    }
    assert_eq!(lines.len(), 2);
    assert!(
        stamped.text().ends_with("Z]<stdout>: one\n") && stamped.text().starts_with("[20"),
        "{stamped:?}"
    );
    assert_eq!(stamped.text(), long.text());
    assert_eq!(job.finish().code, 0);
}

#[test]
fn colours_are_those_that_the_option_and_the_environment_ask_for() {
    let (plain, coloured) = ("[0]<stdout>: x\n", "\x1b[36m[0]<stdout>: \x1b[0mx\n");
    for (variables, option, shown) in [
        (&[][..], &[][..], plain),
        (&[], &["--color", "always"], coloured),
        (&[], &["--color=never"], plain),
        (&[("CLICOLOR_FORCE", "1")], &[], coloured),
        (&[("CLICOLOR_FORCE", "0")], &[], plain),
        (&[("CLICOLOR_FORCE", "")], &[], plain),
        (&[("CLICOLOR_FORCE", "1")], &["--color", "never"], plain),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], &["--color", "auto"], plain),
        (&[("NO_COLOR", "1")], &["--color", "always"], coloured),
    ] {
        let options = [&["--output", "rank"], option].concat();
        assert_eq!(run(variables, &options, "echo x").text(), shown, "{variables:?} {option:?}");
    }
    let done = run(&[], &["--color", "always", "--label", "{rank} {time:%Y} "], "echo x");
    assert!(done.text().starts_with("\x1b[36m0 20") && done.text().ends_with(" \x1b[0mx\n"), "{done:?}");
}

#[test]
fn labels_and_colours_that_cannot_be_are_refused_in_one_line() {
    for (options, reason) in [
        (&["--label", ""][..], "no placeholder such as {rank}: the output format 'rank' labels as srun does"),
        (&["--label", "./prog"], "the output format 'rank'"),
        (
            &["--label", "{rnk}"],
            "invalid label '{rnk}' for '--label <TEMPLATE>': unknown placeholder '{rnk}'",
        ),
        (&["--label", "{rank"], "unknown placeholder '{rank'"),
        (&["--label", "{rank:99}"], "unknown placeholder '{rank:99}'"),
        (&["--label", "{time:%!}"], "invalid time format '%!'"),
        (&["--label", "{rank}", "--output", "tag"], "--label cannot be combined with --output tag"),
        (
            &["--label", "{rank}", "--output", "timestamp"],
            "--label cannot be combined with --output timestamp",
        ),
        (&["--label", "{rank}", "--output", "json"], "--label cannot be combined with --output json"),
        (&["--label", "{rank}", "--output", "dir=x:node"], "--label cannot be combined with --output :node"),
        (&["--color", "sometimes"], "invalid value 'sometimes' for '--color <WHEN>'"),
        (&["--output", "timestamp=time"], "expected ns, us, ms, rfc3339 or local"),
    ] {
        let done = run(&[], options, "echo started");
        assert_eq!((done.code, done.stdout.len(), done.stderr.lines().count()), (2, 0, 1), "{done:?}");
        assert!(done.stderr.contains(reason), "{options:?}: {done:?}");
    }
}

#[test]
fn a_variable_sets_the_defaults_of_label_and_color_which_options_replace() {
    let defaults = [("IOF_RUN_OPTIONS", " --label '{rank} | ' --color=always ")];
    for (options, shown) in [
        (&[][..], "\x1b[36m0 | \x1b[0mone\n"),
        (&["--color", "never"], "0 | one\n"),
        (&["--color", "never", "--label", "{rank}="], "0=one\n"),
        (&["--color", "never", "--output", "rank"], "[0]<stdout>: one\n"),
    ] {
        let done = run(&defaults, options, "echo one");
        assert_eq!((done.code, &*done.stderr, done.text()), (0, "", shown), "{options:?}");
    }
}

#[test]
fn other_defaults_are_refused_and_nothing_is_started() {
    for (text, message) in [
        ("--quiet", "unexpected '--quiet': expected --color WHEN and --label TEMPLATE only"),
        ("--label {rank} -n 4", "unexpected '-n'"),
        ("true", "unexpected 'true'"),
        ("--match x", "unexpected '--match'"),
        ("--label", "a value is required for '--label <TEMPLATE>'"),
        ("--label '{rank}", "missing ' at the end"),
        ("--color=blue", "invalid value 'blue'"),
        ("--color never --color always", "cannot be used multiple times"),
        ("--label {rank", "invalid label"),
    ] {
        let done = run(&[("IOF_RUN_OPTIONS", text)], &[], "echo one");
        assert_eq!((done.code, done.text(), done.stderr.lines().count()), (2, "", 1), "{done:?}");
        assert!(
            done.stderr.starts_with("iof: IOF_RUN_OPTIONS: ") && done.stderr.contains(message),
            "{done:?}"
        );
    }
    let mut pull = iof();
    pull.args(["ps", "--rendezvous-dir", "/"]).env("IOF_RUN_OPTIONS", "--quiet");
    assert_eq!(Process::start(&mut pull).finish().code, 0, "other commands ignore it");
}
