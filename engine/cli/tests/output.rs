//! `--output` and its related options on the real command: the format of lines, their destination,
//! and the time at which incomplete lines are shown.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use iof_testing::bytes::pieces;
use iof_testing::command::site::{Site, iof};
use iof_testing::command::site::{lines, run};
use iof_testing::pipes::collect;
use iof_testing::process::Process;

#[test]
fn lines_have_the_requested_tags() {
    let site = Site::new();
    let script = "echo out; echo err >&2; echo diag >/dev/fd/$IOF_STDDIAG_FD";
    for (list, out, err) in [
        ("tag", ["[1,0]<stdout>: out", "[1,1]<stdout>: out"], "[1,0]<stderr>: err"),
        (
            "tag-f",
            ["[launcher@1,0]<stdout>: out", "[launcher@1,1]<stdout>: out"],
            "[launcher@1,0]<stderr>: err",
        ),
        ("RANK", ["[0]<stdout>: out", "[1]<stdout>: out"], "[0]<stddiag>: diag"),
        (
            "xml,tag",
            [
                r#"<stdout jobid="1" rank="0">out&#010;</stdout>"#,
                r#"<stdout jobid="1" rank="1">out&#010;</stdout>"#,
            ],
            r#"<stddiag jobid="1" rank="0">diag&#010;</stddiag>"#,
        ),
    ] {
        let done = run(&site, &["-n", "2", "--output", list], script);
        assert_eq!(lines(done.text()), BTreeSet::from(out), "{list}");
        assert!(lines(&done.stderr).contains(err) && done.stderr.lines().count() == 4, "{list}: {done:?}");
    }
    let merged = run(&site, &["--output", "merge,tag", "--tag-suffix", " (end)"], script);
    assert_eq!(merged.stderr, "");
    let wanted = ["stdout>: out (end)", "stderr>: err (end)", "stddiag>: diag (end)"];
    let wanted = wanted.map(|line| format!("[1,0]<{line}"));
    assert_eq!(lines(merged.text()), wanted.iter().map(String::as_str).collect());
}

#[test]
fn detailed_tags_and_json_contain_host_and_pid_of_the_rank() {
    let site = Site::new();
    let done = run(&site, &["-n", "2", "--output", "tag-detailed"], "echo $IOF_RANK $$");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for line in done.text().lines() {
        let (tag, text) = line.split_once(": ").unwrap();
        let (rank, pid) = text.split_once(' ').unwrap();
        assert_eq!(tag, format!("[1,{rank}][{host}:{pid}]<stdout>"));
    }
    assert_eq!(done.text().lines().count(), 2);
    let done = run(&site, &["-n", "2", "--output", "json"], r"echo $$; printf '\377\n'");
    let objects = pieces(&done.stdout);
    assert_eq!(objects.len(), 4);
    for object in objects {
        assert_eq!((&object["nspace"], &object["channel"]), (&"launcher@1".into(), &"stdout".into()));
        assert_eq!(object["host"], host.as_str());
        if object["offset"] == 0 {
            assert_eq!(object["data"].as_str().unwrap().trim_end(), object["pid"].to_string());
        } else {
            assert_eq!((&object["data"], &object["encoding"]), (&"/wo=".into(), &"base64".into()));
        }
    }
}

#[test]
fn a_time_stamp_is_the_time_of_reading_not_of_showing() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = site.run_sh(&[], &format!("echo early; : < {}", gate.path()));
    site.wait_for_bytes(0, "stdout", 6);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let mut pull = site.pull(&["--output", "timestamp=ns"]);
    let (pulled, _) = pull.collect();
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    let text = String::from_utf8(pulled.get()).unwrap();
    let stamp = text.strip_prefix('[').unwrap().strip_suffix("]<stdout>: early\n").unwrap();
    let stamp: u128 = stamp.parse().unwrap();
    assert!(stamp <= now && now - stamp < 3_600_000_000_000, "{stamp} of {now}");
    assert_eq!((run.finish().code, pull.wait()), (0, 0));
}

