//! Lines of different ranks do not mix, however often the reader of the output, or `iof` itself, pauses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::process::Process;
use common::site::Site;
use common::terminal::{CTRL_C, CTRL_Z};
use common::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long an incomplete line waits: long enough that a rank that writes all the time is never quiet for
/// as long, on a machine that does other things.
const MAX_LINE_TIME: &str = "0.2";
/// A pause that is longer.
const PAUSE: Duration = Duration::from_millis(300);
const PAUSES: usize = 10;
/// What comes between two pauses at least, in bytes.
const PORTION: usize = 100_000;
/// Caches that are full soon, so that ranks wait and go on often.
const SMALL: [&str; 2] = ["--cache-size", "64K"];
/// What is still in rings and pipes after the last pause at most.
const REST: usize = 1_000_000;

/// The script of ranks that write numbered lines to `file` until they are killed, each in two pieces.
fn flood(file: &str) -> String {
    format!("i=0; while :; do printf \"$IOF_RANK \"; i=$((i+1)); echo $i; done >&{file}")
}

/// What a thread has read so far.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    /// Reads all that comes `from` somewhere, with a pause after each of the first `pauses` portions.
    fn of(mut from: impl Read + Send + 'static, pauses: usize) -> Shown {
        let shown = Shown::default();
        let to = shown.clone();
        thread::spawn(move || {
            let mut chunk = vec![0; PORTION];
            for portion in 1.. {
                let mut len = 0;
                while len < PORTION {
                    let Ok(more @ 1..) = from.read(&mut chunk[len..]) else { return };
                    to.0.lock().unwrap().extend_from_slice(&chunk[len..len + more]);
                    len += more;
                }
                if portion <= pauses {
                    thread::sleep(PAUSE);
                }
            }
        });
        shown
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn wait_for(&self, bytes: usize) {
        wait_for(&format!("{bytes} bytes"), || (self.len() >= bytes).then_some(()));
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Checks that `text` is whole lines of these ranks, in each rank's order, up to the last newline. `tag` is what
/// stands before a rank's line.
fn assert_whole(text: &str, ranks: usize, tag: impl Fn(usize) -> String) {
    let mut numbers = vec![0; ranks];
    let whole = &text[..text.rfind('\n').unwrap()];
    for line in whole.lines() {
        let found = (0..ranks).find_map(|rank| {
            let start = format!("{}{rank} ", tag(rank));
            Some((rank, line.strip_prefix(&start)?.parse::<u64>().ok()?))
        });
        let Some((rank, number)) = found else { panic!("a broken line: {line:?}") };
        numbers[rank] += 1;
        assert_eq!(number, numbers[rank], "the next line of rank {rank}: {line:?}");
    }
    assert!(numbers.iter().all(|number| *number > 0), "each rank was to be seen: {numbers:?}");
}

fn no_tag(_: usize) -> String {
    String::new()
}

/// Runs ranks that write all the time to stdout or stderr (`file`); `disturb` does what it wants meanwhile. What
/// comes is checked as far as it has been read by then.
fn run(options: &[&str], file: &str, pauses: usize, disturb: impl Fn(&Process, &Shown)) -> String {
    let site = Site::new();
    let patience = ["-n", "4", "--max-line-time", MAX_LINE_TIME];
    let mut run = site.run_sh(&[&patience, &SMALL[..], options].concat(), &flood(file));
    let stdout = Shown::of(run.stdout(), pauses);
    let stderr = Shown::of(run.stderr(), pauses);
    let shown = if file == "1" { stdout } else { stderr };
    disturb(&run, &shown);
    shown.text()
}

fn wait_for_all(_: &Process, shown: &Shown) {
    shown.wait_for(PORTION * PAUSES + REST);
}

#[test]
fn lines_stay_whole_behind_a_reader_that_pauses_again_and_again() {
    assert_whole(&run(&[], "1", PAUSES, wait_for_all), 4, no_tag);
}

#[test]
fn lines_on_stderr_stay_whole_behind_a_reader_that_pauses_again_and_again() {
    assert_whole(&run(&[], "2", PAUSES, wait_for_all), 4, no_tag);
}

#[test]
fn tagged_lines_stay_whole_behind_a_reader_that_pauses_again_and_again() {
    let text = run(&["--output", "rank"], "1", PAUSES, wait_for_all);
    assert_whole(&text, 4, |rank| format!("[{rank}]<stdout>: "));
}

#[test]
fn lines_stay_whole_at_a_pull_while_the_output_of_the_run_holds_the_ranks_back() {
    let site = Site::new();
    let mut run = site.run_sh(&[&["-n", "4"], &SMALL[..]].concat(), &flood("1"));
    let shown = Shown::of(run.stdout(), PAUSES);
    let _stderr = Shown::of(run.stderr(), 0);
    shown.wait_for(1);
    let mut pull = site.pull(&["--max-line-time", MAX_LINE_TIME, "--output", "json"]);
    let pulled = Shown::of(pull.stdout(), 0);
    // What the pull was too slow for is missing.
    let _stderr = Shown::of(pull.stderr(), 0);
    shown.wait_for(PORTION * PAUSES);
    assert_cut_at_gaps_only(&pulled.text());
}

/// Checks that of the JSON objects, up to the last newline, each holds the end of a line or is followed by a gap.
fn assert_cut_at_gaps_only(text: &str) {
    let mut cut: [Option<(u64, String)>; 4] = [const { None }; 4];
    for line in text[..text.rfind('\n').unwrap()].lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        let rank = usize::try_from(object["rank"].as_u64().unwrap()).unwrap();
        let (offset, data) = (object["offset"].as_u64().unwrap(), object["data"].as_str().unwrap());
        if let Some((end, before)) = cut[rank].take() {
            assert_ne!(offset, end, "rank {rank}: {before:?} and {data:?} are one line");
        }
        cut[rank] = (!data.ends_with('\n')).then(|| (offset + data.len() as u64, data.to_owned()));
    }
}

#[test]
fn a_file_has_whole_lines_while_what_is_shown_beside_it_holds_the_ranks_back() {
    let site = Site::new();
    let file = site.path().join("out");
    let list = format!("json,file={}:copy", file.to_str().unwrap());
    let options = ["--nspace", "job", "--output", &list, "--max-line-time", MAX_LINE_TIME];
    let mut run = site.run_sh(&[&options, &SMALL[..]].concat(), &flood("1"));
    let shown = Shown::of(run.stdout(), PAUSES);
    let _stderr = Shown::of(run.stderr(), 0);
    shown.wait_for(PORTION * PAUSES);
    let text = fs::read_to_string(site.path().join("out.job.0.out")).unwrap();
    assert_cut_at_gaps_only(&text);
}

/// Sends `signal` to each of these processes.
fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        // It may have ended.
        let _ = kill(Pid::from_raw((*pid).try_into().unwrap()), signal);
    }
}

