//! Adopted ranks, which the embedder has started: their descriptors, their exits, and what is
//! refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use iof_engine::{AdoptError, AdoptSpec, AdoptedRank, BackendKind, Engine, Exit, Job, Process};
use iof_proto::{Channel, Channels, Rank};
use iof_testing::engine::{Output, engine, engine_on, nspace, shell, wait};
use iof_testing::pipes::pipe;
use iof_testing::wait_for;
use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpgid, mkfifo};

fn rank(number: u32, stdout: impl Into<OwnedFd>, process: Process) -> AdoptedRank {
    AdoptedRank::new(Rank(number), "test", process).with(Channel::Stdout, stdout)
}

const REPORTED: Process = Process::Reported { pid: 0 };

fn adopt(engine: &Engine, ranks: impl IntoIterator<Item = AdoptedRank>) -> Result<Job, AdoptError> {
    engine.adopt(AdoptSpec::new(nspace(), ranks.into_iter().collect()))
}

fn start(script: &str) -> (OwnedFd, Child) {
    let mut command = Command::new("sh");
    let mut child = command
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    (child.stdout.take().unwrap().into(), child)
}

fn pidfd(child: &Child) -> OwnedFd {
    // SAFETY: the call takes a pid and returns a new descriptor or -1. No other code knows the
    // descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    assert!(fd >= 0);
    // SAFETY: as above.
    unsafe { OwnedFd::from_raw_fd(fd.try_into().unwrap()) }
}

fn code(code: i32) -> Exit {
    Exit::Status(ExitStatus::from_raw(code << 8))
}

#[test]
fn children_are_adopted_by_pid_or_pidfd_with_their_earlier_output() {
    let engine = engine();
    let output = Output::start(&engine, Channels::STDOUT);
    let (first, one) = start("echo one; exit 0");
    let (second, two) = start("read x; echo two; exit 3");
    // The child has exited already.
    wait_for("the child to exit", || {
        std::fs::read_to_string(format!("/proc/{}/stat", one.id())).unwrap().contains(") Z").then_some(())
    });
    let by_pidfd = Process::Pidfd(pidfd(&two));
    let job = adopt(&engine, [rank(8, first, Process::Pid(one.id())), rank(9, second, by_pidfd)]).unwrap();
    let status = wait(&job);
    assert_eq!((status.first_failure, status.cut_off), (Some((Rank(9), code(3))), vec![]));
    let mut lines: Vec<String> = output.all().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two"]);
    for mut child in [one, two] {
        assert_eq!(child.wait().unwrap_err().raw_os_error(), Some(libc::ECHILD), "the engine has reaped it");
    }
}

#[test]
fn channels_without_a_descriptor_end_at_once_and_others_are_forwarded() {
    let engine = engine();
    let outputs = [Channels::STDOUT, Channels::STDERR, Channels::STDDIAG]
        .map(|channel| Output::start(&engine, channel));
    let (out, mut write_out) = pipe();
    let (diag, mut write_diag) = pipe();
    let adopted = rank(0, out, REPORTED).with(Channel::Stddiag, diag);
    let job = adopt(&engine, [adopted]).unwrap();
    write_out.write_all(b"out").unwrap();
    write_diag.write_all(b"diag").unwrap();
    drop((write_out, write_diag));
    assert!(job.report_exit(Rank(0), code(0)));
    assert_eq!(wait(&job).code(), 0);
    assert_eq!(outputs.map(Output::all), ["out", "", "diag"]);
}

#[test]
fn pipes_fifos_stream_sockets_and_terminals_are_read_to_their_ends() {
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        reads_all_kinds_to_their_ends(&engine_on(Some(backend)));
    }
}

fn reads_all_kinds_to_their_ends(engine: &Engine) {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = File::options().read(true).write(true).open(&fifo).unwrap();
    let (unix, mut write_unix) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut write_tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let tcp = listener.accept().unwrap().0;
    // A non-blocking socket, too.
    unix.set_nonblocking(true).unwrap();
    // Close-on-exec, as the processes of other tests would keep the terminal open.
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let mut slave = File::options();
    let slave = slave.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let mut slave = slave.open(ptsname_r(&master).unwrap()).unwrap();
    let fifo_read = File::open(&fifo).unwrap();
    let mut write_fifo = File::options().write(true).open(&fifo).unwrap();
    drop(both);

    let output = Output::start(engine, Channels::STDOUT);
    let ranks: [OwnedFd; 4] = [fifo_read.into(), unix.into(), tcp.into(), master.into()];
    let ranks = (0..).zip(ranks).map(|(number, file)| rank(number, file, REPORTED));
    let job = adopt(engine, ranks).unwrap();
    let writers: [&mut dyn Write; 4] = [&mut write_fifo, &mut write_unix, &mut write_tcp, &mut slave];
    for (number, writer) in (0u32..).zip(writers) {
        writer.write_all(format!("{number} ").as_bytes()).unwrap();
        assert!(job.report_exit(Rank(number), code(0)));
    }
    drop((write_fifo, write_unix, write_tcp, slave));
    let status = wait(&job);
    assert_eq!((status.code(), status.cut_off), (0, vec![]));
    let mut numbers: Vec<String> = output.all().split_whitespace().map(str::to_owned).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, ["0", "1", "2", "3"]);
}

