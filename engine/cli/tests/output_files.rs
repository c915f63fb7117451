//! `--output dir=` and `file=` with their related options on the real command: the places and
//! contents of files, and the output that is shown as well.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use iof_testing::bytes::pieces;
use iof_testing::command::site::{Site, Stream, iof};
use iof_testing::command::site::{lines, run};
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;

/// Returns all files below `directory`: relative paths and contents.
fn tree(directory: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            files.extend(tree(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else {
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort_unstable();
    files
}

fn files(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn files_are_placed_as_by_prterun_and_only_copied_output_is_shown() {
    let site = Site::new();
    let out = site.path().join("made/out");
    let out = out.to_str().unwrap();
    let script = "echo out $IOF_RANK; [ $IOF_RANK = 1 ] || echo err >&2";
    let done = run(&site, &["-n", "2", "--output", &format!("dir={out}")], script);
    assert_eq!((done.text(), done.stderr.as_str()), ("", ""));
    let wanted = [
        ("launcher@1/rank.0/stderr", "err\n"),
        ("launcher@1/rank.0/stdout", "out 0\n"),
        ("launcher@1/rank.1/stderr", ""),
        ("launcher@1/rank.1/stdout", "out 1\n"),
    ];
    assert_eq!(tree(Path::new(out)), files(&wanted));
    let mode = |path: &str| fs::metadata(Path::new(out).join(path)).unwrap().permissions().mode() & 0o7777;
    // The umask may remove more permissions.
    assert_eq!(mode("launcher@1/rank.0") & 0o027, 0);
    assert_eq!(mode("launcher@1/rank.0/stdout") & 0o133, 0);

    let copied = site.path().join("copied");
    let list = format!("tag,merge,file={}/f:copy", copied.display());
    let done =
        run(&site, &["-n", "10", "--output", &list], "[ $IOF_RANK -ge 1 ] || { echo out; echo err >&2; }");
    let wanted_lines = BTreeSet::from(["[1,0]<stdout>: out", "[1,0]<stderr>: err"]);
    assert_eq!((lines(done.text()), done.stderr.as_str()), (wanted_lines.clone(), ""));
    let found = tree(&copied);
    assert_eq!(found.len(), 10);
    assert!(found[1..].iter().all(|(_, text)| text.is_empty()), "{found:?}");
    assert_eq!((found[0].0.as_str(), lines(&found[0].1)), ("f.launcher@1.00.out", wanted_lines));

    let patterns = site.path().join("patterns");
    let list = format!("file={}/%R/%n.%r.%%:pattern", patterns.display());
    run(&site, &["-n", "2", "--output", &list], script);
    let names: Vec<String> = tree(&patterns).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0/launcher@1.0.%", "1/launcher@1.1.%"]);
    assert_eq!(lines(&tree(&patterns)[0].1), BTreeSet::from(["out 0", "err"]));
    let list = format!("file={}/%c.%r:pattern", site.path().join("channels").display());
    run(&site, &["--output", &list], script);
    let wanted = [("stderr.0", "err\n"), ("stdout.0", "out 0\n")];
    assert_eq!(tree(&site.path().join("channels")), files(&wanted));
}

#[test]
fn a_placeholder_without_pattern_is_hinted_at_and_stays_in_the_name() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("file={}/f.%r", out.display());
    let done = run(&site, &["--output", &list], "echo x");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(done.stderr.contains(&format!("write {list}:pattern")), "{done:?}");
    let wanted = [("f.%r.launcher@1.0.err", ""), ("f.%r.launcher@1.0.out", "x\n")];
    assert_eq!(tree(&out), files(&wanted));
    let directory = site.path().join("logs.%t");
    for option in ["--output=dir=", "--output-filename="] {
        let done = run(&site, &[&format!("{option}{}", directory.display())], "echo x");
        let hint = format!("--output file={}/%c:pattern", directory.display());
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(&hint), "{done:?}");
    }
    let remedy = format!("file={}/%c:pattern", directory.display());
    run(&site, &["--output", &remedy], "echo x; echo y >&2");
    assert_eq!(tree(&site.path().join("logs.0")), files(&[("stderr", "y\n"), ("stdout", "x\n")]));
}

#[test]
fn a_job_without_a_name_has_the_same_files_in_each_run() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("file={}/f", out.display());
    for text in ["first", "second"] {
        let done = site.run(&["--output", &list], ["echo", text]).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        let wanted = format!("{text}\n");
        assert_eq!(tree(&out), files(&[("f.echo.0.err", ""), ("f.echo.0.out", &wanted)]));
    }
}

#[test]
fn concurrent_jobs_of_one_program_have_different_names_and_files() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("file={}/f", out.display());
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_NSPACE; : < {}", gate.path());
    let written = |name: &str| fs::read_to_string(out.join(format!("f.{name}.0.out")));
    let runs = ["sh", "sh-2", "sh-3"].map(|name| {
        let run = site.run_sh(&["--output", &list], &script);
        wait_for(name, || written(name).is_ok_and(|text| text == format!("{name}\n")).then_some(()));
        run
    });
    let elsewhere =
        site.run_sh(&["-o", site.path().join("plain").to_str().unwrap()], "echo $IOF_NSPACE").finish();
    assert_eq!((elsewhere.code, elsewhere.stderr.as_str()), (0, ""), "its file has another name anyway");
    assert_eq!(fs::read_to_string(site.path().join("plain")).unwrap(), "sh-4\n");
    gate.open();
    let [first, second, third] = runs.map(Process::finish);
    assert_eq!((first.code, first.stderr.as_str()), (0, ""));
    for (done, name) in [(second, "sh-2"), (third, "sh-3")] {
        assert_eq!((done.code, done.stderr.lines().count()), (0, 1), "{done:?}");
        assert!(
            done.stderr.contains(&format!("a job sh is running, so this job is named {name}")),
            "{done:?}"
        );
    }
}

