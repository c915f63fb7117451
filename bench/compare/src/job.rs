//! One job of one subject: started, released, measured and ended. Every wait has a time limit, and
//! a job leaves no process behind.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::barrier::{Barrier, MissingReport, RankReport, WaitingRanks};
use super::error::JobError;
use super::line::LineChecker;
use super::output::{Received, Sink, SinkReader};
use super::processes::{self, ProcessSet};
use super::scale::Scale;
use iof_bench::cpu;

/// The time limit until all ranks are at the barrier.
const START: Duration = Duration::from_secs(60);
/// The time limit until all ranks have done their work.
const WORK: Duration = Duration::from_secs(120);
/// The time limit until the forwarder is idle after the ranks' work, and until it ends after them.
const END: Duration = Duration::from_secs(30);
/// The time that an early tool gets to attach.
const ATTACH: Duration = Duration::from_millis(200);
/// The time that a launcher gets to end after one of its ranks has ended too early.
const FOLLOW: Duration = Duration::from_secs(1);
/// The variable with the directory for temporary files. Launchers leave such files behind, some of
/// them when they are killed. The sandbox removes them.
pub const TEMPORARY: &str = "TMPDIR";
/// The interval of the checks whether a launcher has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The environment of jobs: a directory that is removed at the end, and the scale of time limits.
pub struct Sandbox {
    directory: tempfile::TempDir,
    scale: Scale,
}

impl Sandbox {
    /// Creates the directory, and makes this process the subreaper of its descendants: one that
    /// loses its parent becomes a child of this process.
    pub fn new(scale: Scale) -> Sandbox {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        Sandbox { directory: tempfile::tempdir().unwrap(), scale }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates a barrier for one job.
    pub fn barrier(&self) -> Barrier {
        Barrier::create(self.path())
    }

    /// Returns the path of the file with the stderr of the last job's launcher.
    fn stderr_path(&self) -> PathBuf {
        self.path().join("stderr")
    }

    /// Creates a file for the stderr of a tool.
    fn create_tool_stderr(&self) -> (File, PathBuf) {
        tempfile::NamedTempFile::new_in(self.path()).unwrap().keep().unwrap()
    }
}

/// Returns the command of a tool, given the launcher's pid.
pub type StartTool<'a> = Box<dyn FnOnce(u32) -> Command + 'a>;

/// The description of a job.
pub struct JobPlan<'a> {
    /// The environment.
    pub sandbox: &'a Sandbox,
    /// The barrier at which its ranks wait.
    pub barrier: &'a Barrier,
    /// The command of the launcher.
    pub launcher: Command,
    /// The number of ranks.
    pub ranks: u32,
    /// The destination of the launcher's stdout.
    pub out: Sink,
    /// The input that the launcher's stdin gets after the ranks are released: a block, and how
    /// often it is repeated.
    pub input: Option<(&'static [u8], u64)>,
    /// The tools that attach before the ranks are released, each with the destination of its
    /// stdout.
    pub early: Vec<(StartTool<'a>, Sink)>,
    /// A tool that attaches when the ranks have done their work and the forwarder is idle, the
    /// number of bytes that it then receives, and their checker.
    pub late: Option<(StartTool<'a>, u64, LineChecker)>,
    /// The time limit until all ranks have done their work.
    pub limit: Duration,
}

impl<'a> JobPlan<'a> {
    /// Describes a job without input and without tools.
    pub fn new(
        sandbox: &'a Sandbox,
        barrier: &'a Barrier,
        launcher: Command,
        ranks: u32,
        out: Sink,
    ) -> JobPlan<'a> {
        let (input, early, late) = (None, Vec::new(), None);
        JobPlan {
            sandbox,
            barrier,
            launcher,
            ranks,
            out,
            input,
            early,
            late,
            limit: sandbox.scale.time(WORK),
        }
    }
}

/// The measurements of a job.
pub struct JobReport {
    /// The time from the release of the ranks until the last one had done its work.
    pub elapsed: Duration,
    /// The CPU time of the forwarder from the release of the ranks until it was idle.
    pub cpu: Duration,
    /// The CPU time of the early tools during the same period.
    pub tools_cpu: Duration,
    /// The peak memory of the forwarder, in bytes.
    pub memory: u64,
    /// The reports of the ranks.
    pub reports: Vec<RankReport>,
    /// The output of the launcher.
    pub received: Received,
    /// The output of each tool, a late one last, with the number of bytes that it reported missing.
    pub tools: Vec<(Received, u64)>,
    /// The time from the start of the late tool until it had received all bytes.
    pub attached: Option<Duration>,
    /// The number of bytes that the launcher reported missing.
    pub reported: u64,
}

/// Runs a job that uses a barrier.
pub fn run(plan: JobPlan) -> Result<JobReport, JobError> {
    let stderr = plan.sandbox.stderr_path();
    let result = RunningJob::start(plan).finish();
    // The launcher's own message names the cause, the exit status only the effect.
    result.map_err(|error| error.with(&fs::read(&stderr).unwrap()))
}

/// A running job.
struct RunningJob<'a> {
    launcher: Child,
    reader: Option<SinkReader>,
    /// The launcher's stdin. It stays open until the cost of forwarding it was measured.
    input: Option<OwnedFd>,
    /// The part of the plan that is still to be done.
    plan: JobPlan<'a>,
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        processes::kill_descendants();
    }
}

