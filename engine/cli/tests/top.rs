//! `iof top`: the screen, the keys, and the restoration of the terminal at every kind of end.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use iof_engine::{App, Config, Engine, JobSpec, Rendezvous};
use iof_proto::Nspace;
use iof_testing::command::site::{Site, iof};
use iof_testing::command::terminal::{CTRL_C, CTRL_Z, Settings, Terminal};
use iof_testing::process::{Done, Process, Stat};
use iof_testing::{Pending, wait_for};
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::termios::{FlowArg, tcflow};
use serde_json::{Value, json};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";
const PAGE_UP: &str = "\x1b[5~";
const PAGE_DOWN: &str = "\x1b[6~";
const HOME: &str = "\x1b[H";
const END: &str = "\x1b[F";

fn command(site: &Site) -> Command {
    let mut top = site.iof("top");
    top.args(["--interval", "0.1"]).env("TERM", "xterm");
    top
}

/// Returns the words of a command for a shell.
fn shell_words(command: &Command) -> Vec<&str> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_str().unwrap()).collect()
}

/// Starts a shell that runs `iof top` after a line is typed. Also returns the settings of the
/// terminal before that.
fn start_later(site: &Site) -> (Terminal, Process, Settings) {
    let mut top = command(site);
    let script = format!("echo ready; read go; exec {}", shell_words(top.arg("demo")).join(" "));
    let mut shell = Command::new("sh");
    let (terminal, process) = Terminal::start(shell.args(["-c", &script]).env("TERM", "xterm"), 24, 80);
    terminal.wait_for("ready", 1);
    let before = terminal.settings();
    (terminal, process, before)
}

