//! Each option of `iof run` has the same effect on ranks here and on two nodes, or is refused by its name.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::thread;

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};

use self::Expected::{InOtherTests, Refused, Same, Shows};

/// The expected effect of an option on several nodes.
enum Expected {
    /// The effect that it has here: the same exit code, lines and files, which differ without the option.
    Same,
    /// A text, here and on nodes.
    Shows(&'static str, &'static str),
    /// A refusal with this text.
    Refused(&'static str),
    /// Other tests check what it does: those of nodes, if it chooses them.
    InOtherTests,
}

/// An option as it is written, other options that are given in any case, and the script of the ranks.
type Row = (&'static [&'static str], &'static [&'static str], &'static str, Expected);

/// The number of rows that are checked at a time.
const THREADS: usize = 4;

const TWO: &[&str] = &["-n", "2"];

const TORCH: &str =
    "echo $RANK of $WORLD_SIZE, $((LOCAL_RANK < LOCAL_WORLD_SIZE)) $MASTER_ADDR $((MASTER_PORT > 0))";

const ROWS: &[Row] = &[
    (&["--nprocs", "2"], &[], "echo $IOF_RANK of $IOF_NPROCS", Same),
    (&["--wdir", "/"], TWO, "pwd", Same),
    (&["-x", "SHOWN=1"], TWO, "echo [$SHOWN]", Same),
    (&["--cache-size", "2M"], &["--cache-total", "1M"], "true", Same),
    (&["--cache-total", "1M"], &["--cache-size", "2M"], "true", Same),
    (&["--drop", "newest"], TWO, "true", InOtherTests),
    (&["--backend", "epoll"], &["-n2", "--timings"], "true", Shows("backend epoll", "of 2 agents: epoll")),
    (&["--nspace", "named"], TWO, "echo $IOF_NSPACE", Same),
    (&["--rendezvous-dir", "none"], TWO, "echo ${IOF_SERVER:+socket}", Same),
    (&["--mpi", "none"], TWO, "echo [$PMI_SIZE]", Same),
    (&["--mpi", "pmi1"], TWO, "true", InOtherTests),
    (&["--mpi", "pmix"], TWO, "true", InOtherTests),
    (&["--bind-to", "core"], TWO, "[ $(nproc) = $(nproc --all) ] && echo any; true", Same),
    (&["--ranks-env", "torch"], &["-n2", "-xMASTER_ADDR=x"], TORCH, Same),
    (&["--pty", "all"], TWO, "[ -t 1 ] && stty size", Same),
    (&["--merge-at-source"], TWO, "echo out; echo err >&2", Same),
    (&["--grace", "0.05"], TWO, "(sleep 2; echo late) & echo early", Same),
    (
        &["--give-up", "0.2"],
        &["-n2", "-o", "fifo"],
        "true",
        Shows("no process has read the FIFO", "no process has read the FIFO"),
    ),
    (&["--timings"], TWO, "true", Shows("timings: backend", "timings: backend")),
    (
        &["--summary"],
        TWO,
        "echo 12345",
        Shows("exit code 0: 2 ranks; 12 bytes", "exit code 0: 2 ranks; 12 bytes"),
    ),
    (&["--stdin", "all"], TWO, "cat", Same),
    (&["--stdin-open", "1"], TWO, "[ $IOF_RANK = 0 ] || { echo x | $IOF push --rank 1; cat; }", Same),
    (&["--stdin-file", "input"], TWO, "cat", Same),
    (&["--kill-on-bad-exit=0"], TWO, "[ $IOF_RANK = 0 ] && kill -KILL $$; sleep 1; echo done", Same),
    (
        &["--kill-wait", "1000"],
        TWO,
        // Rank 0 fails once rank 1 ignores SIGTERM. The default is 2 s.
        "trap '' TERM; : > $IOF_RANK; while [ $IOF_RANK = 0 ]; do [ -e 1 ] && rm 0 1 && kill -KILL $$; sleep 0.05; \
         done; sleep 5; echo survived",
        Same,
    ),
    (&["--timeout", "5"], TWO, "sleep 9; echo done", Same),
    (&["--quiet"], TWO, "[ $IOF_RANK = 0 ] || exit 3", Same),
    (&["--error-lines", "2"], TWO, "echo err >&2; exit 3", Refused("for ranks on this node only")),
    (&["--output", "tag"], TWO, "echo out; echo err >&2", Same),
    (&["--label", "{nspace} {rank:2} {channel}: "], TWO, "echo out; echo err >&2", Same),
    (&["--color", "always"], &["-n2", "--output", "tag"], "echo out", Same),
    (&["--match", "a"], TWO, "echo a; echo b", Same),
    (&["--exclude", "a"], TWO, "echo a; echo b", Same),
    (&["--fold"], TWO, "[ $IOF_RANK = 0 ] && echo a; true", Same),
    (&["--output-file", "out.%R"], TWO, "echo out; echo err >&2", Same),
    (&["--output-file", "out.%h"], TWO, "echo ran", Refused("%h or %N in the name of a file")),
    (&["--error-file", "err"], TWO, "echo out; echo err >&2", Same),
    (
        &["--tag-by", "fragment"],
        &["-n2", "--output", "tag"],
        "[ $IOF_RANK = 0 ] || exit 0; printf a; sleep 0.5; echo b",
        Same,
    ),
    (&["--tag-suffix", "!"], TWO, "echo out", Same),
    (&["--max-line", "4"], &["-n2", "--output", "json"], "printf 123456; sleep 0.7; echo 789", Same),
    (
        &["--max-line-time", "0.05"],
        &["-n2", "--output", "json"],
        "[ $IOF_RANK = 0 ] || exit 0; printf a; sleep 0.9; echo b",
        Same,
    ),
    (&["--ranks", "1"], TWO, "echo $IOF_RANK", Same),
    (&["--no-forward", "stderr"], TWO, "echo out; echo err >&2", Same),
    (&["--open-mode", "append"], &["-o", "input"], "echo more", Same),
    (&["--file-size", "4K"], &["-n2", "-o", "out.%R"], "seq 3000", Same),
    (&["--file-count", "1"], &["-n2", "-o", "out.%R", "--file-size", "4K"], "seq 3000", Same),
    (
        &["--file-cache", "drop"],
        &["-n2", "-o", "out.%R", "--summary"],
        "head -c 2000000 /dev/zero | tr '\\0' '\\n'",
        Shows("bytes of files left the page cache", "bytes of files left the page cache"),
    ),
    (&["--hosts", "a"], TWO, "", InOtherTests),
    (&["--hostfile", "hosts"], TWO, "", InOtherTests),
    (&["--map-by", "node"], TWO, "", InOtherTests),
    (&["--oversubscribe"], TWO, "", InOtherTests),
    (&["--job-log", "log"], TWO, "", InOtherTests),
    (&["--spawn", "none"], TWO, "", InOtherTests),
    (&["--in", "job"], TWO, "", InOtherTests),
    (&["--keep", "1"], TWO, "", InOtherTests),
    (&["--host-env", "NAME"], TWO, "", InOtherTests),
    (&["--rsh", "sh -c"], TWO, "", InOtherTests),
    (&["--carrier", "tcp"], TWO, "", InOtherTests),
    (&["--carrier-insecure"], TWO, "", InOtherTests),
    (&["--reattach", "1"], TWO, "", InOtherTests),
    (&["--start-timeout", "1"], TWO, "", InOtherTests),
    (&["--starts", "1"], TWO, "", InOtherTests),
    (&["--node-timeout", "5"], TWO, "", InOtherTests),
];

