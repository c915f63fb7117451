//! `--fold` of `iof pull` and `iof run`: what several ranks write is one line or one block.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use iof_testing::command::site::{Site, lines};
use iof_testing::process::Process;
use iof_testing::wait_for;

const RULE: &str = "---------------\n";

/// Returns the lines of each rank from folded ones.
fn unfold(text: &str) -> BTreeMap<u32, String> {
    let mut ranks: BTreeMap<u32, String> = BTreeMap::new();
    for line in text.split_inclusive('\n') {
        let (list, text) = line.strip_prefix('[').unwrap().split_once("]<stdout>: ").unwrap();
        for range in list.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            for rank in first.parse().unwrap()..=last.parse().unwrap() {
                ranks.entry(rank).or_default().push_str(text);
            }
        }
    }
    ranks
}

#[test]
fn a_line_that_several_ranks_have_written_is_shown_once_with_these_ranks() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = "echo begin; echo group $((IOF_RANK / 3)); echo $IOF_RANK error >&2; : < GATE; echo end; echo $IOF_RANK";
    let run = site.run_sh(&["-n", "4"], &script.replace("GATE", gate.path()));
    (0..4).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 14)));
    let stamp = ["--output", "timestamp=ns"];
    let pulls = [&[][..], &["--label", "{nspace} {rank:2}|"], &["--match", "group|end"], &stamp]
        .map(|options| site.pull(&[&["--fold", "--channel", "stdout"], options].concat()));
    site.wait_for_pulls(0, "stdout", 4);
    gate.open();
    let [plain, labelled, filtered, stamped] = pulls.map(|pull| {
        let done = pull.finish();
        assert_eq!((done.code, &*done.stderr), (0, ""), "{done:?}");
        done.text().to_owned()
    });
    let folded = "[0-3]<stdout>: begin\n[0-2]<stdout>: group 0\n[3]<stdout>: group 1\n";
    assert!(plain.starts_with(folded), "{plain}");
    let all = (0..4).map(|rank| (rank, format!("begin\ngroup {}\nend\n{rank}\n", rank / 3)));
    assert_eq!(unfold(&plain), all.collect());
    assert!(labelled.contains(" 0-3|begin\n") && labelled.contains(" 03|group 1\n"), "{labelled}");
    assert!(filtered.starts_with("[0-2]<stdout>: group 0\n[3]<stdout>: group 1\n"), "{filtered}");
    assert!(unfold(&filtered).values().all(|text| text.ends_with("\nend\n")), "{filtered}");
    assert!(stamped.lines().next().unwrap().ends_with("[0-3]<stdout>: begin"), "{stamped}");
    assert_eq!(run.finish().code, 0);
}

#[test]
fn equal_outputs_of_ranks_here_and_on_nodes_are_one_block() {
    for place in [&["-n", "4"][..], &["-n", "4", "--hosts", "a:2,b:2", "--rsh", "sh -c"]] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = "echo begin; printf group\\ $((IOF_RANK / 3)); echo bad >&2; : < GATE";
        let run = site.run_sh(place, &script.replace("GATE", gate.path()));
        let pull = |options: &[&str]| site.pull(&[&["--no-follow"], options].concat()).finish();
        wait_for("the output", || {
            let has_all = |rank: u32| {
                let done = pull(&["--rank", &rank.to_string()]);
                done.text().contains("group") && done.stderr.contains("bad")
            };
            (0..4).all(has_all).then_some(())
        });
        let block = |label: &str, text: &str| format!("{RULE}{label}\n{RULE}{text}");
        let folded = pull(&["--fold"]);
        let [group, other] = [0, 1].map(|group| format!("begin\ngroup {group}\n"));
        let blocks = [block("[0-2]<stdout>: (3)", &group), block("[3]<stdout>: (1)", &other)];
        assert_eq!((folded.code, folded.text()), (0, &*blocks.concat()), "{place:?}");
        assert_eq!(folded.stderr, block("[0-3]<stderr>: (4)", "bad\n"), "{place:?}");
        let label = pull(&["--fold", "--label", "{rank} ", "--rank", "0-2", "--exclude", "begin"]);
        assert_eq!(label.text(), block("0-2 (3)", "group 0\n"), "{place:?}");
        gate.open();
        assert_eq!(run.finish().code, 0);
    }
}

