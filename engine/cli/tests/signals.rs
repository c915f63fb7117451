//! Process groups, signals to them, and job control at a terminal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iof_testing::command::lease::Lease;
use iof_testing::command::site::Site;
use iof_testing::command::terminal::{CTRL_C, CTRL_Z, Terminal};
use iof_testing::process::{Process, Stat};
use iof_testing::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time for which a rank's death of a request to end is not a failure, as documented.
const SAME_REQUEST: Duration = Duration::from_millis(250);

/// Returns the pids of ranks `0..ranks`.
fn pids(site: &Site, ranks: usize) -> Vec<u32> {
    site.wait_for_ranks(ranks);
    site.procs().unwrap().iter().map(|proc| proc["pid"].as_u64().unwrap().try_into().unwrap()).collect()
}

fn wait_for_state(what: &str, pid: u32, state: char) {
    wait_for(&format!("{what} to be {state}"), || (Stat::of(pid)?.state == state).then_some(()));
}

/// Waits until exactly `count` processes of the run live. A process that executes a program counts
/// as ended for a moment.
fn wait_for_living(run: &Process, count: usize) {
    wait_for(&format!("{count} living processes"), || (run.living().len() == count).then_some(()));
}

fn wait_for_end_of_all(run: &Process) {
    wait_for("the end of all processes", || run.living().is_empty().then_some(()));
}

/// A rank and a child that holds its output. Both run until a signal ends them.
const WITH_CHILD: &str = "sleep 1000 & echo ready; wait";
/// A rank and a child that survive requests to end. The child is ready last.
const STUBBORN: &str = "trap 'echo got it' INT TERM HUP QUIT; \
                        (trap '' INT TERM HUP QUIT; echo ready; exec sleep 1000) & while :; do sleep 0.1; done";

/// Sends `signal` to the process alone.
fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}

/// Returns the pid of the `iof` that a shell has started.
fn command_of(shell: &Process) -> u32 {
    wait_for("the command", || shell.running("iof").first().copied())
}

#[test]
fn each_rank_leads_its_own_process_group_in_the_session_of_the_command() {
    let site = Site::new();
    let run = site.run(&["-n", "3"], ["sleep", "1000"]);
    let session = Stat::of(run.pid()).unwrap().session;
    for pid in pids(&site, 3) {
        let stat = Stat::of(pid).unwrap();
        assert_eq!((stat.group, stat.session, stat.parent), (pid, session, run.pid()));
    }
}

#[test]
fn one_signal_ends_the_ranks_and_the_children_that_hold_their_output() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1] {
        let site = Site::new();
        let run = site.run_sh(&["-n", "2"], WITH_CHILD);
        (0..2).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", 6)));
        wait_for_living(&run, 5);
        run.signal(signal);
        assert_eq!(run.wait(), 128 + signal as i32);
        wait_for_end_of_all(&run);
    }
}

#[test]
fn one_signal_ends_the_children_of_ranks_that_have_exited() {
    let site = Site::new();
    let run = site.run_sh(&["-n", "2"], "sleep 1000 & exit 0");
    (0..2).for_each(|rank| drop(site.wait_for_state(rank, "terminated")));
    wait_for_living(&run, 3);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    wait_for_end_of_all(&run);
}

#[test]
fn a_second_request_to_end_kills_ranks_and_children_that_ignored_the_first() {
    for (first, second) in [
        (Signal::SIGTERM, Signal::SIGINT),
        (Signal::SIGINT, Signal::SIGTERM),
        (Signal::SIGHUP, Signal::SIGQUIT),
        (Signal::SIGQUIT, Signal::SIGHUP),
    ] {
        let site = Site::new();
        let run = site.run_sh(&["-n", "2"], STUBBORN);
        let ready = "ready\n".len() as u64;
        (0..2).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", ready)));
        run.signal(first);
        (0..2).for_each(|rank| drop(site.wait_for_bytes(rank, "stdout", ready + 1)));
        assert_eq!(run.exit_code(), None);
        run.signal(second);
        assert_eq!(run.wait(), 137);
        wait_for_end_of_all(&run);
    }
}

#[test]
fn the_same_signal_again_kills_the_ranks_only_if_it_comes_later() {
    let site = Site::new();
    let run = site.run_sh(&[], STUBBORN);
    site.wait_for_bytes(0, "stdout", 6);
    run.signal(Signal::SIGTERM);
    site.wait_for_bytes(0, "stdout", 7);
    let passed_on = Instant::now();
    // The documented time is part of the promise.
    wait_for("a new request to end", || (passed_on.elapsed() > Duration::from_millis(500)).then_some(()));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 137);
    wait_for_end_of_all(&run);
}

