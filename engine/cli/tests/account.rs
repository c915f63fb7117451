//! `iof run --timings --summary`: the counts match what the ranks wrote and what was forwarded.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::symlink;

use iof_testing::command::site::{Site, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Done;

/// Returns the lines of stderr with this prefix, without the prefix.
fn lines<'a>(stderr: &'a str, prefix: &str) -> Vec<&'a str> {
    stderr.lines().filter_map(|line| line.strip_prefix(prefix)).collect()
}

/// Returns the text of the only summary, before and after the time.
fn summary(done: &Done) -> (String, String) {
    let found = lines(&done.stderr, "iof: summary: ");
    assert_eq!(found.len(), 1, "{done:?}");
    let (ranks, rest) = found[0].split_once(" in ").unwrap();
    let (seconds, rest) = rest.split_once(" s, ").unwrap();
    assert!(seconds.parse::<f64>().unwrap() > 0.0, "{done:?}");
    (ranks.into(), rest.into())
}

/// Returns the bytes read and lost in the `--timings` of a channel.
fn channel(done: &Done, name: &str) -> (u64, u64) {
    let found = lines(&done.stderr, &format!("iof: timings: {name} "));
    assert_eq!(found.len(), 1, "{done:?}");
    let (read, lost) = found[0].split_once(" bytes read, ").unwrap();
    (read.parse().unwrap(), lost.split_once(" lost").unwrap().0.parse().unwrap())
}

/// Returns the sum of user and system CPU seconds.
fn cpu(done: &Done) -> f64 {
    let (_, cpu) = done.stderr.split_once(" s, CPU of iof itself ").unwrap();
    let fields: Vec<&str> = cpu.lines().next().unwrap().split(' ').collect();
    assert_eq!((fields[1], fields[2], fields[3], fields[5], fields[6]), ("s", "user", "and", "s", "system"));
    fields[0].parse::<f64>().unwrap() + fields[4].parse::<f64>().unwrap()
}

#[test]
fn counts_match_what_the_ranks_wrote_and_their_exit_codes() {
    let site = Site::new();
    let script =
        "head -c $((1000 * (IOF_RANK + 1))) /dev/zero; printf 12345 >&2; printf abc >&$IOF_STDDIAG_FD
        exit $((IOF_RANK % 2 * 7))";
    let done = site.run_sh(&["-n", "5", "--timings", "--summary"], script).finish();
    assert_eq!((done.code, done.stdout.len()), (7, 15_000));
    let rest = "exit code 0: 3 ranks, exit code 7: 2 ranks (1,3); 15040 bytes forwarded, 0 lost";
    assert_eq!(summary(&done), ("5 ranks".into(), rest.into()));
    assert_eq!(
        ["stdout", "stderr", "stddiag"].map(|name| channel(&done, name)),
        [(15_000, 0), (25, 0), (15, 0)]
    );
    assert!(cpu(&done) > 0.0);
}

#[test]
fn bytes_that_are_shown_and_written_to_files_are_counted_once() {
    let site = Site::new();
    let list = format!("dir={}:copy", site.path().join("out").display());
    let done = site.run_sh(&["--output", &list, "--summary"], "echo four; echo err >&2").finish();
    let rest = "exit code 0: 1 rank; 9 bytes forwarded, 0 lost";
    assert_eq!(summary(&done), ("1 rank".into(), rest.into()));
}

#[test]
fn lost_bytes_are_those_missing_from_the_output_under_each_policy() {
    ["newest", "oldest"].into_iter().for_each(assert_lost);
}

fn assert_lost(policy: &str) {
    const TOTAL: u64 = 1 << 20;
    let site = Site::new();
    let mut end = site.gate("end");
    let program = rank(["--length", &TOTAL.to_string(), "--gate", &format!("{TOTAL}:{}", end.path())]);
    let options = ["--cache-size", "64K", "--drop", policy, "--timings", "--summary"];
    let mut run = site.run(&options, program);
    // stdout is read only after the rank has written everything.
    let (stdout, stderr) = (run.stdout(), collect(run.stderr()));
    site.wait_for_bytes(0, "stdout", TOTAL);
    let stdout = collect(stdout);
    end.open();
    let code = run.wait();
    let done = Done { code, stdout: stdout.get(), stderr: String::from_utf8(stderr.get()).unwrap() };
    let missing = |line: &&str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    // A slow machine loses bytes at several times, and then the last line repeats them in total.
    let mut told = lines(&done.stderr, "iof: job rank: rank 0 stdout: ");
    told.retain(|line| !line.contains(" in total"));
    let missing: u64 = told.iter().map(missing).sum();
    let written = u64::try_from(done.stdout.len()).unwrap();
    assert!(missing > 0 && written > 0 && missing + written == TOTAL, "{}", done.stderr);
    assert_eq!(channel(&done, "stdout"), (TOTAL, missing));
    let rest = format!("exit code 0: 1 rank; {written} bytes forwarded, {missing} lost");
    assert_eq!(summary(&done), ("1 rank".into(), rest));
}