#[test]
fn a_line_after_many_short_ones_has_the_time_at_which_it_was_read() {
    let site = Site::new();
    // More reads than a ring's index has entries, then lines that contain the time at which they
    // were written, which is a lower limit for the time of reading.
    let script = "i=0; while [ $i -lt 600 ]; do echo; sleep 0.002; i=$((i+1)); done
        for i in 1 2 3; do sleep 0.5; date +%s%N; done";
    let done = run(&site, &["--output", "timestamp=ns"], script);
    let lines: Vec<(u128, &str)> = done
        .text()
        .lines()
        .map(|line| line.strip_prefix('[').unwrap().split_once("]<stdout>: ").unwrap())
        .map(|(stamp, text)| (stamp.parse().unwrap(), text))
        .collect();
    assert!(lines.is_sorted_by_key(|(stamp, _)| *stamp));
    let timed: Vec<_> = lines.iter().filter(|(_, text)| !text.is_empty()).collect();
    assert_eq!(timed.len(), 3);
    for (stamp, text) in timed {
        let written: u128 = text.parse().unwrap();
        // The index has no entry for a read that follows the last entry within this time.
        assert!(stamp + 100_000 > written, "the stamp is {} ns before the line was written", written - stamp);
    }
}

/// Reads until `wanted` is received.
fn read_until(mut output: impl Read, wanted: &str) {
    let mut text = String::new();
    while !text.contains(wanted) {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).unwrap(), 1, "end of file before {wanted:?}: {text:?}");
        text.push(byte[0].into());
    }
}

#[test]
fn a_prompt_without_a_newline_is_shown() {
    for options in
        [&["-n", "2"][..], &["-n", "2", "--output", "tag"], &["-n", "1", "--max-line-time", "3600"]]
    {
        let site = Site::new();
        let script =
            "[ $IOF_RANK = 1 ] && exec sleep 1000; printf 'Name? '; read name; echo hello $name; kill 0";
        let mut run = site.run_sh(options, script);
        let mut stdin = run.stdin();
        let mut stdout = run.stdout();
        read_until(&mut stdout, "Name? ");
        std::io::Write::write_all(&mut stdin, b"you\n").unwrap();
        read_until(&mut stdout, "hello you\n");
    }
}

#[test]
fn an_incomplete_line_waits_for_its_end_while_other_ranks_write_lines() {
    for (options, tag) in [(&[][..], ["", ""]), (&["--output", "rank"], ["[0]<stdout>: ", "[1]<stdout>: "])] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = format!(
            "if [ $IOF_RANK = 0 ]; then printf first; : < {}; echo ' half'; else while [ ! -e {}/seen ]; do :; done; \
             echo whole; fi",
            gate.path(),
            site.path().display()
        );
        let options = [&["-n", "2", "--max-line-time", "3600"], options].concat();
        let mut run = site.run_sh(&options, &script);
        let mut stdout = run.stdout();
        site.wait_for_bytes(0, "stdout", 5);
        fs::write(site.path().join("seen"), "").unwrap();
        let mut whole = vec![0; tag[1].len() + 6];
        stdout.read_exact(&mut whole).unwrap();
        assert_eq!(String::from_utf8(whole).unwrap(), format!("{}whole\n", tag[1]));
        gate.open();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("{}first half\n", tag[0]));
    }
}

#[test]
fn a_line_shown_in_part_is_ended_before_a_line_of_another_rank() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let mut last = site.gate("last");
    let script = format!(
        "if [ $IOF_RANK = 0 ]; then printf 'Name? '; : < {}; echo; else : < {}; echo here; fi",
        last.path(),
        gate.path()
    );
    let mut run = site.run_sh(&["-n", "2", "--output", "rank"], &script);
    let mut stdout = run.stdout();
    read_until(&mut stdout, "[0]<stdout>: Name? ");
    gate.open();
    let wanted = b"\n[1]<stdout>: here\n";
    let mut line = vec![0; wanted.len()];
    stdout.read_exact(&mut line).unwrap();
    assert_eq!(line, wanted);
    last.open();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "[0]<stdout>: \n");
}

#[test]
fn lines_of_stdout_and_stderr_do_not_mix_in_one_pipe() {
    let site = Site::new();
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); \
                  echo \"$IOF_RANK out $i .......................................................\"; \
                  echo \"$IOF_RANK err $i .......................................................\" >&2; done";
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "{} run --rendezvous-dir {} -n 4 -- sh -c '{script}' 2>&1",
        iof().get_program().to_str().unwrap(),
        site.path().display()
    ));
    let done = Process::start(&mut command).finish();
    assert_eq!(done.code, 0, "{done:?}");
    let wanted = (0..4).flat_map(|rank| {
        (1..=300).flat_map(move |i| {
            ["out", "err"].map(|channel| format!("{rank} {channel} {i} {}", ".".repeat(55)))
        })
    });
    let wanted: BTreeSet<String> = wanted.collect();
    assert_eq!(lines(done.text()), wanted.iter().map(String::as_str).collect());
    assert_eq!(done.text().lines().count(), wanted.len());
}