#[test]
fn the_two_equal_signals_of_timeout_count_as_one() {
    let site = Site::new();
    let run = site.iof("run");
    let cleans_up = "trap 'sleep 0.3; echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let mut timeout = Command::new("timeout");
    timeout.args(["--signal=TERM", "1"]).arg(run.get_program()).args(run.get_args());
    let envs = run.get_envs().filter_map(|(name, value)| Some((name, value?)));
    timeout.envs(envs).args(["-n", "2", "sh", "-c", cleans_up]);
    let done = Process::start(&mut timeout).finish();
    let count = |word: &str| done.text().matches(word).count();
    // A rank can be signalled between its trap and its message.
    assert!(done.code == 124 && count("cleaned") >= count("ready"), "{done:?}");
}

#[test]
fn after_a_second_signal_the_command_soon_ends_even_if_the_output_is_held() {
    let site = Site::new();
    let script = format!("setsid sh -c 'echo ready; exec sleep 1000' & {STUBBORN}");
    let run = site.run_sh(&[], &script);
    site.wait_for_bytes(0, "stdout", 12);
    run.signal(Signal::SIGTERM);
    site.wait_for_bytes(0, "stdout", 13);
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(), 130);
    // Killed processes take a moment to end. The one in another session survives.
    wait_for_living(&run, 1);
}

#[test]
fn ctrl_c_at_the_terminal_ends_all_ranks_and_their_children() {
    let site = Site::new();
    let (terminal, run) =
        site.run_at_terminal(["-n", "3", "--", "sh", "-c", "sleep 1000 && : ; echo survived"]);
    let pids = pids(&site, 3);
    // Rank 0 has the terminal as stdin, so it is in the command's group. Each other rank has its
    // own.
    assert_eq!(
        pids.iter().map(|pid| Stat::of(*pid).unwrap().group).collect::<Vec<_>>(),
        [run.pid(), pids[1], pids[2]]
    );
    wait_for("the children", || (run.running("sleep").len() == 3).then_some(()));
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 130);
    wait_for_end_of_all(&run);
    assert!(!terminal.shown().contains("survived"), "{}", terminal.shown());
}

#[test]
fn a_rank_that_ctrl_c_ends_before_the_command_reads_it_is_told() {
    for _ in 0..5 {
        let site = Site::new();
        let (terminal, run) = site.run_at_terminal(["-n", "1", "--", "sleep", "1000"]);
        let pids = pids(&site, 1);
        run.stop();
        terminal.type_keys(CTRL_C);
        wait_for_state("the rank", pids[0], 'Z');
        run.signal(Signal::SIGCONT);
        assert_eq!(run.wait(), 130);
        terminal.wait_for("SIGINT", 1);
    }
}

#[test]
fn ranks_that_a_signal_to_all_processes_ends_before_the_command_reads_it_are_asked_to_end() {
    // At a terminal, rank 0 is in the process group of the command. Otherwise the signal goes to
    // each process, as that of a container runtime does.
    for (at_terminal, signal) in [(true, Signal::SIGTERM), (false, Signal::SIGTERM), (false, Signal::SIGHUP)]
    {
        let attempt = || {
            let site = Site::new();
            let args = ["-n", "3", "--nspace", "demo", "--kill-wait", "0", "--", "sleep", "1000"];
            let (terminal, mut run) = if at_terminal {
                let (terminal, run) = site.run_at_terminal(args);
                (Some(terminal), run)
            } else {
                (None, Process::start(site.iof("run").args(args)))
            };
            let pids = pids(&site, 3);
            run.stop();
            let sent = Instant::now();
            pids.iter().filter(|pid| !at_terminal || **pid == pids[0]).for_each(|pid| send(*pid, signal));
            wait_for_state("rank 0", pids[0], 'Z');
            run.signal(signal);
            run.signal(Signal::SIGCONT);
            assert_eq!(run.wait(), 128 + signal as i32);
            let told = match terminal {
                Some(terminal) => terminal.all_shown().replace("\r\n", "\n"),
                None => String::from_utf8(run.collect().1.get()).unwrap(),
            };
            let asked = format!("iof: job demo: terminated 3 ranks on request: {signal}: 3 ranks (0-2)\n");
            // The command waits for a signal of its own before it reports a failure.
            assert!(told == asked || sent.elapsed() >= SAME_REQUEST, "{told}");
            (told == asked).then_some(())
        };
        // On a machine so busy that the command reads the signal too late, it reports a failure.
        wait_for("a request that is recognized", attempt);
    }
}

