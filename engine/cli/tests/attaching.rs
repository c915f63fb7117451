//! `iof pull`: at any time, it receives the cached bytes and all bytes after them, and reports the
//! bytes that are no longer cached.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::process::Command;

use iof_testing::bytes::{Gap, assert_accounted, assert_same, assert_told, noise};
use iof_testing::command::site::{Site, found, iof, rank};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;

const HALF: u64 = 300_000;

#[test]
fn pulls_before_the_first_byte_in_the_middle_and_after_the_end_see_all_bytes() {
    let site = Site::new();
    let [mut first_byte, mut middle, mut end] = ["first-byte", "middle", "end"].map(|name| site.gate(name));
    let gate = |offset: u64, path: &str| format!("--gate {offset}:{path}");
    // Rank 0 writes and ends. Rank 1 keeps the launcher alive.
    let script = format!(
        "[ $IOF_RANK = 1 ] || exec {} {} {}; : < {}",
        rank(["--channels", "stdout,stderr,stddiag", "--length", &(2 * HALF).to_string()]).join(" "),
        gate(0, first_byte.path()),
        gate(HALF, middle.path()),
        end.path(),
    );
    let mut run = site.run_sh(&["-n", "2"], &script);
    let terminal = run.collect();
    let mut pulls = Vec::new();
    // Two pulls each time, so that stdout has two new readers.
    let attach = |pulls: &mut Vec<_>| {
        for channel in ["stdout,stderr", "stdout,stddiag"] {
            let mut pull = site.pull(&["--rank", "0", "--channel", channel]);
            let output = pull.collect();
            pulls.push((pull, channel, output));
        }
    };
    site.wait_for_ranks(2);
    attach(&mut pulls);
    site.wait_for_pulls(0, "stdout", 2);
    first_byte.open();
    site.wait_for_bytes(0, "stddiag", HALF);
    attach(&mut pulls);
    site.wait_for_pulls(0, "stdout", 4);
    middle.open();
    site.wait_for_state(0, "terminated");
    wait_for("the end of every stream of rank 0", || {
        let streams = site.streams()?;
        let mut own = streams.iter().filter(|stream| stream.number("rank") == 0);
        own.all(|stream| stream.is_complete()).then_some(())
    });
    attach(&mut pulls);

    for (number, (pull, channel, (stdout, stderr))) in pulls.into_iter().enumerate() {
        let other = if channel.contains("stderr") { "stderr" } else { "stddiag" };
        let length = usize::try_from(2 * HALF).unwrap();
        assert_same(&format!("stdout of pull {number}"), &stdout.get(), &noise(0, "stdout", 0, length));
        assert_same(&format!("{other} of pull {number}"), &stderr.get(), &noise(0, other, 0, length));
        assert_eq!(pull.wait(), 0);
    }
    assert_eq!(run.exit_code(), None, "the streams of rank 0 are complete, the run is not");
    end.open();
    assert_eq!(run.wait(), 0);
    assert_eq!(terminal.0.get().len() as u64, 2 * HALF);
    assert_eq!(terminal.1.get().len() as u64, 4 * HALF);
}

#[test]
fn a_pull_without_lines_skips_the_cached_bytes_and_reports_no_gap() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo before; echo before >&2; : < {}; echo after; echo after >&2", gate.path());
    let _run = site.run_sh(&[], &script);
    site.wait_for_bytes(0, "stderr", 7);
    let mut new = site.pull(&["--tail", "0"]);
    let mut all = site.pull(&[]);
    let (new_out, new_err) = new.collect();
    let (all_out, all_err) = all.collect();
    site.wait_for_pulls(0, "stdout", 2);
    site.wait_for_pulls(0, "stderr", 2);
    gate.open();
    assert_eq!((new_out.get(), new_err.get()), (b"after\n".to_vec(), b"after\n".to_vec()));
    assert_eq!((all_out.get(), all_err.get()), (b"before\nafter\n".to_vec(), b"before\nafter\n".to_vec()));
    assert_eq!((new.wait(), all.wait()), (0, 0));
}

