//! Several programs in one job: the program, the directory and the environment of each rank.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};
use nix::sys::signal::Signal;

/// Returns the lines of stdout, sorted, because ranks write in any order.
fn lines(done: &Done) -> Vec<&str> {
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    lines
}

const DESCRIBE: &str = r#"echo "$IOF_RANK of $IOF_NPROCS, app $IOF_APPNUM: $0 $*""#;

#[test]
fn ranks_are_numbered_across_programs() {
    let program =
        ["sh", "-c", DESCRIBE, "first", ":", "-n", "1", "sh", "-c", DESCRIBE, "second", "x", ":", "-n", "2"];
    let program = program.into_iter().chain(["--", "sh", "-c", DESCRIBE, "third", "--", "-n"]);
    let done = Site::new().run(&["-n", "2"], program).finish();
    let wanted = [
        "0 of 5, app 0: first ",
        "1 of 5, app 0: first ",
        "2 of 5, app 1: second x",
        "3 of 5, app 2: third -- -n",
        "4 of 5, app 2: third -- -n",
    ];
    assert_eq!(lines(&done), wanted);
}

#[test]
fn a_program_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let site = Site::new();
    let run = |args: &[&str]| Process::start(site.iof("run").args(args)).finish();
    assert_eq!(run(&["-n", "1", "echo", "-n", "--drop", "x"]).text(), "--drop x");
    assert_eq!(lines(&run(&["printf", "%s\\n", "a", ":", "printf", "%s\\n", "-n"])), ["-n", "a"]);
}

#[test]
fn each_app_has_its_own_directory_and_variables() {
    let site = Site::new();
    let inner = site.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let show = r#"echo "$IOF_RANK $(pwd -P) [$OWN] [$OURS]""#;
    let mut command = site.iof("run");
    command.env("OURS", "kept").env("OWN", "from here").current_dir("/");
    command.args(["-x", "OURS", "-x", "OWN=first=1", "sh", "-c", show]);
    command.arg(":").arg("--wdir").arg(&inner).args(["-x", "OWN=", "-x", "OURS=2", "sh", "-c", show]);
    command.args([":", "sh", "-c", show]);
    let inner = inner.canonicalize().unwrap();
    let wanted = [
        "0 / [first=1] [kept]".into(),
        format!("1 {} [] [2]", inner.display()),
        "2 / [from here] [kept]".into(),
    ];
    assert_eq!(lines(&Process::start(&mut command).finish()), wanted);
}

#[test]
fn a_relative_program_is_searched_in_the_directory_and_path_of_its_app() {
    let site = Site::new();
    let text = site.path().join("text");
    std::fs::write(&text, "#!/bin/sh\necho found $IOF_RANK\n").unwrap();
    site.install(&text, "here.sh");
    let directory = site.path().to_str().unwrap();
    let path = format!("PATH={directory}:/usr/bin:/bin");
    let program = ["./here.sh", ":", "-x", path.as_str(), "here.sh"];
    assert_eq!(lines(&site.run(&["--wdir", directory], program).finish()), ["found 0", "found 1"]);
}

#[test]
fn an_unset_variable_is_reported_and_the_job_runs() {
    let done = Site::new().run(&["-x", "IOF_TEST_NOT_SET"], ["echo", "ran"]).finish();
    assert_eq!((done.code, done.text()), (0, "ran\n"));
    assert_eq!(done.stderr.lines().count(), 1);
    assert!(done.stderr.contains("-x IOF_TEST_NOT_SET: the variable is not set"), "{done:?}");
}

#[test]
fn variables_of_an_app_that_would_change_the_identity_of_a_rank_are_refused() {
    for variable in ["IOF_RANK=7", "IOF_NPROCS=9"] {
        let done = Site::new().run(&["-x", variable], ["sh", "-c", DESCRIBE, "me"]).finish();
        let name = variable.split('=').next().unwrap();
        assert_eq!((done.code, done.text()), (2, ""), "{done:?}");
        assert!(done.stderr.starts_with(&format!("iof: -x {name}=VALUE has no effect")), "{done:?}");
    }
}

#[test]
fn the_environment_of_ranks_does_not_announce_a_pmix_server() {
    let site = Site::new();
    let mut command = site.iof("run");
    command.env_clear().env("PATH", "/usr/bin:/bin").args(["env"]);
    let done = Process::start(&mut command).finish();
    assert!(lines(&done).iter().all(|line| !line.starts_with("PMIX_")), "{done:?}");
    assert!(lines(&done).contains(&"IOF_RANK=0"));
}

#[test]
fn the_process_table_contains_the_program_of_each_rank() {
    let site = Site::new();
    let run = site.run(&[], ["cat", ":", "-n", "2", "sleep", "1000"]);
    site.wait_for_ranks(3);
    let programs: Vec<_> = site.procs().unwrap().iter().map(|proc| proc["executable"].clone()).collect();
    assert_eq!(programs, ["cat", "sleep", "sleep"]);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}
