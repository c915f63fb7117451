//! Processes at pseudo-terminals.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;

use iof_capture::{Event, ProcessId, ProcessSpec, Pty, PtyMaster, SourceId, Stdin, WindowSize, spawn};
use iof_shm_ring::{Policy, Reader};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{held_back_by_its_reader, rig};
use crate::common::{Rig, Tool, next, pattern, stream, tool, wait_end, wait_for, wait_until};

const ID: SourceId = SourceId(1);
const PROCESS: ProcessId = ProcessId(1);

/// A process at a terminal that is captured, with somebody who reads.
struct Session {
    rig: Rig,
    tool: Tool,
    reader: Reader,
    master: PtyMaster,
    pid: Pid,
}

fn start(script: &str, stdin: Stdin, echo: bool) -> Session {
    start_with(script, stdin, echo, 64 * 1024)
}

fn start_with(script: &str, stdin: Stdin, echo: bool, cache: u64) -> Session {
    let pty = Pty { size: WindowSize { rows: 30, columns: 100 }, echo };
    let spec = ProcessSpec { stdin, pty: Some(pty), ..ProcessSpec::new("/bin/sh", ["-c", script]) };
    let spawned = spawn(spec).unwrap();
    let pid = Pid::from_raw(spawned.child.pid() as i32);
    let rig = rig();
    let (tool, stream, reader) = held_back_by_its_reader(&rig, cache);
    rig.capture.add_session(ID, spawned.stdout, stream, PROCESS, spawned.child).unwrap();
    Session { rig, tool, reader, master: spawned.pty.unwrap(), pid }
}

impl Session {
    fn wait_for_bytes(&self, bytes: usize) {
        wait_until(&self.rig.capture, ID, |stats| stats.produced >= bytes as u64);
    }

    /// Everything that it wrote, when it and its stream have ended.
    fn output(&mut self) -> String {
        let (bytes, gaps) = self.tool.read_to_end(&self.rig.capture, ID, &mut self.reader);
        assert!(gaps.is_empty());
        String::from_utf8(bytes).unwrap()
    }
}

/// What a script that reads nothing shows.
fn shown(script: &str) -> String {
    let mut session = start(script, Stdin::Null, true);
    let output = session.output();
    let (ends, exits) = wait_for(&session.rig.events, 1, 1);
    assert!(ends[&ID].error.is_none() && !ends[&ID].closed, "{ends:?}");
    assert!(exits[&PROCESS].success(), "{exits:?}");
    output
}

#[test]
fn stdin_stdout_and_stderr_are_the_terminal_and_what_is_written_comes_out_unchanged() {
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo err >&2; echo tty >/dev/tty; printf 'a\\tb\\n\\n'";
    assert_eq!(shown(script), "all\nerr\ntty\na\tb\n\n");
}

#[test]
fn the_streams_that_the_terminal_does_not_carry_are_a_pipe_for_stddiag_and_nothing_for_stderr() {
    let pty = Some(Pty { size: WindowSize::default(), echo: false });
    let script = "echo diag >/dev/fd/$IOF_STDDIAG_FD; echo err >&2";
    let spawned = spawn(ProcessSpec { pty, ..ProcessSpec::new("/bin/sh", ["-c", script]) }).unwrap();
    let rig = rig();
    let mut produced = [0; 3];
    for (at, pipe) in (0..).zip([spawned.stdout, spawned.stderr, spawned.stddiag]) {
        rig.capture.add(SourceId(at), pipe, stream(4096, Policy::DropNewest)).unwrap();
    }
    rig.capture.watch(PROCESS, spawned.child).unwrap();
    let (ends, _) = wait_for(&rig.events, 3, 1);
    for (id, end) in &ends {
        assert!(end.error.is_none(), "{end:?}");
        produced[id.0 as usize] = end.produced;
    }
    assert_eq!(produced, [4, 0, 5]);
}

#[test]
fn the_process_leads_a_session_whose_terminal_it_is() {
    // Pid, group, session, and the foreground group of the controlling terminal, see proc_pid_stat(5).
    let ids = shown("cut -d' ' -f1,5,6,8 /proc/$$/stat");
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert_eq!(ids, [ids[0]; 4]);
}

#[test]
fn the_window_has_the_size_that_was_asked_for_and_a_change_is_told() {
    let script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut session = start(script, Stdin::Null, false);
    session.wait_for_bytes("30 100\nready\n".len());
    session.master.resize(WindowSize { rows: 50, columns: 132 }).unwrap();
    assert_eq!(WindowSize::of(&session.master).unwrap(), WindowSize { rows: 50, columns: 132 });
    assert_eq!(session.output(), "30 100\nready\n50 132\n");
}

#[test]
fn who_has_no_stdin_reads_its_end() {
    assert_eq!(shown("cat; echo done"), "done\n");
}

#[test]
fn what_is_typed_is_read_and_echoed_only_if_asked_for() {
    for (echo, shown) in [(false, "<word>\n"), (true, "word\n<word>\n")] {
        let mut session = start("echo ready; read x; echo \"<$x>\"", Stdin::Inherit, echo);
        session.wait_for_bytes("ready\n".len());
        assert_eq!(session.master.type_keys(b"word\r").unwrap(), 5);
        assert_eq!(session.output(), format!("ready\n{shown}"));
    }
}