/// Opens the terminal of a process. This keeps the terminal alive after the end of the process.
fn standard_input(process: &Process) -> File {
    let path = format!("/proc/{}/fd/0", process.pid());
    File::options().read(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
}

fn start(site: &Site, rows: u16, columns: u16) -> (Terminal, Process) {
    Terminal::start(&mut command(site), rows, columns)
}

/// Returns the cells of a stream's line, if it is visible: job, rank, channel, state, rate, cached,
/// dropped, tools.
fn stream(picture: &[String], rank: u32, channel: &str) -> Option<Vec<String>> {
    let cells = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let number = rank.to_string();
    picture.iter().map(cells).find(|cells| {
        cells.get(1).is_some_and(|cell| *cell == number) && cells.get(2).is_some_and(|cell| cell == channel)
    })
}

/// Returns the ranks whose stdout is visible, from top to bottom.
fn ranks(picture: &[String]) -> Vec<u32> {
    let rank = |line: &String| {
        let mut cells = line.split_whitespace().skip(1);
        let rank = cells.next()?.parse().ok()?;
        (cells.next() == Some("stdout")).then_some(rank)
    };
    picture.iter().filter_map(rank).collect()
}

fn wait_for_title(terminal: &Terminal, title: &str) {
    let find = |picture: &[String]| picture.iter().any(|line| line.contains(title)).then_some(());
    terminal.wait_to_see(title, find);
}

#[test]
fn a_stream_is_shown_with_its_rate_its_cache_and_the_lag_of_each_tool() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("printf %05000d 0; : < {}; exec yes", gate.path());
    let mut run = site.run_sh(&["--nspace", "demo", "--cache-size", "64K"], &script);
    let mut unread = run.stdout();
    site.wait_for_bytes(0, "stdout", 5000);
    let pull = site.pull(&[]);
    site.wait_for_pulls(0, "stdout", 1);
    let (terminal, top) = start(&site, 24, 100);
    let quiet =
        format!("demo 0 stdout running 0 4.9K 0 iof run:{} (0), iof pull:{} (0)", run.pid(), pull.pid());
    terminal
        .wait_to_see(&quiet, |picture| stream(picture, 0, "stdout").filter(|cells| cells.join(" ") == quiet));
    pull.stop();
    gate.open();
    // The unread output of the run holds the rank back. The stopped pull is then behind by more
    // than a cache.
    let readers = [format!("iof run:{} (", run.pid()), format!("iof pull:{} (", pull.pid())];
    let behind = |picture: &[String]| {
        let cells = stream(picture, 0, "stdout")?;
        let line = cells.join(" ");
        let is_held_back = cells[4] == "0" && cells[5] != "4.9K";
        let are_behind = readers.iter().all(|reader| line.contains(reader)) && !line.contains("(0)");
        (is_held_back && are_behind).then_some(())
    };
    terminal.wait_to_see("a rank that is held back", behind);
    let _read = Pending::start(move || io::copy(&mut unread, &mut io::sink()).unwrap());
    terminal.wait_to_see("the rate of a rank that writes on", |picture| {
        stream(picture, 0, "stdout").filter(|cells| cells[4].ends_with(['K', 'M', 'G']))
    });
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn keys_sort_and_scroll_the_streams() {
    let site = Site::new();
    let gate = site.gate("gate");
    // Each rank writes 100 bytes more than the rank before it.
    let script = format!("head -c $((IOF_RANK * 100)) /dev/zero; : < {}", gate.path());
    let mut run = site.run_sh(&["-n", "12"], &script);
    let _read = run.collect();
    for rank in 0..12 {
        site.wait_for_bytes(rank, "stdout", u64::from(rank) * 100);
    }
    // Sums, titles and keys leave room for six streams, three for each of two ranks.
    let (terminal, top) = start(&site, 10, 80);
    let wait_for_ranks = |wanted: &[u32]| {
        let seen = |picture: &[String]| (ranks(picture) == wanted).then_some(());
        terminal.wait_to_see(&format!("ranks {wanted:?}"), seen);
    };
    wait_for_ranks(&[0, 1]);
    // The cursor leaves the page of six streams at its last row and at its first.
    for (key, seen) in [
        (DOWN.repeat(6), &[1, 2][..]),
        (PAGE_DOWN.into(), &[3, 4]),
        (UP.repeat(8), &[2, 3]),
        (PAGE_UP.into(), &[0, 1]),
        (END.into(), &[10, 11]),
    ] {
        terminal.type_keys(&key);
        wait_for_ranks(seen);
    }
    terminal.type_keys("c");
    wait_for_title(&terminal, "CACHED v");
    wait_for_ranks(&[11, 10, 9, 8, 7, 6]);
    terminal.type_keys("c");
    wait_for_title(&terminal, "CACHED ^");
    terminal.type_keys(END);
    wait_for_ranks(&[6, 7, 8, 9, 10, 11]);
    terminal.type_keys(HOME);
    wait_for_ranks(&[0]);
    for (key, title) in [("r", "RATE/s v"), ("d", "DROPPED v"), ("l", "READERS (LAG) v"), ("n", "NSPACE v")] {
        terminal.type_keys(key);
        wait_for_title(&terminal, title);
    }
    wait_for_ranks(&[0, 1]);
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn streams_are_filtered_by_options_and_by_a_key_and_summed_by_rank() {
    let site = Site::new();
    let gate = site.gate("gate");
    let script = format!("printf 12345; printf 123 >&2; : < {}", gate.path());
    let mut run = site.run_sh(&["-n", "5", "--nspace", "job"], &script);
    let _read = run.collect();
    for rank in 0..5 {
        site.wait_for_bytes(rank, "stdout", 5);
        site.wait_for_bytes(rank, "stderr", 3);
    }
    let shown = |picture: &[String]| -> Vec<(u32, String, String)> {
        let rows = (0..5).flat_map(|rank| ["stdout", "stderr", "stddiag", "all"].map(|name| (rank, name)));
        let row = |(rank, name): (u32, &str)| {
            stream(picture, rank, name).map(|cells| (rank, name.into(), cells[5].clone()))
        };
        rows.filter_map(row).collect()
    };
    let wait_for_rows = |terminal: &Terminal, wanted: &[(u32, &str, &str)]| {
        let wanted: Vec<(u32, String, String)> =
            wanted.iter().map(|(rank, name, cached)| (*rank, (*name).into(), (*cached).into())).collect();
        terminal.wait_to_see(&format!("{wanted:?}"), |picture| (shown(picture) == wanted).then_some(()));
    };
    let mut by_options = command(&site);
    by_options.args(["--nspace", "job", "--rank", "1,3-4", "--channel", "stdout,stderr", "--by-rank"]);
    let (terminal, top) = Terminal::start(&mut by_options, 24, 100);
    wait_for_rows(&terminal, &[(1, "all", "8"), (3, "all", "8"), (4, "all", "8")]);
    terminal.type_keys("s");
    let single = [1, 3, 4].map(|rank| [(rank, "stdout", "5"), (rank, "stderr", "3")]).concat();
    wait_for_rows(&terminal, &single);
    // The prompt shows the filter, followed by a blank.
    terminal.type_keys("f");
    wait_for_title(&terminal, "filter: 1,3-4 stdout,stderr job _");
    // Ctrl-U.
    terminal.type_keys("\x15");
    wait_for_title(&terminal, "filter: _");
    terminal.type_keys("0 x/y\r");
    wait_for_title(&terminal, "expected no '/'");
    terminal.type_keys("\x7f\x7f\x7fstderr\r");
    wait_for_rows(&terminal, &[(0, "stderr", "3")]);
    terminal.type_keys("i");
    wait_for_rows(&terminal, &[]);
    wait_for_title(&terminal, "[only 0 stderr; 1 idle row hidden]");
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn of_two_jobs_of_one_engine_the_filter_shows_the_one_that_is_named() {
    let site = Site::new();
    let gate = site.gate("gate");
    let rendezvous = Rendezvous::Session(Some(site.path().to_owned()));
    let engine = Engine::start(Config::new(rendezvous)).unwrap();
    let spawn = |name: &str, text: &str| {
        let script = format!("printf {text}; : < {}", gate.path());
        let app = App::new("sh", ["-c", &script]);
        engine.spawn(&JobSpec::new(Nspace::new(name).unwrap(), vec![app])).unwrap()
    };
    let jobs = [spawn("one", "1"), spawn("two", "22")];
    // The jobs, with the bytes that their caches hold.
    let wait_for_jobs = |terminal: &Terminal, wanted: &[(&str, &str)]| {
        let shown = |picture: &[String]| -> Vec<(String, String)> {
            let cells = picture.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let streams = cells.filter(|cells| cells.get(2) == Some(&"stdout"));
            streams.map(|cells| (cells[0].to_owned(), cells[5].to_owned())).collect()
        };
        let wanted: Vec<_> = wanted.iter().map(|(job, held)| (job.to_string(), held.to_string())).collect();
        terminal.wait_to_see(&format!("{wanted:?}"), |picture| (shown(picture) == wanted).then_some(()));
    };
    let mut by_name = command(&site);
    by_name.args(["two", "--channel", "stdout"]);
    let (terminal, top) = Terminal::start(&mut by_name, 24, 100);
    wait_for_jobs(&terminal, &[("two", "2")]);
    for (filter, wanted) in
        [("one stdout", &[("one", "1")][..]), ("stdout", &[("one", "1"), ("two", "2")]), ("three", &[])]
    {
        // Ctrl-U empties the prompt.
        terminal.type_keys(&format!("f\x15{filter}\r"));
        wait_for_jobs(&terminal, wanted);
    }
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
    for job in jobs {
        job.signal(iof_engine::Signal::KILL);
        job.wait();
    }
}

#[test]
fn the_terminal_is_restored_at_every_kind_of_end() {
    type End = fn(&Terminal, &Process, &Process);
    let ends: [(i32, End); 7] = [
        (0, |terminal, _, _| terminal.type_keys("q")),
        (0, |terminal, _, _| terminal.type_keys(CTRL_C)),
        (128 + 15, |_, top, _| top.signal(Signal::SIGTERM)),
        (128 + 2, |_, top, _| top.signal(Signal::SIGINT)),
        (128 + 1, |_, top, _| top.signal(Signal::SIGHUP)),
        (0, |_, _, run| run.signal(Signal::SIGKILL)),
        (0, |_, _, run| run.signal(Signal::SIGTERM)),
    ];
    for (number, (code, end)) in ends.into_iter().enumerate() {
        let site = Site::new();
        let run = site.run(&["--nspace", "demo"], ["cat"]);
        site.wait_for_ranks(1);
        let (terminal, top, before) = start_later(&site);
        let _held = standard_input(&top);
        terminal.type_keys("go\n");
        terminal.wait_to_see("the rank", |picture| stream(picture, 0, "stdout"));
        assert_ne!(terminal.settings(), before);
        end(&terminal, &top, &run);
        assert_eq!(top.wait(), code, "end {number}");
        assert_eq!(terminal.settings(), before, "end {number}");
        terminal.wait_for(SHOW_CURSOR, 1);
        let shown = terminal.shown();
        assert_eq!(shown.matches(ENTER).count(), 1, "end {number}: {shown:?}");
        assert_eq!(shown.matches(LEAVE).count(), 1, "end {number}: {shown:?}");
        if number >= 5 {
            terminal.wait_for(&format!("iof: the engine (pid {}) has ended", run.pid()), 1);
            let shown = terminal.shown();
            let (_, after) = shown.split_once(LEAVE).unwrap();
            assert!(after.contains("has ended"), "{shown:?}");
        }
    }
}

#[test]
fn a_signal_ends_the_command_even_if_the_terminal_accepts_no_output() {
    let site = Site::new();
    let _run = site.run(&["--nspace", "demo"], ["yes"]);
    site.wait_for_ranks(1);
    let (terminal, top, before) = start_later(&site);
    let held = standard_input(&top);
    terminal.type_keys("go\n");
    terminal.wait_to_see("the rank", |picture| stream(picture, 0, "stdout"));
    // Stops the output of the terminal, as Ctrl-S does. The next drawing blocks.
    tcflow(&held, FlowArg::TCOOFF).unwrap();
    terminal.type_keys("c");
    top.signal(Signal::SIGTERM);
    assert_eq!(top.wait(), 143);
    assert_eq!(terminal.settings(), before);
}

#[test]
fn a_stopped_engine_is_shown_as_silent_until_it_answers_again() {
    let site = Site::new();
    let run = site.run(&[], ["cat"]);
    site.wait_for_ranks(1);
    let (terminal, top) = start(&site, 24, 80);
    terminal.wait_to_see("the rank", |picture| stream(picture, 0, "stdout"));
    run.stop();
    terminal.wait_to_see("silence", |picture| picture[0].contains("is silent for").then_some(()));
    run.signal(Signal::SIGCONT);
    terminal.wait_to_see("an answer", |picture| picture[0].contains("3 streams").then_some(()));
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn enter_shows_the_output_of_a_stream_and_costs_nothing_once_it_is_closed() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("seq -f 'line %g' 300; printf '\\033[31m'; : < {}; echo more", gate.path());
    let mut run = site.run_sh(&["--nspace", "demo"], &script);
    let _read = run.collect();
    site.wait_for_bytes(0, "stdout", 2597);
    let (terminal, top) = start(&site, 10, 60);
    terminal.wait_to_see("the rank", |picture| stream(picture, 0, "stdout"));
    let held =
        || ["fd", "task"].map(|kind| fs::read_dir(format!("/proc/{}/{kind}", top.pid())).unwrap().count());
    let before = held();
    let wait_for_lines = |title: &str, lines: &[&str]| {
        let shown: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        terminal.wait_to_see(&format!("{title} {shown:?}"), |picture| {
            (picture[0].starts_with(title) && picture[1..].starts_with(&shown)).then_some(())
        });
    };
    terminal.type_keys("\r");
    wait_for_lines("demo.0 stdout: lines 294-301 of 301, following", &["line 294"]);
    let end = |picture: &[String]| (picture[8] == "\\u{1b}[31m").then_some(());
    terminal.wait_to_see("an escaped control character", end);
    terminal.type_keys(HOME);
    wait_for_lines("demo.0 stdout: lines 1-8 of 301", &["line 1", "line 2"]);
    terminal.type_keys("/ne 25\r");
    wait_for_lines("demo.0 stdout: lines 25-32 of 301", &["line 25"]);
    terminal.type_keys("n");
    wait_for_lines("demo.0 stdout: lines 250-257 of 301", &["line 250"]);
    terminal.type_keys("/nothing\r");
    terminal.wait_to_see("no match", |picture| (picture[9] == "not found: nothing").then_some(()));
    terminal.resize(6, 30);
    wait_for_lines("demo.0 stdout: lines 250-253 o", &["line 250", "line 251"]);
    terminal.type_keys("?");
    wait_for_lines("keys of iof top: lines 1-4", &["Keys in the table:"]);
    terminal.type_keys("qF");
    wait_for_lines("demo.0 stdout: lines 298-301 o", &["line 298"]);
    terminal.resize(10, 60);
    wait_for_lines("demo.0 stdout: lines 294-301 of 301, following", &["line 294"]);
    terminal.type_keys("q");
    terminal.wait_to_see("the table", |picture| stream(picture, 0, "stdout"));
    wait_for("the thread of the view to end", || (held() == before).then_some(()));
    terminal.type_keys("\r");
    wait_for_lines("demo.0 stdout: lines 294-301 of 301, following", &["line 294"]);
    gate.open();
    assert_eq!(run.wait(), 0);
    let end = "-- end of stdout after 2602 bytes --";
    terminal.wait_to_see(end, |picture| picture.iter().any(|line| line == end).then_some(()));
    terminal.type_keys("\x1b");
    wait_for_title(&terminal, "no engine of this user");
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn the_states_of_ranks_are_shown_with_their_exit_codes_and_signals() {
    let site = Site::new();
    let script =
        "case $IOF_RANK in 0) exit 3 ;; 1) kill -9 $$ ;; 2) kill -STOP $$ ;; 3) exec sleep 1000 ;; esac";
    let run = site.run_sh(&["-n", "5", "--nspace", "demo", "--kill-on-bad-exit=0"], script);
    let wanted = ["exited 3", "killed by SIGKILL", "stopped", "running", "exited 0"];
    let (terminal, top) = start(&site, 24, 100);
    terminal.wait_to_see("the states", |picture| {
        let is_row = |(rank, state): (usize, &&str)| {
            picture.iter().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.starts_with(&["demo", &rank.to_string(), "stdout"])
                    && line.contains(&format!(" {state} "))
            })
        };
        wanted.iter().enumerate().all(is_row).then_some(())
    });
    terminal.type_keys(" ");
    let folded = "demo          * all     1 exited 0, 1 exited 3, 1 killed";
    terminal.wait_to_see(folded, |picture| picture[3].starts_with(folded).then_some(()));
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
    let once = |args: &[&str]| {
        let done = Process::start(command(&site).arg("--once").args(args)).finish();
        assert_eq!((done.code, &*done.stderr), (0, ""), "{done:?}");
        done.text().to_owned()
    };
    let table = once(&["--by-rank"]);
    for (line, state) in table.lines().skip(1).zip(wanted) {
        assert!(line.contains(&format!("  {state}  ")), "{state}: {table}");
    }
    let rows: Value = serde_json::from_str(&once(&["--by-rank", "--json"])).unwrap();
    let field = |name: &str| rows.as_array().unwrap().iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("state"), ["exited", "killed", "stopped", "running", "exited"].map(Value::from));
    assert_eq!(field("code"), [json!(3), json!(null), json!(null), json!(null), json!(0)]);
    assert_eq!(field("signal"), [json!(null), json!(9), json!(null), json!(null), json!(null)]);
    assert!(field("engine").iter().all(|pid| *pid == run.pid()));
    run.signal(Signal::SIGTERM);
}

/// Returns whether `--once` tells of this engine alone that it does not answer.
pub fn tells_silence(done: &Done, pid: u32) -> bool {
    // On a busy machine the attempt to connect may end before the wait.
    let silent = format!("the engine (pid {pid}) has not answered for 5 s: ");
    let is_known = |reason: &str| reason == "no answer within 2 s\n" || reason.starts_with(&silent);
    done.stderr.strip_prefix("iof: 1 engine does not answer: ").is_some_and(is_known)
}

#[test]
fn all_engines_are_shown_also_later_ones_and_one_that_does_not_answer_holds_none_up() {
    let site = Site::new();
    let (terminal, top) = start(&site, 24, 100);
    wait_for_title(&terminal, "no engine of this user is running");
    let script = "while :; do echo text; sleep 0.05; done";
    let one = site.run_sh(&["--nspace", "one"], script);
    let two = site.run_sh(&["--nspace", "two"], script);
    // The states of the jobs, and whether their stdout grows.
    let wait_for_states = |wanted: &[(&str, &str, bool)]| {
        terminal.wait_to_see(&format!("{wanted:?}"), |picture| {
            let row = |line: &String| {
                let (words, is_growing) = (line.split_whitespace().collect::<Vec<_>>(), |cell: &&str| {
                    cell.ends_with(|letter: char| letter.is_ascii_digit()) && **cell != *"0"
                });
                let [job, "0", "stdout", ..] = words[..] else { return None };
                let state = if line.contains("does not answer") { "does not answer" } else { words[3] };
                Some((job.to_owned(), state.to_owned(), is_growing(&words[4]) && state == "running"))
            };
            let seen: Vec<_> = picture.iter().filter_map(row).collect();
            let is_same = |((job, state, grows), wanted): (&(String, String, bool), &(&str, &str, bool))| {
                (job.as_str(), state.as_str(), *grows) == *wanted
            };
            (seen.len() == wanted.len() && seen.iter().zip(wanted).all(is_same)).then_some(())
        });
    };
    wait_for_states(&[("one", "running", true), ("two", "running", true)]);
    one.stop();
    wait_for_states(&[("one", "does not answer", false), ("two", "running", true)]);
    wait_for_title(&terminal, "2 engines, 1 silent: ");
    terminal.type_keys("\r");
    wait_for_title(&terminal, "the engine does not answer");
    // One that has never answered.
    let (later, later_top) = start(&site, 24, 100);
    later.wait_to_see("a job without streams", |picture| {
        let is_row = |line: &&String| line.starts_with("one           * all     does not answer");
        picture.iter().find(is_row).and(stream(picture, 0, "stdout"))
    });
    later.type_keys("q");
    assert_eq!(later_top.wait(), 0);
    let once = |args: &[&str]| {
        let done = Process::start(command(&site).arg("--once").args(args)).finish();
        assert!(done.code == 1 && tells_silence(&done, one.pid()), "{done:?}");
        done.text().to_owned()
    };
    let table = once(&[]);
    assert!(table.lines().any(|line| line.starts_with("one     *     all      does not answer")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("two     0     stdout   running")), "{table}");
    let rows: Value = serde_json::from_str(&once(&["--json"])).unwrap();
    let silent = rows.as_array().unwrap().iter().find(|row| row["nspace"] == "one").unwrap();
    assert_eq!((&silent["state"], &silent["stream"]), (&json!("does not answer"), &json!(null)));
    one.signal(Signal::SIGCONT);
    wait_for_states(&[("one", "running", true), ("two", "running", true)]);
    one.signal(Signal::SIGTERM);
    wait_for_title(&terminal, &format!("the engine (pid {}) has ended", one.pid()));
    wait_for_states(&[("two", "running", true)]);
    // One that is killed before a screen could attach to it.
    two.stop();
    let (later, later_top) = start(&site, 24, 160);
    wait_for_title(&later, "has not answered for");
    two.signal(Signal::SIGKILL);
    for terminal in [&later, &terminal] {
        wait_for_title(terminal, "no engine of this user is running");
    }
    later.type_keys("q");
    assert_eq!(later_top.wait(), 0);
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn the_screen_follows_the_size_of_its_terminal() {
    let site = Site::new();
    let _run = site.run(&["-n", "10", "--nspace", "demo"], ["cat"]);
    site.wait_for_ranks(10);
    let (terminal, top) = start(&site, 24, 80);
    for (rows, columns) in [(24, 80), (40, 120), (8, 60), (2, 10), (24, 80)] {
        terminal.resize(rows, columns);
        let wanted = usize::from(rows).saturating_sub(4).min(30);
        terminal.wait_to_see(&format!("{wanted} streams"), |picture| {
            let shown = picture.iter().filter(|line| line.starts_with("demo ")).count();
            let keys = rows < 3 || picture[usize::from(rows) - 1].starts_with("q quit");
            (shown == wanted && picture[0].starts_with("engine ") && keys).then_some(())
        });
    }
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn ctrl_z_restores_the_terminal_for_the_shell_and_fg_continues() {
    let site = Site::new();
    let _run = site.run(&[], ["cat"]);
    site.wait_for_ranks(1);
    let mut shell = Command::new("sh");
    shell.arg("-i").env("PS1", "").env_remove("ENV").env("TERM", "xterm");
    let (terminal, shell) = Terminal::start(&mut shell, 24, 80);
    terminal.type_keys("stty -echo; echo read''y\n");
    terminal.wait_for("ready", 1);
    let before = terminal.settings();
    terminal.type_keys(&format!("{}; echo code $?\n", shell_words(&command(&site)).join(" ")));
    terminal.wait_to_see("the rank", |picture| stream(picture, 0, "stdout"));
    let top = shell.running("iof")[0];
    for times in 1..=2 {
        terminal.type_keys(CTRL_Z);
        terminal.wait_for(LEAVE, times);
        // Until it has stopped, the command may read the keys for the shell.
        wait_for("the command to stop", || (Stat::of(top)?.state == 'T').then_some(()));
        terminal.type_keys("echo at the'' shell\n");
        terminal.wait_for("at the shell", times);
        assert_eq!(terminal.settings(), before);
        terminal.type_keys("fg\n");
        terminal.wait_for(ENTER, times + 1);
        terminal.wait_to_see("the rank again", |picture| stream(picture, 0, "stdout"));
    }
    terminal.type_keys("q");
    terminal.wait_for(LEAVE, 3);
    wait_for("the end of the command", || shell.running("iof").is_empty().then_some(()));
    terminal.type_keys("echo at the'' end\n");
    terminal.wait_for("at the end", 1);
    assert_eq!(terminal.settings(), before);
}

#[test]
fn without_a_usable_terminal_the_command_fails_in_one_line() {
    let site = Site::new();
    let _run = site.run(&[], ["cat"]);
    site.wait_for_ranks(1);
    let piped = Process::start(&mut command(&site)).finish();
    assert_eq!((piped.code, piped.text(), piped.stderr.lines().count()), (2, "", 1), "{piped:?}");
    assert!(
        piped.stderr.contains("needs a terminal") && piped.stderr.contains("iof top --once"),
        "{piped:?}"
    );

    let missing = site.path().join("missing");
    let nowhere = ["--server", missing.to_str().unwrap()];
    for (args, term, message) in
        [(&[][..], "dumb", "TERM is 'dumb'"), (&[], "", "TERM is ''"), (&nowhere, "xterm", "missing")]
    {
        let mut top = iof();
        top.arg("top").args(args).env("TERM", term);
        let (terminal, top) = Terminal::start(&mut top, 24, 200);
        assert_eq!(top.wait(), 2);
        terminal.wait_for(message, 1);
        let shown = terminal.shown();
        assert_eq!((shown.lines().count(), shown.contains('\x1b')), (1, false), "{shown:?}");
    }
}

#[test]
fn a_rank_that_does_not_exist_is_refused_in_one_line() {
    let site = Site::new();
    let run = site.run(&["-n", "3", "--nspace", "demo"], ["cat"]);
    site.wait_for_ranks(3);
    let pid = run.pid().to_string();
    for (args, message) in [
        (&["--rank", "9", "--once"][..], "rank 9 does not exist: the last rank is 2"),
        (&["--pid", &pid, "--rank", "9"], "rank 9 does not exist: the last rank is 2"),
        (&["demo", "--rank", "0,2-3"], "rank 3 does not exist: the last rank of demo is 2"),
    ] {
        let mut top = command(&site);
        let (terminal, top) = Terminal::start(top.args(args), 24, 200);
        assert_eq!(top.wait(), 2);
        let shown = terminal.all_shown();
        assert_eq!((shown.lines().count(), shown.contains('\x1b')), (1, false), "{shown:?}");
        assert!(shown.contains(message), "{shown:?}");
    }
    let mut top = command(&site);
    let (terminal, top) = Terminal::start(top.args(["demo", "--rank", "1-2"]), 24, 80);
    terminal.wait_to_see("the last rank", |picture| stream(picture, 2, "stdout"));
    terminal.type_keys("q");
    assert_eq!(top.wait(), 0);
}

#[test]
fn a_thousand_streams_can_be_shown_and_the_job_ends_normally() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_RANK; : < {}; exit 0", gate.path());
    let mut run = site.run_sh(&["-n", "350", "--nspace", "demo"], &script);
    let _read = run.collect();
    site.wait_for_ranks(350);
    let (terminal, top) = Terminal::start(command(&site).arg("demo"), 24, 80);
    terminal.wait_to_see("1050 streams", |picture| picture[0].contains("1050 streams").then_some(()));
    wait_for_title(&terminal, "1050 idle rows hidden]");
    terminal.type_keys("i");
    terminal.type_keys(END);
    terminal.wait_to_see("the last", |picture| stream(picture, 349, "stddiag"));
    gate.open();
    assert_eq!((run.wait(), top.wait()), (0, 0));
    terminal.wait_for("has ended", 1);
}
