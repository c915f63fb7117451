//! Commands that name a job: `iof ps`, `iof kill`, `iof pull JOB`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use iof_testing::{TIMEOUT, wait_for, wait_or};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

/// Runs `iof COMMAND ARGS` to its end.
fn iof(site: &Site, command: &str, args: &[&str]) -> Done {
    Process::start(site.iof(command).args(args)).finish()
}

/// Returns the lines of `iof ps` without the head, as columns.
fn ps(site: &Site) -> Vec<Vec<String>> {
    let done = iof(site, "ps", &[]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let mut rows = done.text().lines().map(columns);
    let head: Vec<String> = rows.next().unwrap();
    assert_eq!(head, ["PID", "USER", "AGE", "JOB", "STATE", "RANKS", "RUNNING", "ENDED", "SOCKET"]);
    rows.collect()
}

/// Returns job, state and counts of the line of an engine.
fn of_engine(rows: &[Vec<String>], pid: u32) -> Option<String> {
    let pid = pid.to_string();
    rows.iter().find(|row| row[0] == pid).map(|row| row[3..row.len() - 1].join(" "))
}

/// Waits until the lines of engines have these jobs, states and counts, and returns all lines. A
/// busy engine may need longer than `iof ps` waits for its answer.
fn wait_for_engines(site: &Site, wanted: &[(&Process, &str)]) -> Vec<Vec<String>> {
    let is_listed = |rows: &[Vec<String>]| {
        wanted.iter().all(|(run, line)| of_engine(rows, run.pid()).as_deref() == Some(*line))
    };
    let listed = || Some(ps(site)).filter(|rows| is_listed(rows));
    wait_or(TIMEOUT, listed, || format!("{:?}", ps(site)))
}

#[test]
fn ps_lists_the_jobs_of_all_engines_with_their_running_ranks() {
    let site = Site::new();
    assert!(ps(&site).is_empty());
    let one = site.run_sh(&["--nspace", "one", "-n", "3"], "[ $IOF_RANK = 1 ] || exec sleep 1000");
    site.wait_for_state(1, "terminated");
    let two = site.run(&["--nspace", "two"], ["sleep", "1000"]);
    let rows = wait_for_engines(&site, &[(&one, "one running 3 2 1"), (&two, "two running 1 1 0")]);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows.iter().all(|row| row[2].ends_with('s') && row[8].contains(site.path().to_str().unwrap())),
        "{rows:?}"
    );
}

