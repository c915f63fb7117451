//! The end of a run (exit codes, signals, a reader that closes its end), and the stdin and the
//! environment of its ranks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use iof_testing::bytes::{assert_same, noise};
use iof_testing::command::site::{Site, iof};
use iof_testing::noise::Noise;
use iof_testing::pipes::collect;
use iof_testing::process::Process;
use iof_testing::{Pending, wait_for};
use nix::sys::signal::Signal;

#[test]
fn a_run_ends_with_exit_code_0_if_all_ranks_do() {
    assert_eq!(Site::new().run(&["-n", "5"], ["true"]).finish().code, 0);
}

#[test]
fn the_exit_code_is_that_of_the_rank_that_failed_first() {
    // The lower rank fails first, then the higher.
    for (first, second) in [(0, 1), (1, 0)] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = format!(
            "case $IOF_RANK in {first}) exit 3;; {second}) : < {gate}; exit 5;; *) : < {gate};; esac",
            gate = gate.path()
        );
        let run = site.run_sh(&["-n", "3"], &script);
        site.wait_for_state(first, "failed");
        gate.open();
        assert_eq!(run.finish().code, 3, "rank {first} failed first");
    }
}

#[test]
fn exit_codes_are_known_although_the_parent_of_the_run_ignored_sigchld() {
    let site = Site::new();
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        r#"trap '' CHLD; exec "$0" run --quiet --rendezvous-dir "$1" -- sh -c 'sh -c "exit 3"; exit $?'"#,
    ]);
    let done = Process::start(shell.arg(iof().get_program()).arg(site.path())).finish();
    assert_eq!((done.code, done.stderr.as_str()), (3, ""));
}

#[test]
fn a_rank_that_a_signal_ended_counts_as_128_plus_the_signal() {
    for (name, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("PIPE", 141)] {
        let script = format!("if [ $IOF_RANK = 1 ]; then kill -{name} $$; fi");
        assert_eq!(Site::new().run_sh(&["-n", "2"], &script).finish().code, code, "{name}");
    }
    assert_eq!(Site::new().run_sh(&[], "exit 255").finish().code, 255);
}