#[test]
fn cpu_time_does_not_include_the_ranks() {
    let site = Site::new();
    // At the end, times(1p) prints the CPU time of the shell itself.
    let script = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done; times";
    let done = site.run_sh(&["--timings"], script).finish();
    let (minutes, rest) = done.text().split_once('m').unwrap();
    let seconds =
        rest.split_once('s').unwrap().0.parse::<f64>().unwrap() + minutes.parse::<f64>().unwrap() * 60.0;
    assert!(cpu(&done) < seconds, "the rank took {seconds} s: {done:?}");
}

#[test]
fn timings_and_summary_are_printed_when_the_reader_of_the_output_is_gone() {
    let site = Site::new();
    let mut run = site.run(&["-n", "2", "--timings", "--summary"], ["yes"]);
    let stderr = collect(run.stderr());
    drop(run.stdout());
    let code = run.wait();
    let done = Done { code, stdout: Vec::new(), stderr: String::from_utf8(stderr.get()).unwrap() };
    assert_eq!(done.code, 141);
    let (ranks, rest) = summary(&done);
    assert_eq!(ranks, "2 ranks");
    assert!(
        rest.contains("SIGTERM: 2 ranks (0-1);")
            && rest.ends_with("lost, not counting an output that failed or was given up"),
        "{rest}"
    );
    assert!(channel(&done, "stdout").0 > 0);
    let timings = lines(&done.stderr, "iof: timings: stdout ");
    assert!(timings[0].ends_with(" lost, not counting an output that failed or was given up"), "{timings:?}");
}

#[test]
fn timings_and_summary_are_printed_only_on_request() {
    let site = Site::new();
    assert_eq!(site.run(&[], ["true"]).finish().stderr, "");
    let only = |option: &str| site.run(&[option], ["true"]).finish().stderr;
    let (timings, summary) = (only("--timings"), only("--summary"));
    assert!(timings.lines().count() == 6 && !timings.contains("summary"), "{timings}");
    assert!(summary.lines().count() == 1 && summary.contains("summary"), "{summary}");
}

/// Runs three ranks that end in different ways, with a job log in `file`.
fn logged(site: &Site, file: &str) -> String {
    let path = site.path().join(file);
    fs::write(&path, "of an earlier job").unwrap();
    let script = "case $IOF_RANK in 0) printf 123456; i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done;;
        1) echo out; echo error >&2; exit 7;; 2) kill -TERM $$;; esac";
    let options = ["-n", "3", "--quiet", "--kill-on-bad-exit=0", "--job-log", path.to_str().unwrap()];
    assert!(matches!(site.run_sh(&options, script).finish().code, 7 | 143));
    assert_eq!(
        fs::read_dir(site.path())
            .unwrap()
            .filter(|file| { file.as_ref().unwrap().file_name().to_str().unwrap().contains("job.") })
            .count(),
        1,
        "no draft is left"
    );
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_job_log_has_a_row_for_each_rank() {
    let site = Site::new();
    let text = logged(&site, "job.tsv");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let head =
        ["rank", "host", "pid", "start", "end", "exit_code", "signal", "bytes", "cpu_seconds", "peak_bytes"];
    assert_eq!((rows.len(), &rows[0][..]), (4, &head[..]));
    let ends: Vec<_> = rows[1..].iter().map(|row| [row[0], row[5], row[6], row[7]]).collect();
    assert_eq!(ends, [["0", "0", "-", "6"], ["1", "7", "-", "10"], ["2", "-", "SIGTERM", "0"]]);
    for row in &rows[1..] {
        assert!(row[3] < row[4] && row[3].starts_with("20") && row[4].ends_with('Z'), "{row:?}");
        assert!(row[9].parse::<u64>().unwrap() > 100_000, "{row:?}");
    }
    let cpu = |row: &[&str]| row[8].parse::<f64>().unwrap();
    assert!(cpu(&rows[1]) > 0.001 && cpu(&rows[1]) < 60.0, "{text}");
}