#[test]
fn a_reported_exit_counts_once_and_only_for_ranks_without_a_watched_process() {
    let engine = engine();
    let (read, write) = pipe();
    let (out, child) = start("exit 0");
    let job = adopt(&engine, [rank(0, read, REPORTED), rank(1, out, Process::Pid(child.id()))]).unwrap();
    drop(write);
    assert!(!job.report_exit(Rank(1), code(7)), "the engine watches the process");
    assert!(!job.report_exit(Rank(2), code(7)), "the rank does not exist");
    assert!(job.try_wait_exit().is_none());
    assert!(job.report_exit(Rank(0), code(5)));
    assert!(!job.report_exit(Rank(0), code(6)));
    assert_eq!(wait(&job).first_failure, Some((Rank(0), code(5))));
    assert_eq!(job.try_wait_exit().expect("all have exited").code(), 5);
    let own = iof_engine::JobSpec::new("own".parse().unwrap(), vec![shell("")]);
    assert!(!engine.spawn(&own).unwrap().report_exit(Rank(0), code(1)), "the engine has started the process");
}

#[test]
fn a_grace_period_starts_at_the_reported_exit() {
    let engine = engine();
    let (read, mut write) = pipe();
    let ranks = vec![rank(0, read, REPORTED)];
    let job =
        engine.adopt(AdoptSpec { grace: Some(Duration::ZERO), ..AdoptSpec::new(nspace(), ranks) }).unwrap();
    write.write_all(b"so far").unwrap();
    assert!(job.report_exit(Rank(0), Exit::Unknown));
    let status = wait(&job);
    assert_eq!(status.cut_off, [(Rank(0), Channel::Stdout)]);
    assert_eq!((status.first_failure, status.code()), (Some((Rank(0), Exit::Unknown)), 1));
}

#[test]
fn the_exit_of_a_process_that_is_not_a_child_is_unknown() {
    let engine = engine();
    // Its parent has exited, so it is a child of init.
    let (out, mut parent) = start("sleep 1000 & echo $!");
    let mut out = BufReader::new(File::from(out));
    let mut pid = String::new();
    out.read_line(&mut pid).unwrap();
    parent.wait().unwrap();
    let pid = pid.trim().parse().unwrap();
    let out = OwnedFd::from(out.into_inner());
    let job = adopt(&engine, [rank(0, out, Process::Pid(pid))]).unwrap();
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(wait(&job).first_failure, Some((Rank(0), Exit::Unknown)));
}

#[test]
fn signals_reach_the_process_group_of_a_watched_rank_but_no_reported_one() {
    let engine = engine();
    let (out, child) = start("sleep 1000 & wait");
    assert_eq!(getpgid(Some(Pid::from_raw(child.id() as i32))).unwrap().as_raw(), child.id() as i32);
    let (read, write) = pipe();
    let (_, mut other) = start("exec sleep 1000");
    let reported = Process::Reported { pid: other.id() };
    let job = adopt(&engine, [rank(0, out, Process::Pid(child.id())), rank(1, read, reported)]).unwrap();
    assert_eq!(job.rank_of_group(child.id()), Some(Rank(0)));
    assert_eq!(job.signal(iof_engine::Signal::TERM), 1);
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    job.report_exit(Rank(1), code(0));
    drop(write);
    // The end of the stream shows that the child of rank 0 has exited, too.
    assert_eq!(wait(&job).first_failure.unwrap().1.code(), 143);
}

/// Returns the error for this descriptor as the stdout of rank 0.
fn refusal(stdout: impl Into<OwnedFd>) -> String {
    let error = adopt(&engine(), [rank(0, stdout, REPORTED)]).expect_err("the adoption must fail");
    assert!(matches!(error, AdoptError::Kind { rank: Rank(0), channel: Channel::Stdout, .. }), "{error}");
    error.to_string()
}

