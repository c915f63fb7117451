//! Jobs that tools start in a running `iof`: ranks, `iof run --in`, and the engine of `--keep`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};

use iof_proto::limits::MAX_ENDED_SPAWNED_JOBS;
use iof_testing::command::site::{Site, Stream, lines, program};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::unistd::gethostname;

/// Runs a rank that starts a job.
fn run_spawner(site: &Site, options: &[&str], args: &[&str]) -> Process {
    let spawn = program("spawn");
    site.run(options, std::iter::once(spawn.as_str()).chain(args.iter().copied()))
}

#[test]
fn the_output_of_a_job_that_a_rank_has_started_is_tagged_with_its_own_name() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo \"of $IOF_RANK\"; echo err >&2; : <{}; exit 3", gate.path());
    let args = ["child", "2", "1000", "attached", "sh", "-c", &script];
    let mut run = run_spawner(&site, &["--output", "tag", "--nspace", "parent"], &args);
    let (mut stdout, mut found) = (BufReader::new(run.stdout()), String::new());
    for _ in 0..3 {
        stdout.read_line(&mut found).unwrap();
    }
    let expected =
        ["[child,0]<stdout>: of 0", "[child,1]<stdout>: of 1", "[parent,0]<stdout>: started child"];
    assert_eq!(lines(&found), expected.into());
    gate.open();
    // The rank ends only by the signal, after its job.
    wait_for("the end of the job", || {
        let ended = |proc: &serde_json::Value| proc["nspace"] == "child" && proc["state"] != "running";
        let procs = site.procs()?;
        (procs.iter().filter(|proc| ended(proc)).count() == 2).then_some(())
    });
    run.signal(Signal::SIGTERM);
    let mut stderr = String::new();
    run.stderr().read_to_string(&mut stderr).unwrap();
    assert_eq!(run.wait(), 143, "the exit code is that of the command's own job: {stderr}");
    assert_eq!(stderr.matches(",0]<stderr>: err").count(), 1, "{stderr}");
    assert!(stderr.contains("iof: job child: rank "), "{stderr}");
}

#[test]
fn a_job_ends_with_its_parent_and_a_detached_one_is_waited_for() {
    let site = Site::new();
    let args = |end| ["child", "1", "0", end, "sh", "-c", "echo begin; sleep 1; echo end"];
    let done = run_spawner(&site, &[], &args("detached")).finish();
    assert_eq!((done.code, lines(done.text())), (0, ["started child", "begin", "end"].into()));
    let done = run_spawner(&site, &[], &args("attached")).finish();
    assert_eq!(done.code, 0);
    assert!(!done.text().contains("end\n"), "{done:?}");
}

#[test]
fn a_line_names_the_rank_that_fails_in_a_job_of_a_rank_although_no_tool_waits_for_the_job() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(": <{}; exit 3", gate.path());
    let mut run = run_spawner(&site, &[], &["child", "1", "0", "detached", "sh", "-c", &script]);
    assert_eq!(BufReader::new(run.stdout()).lines().next().unwrap().unwrap(), "started child");
    gate.open();
    let mut stderr = String::new();
    run.stderr().read_to_string(&mut stderr).unwrap();
    assert!(stderr.starts_with("iof: job child: rank 0 (sh, pid "), "{stderr}");
    assert!(stderr.ends_with(" ended with exit code 3\n") && run.wait() == 0, "{stderr}");
}

#[test]
fn spawn_none_and_full_slots_refuse_a_job_of_a_rank() {
    let site = Site::new();
    let args = ["child", "2", "0", "detached", "echo", "ran"];
    for (options, refusal) in [
        (&["--spawn", "none"][..], Some("this iof run starts no jobs (--spawn none)")),
        (&["--hosts", "localhost:2"], Some("2 ranks need as many slots, but 1 of 2 are in use")),
        (&["--hosts", "localhost:2", "--oversubscribe"], None),
        (&["--hosts", "localhost:3"], None),
    ] {
        let done = run_spawner(&site, options, &args).finish();
        assert_eq!(done.code, 0);
        match refusal {
            Some(reason) => {
                assert!(done.text().starts_with("refused: ") && done.text().contains(reason), "{done:?}")
            }
            None => assert_eq!(done.text().matches("ran\n").count(), 2, "{done:?}"),
        }
    }
}