/// Stops `iof`, and its ranks as well if `all`, again and again.
fn stop_again_and_again(run: &Process, shown: &Shown, all: bool) {
    shown.wait_for(PORTION);
    let mut pids = run.living();
    pids.retain(|pid| *pid != run.pid());
    for _ in 0..PAUSES {
        run.stop();
        if all {
            signal_all(&pids, Signal::SIGSTOP);
        }
        thread::sleep(PAUSE);
        let before = shown.len();
        run.signal(Signal::SIGCONT);
        if all {
            signal_all(&pids, Signal::SIGCONT);
        }
        shown.wait_for(before + PORTION);
    }
}

#[test]
fn lines_stay_whole_when_the_command_is_stopped_and_continued() {
    for all in [false, true] {
        let text = run(&[], "1", 0, |run, shown| stop_again_and_again(run, shown, all));
        assert_whole(&text, 4, no_tag);
    }
}

#[test]
fn tagged_lines_on_stderr_stay_whole_when_the_command_is_stopped_and_continued() {
    for all in [false, true] {
        let stop = |run: &Process, shown: &Shown| stop_again_and_again(run, shown, all);
        let text = run(&["--output", "rank"], "2", 0, stop);
        assert_whole(&text, 4, |rank| format!("[{rank}]<stderr>: "));
    }
}

#[test]
fn lines_stay_whole_when_ctrl_z_stops_all_and_fg_continues_them() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    let file = site.path().join("out");
    let script = flood("1");
    let keys =
        format!("run -n 4 --max-line-time {MAX_LINE_TIME} sh -c '{script}' > {}\n", file.to_str().unwrap());
    terminal.type_keys(&keys);
    let len = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    for pause in 1..=PAUSES {
        let before = len(&file);
        wait_for("more output", || (len(&file) >= before + PORTION as u64).then_some(()));
        terminal.type_keys(CTRL_Z);
        terminal.wait_for("Stopped", pause);
        thread::sleep(PAUSE);
        terminal.type_keys("fg\n");
    }
    let before = len(&file);
    wait_for("more output", || (len(&file) > before).then_some(()));
    let text = fs::read_to_string(&file).unwrap();
    terminal.type_keys(CTRL_C);
    drop(shell);
    assert_whole(&text, 4, no_tag);
}

#[test]
fn a_line_that_grows_all_the_time_appears_although_it_is_never_quiet() {
    for options in [&["-n", "2"][..], &["-n", "2", "--output", "rank"]] {
        let site = Site::new();
        let script = "[ $IOF_RANK = 1 ] && exec sleep 1000; while :; do printf .; sleep 0.02; done";
        let mut run = site.run_sh(options, script);
        let shown = Shown::of(run.stdout(), 0);
        wait_for("the dots", || shown.text().contains("..").then_some(()));
    }
}
