//! Processes: their initial state, and how their exits are reported.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;

use super::rig;
use iof_capture::{Event, ProcessGroup, ProcessId, ProcessSpec, SourceId, SpawnError, Spawned, spawn};
use iof_shm_ring::Policy;
use iof_testing::capture::{add, next, stream, tool, wait_for_ends, watch};
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::fstat;

fn shell(script: &str) -> ProcessSpec {
    ProcessSpec::new("/bin/sh", ["-c", script])
}

/// Runs a process and returns its standard output.
fn output(spec: ProcessSpec) -> String {
    let rig = rig();
    let Spawned { child, outputs, .. } = spawn(spec).unwrap();
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    text(outputs.into_iter().next().unwrap())
}

fn text(pipe: OwnedFd) -> String {
    let mut text = String::new();
    std::fs::File::from(pipe).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn each_channel_has_a_pipe_of_its_own() {
    // Not `>&$IOF_STDDIAG_FD`: some shells accept descriptors of one digit only.
    let spec = shell("echo out; echo err >&2; echo diag >/dev/fd/$IOF_STDDIAG_FD");
    let Spawned { child, outputs, .. } = spawn(spec).unwrap();
    let rig = rig();
    let mut tool = tool();
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    let mut readers = Vec::new();
    for (id, pipe) in (1..).zip(outputs) {
        let mut stream = stream(4096, Policy::DropNewest);
        readers.push((SourceId(id), tool.attach_first(&mut stream, false)));
        rig.capture.send([add(SourceId(id), pipe, stream)]).unwrap();
    }
    wait_for_ends(&rig.events, readers.len(), 1);
    let texts = readers.iter_mut().take(3).map(|(id, reader)| tool.read_to_end(&rig.capture, *id, reader).0);
    assert_eq!(texts.collect::<Vec<_>>(), [b"out\n".to_vec(), b"err\n".to_vec(), b"diag\n".to_vec()]);
}

#[test]
fn exit_codes_and_signals_are_reported() {
    let rig = rig();
    for (id, script) in (0..).zip(["exit 0", "exit 3", "kill -KILL $$"]) {
        rig.capture.send([watch(ProcessId(id), spawn(shell(script)).unwrap().child)]).unwrap();
    }
    let (_, exits) = wait_for_ends(&rig.events, 0, 3);
    assert!(exits[&ProcessId(0)].success());
    assert_eq!(exits[&ProcessId(1)].code(), Some(3));
    assert_eq!(exits[&ProcessId(2)].signal(), Some(9));
}

#[test]
fn an_exit_status_that_was_already_taken_is_an_error() {
    let rig = rig();
    let child = spawn(shell("exit 3")).unwrap().child;
    let pid = nix::unistd::Pid::from_raw(child.pid().try_into().unwrap());
    nix::sys::wait::waitpid(pid, None).unwrap();
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    let Event::Exited { status: Err(error), .. } = next(&rig.events) else { panic!("no error") };
    assert_eq!(error.raw_os_error(), Some(libc::ECHILD));
}

#[test]
fn a_grandchild_that_holds_the_pipe_delays_completion_but_not_the_exit() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Opened for reading and writing, so that neither side waits for the other to open it.
    let mut spec = shell("exec 3<>\"$FIFO\"; (read x <&3; echo grandchild) & echo child; exit 5");
    spec.app.env.push(("FIFO".into(), fifo.clone().into()));
    let Spawned { child, outputs, .. } = spawn(spec).unwrap();
    let rig = rig();
    rig.capture
        .send([add(SourceId(1), outputs.into_iter().next().unwrap(), stream(4096, Policy::DropNewest))])
        .unwrap();
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    let Event::Exited { status, .. } = next(&rig.events) else { panic!("the source completed too early") };
    assert_eq!(status.unwrap().code(), Some(5));
    let mut release = OpenOptions::new().write(true).open(fifo).unwrap();
    release.write_all(b"go\n").unwrap();
    let (ends, _) = wait_for_ends(&rig.events, 1, 0);
    assert_eq!(ends[&SourceId(1)].produced, "child\ngrandchild\n".len() as u64);
}

