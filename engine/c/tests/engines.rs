//! C tools of a user with several session-level engines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use iof_testing::compiler::{compiler, environment, run, source};
use iof_testing::process::Dialog;

/// Starts an engine in a process of its own, with a job. Returns it with its pid.
fn start(program: &Path, sockets: &Path, nspace: &str) -> (Dialog, String) {
    let mut command = Command::new(program);
    environment(&mut command, program, sockets).args(["launcher", nspace]);
    let mut launcher = Dialog::start(&mut command);
    let pid = launcher.next_line();
    (launcher, pid)
}

/// Runs a tool. Returns the name of its status, or "connected", and the lines that follow.
fn tool(program: &Path, sockets: &Path, selection: Option<&str>) -> (String, String) {
    let mut command = Command::new(program);
    let output = run(environment(&mut command, program, sockets).arg("tool").args(selection));
    let text = String::from_utf8(output.stdout).unwrap();
    let (status, rest) = text.split_once('\n').unwrap();
    (status.to_owned(), rest.trim_end().to_owned())
}

/// Returns the sockets and links below a directory.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        let below =
            if entry.file_type().unwrap().is_dir() { self::entries(&entry.path()) } else { Vec::new() };
        entries.extend(below.into_iter().chain([entry.path()]));
    }
    entries
}

#[test]
fn several_session_engines_are_an_error_that_lists_them_also_beside_stale_sockets() {
    let Some(compiler) = compiler() else { return };
    let program = compiler.program(&source("engines.c"), &[]);
    let sockets = tempfile::tempdir().unwrap();
    // A launcher that is killed leaves its socket and the link of its job behind.
    let (stale, stale_pid) = start(&program, sockets.path(), "stale");
    stale.kill();
    let has_entry_of =
        |pid: &str| entries(sockets.path()).iter().any(|path| path.to_str().unwrap().contains(pid));
    assert!(has_entry_of(&stale_pid));

    let (status, _) = tool(&program, sockets.path(), None);
    assert_eq!(status, "PMIX_ERR_UNREACH", "a stale socket is not an engine");

    let (_first, first) = start(&program, sockets.path(), "one");
    let connected = |pid: &str| ("connected".to_owned(), format!("iof-engine-{pid}"));
    assert_eq!(tool(&program, sockets.path(), None), connected(&first));
    let (_second, second) = start(&program, sockets.path(), "two");
    // An engine that starts removes stale sockets, so this one dies last.
    let (third, third_pid) = start(&program, sockets.path(), "three");
    third.kill();
    assert!(has_entry_of(&third_pid));

    let (status, reason) = tool(&program, sockets.path(), None);
    assert_eq!(status, "PMIX_ERR_UNREACH", "{reason}");
    let mut lines = reason.lines();
    let head = "2 engines are running: choose one with IOF_SERVER_PIDINFO or IOF_SERVER_NSPACE";
    assert_eq!(lines.next(), Some(head), "{reason}");
    let mut engines = [(&first, "one"), (&second, "two")];
    engines.sort_by_key(|(pid, _)| pid.parse::<u32>().unwrap());
    for (pid, job) in &engines {
        let line = lines.next().unwrap();
        let expected = format!("  IOF_SERVER_PIDINFO {pid}  (IOF_SERVER_NSPACE {job}, ");
        assert!(line.starts_with(&expected), "{reason}");
    }
    assert_eq!(lines.next(), None, "{reason}");

    // A tool asks for the engines in the directory that it has chosen.
    let list = |directory: &Path| {
        let elsewhere = tempfile::tempdir().unwrap();
        let mut command = Command::new(&program);
        let output = run(environment(&mut command, &program, elsewhere.path()).arg("list").arg(directory));
        String::from_utf8(output.stdout).unwrap()
    };
    let sorted = engines.map(|(pid, _)| format!("{pid}\n")).concat();
    let directory = entries(sockets.path()).into_iter().find(|path| path.is_dir()).unwrap();
    assert_eq!(list(&directory), format!("pids\n{sorted}"));
    assert_eq!(list(&directory.join("missing")), "pids\n");

    // What the list names selects an engine.
    assert_eq!(
        tool(&program, sockets.path(), Some(&format!("pmix.srvr.pidinfo={first}"))),
        connected(&first)
    );
    assert_eq!(tool(&program, sockets.path(), Some("pmix.srv.nspace=two")), connected(&second));
    let (status, _) = tool(&program, sockets.path(), Some("pmix.srv.nspace=three"));
    assert_eq!(status, "PMIX_ERR_UNREACH");
}
