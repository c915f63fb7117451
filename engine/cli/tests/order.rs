//! The order of a rank's stdout and stderr where both go to one place, on the real command.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::process::{Command, Stdio};

use iof_testing::bytes::pieces;
use iof_testing::command::lease::Lease;
use iof_testing::command::site::{BACKENDS, Gate, Site};
use iof_testing::process::Process;

/// The writes of a rank: whether to stderr, and the text.
const WRITES: [(bool, &str); 7] = [
    (false, "one\n"),
    (true, "two\n"),
    (true, "three\n"),
    (false, "four\nfive\n"),
    (true, "six\n"),
    (false, "begin"),
    (true, "seven\n"),
];
/// The last write, which ends a line.
const REST: &str = "/end\n";
/// The lines in the order of their ends.
const LINES: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "begin/end"];

/// Returns whether the rank writes the line to stderr.
fn is_err(line: &str) -> bool {
    ["two", "three", "six", "seven"].contains(&line)
}

/// A job whose rank has written everything and still runs. Each write was read separately.
struct Written {
    site: Site,
    gates: Vec<Gate>,
    run: Process,
}

impl Written {
    fn on(backend: &str) -> Written {
        let site = Site::on(backend);
        let mut gates: Vec<Gate> = (0..=WRITES.len()).map(|step| site.gate(&step.to_string())).collect();
        let steps = WRITES.iter().copied().chain([(false, REST)]).zip(&gates).map(|((err, text), gate)| {
            let text = text.replace('\n', "\\n");
            format!("printf '{text}'{}; : < {}; ", if err { " >&2" } else { "" }, gate.path())
        });
        let run = site.run_sh(&["--nspace", "launcher@1"], &steps.collect::<String>());
        let mut produced = [0, 0];
        for (step, (err, text)) in WRITES.into_iter().chain([(false, REST)]).enumerate() {
            let produced = &mut produced[usize::from(err)];
            *produced += text.len() as u64;
            site.wait_for_bytes(0, if err { "stderr" } else { "stdout" }, *produced);
            if step < WRITES.len() {
                gates[step].open();
            }
        }
        Written { site, gates, run }
    }

    /// Lets the rank end once all of `pulls` read its output, and waits for the ends of all.
    fn end(mut self, pulls: Vec<Process>) {
        self.site.wait_for_pulls(0, "stdout", pulls.len());
        self.gates.last_mut().unwrap().open();
        for pull in pulls {
            assert_eq!(pull.wait(), 0);
        }
        assert_eq!(self.run.finish().code, 0);
    }
}

/// Starts `command` with stdout and stderr at `out` and `err`.
fn start(command: &mut Command, out: File, err: File) -> Process {
    Process::start_with_its_files(command.stdin(Stdio::null()).stdout(out).stderr(err))
}