#[test]
fn a_descriptor_without_a_stream_that_ends_is_refused_by_its_kind() {
    let (_read, write) = pipe();
    assert!(refusal(write).contains("not open for reading"));
    assert!(refusal(File::open("/etc/passwd").unwrap()).contains("a regular file"));
    assert!(refusal(File::open("/").unwrap()).contains("a directory"));
    assert!(refusal(File::open("/dev/null").unwrap()).contains("a device"));
    assert!(refusal(UnixDatagram::pair().unwrap().0).contains("not a stream socket"));
    assert!(refusal(TcpListener::bind("127.0.0.1:0").unwrap()).contains("not connected"));
    let event = nix::sys::eventfd::EventFd::new().unwrap();
    assert!(refusal(event).contains("another kind"));
}

#[test]
fn invalid_ranks_are_refused_before_any_descriptor_is_used() {
    let engine = engine();
    let refused = |ranks: Vec<AdoptedRank>| adopt(&engine, ranks).expect_err("the adoption must fail");
    assert!(matches!(refused(vec![]), AdoptError::Ranks { asked: 0 }));
    let (first, _keep) = pipe();
    let (second, _keep) = pipe();
    let twice = vec![rank(3, first, REPORTED), rank(3, second, REPORTED)];
    assert!(matches!(refused(twice), AdoptError::Twice { rank: Rank(3) }));
    assert!(matches!(refused(vec![rank(u32::MAX - 1, pipe().0, REPORTED)]), AdoptError::Number { .. }));
    let (read, _keep) = pipe();
    let shared = rank(0, read.try_clone().unwrap(), REPORTED).with(Channel::Stderr, read);
    assert!(matches!(refused(vec![shared]), AdoptError::Shared { rank: Rank(0), channel: Channel::Stderr }));

    let (_, mut child) = start("exit 0");
    child.wait().unwrap();
    let gone = refused(vec![rank(0, pipe().0, Process::Pid(child.id()))]);
    assert!(
        matches!(&gone, AdoptError::Process { source, .. } if source.raw_os_error() == Some(libc::ESRCH)),
        "{gone}"
    );
    let no_pidfd = refused(vec![rank(0, pipe().0, Process::Pidfd(pipe().0))]);
    assert!(
        matches!(&no_pidfd, AdoptError::Process { source, .. } if source.raw_os_error() == Some(libc::EBADF))
    );

    // The name is still free, and taken afterwards.
    let (read, write) = pipe();
    let job = adopt(&engine, [rank(0, read, REPORTED)]).unwrap();
    assert!(matches!(refused(vec![rank(0, pipe().0, REPORTED)]), AdoptError::NameTaken(_)));
    drop(write);
    job.report_exit(Rank(0), code(0));
    assert_eq!(wait(&job).code(), 0);
}

#[test]
fn a_stdin_that_is_not_a_writable_pipe_is_refused_by_its_kind() {
    let refused = |stdin: OwnedFd| {
        let adopted = rank(0, pipe().0, REPORTED).with(Channel::Stdin, stdin);
        match adopt(&engine(), [adopted]) {
            Err(error @ AdoptError::Kind { rank: Rank(0), channel: Channel::Stdin, .. }) => error.to_string(),
            other => panic!("{:?}", other.map(drop)),
        }
    };
    assert!(refused(pipe().0).contains("not open for writing"));
    assert!(refused(File::options().write(true).open("/dev/null").unwrap().into()).contains("not a pipe"));
    assert!(refused(UnixStream::pair().unwrap().0.into()).contains("not a pipe"));
    assert!(refused(tempfile::tempfile().unwrap().into()).contains("not a pipe"));
    // A process with this descriptor is a reader itself, so it would wait for itself after the rank
    // has exited.
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let both = File::options().read(true).write(true).open(&fifo).unwrap();
    assert!(refused(both.try_clone().unwrap().into()).contains("also open for reading"));
    let write: OwnedFd = File::options().write(true).open(&fifo).unwrap().into();
    adopt(&engine(), [rank(0, pipe().0, REPORTED).with(Channel::Stdin, write)]).unwrap();
}

#[test]
fn one_pipe_cannot_be_the_stdin_of_two_ranks() {
    let (_read, write) = pipe();
    let with = |number: u32, stdin: OwnedFd| rank(number, pipe().0, REPORTED).with(Channel::Stdin, stdin);
    let ranks = [with(0, write.try_clone().unwrap().into()), with(1, write.into())];
    let refused = adopt(&engine(), ranks).map(drop);
    assert!(
        matches!(refused, Err(AdoptError::Shared { rank: Rank(1), channel: Channel::Stdin })),
        "{refused:?}"
    );
}