#[test]
fn in_a_rank_jobs_are_found_where_the_engine_of_the_rank_is() {
    let site = Site::new();
    let other = site.run(&["--nspace", "other"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    let iof = iof_testing::command::site::iof().get_program().to_str().unwrap().to_owned();
    let script = format!("'{iof}' ps && '{iof}' query namespaces --nspace other && '{iof}' kill other USR1");
    let done = site.run_sh(&["--nspace", "job"], &script).finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let lists = |job: &str| done.text().lines().any(|line| line.split_whitespace().nth(3) == Some(job));
    assert!(lists("job") && lists("other"), "{done:?}");
    assert_eq!(other.wait(), 128 + Signal::SIGUSR1 as i32);
}

#[test]
fn ps_marks_engines_that_were_killed_or_do_not_answer() {
    let site = Site::new();
    let killed = site.run(&["--nspace", "killed"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.wait(), 137);
    assert_eq!(of_engine(&ps(&site), killed.pid()).as_deref(), Some("killed stale - - -"));
    // A new engine removes what the killed one has left.
    let stopped = site.run(&["--nspace", "stopped"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    stopped.stop();
    let running = site.run(&["--nspace", "running"], ["sleep", "1000"]);
    let wanted = [(&running, "running running 1 1 0"), (&stopped, "stopped no answer - - -")];
    let rows = wait_for_engines(&site, &wanted);
    assert_eq!(rows.len(), 2, "{rows:?}");
}

#[test]
fn kill_sends_sigterm_to_all_ranks_unless_told_otherwise() {
    for (args, code) in [
        (&["demo"][..], 143),
        (&["demo", "KILL"], 137),
        (&["demo", "SIGINT"], 130),
        (&["demo", "10"], 138),
        (&["--nspace", "demo"], 143),
        (&["--nspace", "demo", "KILL"], 137),
        (&["QUIT", "--nspace=demo"], 131),
    ] {
        let site = Site::new();
        let run = site.run(&["--nspace", "demo", "-n", "2"], ["sleep", "1000"]);
        site.wait_for_ranks(2);
        let done = iof(&site, "kill", args);
        assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""), "{args:?}");
        assert_eq!(run.wait(), code, "{args:?}");
    }
}

#[test]
fn kill_reaches_only_the_selected_ranks_and_jobs() {
    let site = Site::new();
    let script = r#"trap 'echo $IOF_RANK got it; exit 0' USR1; echo ready; while :; do sleep 0.01; done"#;
    let other = site.run(&["--nspace", "other"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    let run = site.run_sh(&["--nspace", "demo", "-n", "3"], script);
    let ready = || iof(&site, "query", &["--nspace", "demo", "stats", "--json"]);
    wait_for("the traps", || (ready().text().matches("\"produced\": 6").count() == 3).then_some(()));
    assert_eq!(iof(&site, "kill", &["--rank", "0,2", "demo", "usr1"]).code, 0);
    wait_for_engines(&site, &[(&run, "demo running 3 1 2")]);
    assert_eq!(iof(&site, "kill", &["demo", "SIGUSR1"]).code, 0);
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    let mut lines: Vec<&str> = done.text().lines().filter(|line| line.ends_with("got it")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 got it", "1 got it", "2 got it"]);
    wait_for_engines(&site, &[(&other, "other running 1 1 0")]);
}

#[test]
fn kill_of_an_unknown_job_or_rank_names_what_exists_and_kills_nothing() {
    let site = Site::new();
    let one = site.run(&["--nspace", "one"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    let two = site.run(&["--nspace", "two"], ["sleep", "1000"]);
    wait_for("both jobs", || (ps(&site).iter().filter(|row| row[4] == "running").count() == 2).then_some(()));
    let pid = one.pid().to_string();
    for (args, message) in [
        (&["three"][..], "has a job three; the jobs are one, two"),
        (&["--pid", &pid, "two"], "there is no job two; the only job is one"),
        (&["one", "--rank", "1"], "job one has no rank 1"),
        (&["one", "--rank", "0,7"], "job one has no rank 7"),
    ] {
        let done = iof(&site, "kill", args);
        assert_eq!((done.code, done.text(), done.stderr.lines().count()), (2, "", 1), "{args:?}: {done:?}");
        assert!(done.stderr.contains(message), "{args:?}: {done:?}");
    }
    let pull = iof(&site, "pull", &["three"]);
    assert!(pull.code == 2 && pull.stderr.contains("the jobs are one, two"), "{pull:?}");
    wait_for_engines(&site, &[(&one, "one running 1 1 0"), (&two, "two running 1 1 0")]);
}

#[test]
fn kill_by_another_user_is_refused_in_one_line_and_kills_nothing() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let site = Site::new();
    let run = site.run(&["--nspace", "demo"], ["sleep", "1000"]);
    site.wait_for_ranks(1);
    // The other user can reach the socket and the program, so that only the engine can refuse.
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    open(site.path());
    open(&site.sockets()[0]);
    let program = site.install(Path::new(env!("CARGO_BIN_EXE_iof")), "iof");
    let mut kill = Command::new(&program);
    kill.uid(65534).gid(65534).current_dir("/").arg("kill").arg("--server").arg(&site.sockets()[0]);
    let done = Process::start(kill.args(["demo", "9"])).finish();
    assert_eq!((done.code, done.text(), done.stderr.lines().count()), (1, "", 1), "{done:?}");
    assert!(done.stderr.contains("user 65534 may not attach"), "{done:?}");
    wait_for_engines(&site, &[(&run, "demo running 1 1 0")]);
}

#[test]
fn the_engine_of_another_user_is_refused_to_root_by_ps_and_kill() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can start a job of another user");
        return;
    }
    let site = Site::new();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let program = site.install(Path::new(env!("CARGO_BIN_EXE_iof")), "iof");
    let own = site.path().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let mut run = Command::new(program);
    run.uid(65534).gid(65534).current_dir("/").arg("run").arg("--rendezvous-dir").arg(&own);
    let _run = Process::start(run.args(["--nspace", "demo", "sleep", "1000"]));
    let of_root = |command: &str, args: &[&str]| {
        let mut iof = iof_testing::command::site::iof();
        Process::start(iof.arg(command).arg("--rendezvous-dir").arg(&own).args(args)).finish()
    };
    let listed = || of_root("ps", &[]).text().lines().nth(1).map(str::to_owned);
    let line = wait_for("the job", || listed().filter(|line| line.contains(" demo ")));
    assert!(line.contains(" nobody ") && line.contains(" refused "), "{line}");
    let done = of_root("kill", &["demo"]);
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(done.code != 0 && done.stderr.contains("belongs to user 65534"), "{done:?}");
}

#[test]
fn pull_takes_the_name_of_the_job_as_an_argument() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("echo $IOF_NSPACE; : < {}", gate.path());
    let one = site.run_sh(&["--nspace", "one"], &script);
    site.wait_for_ranks(1);
    let two = site.run_sh(&["--nspace", "two"], &script);
    wait_for("both jobs", || (ps(&site).iter().filter(|row| row[4] == "running").count() == 2).then_some(()));
    let pull = Process::start(site.iof("pull").arg("two"));
    wait_for("the pull", || {
        iof(&site, "query", &["stats", "--nspace", "two"]).text().contains("iof pull").then_some(())
    });
    gate.open();
    let done = pull.finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "two\n", ""));
    assert_eq!((one.finish().code, two.finish().code), (0, 0));
}

#[test]
fn ps_and_kill_and_top_once_print_json() {
    let site = Site::new();
    let json = |done: Done| -> serde_json::Value {
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        serde_json::from_str(done.text()).unwrap()
    };
    assert_eq!(json(iof(&site, "ps", &["--json"])), serde_json::json!([]));
    let run = site.run_sh(&["--nspace", "one", "-n", "2"], "echo text; exec sleep 1000");
    site.wait_for_bytes(1, "stdout", 5);
    wait_for_engines(&site, &[(&run, "one running 2 2 0")]);
    let ps = json(iof(&site, "ps", &["--json"]));
    let names = ["job", "state", "level"].map(|key| ps[0][key].as_str().unwrap().to_owned());
    assert_eq!(names, ["one", "running", "session"]);
    let numbers = ["ranks", "running", "ended", "pid"].map(|key| ps[0][key].as_u64().unwrap());
    assert_eq!((numbers, ps.as_array().unwrap().len()), ([2, 2, 0, run.pid().into()], 1));
    let top = json(iof(&site, "top", &["--once", "--json", "--interval", "0.1", "--channel", "stdout"]));
    let streams: Vec<_> = top.as_array().unwrap().iter().collect();
    assert_eq!(streams.len(), 2, "{top}");
    assert!(streams.iter().all(|row| row["stream"]["produced"] == 5 && row["rate"] == 0), "{top}");
    let kill = json(iof(&site, "kill", &["one", "USR1", "--json"]));
    assert_eq!(kill, serde_json::json!({"nspace": "one", "signal": "SIGUSR1", "receivers": 2}));
    assert_eq!(run.wait(), 128 + Signal::SIGUSR1 as i32);
}

#[test]
fn top_once_prints_a_table_without_a_terminal() {
    let site = Site::new();
    let run = site.run_sh(&["--nspace", "one"], "echo text; exec sleep 1000");
    site.wait_for_bytes(0, "stdout", 5);
    let done = iof(&site, "top", &["--once", "--interval", "0.1", "--by-rank"]);
    let words: Vec<Vec<&str>> = done.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((done.code, words.len()), (0, 2), "{done:?}");
    assert_eq!(
        (words[0][4], &words[1][..7]),
        ("RATE/s", &["one", "0", "all", "running", "0", "5", "0"][..]),
        "{done:?}"
    );
    run.signal(Signal::SIGTERM);
}