#[test]
fn sigterm_and_sigint_go_to_every_rank_and_the_run_waits_for_their_end() {
    for (signal, name) in [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT")] {
        let site = Site::new();
        // The trap runs when a sleep ends. (A `read` could start just after the signal and block.)
        // The sleep ignores the signal, because the shell would report a sleep that the signal
        // ends.
        let script = format!(
            r#"trap 'echo "$IOF_RANK got {name}"; exit 9' {name}; echo ready;
            while :; do (trap '' {name}; exec sleep 0.1); done"#
        );
        let mut run = site.run_sh(&["-n", "3"], &script);
        let (stdout, stderr) = run.collect();
        for rank in 0..3 {
            site.wait_for_bytes(rank, "stdout", 6);
        }
        run.signal(signal);
        assert_eq!(run.wait(), 9);
        let text = String::from_utf8(stdout.get()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let trapped: Vec<String> = (0..3).map(|rank| format!("{rank} got {name}")).collect();
        assert_eq!(lines, [&trapped[0], &trapped[1], &trapped[2], "ready", "ready", "ready"]);
        let stderr = String::from_utf8(stderr.get()).unwrap();
        let line = ": terminated 3 ranks on request: exit code 9: 3 ranks (0-2)\n";
        assert!(stderr.ends_with(line) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn ranks_ended_by_a_passed_on_signal_determine_the_exit_code() {
    let site = Site::new();
    let never = site.gate("never");
    let run = site.run_sh(&["-n", "2"], &format!("read x <> {}", never.path()));
    site.wait_for_ranks(2);
    site.wait_for_state(1, "running");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn a_signal_while_a_grandchild_holds_the_output_ends_the_command() {
    let site = Site::new();
    let never = site.gate("never");
    let run = site.run_sh(&[], &format!("(: < {}) & exit 0", never.path()));
    site.wait_for_state(0, "terminated");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn a_run_that_a_signal_ended_leaves_no_socket_behind() {
    let site = Site::new();
    let never = site.gate("never");
    let run = site.run_sh(&[], &format!("(: < {}) & exit 0", never.path()));
    site.wait_for_state(0, "terminated");
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    assert!(site.sockets().is_empty(), "{:?}", site.sockets());
}

#[test]
fn an_output_that_cannot_be_written_fails_with_one_line() {
    let site = Site::new();
    let mut command = site.iof("run");
    command.args(["--", "yes"]).stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let mut run = Process::start_with_its_files(&mut command);
    let stderr = collect(run.stderr());
    assert_eq!(run.wait(), 1);
    let stderr = String::from_utf8(stderr.get()).unwrap();
    assert!(stderr.starts_with("iof: ") && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("No space left"), "{stderr}");
    wait_for("the end of the rank", || run.living().is_empty().then_some(()));
}

#[test]
fn the_other_outputs_are_written_to_their_ends_after_one_has_failed() {
    let here: &[&str] = &["-n", "1"];
    let on_a_node: &[&str] = &["--rsh", "env NODE=%h sh -c", "--hosts", "a"];
    for options in [here, on_a_node] {
        let site = Site::new();
        let ended = site.path().join("pid");
        // More than a pipe holds.
        let script = format!("seq 100000 >&2; echo $$ >{}; exec echo x", ended.display());
        let mut command = site.iof("run");
        // The time for which an output may accept nothing.
        command.args(["--kill-wait", "60"]).args(options).args(["--", "sh", "-c", &script]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let mut run = Process::start_with_its_files(&mut command);
        let has_ended = || {
            let pid = fs::read_to_string(&ended).ok()?.trim_end().parse::<u32>().ok()?;
            fs::metadata(format!("/proc/{pid}")).is_err().then_some(())
        };
        wait_for("the end of the rank", has_ended);
        let stderr = collect(run.stderr());
        assert_eq!(run.wait(), 1);
        let stderr = String::from_utf8(stderr.get()).unwrap();
        let lines = stderr.lines().filter(|line| !line.starts_with("iof: "));
        assert!(lines.eq((1..=100_000).map(|line| line.to_string())), "{options:?}: {} bytes", stderr.len());
        assert!(stderr.contains("No space left"), "{options:?}: {stderr}");
    }
}

#[test]
fn a_last_object_that_stdout_does_not_take_fails_the_command() {
    let site = Site::new();
    let kept = site.run(&["--keep", "1h", "--nspace", "kept"], ["echo", "x"]);
    site.wait_for_state(0, "terminated");
    let whole = site.pull(&["--output", "json"]).finish();
    assert!(whole.text().lines().last().unwrap().contains("job_end"), "{whole:?}");
    // The size of a file is limited to all but a part of this line.
    let script = format!(
        "trap '' XFSZ; exec prlimit --fsize={} \"$0\" pull --rendezvous-dir \"$1\" --output json >\"$1/out\"",
        whole.text().len() - 5
    );
    let mut shell = Command::new("sh");
    let done = Process::start(shell.args(["-c", &script]).arg(iof().get_program()).arg(site.path())).finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("job_end") && done.stderr.contains("cannot write the output"), "{done:?}");
    kept.signal(Signal::SIGINT);
    kept.wait();
}

#[test]
fn a_failed_job_whose_last_objects_stdout_does_not_take_says_so() {
    let site = Site::new();
    let whole = site.run(&["--output", "json"], ["sh", "-c", "exit 3"]).finish();
    // Larger files are for the memory of streams.
    const FILLED: usize = 4 << 20;
    let script = format!(
        "trap '' XFSZ; head -c {FILLED} /dev/zero >\"$1/out\"; exec prlimit --fsize={} \"$0\" run --rendezvous-dir \"$1\" \
         --output json sh -c 'exit 3' >>\"$1/out\"",
        FILLED + whole.text().len() - 50
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(iof().get_program()).arg(site.path());
    let done = Process::start(&mut shell).finish();
    assert_eq!((whole.code, done.code), (3, 3), "{done:?}");
    assert!(done.stderr.contains("job_end") && done.stderr.contains("cannot write the output"), "{done:?}");
}

#[test]
fn an_output_that_is_closed_is_an_error_like_one_that_is_full() {
    let site = Site::new();
    let in_shell = |command: &str| {
        let script = format!("exec \"$0\" {command}");
        let mut shell = Command::new("sh");
        Process::start(shell.args(["-c", &script]).arg(iof().get_program()).arg(site.path())).finish()
    };
    for command in [
        "run --rendezvous-dir \"$1\" -- echo x >&-",
        "run --rendezvous-dir \"$1\" -- echo x <&- >&-",
        "run --help >&-",
        "--version >&-",
        "completions bash >&-",
        "ps --rendezvous-dir \"$1\" >&-",
    ] {
        let done = in_shell(command);
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{command}: {done:?}");
        assert!(done.stderr.contains("Bad file descriptor"), "{command}: {done:?}");
    }
    let on_stderr = in_shell("run --rendezvous-dir \"$1\" -- sh -c 'echo x >&2' 2>&-");
    assert_eq!((on_stderr.code, on_stderr.text()), (1, ""), "{on_stderr:?}");
    for silent in ["true >&-", "true 2>&-", "echo x <&-"] {
        let done = in_shell(&format!("run --rendezvous-dir \"$1\" -- {silent}"));
        assert_eq!(done.code, 0, "{silent}: {done:?}");
    }
}

/// Checks a run of this script whose output is piped into `head -1`.
fn pipe_into_head(script: &str) {
    let site = Site::new();
    let code = site.path().join("code");
    let pipeline = r#"{ "$0" run --rendezvous-dir "$1" -n 4 -- sh -c "$2"; echo $? > "$1/code"; } | head -1"#;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(pipeline).arg(iof().get_program()).arg(site.path()).arg(script);
    let mut shell = Process::start(&mut shell);
    let (stdout, stderr) = shell.collect();
    assert_eq!(shell.wait(), 0);
    assert_eq!(stdout.get(), b"y\n");
    assert_eq!(stderr.get(), b"");
    assert_eq!(fs::read_to_string(code).unwrap(), "141\n", "SIGPIPE, as a shell shows it");
    wait_for("the end of the ranks", || shell.living().is_empty().then_some(()));
    assert!(site.sockets().is_empty(), "{:?}", site.sockets());
}

#[test]
fn a_run_piped_into_head_ends_by_sigpipe_and_leaves_no_rank() {
    pipe_into_head("while :; do echo y; done");
}

#[test]
fn a_run_piped_into_head_also_ends_ranks_that_ignore_sigterm() {
    pipe_into_head("trap '' TERM; while :; do echo y; done");
}

#[test]
fn a_pull_without_a_reader_ends_by_sigpipe_and_the_run_continues() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("while [ ! -e {}.go ]; do echo y; done; echo end", gate.path());
    let mut run = site.run_sh(&["--cache-size", "64K"], &script);
    let (stdout, stderr) = run.collect();
    site.wait_for_ranks(1);
    let mut pull = site.pull(&["--channel", "stdout"]);
    let mut line = String::new();
    // This statement drops the reader.
    BufReader::new(pull.stdout()).read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    assert_eq!(pull.wait(), 141);
    site.wait_for_pulls(0, "stdout", 0);
    fs::write(format!("{}.go", gate.path()), "").unwrap();
    gate.open();
    assert_eq!(run.wait(), 0);
    assert!(stdout.get().ends_with(b"y\nend\n"));
    assert_eq!(stderr.get(), b"");
}

#[test]
fn stdin_goes_to_rank_0_and_the_others_read_end_of_file() {
    let site = Site::new();
    let mut run = site.run_sh(&["-n", "3"], r#"echo "$IOF_RANK: $(cat)""#);
    // The other ranks read end of file while the stdin of rank 0 is still open.
    for rank in [1, 2] {
        site.wait_for_state(rank, "terminated");
    }
    site.wait_for_state(0, "running");
    run.stdin().write_all(b"hello\nworld").unwrap();
    let done = run.finish();
    let mut parts: Vec<&str> = done.text().lines().collect();
    parts.sort_unstable();
    assert_eq!(parts, ["0: hello", "1: ", "2: ", "world"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn megabytes_of_stdin_are_returned_unchanged_by_cat() {
    const LENGTH: usize = 16 << 20;
    let site = Site::new();
    let mut run = site.run(&[], ["cat"]);
    let mut stdin = run.stdin();
    let feeding = Pending::start(move || {
        std::io::copy(&mut Noise::new(7, "stdin").take(LENGTH as u64), &mut stdin).unwrap()
    });
    let stdout = collect(run.stdout());
    assert_same("cat", &stdout.get(), &noise(7, "stdin", 0, LENGTH));
    assert_eq!(feeding.get(), LENGTH as u64);
    assert_eq!(run.wait(), 0);
}

#[test]
fn ranks_have_their_identity_and_the_inherited_environment() {
    let site = Site::new();
    let script = r#"echo "$IOF_RANK of $IOF_NPROCS in $IOF_NSPACE, $MINE""#;
    let mut command = site.iof("run");
    command.args(["-n", "2", "--nspace", "some job", "--", "sh", "-c", script]);
    command.env("MINE", "kept").env("IOF_RANK", "not this");
    let done = Process::start(&mut command).finish();
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 of 2 in some job, kept", "1 of 2 in some job, kept"]);
}

#[test]
fn without_a_name_the_job_is_named_after_its_first_program() {
    let site = Site::new();
    assert_eq!(site.run_sh(&[], "echo $IOF_NSPACE").finish().text(), "sh\n");
    let two = site.run(&[], ["printenv", "IOF_NSPACE", ":", "true"]).finish();
    assert_eq!(two.text(), "printenv\n");
}

#[test]
fn arguments_that_look_like_options_go_to_the_program() {
    let done = Site::new().run(&[], ["printf", "%s|", "-n", "--json", "--", ""]).finish();
    assert_eq!(done.text(), "-n|--json|--||");
}

#[test]
fn a_run_leaves_no_socket_behind() {
    let site = Site::new();
    let run = site.run(&[], ["cat"]);
    wait_for("the socket", || (site.sockets().len() == 1).then_some(()));
    assert_eq!(run.finish().code, 0);
    assert!(site.sockets().is_empty(), "{:?}", site.sockets());
}