#[test]
fn a_job_log_whose_name_ends_in_json_is_json() {
    let site = Site::new();
    let rows: serde_json::Value = serde_json::from_str(&logged(&site, "job.json")).unwrap();
    let ends = |key: &str| [&rows[0][key], &rows[1][key], &rows[2][key]].map(ToString::to_string);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!(ends("exit_code"), ["0", "7", "null"]);
    assert_eq!(ends("signal"), ["null", "null", "\"SIGTERM\""]);
    assert_eq!(ends("bytes"), ["6", "10", "0"]);
}

#[test]
fn a_job_whose_log_cannot_be_written_at_its_end_fails() {
    let site = Site::new();
    let directory = site.path().join("logs");
    fs::create_dir(&directory).unwrap();
    let log = directory.join("log");
    let script = format!("rmdir {}", directory.display());
    let done = site.run_sh(&["--job-log", log.to_str().unwrap()], &script).finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.starts_with("iof: cannot write the job log "), "{done:?}");
}

#[test]
fn a_job_log_that_the_job_uses_is_refused_and_keeps_its_contents() {
    let site = Site::new();
    let path = |name: &str| site.path().join(name).into_os_string().into_string().unwrap();
    let (log, program, same) = (path("log"), path("program"), path("same"));
    fs::copy("/bin/true", &program).unwrap();
    fs::write(&log, "old").unwrap();
    fs::hard_link(&log, &same).unwrap();
    let pattern = format!("file={}:pattern:copy", path("%n"));
    for (log, options, program) in [
        (&program, &[][..], program.as_str()),
        (&same, &["--open-mode", "append", "-o", &log], "echo"),
        (&same, &["--stdin-file", &log], "echo"),
        (&path("new"), &["--output", &pattern, "--nspace", "new"], "echo"),
    ] {
        let before = fs::read(log).ok();
        let done = site.run(&[&["--job-log", log], options].concat(), [program]).finish();
        assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
        assert_eq!(done.stderr, format!("iof: --job-log {log}: the job uses this file: name another file\n"));
        assert_eq!(fs::read(log).ok(), before);
    }
    let mut run = site.iof("run");
    run.args(["--job-log", &same, "echo"]);
    run.stdout(fs::OpenOptions::new().append(true).open(&log).unwrap());
    assert_eq!(run.status().unwrap().code(), Some(2));
    assert_eq!(fs::read(&log).unwrap(), b"old");
}

#[test]
fn a_job_log_has_a_row_for_each_rank_on_other_nodes() {
    let site = Site::new();
    let log = site.path().join("job.tsv");
    let nodes = ["--hosts", "a:1,b:1", "--rsh", "sh -c", "-n", "2", "--quiet"];
    let options = [&nodes[..], &["--job-log", log.to_str().unwrap()]].concat();
    let done = site.run_sh(&options, "printf 123; [ $IOF_RANK = 0 ] || exit 7").finish();
    assert_eq!(done.code, 7, "{done:?}");
    let text = fs::read_to_string(log).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2, "{text}");
    for (row, code) in rows.iter().zip(["0", "7"]) {
        assert_eq!([row[5], row[7]], [code, "3"], "{text}");
        assert!(row[3].starts_with("20") && row[4].starts_with("20"), "{text}");
        assert!(row[8].parse::<f64>().unwrap() > 0.0 && row[9].parse::<u64>().unwrap() > 100_000, "{text}");
    }
}

#[test]
fn a_job_log_by_a_link_to_a_file_that_does_not_exist_is_written_there() {
    let site = Site::new();
    let path = |name: &str| site.path().join(name);
    fs::create_dir(path("logs")).unwrap();
    symlink("second", path("link")).unwrap();
    symlink("logs/log", path("second")).unwrap();
    symlink("round", path("round")).unwrap();
    let run = |log: &str| site.run(&["--job-log", path(log).to_str().unwrap()], ["true"]).finish();
    assert_eq!(run("link").code, 0);
    assert!(
        path("second").is_symlink() && fs::read_to_string(path("logs/log")).unwrap().starts_with("rank\t")
    );
    let done = run("round");
    assert!(done.code == 2 && done.stderr.contains("symbolic links"), "{done:?}");
}