/// Starts `iof run --in JOB OPTIONS -- sh -c SCRIPT`.
fn run_in(site: &Site, job: &str, options: &[&str], script: &str) -> Process {
    Process::start(site.iof("run").args(["--in", job]).args(options).args(["--", "sh", "-c", script]))
}

/// Waits for the first output of the job `sh`.
fn wait_for_ready(site: &Site) {
    wait_for("the first output", || {
        let procs = site.procs()?;
        let running = procs.iter().filter(|proc| proc["state"] == "running").map(|proc| &proc["nspace"]);
        let running: Vec<_> =
            running.filter(|job| job.as_str().is_some_and(|job| job.starts_with("sh"))).collect();
        let has_written =
            |stream: &Stream| running.contains(&&stream.0["nspace"]) && stream.number("produced") > 0;
        site.streams()?.iter().any(has_written).then_some(())
    });
}

#[test]
fn a_job_started_in_a_running_job_has_its_output_its_exit_code_and_its_end_here() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}; echo main", gate.path()));
    site.wait_for_ranks(1);
    let script = "echo \"$IOF_NSPACE $COLOUR $(pwd)\"; echo err >&2; exit 7";
    let options = ["-n", "2", "-x", "COLOUR=blue", "--wdir", "/", "--nspace", "other"];
    let done = run_in(&site, "main", &options, script).finish();
    assert_eq!((done.code, done.text()), (7, "other blue /\nother blue /\n"));
    assert!(done.stderr.starts_with("err\nerr\niof: job other: rank "), "{done:?}");
    // A job ends with the command that has started it.
    let command = run_in(&site, "main", &[], "echo ready; exec sleep 1000");
    wait_for_ready(&site);
    command.signal(Signal::SIGINT);
    assert_eq!(command.finish().code, 130);
    wait_for("the end of the job", || {
        site.procs()?.iter().all(|proc| proc["nspace"] == "main").then_some(())
    });
    let refused = run_in(&site, "main", &["--nspace", "main"], "true").finish();
    assert_eq!(refused.code, 2);
    assert_eq!(refused.stderr, "iof: job main already exists: choose another name\n");
    gate.open();
    let done: Done = main.finish();
    assert_eq!((done.code, done.text()), (0, "main\n"));
}

#[test]
fn a_job_in_a_running_job_on_several_nodes_takes_slots_of_this_node_only() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let here = gethostname().unwrap().into_string().unwrap();
    let hosts = format!("{here}:2,b:2");
    let options = ["--nspace", "main", "--rsh", "sh -c", "--hosts", &hosts, "-n", "2", "--map-by", "node"];
    let mut main = site.run_sh(&options, &format!("echo ready; : < {}", gate.path()));
    let (mut stdout, mut line) = (BufReader::new(main.stdout()), String::new());
    stdout.read_line(&mut line).unwrap();
    let refused = run_in(&site, "main", &["-n", "2"], "echo ran").finish();
    let told = "iof: 2 ranks need as many slots, but 1 of 2 are in use: ";
    assert!(refused.code == 2 && refused.stderr.starts_with(told), "{refused:?}");
    let done = run_in(&site, "main", &[], "echo ran").finish();
    assert_eq!((done.code, done.text()), (0, "ran\n"), "{done:?}");
    gate.open();
    assert_eq!(main.wait(), 0);
}

