//! Processes that never outlive their test.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::bytes::{Pending, collect};
use super::{DEADLINE, wait_up_to};

/// A process in a process group of its own, with pipes for its stdin, stdout and stderr. When this
/// is dropped it is killed with all that it started, in whatever groups and sessions that is.
pub struct Process {
    child: Child,
    what: String,
    /// In the environment of all these.
    mark: String,
}

/// The variable that holds the mark.
const MARK: &str = "IOF_TEST_STARTED_BY";

/// How a process ended and what it wrote.
#[derive(Debug)]
pub struct Done {
    /// As a shell shows it: 128 + n for a process that signal n killed.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    /// Its stdout, which must be text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start_as_it_is(command)
    }

    /// Only in a process group of its own: what its standard files are, `command` says.
    pub fn start_as_it_is(command: &mut Command) -> Process {
        Process::start_in_its_group(command.process_group(0))
    }

    /// In the process group that `command` says.
    pub fn start_in_its_group(command: &mut Command) -> Process {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        command.env(MARK, &mark);
        let what = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        Process { child, what, mark }
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

    /// Stops it with SIGSTOP, until all of its threads stand still: each goes on until it hears of
    /// it.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        let stopped = || matches!(waitid(Id::Pid(self.nix_pid()), flags), Ok(WaitStatus::Stopped(..)));
        wait_up_to(DEADLINE, &format!("{} to stand still", self.what), || stopped().then_some(()));
    }

    /// Its exit code as a shell shows it, if it has ended.
    pub fn ended(&self) -> Option<i32> {
        // It stays a zombie until this is dropped, so that its group's number can't become somebody else's.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.nix_pid()), flags).unwrap() {
            WaitStatus::Exited(_, code) => Some(code),
            WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
            _ => None,
        }
    }

    /// Waits for its end; gives its exit code.
    pub fn wait(&self) -> i32 {
        self.wait_up_to(DEADLINE)
    }

    pub fn wait_up_to(&self, patience: Duration) -> i32 {
        wait_up_to(patience, &format!("the end of {}", self.what), || self.ended())
    }

    /// Closes its stdin, reads what it writes, waits for its end.
    pub fn finish(mut self) -> Done {
        drop(self.child.stdin.take());
        let (stdout, stderr) = self.collect();
        let code = self.wait();
        let stderr = String::from_utf8_lossy(&stderr.get()).into_owned();
        Done { code, stdout: stdout.get(), stderr }
    }

    /// Reads all that it writes from now on.
    pub fn collect(&mut self) -> (Pending<Vec<u8>>, Pending<Vec<u8>>) {
        (collect(self.stdout()), collect(self.stderr()))
    }

    /// Kibibytes of anonymous and shared memory that it has now, see proc_pid_status(5).
    pub fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        let counted = status.lines().filter(|l| l.starts_with("RssAnon:") || l.starts_with("RssShmem:"));
        let both: Vec<u64> = counted.filter_map(kib).collect();
        assert_eq!(both.len(), 2, "{status}");
        both.iter().sum()
    }

    /// The pids of what lives of it and runs the program `name`.
    pub fn running(&self, name: &str) -> Vec<u32> {
        let runs = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        self.living().into_iter().filter(runs).collect()
    }

    /// The pids of what lives of it: itself, ranks, their children.
    pub fn living(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        // A zombie has no environment any more.
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark)
        };
        pids.filter(is_marked).collect()
    }
}

/// What the kernel says of a process, see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `T` (stopped), `Z`...
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// The number of its controlling terminal, 0 if it has none.
    pub terminal: i32,
    /// The group that is in the foreground there.
    pub foreground: i32,
}

impl Stat {
    /// `None` if there is no such process.
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
        let deadline = Instant::now() + DEADLINE;
        // Some may just be starting others.
        while let living = self.living()
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
