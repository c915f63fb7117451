//! Processes on pseudo-terminals.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;

use iof_capture::{
    Command, Event, NewProcess, NewSource, ProcessId, ProcessSpec, Pty, PtyMaster, SourceId, Stdin,
    WindowSize, spawn,
};
use iof_proto::Channel;
use iof_shm_ring::{Policy, Reader};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{blocking_stream, rig};
use iof_testing::capture::{
    CaptureRig, TestTool, add, next, stream, tool, wait_end, wait_for_ends, wait_until, watch,
};
use iof_testing::noise::seeded_pattern;

const ID: SourceId = SourceId(1);
const PROCESS: ProcessId = ProcessId(1);

/// A process on a captured terminal, and a reader of its stream.
struct TerminalSession {
    rig: CaptureRig,
    tool: TestTool,
    reader: Reader,
    master: PtyMaster,
    pid: Pid,
}

fn start(script: &str, stdin: Stdin, echo: bool) -> TerminalSession {
    start_with(script, stdin, echo, 64 * 1024)
}

fn start_with(script: &str, stdin: Stdin, echo: bool, cache: u64) -> TerminalSession {
    let pty = Pty { size: WindowSize { rows: 30, columns: 100 }, echo, data: false };
    let spec = ProcessSpec { stdin, pty: Some(pty), ..ProcessSpec::new("/bin/sh", ["-c", script]) };
    let spawned = spawn(spec).unwrap();
    let pid = Pid::from_raw(spawned.child.pid() as i32);
    let rig = rig();
    let (tool, stream, reader) = blocking_stream(&rig, cache);
    let sources =
        vec![NewSource { id: ID, pipe: spawned.outputs.into_iter().next().unwrap(), stream, first: None }];
    let process = Some((PROCESS, spawned.child));
    rig.capture.send([Command::Add(NewProcess { process, sources, first_writes: None })]).unwrap();
    TerminalSession { rig, tool, reader, master: spawned.pty.unwrap(), pid }
}

impl TerminalSession {
    fn wait_for_bytes(&self, bytes: usize) {
        wait_until(&self.rig.capture, ID, |stats| stats.produced >= bytes as u64);
    }

    /// Returns everything that the process wrote, after the end of the stream.
    fn output(&mut self) -> String {
        let (bytes, gaps) = self.tool.read_to_end(&self.rig.capture, ID, &mut self.reader);
        assert!(gaps.is_empty());
        String::from_utf8(bytes).unwrap()
    }
}

/// Runs a script without stdin and returns its output.
fn script_output(script: &str) -> String {
    let mut session = start(script, Stdin::Null, true);
    let output = session.output();
    let (ends, exits) = wait_for_ends(&session.rig.events, 1, 1);
    assert!(ends[&ID].error.is_none() && !ends[&ID].closed, "{ends:?}");
    assert!(exits[&PROCESS].success(), "{exits:?}");
    output
}

#[test]
fn stdin_stdout_and_stderr_are_the_terminal_and_output_is_unchanged() {
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo err >&2; echo tty >/dev/tty; printf 'a\\tb\\n\\n'";
    assert_eq!(script_output(script), "all\nerr\ntty\na\tb\n\n");
}

#[test]
fn on_a_terminal_stddiag_has_a_pipe_and_the_stderr_pipe_is_empty() {
    let pty = Some(Pty { size: WindowSize::default(), echo: false, data: false });
    let script = "echo diag >/dev/fd/$IOF_STDDIAG_FD; echo err >&2";
    let spawned = spawn(ProcessSpec { pty, ..ProcessSpec::new("/bin/sh", ["-c", script]) }).unwrap();
    let rig = rig();
    let mut produced = [0; Channel::OUTPUTS.len()];
    for (id, pipe) in (0..).zip(spawned.outputs) {
        rig.capture.send([add(SourceId(id), pipe, stream(4096, Policy::DropNewest))]).unwrap();
    }
    rig.capture.send([watch(PROCESS, spawned.child)]).unwrap();
    let (ends, _) = wait_for_ends(&rig.events, produced.len(), 1);
    for (id, end) in &ends {
        assert!(end.error.is_none(), "{end:?}");
        produced[id.0 as usize] = end.produced;
    }
    assert_eq!(produced[..3], [4, 0, 5]);
}

