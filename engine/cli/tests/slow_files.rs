//! Output files that accept nothing for long, and files that other programs truncate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use iof_testing::command::site::Site;
use iof_testing::pipes::collect;
use iof_testing::{wait_for, with_longer_times};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// More numbers than a pipe and a ring of 64 KiB hold.
const NUMBERS: u32 = 100_000;

/// Options for a small ring, so that a rank soon waits for its file.
const RING: [&str; 2] = ["--cache-size", "64K"];

/// Creates a FIFO and opens it, so that it has a reader that reads nothing yet.
fn unread_fifo(path: &Path) -> File {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mkfifo(path, Mode::S_IRWXU).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

fn numbers() -> String {
    (1..=NUMBERS).map(|number| format!("{number}\n")).collect()
}

/// Waits until the file contains `text`.
fn wait_for_text(path: &Path, text: &str) {
    wait_for(&format!("{text:?} in {}", path.display()), || {
        fs::read_to_string(path).is_ok_and(|found| found == text).then_some(())
    });
}

/// Reads the FIFO to the end of its writer, which is not this process.
fn read_all(path: &Path, unread: File) -> String {
    let reader = File::open(path).unwrap();
    drop(unread);
    String::from_utf8(collect(reader).get()).unwrap()
}

#[test]
fn a_fifo_that_accepts_nothing_delays_only_its_own_streams() {
    for (options, fifo, file) in [
        (["-o", "%t"], "0", "1"),
        (["-e", "%t"], "0", "1"),
        (["--output", "dir=."], "launcher@1/rank.0/stdout", "launcher@1/rank.1/stdout"),
        (["--output", "file=f"], "f.launcher@1.0.err", "f.launcher@1.1.err"),
        (["--output", "file=%R:pattern"], "0", "1"),
        (["--output", "tag,merge,file=f"], "f.launcher@1.0.out", "f.launcher@1.1.out"),
    ] {
        let site = Site::new();
        let (fifo, file) = (site.path().join(fifo), site.path().join(file));
        let unread = unread_fifo(&fifo);
        let channel = if options[0] == "-e" || fifo.ends_with("f.launcher@1.0.err") { 2 } else { 1 };
        let mut gate = site.gate("gate");
        let script = format!(
            "cd {}; exec >&{channel}; [ $IOF_RANK = 0 ] && exec seq {NUMBERS}; \
             for i in 1 2 3; do echo $i; sleep 0.1; done; : < {}; echo 4",
            site.path().display(),
            gate.path()
        );
        let mut command = site.iof("run");
        command.args(["-n", "2", "--nspace", "launcher@1"]).args(RING).args(options);
        command.args(["--", "sh", "-c", &script]).current_dir(site.path());
        let run = iof_testing::process::Process::start(&mut command);
        let tagged = |rank: u32, text: &str| match options[1].strip_prefix("tag") {
            Some(_) => text.lines().map(|line| format!("[1,{rank}]<stdout>: {line}\n")).collect(),
            None => text.to_owned(),
        };
        wait_for_text(&file, &tagged(1, "1\n2\n3\n"));
        // It is still so when the rank has long waited.
        gate.open();
        wait_for_text(&file, &tagged(1, "1\n2\n3\n4\n"));
        let text = read_all(&fifo, unread);
        assert!(text == tagged(0, &numbers()), "{options:?}: {} bytes", text.len());
        let done = run.finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{options:?}");
    }
}

#[test]
fn a_fifo_that_several_ranks_share_accepts_whole_lines_of_all_of_them_after_a_delay() {
    let site = Site::new();
    let (fifo, file) = (site.path().join("stdout"), site.path().join("stderr"));
    let unread = unread_fifo(&fifo);
    let place = format!("file={}/%c:pattern", site.path().display());
    let script = format!("echo begin >&2; seq {NUMBERS}; printf end; echo end >&2");
    let options = ["-n", "4", "--nspace", "launcher@1", "--output", "tag", "--output", &place];
    let run = site.run_sh(&[&options[..], &RING].concat(), &script);
    let count = |text: &str, end: &str| text.lines().filter(|line| line.ends_with(end)).count();
    wait_for("the lines to stderr", || {
        (count(&fs::read_to_string(&file).ok()?, ": begin") == 4).then_some(())
    });
    let text = read_all(&fifo, unread);
    for rank in 0..4 {
        let own = text.lines().filter_map(|line| line.strip_prefix(&format!("[1,{rank}]<stdout>: ")));
        let wanted = numbers() + "end";
        assert!(own.eq(wanted.lines()), "rank {rank}");
    }
    assert_eq!(run.finish().code, 0);
    assert_eq!(count(&fs::read_to_string(&file).unwrap(), ": end"), 4);
}

#[test]
fn a_pull_writes_other_files_while_one_is_a_fifo_without_a_reader() {
    let site = Site::new();
    let fifo = site.path().join("0");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let mut gate = site.gate("gate");
    let script = format!(": < {}; echo $IOF_RANK; echo end", gate.path());
    let run = site.run_sh(&["-n", "2"], &script);
    site.wait_for_ranks(2);
    let pattern = site.path().join("%t");
    let pull = site.pull(&["-o", pattern.to_str().unwrap()]);
    site.wait_for_pulls(1, "stdout", 1);
    gate.open();
    wait_for_text(&site.path().join("1"), "1\nend\n");
    assert_eq!(fs::read_to_string(&fifo).unwrap(), "0\nend\n");
    assert_eq!((pull.finish().code, run.finish().code), (0, 0));
}

#[test]
fn a_fifo_that_is_not_read_is_given_up_although_other_files_are_written() {
    let script = "[ $IOF_RANK = 0 ] && exec yes; while :; do echo line; sleep 0.01; done";
    for (option, code) in [("--give-up", 1), ("--timeout", 124)] {
        with_longer_times(|time| {
            let site = Site::new();
            let fifo = site.path().join("0");
            let _unread = unread_fifo(&fifo);
            let pattern = site.path().join("%t");
            let options = ["-n", "2", "-o", pattern.to_str().unwrap(), option, time];
            let done = site.run_sh(&options, script).finish();
            assert_eq!(done.code, code, "{done:?}");
            let is_told = done.stderr.contains(&format!("{} has accepted nothing for ", fifo.display()));
            // Within the limit, the rank may not have filled the FIFO.
            if is_told { Ok(()) } else { Err(format!("{done:?}")) }
        });
    }
}

#[test]
fn a_fifo_whose_reader_goes_away_ends_the_job_also_after_a_delay() {
    let site = Site::new();
    let fifo = site.path().join("0");
    let unread = unread_fifo(&fifo);
    let pattern = site.path().join("%t");
    let script = "[ $IOF_RANK = 0 ] && exec yes; echo line; exec sleep 1000";
    let run = site.run_sh(&["-n", "2", "-o", pattern.to_str().unwrap()], script);
    wait_for_text(&site.path().join("1"), "line\n");
    drop(unread);
    let done = run.finish();
    assert_eq!(done.code, 1, "{done:?}");
    let message = format!("iof: cannot write the stdout of rank 0: {}: Broken pipe", fifo.display());
    assert!(done.stderr.starts_with(&message), "{done:?}");
}

/// Runs a job that writes the output of `first` to a file, which is then truncated, and that of
/// `second`. Returns the path of the file in the site.
fn truncated(options: &[&str], first: &str, second: &str) -> (Site, PathBuf) {
    let site = Site::new();
    let path = site.path().join("log");
    let mut gate = site.gate("gate");
    let script = format!("{first}; : < {}; {second}", gate.path());
    let run = site.run_sh(&[&["-o", path.to_str().unwrap()], options].concat(), &script);
    let length = site.wait_for_stream(0, "stdout", |stream| stream.number("produced") >= 10);
    wait_for("the lines", || (fs::metadata(&path).ok()?.size() >= length.number("produced")).then_some(()));
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    gate.open();
    assert_eq!(run.finish().code, 0);
    (site, path)
}

#[test]
fn a_file_that_another_program_truncates_goes_on_at_its_beginning() {
    for options in [&[][..], &["--open-mode", "append"]] {
        let (_site, path) = truncated(options, "echo a line that is removed", "echo two");
        assert_eq!(fs::read(path).unwrap(), b"two\n");
    }
}

#[test]
fn a_file_that_another_program_truncates_is_not_full_before_it_has_its_size() {
    let (_site, path) = truncated(&["--file-size", "4K"], "printf '%4000d\n' 1", "seq -w 50; seq -w 50");
    assert!(!path.with_extension("1").exists());
    let mut text = String::new();
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 100);
}

#[test]
fn bursts_of_both_streams_keep_their_order_in_a_fifo_that_was_full() {
    let site = Site::new();
    let fifo = site.path().join("fifo");
    let unread = unread_fifo(&fifo);
    // Each burst fills more than one write; the next one goes to the other stream.
    let script = "n=0; while [ $n -lt 20 ]; do n=$((n + 1)); seq $((n * 10000)) $((n * 10000 + 1999)) >&$((n % 2 + 1)); sleep .01; done";
    let run = site.run_sh(&["-o", fifo.to_str().unwrap()], script);
    // Everything is in the rings by then.
    site.wait_for_bytes(0, "stdout", 132_000);
    site.wait_for_bytes(0, "stderr", 130_000);
    let text = read_all(&fifo, unread);
    assert_eq!(run.wait(), 0);
    let numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 20 * 2000);
    let jumps = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert_eq!(jumps, 0, "lines of a later burst precede those of an earlier one");
}
