//! `--output dir=DIR:node` and `file=NAME:node` with `--hosts`: files that agents write.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use iof_testing::command::nodes::{has_thread, start};
use iof_testing::command::site::Site;
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

#[test]
fn files_of_nodes_at_absolute_paths_need_no_directory_of_the_front_end() {
    let site = Site::new();
    let here = site.path().join("here");
    fs::create_dir(&here).unwrap();
    let rsh = site.install_script("#!/bin/sh\nrmdir \"$PWD\"; exec sh -c \"$1\"\n", "rsh");
    let run = |output: &str| {
        fs::create_dir_all(&here).unwrap();
        let nodes = ["--hosts", "a", "--wdir", "/", "--rsh", rsh.to_str().unwrap(), "--output", output];
        let mut command = site.iof("run");
        Process::start(command.current_dir(&here).args(nodes).args(["echo", "out"])).finish()
    };
    let file = site.path().join("file");
    let done = run(&format!("file={}:node:pattern", file.display()));
    assert_eq!(
        (done.code, fs::read_to_string(site.path().join("file.out")).unwrap()),
        (0, "out\n".into()),
        "{done:?}"
    );
    let done = run("file=relative:node");
    assert!(done.code == 2 && done.stderr.contains("files cannot be written below"), "{done:?}");
}

#[test]
fn agents_write_the_files_of_their_ranks_while_the_front_end_stands_still() {
    let site = Site::new();
    let logs = site.path().join("logs");
    let output = format!("dir={}:node", logs.display());
    let script = "echo out $IOF_RANK; echo err >&2; exec sleep 1000";
    let run = start(&site, "a,b", &["-n", "2", "--output", &output], script);
    wait_for("the start of the ranks", || has_thread(run.pid(), "iof-job").then_some(()));
    run.stop();
    let read = |rank: u32, name| fs::read_to_string(logs.join(format!("demo/rank.{rank}/{name}")));
    for (rank, text) in [(0, "out 0\n"), (1, "out 1\n")] {
        wait_for("the line in the file", || {
            read(rank, "stdout").is_ok_and(|read| read == text).then_some(())
        });
        wait_for("the error in the file", || {
            read(rank, "stderr").is_ok_and(|read| read == "err\n").then_some(())
        });
    }
    run.signal(Signal::SIGCONT);
    run.signal(Signal::SIGTERM);
    let done = run.finish();
    assert_eq!((done.code, done.text()), (143, ""), "{done:?}");
}

#[test]
fn files_of_nodes_are_whole_and_counted_and_can_be_shown_as_well() {
    let site = Site::new();
    let names = site.path().join("out.%R.%c");
    let output = format!("tag,file={}:pattern:node:copy", names.display());
    let script = "seq $((IOF_RANK * 10000)); echo end >&2";
    let options = ["-n", "3", "--summary", "--no-forward", "stderr,stddiag", "--output", &output];
    let done = start(&site, "a,b:2", &options, script).finish();
    let mut total = 0;
    for rank in 0..3 {
        let file = fs::read_to_string(site.path().join(format!("out.{rank}.stdout"))).unwrap_or_default();
        let wanted: String =
            (1..=rank * 10_000).map(|number| format!("[demo,{rank}]<stdout>: {number}\n")).collect();
        assert!(file == wanted, "rank {rank}: {} bytes, wanted {}", file.len(), wanted.len());
        assert!(!site.path().join(format!("out.{rank}.stderr")).exists());
        total += (1..=rank * 10_000).map(|number| number.to_string().len() + 1).sum::<usize>();
    }
    assert_eq!((done.code, done.text().lines().count()), (0, 30_000), "{}", done.stderr);
    assert!(done.stderr.contains(&format!("{total} bytes forwarded, 0 lost")), "{}", done.stderr);
}

#[test]
fn a_node_that_cannot_write_its_files_is_named() {
    let site = Site::new();
    let started = site.path().join("started");
    let script = format!("touch {}", started.display());
    let run = |output, script: &str| start(&site, "a,b", &["-n", "2", "--output", output], script).finish();
    let done = run("dir=/proc/none:node", &script);
    assert_eq!((done.code, done.text(), started.exists()), (2, "", false), "{done:?}");
    assert!(done.stderr.starts_with("iof: a: ") || done.stderr.starts_with("iof: b: "), "{done:?}");
    assert!(done.stderr.contains("/proc/none"), "{done:?}");
    let full = site.path().join("full");
    for rank in 0..2 {
        symlink("/dev/full", full.with_extension(format!("{rank}.stdout"))).unwrap();
    }
    let done = run(&format!("file={}.%R.%c:pattern:node", full.display()), "echo out; exec sleep 1000");
    assert_eq!((done.code, done.text()), (1, ""), "{done:?}");
    assert!(done.stderr.contains("No space left on device") && done.stderr.contains("was ended"), "{done:?}");
}

#[test]
fn a_file_of_a_node_that_accepts_nothing_is_given_up_when_the_ranks_were_ended() {
    let site = Site::new();
    let name = site.path().join("fifo");
    mkfifo(&name, Mode::S_IRWXU).unwrap();
    // The file is open for both ways, so that it has a reader, which reads nothing.
    let _reader = File::options().read(true).write(true).open(&name).unwrap();
    let output = format!("file={}%%%c:pattern:node", site.path().join("link").display());
    symlink(&name, site.path().join("link%stdout")).unwrap();
    let mut run = start(&site, "a", &["--kill-wait", "0.1", "--output", &output], "exec yes");
    let stderr = iof_testing::pipes::collect(run.stderr());
    site.wait_for_bytes(0, "stdout", 64 << 10);
    run.signal(Signal::SIGTERM);
    let code = run.wait();
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(
        stderr.contains("iof: a: ")
            && stderr.contains(" has accepted nothing for 2s after the end of its ranks"),
        "{stderr}"
    );
    assert!(stderr.contains("node a is lost"), "{stderr}");
    assert_eq!(code, 143, "{stderr}");
}

#[test]
fn files_of_nodes_are_files_of_this_node_without_other_nodes() {
    let site = Site::new();
    let name = site.path().join("out");
    let done = site
        .run_sh(&["--nspace", "one", "--output", &format!("file={}:node", name.display())], "echo out")
        .finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    assert_eq!(fs::read_to_string(format!("{}.one.0.out", name.display())).unwrap(), "out\n");
}

#[test]
fn a_present_directory_that_was_removed_is_told_with_the_remedy() {
    for output in ["/absolute", "relative"] {
        let site = Site::new();
        let script = format!(
            "mkdir gone; cd gone; rmdir ../gone; exec {} run -n 1 --rsh 'env NODE=%h sh -c' --hosts a \
             --output file={}{output}:node true",
            env!("CARGO_BIN_EXE_iof"),
            if output.starts_with('/') { site.path().display().to_string() } else { String::new() }
        );
        let mut command = Command::new("sh");
        let done = Process::start(command.args(["-c", &script]).current_dir(site.path())).finish();
        let told = "iof: the present directory cannot be found (No such file or directory (os error 2)): change to \
                    another one\n";
        assert_eq!((done.code, done.text(), done.stderr.as_str()), (2, "", told));
    }
}