#[test]
fn the_process_leads_a_session_with_the_terminal_as_controlling_terminal() {
    // Pid, group, session, and the foreground group of the controlling terminal, see
    // proc_pid_stat(5).
    let ids = script_output("cut -d' ' -f1,5,6,8 /proc/$$/stat");
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert_eq!(ids, [ids[0]; 4]);
}

#[test]
fn the_window_has_the_requested_size_and_a_change_is_signalled() {
    let script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut session = start(script, Stdin::Null, false);
    session.wait_for_bytes("30 100\nready\n".len());
    session.master.resize(WindowSize { rows: 50, columns: 132 }).unwrap();
    assert_eq!(WindowSize::of(&session.master).unwrap(), WindowSize { rows: 50, columns: 132 });
    assert_eq!(session.output(), "30 100\nready\n50 132\n");
}

#[test]
fn a_process_without_stdin_reads_end_of_file() {
    assert_eq!(script_output("cat; echo done"), "done\n");
}

#[test]
fn typed_keys_are_read_and_echoed_only_on_request() {
    for (echo, expected) in [(false, "<word>\n"), (true, "word\n<word>\n")] {
        let mut session = start("echo ready; read x; echo \"<$x>\"", Stdin::Inherit, echo);
        session.wait_for_bytes("ready\n".len());
        assert_eq!(session.master.type_keys(b"word\r").unwrap(), 5);
        assert_eq!(session.output(), format!("ready\n{expected}"));
    }
}

