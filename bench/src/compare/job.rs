//! One job of one system: started, let work, looked at, ended. Nothing waits longer than its limit, and nothing of a job is
//! left when it is over.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::gate::{Done, Gate, Missing, Waiting};
use super::line::Checker;
use super::output::{Out, Reader, Taken};
use super::processes::{self, Forwarder};
use super::scale::Scale;
use super::trouble::Trouble;
use crate::cpu;

/// Until all ranks are at the gate.
const START: Duration = Duration::from_secs(60);
/// Until all ranks have done their work.
const WORK: Duration = Duration::from_secs(120);
/// Until the forwarder rests when the ranks have, and until it ends when they end.
const END: Duration = Duration::from_secs(30);
/// What a tool has to attach, at least.
const ATTACH: Duration = Duration::from_millis(200);
/// Until a launcher of which a rank has ended too early ends as well.
const FOLLOW: Duration = Duration::from_secs(1);
/// Where launchers leave what is temporary, some when they are killed, too: it goes with the site.
const TEMPORARY: &str = "TMPDIR";
/// Between two looks whether a launcher has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Where jobs are run: a directory of our own, and how long they may take.
pub struct Site {
    directory: tempfile::TempDir,
    scale: Scale,
}

impl Site {
    /// Makes it. From now on, what descends from us and loses its parent becomes our child.
    pub fn new(scale: Scale) -> Site {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        Site { directory: tempfile::tempdir().unwrap(), scale }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A gate for one job.
    pub fn gate(&self) -> Gate {
        Gate::open(self.path())
    }

    /// What the launcher of the last job said on stderr.
    fn said(&self) -> PathBuf {
        self.path().join("stderr")
    }

    /// A file for what a tool says.
    fn tool_says(&self) -> (File, PathBuf) {
        tempfile::NamedTempFile::new_in(self.path()).unwrap().keep().unwrap()
    }
}

/// How a tool is started, by the launcher's pid.
pub type StartTool<'a> = Box<dyn FnOnce(u32) -> Command + 'a>;

/// A job to be run.
pub struct Plan<'a> {
    /// Where.
    pub site: &'a Site,
    /// The gate to which its ranks come.
    pub gate: &'a Gate,
    /// The launcher.
    pub launcher: Command,
    /// Ranks.
    pub ranks: u32,
    /// Where the launcher's stdout goes.
    pub out: Out,
    /// What comes to the launcher's stdin from the opening of the gate on: so many times this.
    pub input: Option<(&'static [u8], u64)>,
    /// Tools that attach before the gate is opened, and where their stdout goes.
    pub early: Vec<(StartTool<'a>, Out)>,
    /// A tool that attaches when the ranks have done their work and the forwarder rests, how many bytes it then gets, and
    /// who looks at them.
    pub late: Option<(StartTool<'a>, u64, Checker)>,
    /// Until all ranks have done their work.
    pub limit: Duration,
}

impl<'a> Plan<'a> {
    /// A job without input and tools.
    pub fn new(site: &'a Site, gate: &'a Gate, launcher: Command, ranks: u32, out: Out) -> Plan<'a> {
        let (input, early, late) = (None, Vec::new(), None);
        Plan { site, gate, launcher, ranks, out, input, early, late, limit: site.scale.time(WORK) }
    }
}

/// What a job was.
pub struct Ran {
    /// From the opening of the gate until the last rank had done its work.
    pub elapsed: Duration,
    /// What the forwarder cost from the opening of the gate until it had nothing to do any more.
    pub cpu: Duration,
    /// What its tools cost meanwhile.
    pub tools_cpu: Duration,
    /// The most memory that the forwarder had, in bytes.
    pub memory: u64,
    /// What the ranks reported.
    pub done: Vec<Done>,
    /// What came out of the launcher.
    pub taken: Taken,
    /// What came out of each tool, a late one last, and the bytes of which it said that they are missing.
    pub tools: Vec<(Taken, u64)>,
    /// How long the late tool took from its start until it had all.
    pub attached: Option<Duration>,
    /// Bytes of which the launcher said that they are missing.
    pub reported: u64,
}

/// Runs the job.
pub fn run(plan: Plan) -> Result<Ran, Trouble> {
    let said = plan.site.said();
    let ran = Running::start(plan).finish();
    // What the launcher said explains more than what followed from it.
    ran.map_err(|trouble| trouble.with(&fs::read(&said).unwrap()))
}

/// A job under way.
struct Running<'a> {
    launcher: Child,
    reader: Option<Reader>,
    /// The launcher's stdin, which is open until all that comes through it was counted.
    input: Option<OwnedFd>,
    /// All of the plan that is still to be done.
    plan: Plan<'a>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        processes::sweep();
    }
}