/// Checks a late pull of a rank that wrote much more than its cache holds.
fn late_pull(complete: bool) {
    const TOTAL: u64 = 5_000_000;
    const CACHE: u64 = 256 << 10;
    let site = Site::new();
    let mut gate = site.gate("gate");
    let writes = rank(["--length", &TOTAL.to_string()]).join(" ");
    let closes = if complete { "exec >&-; " } else { "" };
    let script = format!("{writes}; {closes}: < {}", gate.path());
    let mut run = site.run_sh(&["--cache-size", &CACHE.to_string()], &script);
    let terminal = run.collect();
    site.wait_for_bytes(0, "stdout", TOTAL);
    let stream = site.wait_for_stream(0, "stdout", |stream| stream.is_complete() == complete);
    // The bytes below the region that is claimed for the next read are no longer cached. The region
    // may be claimed between the query and the pull.
    let min_cached = if complete { CACHE } else { CACHE - (64 << 10) };
    assert!((min_cached..=CACHE).contains(&stream.number("cached")), "{stream:?}");
    let mut pull = site.pull(&["--channel", "stdout"]);
    let (stdout, stderr) = pull.collect();
    if complete {
        assert_eq!(pull.wait(), 0);
    } else {
        site.wait_for_pulls(0, "stdout", 1);
    }
    gate.open();
    let (stdout, stderr) = (stdout.get(), stderr.get());
    let received = stdout.len() as u64;
    assert!((min_cached..=CACHE).contains(&received), "{received}");
    let gaps = [Gap { offset: 0, lost: TOTAL - received }];
    assert_told(0, "stdout", &stderr, &gaps);
    assert_accounted(0, &stdout, &gaps, TOTAL);
    assert_eq!(pull.wait(), 0);
    assert_same("terminal", &terminal.0.get(), &noise(0, "stdout", 0, TOTAL.try_into().unwrap()));
    assert_same("terminal's stderr", &terminal.1.get(), b"");
}

#[test]
fn a_late_pull_of_an_open_stream_reports_the_bytes_no_longer_cached() {
    late_pull(false);
}

#[test]
fn a_late_pull_of_a_complete_stream_reports_the_bytes_no_longer_cached() {
    late_pull(true);
}

#[test]
fn a_cache_of_exactly_the_size_of_the_output_keeps_all_of_it() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    // The length is a multiple of the page size and of the largest claim.
    let writes = rank(["--length", "262144"]).join(" ");
    let script = format!("{writes}; exec >&-; : < {}", gate.path());
    let mut run = site.run_sh(&["--cache-size", "256K"], &script);
    // Without a reader, the engine would wait for room before it could find the end.
    let _terminal = run.collect();
    site.wait_for_stream(0, "stdout", |stream| stream.is_complete());
    let done = site.pull(&["--channel", "stdout"]).finish();
    gate.open();
    assert_same("late", &done.stdout, &noise(0, "stdout", 0, 262_144));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

/// Checks that a pull of a job of 5 ranks has these lines on stdout and stderr, one from each
/// stream.
fn pull_from_five_ranks(options: &[&str], [stdout, stderr]: [&[&str]; 2]) {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo o$IOF_RANK; echo e$IOF_RANK >&2; : < {}", gate.path());
    let _run = site.run_sh(&["-n", "5"], &script);
    let lines = || Some(site.streams()?.into_iter().filter(|stream| stream.number("produced") == 3));
    wait_for("all lines", || (lines()?.count() == 10).then_some(()));
    let mut pull = site.pull(options);
    let shown = pull.collect();
    wait_for("the pull of all streams", || {
        let pulled = lines()?.filter(|stream| stream.pulls() == 1).count();
        (pulled == stdout.len() + stderr.len()).then_some(())
    });
    gate.open();
    let [shown_stdout, shown_stderr] =
        [shown.0, shown.1].map(|bytes| String::from_utf8(bytes.get()).unwrap());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(pull.wait(), 0, "{shown_stderr}");
    assert_eq!((lines(&shown_stdout), lines(&shown_stderr)), (set(stdout), set(stderr)), "{options:?}");
}

