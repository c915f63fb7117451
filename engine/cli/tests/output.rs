//! `--output` and what belongs to it, on the real command: what lines look like, where they go, when parts of them are
//! shown.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use common::bytes::collect;
use common::process::{Done, Process};
use common::site::{Site, iof};
use common::wait_for;
use serde_json::Value;

/// The lines, in no order.
fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

fn run(site: &Site, options: &[&str], script: &str) -> Done {
    let done = site.run_sh(&[&["--nspace", "launcher@1"], options].concat(), script).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done
}

/// All files below `directory`, by their paths from there.
fn tree(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(tree(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else {
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort_unstable();
    found
}

fn files(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn lines_have_the_tags_that_were_asked_for() {
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
fn detailed_tags_and_json_say_where_and_as_which_process_a_rank_runs() {
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
    let objects: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
fn time_stamps_are_of_when_output_was_read_not_of_when_it_is_shown() {
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
fn a_line_has_the_time_at_which_it_was_read_however_many_short_ones_came_before() {
    let site = Site::new();
    // More reads than a ring's index has room for; then lines that tell the time before which they can't have been read.
    let script = "i=0; while [ $i -lt 600 ]; do echo; sleep 0.002; i=$((i+1)); done
        for i in 1 2 3; do sleep 0.5; date +%s%N; done";
    let done = run(&site, &["--output", "timestamp=ns"], script);
    let lines: Vec<(u128, &str)> = done
        .text()
        .lines()
        .map(|line| line.strip_prefix('[').unwrap().split_once("]<stdout>: ").unwrap())
        .map(|(stamp, said)| (stamp.parse().unwrap(), said))
        .collect();
    assert!(lines.is_sorted_by_key(|(stamp, _)| *stamp));
    let told: Vec<_> = lines.iter().filter(|(_, said)| !said.is_empty()).collect();
    assert_eq!(told.len(), 3);
    for (stamp, said) in told {
        let said: u128 = said.parse().unwrap();
        // As old as the newest entry may be for which another read was too near.
        assert!(stamp + 100_000 > said, "the stamp is {} ns before the line was written", said - stamp);
    }
}

/// Reads from `from` until `wanted` has come.
fn read_until(mut from: impl Read, wanted: &str) {
    let mut text = String::new();
    while !text.contains(wanted) {
        let mut byte = [0];
        assert_eq!(from.read(&mut byte).unwrap(), 1, "the end comes before {wanted:?}: {text:?}");
        text.push(byte[0].into());
    }
}

#[test]
fn a_prompt_is_shown_although_its_line_has_no_end() {
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
fn parts_of_lines_wait_for_the_rest_while_others_write_whole_ones() {
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
fn a_line_that_was_shown_in_part_is_ended_before_another_rank_gets_one() {
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
fn lines_of_stdout_and_stderr_do_not_mix_where_both_are_one_pipe() {
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

/// `iof run` with `options`, by a shell that has both of its outputs in one pipe.
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
fn lines_of_one_ranks_channels_do_not_mix_where_they_come_together() {
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
        let said = format!("{}{file}", done.text()).replace("[0]<stdout>: ", "").replace("[0]<stderr>: ", "");
        assert_eq!(lines(&said), BTreeSet::from(["output", "err"]), "{options}: {done:?}");
    }
}

#[test]
fn files_become_complete_and_ranks_go_on_when_a_copy_has_no_reader() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let list = format!("dir={}:copy", site.path().join("out").display());
    let script = format!("echo first; : < {}; seq 100000; echo last; exit 3", gate.path());
    let options = ["--nspace", "launcher@1", "--output", &list];
    let mut run = site.run_sh(&options, &script);
    read_until(run.stdout(), "first\n");
    gate.open();
    let stderr = collect(run.stderr());
    assert_eq!(run.wait(), 3, "the rank's own exit code");
    let file = fs::read_to_string(site.path().join("out/launcher@1/rank.0/stdout")).unwrap();
    assert!(file.ends_with("100000\nlast\n") && file.lines().count() == 100_002, "{}", file.len());
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.contains("stdout: ") && stderr.contains("the files become complete"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_pull_ends_when_any_of_its_outputs_has_no_reader() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo first >&2; : < {}; echo second >&2; exec sleep 1000", gate.path());
    let run = site.run_sh(&[], &script);
    let mut pull = site.pull_when_there();
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
    // Read when all of it was written.
    let stdout = run.stdout();
    site.wait_for_bytes(0, "stdout", TOTAL);
    let (stdout, stderr) = (collect(stdout), collect(run.stderr()));
    site.wait_for_stream(0, "stdout", |stream| stream.readers("iof run")[0]["lag"] == 0);
    gate.open();
    assert_eq!(run.wait(), 0);
    let (stdout, stderr) = (stdout.get(), stderr.get());
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    let gaps = stderr.lines().filter(|line| line.contains("bytes are missing")).count();
    assert!(gaps > 0, "{stderr}");
    assert_eq!(stdout.lines().count(), gaps + 1, "{stderr}");
    assert!(stdout.lines().all(|line| line.starts_with("[0]<stdout>: ")), "{stderr}");
}

#[test]
fn files_lie_where_prterun_puts_them_and_only_what_is_copied_is_shown() {
    let site = Site::new();
    let at = site.path().join("made/out");
    let at = at.to_str().unwrap();
    let script = "echo out $IOF_RANK; [ $IOF_RANK = 1 ] || echo err >&2";
    let done = run(&site, &["-n", "2", "--output", &format!("dir={at}")], script);
    assert_eq!((done.text(), done.stderr.as_str()), ("", ""));
    let wanted = [
        ("launcher@1/rank.0/stderr", "err\n"),
        ("launcher@1/rank.0/stdout", "out 0\n"),
        ("launcher@1/rank.1/stderr", ""),
        ("launcher@1/rank.1/stdout", "out 1\n"),
    ];
    assert_eq!(tree(Path::new(at)), files(&wanted));
    let mode = |path: &str| fs::metadata(Path::new(at).join(path)).unwrap().permissions().mode() & 0o7777;
    // The umask may take more away.
    assert_eq!(mode("launcher@1/rank.0") & 0o027, 0);
    assert_eq!(mode("launcher@1/rank.0/stdout") & 0o133, 0);

    let copied = site.path().join("copied");
    let list = format!("tag,merge,file={}/f:copy", copied.display());
    let done =
        run(&site, &["-n", "10", "--output", &list], "[ $IOF_RANK -ge 1 ] || { echo out; echo err >&2; }");
    let both = BTreeSet::from(["[1,0]<stdout>: out", "[1,0]<stderr>: err"]);
    assert_eq!((lines(done.text()), done.stderr.as_str()), (both.clone(), ""));
    let found = tree(&copied);
    assert_eq!(found.len(), 10);
    assert!(found[1..].iter().all(|(_, text)| text.is_empty()), "{found:?}");
    assert_eq!((found[0].0.as_str(), lines(&found[0].1)), ("f.launcher@1.00.out", both));

    let patterns = site.path().join("patterns");
    let list = format!("file={}/%R/%n.%r.%%:pattern", patterns.display());
    run(&site, &["-n", "2", "--output", &list], script);
    let names: Vec<String> = tree(&patterns).into_iter().map(|(name, _)| name).collect();
    let wanted =
        ["0/launcher@1.0.%.err", "0/launcher@1.0.%.out", "1/launcher@1.1.%.err", "1/launcher@1.1.%.out"];
    assert_eq!(names, wanted);
}

#[test]
fn only_the_ranks_of_the_list_are_shown_and_files_get_all() {
    let site = Site::new();
    let at = site.path().join("out");
    let list = format!("dir={}:copy", at.display());
    let done = run(&site, &["-n", "4", "--ranks", "1,3", "--output", &list], "echo $IOF_RANK");
    assert_eq!(lines(done.text()), BTreeSet::from(["1", "3"]));
    assert_eq!(tree(&at).iter().filter(|(_, text)| !text.is_empty()).count(), 4);
    let many = "head -c 10000000 /dev/zero; echo $IOF_RANK done >&2";
    let done = run(&site, &["-n", "2", "--ranks", "1", "--cache-size", "16K"], many);
    assert_eq!(
        (done.stdout.len(), done.stderr.as_str()),
        (10_000_000, "1 done\n"),
        "the other one is drained"
    );
}

#[test]
fn what_is_logged_of_the_job_as_a_whole_is_shown_with_any_ranks_and_has_files_of_its_own() {
    let site = Site::new();
    let at = site.path().join("out");
    let list = format!("dir={}:copy,json", at.display());
    let iof = common::site::iof();
    let log = format!(
        "{} log --rendezvous-dir {} --nspace job --channel stdout",
        iof.get_program().display(),
        site.path().display()
    );
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK = 1 ] || {log} all; : < {}", gate.path());
    let args = ["-n", "2", "--nspace", "job", "--ranks", "1", "--output", &list];
    let run = site.run_sh(&args, &script);
    let logged = |site: &Site| site.streams()?.iter().any(|of| of.0["logged"] == true).then_some(());
    wait_for("the log", || logged(&site));
    let pulls = [&["--ranks", "1"][..], &["--rank", "1"], &["--rank", "0"]].map(|args| site.pull(args));
    wait_for("the pulls", || {
        let pulls = |of: &common::site::Stream| of.pulls();
        let streams = site.streams()?;
        (streams.iter().map(pulls).sum::<usize>() == 3 * 3 + 1).then_some(())
    });
    gate.open();
    let [shown, one, other] = pulls.map(|pull| pull.finish());
    assert_eq!([shown.text(), one.text(), other.text()], ["all\n", "", ""], "{shown:?}");
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    let line: serde_json::Value = serde_json::from_str(done.text()).unwrap();
    assert_eq!((&line["rank"], &line["data"]), (&serde_json::Value::Null, &"all\n".into()));
    let files = tree(&at);
    let of_job: Vec<_> = files.iter().filter(|(_, text)| !text.is_empty()).collect();
    assert_eq!((of_job.len(), of_job[0].0.as_str()), (1, "job/job/stdout"), "{files:?}");
}

#[test]
fn what_is_not_forwarded_is_drained_and_can_be_pulled() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let at = site.path().join("out");
    let list = format!("dir={}:copy", at.display());
    let script =
        format!("echo early; head -c 3000000 /dev/zero; echo err >&2; : < {}; echo late", gate.path());
    let run = site.run_sh(&["--no-forward", "stdout,stddiag", "--output", &list], &script);
    site.wait_for_bytes(0, "stderr", 4);
    let mut pull = site.pull(&["--no-backlog"]);
    let (pulled, _) = pull.collect();
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    assert_eq!((pulled.get(), pull.wait()), (b"late\n".to_vec(), 0));
    let done = run.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", "err\n"));
    assert!(tree(&at).iter().all(|(name, text)| name.ends_with("rank.0/stderr") && text == "err\n"));
    let nothing =
        common::site::Site::new().run_sh(&["--no-forward", "stdout,stderr,stddiag"], "seq 100000; exit 3");
    let done = nothing.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (3, "", ""));
}

#[test]
fn files_are_emptied_or_appended_to_and_begun_anew_when_they_are_full() {
    let site = Site::new();
    let at = site.path().join("out");
    let list = format!("file={}/f", at.display());
    for (options, wanted) in
        [(&[][..], "x\n"), (&["--open-mode", "append"], "x\nx\n"), (&["--open-mode", "truncate"], "x\n")]
    {
        run(&site, &[&["--output", &list], options].concat(), "echo x");
        assert_eq!(
            tree(&at),
            files(&[("f.launcher@1.0.err", ""), ("f.launcher@1.0.out", wanted)]),
            "{options:?}"
        );
    }
    run(&site, &["--output", &list, "--file-size", "50", "--file-count", "2"], "seq 1000 1100");
    let numbers = |range: std::ops::RangeInclusive<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
    let wanted = [
        ("f.launcher@1.0.err", &String::new()),
        ("f.launcher@1.0.out", &numbers(1100..=1100)),
        ("f.launcher@1.0.out.1", &numbers(1090..=1099)),
        ("f.launcher@1.0.out.2", &numbers(1080..=1089)),
    ];
    assert_eq!(tree(&at), files(&wanted.map(|(name, text)| (name, text.as_str()))));
    run(&site, &["--output", &list], "echo new >&2");
    let wanted = [("f.launcher@1.0.err", "new\n"), ("f.launcher@1.0.out", "")];
    assert_eq!(tree(&at), files(&wanted), "nothing of an earlier run is left");
}

#[test]
fn there_may_be_more_files_than_can_be_open() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let out = site.path().join("out");
    fs::create_dir(&out).unwrap();
    let script = format!("echo out; echo err >&2; : < {}; echo out; echo err >&2", gate.path());
    let mut command = Command::new("sh");
    // As many as 60 ranks need, and a few of their 120 files.
    command.arg("-c").arg(format!(
        "ulimit -n 475; exec {} run --rendezvous-dir {} --nspace j -n 60 --output dir={} -- sh -c '{script}'",
        iof().get_program().to_str().unwrap(),
        site.path().display(),
        out.display(),
    ));
    let run = Process::start(&mut command);
    wait_for("all files", || {
        let written = tree(&out).iter().filter(|(_, text)| !text.is_empty()).count();
        (written == 120).then_some(())
    });
    gate.open();
    let done = run.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    for (name, text) in tree(&out) {
        let word = if name.ends_with("stdout") { "out" } else { "err" };
        assert_eq!(text, format!("{word}\n{word}\n"), "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_written_ends_the_run_and_is_named() {
    let site = Site::new();
    let at = site.path().join("out");
    fs::create_dir_all(at.join("launcher@1/rank.0/stdout")).unwrap();
    let options = ["--nspace", "launcher@1", "--output", &format!("dir={}", at.display())];
    let done = site.run_sh(&options, "echo x; exec sleep 1000").finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("rank.0/stdout: Is a directory"), "{done:?}");
    assert!(done.stderr.contains("; the job was ended because of it"), "{done:?}");
}

#[test]
fn a_pull_has_the_same_options() {
    let site = Site::new();
    let at = site.path().join("out");
    let mut gate = site.gate("gate");
    let script = format!("echo out; echo err >&2; : < {}", gate.path());
    let run = site.run_sh(&["-n", "10", "--nspace", "launcher@1", "--no-forward", "stderr"], &script);
    for rank in 0..10 {
        site.wait_for_bytes(rank, "stderr", 4);
    }
    let list = format!("tag,merge,dir={}:copy", at.display());
    let mut pull = site.pull(&["--rank", "2-4", "--ranks", "0,3", "--output", &list]);
    let pulled = pull.collect();
    for rank in 2..=4 {
        site.wait_for_pulls(rank, "stderr", if rank == 3 { 2 } else { 1 });
    }
    gate.open();
    let shown = BTreeSet::from(["[1,3]<stdout>: out", "[1,3]<stderr>: err"]);
    assert_eq!(lines(std::str::from_utf8(&pulled.0.get()).unwrap()), shown);
    assert_eq!((pulled.1.get(), pull.wait()), (Vec::new(), 0));
    let names: Vec<String> = tree(&at).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["02", "03", "04"].map(|rank| format!("launcher@1/rank.{rank}/stdout")));
    assert_eq!(run.finish().code, 0);
}

#[test]
fn bad_output_options_get_one_line_that_says_what_to_say_instead() {
    for command in [&["run", "true"][..], &["pull"]] {
        let (first, rest) = command.split_first().unwrap();
        for (options, said) in [
            (&["--output", "loud"][..], "'loud' is no kind of output"),
            (&["--output", ""], "is no kind of output"),
            (&["--output", "t"], "tag or tag-detailed"),
            (&["--output", "tag=maybe"], "true or false"),
            (&["--output", "xml,json"], "exclude each other"),
            (&["--output", "file=%x:pattern"], "%x"),
            (&["--output", "tag:copy"], "dir=DIR or file=NAME"),
            (&["--output", "dir=/dev/null/x"], "/dev/null/x: "),
            (&["--max-line", "0"], "'0' is no number of bytes"),
            (&["--max-line-time", "soon"], "'soon' is no time"),
            (&["--ranks", "x"], "'x' is no rank"),
            (&["--no-forward", "stdin"], "stdin"),
            (&["--tag-by", "page"], "line, fragment"),
            (&["--file-size", "1M"], "--output dir=DIR"),
            (&["--ranks", "0", "--output", "dir=."], "files get all ranks: say :copy"),
            (&["--open-mode", "append"], "--output dir=DIR"),
            (&["--file-count", "3"], "--file-size"),
            (
                &["--file-size", "1M", "--file-count", "1001"],
                "'1001' is no number of full files to keep: say 0 to 1000",
            ),
            (&["--file-size", "1M", "--file-count", "some"], "'some' is no number of full files to keep"),
        ] {
            let done = Process::start(iof().arg(first).args(options).args(rest)).finish();
            assert_eq!(
                (done.code, done.text(), done.stderr.lines().count()),
                (2, "", 1),
                "{options:?}: {done:?}"
            );
            assert!(done.stderr.contains(said), "{options:?}: {done:?}");
        }
    }
    let done = Process::start(iof().args(["pull", "--rank", "1", "--ranks", "2"])).finish();
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("--ranks shows none of the ranks that --rank pulls"), "{done:?}");
    let done = Site::new().run(&["-n", "2", "--ranks", "0-2"], ["true"]).finish();
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("no rank 2 to show: the job has 2"), "{done:?}");
}