#[test]
fn files_that_another_job_writes_are_refused_and_stay_unchanged() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("file={}/f", out.display());
    let mut gate = site.gate("gate");
    let options = ["--nspace", "job", "--output", &list];
    let first = site.run_sh(&options, &format!("echo first; : < {}", gate.path()));
    let file = out.join("f.job.0.out");
    wait_for("the first line", || {
        fs::read_to_string(&file).is_ok_and(|text| text == "first\n").then_some(())
    });
    // Another engine of the same user, in another rendezvous directory.
    let proof = site.path().join("proof");
    let pattern = format!("{}/f.%n.%t.out", out.display());
    let file_name = file.to_str().unwrap();
    let free = format!("{}/free", out.display());
    for options in [
        &options[..],
        &["--nspace", "job", "-o", &pattern],
        &["--nspace", "job", "-n", "2", "-o", "all", "-e", &pattern],
        &["--nspace", "job", "-o", &free, "-e", &pattern],
        &["-o", file_name],
    ] {
        let other = Site::new();
        let done = other.run(options, ["touch".as_ref(), proof.as_os_str()]).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{options:?}: {done:?}");
        let cause = format!("cannot write the output file: {file_name}: another process");
        assert!(done.stderr.contains(&cause), "{options:?}: {done:?}");
        assert!(!proof.exists(), "{options:?}: a rank was started");
        assert!(!Path::new(&free).exists(), "{options:?}: an empty file was left");
    }
    gate.open();
    assert_eq!(first.finish().code, 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "first\n");
}

