//! Lines of different ranks do not mix, however often the reader of the output, or `iof` itself,
//! pauses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::process::Process;
use common::site::Site;
use common::terminal::{CTRL_C, CTRL_Z};
use common::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long an incomplete line waits: long enough that a rank that writes all the time is never
/// quiet for as long, on a machine that does other things.
const MAX_LINE_TIME: &str = "0.6";
/// A pause that is longer.
const PAUSE: Duration = Duration::from_millis(800);
/// A pause that is longer even without the time after which full rings hold the ranks back.
const LONG_PAUSE: Duration = Duration::from_millis(1600);
const PAUSES: usize = 4;
/// What comes between two pauses at least, in bytes.
const PORTION: usize = 100_000;
/// Caches that are full soon, so that ranks wait and go on often.
const SMALL: [&str; 2] = ["--cache-size", "64K"];
/// What is still in rings and pipes after the last pause at most.
const REST: usize = 1_000_000;
/// Ranks of which each even one writes to stdout and each odd one to stderr.
const RANKS: usize = 4;
/// Ranks that write all the time need the machine: one such job at a time.
static JOB: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The script of ranks that write numbered lines until they are killed, each line in several
/// pieces. It goes to stdout, or with `both` to stderr from each odd rank.
fn flood(both: bool) -> String {
    let file = if both { "$((IOF_RANK % 2 + 1))" } else { "1" };
    format!(
        r#"i=0; while :; do printf "$IOF_RANK "; i=$((i+1)); printf $i; printf " "; printf $i; echo; done >&{file}"#
    )
}

/// What a thread has read so far.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    /// Reads all that comes `from` somewhere, with a [`PAUSE`] after each of the first `pauses`
    /// portions.
    fn of(from: impl Read + Send + 'static, pauses: usize) -> Shown {
        Shown::with_pauses(from, pauses, PAUSE)
    }

    fn with_pauses(mut from: impl Read + Send + 'static, pauses: usize, pause: Duration) -> Shown {
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
                    thread::sleep(pause);
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

/// Checks that `text` is whole lines of these ranks, in each rank's order, up to the last newline.
/// `tag` is what stands before a rank's line.
fn assert_whole(text: &str, ranks: &[usize], tag: impl Fn(usize) -> String) {
    let mut numbers = vec![0u64; RANKS];
    let whole = &text[..text.rfind('\n').unwrap()];
    for line in whole.lines() {
        let is_next = |rank: &&usize| {
            let number = numbers[**rank] + 1;
            line == format!("{}{rank} {number} {number}", tag(**rank))
        };
        let Some(&rank) = ranks.iter().find(is_next) else {
            panic!("a broken line: {line:?} after {numbers:?}");
        };
        numbers[rank] += 1;
    }
    assert!(ranks.iter().all(|rank| numbers[*rank] > 0), "each rank was to be seen: {numbers:?}");
}

/// Runs ranks that write all the time to stdout and stderr, which are read with `pauses`; `disturb`
/// does what it wants meanwhile. What comes is checked as far as it has been read by then.
fn assert_whole_in_spite_of(tags: bool, pauses: usize, disturb: impl Fn(&Process, &Shown, &Shown)) {
    let _alone = one_at_a_time();
    let site = Site::new();
    let ranks = RANKS.to_string();
    let options = ["-n", &ranks, "--max-line-time", MAX_LINE_TIME];
    let tagged: &[&str] = if tags { &["--output", "rank"] } else { &[] };
    let mut run = site.run_sh(&[&options, &SMALL[..], tagged].concat(), &flood(true));
    let stdout = Shown::of(run.stdout(), pauses);
    let stderr = Shown::of(run.stderr(), pauses);
    disturb(&run, &stdout, &stderr);
    let tag = |channel: &'static str| {
        move |rank| if tags { format!("[{rank}]<{channel}>: ") } else { String::new() }
    };
    assert_whole(&stdout.text(), &[0, 2], tag("stdout"));
    assert_whole(&stderr.text(), &[1, 3], tag("stderr"));
}

