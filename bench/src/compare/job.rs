//! One job of one system: started, let work, looked at, ended. Nothing waits longer than its limit, and nothing of a job is
//! left when it is over.

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::gate::{Done, Gate};
use super::line::Checker;
use super::processes::{self, Forwarder};
use crate::cpu;

/// Until all ranks are at the gate.
const START: Duration = Duration::from_secs(60);
/// Until all ranks have done their work.
const WORK: Duration = Duration::from_secs(120);
/// Until the forwarder rests when the ranks have, and until it ends when they end.
const END: Duration = Duration::from_secs(30);
/// Between two looks whether a launcher has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Characters of a launcher's stderr that are shown when it failed.
const SHOWN: usize = 200;
/// Bytes that are taken at once of what it writes.
const PIECE: usize = 64 * 1024;

/// What can go wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It did not come further within a limit.
    Hung(&'static str, Duration),
    /// It ended too early or badly: how, and what it said.
    Failed(String, String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Hung(stage, limit) => write!(f, "hung {stage}, killed after {} s", limit.as_secs()),
            Trouble::Failed(how, said) => write!(f, "failed ({how}): {said}"),
        }
    }
}

/// Where jobs are run: a directory of our own.
pub struct Site(tempfile::TempDir);

impl Site {
    /// Makes it. From now on, what descends from us and loses its parent becomes our child.
    pub fn new() -> Site {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        Site(tempfile::tempdir().unwrap())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A gate for one job.
    pub fn gate(&self) -> Gate {
        Gate::open(self.path())
    }
}

/// Where a launcher's stdout goes.
pub enum Out {
    /// To /dev/null.
    Null,
    /// Into a pipe, from which we read as cat(1) does; who looks at the lines, if anybody does.
    Pipe(Option<Box<Checker>>),
}

/// What a job was.
pub struct Ran {
    /// From the opening of the gate until the last rank had written all.
    pub elapsed: Duration,
    /// What the forwarder cost from the opening of the gate until it had nothing to do any more.
    pub cpu: Duration,
    /// The most memory that it had, in bytes.
    pub memory: u64,
    /// Bytes that came out of the pipe.
    pub bytes: u64,
    /// Who looked at them.
    pub checker: Option<Box<Checker>>,
}

/// Runs the job: `command`, whose `ranks` come to the gate.
pub fn run(site: &Site, gate: &Gate, mut command: Command, ranks: u32, out: Out) -> Result<Ran, Trouble> {
    let said = site.path().join("stderr");
    let (stdout, reader) = open(out);
    command.stdin(Stdio::null()).stdout(stdout).stderr(File::create(&said).unwrap());
    let running = Running { launcher: command.spawn().unwrap() };
    // It has our end of the pipe.
    drop(command);
    let ran = running.finish(gate, ranks, reader);
    // An end of the launcher explains more than what followed from it.
    ran.map_err(|trouble| match trouble {
        Trouble::Failed(how, _) => Trouble::Failed(how, last_words(&said)),
        hung => hung,
    })
}

/// A job under way.
struct Running {
    launcher: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        processes::sweep();
    }
}

impl Running {
    fn finish(mut self, gate: &Gate, ranks: u32, reader: Option<Reader>) -> Result<Ran, Trouble> {
        let until = Instant::now() + START;
        let gathered = gate.gather(ranks, until, || self.launcher.try_wait().unwrap().is_some());
        let mut waiting = gathered.ok_or_else(|| self.ended_or_hung("at the start", START))?;
        let mut forwarder = Forwarder::find(self.launcher.id(), &waiting.pids());
        forwarder.begin();
        let begun = cpu::monotonic();
        waiting.release();
        let done: Vec<Done> = waiting.done(Instant::now() + WORK);
        if done.len() < ranks as usize {
            return Err(self.ended_or_hung("at work", WORK));
        }
        if !forwarder.rest(Instant::now() + END) {
            return Err(Trouble::Hung("busy when its ranks were done", END));
        }
        let (cpu, memory) = (forwarder.cpu(), forwarder.memory());
        let elapsed = done.iter().map(|done| done.at).max().unwrap_or(begun) - begun;
        drop(waiting);
        let status = self.ended(END).ok_or(Trouble::Hung("at the end", END))?;
        if !status.success() {
            return Err(Trouble::Failed(status.to_string(), String::new()));
        }
        let (bytes, checker) = reader.map_or((0, None), |reader| reader.join().unwrap());
        Ok(Ran { elapsed: Duration::from_nanos(elapsed), cpu, memory, bytes, checker })
    }

    /// How the launcher ended, if it does within `limit`.
    fn ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > until {
                return None;
            }
            thread::sleep(LOOK);
        }
    }

    fn ended_or_hung(&mut self, stage: &'static str, limit: Duration) -> Trouble {
        match self.launcher.try_wait().unwrap() {
            Some(status) => Trouble::Failed(format!("{stage}, {status}"), String::new()),
            None => Trouble::Hung(stage, limit),
        }
    }
}

type Reader = JoinHandle<(u64, Option<Box<Checker>>)>;

fn open(out: Out) -> (Stdio, Option<Reader>) {
    match out {
        Out::Null => (Stdio::null(), None),
        Out::Pipe(checker) => {
            let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
            (write.into(), Some(thread::spawn(move || take(read, checker))))
        }
    }
}

fn take(pipe: OwnedFd, mut checker: Option<Box<Checker>>) -> (u64, Option<Box<Checker>>) {
    let (mut pipe, mut piece, mut bytes) = (File::from(pipe), vec![0; PIECE], 0);
    loop {
        let read = pipe.read(&mut piece).unwrap();
        if read == 0 {
            return (bytes, checker);
        }
        bytes += read as u64;
        if let Some(checker) = &mut checker {
            checker.feed(&piece[..read]);
        }
    }
}

/// The end of what a launcher said, on one line.
fn last_words(said: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let skipped = line.chars().count().saturating_sub(SHOWN);
    line.chars().skip(skipped).collect()
}