#[test]
fn of_two_jobs_started_together_with_the_same_files_the_refused_one_starts_no_rank() {
    let site = Site::new();
    let proof = site.path().join("proof");
    // With a file of the job's name, the first of two processes creates it. Both jobs run at once,
    // and each leaves a file when a rank of it has started.
    for (round, append) in [(0, "truncate"), (1, "append"), (2, "truncate"), (3, "append")] {
        let file = site.path().join(format!("out.{round}.%t"));
        let file = file.to_str().unwrap();
        let sites = [Site::new(), Site::new()];
        let mut gate = site.gate(&format!("gate{round}"));
        let runs = [0, 1].map(|number| {
            let script = format!("echo {number}; : > {}.$$; : < {}", proof.display(), gate.path());
            let options = ["-n", "2", "--nspace", "job", "--open-mode", append, "-o", file];
            sites[number].run_sh(&options, &script)
        });
        // Once one job is refused, the other one writes.
        let refused = wait_for("a refused job", || runs.iter().position(|run| run.exit_code().is_some()));
        gate.open();
        let codes = runs.map(Process::finish);
        let [other, refused] = [&codes[1 - refused], &codes[refused]];
        assert_eq!((other.code, other.stderr.as_str()), (0, ""));
        assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{refused:?}");
        assert!(refused.stderr.contains("has locked this file"), "{refused:?}");
        let started = fs::read_dir(site.path()).unwrap();
        let is_proof = |name: &OsStr| name.to_str().unwrap().starts_with("proof");
        let started: Vec<_> =
            started.map(|entry| entry.unwrap()).filter(|entry| is_proof(&entry.file_name())).collect();
        assert_eq!(started.len(), 2, "only the ranks of one job");
        started.iter().for_each(|proof| fs::remove_file(proof.path()).unwrap());
    }
}