impl<'a> Running<'a> {
    fn start(mut plan: Plan<'a>) -> Running<'a> {
        let (stdout, reader) = std::mem::replace(&mut plan.out, Out::Null).open();
        // Nobody but the launcher may hold what it was given, so the command does not outlive this.
        let mut launcher = std::mem::replace(&mut plan.launcher, Command::new("false"));
        launcher.stdout(stdout).stderr(File::create(plan.site.said()).unwrap());
        launcher.env(TEMPORARY, plan.site.path());
        let (stdin, input) = match plan.input {
            None => (Stdio::null(), None),
            Some(_) => {
                let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
                (read.into(), Some(write))
            }
        };
        let launcher = launcher.stdin(stdin).spawn().unwrap();
        Running { launcher, reader, input, plan }
    }

    fn finish(mut self) -> Result<Ran, Trouble> {
        let (pid, site) = (self.launcher.id(), self.plan.site);
        let (start, end) = (site.scale.time(START), site.scale.time(END));
        let mut waiting = self.gather(start)?;
        let ranks = waiting.pids();
        let early = std::mem::take(&mut self.plan.early).into_iter();
        let mut tools: Vec<_> = early.map(|(begin, out)| Tool::start(begin(pid), out, site)).collect();
        let mut forwarder = Forwarder::find(pid, &ranks);
        let mut attached = Forwarder::of(tools.iter().map(|tool| tool.process.id()).collect());
        let until = Instant::now() + start;
        if !tools.is_empty() {
            thread::sleep(ATTACH);
        }
        if !(forwarder.rest(until) && attached.rest(until)) {
            return Err(Trouble::Hung("busy before its ranks began", start));
        }

        forwarder.begin();
        attached.begin();
        let begun = cpu::monotonic();
        self.reader.iter().chain(tools.iter().filter_map(|tool| tool.reader.as_ref())).for_each(Reader::open);
        let done = self.work(&mut waiting)?;
        forwarder.add(&Forwarder::find(pid, &ranks));
        let until = Instant::now() + end;
        if !(forwarder.rest(until) && attached.rest(until)) {
            return Err(Trouble::Hung("busy when its ranks were done", end));
        }
        let elapsed = done.iter().map(|done| done.at).max().unwrap_or(begun) - begun;
        let (cpu, tools_cpu) = (forwarder.cpu(), attached.cpu());
        let mut late = None;
        if let Some((begin, bytes, checker)) = self.plan.late.take() {
            let (tool, time) = attach(begin(pid), bytes, checker, site, end)?;
            tools.push(tool);
            late = Some(time);
        }
        let memory = forwarder.memory();

        drop(waiting);
        self.end(&mut tools, end)?;
        Ok(Ran {
            elapsed: Duration::from_nanos(elapsed),
            cpu,
            tools_cpu,
            memory,
            done,
            taken: self.reader.take().map(Reader::join).unwrap_or_default(),
            tools: tools.into_iter().map(Tool::taken).collect(),
            attached: late,
            reported: reported(&site.said()),
        })
    }

    /// Waits until all ranks are at the gate.
    fn gather(&mut self, limit: Duration) -> Result<Waiting, Trouble> {
        let until = Instant::now() + limit;
        let gone = || self.launcher.try_wait().unwrap().is_some();
        let gathered = self.plan.gate.gather(self.plan.ranks, until, gone);
        gathered.ok_or_else(|| self.ended_or_hung("at the start", limit))
    }

    /// Opens the gate, and waits until all ranks have done their work.
    fn work(&mut self, waiting: &mut Waiting) -> Result<Vec<Done>, Trouble> {
        waiting.release();
        if let (Some(pipe), Some((block, times))) = (&self.input, self.plan.input) {
            let pipe = pipe.try_clone().unwrap();
            // Ends when all is written, or nobody reads any more.
            thread::spawn(move || feed(pipe, block, times));
        }
        waiting.done(Instant::now() + self.plan.limit).map_err(|missing| match missing {
            Missing::Late => self.ended_or_hung("at work", self.plan.limit),
            Missing::Gone => match wait(&mut self.launcher, FOLLOW) {
                Some(status) => Trouble::failed(format!("at work, {status}")),
                None => Trouble::failed("a rank ended before its work was done".to_owned()),
            },
        })
    }

    /// Waits until launcher and tools have ended; leaves nobody who could hold their output.
    fn end(&mut self, tools: &mut [Tool], limit: Duration) -> Result<(), Trouble> {
        drop(self.input.take());
        let status = wait(&mut self.launcher, limit).ok_or(Trouble::Hung("at the end", limit))?;
        if !status.success() {
            return Err(Trouble::failed(status.to_string()));
        }
        for tool in tools {
            let status =
                wait(&mut tool.process, limit).ok_or(Trouble::Hung("at the end of a tool", limit))?;
            if !status.success() {
                return Err(Trouble::failed(format!("a tool, {status}")));
            }
        }
        processes::sweep();
        Ok(())
    }

    fn ended_or_hung(&mut self, stage: &'static str, limit: Duration) -> Trouble {
        match self.launcher.try_wait().unwrap() {
            Some(status) => Trouble::failed(format!("{stage}, {status}")),
            None => Trouble::Hung(stage, limit),
        }
    }
}

/// A job without a gate, from its start to its end.
pub struct Whole {
    /// How long it took.
    pub elapsed: Duration,
    /// What all of it cost, ranks included.
    pub cpu: Duration,
    /// What came out of it.
    pub taken: Taken,
    /// How it ended.
    pub status: ExitStatus,
}

/// Runs a job without a gate, for so long at most.
pub fn whole(site: &Site, mut launcher: Command, out: Out, limit: Duration) -> Result<Whole, Trouble> {
    let (stdout, reader) = out.open();
    launcher.stdin(Stdio::null()).stdout(stdout).stderr(File::create(site.said()).unwrap());
    launcher.env(TEMPORARY, site.path());
    let (begun, before) = (Instant::now(), cpu::of_children());
    let mut child = launcher.spawn().unwrap();
    drop(launcher);
    let status = wait(&mut child, limit);
    let elapsed = begun.elapsed();
    processes::sweep();
    let cpu = cpu::of_children() - before;
    let taken = reader.map(Reader::join).unwrap_or_default();
    let status = status.ok_or(Trouble::Hung("", limit))?;
    Ok(Whole { elapsed, cpu, taken, status })
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > until {
            return None;
        }
        thread::sleep(LOOK);
    }
}

