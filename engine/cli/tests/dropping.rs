//! The policies of `--drop` while the output of the command is not read: hold the ranks back, or
//! drop bytes and report them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_testing::bytes::{
    Gap, assert_accounted, assert_same, assert_told, from_json, messages, noise, noise_sum, sum,
};
use iof_testing::command::site::{BACKENDS, Gate, Site, rank};
use iof_testing::pipes::collect;
use iof_testing::process::Process;
use iof_testing::{Pending, wait_for};

const TOTAL: u64 = 8 << 20;
const CACHE: u64 = 256 << 10;
/// The largest read of the engine, and the default capacity of a pipe, see pipe(7).
const PIPE: u64 = 64 << 10;

/// Starts a rank that writes [`TOTAL`] bytes to stdout, with a cache of [`CACHE`] bytes and a gate
/// in the middle.
fn start(site: &Site, drop: &str, middle: &Gate, options: &[&str]) -> Process {
    let (total, gate) = (TOTAL.to_string(), format!("{}:{}", TOTAL / 2, middle.path()));
    let cache = CACHE.to_string();
    let options = [&["--cache-size", &cache, "--drop", drop], options].concat();
    site.run(&options, rank(["--length", &total, "--write-size", "5000", "--gate", &gate]))
}

/// The format that shows each gap.
const JSON: [&str; 2] = ["--output", "json"];

/// Waits for the end of a run in JSON. Returns the delivered bytes and the gaps, and checks that
/// they are all bytes, and that messages report the gaps.
fn finish(run: &Process, stdout: Pending<Vec<u8>>, stderr: Pending<Vec<u8>>) -> (Vec<u8>, Vec<Gap>) {
    let stdout = stdout.get();
    let (delivered, gaps) = from_json(0, "stdout", &stdout);
    assert_eq!((run.wait(), stderr.get()), (0, Vec::new()));
    assert_accounted(0, &delivered, &gaps, TOTAL);
    assert_told(0, "stdout", messages(&stdout).as_bytes(), &gaps);
    (delivered, gaps)
}

/// Lets the rank write everything before stdout is read. Returns the delivered bytes and the
/// reported gaps.
fn read_after_the_end(drop: &str, backend: &str) -> (Vec<u8>, Vec<Gap>) {
    let site = Site::on(backend);
    let mut middle = site.gate("middle");
    middle.open();
    let mut run = start(&site, drop, &middle, &JSON);
    site.wait_for_state(0, "terminated");
    let stream = site.wait_for_stream(0, "stdout", |stream| stream.is_complete());
    assert_eq!(stream.number("produced"), TOTAL);
    assert_eq!(run.exit_code(), None, "there are unread bytes");

    let (stdout, stderr) = run.collect();
    finish(&run, stdout, stderr)
}

/// Lets the rank write half of the bytes before stdout is read, and the other half to a reader.
fn read_from_the_middle(drop: &str, backend: &str) -> (Vec<u8>, Vec<Gap>) {
    let site = Site::on(backend);
    let mut middle = site.gate("middle");
    let mut run = start(&site, drop, &middle, &JSON);
    site.wait_for_bytes(0, "stdout", TOTAL / 2);
    let (stdout, stderr) = run.collect();
    site.wait_for_stream(0, "stdout", |stream| stream.readers("iof run")[0]["lag"] == 0);
    middle.open();
    finish(&run, stdout, stderr)
}