#[test]
fn two_hundred_simultaneous_exits_are_all_reported() {
    let rig = rig();
    for id in 0..200 {
        let Spawned { child, outputs, .. } = spawn(shell(&format!("echo {id}; exit {}", id % 128))).unwrap();
        rig.capture.send([watch(ProcessId(id), child)]).unwrap();
        rig.capture
            .send([add(SourceId(id), outputs.into_iter().next().unwrap(), stream(4096, Policy::DropNewest))])
            .unwrap();
    }
    let (ends, exits) = wait_for_ends(&rig.events, 200, 200);
    for id in 0..200 {
        assert_eq!(ends[&SourceId(id)].produced, id.to_string().len() as u64 + 1);
        assert_eq!(exits[&ProcessId(id)].code(), Some((id % 128) as i32));
    }
}

/// The debugger of the next test, which runs this test in another process. It does nothing unless
/// `TRACE` is set.
#[test]
fn debugger() {
    let Some(pid) = std::env::var("TRACE").ok().and_then(|pid| pid.parse::<libc::pid_t>().ok()) else {
        return;
    };
    // SAFETY: the call takes plain numbers.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) } == 0;
    println!("{}", if traced { "tracing" } else { "refused" });
    // The next test kills this process, which detaches it from the traced process.
    if traced {
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn the_exit_of_a_traced_child_is_reported_when_its_debugger_detaches() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut release = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let mut spec = shell("read x <\"$FIFO\"; exit 5");
    spec.app.env.push(("FIFO".into(), fifo.into()));
    let child = spawn(spec).unwrap().child;
    let mut debugger = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "conformance::processes::debugger", "--nocapture"])
        .env("TRACE", child.pid().to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(debugger.stdout.take().unwrap()).lines().map(Result::unwrap);
    let answer = lines.into_iter().find(|line| line.contains("tracing") || line.contains("refused")).unwrap();

    let pidfd = child.as_fd().try_clone_to_owned().unwrap();
    let rig = rig();
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    release.write_all(b"go\n").unwrap();
    if answer.contains("tracing") {
        let mut polled = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::NONE).unwrap();
        rig.capture.with_streams(|_| ()).unwrap();
        assert!(rig.events.try_recv().is_err(), "an exit was reported before the debugger detached");
    }
    debugger.kill().unwrap();
    debugger.wait().unwrap();
    assert_eq!(wait_for_ends(&rig.events, 0, 1).1[&ProcessId(1)].code(), Some(5));
}

#[test]
fn stopping_leaves_running_processes_alone() {
    let rig = rig();
    let Spawned { child, outputs, .. } = spawn(shell("read x; kill -STOP $$; exit 0")).unwrap();
    let _keep = (child.as_fd().try_clone_to_owned().unwrap(), outputs);
    let pid = nix::unistd::Pid::from_raw(child.pid().try_into().unwrap());
    rig.capture.send([watch(ProcessId(1), child)]).unwrap();
    drop(rig.capture);
    assert!(rig.events.recv().is_err(), "an exit was reported");
    nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
    nix::sys::wait::waitpid(pid, None).unwrap();
}

/// Returns the inodes of this process's files that every child inherits.
fn inheritable() -> HashSet<u64> {
    let mut inodes = HashSet::new();
    for number in 0..1024 {
        // SAFETY: only two calls use the descriptor. They fail if it is not open.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        if let (Ok(0), Ok(stat)) = (fcntl(fd, FcntlArg::F_GETFD), fstat(fd)) {
            inodes.insert(stat.st_ino);
        }
    }
    inodes
}