fn feed(pipe: OwnedFd, block: &[u8], times: u64) {
    let mut pipe = File::from(pipe);
    for _ in 0..times {
        if pipe.write_all(block).is_err() {
            return;
        }
    }
}

/// A tool of a job.
struct Tool {
    process: Child,
    reader: Option<Reader>,
    said: PathBuf,
}

impl Tool {
    fn start(mut command: Command, out: Out, site: &Site) -> Tool {
        let (stdout, reader) = out.open();
        let (stderr, said) = site.tool_says();
        let process = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().unwrap();
        Tool { process, reader, said }
    }

    /// What came out of it, and the bytes of which it said that they are missing.
    fn taken(self) -> (Taken, u64) {
        let taken = self.reader.map(Reader::join).unwrap_or_default();
        (taken, reported(&self.said))
    }
}

/// A tool, and how long it took from its start until it had so many bytes.
fn attach(
    command: Command,
    bytes: u64,
    checker: Checker,
    site: &Site,
    limit: Duration,
) -> Result<(Tool, Duration), Trouble> {
    let (out, arrived) = Out::until(bytes, checker);
    let begun = Instant::now();
    let tool = Tool::start(command, out, site);
    let arrived = arrived.recv_timeout(limit).map_err(|_| Trouble::Hung("when a tool attached", limit))?;
    Ok((tool, arrived - begun))
}

/// The bytes of which this says that they are missing.
fn reported(said: &Path) -> u64 {
    let text = fs::read_to_string(said).unwrap_or_default();
    let missing = text.lines().filter_map(|line| line.split_once(" bytes are missing"));
    missing.filter_map(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_losses_are_summed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let said = "iof: rank 0 stdout: 1939743 bytes are missing at offset 0\nelse\nbare loop: 7 bytes are missing\n";
        fs::write(file.path(), said).unwrap();
        assert_eq!(reported(file.path()), 1_939_750);
    }
}