impl<'a> RunningJob<'a> {
    fn start(mut plan: JobPlan<'a>) -> RunningJob<'a> {
        let (stdout, reader) = std::mem::replace(&mut plan.out, Sink::Null).open();
        // Only the launcher may hold its descriptors, so the command is dropped at the end of this
        // function.
        let mut launcher = std::mem::replace(&mut plan.launcher, Command::new("false"));
        launcher.stdout(stdout).stderr(File::create(plan.sandbox.stderr_path()).unwrap());
        launcher.env(TEMPORARY, plan.sandbox.path());
        let (stdin, input) = match plan.input {
            None => (Stdio::null(), None),
            Some(_) => {
                let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
                (read.into(), Some(write))
            }
        };
        let launcher = launcher.stdin(stdin).spawn().unwrap();
        RunningJob { launcher, reader, input, plan }
    }

    fn finish(mut self) -> Result<JobReport, JobError> {
        let (pid, sandbox) = (self.launcher.id(), self.plan.sandbox);
        let (start, end) = (sandbox.scale.time(START), sandbox.scale.time(END));
        let mut waiting = self.wait_for_ranks(start)?;
        let ranks = waiting.pids();
        let early = std::mem::take(&mut self.plan.early).into_iter();
        let mut tools: Vec<_> = early.map(|(begin, out)| Tool::start(begin(pid), out, sandbox)).collect();
        let mut forwarder = ProcessSet::descendants(pid, &ranks);
        let mut tool_processes = ProcessSet::new(tools.iter().map(|tool| tool.process.id()).collect());
        let until = Instant::now() + start;
        if !tools.is_empty() {
            thread::sleep(ATTACH);
        }
        if !(forwarder.wait_idle(until) && tool_processes.wait_idle(until)) {
            return Err(JobError::Hung("busy before its ranks began", start));
        }

        forwarder.start_counting();
        tool_processes.start_counting();
        let release_time = cpu::monotonic_nanos();
        self.reader
            .iter()
            .chain(tools.iter().filter_map(|tool| tool.reader.as_ref()))
            .for_each(SinkReader::start);
        let reports = self.work(&mut waiting)?;
        forwarder.extend(&ProcessSet::descendants(pid, &ranks));
        let until = Instant::now() + end;
        if !(forwarder.wait_idle(until) && tool_processes.wait_idle(until)) {
            return Err(JobError::Hung("busy when its ranks were done", end));
        }
        let elapsed = reports.iter().map(|report| report.time).max().unwrap_or(release_time) - release_time;
        let (cpu, tools_cpu) = (forwarder.cpu(), tool_processes.cpu());
        let mut late = None;
        if let Some((begin, bytes, checker)) = self.plan.late.take() {
            let (tool, time) = attach(begin(pid), bytes, checker, sandbox, end)?;
            tools.push(tool);
            late = Some(time);
        }
        let memory = forwarder.peak_memory();

        drop(waiting);
        self.end(&mut tools, end)?;
        Ok(JobReport {
            elapsed: Duration::from_nanos(elapsed),
            cpu,
            tools_cpu,
            memory,
            reports,
            received: self.reader.take().map(SinkReader::join).unwrap_or_default(),
            tools: tools.into_iter().map(Tool::received).collect(),
            attached: late,
            reported: reported(&sandbox.stderr_path()),
        })
    }

    /// Blocks until all ranks are at the barrier.
    fn wait_for_ranks(&mut self, limit: Duration) -> Result<WaitingRanks, JobError> {
        let until = Instant::now() + limit;
        let gone = || self.launcher.try_wait().unwrap().is_some();
        let arrived = self.plan.barrier.wait_for(self.plan.ranks, until, gone);
        arrived.ok_or_else(|| self.ended_or_hung("at the start", limit))
    }

    /// Releases the ranks, and blocks until all have done their work.
    fn work(&mut self, waiting: &mut WaitingRanks) -> Result<Vec<RankReport>, JobError> {
        waiting.release();
        if let (Some(pipe), Some((block, times))) = (&self.input, self.plan.input) {
            let pipe = pipe.try_clone().unwrap();
            // The thread ends when all input is written or the pipe has no reader any more.
            thread::spawn(move || feed(pipe, block, times));
        }
        waiting.reports(Instant::now() + self.plan.limit).map_err(|missing| match missing {
            MissingReport::Late => self.ended_or_hung("at work", self.plan.limit),
            MissingReport::Gone => match wait(&mut self.launcher, FOLLOW) {
                Some(status) => JobError::failed(format!("at work, {status}")),
                None => JobError::failed("a rank ended before its work was done".to_owned()),
            },
        })
    }

    /// Blocks until the launcher and the tools have ended. Then kills all other processes of the
    /// job, so that none holds the output open.
    fn end(&mut self, tools: &mut [Tool], limit: Duration) -> Result<(), JobError> {
        drop(self.input.take());
        let status = wait(&mut self.launcher, limit).ok_or(JobError::Hung("at the end", limit))?;
        if !status.success() {
            return Err(JobError::failed(status.to_string()));
        }
        for tool in tools {
            let status =
                wait(&mut tool.process, limit).ok_or(JobError::Hung("at the end of a tool", limit))?;
            if !status.success() {
                return Err(JobError::failed(format!("a tool, {status}")));
            }
        }
        processes::kill_descendants();
        Ok(())
    }

    fn ended_or_hung(&mut self, stage: &'static str, limit: Duration) -> JobError {
        match self.launcher.try_wait().unwrap() {
            Some(status) => JobError::failed(format!("{stage}, {status}")),
            None => JobError::Hung(stage, limit),
        }
    }
}

/// The measurements of a job without a barrier, from its start to its end.
pub struct WholeRun {
    /// The time from start to end.
    pub elapsed: Duration,
    /// The CPU time of all processes, ranks included.
    pub cpu: Duration,
    /// The output of the launcher.
    pub received: Received,
    /// The exit status of the launcher.
    pub status: ExitStatus,
}

/// Runs a job without a barrier, for `limit` at most.
pub fn run_whole(
    sandbox: &Sandbox,
    mut launcher: Command,
    out: Sink,
    limit: Duration,
) -> Result<WholeRun, JobError> {
    let (stdout, reader) = out.open();
    launcher.stdin(Stdio::null()).stdout(stdout).stderr(File::create(sandbox.stderr_path()).unwrap());
    launcher.env(TEMPORARY, sandbox.path());
    let (start, before) = (Instant::now(), cpu::children());
    let mut child = launcher.spawn().unwrap();
    drop(launcher);
    let status = wait(&mut child, limit);
    let elapsed = start.elapsed();
    processes::kill_descendants();
    let cpu = cpu::children() - before;
    let received = reader.map(SinkReader::join).unwrap_or_default();
    let status = status.ok_or(JobError::Hung("", limit))?;
    Ok(WholeRun { elapsed, cpu, received, status })
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
        thread::sleep(POLL_INTERVAL);
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
    reader: Option<SinkReader>,
    stderr: PathBuf,
}

impl Tool {
    fn start(mut command: Command, out: Sink, sandbox: &Sandbox) -> Tool {
        let (stdout, reader) = out.open();
        let (stderr_file, stderr) = sandbox.create_tool_stderr();
        let process = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr_file).spawn().unwrap();
        Tool { process, reader, stderr }
    }

