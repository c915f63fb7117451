//! The remains of a job when `iof run`, an agent or a launcher is killed: processes that called
//! setsid(2).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use iof_testing::command::nodes::{agent_of, send, start};
use iof_testing::command::site::{Site, program};
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

/// A rank with three children: one has a session of its own, and one ignores SIGTERM. Rank 1 has
/// ended before them.
const RANK: &str = "setsid tail -f /dev/null > /dev/null & sleep 1000 & (trap '' TERM; exec sleep 1000) &
                    [ $IOF_RANK = 1 ] || wait";

/// Waits until this number of processes runs a program.
fn wait_for_running(run: &Process, name: &str, count: usize) {
    wait_for(&format!("{count} {name}"), || (run.running(name).len() == count).then_some(()));
}

fn wait_for_end_of_guardians(run: &Process) {
    wait_for("the end of the guardians", || run.guardians().is_empty().then_some(()));
}

#[test]
fn a_killed_command_leaves_only_processes_with_a_session_of_their_own() {
    let site = Site::new();
    let run = site.run_sh(&["-n", "2"], RANK);
    site.wait_for_state(1, "terminated");
    wait_for_running(&run, "tail", 2);
    wait_for_running(&run, "sleep", 4);
    run.signal(Signal::SIGKILL);
    wait_for_running(&run, "sleep", 0);
    wait_for_end_of_guardians(&run);
    assert_eq!(run.living().len(), 2, "those with a session of their own");
}

#[test]
fn a_killed_agent_leaves_only_processes_with_a_session_of_their_own() {
    let site = Site::new();
    let run = start(&site, "a,b", &["-n", "2", "--kill-on-bad-exit=0"], RANK);
    wait_for_running(&run, "tail", 2);
    wait_for_running(&run, "sleep", 4);
    send(agent_of(&run, "b"), Signal::SIGKILL);
    wait_for_running(&run, "sleep", 2);
    assert_eq!(run.exit_code(), None);
    send(agent_of(&run, "a"), Signal::SIGKILL);
    wait_for_running(&run, "sleep", 0);
    wait_for_end_of_guardians(&run);
    assert_eq!(run.running("tail").len(), 2);
}

#[test]
fn a_command_that_is_killed_while_it_starts_ranks_leaves_none() {
    for count in [1, 20, 60] {
        let site = Site::new();
        let run = site.run(&["-n", "100"], ["sleep", "1000"]);
        wait_for("some ranks", || (run.running("sleep").len() >= count).then_some(()));
        run.signal(Signal::SIGKILL);
        wait_for("the end of all", || run.living().is_empty().then_some(()));
        wait_for_end_of_guardians(&run);
    }
}

#[test]
fn children_that_outlive_a_job_are_not_ended_with_the_command() {
    let site = Site::new();
    let run = site.run_sh(&[], "sleep 1000 > /dev/null 2>&1 &");
    assert_eq!(run.wait(), 0);
    wait_for_end_of_guardians(&run);
    // The child may not have executed its program yet.
    wait_for_running(&run, "sleep", 1);
}

#[test]
fn a_rank_in_the_process_group_of_the_shell_ends_alone() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    // Rank 0 reads the terminal.
    terminal.type_keys("run sleep 1000 | tail -f /dev/null\n");
    let run = wait_for("the command", || shell.running("iof").first().copied());
    wait_for_running(&shell, "sleep", 1);
    send(run, Signal::SIGKILL);
    wait_for_running(&shell, "sleep", 0);
    wait_for_end_of_guardians(&shell);
    assert_eq!(shell.running("tail").len(), 1, "another member of the group of the command");
}

#[test]
fn a_rank_with_a_set_user_id_program_ends_with_its_killed_command() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root can install a program that runs as root");
    }
    let site = Site::new();
    fs::set_permissions(site.path(), Permissions::from_mode(0o711)).unwrap();
    let iof = site.install(Path::new(env!("CARGO_BIN_EXE_iof")), "iof");
    let sleep = site.install(Path::new("/bin/sleep"), "sleep");
    fs::set_permissions(&sleep, Permissions::from_mode(0o4755)).unwrap();
    let own = site.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(65534), Some(65534)).unwrap();
    let mut run = Command::new(iof);
    run.uid(65534).gid(65534).current_dir("/").arg("run").arg("--rendezvous-dir").arg(&own);
    let run = Process::start(run.args(["-n", "2"]).arg(sleep).arg("1000"));
    wait_for_running(&run, "sleep", 2);
    run.signal(Signal::SIGKILL);
    wait_for_running(&run, "sleep", 0);
    wait_for_end_of_guardians(&run);
}

#[test]
fn ranks_outlive_the_thread_that_has_started_them_but_not_their_launcher() {
    let mut launcher = Command::new(program("guarded"));
    let mut launcher = Process::start(launcher.args([env!("CARGO_BIN_EXE_iof"), "sh", "-c", RANK]));
    let mut printed = [0; "the thread has ended\n".len()];
    launcher.stdout().read_exact(&mut printed).unwrap();
    wait_for_running(&launcher, "tail", 2);
    wait_for_running(&launcher, "sleep", 4);
    assert_eq!(launcher.guardians().len(), 1);
    launcher.signal(Signal::SIGKILL);
    wait_for_running(&launcher, "sleep", 0);
    wait_for_end_of_guardians(&launcher);
}

#[test]
fn a_carrier_that_has_not_connected_ends_with_its_killed_front_end() {
    let site = Site::new();
    let carrier = site.install_script("#!/bin/sh\ntrap '' TERM HUP\nsleep 1000 & wait; wait\n", "carrier");
    let run = site.run(&["--hosts", "a:1", "--rsh", carrier.to_str().unwrap()], ["true"]);
    wait_for_running(&run, "sleep", 1);
    run.signal(Signal::SIGKILL);
    wait_for("the end of all", || run.living().is_empty().then_some(()));
    wait_for_end_of_guardians(&run);
}
