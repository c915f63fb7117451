//! Bad input is reported in one line with the cause, with exit code 2. Nothing panics.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;

fn start(args: &[impl AsRef<OsStr>]) -> Done {
    Process::start(iof().args(args)).finish()
}

/// Checks for exit code 2 and one line that contains `message`.
fn assert_refused(done: &Done, message: &str) {
    assert_eq!(done.code, 2, "{done:?}");
    assert_eq!(done.text(), "", "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(done.stderr.starts_with("iof: ") && done.stderr.contains(message), "no '{message}' in {done:?}");
}

#[test]
fn an_invalid_command_line_is_rejected_with_the_cause() {
    let site = Site::new();
    let directory = site.path().to_str().unwrap();
    let long = "n".repeat(256);
    for (args, message) in [
        (&[][..], "run, pull, push, top, serve, query, ps, kill, log, gateway, inspect, completions, man"),
        (&["frobnicate"], "to start a job, write: iof run frobnicate"),
        (&["hostname", "-f", "a b"], "write: iof run hostname -f 'a b'"),
        (&["-n", "2", "hostname"], "write: iof run -n 2 hostname"),
        (&["-np", "2", "hostname"], "write: iof run -np 2 hostname"),
        (&["qurey", "stats"], "did you mean 'query'? To start a job, write: iof run qurey stats"),
        (&["help", "nosuch"], "no help for 'nosuch': expected one of run, pull"),
        (&["rnu"], "'rnu': did you mean 'run'? To start a job, write: iof run rnu"),
        (&["tpo"], "'tpo': did you mean 'top'?"),
        (&["-np", "2", "hostname"], "unexpected option '-np'; to start a job, write: iof run -np 2 hostname"),
        (&["run", "-vv", "true"], "unsupported option '-v'"),
        (
            &["run", "--host-env", "A=1", "true"],
            "invalid value 'A=1' for '--host-env <NAME>': expected the name",
        ),
        (&["run", "--host-env", "A,B", "true"], "expected the name of one variable"),
        (&["run", "--host-env", "A", "true"], "--host-env needs nodes: write --hosts or --hostfile"),
        (
            &["run", "--start-timeout", "5", "true"],
            "--start-timeout needs nodes: write --hosts or --hostfile",
        ),
        (
            &["run", "--hosts", "a,b", "--tree", "2", "true"],
            "unsupported option '--tree': trees of agents were removed, iof run starts all agents itself: leave it out",
        ),
        (&["run", "--tree=0", "true"], "unsupported option '--tree 0': trees of agents were removed"),
        (
            &["run", "--hosts", "a,[::1]:x", "true"],
            "invalid host '[::1]:x': expected NAME, NAME:SLOTS or [IPV6-ADDRESS]:SLOTS, with a positive",
        ),
        (&["run", "--timeout", "-5", "true"], "invalid time '-5' for '--timeout <DURATION>'"),
        (&["run", "--grace", "-1", "true"], "invalid time '-1' for '--grace <DURATION>'"),
        (
            &["run", "--give-up", "0", "true"],
            "invalid duration '0' for '--give-up <DURATION>': expected 0.1 seconds",
        ),
        (&["run", "--give-up", "-1s", "true"], "invalid time '-1s' for '--give-up <DURATION>'"),
        (&["run", "--kill-wait", "-0.5", "true"], "invalid time '-0.5' for '--kill-wait <DURATION>'"),
        (&["top", "--interval", "-1"], "invalid time '-1' for '--interval <DURATION>'"),
        (&["run", "--error-lines", "-1", "true"], "invalid value '-1' for '--error-lines <N>'"),
        (&["run", "--error-lines", "1001", "true"], "1001 is not in 0..=1000"),
        (&["run", "--error-lines", "2", "--quiet", "true"], "cannot be used with '--quiet'"),
        (&["run", "--error-lines", "2", "--in", "a", "true"], "cannot be used with '--in <JOB>'"),
        (&["run", "--error-lines", "2", "--merge-at-source", "true"], "cannot be used with"),
        (&["run", "--error-lines", "2", "--hosts", "a", "true"], "--error-lines is for ranks on this node"),
        (&["run", "--job-log", "/dev/null", "true"], "it exists, and is not a regular file"),
        (&["run", "--job-log", "/no/such/log", "true"], "--job-log /no/such/log: No such file or directory"),
        (&["run", "--job-log", "", "true"], "--job-log"),
        (&["run", "--keep", "1s", "--timings"], "--keep without PROG takes no options of a job"),
        (&["run", "--keep=1s", "--output", "json"], "add PROG, or drop them"),
        (&["run", "--keep", "1s", "--fold"], "add PROG, or drop them"),
        (&["top", "--json"], "--once"),
        (&["query", "stats", "--output", "csv"], "[possible values: prometheus]"),
        (&["query", "procs", "--output", "prometheus"], "query stats alone"),
        (&["query", "stats", "--json", "--output", "prometheus"], "cannot be used with"),
        (&["run", "-h=2"], "option '-h' takes no value"),
        (&["run", "-K", "1", "true"], "write -K=1"),
        (&["run", "echo", ":"], "for an argument ':', write sh -c 'PROG :'"),
        (&["run", "-genv", "A", "sh", "-c", "true"], "note that '-genv A sh' has set a variable"),
        (
            &["version"],
            "no such command: write iof --version; to start a program of this name, iof run version",
        ),
        (
            &["logs", "one"],
            "no such command: write iof pull JOB; to start a program of this name, iof run logs one",
        ),
        (&["tail", "-f", "one"], "write iof pull --tail 10 JOB; to start"),
        (
            &["pull", "--tail", "x"],
            "invalid number of lines 'x' for '--tail <N[:all]>': expected a number such as 10",
        ),
        (&["pull", "--tail", "-1"], "invalid number of lines '-1'"),
        (&["pull", "--tail", "5:each"], "invalid number of lines '5:each'"),
        (&["pull", "--tail"], "--tail"),
        (
            &["pull", "--since", "soon"],
            "invalid time 'soon' for '--since <TIME>': expected a time ago, such as 10s",
        ),
        (&["pull", "--since", "-5s"], "invalid time '-5s' for '--since <TIME>'"),
        (&["pull", "--since", "2026-13-01T00:00:00Z"], "invalid time '2026-13-01T00:00:00Z'"),
        (&["pull", "--until", "10s"], "invalid time '10s' for '--until <TIME>': expected a date and time"),
        (&["pull", "--until", ""], "invalid time ''"),
        (&["pull", "--from", "-1"], "invalid offset '-1' for '--from <OFFSET>': expected a number of bytes"),
        (&["pull", "--from", "1K"], "invalid offset '1K'"),
        (&["pull", "--from", "18446744073709551616"], "invalid offset '18446744073709551616'"),
        (&["pull", "--tail", "1", "--since", "1s"], "cannot be used with"),
        (&["pull", "--from", "0", "--resume", "f", "--output", "json"], "cannot be used with"),
        (&["pull", "--no-follow=1"], "takes no value"),
        (&["pull", "--no-follow", "--follow"], "cannot be used with"),
        (&["pull", "--no-backlog"], "--no-backlog"),
        (&["pull", "--resume", "f"], "--resume needs --output json without files"),
        (&["pull", "--resume", "/", "--output", "json"], "--resume /: "),
        (&["run", "--tail", "5", "true"], "write iof pull --tail N JOB or iof pull --since 10s JOB"),
        (&["watch", "one"], "write iof top JOB for its streams, or iof pull JOB for its output; to start"),
        (&["stop", "one"], "write iof kill JOB; to start"),
        (&["squeue"], "no such command: write iof ps; to start a program of this name, iof run squeue"),
        (&["scancel", "-s", "USR1", "one"], "write iof kill JOB [SIGNAL]; to start"),
        (&["sattach", "one.0"], "write iof pull JOB; to start"),
        (&["-versio"], "unexpected argument '-v' found (try 'iof --help')"),
        (&["mpirun", "-n", "2", "a b"], "options of mpirun: write iof run -n 2 'a b'"),
        (&["srun", "--pty", "bash"], "options of srun: write iof run --pty bash"),
        (&["mpiexec"], "write iof run PROG"),
        (&["--frobnicate"], "unexpected argument '--frobnicate' found (try 'iof --help')"),
        (&["run", "--stdin-file", "-", "true"], "for the stdin of iof, write --stdin with the ranks"),
        (&["run", "--summray", "true"], "did you mean '--summary'? (try 'iof run --help')"),
        (&["query", "stats", "--jsno"], "did you mean '--json'? (try 'iof query --help')"),
        (&["run"], "PROG"),
        (&["run", "--"], "PROG"),
        (&["run", "--frobnicate", "--", "true"], "--frobnicate"),
        (&["run", "-n", "0", "--", "true"], "0"),
        (&["run", "-n", "x", "--", "true"], "'x'"),
        (&["run", "-n", "-1", "--", "true"], "-1"),
        (&["run", "-n", "4294967296", "--", "true"], "4294967296"),
        (&["run", "-n", "1", "-n", "2", "--", "true"], "-n"),
        (&["run", "-n"], "-n"),
        (&["run", "--cache-size", "0", "--", "true"], "expected a positive number"),
        (
            &["run", "--cache-size", "16383", "--", "true"],
            "invalid cache size '16383' for '--cache-size <BYTES>': expected 16K",
        ),
        (&["run", "--cache-size", "15KiB", "--", "true"], "expected 16K or more"),
        (&["run", "--cache-size", "-1", "--", "true"], "-1"),
        (&["run", "--cache-size", "4G", "--", "true"], "4G"),
        (&["run", "--cache-size", "big", "--", "true"], "big"),
        (&["run", "--cache-size", "-5", "true"], "invalid size '-5' for '--cache-size <BYTES>'"),
        (&["run", "--cache-total", "1K", "true"], "'1K' for '--cache-total <BYTES>': expected 16K or more"),
        (
            &["run", "--rendezvous-dir", directory, "--cache-size", "2M", "--cache-total", "1M", "true"],
            "--cache-total 1048576 is less than one cache of 2097152 bytes (--cache-size)",
        ),
        (
            &["run", "-o", "/x/out", "-e", "/x/out.1", "--file-size", "4K", "true"],
            "/x/out.1 is a name of a full file of /x/out (--file-size)",
        ),
        (
            &["pull", "-o", "/x/out", "-e", "/x/out.%t", "--file-size", "4K"],
            "/x/out.1 is a name of a full file of /x/out (--file-size)",
        ),
        (&["run", "--drop", "sometimes", "--", "true"], "newest, oldest, none"),
        (&["run", "--backend", "select", "--", "true"], "io-uring, epoll"),
        (&["run", "--nspace", "", "--", "true"], "--nspace"),
        (&["run", "--nspace", "a/b", "--", "true"], "'/'"),
        (&["run", "--nspace", "..", "--", "true"], "expected a name other than"),
        (&["run", "--nspace", "a\nb", "--", "true"], "control character"),
        (&["run", "--nspace", &long, "--", "true"], "256 bytes"),
        (&["run", "--rendezvous-dir", "/dev/null", "--", "true"], "/dev/null"),
        (
            &["run", "--rendezvous-dir", "/nowhere", "--", "true"],
            "--rendezvous-dir /nowhere: no such directory: create it with mode 0700",
        ),
        (
            &["run", "--rendezvous-dir", directory, "--", "/no/such/program"],
            "program '/no/such/program' not found",
        ),
        (
            &["run", "--rendezvous-dir", directory, "--", "no-such-program"],
            "program 'no-such-program' not found",
        ),
        (&["run", "--rendezvous-dir", directory, "-n", "3", "--", "/etc/passwd"], "not executable"),
        (&["run", "--rendezvous-dir", directory, "--", "/"], "/"),
        (&["run", "--rendezvous-dir", directory, "--", ""], "no program: its name is empty"),
        (&["run", ""], "no program: its name is empty"),
        (&["run", "-x", "IOF_RANK=7", "true"], "-x IOF_RANK=VALUE has no effect"),
        (&["run", "-K2", "true"], "invalid value '2' for '-K': expected one of 0, 1 (try"),
        (
            &["run", "-o", "%t.o", "--ranks", "0", "true"],
            "write --output file=PATTERN:pattern:copy in place of -o",
        ),
        (&["run", "--grace", "-1", "--", "true"], "-1"),
        (&["run", "--grace", "soon", "--", "true"], "invalid time 'soon'"),
        (&["run", "-x", "=value", "--", "true"], "expected NAME or NAME=VALUE"),
        (&["run", "-x"], "-x"),
        (&["run", ":", "true"], "app 0 has no program"),
        (&["run", "true", ":"], "app 1 has no program"),
        (&["run", "true", ":", ":", "true"], "app 1 has no program"),
        (&["run", "true", ":", "true", ":", "-n", "3"], "app 2 has no program"),
        (&["run", "true", ":", "-n", "0", "true"], "app 1: invalid value '0'"),
        (&["run", "true", ":", "--drop", "newest", "true"], "before the first program"),
        (&["run", "-n", "600000", "true", ":", "-n", "600000", "true"], "number of ranks 1200000"),
        (
            &["run", "--rendezvous-dir", directory, "-n", "2", "true", ":", "no-such"],
            "program 'no-such' not found",
        ),
        (&["run", "--rendezvous-dir", directory, "-n", "2", "true", ":", "no-such"], "(rank 2 of app 1)"),
        (
            &["run", "--rendezvous-dir", directory, "--wdir", "/no/where", "true"],
            "cannot start 'true' in '/no/where'",
        ),
        (
            &["run", "--rendezvous-dir", directory, "true", ":", "--wdir", "/etc/passwd", "true"],
            "Not a directory",
        ),
        (&["pull", "frobnicate", "--rendezvous-dir", directory], "has a job frobnicate; there are no jobs"),
        (&["pull", "one", "--nspace", "one"], "--nspace"),
        (&["pull", "one", "--system"], "--system"),
        (&["pull", "--pid", "x"], "invalid pid 'x' for '--pid <PID>': expected a number"),
        (&["kill"], "JOB"),
        (&["kill", "one", "LOUD"], "unknown signal 'LOUD'"),
        (&["kill", "one", "0"], "unknown signal '0'"),
        (&["kill", "one", "--nspace", "two"], "unknown signal 'one'"),
        (&["kill", "one", "9", "--nspace", "two"], "--nspace and JOB both name a job: leave one out"),
        (&["kill", "a/b"], "'/'"),
        (&["kill", "-USR1", "one"], "write iof kill one USR1 (try"),
        (&["kill", "-SIGUSR1", "one"], "write iof kill one SIGUSR1 (try"),
        (&["kill", "-9", "one"], "write iof kill one 9 (try"),
        (&["kill", "one", "-9"], "write iof kill one 9 (try"),
        (&["kill", "-s", "CONT", "one", "--rank", "0"], "write iof kill one --rank 0 CONT (try"),
        (&["kill", "-sCONT", "one"], "write iof kill one CONT (try"),
        (&["kill", "--signal", "CONT", "one"], "write iof kill one CONT (try"),
        (&["kill", "--signal=CONT", "one"], "write iof kill one CONT (try"),
        (&["kill", "-9"], "write iof kill JOB 9 (try"),
        (&["kill", "-LOUD", "one"], "'-L'"),
        (&["kill", "one", "--rendezvous-dir", directory], "has a job one; there are no jobs"),
        (&["ps", "one"], "'one'"),
        (&["pull", "--rank", "x"], "invalid rank 'x'"),
        (&["pull", "--rank", ""], "invalid rank ''"),
        (&["pull", "--rank=-1"], "invalid rank '-1'"),
        (&["pull", "--rank", "0,3-x"], "invalid rank '3-x'"),
        (&["run", "--stdin=-1", "true"], "invalid rank '-1' for '--stdin <LIST|all|none>': expected"),
        (&["run", "--stdin", "-1", "true"], "invalid rank '-1' for '--stdin <LIST|all|none>': expected"),
        (&["pull", "--rank", "-1"], "invalid rank '-1' for '--rank <LIST|all>': expected"),
        (&["push", "one"], "one: No such file or directory (os error 2); for a job, write --nspace one"),
        (&["pull", "--rank", "3-1"], "invalid range '3-1'"),
        (&["pull", "--channel", "stdin"], "stdin can be pushed, but not pulled"),
        (&["pull", "--channel", "stdout,stdin"], "stdin can be pushed, but not pulled"),
        (&["pull", "--channel", "loud"], "invalid channel 'loud'"),
        (&["pull", "--pid", "x"], "'x'"),
        (&["pull", "--pid", "1", "--server", "/x"], "--pid"),
        (&["pull", "--system", "--session"], "--system"),
        (&["pull", "--nspace", "a/b"], "'/'"),
        (&["query", "stats", "--nspace", "a", "--session"], "--nspace"),
        (&["pull", "--server", directory], "is a directory: expected the socket"),
        (&["pull", "--rendezvous-dir", "/no/where"], "--rendezvous-dir /no/where: no such directory"),
        (&["run", "--kill-wait", "1d", "true"], "invalid time '1d' for '--kill-wait <"),
        (&["run", "--kill-wait", "1d", "true"], "minutes:seconds or hours:minutes:seconds"),
        (&["top", "--frobnicate"], "--frobnicate"),
        (&["top", "one", "--server", "/x"], "--server"),
        (&["top", "--interval", "0"], "0.1 to 86400 seconds"),
        (&["top", "--interval", "often"], "invalid time 'often'"),
        (&["top", "--pid", "1", "--session"], "--pid"),
        (&["completions"], "SHELL"),
        (&["completions", "tcsh"], "bash"),
        (&["man"], "DIR"),
        (&["query"], "KEY"),
        (&["query", "everything"], "everything"),
        (&["query", "JOB_STATU"], "invalid key 'JOB_STATU': did you mean 'JOB_STATUS'?"),
        (&["query", "proc"], "did you mean 'procs'?"),
        (&["query", "pmix-query-namespace"], "did you mean 'NAMESPACES'?"),
        (&["run", "--timeout", "1:xx", "--", "true"], "minutes:seconds or"),
        (&["ps", "--rendezvous-dir", "/no/where"], "--rendezvous-dir /no/where: no such directory"),
        (&["query", "stats", "--frobnicate"], "--frobnicate"),
    ] {
        assert_refused(&start(args), message);
    }
}

#[test]
fn a_message_that_quotes_a_newline_is_one_line() {
    let site = Site::new();
    let directory = site.path().to_str().unwrap();
    for (options, program) in
        [(&[][..], "no\nprog"), (&["--wdir", "no\nprog"], "true"), (&["-o", "no\nprog/"], "true")]
    {
        assert_refused(&site.run(options, [program]).finish(), r"no\nprog");
    }
    let failing = format!("{directory}/no\nprog");
    std::os::unix::fs::symlink("/bin/false", &failing).unwrap();
    let done = site.run(&[], [&failing]).finish();
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
    assert!(done.stderr.contains(r"/no\nprog, pid "), "{done:?}");
}

#[test]
fn a_message_repeats_the_beginning_of_a_long_value() {
    let long = "x;".repeat(10_000);
    for option in ["--hosts", "--rank", "--timeout", "--cache-size", "--nspace"] {
        let done = start(&["run", option, &long, "true"]);
        assert_refused(&done, "");
        assert!(done.stderr.len() < 700, "{option}: {} bytes", done.stderr.len());
    }
}

#[test]
fn a_list_of_nodes_that_is_not_utf8_is_refused() {
    for name in ["SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_MCPU_HOSTS"] {
        let value = OsString::from_vec(b"n[1-2]\xff 1".to_vec());
        let done = Process::start(iof().args(["run", "true"]).env(name, value)).finish();
        assert_refused(&done, &format!("iof: {name}"));
    }
}

#[test]
fn a_job_name_with_a_comma_is_rejected() {
    let site = Site::new();
    assert_refused(&site.run(&["--nspace", "one,two"], ["true"]).finish(), "','");
}

#[test]
fn an_argument_that_is_not_utf8_is_passed_to_programs_and_rejected_elsewhere() {
    let not_utf8 = OsString::from_vec(b"\xff\xfe".to_vec());
    let args = ["run", "--nspace"].map(OsString::from);
    let rest = ["--", "true"].map(OsString::from);
    assert_refused(&start(&[&args[..], std::slice::from_ref(&not_utf8), &rest[..]].concat()), "UTF-8");

    let site = Site::new();
    let done = site.run(&[], ["printf".into(), "%s".into(), not_utf8]).finish();
    assert_eq!((done.code, done.stdout), (0, b"\xff\xfe".to_vec()));
}

#[test]
fn a_rejected_run_starts_no_rank() {
    let site = Site::new();
    let proof = site.path().join("proof");
    let run = |options: &[&str]| site.run(options, ["touch".as_ref(), proof.as_os_str()]).finish();
    for options in [
        &["-n", "0"][..],
        &["--drop", "sometimes"],
        &["--nspace", "a/b"],
        &["--cache-size", "0"],
        &["--merge-at-source", "-e", "errors"],
    ] {
        assert_eq!(run(options).code, 2);
        assert!(!proof.exists(), "{options:?}");
    }
    assert_eq!(run(&[]).code, 0);
    assert!(proof.exists());
}

#[test]
fn options_are_refused_before_the_engine_starts() {
    let site = Site::new();
    // No engine starts with this directory.
    let file = site.path().join("file");
    fs::write(&file, "").unwrap();
    let start = |options: &[&str]| {
        let run = ["run", "--rendezvous-dir", file.to_str().unwrap(), "-n", "2"];
        Process::start(iof().args(run).args(options).arg("true")).finish()
    };
    assert_refused(&start(&[]), "expected a directory");
    assert_refused(&start(&["--pty", "3"]), "invalid rank 3 for a pty: the job has 2 ranks, from 0");
}

#[test]
fn a_job_name_by_which_tools_cannot_find_the_job_is_refused_before_the_start() {
    let site = Site::new();
    let proof = site.path().join("proof");
    let run = |options: &[&str]| site.run(options, ["touch".as_ref(), proof.as_os_str()]).finish();
    let long = "n".repeat(255);
    let refused = run(&["--nspace", &long]);
    assert_refused(&refused, "--nspace: tools cannot find a job by a name of 255 bytes");
    assert_refused(&refused, "--rendezvous-dir none");
    assert!(!proof.exists());
    let (_, rest) = refused.stderr.split_once("with the host and the pid it is ").unwrap();
    let excess: usize = rest.split(' ').next().unwrap().parse().unwrap();
    // The pid of the next command may have more digits.
    let longest = &long[..long.len() - excess - 7];
    let done = run(&["--nspace", longest]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let done = start(&["run", "--rendezvous-dir", "none", "--nspace", &long, "echo"]);
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "\n", ""));
}