fn wait_for_all(_: &Process, stdout: &Shown, stderr: &Shown) {
    [stdout, stderr].iter().for_each(|shown| shown.wait_for(PORTION * PAUSES + REST));
}

#[test]
fn lines_stay_whole_behind_readers_that_pause_again_and_again() {
    assert_whole_in_spite_of(false, PAUSES, wait_for_all);
}

#[test]
fn tagged_lines_stay_whole_behind_readers_that_pause_again_and_again() {
    assert_whole_in_spite_of(true, PAUSES, wait_for_all);
}

#[test]
fn lines_stay_whole_at_a_pull_while_the_output_of_the_run_holds_the_ranks_back() {
    let _alone = one_at_a_time();
    let site = Site::new();
    let mut run = site.run_sh(&[&["-n", "4"], &SMALL[..]].concat(), &flood(false));
    let shown = Shown::with_pauses(run.stdout(), PAUSES, LONG_PAUSE);
    let _stderr = Shown::of(run.stderr(), 0);
    shown.wait_for(1);
    let mut pull = site.pull(&["--max-line-time", MAX_LINE_TIME, "--output", "json"]);
    let pulled = Shown::of(pull.stdout(), 0);
    // What the pull was too slow for is missing.
    let _stderr = Shown::of(pull.stderr(), 0);
    shown.wait_for(PORTION * PAUSES);
    assert_cut_at_gaps_only(&pulled.text());
}

/// Checks that of the JSON objects, up to the last newline, each holds the end of a line or is
/// followed by a gap.
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
    let _alone = one_at_a_time();
    let site = Site::new();
    let file = site.path().join("out");
    let list = format!("json,file={}:copy", file.to_str().unwrap());
    let options = ["--nspace", "job", "--output", &list, "--max-line-time", MAX_LINE_TIME];
    let mut run = site.run_sh(&[&options, &SMALL[..]].concat(), &flood(false));
    let shown = Shown::with_pauses(run.stdout(), PAUSES, LONG_PAUSE);
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
fn stop_again_and_again(run: &Process, stdout: &Shown, stderr: &Shown, all: bool) {
    let wait_for_more = || {
        let wanted = [stdout, stderr].map(|shown| shown.len() + PORTION);
        stdout.wait_for(wanted[0]);
        stderr.wait_for(wanted[1]);
    };
    wait_for_more();
    let mut pids = run.living();
    pids.retain(|pid| *pid != run.pid());
    for _ in 0..PAUSES {
        run.stop();
        if all {
            signal_all(&pids, Signal::SIGSTOP);
        }
        thread::sleep(PAUSE);
        run.signal(Signal::SIGCONT);
        if all {
            signal_all(&pids, Signal::SIGCONT);
        }
        wait_for_more();
    }
}

#[test]
fn lines_stay_whole_when_the_command_is_stopped_and_continued() {
    for tags in [false, true] {
        assert_whole_in_spite_of(tags, 0, |run, out, err| stop_again_and_again(run, out, err, false));
    }
}

#[test]
fn lines_stay_whole_when_the_command_and_its_ranks_are_stopped_and_continued() {
    for tags in [false, true] {
        assert_whole_in_spite_of(tags, 0, |run, out, err| stop_again_and_again(run, out, err, true));
    }
}

#[test]
fn lines_stay_whole_when_ctrl_z_stops_all_and_fg_continues_them() {
    let _alone = one_at_a_time();
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    let file = site.path().join("out");
    let script = flood(false);
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
    wait_for("more output", || (len(&file) > before + PORTION as u64).then_some(()));
    let text = fs::read_to_string(&file).unwrap();
    terminal.type_keys(CTRL_C);
    drop(shell);
    assert_whole(&text, &[0, 1, 2, 3], |_| String::new());
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