/// Agents on two nodes.
const ON_NODES: &[&str] = &["--hosts", "a:1,b:1", "--rsh", "sh -c"];

/// The result of a run: the exit code, the lines of stdout and stderr in a defined order, and the files.
#[derive(Debug, PartialEq)]
struct Effect {
    code: i32,
    lines: BTreeMap<String, usize>,
    files: BTreeMap<String, String>,
}

/// Runs `iof run OPTIONS sh -c SCRIPT` in a directory with a file and a FIFO. Its stdin is one line.
fn run(options: &[&[&str]], script: &str) -> (Effect, Done) {
    let site = Site::new();
    let directory = site.path().join("work");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("input"), "from the file\n").unwrap();
    nix::unistd::mkfifo(&directory.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = iof();
    command.arg("run").args(options.concat()).args(["sh", "-c", script]).current_dir(&directory);
    // A variable of a launcher, and where engines listen.
    command.env("PMI_SIZE", "7").env("PMIX_SERVER_TMPDIR", site.path()).env("IOF", iof().get_program());
    let mut process = Process::start(&mut command);
    // A job that does not start reads nothing.
    let _ = std::io::Write::write_all(&mut process.stdin(), b"typed\n");
    let done = process.finish();
    let mut lines = BTreeMap::new();
    for (stream, text) in [("out", done.text()), ("err", &done.stderr)] {
        let is_other =
            |line: &&str| line.starts_with("{\"type\"") && !line.starts_with("{\"type\":\"output\"");
        for line in text.lines().filter(|line| !is_other(line)) {
            // Times, pids and hosts differ.
            let differing = [(", pid ", ")"), ("\"time\":", "\"data\":")];
            let cut = differing.iter().find_map(|(from, to)| {
                let (before, after) = line.split_once(from)?;
                Some(format!("{before}{}", after.split_once(to)?.1))
            });
            *lines.entry(format!("{stream}: {}", cut.as_deref().unwrap_or(line))).or_default() += 1;
        }
    }
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            let mut text: Vec<_> =
                fs::read_to_string(entry.path()).unwrap().lines().map(str::to_owned).collect();
            text.sort_unstable();
            files.insert(entry.file_name().into_string().unwrap(), text.join("\n"));
        }
    }
    (Effect { code: done.code, lines, files }, done)
}