#[test]
fn a_job_or_pull_that_is_refused_creates_no_file_or_directory() {
    let site = Site::new();
    let files = Site::new();
    let directory = files.path();
    for (options, program) in [
        (&["--output", "dir=new"][..], "./missing"),
        (&["--output", "file=new/name"], "./missing"),
        (&["--output", "dir=new", "--chdir", "/nowhere"], "true"),
        (&["-o", "new/%t", "-e", "other/%t"], "./missing"),
    ] {
        let done = Process::start(site.iof("run").args(options).arg(program).current_dir(directory)).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{options:?}: {done:?}");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "{options:?}");
    }
    let mut pull = site.iof("pull");
    let done = Process::start(pull.args(["--output", "dir=new"]).current_dir(directory)).finish();
    assert_ne!(done.code, 0, "{done:?}");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

#[test]
fn a_job_that_is_refused_late_removes_what_it_created_and_leaves_the_rest() {
    let site = Site::new();
    let files = Site::new();
    let inside = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    fs::write(inside("0"), "old").unwrap();
    let both = format!("{}:copy", inside("new/tree"));
    let places = [
        vec!["-o".to_owned(), inside("%t"), "-e".to_owned(), inside("new/%t.err")],
        vec!["--output".to_owned(), format!("dir={both}")],
        vec!["--output".to_owned(), format!("file={both}")],
    ];
    // A program that is open for writing passes all checks and can't be started.
    let program = site.install(Path::new("/bin/true"), "program");
    let _busy = fs::File::options().append(true).open(&program).unwrap();
    for place in &places {
        for (mpi, code) in [("none", 1), ("pmix", 2)] {
            let mut run = site.iof("run");
            run.env("IOF_LIBPMIX", "/nowhere").args(place).args(["-n", "2", "--mpi", mpi]).arg(&program);
            let done = Process::start(&mut run).finish();
            assert_eq!((done.code, done.stderr.lines().count()), (code, 1), "{place:?}: {done:?}");
            assert_eq!(tree(files.path()), [("0".to_owned(), "old".to_owned())], "{place:?}: {done:?}");
            assert_eq!(fs::read_dir(files.path()).unwrap().count(), 1, "{place:?}");
        }
    }
}

#[test]
fn a_fifo_without_a_reader_is_told_and_the_job_starts_once_it_has_one() {
    let site = Site::new();
    let (fifo, proof) = (site.path().join("fifo"), site.path().join("proof"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let start =
        || site.run_sh(&["-o", fifo.to_str().unwrap()], &format!(": > {}; echo out", proof.display()));
    let mut run = start();
    let mut told = String::new();
    BufReader::new(run.stderr()).read_line(&mut told).unwrap();
    let wanted =
        format!("iof: waiting for a process that reads the FIFO {}, to start the job\n", fifo.display());
    assert_eq!(told, wanted);
    assert!(!proof.exists());
    assert_eq!(fs::read_to_string(&fifo).unwrap(), "out\n");
    assert_eq!(run.wait(), 0);

    let new = site.path().join("new/err");
    let fifo = fifo.to_str().unwrap();
    let mut waiting = site.run(&["-o", fifo, "-e", new.to_str().unwrap()], ["true"]);
    BufReader::new(waiting.stderr()).read_line(&mut told).unwrap();
    assert!(new.exists());
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.wait(), 128 + Signal::SIGINT as i32, "the wait can be interrupted");
    assert!(!site.path().join("new").exists(), "a job that did not start leaves nothing behind");
}

#[test]
fn several_output_options_are_joined_and_file_names_need_not_be_utf8() {
    let site = Site::new();
    let done = run(&site, &["--output", "tag", "--output", "merge,timestamp=ns"], "echo err >&2");
    assert!(done.text().ends_with("][1,0]<stderr>: err\n"), "{done:?}");
    let list = [b"dir=", site.path().as_os_str().as_bytes(), b"/\xff out"].concat();
    let mut iof = site.iof("run");
    iof.args(["--nspace", "j", "--output"]).arg(OsStr::from_bytes(&list)).args(["--", "echo", "x"]);
    assert_eq!(Process::start(&mut iof).finish().code, 0);
    let file = site.path().join(OsStr::from_bytes(b"\xff out")).join("j/rank.0/stdout");
    assert_eq!(fs::read_to_string(file).unwrap(), "x\n");
}

#[test]
fn only_the_listed_ranks_are_shown_and_files_get_all_ranks() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("dir={}:copy", out.display());
    let done = run(&site, &["-n", "4", "--ranks", "1,3", "--output", &list], "echo $IOF_RANK");
    assert_eq!(lines(done.text()), BTreeSet::from(["1", "3"]));
    assert_eq!(tree(&out).iter().filter(|(_, text)| !text.is_empty()).count(), 4);
    let many = "head -c 10000000 /dev/zero; echo $IOF_RANK done >&2";
    let done = run(&site, &["-n", "2", "--ranks", "1", "--cache-size", "16K"], many);
    assert_eq!(
        (done.stdout.len(), done.stderr.as_str()),
        (10_000_000, "1 done\n"),
        "the other rank is drained"
    );
}

#[test]
fn channels_that_are_not_forwarded_are_drained_and_can_be_pulled() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let out = site.path().join("out");
    let list = format!("dir={}:copy", out.display());
    let script =
        format!("echo early; head -c 3000000 /dev/zero; echo err >&2; : < {}; echo late", gate.path());
    let run = site.run_sh(&["--no-forward", "stdout,stddiag", "--output", &list], &script);
    site.wait_for_bytes(0, "stderr", 4);
    let mut pull = site.pull(&["--tail", "0"]);
    let (pulled, _) = pull.collect();
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    assert_eq!((pulled.get(), pull.wait()), (b"late\n".to_vec(), 0));
    let done = run.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", "err\n"));
    assert!(tree(&out).iter().all(|(name, text)| name.ends_with("rank.0/stderr") && text == "err\n"));
    let options = ["--quiet", "--no-forward", "stdout,stderr,stddiag"];
    let done = iof_testing::command::site::Site::new().run_sh(&options, "seq 100000; exit 3").finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (3, "", ""));
}