#[test]
fn a_pull_receives_only_the_ranks_and_channels_it_names() {
    pull_from_five_ranks(&["--rank", "4,0-1"], [&["o0", "o1", "o4"], &["e0", "e1", "e4"]]);
    pull_from_five_ranks(&["--rank", "3", "--channel", "stderr"], [&[], &["e3"]]);
    pull_from_five_ranks(&["--rank", "all", "--channel", "stdout"], [&["o0", "o1", "o2", "o3", "o4"], &[]]);
}

#[test]
fn with_two_engines_the_pid_or_the_socket_selects_one() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = |name: &str| format!("echo {name}; : < {}", gate.path());
    let runs = ["one", "two"].map(|name| (name, site.run_sh(&["--nspace", name], &script(name))));
    wait_for("both sockets", || (site.sockets().len() == 2).then_some(()));
    for (name, run) in &runs {
        let pid = run.pid().to_string();
        let answer =
            || Some(site.query(&["namespaces", "--pid", &pid])).filter(|done| !done.text().is_empty());
        assert_eq!(wait_for("the job", answer).text(), format!("{name}\n"));
        wait_for("the line of the rank", || {
            let stats = site.query(&["stats", "--pid", &pid, "--json"]);
            found(&stats)[0][0]["produced"].eq(&4).then_some(())
        });
    }
    let by_pid: Vec<Process> =
        runs.iter().map(|(_, run)| site.pull(&["--pid", &run.pid().to_string()])).collect();
    let by_socket: Vec<Process> = runs
        .iter()
        .map(|(_, run)| {
            let suffix = format!(".tool.{}", run.pid());
            let is_own = |path: &std::path::PathBuf| path.to_str().unwrap().ends_with(&suffix);
            let socket = site.sockets().into_iter().find(is_own).unwrap();
            Process::start(iof().arg("pull").arg("--server").arg(socket))
        })
        .collect();
    for (_, run) in &runs {
        wait_for("both pulls", || {
            let stats = site.query(&["stats", "--pid", &run.pid().to_string(), "--json"]);
            (iof_testing::command::site::Stream(found(&stats)[0][0].clone()).pulls() == 2).then_some(())
        });
    }
    gate.open();
    for pulls in [by_pid, by_socket] {
        let done: Vec<Done> = pulls.into_iter().map(Process::finish).collect();
        assert_eq!([done[0].text(), done[1].text()], ["one\n", "two\n"]);
    }
}

#[test]
fn the_default_directory_is_below_tmpdir_and_private_to_the_user() {
    use std::os::unix::fs::MetadataExt;
    let site = Site::new();
    let mut gate = site.gate("gate");
    let iof = |args: &[&str]| {
        let mut command: Command = iof();
        command.env("TMPDIR", site.path()).args(args);
        Process::start(&mut command)
    };
    let _run = iof(&["run", "--", "sh", "-c", &format!("echo hello; : < {}", gate.path())]);
    let wait_for_word = |query: &str, word: &str| {
        wait_for(word, || iof(&["query", query]).finish().text().contains(word).then_some(()));
    };
    wait_for_word("procs", "running");
    let pull = iof(&["pull", "--channel", "stdout"]);
    wait_for_word("stats", "iof pull:");
    gate.open();
    assert_eq!(pull.finish().text(), "hello\n");
    let private = site.path().join(format!("iof-{}", nix::unistd::geteuid()));
    assert_eq!(std::fs::metadata(private).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_pull_whose_engine_is_killed_writes_the_cached_bytes_and_fails() {
    let site = Site::new();
    let never = site.gate("never");
    let run = site.run_sh(&[], &format!("echo hello; : < {}", never.path()));
    site.wait_for_bytes(0, "stdout", 6);
    let mut pull = site.pull(&[]);
    let (stdout, stderr) = pull.collect();
    site.wait_for_pulls(0, "stdout", 1);
    site.wait_for_pulls(0, "stddiag", 1);
    run.signal(Signal::SIGKILL);
    assert_eq!(pull.wait(), 1);
    assert_eq!(stdout.get(), b"hello\n");
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.starts_with("iof: ") && stderr.lines().count() == 1, "{stderr}");
}
