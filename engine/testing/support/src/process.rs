//! Processes that never outlive their test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::pipes::collect;
use crate::{BULK_TIMEOUT, Pending, TIMEOUT, wait_for, wait_up_to};

/// A process in its own process group, with pipes for its stdin, stdout and stderr. Dropping this
/// kills the process and all of its descendants, in all process groups and sessions.
pub struct Process {
    child: Child,
    description: String,
    /// The value of [`MARK`] in the environment of the process and its descendants.
    mark: String,
}

/// The variable that marks a process and its descendants.
const MARK: &str = "IOF_TEST_STARTED_BY";

/// The exit code and the output of a process.
pub struct Done {
    /// As a shell shows it: 128 + n for a process that signal n killed.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Shows stdout as text, so that a failed test can be read.
impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        write!(f, "exit code {}, stdout {stdout:?}, stderr {:?}", self.code, self.stderr)
    }
}

impl Done {
    /// Returns stdout, which must be UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start_with_its_files(command)
    }

    /// Starts a process in its own process group, with the standard files of `command`.
    pub fn start_with_its_files(command: &mut Command) -> Process {
        Process::start_in_its_group(command.process_group(0))
    }

    /// Starts a process in the process group of `command`, with the standard files of `command`.
    pub fn start_in_its_group(command: &mut Command) -> Process {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        command.env(MARK, &mark);
        let description = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{description}: {error}"));
        Process { child, description, mark }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    /// Sends `signal` to this process alone.
    pub fn signal(&self, signal: Signal) {
        kill(self.nix_pid(), signal).unwrap();
    }

    /// Sends `signal` twice, the second time when that counts as another one.
    pub fn signal_twice(&self, signal: Signal) {
        self.signal(signal);
        self.wait_for_signals();
        // Within 0.25 s, the second one counts as the same.
        std::thread::sleep(Duration::from_millis(300));
        self.signal(signal);
    }

    /// Waits until this process has taken the signals that were sent to it.
    pub fn wait_for_signals(&self) {
        wait_for("the signal to be taken", || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
            status.lines().any(|line| line == "ShdPnd:\t0000000000000000").then_some(())
        });
    }

    /// Sends SIGSTOP, and waits until all threads have stopped. Each thread runs on until it
    /// handles the stop.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        let stopped = || matches!(waitid(Id::Pid(self.nix_pid()), flags), Ok(WaitStatus::Stopped(..)));
        wait_for(&format!("{} to stop", self.description), || stopped().then_some(()));
    }

    /// Returns the exit code as a shell shows it, if the process has ended.
    pub fn exit_code(&self) -> Option<i32> {
        // The process stays a zombie until this is dropped, so that the number of its group is not
        // reused.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.nix_pid()), flags).unwrap() {
            WaitStatus::Exited(_, code) => Some(code),
            WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
            _ => None,
        }
    }

    /// Waits for the end of the process, and returns its exit code.
    pub fn wait(&self) -> i32 {
        self.wait_up_to(TIMEOUT)
    }

    pub fn wait_up_to(&self, timeout: Duration) -> i32 {
        wait_up_to(timeout, &format!("the end of {}", self.description), || self.exit_code())
    }

    /// Closes stdin, reads all output, and waits for the end of the process.
    pub fn finish(mut self) -> Done {
        drop(self.child.stdin.take());
        let (stdout, stderr) = self.collect();
        let code = self.wait();
        let stderr = String::from_utf8_lossy(&stderr.get()).into_owned();
        Done { code, stdout: stdout.get(), stderr }
    }

    /// Starts to read stdout and stderr to their ends.
    pub fn collect(&mut self) -> (Pending<Vec<u8>>, Pending<Vec<u8>>) {
        (collect(self.stdout()), collect(self.stderr()))
    }

    /// Returns the resident anonymous and shared memory in KiB, see proc_pid_status(5).
    pub fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        let counted = status.lines().filter(|l| l.starts_with("RssAnon:") || l.starts_with("RssShmem:"));
        let sizes: Vec<u64> = counted.filter_map(kib).collect();
        assert_eq!(sizes.len(), 2, "{status}");
        sizes.iter().sum()
    }

    /// Returns the pids of the living processes (see [`Process::living`]) that run the program
    /// `name`.
    pub fn running(&self, name: &str) -> Vec<u32> {
        let runs = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        self.living().into_iter().filter(runs).collect()
    }

    /// Returns the pids of the process and its descendants that have not ended, without guardians.
    pub fn living(&self) -> Vec<u32> {
        let guardians = self.guardians();
        self.marked().into_iter().filter(|pid| !guardians.contains(pid)).collect()
    }

    /// Returns the pids of the living guardians of the process and its descendants.
    pub fn guardians(&self) -> Vec<u32> {
        let is_guardian =
            |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"iof\0guardian\0");
        self.marked().into_iter().filter(is_guardian).collect()
    }

    /// Returns the pids of the process and its descendants that have not ended.
    fn marked(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        // A zombie has no environment, so it is not counted.
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark)
        };
        pids.filter(is_marked).collect()
    }
}

/// A process to whose stdin the test writes lines, and whose answers it reads.
pub struct Dialog {
    pub process: Process,
    /// `None` if it is closed.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Dialog {
    pub fn start(command: &mut Command) -> Dialog {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start_with_its_files(command);
        Dialog { stdin: Some(process.stdin()), stdout: BufReader::new(process.stdout()), process }
    }

    pub fn write(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Blocks until the process has written a line, and returns it.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the end of its output instead of a line");
        line.trim_end_matches('\n').to_owned()
    }

    /// Closes stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Closes stdin. Returns the rest of the output and the exit code.
    pub fn finish(mut self) -> (String, i32) {
        self.close();
        (std::io::read_to_string(self.stdout).unwrap(), self.process.wait_up_to(BULK_TIMEOUT))
    }

    /// Kills the process, and waits for its end.
    pub fn kill(self) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait();
    }
}

/// The state of a process as the kernel reports it, see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `T` (stopped), `Z`...
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// The device number of the controlling terminal, 0 if there is none.
    pub terminal: i32,
    /// The foreground process group of that terminal.
    pub foreground: i32,
}

impl Stat {
    /// Returns the state of a process, or `None` if it does not exist.
    pub fn of(pid: u32) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(Stat {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
            terminal: fields.next()?.parse().ok()?,
            foreground: fields.next()?.parse().ok()?,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = killpg(self.nix_pid(), Signal::SIGKILL);
        let deadline = Instant::now() + TIMEOUT;
        // Repeats, because a process may start another one meanwhile.
        while let living = self.marked()
            && !living.is_empty()
            && Instant::now() < deadline
        {
            for pid in living {
                let _ = kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }
}