/// Starts `iof run` with `options` in a shell that joins stdout and stderr in one pipe.
fn run_in_one_pipe(site: &Site, options: &str, script: &str) -> Process {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "exec {} run --rendezvous-dir {} --nspace launcher@1 {options} -- sh -c '{script}' 2>&1",
        iof().get_program().to_str().unwrap(),
        site.path().display()
    ));
    Process::start(&mut command)
}

#[test]
fn lines_of_the_channels_of_one_rank_do_not_mix_in_one_output() {
    for options in ["--output rank", "", "--output merge", "--output merge,dir=out"] {
        let site = Site::new();
        let (mut first, mut second) = (site.gate("first"), site.gate("second"));
        let options = options.replace("dir=", &format!("dir={}/", site.path().display()));
        let script =
            format!("printf out; : < {}; echo err >&2; : < {}; echo put", first.path(), second.path());
        let run = run_in_one_pipe(&site, &format!("--max-line-time 3600 {options}"), &script);
        site.wait_for_bytes(0, "stdout", 3);
        first.open();
        site.wait_for_bytes(0, "stderr", 4);
        second.open();
        let done = run.finish();
        let file = fs::read_to_string(site.path().join("out/launcher@1/rank.0/stdout")).unwrap_or_default();
        let text = format!("{}{file}", done.text()).replace("[0]<stdout>: ", "").replace("[0]<stderr>: ", "");
        assert_eq!(lines(&text), BTreeSet::from(["output", "err"]), "{options}: {done:?}");
    }
}

#[test]
fn messages_of_iof_start_a_new_line_after_output_without_a_newline() {
    for (options, wanted) in
        [("--output rank", "[0]<stderr>: half"), ("", "half"), ("--output merge", "half")]
    {
        let site = Site::new();
        let done = run_in_one_pipe(&site, &format!("--summary {options}"), "printf half >&2").finish();
        let [line, summary] = done.text().lines().collect::<Vec<_>>()[..] else { panic!("{done:?}") };
        assert_eq!((done.code, line), (0, wanted), "{done:?}");
        assert!(summary.starts_with("iof: summary: "), "{done:?}");
    }
    // With separate outputs, an output only has bytes that a rank has written.
    let done = run(&Site::new(), &["--summary"], "printf half");
    assert_eq!(done.text(), "half");
    assert!(done.stderr.starts_with("iof: summary: "), "{done:?}");
}

#[test]
fn files_are_completed_and_ranks_run_on_when_a_copy_has_no_reader() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let list = format!("dir={}:copy", site.path().join("out").display());
    let script = format!("echo first; : < {}; seq 100000; echo last; exit 3", gate.path());
    let options = ["--nspace", "launcher@1", "--quiet", "--output", &list];
    let mut run = site.run_sh(&options, &script);
    read_until(run.stdout(), "first\n");
    gate.open();
    let stderr = collect(run.stderr());
    assert_eq!(run.wait(), 3, "the rank's own exit code");
    let file = fs::read_to_string(site.path().join("out/launcher@1/rank.0/stdout")).unwrap();
    assert!(file.ends_with("100000\nlast\n") && file.lines().count() == 100_002, "{}", file.len());
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("stdout: ") && stderr.contains("the files will be complete"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_pull_ends_when_one_of_its_outputs_has_no_reader() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo first >&2; : < {}; while :; do echo more >&2; sleep 0.05; done", gate.path());
    let run = site.run_sh(&[], &script);
    let mut pull = site.pull_when_ready();
    read_until(pull.stderr(), "first\n");
    gate.open();
    assert_eq!(pull.wait(), 128 + 13, "SIGPIPE");
    drop(run);
}

#[test]
fn a_tagged_line_ends_where_bytes_are_missing() {
    const TOTAL: u64 = 1 << 20;
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("head -c {TOTAL} /dev/zero | tr '\\0' x; : < {}; echo end", gate.path());
    let options = ["--cache-size", "64K", "--drop", "newest", "--output", "rank"];
    let mut run = site.run_sh(&options, &script);
    // stdout is read only after the rank has written everything.
    let stdout = run.stdout();
    site.wait_for_bytes(0, "stdout", TOTAL);
    let (stdout, stderr) = (collect(stdout), collect(run.stderr()));
    site.wait_for_stream(0, "stdout", |stream| stream.readers("iof run")[0]["lag"] == 0);
    gate.open();
    assert_eq!(run.wait(), 0);
    let (stdout, stderr) = (stdout.get(), stderr.get());
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    // All bytes that are missing are within the first line.
    assert!(stderr.contains("bytes are missing"), "{stderr}");
    assert_eq!(stdout.lines().last(), Some("[0]<stdout>: end"), "{stderr}");
    assert!(stdout.lines().count() > 1, "{stderr}");
    assert!(stdout.lines().all(|line| line.starts_with("[0]<stdout>: ")), "{stderr}");
}