/// Runs `command` with one file as stdout and stderr, and returns what it wrote.
fn at_one_place(site: &Site, command: &mut Command) -> String {
    let path = site.path().join("log");
    let file = File::create(&path).unwrap();
    let process = start(command, file.try_clone().unwrap(), file);
    assert_eq!(process.wait(), 0);
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_late_pull_writes_all_lines_in_the_order_in_which_they_were_read() {
    for backend in BACKENDS {
        let written = Written::on(backend);
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let create = |name: &str| File::create(path(name)).unwrap();
        let append = |name: &str| File::options().create(true).append(true).open(path(name)).unwrap();
        let pull =
            |options: &[&str], out: File, err: File| start(written.site.iof("pull").args(options), out, err);
        let merged = |name: &str, options: &[&str]| {
            let file = create(name);
            pull(options, file.try_clone().unwrap(), file)
        };
        let in_files = format!("merge-stderr-to-stdout,dir={}", path("dir").display());
        let pulls = vec![
            merged("plain", &[]),
            merged("tag", &["--output", "rank"]),
            merged("json", &["--output", "json"]),
            merged("xml", &["--output", "xml"]),
            merged("time", &["--output", "rank,timestamp=ns"]),
            merged("merge", &["--output", "merge-stderr-to-stdout"]),
            merged("nothing", &["--output", &in_files]),
            pull(&[], append("append"), append("append")),
            pull(&[], create("out"), create("err")),
        ];
        written.end(pulls);
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        let text = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        for name in ["plain", "merge", "append", "dir/launcher@1/rank.0/stdout"] {
            assert_eq!(read(name), text(&LINES), "{name} on {backend}");
        }
        assert_eq!(read("nothing"), "");
        let (err, out): (Vec<&str>, Vec<&str>) = LINES.iter().copied().partition(|line| is_err(line));
        assert_eq!((read("out"), read("err")), (text(&out), text(&err)), "two files on {backend}");
        let channel = |line: &str| if is_err(line) { "stderr" } else { "stdout" };
        let tagged = LINES.map(|line| format!("[0]<{}>: {line}\n", channel(line))).concat();
        assert_eq!(read("tag"), tagged, "{backend}");
        let xml = LINES.map(|line| {
            let channel = channel(line);
            format!("<{channel} rank=\"0\">{line}&#010;</{channel}>\n")
        });
        assert_eq!(read("xml"), xml.concat(), "{backend}");
        let json: Vec<String> = pieces(read("json").as_bytes())
            .iter()
            .map(|object| object["data"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(json.concat(), text(&LINES), "{backend}");
        let times = read("time");
        let shown: Vec<&str> = times.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(shown, LINES, "{backend}");
    }
}

/// Of this many runs, at most [`TOLERATED`] may have their two lines in the wrong order.
///
/// None should: the pipes are read in the order in which they became readable, as the kernel
/// reports it, and their lines are written in the order of these reads. The kernel does not promise
/// that order. If it swaps one run in 200, a failure of a test has a probability of 1 in a million.
/// Pipes that are read in the wrong order swap every sixth run or more. That late announcements of
/// streams keep the order is tested with a scripted engine (`engine/output/tests/scripted.rs`).
const RUNS: usize = 100;
const TOLERATED: usize = 6;

/// Returns how many of `runs` runs on `backend` wrote `last` before `first`, which `script` writes
/// in this order.
fn swapped(backend: &str, runs: usize, script: &str, [first, last]: [&str; 2]) -> usize {
    let site = Site::on(backend);
    let is_swapped = |_: &usize| {
        let mut run = site.iof("run");
        run.args(["--backend", backend, "--", "sh", "-c", script]);
        let written = at_one_place(&site, &mut run);
        let swapped = format!("{last}{first}");
        assert!(written == format!("{first}{last}") || written == swapped, "{written:?}");
        written == swapped
    };
    (0..runs).filter(is_swapped).count()
}

#[test]
fn a_line_to_stdout_and_then_one_to_stderr_are_hardly_ever_swapped() {
    for backend in BACKENDS {
        let swapped = swapped(backend, RUNS, "echo out; echo err >&2", ["out\n", "err\n"]);
        assert!(swapped <= TOLERATED, "{swapped} of {RUNS} runs on {backend} are swapped");
    }
}

#[test]
fn a_line_to_stderr_and_then_one_to_stdout_are_hardly_ever_swapped() {
    for backend in BACKENDS {
        let swapped = swapped(backend, RUNS, "echo err >&2; echo out", ["err\n", "out\n"]);
        assert!(swapped <= TOLERATED, "{swapped} of {RUNS} runs on {backend} are swapped");
    }
}

#[test]
fn a_line_longer_than_a_page_of_a_pipe_and_one_to_stderr_are_hardly_ever_swapped() {
    let runs = RUNS / 2;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("line");
    let long = format!("{}\n", "x".repeat(10 << 10));
    fs::write(&path, &long).unwrap();
    let script = format!("cat {}; echo err >&2", path.display());
    for backend in BACKENDS {
        let swapped = swapped(backend, runs, &script, [&long, "err\n"]);
        assert!(swapped <= TOLERATED, "{swapped} of {runs} runs on {backend} are swapped");
    }
}

/// A script whose lines alternate between stdout and stderr, and the lines.
fn alternating() -> (&'static str, String) {
    let lines = (1..=20).map(|i| format!("out {i}\nerr {i}\n")).collect();
    ("i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done", lines)
}

#[test]
fn merged_at_the_source_every_line_is_in_the_order_of_the_writes() {
    let (script, lines) = alternating();
    for backend in BACKENDS {
        let site = Site::on(backend);
        for options in [&["--merge-at-source"][..], &["--merge-at-source", "--pty", "0"]] {
            let done = site.run_sh(options, script).finish();
            assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, lines.as_str(), ""));
        }
        let apps = ["sh", "-c", script, ":", "-n", "2", "sh", "-c", script];
        let done = site.run(&["--merge-at-source", "--output", "rank"], apps).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        for rank in 0..3 {
            let tag = format!("[{rank}]<stdout>: ");
            let of_rank = done.text().lines().filter_map(|line| line.strip_prefix(&tag));
            assert_eq!(of_rank.map(|line| format!("{line}\n")).collect::<String>(), lines, "rank {rank}");
        }
    }
}

#[test]
fn merged_at_the_source_files_and_tools_see_one_stream() {
    let (script, lines) = alternating();
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("{script}; : < {}", gate.path());
    let list = format!("dir={}", site.path().join("files").display());
    let run = site.run_sh(&["--merge-at-source", "--nspace", "job", "--output", &list], &script);
    site.wait_for_bytes(0, "stdout", lines.len() as u64);
    // The end of stderr does not depend on the rank.
    let stderr = site.wait_for_stream(0, "stderr", |stream| stream.is_complete());
    assert_eq!(stderr.number("produced"), 0);
    let errors = site.pull(&["--channel", "stderr"]);
    let all = site.pull(&[]);
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    let (errors, all) = (errors.finish(), all.finish());
    assert_eq!((errors.code, errors.stdout.len(), errors.stderr.as_str()), (0, 0, ""));
    assert_eq!((all.code, all.text(), all.stderr.as_str()), (0, lines.as_str(), ""));
    assert_eq!(run.finish().code, 0);
    let file = |name: &str| fs::read_to_string(site.path().join("files/job/rank.0").join(name)).unwrap();
    assert_eq!((file("stdout"), file("stderr")), (lines, String::new()));
}

#[test]
fn ranks_are_read_in_the_order_of_their_writes_while_others_are_started() {
    for backend in BACKENDS {
        let site = Site::on(backend);
        let Some((lease, last)) = Lease::on_interpreter(&site, "echo last") else { return };
        let mut gate = site.gate("gate");
        let script = format!("echo one; : < {}; echo two >&2; echo three", gate.path());
        let path = site.path().join("log");
        let file = File::create(&path).unwrap();
        let mut run = site.iof("run");
        // Otherwise the interpreter is read before the start.
        run.args(["--mpi", "none", "--backend", backend, "--", "sh", "-c", &script, ":"]).arg(&last);
        let run = start(&mut run, file.try_clone().unwrap(), file);
        site.wait_for_bytes(0, "stdout", 4);
        site.wait_for_state(1, "launching");
        gate.open();
        site.wait_for_bytes(0, "stdout", 10);
        site.wait_for_state(1, "launching");
        lease.give_up();
        assert_eq!(run.wait(), 0);
        assert_eq!(fs::read_to_string(path).unwrap(), "one\ntwo\nthree\nlast\n", "{backend}");
    }
}