#[test]
fn run_folds_what_it_shows_and_files_contain_all_lines() {
    let site = Site::new();
    let into = format!("file={}:pattern:copy", site.path().join("out.%t").display());
    for options in [&["-n", "3", "--fold"][..], &["-n", "3", "--fold", "--output", &into]] {
        let done = site.run_sh(options, "echo one; echo two $IOF_RANK").finish();
        let all = (0..3).map(|rank| (rank, format!("one\ntwo {rank}\n")));
        assert_eq!((done.code, unfold(done.text())), (0, all.collect()), "{done:?}");
    }
    let file = std::fs::read_to_string(site.path().join("out.2")).unwrap();
    assert_eq!(file, "one\ntwo 2\n");
}

#[test]
fn output_that_exceeds_what_may_be_held_is_shown_line_by_line_with_one_message() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let line = "x".repeat(127);
    let script = format!("echo rank $IOF_RANK; yes {line} | head -n 300000; : < {}", gate.path());
    let run = site.run_sh(&["-n", "2", "--cache-size", "64M"], &script);
    (0..2).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 300_000 * 128 + 7)));
    let done = site.pull(&["--no-follow", "--fold"]).finish();
    gate.open();
    assert_eq!(run.finish().code, 0);
    let message = "iof: --fold: output of more than 64 MiB cannot wait: it is written before further ranks may have \
                   written the same\n";
    assert_eq!((done.code, &*done.stderr), (0, message));
    for (rank, text) in unfold(done.text()) {
        assert!(text.starts_with(&format!("rank {rank}\nx")) && text.lines().count() == 300_001);
        assert_eq!(lines(&text).len(), 2);
    }
}

#[test]
fn a_fold_that_cannot_be_is_refused_in_one_line() {
    let site = Site::new();
    for (command, args, reason) in [
        ("run", &["--output", "json"][..], "--fold cannot be combined with json"),
        ("pull", &["--output", "json=batch"], "--fold cannot be combined with json"),
        ("pull", &["--output", "xml"], "--fold cannot be combined with xml"),
        ("pull", &["--output", "tag-detailed"], "--fold cannot be combined with tag-detailed"),
        ("run", &["--output", ":raw"], "--fold cannot be combined with --output :raw"),
        ("run", &["--output", "tag", "--tag-by", "fragment"], "combined with --tag-by fragment"),
        ("pull", &["--label", "{channel}"], "--fold cannot be combined with a --label without {rank}"),
        ("pull", &["--label", "{rank} {pid}"], "or with {host} or {pid}: leave one out"),
        ("run", &["--output", "dir=x"], "--fold does not apply to files"),
        ("pull", &["-o", "x"], "--fold does not apply to files"),
        (
            "pull",
            &["--no-follow", "-t"],
            "whole outputs, which have no time: leave out the time, or --no-follow",
        ),
        ("pull", &["--no-follow", "--label", "{rank} {elapsed}"], "whole outputs, which have no time"),
        ("pull", &["--resume", "x"], "--resume needs --output json"),
        ("pull", &["--fold"], "cannot be used multiple times"),
    ] {
        let program = if command == "run" { &["--", "true"][..] } else { &[] };
        let done = Process::start(site.iof(command).arg("--fold").args(args).args(program)).finish();
        assert_eq!((done.code, done.stdout.len(), done.stderr.lines().count()), (2, 0, 1), "{done:?}");
        assert!(done.stderr.contains(reason), "{args:?}: {done:?}");
    }
}