#[test]
fn no_child_inherits_the_pipes_of_another() {
    let ambient = inheritable();
    // Several threads start children at the same time, while other children's pipes are open.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let ambient = ambient.clone();
            std::thread::spawn(move || {
                for _ in 0..25 {
                    let Spawned { child, outputs, .. } =
                        spawn(ProcessSpec::new("/bin/ls", ["-lL", "-i", "/proc/self/fd"])).unwrap();
                    let own: HashSet<u64> = outputs.iter().map(|pipe| fstat(pipe).unwrap().st_ino).collect();
                    let list = text(outputs.into_iter().next().unwrap());
                    let pipes = list.lines().filter(|line| line.contains(" p"));
                    let seen: HashSet<u64> =
                        pipes.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
                    assert!(own.is_subset(&seen), "{list}");
                    let foreign: Vec<_> =
                        seen.difference(&own).filter(|inode| !ambient.contains(inode)).collect();
                    assert!(foreign.is_empty(), "{foreign:?} of {list}");
                    let pid = nix::unistd::Pid::from_raw(child.pid().try_into().unwrap());
                    nix::sys::wait::waitpid(pid, None).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_child_starts_with_no_blocked_or_ignored_signals() {
    // A host that reads its signals from a signalfd blocks them like this.
    let before = SigSet::from_iter([Signal::SIGTERM, Signal::SIGCHLD])
        .thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let status = output(ProcessSpec::new("/bin/cat", ["/proc/self/status"]));
    before.unwrap().thread_set_mask().unwrap();
    let mask = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0);
    assert_eq!(
        mask("SigIgn:") & (1 << (Signal::SIGPIPE as u64 - 1)),
        0,
        "Rust ignores SIGPIPE; children must not inherit that"
    );
}

#[test]
fn a_child_joins_the_hosts_process_group_or_leads_its_own_in_the_same_session() {
    // Pid, process group and session, see proc_pid_stat(5).
    let ids = |group| {
        let line = output(ProcessSpec { group, ..shell("cut -d' ' -f1,5,6 /proc/$$/stat") });
        line.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<i32>>()
    };
    let session = nix::unistd::getsid(None).unwrap().as_raw();
    assert_eq!(ids(ProcessGroup::Inherit)[1..], [nix::unistd::getpgrp().as_raw(), session]);
    let own = ids(ProcessGroup::Own);
    assert_eq!(own[1..], [own[0], session]);
}

#[test]
fn a_signal_reaches_grandchildren_only_if_the_child_has_its_own_process_group() {
    for (group, reached) in [(ProcessGroup::Own, true), (ProcessGroup::Inherit, false)] {
        // The script prints the pid of its own child, which also keeps stdout open.
        let Spawned { child, outputs, .. } =
            spawn(ProcessSpec { group, ..shell("sleep 1000 & echo $!; wait") }).unwrap();
        let mut stdout = BufReader::new(std::fs::File::from(outputs.into_iter().next().unwrap()));
        let mut pid = String::new();
        stdout.read_line(&mut pid).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        assert_eq!(child.signaller().has_group(), reached);
        child.signaller().send(iof_capture::Signal::TERM).unwrap();
        if !reached {
            nix::sys::signal::kill(pid, Signal::SIGKILL).expect("the grandchild is alive");
        }
        assert_eq!(stdout.read_line(&mut String::new()).unwrap(), 0, "both processes have exited");
        let rig = rig();
        rig.capture.send([watch(ProcessId(1), child)]).unwrap();
        assert_eq!(wait_for_ends(&rig.events, 0, 1).1[&ProcessId(1)].signal(), Some(15));
    }
}

#[test]
fn a_child_has_the_given_environment_and_directory_and_empty_stdin() {
    let directory = tempfile::tempdir().unwrap();
    let mut spec = shell("echo $RANK; pwd -P; wc -c");
    (spec.app.env, spec.app.cwd) = (vec![("RANK".into(), "7".into())], Some(directory.path().into()));
    let path = directory.path().canonicalize().unwrap();
    assert_eq!(output(spec), format!("7\n{}\n0\n", path.display()));
}

#[test]
fn a_process_that_cannot_start_returns_an_error_with_its_reason() {
    let missing = spawn(ProcessSpec::new("/no/such/program", [""; 0]));
    assert!(matches!(missing, Err(SpawnError::NotFound { ref program }) if program.ends_with("program")));
    let plain = spawn(ProcessSpec::new("/etc/passwd", [""; 0]));
    assert!(matches!(plain, Err(SpawnError::NotExecutable { .. })));
    let mut spec = shell("");
    spec.app.cwd = Some("/no/such/directory".into());
    let nowhere = spawn(spec);
    assert!(matches!(nowhere, Err(SpawnError::Directory { ref cwd, .. }) if cwd.ends_with("directory")));
    let zero = spawn(ProcessSpec::new("/bin/echo", ["a\0b"])).unwrap_err();
    assert!(matches!(zero, SpawnError::Refused { .. }), "{zero}");
}
