//! Ranks that write as fast as they can.

use std::process::Command;

use super::{CHECKED_PART, LINE, LINES, Outcome, RankWrites, Workload, boxed, mib};
use crate::error::JobError;
use crate::job::{self, JobPlan, JobReport, Sandbox};
use crate::line::LineChecker;
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject};
use iof_bench::cpu;

/// The size of a bulk write, in bytes.
const BULK: usize = 64 * 1024;
/// The bytes that all ranks of a bulk run write together.
const BULK_BYTES: u64 = 1 << 30;

/// The destination of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Null,
    Pipe,
}

/// The content of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Bulk,
    Plain,
    Tagged,
}

/// The processors on which launcher and ranks run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Processors {
    /// The scheduler chooses.
    Any,
    /// All on the first one.
    One,
    /// The launcher on the first one, the ranks on the second.
    Two,
}

struct Flow {
    content: Content,
    output: Output,
    ranks: u32,
    processors: Processors,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    let mut workloads = Vec::new();
    for content in [Content::Bulk, Content::Plain, Content::Tagged] {
        for output in if scale == Scale::Full { &[Output::Null, Output::Pipe][..] } else { &[Output::Pipe] } {
            let many: &[u32] = if content == Content::Bulk { &[1, 8, 64, 256] } else { &[1, 8, 64] };
            let flow = |ranks: &u32| Flow {
                content,
                output: *output,
                ranks: *ranks,
                processors: Processors::Any,
                scale,
            };
            workloads.extend(scale.sizes(many).iter().map(flow).map(boxed));
        }
    }
    let pinned = |processors| {
        boxed(Flow { content: Content::Bulk, output: Output::Null, ranks: 1, processors, scale })
    };
    workloads.extend([Processors::One, Processors::Two].map(pinned));
    workloads
}

impl Workload for Flow {
    fn family(&self) -> String {
        let content = match self.content {
            Content::Bulk => "bulk of 64 KiB writes",
            Content::Plain => "80-byte lines",
            Content::Tagged => "tagged 80-byte lines",
        };
        let output = match self.output {
            Output::Null => "/dev/null",
            Output::Pipe => "a pipe",
        };
        let processors = match self.processors {
            Processors::Any => "",
            Processors::One => " on one processor",
            Processors::Two => " across two processors",
        };
        format!("{content} to {output}{processors}")
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let measured = self.measured(subject, sandbox)?;
        let checked = self.checked(subject, sandbox)?;
        Some(measured.and_then(|mut sample| {
            sample.verdict.add(&checked?);
            Ok(sample)
        }))
    }
}

impl Flow {
    /// Returns the writes of each rank. The whole amount is divided by `divisor`.
    fn write(&self, divisor: u64) -> RankWrites {
        let (size, all) = match self.content {
            Content::Bulk => (BULK, BULK_BYTES / BULK as u64),
            Content::Plain | Content::Tagged => (LINE, LINES),
        };
        RankWrites::new(size, self.scale.part(all / divisor / u64::from(self.ranks)))
    }

    fn job(
        &self,
        subject: &dyn Subject,
        sandbox: &Sandbox,
        write: RankWrites,
        out: Sink,
    ) -> Option<Result<JobReport, JobError>> {
        let barrier = sandbox.barrier();
        let mut rank = write.command(subject, barrier.path());
        if self.processors == Processors::Two {
            rank.splice(..0, ["taskset", "-c", "1"].map(str::to_owned));
        }
        let launch = Launch {
            tagged: self.content == Content::Tagged,
            ..Launch::new(sandbox.path(), self.ranks, &rank)
        };
        let mut launcher = subject.launch(&launch)?;
        if self.processors != Processors::Any {
            launcher = on_first_processor(&launcher);
        }
        Some(job::run(JobPlan::new(sandbox, &barrier, launcher, self.ranks, out)))
    }

    fn measured(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let write = self.write(1);
        let out = if self.output == Output::Null { Sink::Null } else { Sink::counted() };
        let report = self.job(subject, sandbox, write, out)?;
        Some(report.map(|report| {
            let bytes = write.bytes(self.ranks);
            // Tags count as bytes too and can hide lost lines. The checked run finds these.
            let lost =
                if self.output == Output::Pipe { bytes.saturating_sub(report.received.bytes) } else { 0 };
            let verdict = Verdict { bytes_lost: lost, ..Verdict::default() };
            Sample { figures: self.figures(&report, bytes, write.count * u64::from(self.ranks)), verdict }
        }))
    }

    fn figures(&self, report: &JobReport, bytes: u64, writes: u64) -> Vec<(Metric, f64)> {
        let (cpu, elapsed) = (report.cpu.as_secs_f64(), report.elapsed.as_secs_f64());
        let (gb, millions) = (bytes as f64 / 1e9, writes as f64 / 1e6);
        let [cost, speed] = match self.content {
            Content::Bulk => [(Metric::CpuPerGb, cpu / gb), (Metric::Throughput, gb / elapsed)],
            Content::Plain | Content::Tagged => {
                [(Metric::CpuPerMillionLines, cpu / millions), (Metric::LineRate, millions / elapsed)]
            }
        };
        vec![cost, speed, (Metric::Memory, mib(report.memory))]
    }

    /// Runs the workload again into a pipe, with numbered lines that are checked.
    fn checked(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Result<Verdict, JobError>> {
        let write = self.write(CHECKED_PART);
        let write = RankWrites { line: Some(LINE), size: write.size / LINE * LINE, ..write };
        let tags = if self.content == Content::Tagged { tags(subject, self.ranks) } else { Vec::new() };
        let checker = LineChecker::new(LINE, tags, cpu::monotonic_nanos);
        let report = self.job(subject, sandbox, write, Sink::checked(checker))?;
        Some(report.map(|mut report| {
            let lines = report.received.checker.take().unwrap().end(write.lines(self.ranks)).0;
            Verdict { lines, ..Verdict::default() }
        }))
    }
}

/// Returns `command`, pinned to the first processor, see taskset(1).
fn on_first_processor(command: &Command) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", "0"]).arg(command.get_program()).args(command.get_args());
    pinned.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    pinned
}

/// Returns the tags of `ranks` ranks, whose numbers start at 0 or 1.
pub fn tags(subject: &dyn Subject, ranks: u32) -> Vec<String> {
    (0..=ranks).map(|rank| subject.tag(rank)).collect()
}