#[test]
fn an_output_file_that_is_a_program_of_the_job_is_refused_and_keeps_its_contents() {
    let site = Site::new();
    let proof = site.path().join("proof");
    let script = format!("#!/bin/sh\n: > {}\n", proof.display());
    let path = |name: &str| site.path().join(name).into_os_string().into_string().unwrap();
    let program = path("model.0");
    fs::write(&program, &script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let (symbolic, hard, pattern) = (path("symbolic"), path("hard"), path("model.%t"));
    std::os::unix::fs::symlink(&program, &symbolic).unwrap();
    fs::hard_link(&program, &hard).unwrap();
    let listed = format!("file={pattern}:pattern");
    let apps = ["touch", proof.to_str().unwrap(), ":", "model.0"];
    for (options, named) in [
        (&["-o", &program][..], &program),
        (&["-o", &pattern], &program),
        (&["-e", &symbolic], &symbolic),
        (&["-o", &hard, "--open-mode", "append"], &hard),
        (&["--output", &listed], &program),
        (&["-n", "2", "-o", &path("%n")], &program),
    ] {
        for apps in [&[program.as_str()][..], &apps] {
            let mut run = site.iof("run");
            // The second program is found in PATH.
            let directories = format!("{}:{}", site.path().display(), std::env::var("PATH").unwrap());
            run.env("PATH", directories).args(options).args(["--nspace", "model.0", "--"]).args(apps);
            let done = Process::start(&mut run).finish();
            assert_refused(
                &done,
                &format!("the output file {named} is the program '{}': name", apps.last().unwrap()),
            );
            assert_eq!((fs::read_to_string(&program).unwrap(), proof.exists()), (script.clone(), false));
        }
    }
    assert!(!site.path().join("model.1").exists());
    assert_eq!(site.run(&["-o", &path("output")], [&program]).finish().code, 0);
    assert!(proof.exists());
}

#[test]
fn an_unusable_output_file_is_refused_before_the_start() {
    let site = Site::new();
    let proof = site.path().join("proof");
    let run = |options: &[&str]| site.run(options, ["touch".as_ref(), proof.as_os_str()]).finish();
    let directory = site.path().to_str().unwrap();
    for (options, cause) in [
        (["-o", "/etc/"], "/etc/: Is a directory"),
        (["-o", "."], ".: Is a directory"),
        (["-e", directory], "Is a directory"),
        (["-o", "new/%t/"], "new/0/: Is a directory"),
        (["-o", "/proc/x"], "/proc/x: No such file"),
        (["-o", "/proc/x.%t"], "/proc/x.0: No such file"),
        (["-o", "/dev/null/x"], "/dev/null/x: Not a directory"),
        (["--output", "file=/etc/"], "/etc/: Is a directory"),
        (["--output", "file=/proc/x"], "/proc/x: No such file"),
        (["--output", "file=/proc/x:pattern"], "/proc/x: No such file"),
    ] {
        assert_refused(&run(&options), cause);
        assert!(!proof.exists(), "{options:?}");
    }
    // Existing files and directories that are still to be created are fine.
    let new = site.path().join("new/deep/%t");
    for path in ["/dev/null", new.to_str().unwrap()] {
        assert_eq!(run(&["-o", path]).code, 0, "{path}");
    }
    assert!(proof.exists() && site.path().join("new/deep/0").exists());
}

#[test]
fn a_tag_suffix_is_refused_with_markup_and_one_rank_is_singular() {
    let site = Site::new();
    let run = |options: &[&str]| site.run(options, ["true"]).finish();
    for markup in ["xml", "json"] {
        assert_refused(&run(&["--output", markup, "--tag-suffix", "."]), "--tag-suffix cannot be combined");
    }
    assert_refused(&run(&["--ranks", "3"]), "the job has 1 rank, numbered");
    assert_refused(&run(&["--stdin", "3"]), "the job has 1 rank, numbered");
    assert_refused(&run(&["--pty", "3"]), "the job has 1 rank, from 0");
}

#[test]
fn an_app_that_cannot_start_prevents_the_start_of_all_apps() {
    let site = Site::new();
    let proof = site.path().join("proof");
    let script = |name: &str, first_line: &str| {
        let path = site.path().join(name);
        fs::write(&path, first_line).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let missing = script("missing", "#!/no/such/interpreter\n");
    let from_dos = script("from_dos", "#!/bin/sh\r\nexit\r\n");
    let directory = site.path().to_str().unwrap();
    // An executable for a machine that does not exist.
    let foreign = script("foreign", "\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x7e\x7e\x01\0\0\0\n");
    for (invalid, cause) in [
        (&["no-such-program"][..], "'no-such-program' not found: check the path"),
        (&["echo hello"], "separate words"),
        (&["A=1", "env"], "env NAME=VALUE"),
        (&["--wdir", "/no/where", "true"], "in '/no/where'"),
        (&["/etc/passwd"], "chmod +x"),
        (&[directory], "is a directory: name a program in it"),
        (&[&missing], "its first line names the interpreter '/no/such/interpreter'"),
        (&[&from_dos], "ends with a carriage return"),
        (&[&foreign], "built for this machine"),
    ] {
        let args = ["touch".as_ref(), proof.as_os_str(), ":".as_ref()].into_iter();
        let done = site.run(&[], args.chain(invalid.iter().map(OsStr::new))).finish();
        assert_refused(&done, "(rank 1 of app 1)");
        assert!(done.stderr.contains(cause), "{done:?}");
        assert!(!proof.exists(), "{invalid:?}");
    }
}

#[test]
fn a_pull_or_a_query_without_an_engine_names_the_searched_place() {
    let site = Site::new();
    let directory = site.path().to_str().unwrap();
    let missing = site.path().join("missing");
    for command in [&["pull"][..], &["query", "stats"]] {
        let run_with = |options: &[&str]| start(&[command, options].concat());
        assert_refused(&run_with(&["--rendezvous-dir", directory]), directory);
        assert_refused(&run_with(&["--rendezvous-dir", missing.to_str().unwrap()]), "missing");
        assert_refused(&run_with(&["--rendezvous-dir", "/dev/null"]), "/dev/null");
        assert_refused(&run_with(&["--rendezvous-dir", directory, "--pid", "4000000000"]), "4000000000");
        assert_refused(&run_with(&["--rendezvous-dir", directory, "--nspace", "nobody"]), "has a job nobody");
        assert_refused(&run_with(&["--rendezvous-dir", directory, "--system"]), "no system-level engine");
        assert_refused(&run_with(&["--rendezvous-dir", directory, "--session"]), directory);
        assert_refused(&run_with(&["--server", missing.to_str().unwrap()]), "missing");
        assert_refused(&run_with(&["--server", "/"]), "/");
        assert_refused(&run_with(&["--server", directory]), directory);
        assert_refused(&run_with(&["--server", ""]), "--server");
    }
}

#[test]
fn a_socket_that_a_crashed_engine_left_behind_is_ignored() {
    let site = Site::new();
    let crashed = site.run(&[], ["cat"]);
    site.wait_for_ranks(1);
    let socket = site.sockets().pop().unwrap();
    crashed.signal(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(crashed.wait(), 137);
    // Reaps the process, because the pid of a zombie is still in use.
    drop(crashed);
    assert!(socket.exists());
    assert_refused(&site.pull(&[]).finish(), "no engine");
    let pull = start(&["pull".as_ref(), "--server".as_ref(), socket.as_os_str()]);
    assert_refused(&pull, ": it has ended");
    let _run = site.run(&[], ["cat"]);
    site.wait_for_ranks(1);
}

#[test]
fn a_pull_with_two_engines_lists_both() {
    let site = Site::new();
    let runs = ["ocean", "air"].map(|name| site.run(&["--nspace", name], ["cat"]));
    for name in ["ocean", "air"] {
        wait_for(name, || (site.query(&["namespaces", "--nspace", name]).code == 0).then_some(()));
    }
    for done in [site.pull(&[]).finish(), site.query(&["stats"])] {
        assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 3, "{done:?}");
        assert!(done.stderr.contains("choose one with --pid or --nspace"), "{done:?}");
        for (run, name) in runs.iter().zip(["ocean", "air"]) {
            let line = format!("\n  --pid {}  (--nspace {name}, {}/", run.pid(), site.path().display());
            assert!(done.stderr.contains(&line), "{done:?}");
        }
    }
}

#[test]
fn a_job_and_a_pid_select_one_of_two_engines_with_equal_jobs() {
    let site = Site::new();
    let runs = ["one", "two"]
        .map(|text| site.run(&["--nspace", "same"], ["sh", "-c", &format!("echo {text}; cat")]));
    for run in &runs {
        let pid = run.pid().to_string();
        let query = ["namespaces", "--nspace", "same", "--pid", &pid];
        wait_for("the job", || (site.query(&query).code == 0).then_some(()));
    }
    let pid = runs[1].pid().to_string();
    assert_eq!(site.query(&["procs", "--nspace", "same", "--pid", &pid]).code, 0);
    let pull = site.pull(&["same", "--pid", &pid]);
    let [_, second] = runs;
    site.query(&["namespaces", "--pid", &pid]);
    assert_eq!(site.query(&["procs", "--rank", "5", "--pid", &pid]).code, 2);
    wait_for("the pull", || {
        let stats = site.query(&["stats", "--pid", &pid]);
        stats.text().contains("iof pull").then_some(())
    });
    assert_eq!(second.finish().code, 0);
    assert_eq!(pull.finish().text(), "two\n");
}

#[test]
fn a_pull_from_an_unknown_engine_or_rank_is_rejected() {
    let site = Site::new();
    let run = site.run(&["-n", "2"], ["cat"]);
    site.wait_for_state(1, "terminated");
    let own_pid = std::process::id().to_string();
    assert_refused(
        &site.pull(&["--pid", &own_pid]).finish(),
        &format!("no running engine with pid {own_pid}"),
    );
    assert_refused(&site.pull(&["--pid", "0"]).finish(), "pid 0");
    assert_refused(&site.pull(&["--rank", "2"]).finish(), "rank 2 does not exist");
    assert_refused(&site.pull(&["--rank", "0,1,77"]).finish(), "rank 77 does not exist");
    assert_refused(&site.pull(&["--rank", "1-99999999"]).finish(), "");
    assert_eq!(run.finish().code, 0, "the run is not affected");
}

#[test]
fn help_and_version_end_with_exit_code_0() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["-version"],
        &["-help"],
        &["run", "--help"],
        &["run", "--version"],
        &["run", "-n", "2", "-V"],
        &["help", "pull"],
    ] {
        let done = start(args);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!done.stdout.is_empty(), "{args:?}");
        let is_version = args.iter().any(|arg| ["--version", "-version", "-V"].contains(arg));
        assert!(!is_version || done.text() == concat!("iof ", env!("CARGO_PKG_VERSION"), "\n"), "{done:?}");
    }
}

#[test]
fn a_file_in_place_of_the_rendezvous_directory_is_not_changed() {
    let site = Site::new();
    let file = site.path().join("file");
    fs::write(&file, "mine").unwrap();
    let done = start(&["run", "--rendezvous-dir", file.to_str().unwrap(), "--", "true"]);
    assert_refused(&done, "expected a directory");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn programs_that_are_no_files_and_scripts_without_an_interpreter_are_refused() {
    let site = Site::new();
    let (fifo, empty) = (site.gate("fifo"), site.path().join("empty"));
    fs::write(&empty, "#!").unwrap();
    for (program, message) in [
        (fifo.path(), "is not a regular file: name a program"),
        (empty.to_str().unwrap(), "its first line names the interpreter ''"),
    ] {
        fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
        assert_refused(&site.run(&["-n", "2"], [program]).finish(), message);
    }
}