fn check((option, others, script, expected): &Row) {
    match expected {
        Same => {
            let (without, _) = run(&[others], script);
            let (here, _) = run(&[others, option], script);
            let (on_nodes, _) = run(&[ON_NODES, others, option], script);
            assert_ne!(without, here, "{option:?} has no effect here");
            assert_eq!(here, on_nodes, "{option:?} here and on nodes");
        }
        Shows(here, on_nodes) => {
            for (place, text) in [(&[][..], here), (ON_NODES, on_nodes)] {
                let (_, done) = run(&[place, others, option], script);
                assert!(done.stderr.contains(text), "{option:?}: {done:?}");
            }
        }
        Refused(text) => {
            let (_, done) = run(&[ON_NODES, others, option], script);
            assert!(
                (done.code, done.text()) == (2, "") && done.stderr.contains(text),
                "{option:?}: {done:?}"
            );
        }
        InOtherTests => {}
    }
}

/// Returns the options that `iof run --help` lists: the long names, or the short one if there is none.
fn options() -> BTreeSet<String> {
    let help = Process::start(iof().args(["run", "--help"])).finish();
    let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
    let name = |line: &str| {
        let words = line.split([' ', ',', '[', '=']).filter(|word| word.starts_with('-'));
        words.max_by_key(|word| word.starts_with("--")).unwrap().to_owned()
    };
    help.text()
        .lines()
        .filter(is_option)
        .map(name)
        .filter(|name| name != "--help" && name != "--version")
        .collect()
}

#[test]
fn each_option_has_its_effect_here_and_on_nodes_or_is_refused_by_its_name() {
    let named = ROWS.iter().map(|(option, ..)| option[0].split('=').next().unwrap().to_owned());
    assert_eq!(options(), named.collect(), "each option has a row");
    let rows = Mutex::new(ROWS.iter());
    let check_all = || {
        while let Some(row) = { rows.lock().unwrap().next() } {
            check(row);
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(check_all))));
}