#[test]
fn drop_none_holds_the_ranks_back_and_loses_nothing() {
    for options in [&["--drop", "none"][..], &[]] {
        let site = Site::new();
        let (total, cache) = (TOTAL.to_string(), CACHE.to_string());
        let options = [options, &["-n", "2", "--cache-size", &cache]].concat();
        let mut run = site.run(&options, rank(["--length", &total, "--channels", "stderr,stdout"]));
        // Each channel has its own printer. stderr is read, and waits only because the ranks wait.
        let (stdout, stderr) = (run.stdout(), sum(run.stderr()));
        for rank in [0, 1] {
            site.wait_for_bytes(rank, "stdout", CACHE - PIPE + 1);
        }
        // A rank that is not held back would finish in a fraction of this time.
        for _ in 0..20 {
            for stream in site.streams().unwrap() {
                // The ring and the pipe to the test are full, and stderr is not ahead of stdout.
                let limit = if stream.0["channel"] == "stdout" { CACHE + PIPE } else { TOTAL / 2 };
                assert!(stream.number("produced") <= limit, "{stream:?}");
                assert_eq!(stream.number("dropped"), 0);
            }
            assert!(site.procs().unwrap().iter().all(|proc| proc["state"] == "running"));
        }
        let stdout = sum(stdout);
        assert_eq!((stdout.get().length, stderr.get().length), (2 * TOTAL, 2 * TOTAL));
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn drop_none_delivers_every_byte_of_a_rank_that_was_held_back() {
    for backend in BACKENDS {
        let site = Site::on(backend);
        let mut middle = site.gate("middle");
        middle.open();
        let mut run = start(&site, "none", &middle, &[]);
        let (stdout, stderr) = (run.stdout(), collect(run.stderr()));
        site.wait_for_bytes(0, "stdout", CACHE - PIPE + 1);
        let stdout = sum(stdout);
        assert_eq!(stdout.get(), noise_sum(0, "stdout", TOTAL).get());
        assert_same("stderr", &stderr.get(), b"");
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn drop_newest_does_not_hold_the_rank_and_keeps_the_first_bytes() {
    for backend in BACKENDS {
        let (_, gaps) = read_after_the_end("newest", backend);
        assert!(gaps[0].offset >= CACHE, "{gaps:?}");
    }
}

#[test]
fn drop_oldest_does_not_hold_the_rank_and_keeps_the_last_bytes() {
    for backend in BACKENDS {
        let (delivered, gaps) = read_after_the_end("oldest", backend);
        let kept = usize::try_from(CACHE / 2).unwrap();
        let last = noise(0, "stdout", TOTAL - CACHE / 2, kept);
        assert_same("the end", &delivered[delivered.len() - kept..], &last);
        assert!(!gaps.is_empty());
    }
}

#[test]
fn drop_newest_continues_after_the_gap_when_its_reader_reads() {
    for backend in BACKENDS {
        let (_, gaps) = read_from_the_middle("newest", backend);
        assert!(gaps[0].offset >= CACHE, "{gaps:?}");
        assert!(gaps[0].offset + gaps[0].lost <= TOTAL / 2, "{gaps:?}");
    }
}

#[test]
fn drop_oldest_continues_after_the_gap_when_its_reader_reads() {
    for backend in BACKENDS {
        let (_, gaps) = read_from_the_middle("oldest", backend);
        assert!(gaps[0].offset + gaps[0].lost <= TOTAL / 2, "{gaps:?}");
    }
}

#[test]
fn a_reader_that_keeps_up_loses_nothing_under_any_policy() {
    for drop in ["newest", "oldest", "none"] {
        let site = Site::new();
        let mut run = site.run(&["--drop", drop], rank(["--length", "900000"]));
        let (stdout, stderr) = run.collect();
        assert_same(drop, &stdout.get(), &noise(0, "stdout", 0, 900_000));
        assert_same(drop, &stderr.get(), b"");
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn a_channel_that_is_not_read_does_not_cost_the_other_a_byte() {
    let site = Site::new();
    let mut end = site.gate("end");
    let (total, cache) = (TOTAL.to_string(), (TOTAL + (1 << 20)).to_string());
    let gate = format!("{TOTAL}:{}", end.path());
    let program = rank(["--length", &total, "--channels", "stdout,stderr", "--gate", &gate]);
    // The cache is large enough for all bytes, so nothing is lost.
    let mut run = site.run(&["--cache-size", &cache, "--drop", "newest"], program);
    let (stdout, stderr) = (run.stdout(), sum(run.stderr()));
    wait_for("all of stderr to be written, none of stdout read", || {
        let lag = |channel| Some(site.stream(0, channel)?.readers("iof run").first()?["lag"].clone());
        (site.stream(0, "stderr")?.number("produced") == TOTAL && lag("stderr")? == 0).then_some(())
    });
    end.open();
    assert_eq!(sum(stdout).get(), noise_sum(0, "stdout", TOTAL).get());
    assert_eq!(stderr.get(), noise_sum(0, "stderr", TOTAL).get());
    assert_eq!(run.wait(), 0);
}

#[test]
fn gaps_of_a_file_and_of_its_copy_are_reported_separately() {
    let site = Site::new();
    let mut middle = site.gate("middle");
    middle.open();
    // The file is a fifo, which is not read either.
    let mut file = site.gate("rank.out");
    file.open();
    let list = format!("json,file={}/rank:pattern:copy", site.path().display());
    let mut run = site.run(
        &[
            "--cache-size",
            &CACHE.to_string(),
            "--drop",
            "newest",
            "--no-forward",
            "stderr,stddiag",
            "--output",
            &list,
        ],
        rank(["--length", &TOTAL.to_string(), "--write-size", "5000"]),
    );
    site.wait_for_stream(0, "stdout", |stream| stream.is_complete());
    let reader = std::fs::File::open(file.path()).unwrap();
    drop(file);
    let (copied, stderr) = run.collect();
    let (filed, copied) = (collect(reader), copied.get());
    let (filed, told) = (filed.get(), messages(&copied));
    assert_eq!((run.wait(), stderr.get()), (0, Vec::new()), "{told}");
    let mut count = 0;
    for (output, place) in [(copied, " on stdout"), (filed, " in its file")] {
        let reports: String =
            told.lines().filter_map(|line| Some(format!("{}\n", line.strip_suffix(place)?))).collect();
        let (delivered, gaps) = from_json(0, "stdout", &output);
        assert_accounted(0, &delivered, &gaps, TOTAL);
        assert_told(0, "stdout", reports.as_bytes(), &gaps);
        assert!((delivered.len() as u64) < TOTAL, "{place}");
        count += reports.lines().count();
    }
    assert_eq!(count, told.lines().count(), "{told}");
}

#[test]
fn gaps_of_a_stream_are_summed_and_told_at_most_once_a_second() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let (total, closed) = ((64u64 << 20).to_string(), format!("0:{}", gate.path()));
    let program = rank(["--length", &total, "--write-size", "5000", "--gate", &closed]);
    let options = ["--cache-size", "16KiB", "--drop", "newest", "--output", "json"];
    let start = std::time::Instant::now();
    let mut run = site.run(&options, program);
    let (stdout, stderr) = run.collect();
    gate.open();
    let stdout = stdout.get();
    let (_, gaps) = from_json(0, "stdout", &stdout);
    assert_eq!((run.wait(), stderr.get()), (0, Vec::new()));
    let (told, seconds) = (messages(&stdout), start.elapsed().as_secs());
    assert_told(0, "stdout", told.as_bytes(), &gaps);
    // A report each second, one at the end and the sum.
    let reports = told.lines().count() as u64;
    assert!(!gaps.is_empty() && (1..=seconds + 3).contains(&reports), "{reports} in {seconds} s: {gaps:?}");
}

#[test]
fn gaps_of_many_ranks_have_one_report_a_second_with_the_name_of_the_job() {
    let site = Site::new();
    let total = 1u64 << 20;
    let options = ["-n", "20", "--nspace", "demo", "--cache-size", "16K", "--drop", "newest"];
    let start = std::time::Instant::now();
    let mut run = site.run(&options, rank(["--length", &total.to_string()]));
    (0..20).for_each(|rank| drop(site.wait_for_stream(rank, "stdout", |stream| stream.is_complete())));
    let (stdout, stderr) = (sum(run.stdout()), collect(run.stderr()));
    assert_eq!(run.wait(), 0);
    let (delivered, seconds) = (stdout.get().length, start.elapsed().as_secs());
    let stderr = String::from_utf8(stderr.get()).unwrap();
    let reports: Vec<&str> = stderr.lines().collect();
    assert!((1..=seconds + 3).contains(&(reports.len() as u64)), "{stderr}");
    let lost = |report: &&str| -> u64 {
        let (ranks, rest) = report.split_once(" stdout: ").unwrap();
        assert!(ranks.starts_with("iof: job demo: rank"), "{report}");
        rest.split_once(" bytes are missing").unwrap().0.parse().unwrap()
    };
    let lost: u64 = reports.iter().filter(|report| !report.contains(" in total")).map(lost).sum();
    // A line that a gap cuts gets a newline.
    assert!(lost > 0 && delivered + lost >= 20 * total, "{delivered}, {stderr}");
}

#[test]
fn a_line_that_a_gap_cuts_is_not_joined_with_a_line_of_another_rank() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    // The lines of a rank have only its letter. It writes whole lines.
    let script = format!(
        "letter=$([ $IOF_RANK = 0 ] && echo a || echo b); line=$(printf %050d 0 | tr 0 $letter)
        yes $line | head -c 1020000; : < {}; yes $line | head -c 1020000",
        gate.path()
    );
    let mut run = site.run_sh(&["-n", "2", "--cache-size", "16K", "--drop", "newest"], &script);
    for rank in [0, 1] {
        site.wait_for_bytes(rank, "stdout", 1_020_000);
    }
    let (stdout, stderr) = run.collect();
    gate.open();
    assert_eq!(run.wait(), 0);
    let (stdout, stderr) = (String::from_utf8(stdout.get()).unwrap(), stderr.get());
    assert!(!stderr.is_empty());
    for line in stdout.lines() {
        let is_of = |letter| line.chars().all(|found| found == letter);
        assert!(is_of('a') || is_of('b'), "{line}");
    }
    assert!(stdout.lines().any(|line| line.len() != 50), "no line is cut");
}
