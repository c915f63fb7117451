//! The lines that `--match` and `--exclude` show, of `iof run` and of `iof pull`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use iof_testing::command::site::Site;
use iof_testing::process::Process;

const SCRIPT: &str =
    "echo step 1 loss 5; echo warning; echo step 2 loss nan; echo step 10; printf 'step 3 loss'";

#[test]
fn whole_lines_are_shown_or_not_in_every_format_and_files_have_all() {
    let site = Site::new();
    let file = site.path().join("out");
    let into = format!("file={}:pattern:copy", file.display());
    for (options, shown) in [
        (&["--match", "loss"][..], "step 1 loss 5\nstep 2 loss nan\nstep 3 loss"),
        (&["--match", "loss$"], "step 3 loss"),
        (&["--match", "^step", "--exclude", "(?i)NAN|10"], "step 1 loss 5\nstep 3 loss"),
        (&["--exclude", "step"], "warning\n"),
        (&["--match", "none"], ""),
        (&["--match", "1$", "--output", "rank"], ""),
        (&["--match", r"\b\d$", "--output", "rank"], "[0]<stdout>: step 1 loss 5\n"),
        (&["--match", "warn", "--output", "xml"], "<stdout rank=\"0\">warning&#010;</stdout>\n"),
        (&["--grep", "warn", "--output", &into], "warning\n"),
    ] {
        let done = site.run_sh(options, SCRIPT).finish();
        assert_eq!((done.code, done.text(), &*done.stderr), (0, shown, ""), "{options:?}");
    }
    let all = "step 1 loss 5\nwarning\nstep 2 loss nan\nstep 10\nstep 3 loss";
    assert_eq!(fs::read_to_string(file.with_extension("out")).unwrap(), all);
    let json = site.run_sh(&["--match", "nan", "--output", "json"], SCRIPT).finish();
    assert!(
        json.text().contains("\"offset\":22,\"host\"") && json.text().matches("\"output\"").count() == 1,
        "{json:?}"
    );
}

#[test]
fn a_line_that_is_written_in_parts_is_selected_as_a_whole() {
    let site = Site::new();
    let script = "printf 'a prompt '; sleep 1.3; printf 'with '; sleep 0.3; echo answer; echo other";
    for ranks in ["1", "2"] {
        let done = site.run_sh(&["-n", ranks, "--match", "answer"], script).finish();
        assert_eq!(done.text(), "a prompt with answer\n".repeat(ranks.parse().unwrap()));
    }
    // Longer than a line that is whole: its beginning decides.
    let script = "printf begin; head -c 300000 /dev/zero | tr '\\0' x; echo end; echo next";
    for (wanted, length) in [("^begin", 300_009), ("next", 5)] {
        let done = site.run_sh(&["--match", wanted], script).finish();
        assert_eq!(done.stdout.len(), length, "{wanted}");
    }
}

#[test]
fn a_pull_shows_the_lines_that_match_of_all_ranks() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = site.run_sh(&["-n", "3"], &format!(": < {}; for i in 1 2 3 4; do echo $i; done", gate.path()));
    site.wait_for_ranks(3);
    let pull = site.pull(&["--match", "[24]", "--output", "rank"]);
    site.wait_for_pulls(2, "stdout", 1);
    gate.open();
    let done = pull.finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    let expected = [
        "[0]<stdout>: 2",
        "[0]<stdout>: 4",
        "[1]<stdout>: 2",
        "[1]<stdout>: 4",
        "[2]<stdout>: 2",
        "[2]<stdout>: 4",
    ];
    assert_eq!(lines, expected);
    assert_eq!(run.finish().text().lines().count(), 12);
}

#[test]
fn filters_that_cannot_be_are_refused_in_one_line() {
    let site = Site::new();
    for command in ["run", "pull"] {
        for (args, reason) in [
            (&["--match", "("][..], "invalid regular expression '(' for '--match <REGEX>': unclosed group"),
            (&["--exclude", "[b-a]"], "invalid regular expression '[b-a]' for '--exclude <REGEX>'"),
            (&["--match", "a", "--match", "b"], "cannot be used multiple times"),
            (&["--match", "a", "--output", ":raw"], "--match cannot be combined with --output :raw"),
            (
                &["--exclude", "a", "--tag-by", "fragment", "--output", "tag"],
                "combined with --tag-by fragment",
            ),
            (&["--exclude", "a", "--output", "dir=x"], "--exclude does not apply to files"),
            (&["--match", "a", "-o", "x"], "--match does not apply to files"),
        ] {
            let program = if command == "run" { &["--", "true"][..] } else { &[] };
            let done = Process::start(site.iof(command).args(args).args(program)).finish();
            assert_eq!((done.code, done.stdout.len(), done.stderr.lines().count()), (2, 0, 1), "{done:?}");
            assert!(done.stderr.contains(reason), "{args:?}: {done:?}");
        }
    }
}