#[test]
fn a_rank_that_a_signal_ends_which_the_command_does_not_receive_has_failed() {
    let site = Site::new();
    let run = Process::start(site.iof("run").args(["-n", "3", "--nspace", "demo", "--", "sleep", "1000"]));
    send(pids(&site, 3)[1], Signal::SIGTERM);
    let done = run.finish();
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!((done.code, lines.len()), (143, 2), "{done:?}");
    assert!(lines[0].starts_with("iof: job demo: rank 1 (sleep, pid "), "{done:?}");
    assert!(lines[0].ends_with(") was killed by SIGTERM"), "{done:?}");
    let others =
        "iof: job demo: terminated 2 other ranks (0,2) because rank 1 failed (see --kill-on-bad-exit)";
    assert_eq!(lines[1], others);
}

#[test]
fn all_ranks_end_when_the_terminal_hangs_up() {
    let site = Site::new();
    // The command is the leader of the session, as in `ssh -t host iof run ...`.
    let mut command = site.iof("run");
    let (master, run) = Terminal::start_unread(command.args(["-n", "3", "--", "sleep", "1000"]), 24, 80);
    pids(&site, 3);
    drop(master);
    assert_eq!(run.wait(), 129);
    wait_for_end_of_all(&run);
}

#[test]
fn a_second_ctrl_c_kills_the_ranks() {
    let site = Site::new();
    let (terminal, run) = site.run_at_terminal(["-n", "2", "--", "sh", "-c", STUBBORN]);
    terminal.wait_for("ready", 2);
    terminal.type_keys(CTRL_C);
    terminal.wait_for("got it", 2);
    terminal.type_keys(CTRL_C);
    // The child of rank 0 is in the command's own group.
    assert_eq!(run.wait(), 137);
    wait_for_end_of_all(&run);
}

#[test]
fn at_a_terminal_the_children_of_rank_0_end_with_the_job_and_its_reader_runs_on() {
    let script = "sleep 1000 & echo ready; wait";
    for end in ["iof kill", "signal", "failure", "timeout"] {
        let site = Site::new();
        let (terminal, shell) = site.shell_at_terminal();
        // SIGKILL would come after the deadline of this test.
        let timeout = if end == "timeout" { "--timeout 3" } else { "" };
        let options = format!("--nspace demo --kill-wait 1h {timeout} -n 2");
        // The reader is in the process group of the command, as is rank 0.
        terminal.type_keys(&format!("run {options} sh -c '{script}' | (cat; echo ran on)\n"));
        if end != "timeout" {
            terminal.wait_for("ready", 2);
            wait_for("the children", || (shell.running("sleep").len() == 2).then_some(()));
        }
        match end {
            "iof kill" => assert_eq!(Process::start(site.iof("kill").arg("demo")).finish().code, 0),
            "signal" => send(command_of(&shell), Signal::SIGTERM),
            "failure" => send(pids(&site, 2)[1], Signal::SIGKILL),
            _ => {}
        }
        terminal.wait_for("ran on", 1);
        wait_for(&format!("the end after {end}"), || shell.running("sleep").is_empty().then_some(()));
    }
}

#[test]
fn ctrl_z_stops_the_command_and_all_ranks_and_fg_continues_them() {
    let site = Site::new();
    let (terminal, _shell) = site.shell_at_terminal();
    // A shell whose child is stopped between vfork(2) and execve(2) would not count as stopped.
    terminal.type_keys("run -n 3 sleep 1000\n");
    let pids = pids(&site, 3);
    let run = Stat::of(pids[1]).unwrap().parent;
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped", 1);
    for pid in pids.iter().chain([&run]) {
        wait_for_state("each process", *pid, 'T');
    }
    terminal.type_keys("fg\n");
    for pid in pids.iter().chain([&run]) {
        wait_for("each process to continue", || (Stat::of(*pid)?.state != 'T').then_some(()));
    }
    // Once more. This time the test continues the command by SIGCONT.
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped", 2);
    send(run, Signal::SIGCONT);
    for pid in &pids {
        wait_for("the ranks to continue", || (Stat::of(*pid)?.state != 'T').then_some(()));
    }
    terminal.type_keys("fg\n");
    wait_for("the foreground", || (Stat::of(run)?.foreground as u32 == run).then_some(()));
    terminal.type_keys(CTRL_C);
    wait_for("the end", || pids.iter().all(|pid| Stat::of(*pid).is_none()).then_some(()));
}

#[test]
fn in_an_orphaned_process_group_sigtstp_stops_the_ranks_for_a_moment_only() {
    let site = Site::new();
    // The command is the leader of its session, so its process group is orphaned.
    let script = "trap 'echo continued; exit 7' CONT; echo ready; while :; do sleep 0.1; done";
    let (terminal, run) = site.run_at_terminal(["-n", "2", "--", "sh", "-c", script]);
    terminal.wait_for("ready", 2);
    run.signal(Signal::SIGTSTP);
    assert_eq!(run.wait(), 7);
    terminal.wait_for("continued", 2);
}