#[test]
fn invalid_output_options_are_rejected_in_one_line_with_the_remedy() {
    for command in [&["run", "true"][..], &["pull"]] {
        let (first, rest) = command.split_first().unwrap();
        for (options, message) in [
            (&["--output", "loud"][..], "unknown output word 'loud'"),
            (&["--output", ""], "unknown output word ''"),
            (&["--output", "t"], "tag or tag-detailed"),
            (&["--output", "tag=maybe"], "true or false"),
            (&["--output", "xml,json"], "xml cannot be combined with json"),
            (&["--output", "json,tag"], "tag has no effect with json"),
            (&["--output", "json=lines"], "invalid value 'lines' for json: expected batch, true or false"),
            (
                &["--tag-by", "fragment", "--output", "json=batch"],
                "cannot be combined with --output json=batch",
            ),
            (&["--tag-by", "fragment"], "--tag-by fragment has no effect without tags"),
            (&["--output", "file=%q:pattern"], "%q"),
            (&["--output", "tag:copy"], "dir=DIR or file=NAME"),
            (&["--max-line", "0"], "invalid size '0'"),
            (&["--max-line-time", "soon"], "invalid time 'soon'"),
            (&["--ranks", "x"], "invalid rank 'x'"),
            (&["--no-forward", "stdin"], "stdin"),
            (&["--tag-by", "page"], "line, fragment"),
            (&["--file-size", "1M"], "--output dir=DIR"),
            (
                &["--ranks", "0", "--output", "dir=."],
                "which get all ranks: to show these ranks as well, append :copy",
            ),
            (&["--open-mode", "append"], "--output dir=DIR"),
            (&["--file-cache", "drop"], "--output dir=DIR"),
            (&["--file-cache", "none"], "keep, drop"),
            (&["--file-size", "0"], "invalid size '0'"),
            (
                &["--file-size", "4095"],
                "invalid file size '4095' for '--file-size <BYTES>': expected 4K or more",
            ),
            (&["--file-count", "3"], "--file-size"),
            (
                &["--file-size", "1M", "--file-count", "1001"],
                "invalid number of files '1001' for '--file-count <N>': expected 0 to 1000",
            ),
            (&["--file-size", "1M", "--file-count", "some"], "invalid number of files 'some'"),
        ] {
            let done = Process::start(iof().arg(first).args(options).args(rest)).finish();
            assert_eq!(
                (done.code, done.text(), done.stderr.lines().count()),
                (2, "", 1),
                "{options:?}: {done:?}"
            );
            assert!(done.stderr.contains(message), "{options:?}: {done:?}");
        }
    }
    let done = Process::start(iof().args(["run", "--output", "dir=/dev/null/x", "true"])).finish();
    assert_eq!((done.code, done.text(), done.stderr.lines().count()), (2, "", 1), "{done:?}");
    assert!(done.stderr.contains("cannot create the directory for files: /dev/null/x: "), "{done:?}");
    let done = Process::start(iof().args(["pull", "--rank", "1", "--ranks", "2"])).finish();
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("--ranks and --rank have no rank in common"), "{done:?}");
    let done = Site::new().run(&["-n", "2", "--ranks", "0-2"], ["true"]).finish();
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("invalid rank 2 in --ranks: the job has 2 ranks"), "{done:?}");
}

#[test]
fn standard_files_are_not_emptied_and_a_dash_shows_output() {
    let site = Site::new();
    let log = site.path().join("log");
    for file in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"] {
        fs::write(&log, "before\n").unwrap();
        let mut run = site.iof("run");
        run.args(["-o", file, "echo", "out"]).current_dir(site.path());
        run.stdout(fs::File::options().append(true).open(&log).unwrap());
        assert_eq!(Process::start_with_its_files(&mut run).wait(), 0);
        assert_eq!(fs::read_to_string(&log).unwrap(), "before\nout\n", "{file}");
    }
    assert!(!site.path().join("-").exists());
}