#[test]
fn a_signal_to_the_command_of_a_job_in_a_running_job_reaches_the_ranks_and_loses_no_output() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
        let script = format!("trap 'seq 200000; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let command = run_in(&site, "main", &[], &script);
        wait_for_ready(&site);
        command.signal(signal);
        let done = command.finish();
        assert_eq!((done.code, done.text().lines().count()), (9, 200_001), "{}", done.stderr);
        let line = ": terminated 1 rank on request: exit code 9: 1 rank (0)\n";
        // The shell reports its child.
        assert!(done.stderr.ends_with(line), "{done:?}");
    }
    // A signal that does not ask to end is passed on as well.
    let script = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let command = run_in(&site, "main", &[], script);
    wait_for_ready(&site);
    command.signal(Signal::SIGUSR1);
    let done = command.finish();
    assert_eq!((done.code, done.text()), (0, "ready\ngot\n"), "{}", done.stderr);
    gate.open();
    assert_eq!(main.finish().code, 0);
}

#[test]
fn a_signal_that_ends_jobs_of_tools_after_the_commands_own_gives_the_exit_code() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    let command = run_in(&site, "main", &[], "echo ready; exec sleep 1000");
    wait_for_ready(&site);
    gate.open();
    wait_for("the end of the command's own job", || {
        let runs = |proc: &serde_json::Value| proc["nspace"] == "main" && proc["state"] == "running";
        (!site.procs()?.iter().any(runs)).then_some(())
    });
    main.signal(Signal::SIGTERM);
    assert_eq!((main.wait(), command.wait()), (143, 143));
}

#[test]
fn a_second_signal_to_the_command_of_a_job_in_a_running_job_kills_ranks_that_ignore_the_first() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    let script = "trap '' INT; trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let command = run_in(&site, "main", &[], script);
    wait_for_ready(&site);
    command.signal(Signal::SIGINT);
    command.wait_for_signals();
    // Within this time it would be the same request.
    std::thread::sleep(iof_engine::SAME_REQUEST);
    command.signal(Signal::SIGINT);
    let done = command.finish();
    assert_eq!((done.code, done.text()), (137, "ready\n"), "{}", done.stderr);
    gate.open();
    assert_eq!(main.finish().code, 0);
}

