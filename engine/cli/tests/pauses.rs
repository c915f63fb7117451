//! Lines of different ranks do not mix, even if the reader of the output or `iof` itself pauses
//! repeatedly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use iof_testing::bytes::pieces;
use iof_testing::command::site::Site;
use iof_testing::command::terminal::{CTRL_C, CTRL_Z};
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time for which an incomplete line waits. A rank that writes continuously is never quiet for
/// this time, even on a busy machine.
const MAX_LINE_TIME: &str = "0.6";
/// A pause longer than [`MAX_LINE_TIME`].
const PAUSE: Duration = Duration::from_millis(800);
/// A pause that exceeds [`MAX_LINE_TIME`] even without the time until full rings hold the ranks
/// back.
const LONG_PAUSE: Duration = Duration::from_millis(1600);
const PAUSES: usize = 4;
/// The least number of bytes between two pauses.
const PORTION: usize = 100_000;
/// Small caches, so that ranks often wait and continue.
const SMALL: [&str; 2] = ["--cache-size", "64K"];
/// The limit for the bytes that are in rings and pipes after the last pause.
const REST: usize = 1_000_000;
/// The number of ranks. Even ranks write to stdout, odd ranks to stderr.
const RANKS: usize = 4;
/// Lets one test at a time run a job, because ranks that write continuously use the whole machine.
static JOB: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a script that writes numbered lines until it is killed, each line in several pieces, to
/// stdout. With `both`, odd ranks write to stderr.
fn flood(both: bool) -> String {
    let file = if both { "$((IOF_RANK % 2 + 1))" } else { "1" };
    format!(
        r#"i=0; while :; do printf "$IOF_RANK "; i=$((i+1)); printf $i; printf " "; printf $i; echo; done >&{file}"#
    )
}

/// The bytes that a thread has read so far.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    /// Starts to read `output`, with a [`PAUSE`] after each of the first `pauses` portions.
    fn of(output: impl Read + Send + 'static, pauses: usize) -> Shown {
        Shown::with_pauses(output, pauses, PAUSE)
    }

    fn with_pauses(mut output: impl Read + Send + 'static, pauses: usize, pause: Duration) -> Shown {
        let shown = Shown::default();
        let buffer = shown.clone();
        thread::spawn(move || {
            let mut chunk = vec![0; PORTION];
            for portion in 1.. {
                let mut len = 0;
                while len < PORTION {
                    let Ok(count @ 1..) = output.read(&mut chunk[len..]) else { return };
                    buffer.0.lock().unwrap().extend_from_slice(&chunk[len..len + count]);
                    len += count;
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

/// Checks that `text` up to the last newline consists of whole lines of these ranks, in the order
/// of each rank. `tag` returns the prefix of a rank's lines.
fn assert_whole(text: &str, ranks: &[usize], tag: impl Fn(usize) -> String) {
    let mut numbers = vec![0u64; RANKS];
    let whole = &text[..text.rfind('\n').unwrap()];
    for line in whole.lines() {
        let is_next_line = |rank: &&usize| {
            let number = numbers[**rank] + 1;
            line == format!("{}{rank} {number} {number}", tag(**rank))
        };
        let Some(&rank) = ranks.iter().find(is_next_line) else {
            panic!("a broken line: {line:?} after {numbers:?}");
        };
        numbers[rank] += 1;
    }
    assert!(ranks.iter().all(|rank| numbers[*rank] > 0), "a rank is missing: {numbers:?}");
}

/// Runs ranks that write continuously to stdout and stderr, which are read with `pauses`, until
/// `disturb` returns. Checks the output that was read by then.
fn assert_whole_despite(tags: bool, pauses: usize, disturb: impl Fn(&Process, &Shown, &Shown)) {
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
fn lines_stay_whole_if_the_readers_pause_repeatedly() {
    assert_whole_despite(false, PAUSES, wait_for_all);
}

#[test]
fn tagged_lines_stay_whole_if_the_readers_pause_repeatedly() {
    assert_whole_despite(true, PAUSES, wait_for_all);
}

#[test]
fn lines_stay_whole_at_a_pull_while_the_run_holds_the_ranks_back() {
    let _alone = one_at_a_time();
    let site = Site::new();
    let mut run = site.run_sh(&[&["-n", "4"], &SMALL[..]].concat(), &flood(false));
    let shown = Shown::with_pauses(run.stdout(), PAUSES, LONG_PAUSE);
    let _stderr = Shown::of(run.stderr(), 0);
    shown.wait_for(1);
    let mut pull = site.pull(&["--max-line-time", MAX_LINE_TIME, "--output", "json"]);
    let pulled = Shown::of(pull.stdout(), 0);
    // The bytes that the pull was too slow for are missing.
    let _stderr = Shown::of(pull.stderr(), 0);
    shown.wait_for(PORTION * PAUSES);
    assert_cut_at_gaps_only(&pulled.text());
}

/// Checks that each JSON object, up to the last newline, contains the end of a line or is followed
/// by a gap.
fn assert_cut_at_gaps_only(text: &str) {
    let mut cut: [Option<(u64, String)>; 4] = [const { None }; 4];
    for object in pieces(&text.as_bytes()[..=text.rfind('\n').unwrap()]) {
        let rank = usize::try_from(object["rank"].as_u64().unwrap()).unwrap();
        if object["lost"].is_number() {
            cut[rank] = None;
            continue;
        }
        let (offset, data) = (object["offset"].as_u64().unwrap(), object["data"].as_str().unwrap());
        if let Some((end, before)) = cut[rank].take() {
            assert_ne!(offset, end, "rank {rank}: {before:?} and {data:?} are one line");
        }
        cut[rank] = (!data.ends_with('\n')).then(|| (offset + data.len() as u64, data.to_owned()));
    }
}

#[test]
fn a_file_has_whole_lines_while_its_copy_holds_the_ranks_back() {
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
        // The process may have ended.
        let _ = kill(Pid::from_raw((*pid).try_into().unwrap()), signal);
    }
}

/// Stops and continues `iof` repeatedly, together with its ranks if `all` is set.
fn stop_repeatedly(run: &Process, stdout: &Shown, stderr: &Shown, all: bool) {
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
        assert_whole_despite(tags, 0, |run, out, err| stop_repeatedly(run, out, err, false));
    }
}

#[test]
fn lines_stay_whole_when_the_command_and_its_ranks_are_stopped_and_continued() {
    for tags in [false, true] {
        assert_whole_despite(tags, 0, |run, out, err| stop_repeatedly(run, out, err, true));
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
fn a_line_that_grows_continuously_is_shown() {
    for options in [&["-n", "2"][..], &["-n", "2", "--output", "rank"]] {
        let site = Site::new();
        let script = "[ $IOF_RANK = 1 ] && exec sleep 1000; while :; do printf .; sleep 0.02; done";
        let mut run = site.run_sh(options, script);
        let shown = Shown::of(run.stdout(), 0);
        wait_for("the dots", || shown.text().contains("..").then_some(()));
    }
}