    /// Blocks until the tool's output has ended. Returns the output and the number of bytes that
    /// the tool reported missing.
    fn received(self) -> (Received, u64) {
        let received = self.reader.map(SinkReader::join).unwrap_or_default();
        (received, reported(&self.stderr))
    }
}

/// Starts a tool. Returns it with the time from its start until it had received `bytes` bytes.
fn attach(
    command: Command,
    bytes: u64,
    checker: LineChecker,
    sandbox: &Sandbox,
    limit: Duration,
) -> Result<(Tool, Duration), JobError> {
    let (out, arrived) = Sink::notifying(bytes, checker);
    let start = Instant::now();
    let tool = Tool::start(command, out, sandbox);
    let arrived = arrived.recv_timeout(limit).map_err(|_| JobError::Hung("when a tool attached", limit))?;
    Ok((tool, arrived - start))
}

/// Returns the sum of the bytes that the file `stderr` reports missing.
fn reported(stderr: &Path) -> u64 {
    let text = fs::read_to_string(stderr).unwrap_or_default();
    let missing = text.lines().filter_map(|line| line.split_once(" bytes are missing"));
    missing.filter_map(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_losses_are_added_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "iof: rank 0 stdout: 1939743 bytes are missing at offset 0\nelse\nbare loop: 7 bytes are missing\n";
        fs::write(file.path(), text).unwrap();
        assert_eq!(reported(file.path()), 1_939_750);
    }
}