#[test]
fn ctrl_c_interrupts_the_foreground_group_and_the_end_key_ends_input() {
    // The trap runs when a sleep ends. The sleep receives the signal, too.
    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done";
    let mut session = start(script, Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.master.type_keys(b"\x03").unwrap();
    assert_eq!(session.output(), "ready\ninterrupted\n");
    assert_eq!(wait_for_ends(&session.rig.events, 1, 1).1[&PROCESS].code(), Some(9));

    let mut session = start("echo ready; cat; echo done", Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.master.type_keys(&[session.master.end_key().unwrap()]).unwrap();
    assert_eq!(session.output(), "ready\ndone\n");
}

#[test]
fn a_process_whose_terminal_is_closed_receives_sighup() {
    // The tests themselves may have been started with SIGHUP ignored, as by nohup(1).
    let script = "echo ready; exec env --default-signal=HUP sleep 1000";
    let session = start(script, Stdin::Inherit, false);
    session.wait_for_bytes(6);
    session.rig.capture.send([Command::Close(ID)]).unwrap();
    assert!(wait_end(&session.rig.events, ID).closed);
    drop(session.master);
    let Event::Exited { status, .. } = next(&session.rig.events) else {
        panic!("the source completed twice")
    };
    assert_eq!(status.unwrap().signal(), Some(Signal::SIGHUP as i32));
}

#[test]
fn the_exit_of_the_leader_sends_sighup_to_its_children_unless_they_ignore_it() {
    // The background child dies of SIGHUP, and then the terminal ends. The child must not inherit
    // an ignored SIGHUP from the tests, so the leader waits until env(1) has reset it.
    let started = tempfile::NamedTempFile::new().unwrap();
    let started = started.path().display();
    let child = format!("env --default-signal=HUP sh -c 'rm {started}; exec sleep 1000'");
    let wait = format!("while [ -e {started} ]; do sleep 0.01; done");
    assert_eq!(script_output(&format!("{child} & {wait}; echo out")), "out\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    let script =
        format!("trap '' HUP; while [ -e {} ]; do sleep 0.1; done & echo out", file.path().display());
    let mut session = start(&script, Stdin::Null, false);
    let Event::Exited { status, .. } = next(&session.rig.events) else {
        panic!("the source completed too early")
    };
    assert!(status.unwrap().success());
    session.rig.capture.send([Command::Finish(ID)]).unwrap();
    assert_eq!(session.output(), "out\n");
    assert!(wait_end(&session.rig.events, ID).closed);
}

#[test]
fn a_terminal_that_no_process_has_open_for_a_while_can_be_opened_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let closed = "exec </dev/null >/dev/null 2>&1";
    let wait = format!("while [ -e {} ]; do sleep 0.01; done", file.path().display());
    let mut session = start(&format!("echo one; {closed}; {wait}; echo two >/dev/tty"), Stdin::Null, false);
    // A terminal whose slave side is not open counts as hung up.
    let hung_up = || {
        let mut polled = [PollFd::new(session.master.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO).unwrap();
        polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    };
    while !hung_up() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    session.wait_for_bytes(4);
    drop(file);
    assert_eq!(session.output(), "one\ntwo\n");
    assert!(wait_for_ends(&session.rig.events, 1, 1).1[&PROCESS].success());
}

#[test]
fn finishing_a_terminal_that_no_process_has_open_ends_the_source() {
    let closed = "exec </dev/null >/dev/null 2>&1";
    let mut session = start(&format!("echo one; {closed}; exec sleep 1000"), Stdin::Null, false);
    session.wait_for_bytes(4);
    session.rig.capture.send([Command::Finish(ID)]).unwrap();
    assert_eq!(session.output(), "one\n");
    assert!(wait_end(&session.rig.events, ID).error.is_none());
    session.rig.capture.send([Command::Close(ID)]).unwrap();
    nix::sys::signal::kill(session.pid, Signal::SIGKILL).unwrap();
}

#[test]
fn finishing_a_terminal_loses_no_byte_of_its_queues() {
    let report = tempfile::NamedTempFile::new().unwrap();
    let report = report.path().display().to_string();
    // Writes until the terminal is full, because nothing reads the stream, and exits.
    let script = format!("dd if=/dev/zero of=/dev/tty bs=256 oflag=nonblock 2>{report}");
    let mut session = start_with(&script, Stdin::Null, false, 4096);
    let Event::Exited { .. } = next(&session.rig.events) else { panic!("the source completed too early") };
    session.rig.capture.send([Command::Finish(ID)]).unwrap();
    let output = session.output();
    let report = std::fs::read_to_string(report).unwrap();
    let written = report.lines().find_map(|line| line.split_once(" bytes").map(|(count, _)| count));
    assert_eq!(written.map(str::parse), Some(Ok(output.len())), "{report}");
    assert!(output.len() > 8192, "too little for the ring and both queues: {}", output.len());
}

#[test]
fn a_megabyte_through_a_terminal_arrives_whole() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Printable text: a terminal interprets none of these bytes.
    let text: Vec<u8> = seeded_pattern(1 << 20, 9).into_iter().map(|byte| b'!' + byte % 90).collect();
    std::fs::write(file.path(), &text).unwrap();
    let mut session = start(&format!("cat {}", file.path().display()), Stdin::Null, false);
    assert!(session.output().as_bytes() == text);
    assert!(wait_for_ends(&session.rig.events, 1, 1).1[&PROCESS].success());
}

#[test]
fn a_terminal_whose_stream_is_full_is_drained_and_its_bytes_are_counted() {
    let pty = Some(Pty { size: WindowSize::default(), echo: false, data: false });
    let script = "head -c 300000 /dev/zero | tr '\\0' x";
    let spawned = spawn(ProcessSpec { pty, ..ProcessSpec::new("/bin/sh", ["-c", script]) }).unwrap();
    let rig = rig();
    let mut tool = tool();
    let mut stream = stream(4096, Policy::DropNewest);
    // This reader never reads.
    let _reader = tool.attach_first(&mut stream, false);
    rig.capture.send([add(ID, spawned.outputs.into_iter().next().unwrap(), stream)]).unwrap();
    let end = wait_end(&rig.events, ID);
    assert!(end.error.is_none(), "{end:?}");
    assert_eq!((end.produced, end.dropped > 290_000), (300_000, true));
}