#[test]
fn ctrl_c_interrupts_who_is_in_the_foreground_and_the_end_key_ends_input() {
    // The trap runs when a sleep ends, which gets the signal as well.
    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done";
    let mut session = start(script, Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.master.type_keys(b"\x03").unwrap();
    assert_eq!(session.output(), "ready\ninterrupted\n");
    assert_eq!(wait_for(&session.rig.events, 1, 1).1[&PROCESS].code(), Some(9));

    let mut session = start("echo ready; cat; echo done", Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.master.type_keys(&[session.master.end_key().unwrap()]).unwrap();
    assert_eq!(session.output(), "ready\ndone\n");
}

#[test]
fn a_process_whose_terminal_is_taken_away_gets_sighup() {
    // The tests themselves may have been started with SIGHUP ignored, as by nohup(1).
    let script = "echo ready; exec env --default-signal=HUP sleep 1000";
    let session = start(script, Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.rig.capture.close(ID).unwrap();
    assert!(wait_end(&session.rig.events, ID).closed);
    drop(session.master);
    let Event::Exited { status, .. } = next(&session.rig.events) else { panic!("completed twice") };
    assert_eq!(status.unwrap().signal(), Some(Signal::SIGHUP as i32));
}

#[test]
fn the_end_of_the_process_hangs_up_on_its_children_unless_they_care_not() {
    // The child dies of SIGHUP, so the terminal's end comes; once it does not ignore that any more,
    // which the tests themselves may do.
    let started = tempfile::NamedTempFile::new().unwrap();
    let started = started.path().display();
    let child = format!("env --default-signal=HUP sh -c 'rm {started}; exec sleep 1000'");
    let wait = format!("while [ -e {started} ]; do sleep 0.01; done");
    assert_eq!(shown(&format!("{child} & {wait}; echo out")), "out\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    let script =
        format!("trap '' HUP; while [ -e {} ]; do sleep 0.1; done & echo out", file.path().display());
    let mut session = start(&script, Stdin::Null, false);
    let Event::Exited { status, .. } = next(&session.rig.events) else { panic!("complete too early") };
    assert!(status.unwrap().success());
    session.rig.capture.finish(ID).unwrap();
    assert_eq!(session.output(), "out\n");
    assert!(wait_end(&session.rig.events, ID).closed);
}

#[test]
fn a_terminal_that_nobody_has_open_for_a_while_can_be_opened_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let closed = "exec </dev/null >/dev/null 2>&1";
    let wait = format!("while [ -e {} ]; do sleep 0.01; done", file.path().display());
    let mut session = start(&format!("echo one; {closed}; {wait}; echo two >/dev/tty"), Stdin::Null, false);
    // Without a slave, a terminal is hung up.
    let hung_up = || {
        let mut polled = [PollFd::new(session.master.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO).unwrap();
        polled[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLHUP))
    };
    while !hung_up() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    session.wait_for_bytes(4);
    drop(file);
    assert_eq!(session.output(), "one\ntwo\n");
    assert!(wait_for(&session.rig.events, 1, 1).1[&PROCESS].success());
}

#[test]
fn finishing_a_terminal_that_nobody_has_open_is_its_end() {
    let closed = "exec </dev/null >/dev/null 2>&1";
    let mut session = start(&format!("echo one; {closed}; exec sleep 1000"), Stdin::Null, false);
    session.wait_for_bytes(4);
    session.rig.capture.finish(ID).unwrap();
    assert_eq!(session.output(), "one\n");
    assert!(wait_end(&session.rig.events, ID).error.is_none());
    session.rig.capture.close(ID).unwrap();
    nix::sys::signal::kill(session.pid, Signal::SIGKILL).unwrap();
}

#[test]
fn finishing_a_terminal_loses_nothing_of_what_its_queues_hold() {
    let report = tempfile::NamedTempFile::new().unwrap();
    let report = report.path().display().to_string();
    // As much as the terminal takes while nobody reads, and then the end.
    let script = format!("dd if=/dev/zero of=/dev/tty bs=256 oflag=nonblock 2>{report}");
    let mut session = start_with(&script, Stdin::Null, false, 4096);
    let Event::Exited { .. } = next(&session.rig.events) else { panic!("complete too early") };
    session.rig.capture.finish(ID).unwrap();
    let output = session.output();
    let report = std::fs::read_to_string(report).unwrap();
    let written = report.lines().find_map(|line| line.split_once(" bytes").map(|(count, _)| count));
    assert_eq!(written.map(str::parse), Some(Ok(output.len())), "{report}");
    assert!(output.len() > 8192, "more than the ring and one queue hold: {}", output.len());
}

#[test]
fn a_megabyte_through_a_terminal_is_whole() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Text: no byte that a terminal does something about.
    let text: Vec<u8> = pattern(1 << 20, 9).into_iter().map(|byte| b'!' + byte % 90).collect();
    std::fs::write(file.path(), &text).unwrap();
    let mut session = start(&format!("cat {}", file.path().display()), Stdin::Null, false);
    assert!(session.output().as_bytes() == text);
    assert!(wait_for(&session.rig.events, 1, 1).1[&PROCESS].success());
}

#[test]
fn a_terminal_that_nobody_reads_is_drained_and_its_bytes_are_counted() {
    let pty = Some(Pty { size: WindowSize::default(), echo: false });
    let script = "head -c 300000 /dev/zero | tr '\\0' x";
    let spawned = spawn(ProcessSpec { pty, ..ProcessSpec::new("/bin/sh", ["-c", script]) }).unwrap();
    let rig = rig();
    let mut held = tool();
    let mut stream = stream(4096, Policy::DropNewest);
    // Never reads.
    let _reader = held.attach_first(&mut stream, false);
    rig.capture.add(ID, spawned.stdout, stream).unwrap();
    let end = wait_end(&rig.events, ID);
    assert!(end.error.is_none(), "{end:?}");
    assert_eq!((end.produced, end.dropped > 290_000), (300_000, true));
}