/// Replaces the pids in the lines about ranks.
fn without_pids(stderr: &str) -> String {
    let lines = stderr.lines().map(|line| match line.split_once(", pid ") {
        Some((before, after)) => format!("{before}{}", after.trim_start_matches(char::is_numeric)),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_job_in_a_running_job_fails_with_the_lines_and_the_exit_code_of_one_of_its_own() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    for (options, script, code, line) in [
        (
            &["-n", "2"][..],
            "[ $IOF_RANK = 0 ] || kill -SEGV $$; exec sleep 1000",
            139,
            "was killed by SIGSEGV",
        ),
        (
            &["-n", "2", "--kill-on-bad-exit"],
            "[ $IOF_RANK = 0 ] || exit 5; exec sleep 1000",
            5,
            "exit code 5",
        ),
        (&["-n", "2", "--timeout", "0.2"], "exec sleep 1000", 124, "not finished after 0.2s (--timeout)"),
        (&["--quiet"], "exit 4", 4, ""),
    ] {
        // No name is given twice there.
        let name = ["--nspace", &format!("of-{code}")];
        let own = site.run_sh(&[&name, options].concat(), script).finish();
        let inside = run_in(&site, "main", &[&name, options].concat(), script).finish();
        assert_eq!((own.code, inside.code), (code, code), "{own:?} {inside:?}");
        assert_eq!(without_pids(&own.stderr), without_pids(&inside.stderr));
        assert!(inside.stderr.contains(line), "{inside:?}");
        assert_eq!(inside.stderr.is_empty(), line.is_empty(), "{inside:?}");
    }
    gate.open();
    assert_eq!(main.finish().code, 0);
}

#[test]
fn a_job_in_a_running_job_waits_for_the_reader_of_its_output_and_loses_nothing() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    let command = run_in(&site, "main", &[], "head -c 8000000 /dev/zero");
    // The output of the command is not read before the rank is blocked.
    let mut before = 0;
    wait_for("a full cache", || {
        let streams = site.streams()?;
        let produced = streams.iter().filter(|stream| stream.0["nspace"] == "sh");
        let produced = produced.map(|stream| stream.number("produced")).max()?;
        let is_full = produced >= 1 << 19 && std::mem::replace(&mut before, produced) == produced;
        is_full.then_some(())
    });
    let done = command.finish();
    assert_eq!((done.code, done.stdout.len(), done.stderr.as_str()), (0, 8_000_000, ""));
    gate.open();
    assert_eq!(main.finish().code, 0);
}

#[test]
fn a_job_in_a_running_job_that_drops_output_ends_with_1_if_its_output_is_incomplete() {
    let site = Site::new();
    let (mut gate, mut rest) = (site.gate("gate"), site.gate("rest"));
    let main = site.run_sh(&["--nspace", "main", "--drop", "newest"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    // Nobody reads the output of the command until the rank has written more than its cache holds.
    let script = format!("head -c 8000000 /dev/zero; : < {}", rest.path());
    let command = run_in(&site, "main", &[], &script);
    let has_written = |stream: &Stream| stream.0["nspace"] == "sh" && stream.number("produced") == 8_000_000;
    wait_for("the output", || site.streams()?.iter().any(has_written).then_some(()));
    rest.open();
    let done = command.finish();
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stderr.contains("bytes are missing"), "{}", done.stderr);
    assert!(done.stderr.ends_with("iof: the output is incomplete\n"), "{}", done.stderr);
    gate.open();
    assert_eq!(main.finish().code, 0);
}

#[test]
fn every_one_of_many_short_jobs_at_once_ends_with_its_output() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    // More than the engine keeps once they have ended.
    let count = 2 * MAX_ENDED_SPAWNED_JOBS;
    let commands: Vec<_> = (0..count).map(|_| run_in(&site, "main", &[], "echo ran")).collect();
    for done in commands.into_iter().map(Process::finish) {
        assert_eq!((done.code, done.text()), (0, "ran\n"), "{done:?}");
    }
    gate.open();
    assert_eq!(main.finish().code, 0);
}

/// Returns what `iof ps` prints about a job.
fn ps(site: &Site, job: &str) -> Option<Vec<String>> {
    let done = Process::start(&mut site.iof("ps")).finish();
    let rows = done.text().lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    rows.into_iter().find(|row| row.get(3).is_some_and(|name| name == job))
}

/// Waits for an engine of `--keep`.
fn wait_for_idle(site: &Site, name: &str) {
    wait_for("the engine", || ps(site, name).filter(|row| row[4..8] == ["idle", "0", "0", "0"]));
}

#[test]
fn an_engine_without_a_job_has_no_ranks_and_takes_only_signals_that_end_it() {
    let site = Site::new();
    let engine = Process::start(site.iof("run").args(["--keep", "1h", "--nspace", "pool"]));
    wait_for_idle(&site, "pool");
    let run = |command: &str, args: &[&str]| {
        Process::start(site.iof(command).args(["--nspace", "pool"]).args(args)).finish()
    };
    assert_eq!(site.procs().map(|procs| procs.len()), Some(0));
    for (command, args, reason) in [
        ("log", &["--channel", "stdout", "hello"][..], "job pool has ended: nothing can be logged to it"),
        ("log", &["--required", "stderr", "hello"], "job pool has ended: nothing can be logged to it"),
        ("push", &["/dev/null"], "iof: job pool has no ranks: name a job that was started in its engine\n"),
        ("pull", &["--rank", "3"], "iof: job pool has no ranks: name a job"),
        ("kill", &["USR1"], "no selected rank of job pool is running"),
        ("kill", &["WINCH"], "no selected rank of job pool is running"),
    ] {
        let refused = run(command, args);
        assert_ne!(refused.code, 0, "{command} {args:?}");
        assert!(refused.stderr.contains(reason), "{command} {args:?}: {refused:?}");
    }
    // A job whose ranks have exited is not the engine.
    let mut held = site.gate("held");
    let job = run_in(&site, "pool", &[], &format!("setsid sh -c ': < {}' & echo x", held.path()));
    site.wait_for_state(0, "terminated");
    assert_eq!(Process::start(site.iof("kill").args(["sh", "TERM"])).finish().code, 1);
    held.open();
    assert_eq!(job.finish().code, 0);
    assert_eq!(run("kill", &["KILL"]).code, 0);
    let done = engine.finish();
    assert_eq!((done.code, done.text()), (0, ""), "{done:?}");
}

#[test]
fn output_that_another_process_holds_does_not_keep_an_engine_at_its_end() {
    let site = Site::new();
    let mut held = site.gate("held");
    let engine = Process::start(site.iof("run").args(["--keep", "1h", "--nspace", "pool"]));
    wait_for_idle(&site, "pool");
    let job = run_in(&site, "pool", &[], &format!("setsid sh -c ': < {}' & echo x", held.path()));
    site.wait_for_state(0, "terminated");
    job.signal(Signal::SIGKILL);
    job.wait();
    engine.signal(Signal::SIGINT);
    assert_eq!(engine.finish().code, 0);
    held.open();
}

#[test]
fn a_signal_ends_a_command_whose_ranks_have_exited_while_output_of_a_job_in_it_is_held() {
    let site = Site::new();
    let (mut gate, mut held) = (site.gate("gate"), site.gate("held"));
    let main = site.run_sh(&["--nspace", "main"], &format!(": < {}", gate.path()));
    site.wait_for_ranks(1);
    let job = run_in(&site, "main", &[], &format!("setsid sh -c ': < {}' & echo x", held.path()));
    let have_exited = |count| {
        wait_for("the ends of ranks", || {
            let exited = site.procs()?.iter().filter(|proc| proc["state"] == "terminated").count();
            (exited == count).then_some(())
        });
    };
    have_exited(1);
    // The command of the job, whose ranks have exited as well.
    job.signal(Signal::SIGTERM);
    let done = job.finish();
    assert_eq!((done.code, done.text()), (143, "x\n"), "{done:?}");
    gate.open();
    have_exited(2);
    main.signal(Signal::SIGTERM);
    assert_eq!(main.finish().code, 143);
    held.open();
}

#[test]
fn an_engine_without_a_job_waits_for_jobs_until_its_time_is_over_or_it_is_killed() {
    let site = Site::new();
    let keep = |time| Process::start(site.iof("run").args(["--keep", time, "--nspace", "pool"]));
    let ready = || wait_for_idle(&site, "pool");
    for end in ["kill", "signal"] {
        let engine = keep("1h");
        ready();
        let done = run_in(&site, "pool", &[], "echo \"in $IOF_NSPACE\"").finish();
        assert_eq!((done.code, done.text()), (0, "in sh\n"));
        // A job that runs is ended as well.
        let job = run_in(&site, "pool", &[], "echo ready; exec sleep 1000");
        wait_for_ready(&site);
        if end == "kill" {
            assert_eq!(Process::start(site.iof("kill").arg("pool")).finish().code, 0);
        } else {
            engine.signal(Signal::SIGINT);
        }
        assert_eq!(job.finish().code, 143);
        assert_eq!(engine.finish().code, 0, "{end}");
    }
    let done = keep("0.1").finish();
    assert_eq!(done.code, 0);
    assert!(done.stderr.starts_with("iof: waiting for jobs as pool: "), "{done:?}");
}

#[test]
fn options_that_a_job_in_a_running_engine_or_an_engine_alone_has_no_use_for_are_refused() {
    let site = Site::new();
    for args in [
        &["--in", "main", "--drop", "oldest", "true"][..],
        &["--in", "main", "--hosts", "localhost", "true"],
        &["--in", "main", "--stdin", "0", "true"],
        &["--keep", "1", "-n", "2"],
        &["--keep", "1", "--output", "tag"],
        &["--keep", "1", "--spawn", "none"],
        &["--keep", "1", "--hosts", "a,b"],
        &[],
    ] {
        let done = Process::start(site.iof("run").args(args)).finish();
        assert_eq!((done.code, done.stdout.len()), (2, 0), "{args:?}: {done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{args:?}: {done:?}");
    }
    assert_eq!(run_in(&site, "no-such-job", &[], "true").finish().code, 2);
}