#[test]
fn rank_0_reading_the_terminal_in_the_background_stops_the_command() {
    let site = Site::new();
    let (terminal, shell) = site.shell_at_terminal();
    terminal.type_keys("run -n 2 sh -c '[ $IOF_RANK = 0 ] && read x && echo \"got $x\"' &\n");
    let run = command_of(&shell);
    wait_for_state("the command", run, 'T');
    terminal.type_keys("fg\n");
    wait_for("the command to continue", || (Stat::of(run)?.state != 'T').then_some(()));
    terminal.type_keys("words\n");
    terminal.wait_for("got words", 1);
    assert!(!terminal.shown().contains("is stopped"), "{}", terminal.shown());
}

#[test]
fn a_rank_that_reads_the_terminal_is_stopped_and_reported() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 0 ] && exec sleep 1000; read x </dev/tty; echo \"got $x\"";
    let (terminal, run) = site.run_at_terminal(["-n", "3", "--", "sh", "-c", script]);
    for rank in [1, 2] {
        terminal.wait_for(&format!("iof: rank {rank} is stopped: it needs the terminal (SIGTTIN)"), 1);
    }
    wait_for("rank 0", || (run.running("sleep").len() == 1).then_some(()));
    terminal.type_keys(CTRL_C);
    assert_eq!(run.wait(), 130);
    wait_for_end_of_all(&run);
    assert!(!terminal.shown().contains("got"), "{}", terminal.shown());
}

#[test]
fn a_signal_also_ends_stopped_ranks() {
    let site = Site::new();
    let run = site.run_sh(&["-n", "2"], "kill -STOP $$; sleep 1000");
    for pid in pids(&site, 2) {
        wait_for_state("the rank", pid, 'T');
    }
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let site = tempfile::tempdir().unwrap();
    // The rank ends at once, but a child holds its output, so that a signal would end the command.
    let rank = "exec 3<&0; (read line <&3; echo $line) & echo ready";
    let script = "trap '' HUP; exec \"$0\" run --rendezvous-dir \"$1\" -- sh -c \"$2\"";
    let mut run = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_iof")])
        .arg(site.path())
        .arg(rank)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    kill(Pid::from_raw(run.id() as i32), Signal::SIGHUP).unwrap();
    run.stdin.take().unwrap().write_all(b"still here\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "still here");
    assert!(run.wait().unwrap().success());
}

#[test]
fn ctrl_c_while_the_ranks_are_started_reaches_every_rank() {
    for delay in 0..40 {
        let site = Site::new();
        let (terminal, run) = site.run_at_terminal(["-n", "8", "sleep", "1000"]);
        // At any time of the start.
        thread::sleep(Duration::from_micros(delay * 500));
        terminal.type_keys(CTRL_C);
        assert_eq!(run.wait(), 128 + 2, "after {delay} half milliseconds");
        wait_for_end_of_all(&run);
    }
}

/// Sends two signals that ask to end to a command whose start waits for a file. Returns its exit
/// code.
fn end_while_it_waits(run: &Process, lease: &Lease) -> i32 {
    wait_for("the start to wait", || lease.is_waited_for().then_some(()));
    run.signal(Signal::SIGINT);
    run.signal(Signal::SIGTERM);
    run.wait()
}

#[test]
fn two_signals_end_a_command_that_stalls_while_it_reads_the_program() {
    let site = Site::new();
    let program = site.install(Path::new("/bin/true"), "program");
    let Some(lease) = Lease::on(&program) else { return };
    let run = Process::start(site.iof("run").arg(&program));
    assert_eq!(end_while_it_waits(&run, &lease), 128 + Signal::SIGTERM as i32);
}

#[test]
fn two_signals_during_a_stalled_start_kill_the_ranks_and_no_inherited_child() {
    let site = Site::new();
    let rank = site.install(Path::new("/bin/sleep"), "rank");
    let inherited = site.install(Path::new("/bin/sleep"), "inherited");
    let Some((lease, stalls)) = Lease::on_interpreter(&site, "exit") else { return };
    let mut iof = site.iof("run");
    // Otherwise the interpreter is read before the start.
    iof.args(["--mpi", "none", "--"]).arg(rank).args(["1000", ":"]).arg(stalls);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" 1000 & exec \"$@\""]).arg(inherited);
    shell.arg(iof.get_program()).args(iof.get_args());
    shell.envs(iof.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let run = Process::start(&mut shell);
    wait_for("the first rank", || (!run.running("rank").is_empty()).then_some(()));
    assert_eq!(end_while_it_waits(&run, &lease), 128 + Signal::SIGTERM as i32);
    wait_for("the end of the rank", || run.running("rank").is_empty().then_some(()));
    assert_eq!(run.running("inherited").len(), 1);
}