#[test]
fn files_are_truncated_or_appended_to_and_rotated_when_full() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("file={}/f", out.display());
    for (options, wanted) in
        [(&[][..], "x\n"), (&["--open-mode", "append"], "x\nx\n"), (&["--open-mode", "truncate"], "x\n")]
    {
        run(&site, &[&["--output", &list], options].concat(), "echo x");
        assert_eq!(
            tree(&out),
            files(&[("f.launcher@1.0.err", ""), ("f.launcher@1.0.out", wanted)]),
            "{options:?}"
        );
    }
    let script = "i=10000; while [ $i -le 12200 ]; do echo $i; i=$((i+1)); done";
    run(&site, &["--output", &list, "--file-size", "4K", "--file-count", "2"], script);
    // A file of 4K has room for 682 lines of 6 bytes.
    let numbers = |range: std::ops::RangeInclusive<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
    let wanted = [
        ("f.launcher@1.0.err", &String::new()),
        ("f.launcher@1.0.out", &numbers(12046..=12200)),
        ("f.launcher@1.0.out.1", &numbers(11364..=12045)),
        ("f.launcher@1.0.out.2", &numbers(10682..=11363)),
    ];
    assert_eq!(tree(&out), files(&wanted.map(|(name, text)| (name, text.as_str()))));
    // Without a limited size, the numbered files could be those of the user.
    run(&site, &["--output", &list], "echo new >&2");
    let wanted = [("f.launcher@1.0.err", "new\n"), ("f.launcher@1.0.out", "")];
    let numbered = ["f.launcher@1.0.out.1", "f.launcher@1.0.out.2"].map(|name| out.join(name));
    assert!(numbered.iter().all(|path| path.exists()), "{:?}", tree(&out));
    run(&site, &["--output", &list, "--file-size", "4K"], "echo new >&2");
    assert_eq!(tree(&out), files(&wanted), "files of an earlier run are removed");
}

#[test]
fn files_that_leave_the_page_cache_are_whole_and_the_summary_says_so() {
    let site = Site::new();
    let path = site.path().join("out").to_str().unwrap().to_owned();
    // So much that some writes are long, however slow the machine is.
    let script = format!("seq -f %0999g 16000 | tee {path}.copy; echo end >&2");
    for tag in ["", "0: "] {
        let label = tag.replace('0', "{rank}");
        let labelled: &[&str] = if tag.is_empty() { &[] } else { &["--label", &label] };
        let done =
            run(&site, &[&["--summary", "--file-cache", "drop", "-o", &path], labelled].concat(), &script);
        let written = fs::read_to_string(&path).unwrap();
        let lines: String =
            written.lines().map(|line| format!("{}\n", line.strip_prefix(tag).unwrap())).collect();
        assert!(lines == fs::read_to_string(format!("{path}.copy")).unwrap() + "end\n", "{tag:?}");
        let (_, dropped) = done.stderr.split_once("lost; ").unwrap();
        let (bytes, rest) = dropped.split_once(" bytes of files left the page cache").unwrap();
        let refused = ", 1 file was on a file system without support";
        assert_eq!(bytes == "0", rest.starts_with(refused), "{done:?}");
    }
}

#[test]
fn there_may_be_more_files_than_descriptors() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let out = site.path().join("out");
    fs::create_dir(&out).unwrap();
    let script = format!("echo out; echo err >&2; : < {}; echo out; echo err >&2", gate.path());
    let mut command = Command::new("sh");
    // Enough descriptors for 60 ranks and a few of their 120 files.
    command.arg("-c").arg(format!(
        "ulimit -n 550; exec {} run --rendezvous-dir {} --nspace j -n 60 --output dir={} -- sh -c '{script}'",
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
fn a_file_that_cannot_be_written_ends_the_run_and_is_reported_with_its_rank() {
    let site = Site::new();
    let out = site.path().join("out");
    fs::create_dir_all(out.join("launcher@1/rank.0/stdout")).unwrap();
    let options = ["--nspace", "launcher@1", "--output", &format!("dir={}", out.display())];
    let done = site.run_sh(&options, "echo x; exec sleep 1000").finish();
    assert_eq!(done.code, 2, "{done:?}");
    let cause = "iof: cannot write the output file: ";
    assert!(
        done.stderr.starts_with(cause) && done.stderr.contains("rank.0/stdout: Is a directory"),
        "{done:?}"
    );

    // A file that can be opened, but is full.
    let full = site.path().join("full");
    fs::create_dir_all(&full).unwrap();
    std::os::unix::fs::symlink("/dev/full", full.join("rank.1.stderr")).unwrap();
    let list = format!("merge=false,file={}/rank.%R.%c:pattern", full.display());
    let done = site.run_sh(&["-n", "2", "--output", &list], "echo x >&2; exec sleep 1000").finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("cannot write the stderr of rank 1: "), "{done:?}");
    assert!(done.stderr.contains("rank.1.stderr: No space left on device"), "{done:?}");
    assert!(
        done.stderr.contains("; other files may end early, too; the job was ended because of this error"),
        "{done:?}"
    );
}

#[test]
fn a_pull_has_the_same_output_options() {
    let site = Site::new();
    let out = site.path().join("out");
    let mut gate = site.gate("gate");
    let script = format!("echo out; echo err >&2; : < {}", gate.path());
    let run = site.run_sh(&["-n", "10", "--nspace", "launcher@1", "--no-forward", "stderr"], &script);
    for rank in 0..10 {
        site.wait_for_bytes(rank, "stderr", 4);
    }
    let list = format!("tag,merge,dir={}:copy", out.display());
    let mut pull = site.pull(&["--rank", "2-4", "--ranks", "0,3", "--output", &list]);
    let pulled = pull.collect();
    for rank in 2..=4 {
        site.wait_for_pulls(rank, "stderr", if rank == 3 { 2 } else { 1 });
    }
    gate.open();
    let shown = BTreeSet::from(["[1,3]<stdout>: out", "[1,3]<stderr>: err"]);
    assert_eq!(lines(std::str::from_utf8(&pulled.0.get()).unwrap()), shown);
    assert_eq!((pulled.1.get(), pull.wait()), (Vec::new(), 0));
    let names: Vec<String> = tree(&out).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["02", "03", "04"].map(|rank| format!("launcher@1/rank.{rank}/stdout")));
    assert_eq!(run.finish().code, 0);
}

#[test]
fn messages_logged_for_the_job_are_shown_with_any_ranks_and_have_their_own_file() {
    let site = Site::new();
    let out = site.path().join("out");
    let list = format!("dir={}:copy,json", out.display());
    let iof = iof();
    let log = format!(
        "{} log --rendezvous-dir {} --nspace job --channel stdout",
        iof.get_program().display(),
        site.path().display()
    );
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK = 1 ] || {log} all; : < {}", gate.path());
    let args = ["-n", "2", "--nspace", "job", "--ranks", "1", "--output", &list];
    let run = site.run_sh(&args, &script);
    let logged = |site: &Site| site.streams()?.iter().any(|stream| stream.0["logged"] == true).then_some(());
    wait_for("the logged message", || logged(&site));
    let pulls = [&["--ranks", "1"][..], &["--rank", "1"], &["--rank", "0"]].map(|args| site.pull(args));
    wait_for("the pulls", || {
        let streams = site.streams()?;
        (streams.iter().map(Stream::pulls).sum::<usize>() == 3 * 3 + 1).then_some(())
    });
    gate.open();
    let [shown, one, other] = pulls.map(|pull| pull.finish());
    assert_eq!([shown.text(), one.text(), other.text()], ["all\n", "", ""], "{shown:?}");
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    let [line] = &pieces(&done.stdout)[..] else { panic!("{done:?}") };
    assert_eq!((&line["rank"], &line["data"]), (&serde_json::Value::Null, &"all\n".into()));
    let files = tree(&out);
    let written: Vec<_> = files.iter().filter(|(_, text)| text.contains("\"output\"")).collect();
    assert_eq!((written.len(), written[0].0.as_str()), (1, "job/job/stdout"), "{files:?}");
}

#[test]
fn a_file_that_another_job_writes_is_refused_by_pull_as_by_run() {
    let site = Site::new();
    let file = site.path().join("file");
    let file = file.to_str().unwrap();
    let mut gate = site.gate("gate");
    let run = site.run_sh(&["-o", file], &format!("echo mine; : < {}", gate.path()));
    site.wait_for_bytes(0, "stdout", 5);
    let refused = site.pull(&["-o", file]).finish();
    assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{refused:?}");
    assert!(refused.stderr.contains("has locked this file"), "{refused:?}");
    gate.open();
    assert_eq!(run.wait(), 0);
    assert_eq!(fs::read_to_string(file).unwrap(), "mine\n");
}
