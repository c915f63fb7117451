//! A stalled reader: the reader of the output, or a tool, reads nothing for a while and then
//! everything.

use std::time::Duration;

use super::{Outcome, RankWrites, Workload, boxed, mib};
use crate::job::{self, JobPlan, Sandbox};
use crate::line::LineChecker;
use crate::output::{ReaderOptions, Sink};
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject, ToolLaunch, ToolTiming};
use iof_bench::cpu;

/// The time for which nothing is read.
const STALL: Duration = Duration::from_secs(4);
/// The size of a write, in bytes.
const SIZE: usize = 64 * 1024;
/// The length of a line, in bytes.
const LINE: usize = 64;
/// The bytes that the rank writes.
const BYTES: u64 = 1 << 29;

/// The reader that stalls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staller {
    Reader,
    Tool,
}

struct Stalled {
    staller: Staller,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    [Staller::Reader, Staller::Tool].map(|staller| boxed(Stalled { staller, scale })).into()
}

impl Workload for Stalled {
    fn family(&self) -> String {
        let staller = if self.staller == Staller::Reader { "reader" } else { "tool" };
        format!("a {staller} that stands still for {:?}", self.scale.time(STALL))
    }

    fn size(&self) -> (u32, &'static str) {
        (1, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let write =
            RankWrites { line: Some(LINE), ..RankWrites::new(SIZE, self.scale.part(BYTES / SIZE as u64)) };
        let rank = write.command(subject, barrier.path());
        let checker = LineChecker::new(LINE, Vec::new(), cpu::monotonic_nanos);
        let stalls = self.scale.time(STALL);
        let stall = if self.staller == Staller::Reader { stalls } else { Duration::ZERO };
        let consumer = ReaderOptions { checker: Some(checker), stall, ..ReaderOptions::default() };
        let tools = if self.staller == Staller::Tool { ToolTiming::Early(1) } else { ToolTiming::None };
        let launch = Launch { tools, ..Launch::new(sandbox.path(), 1, &rank) };
        let mut plan =
            JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, 1, Sink::Pipe(Box::new(consumer)));
        if self.staller == Staller::Tool {
            let tool =
                |launcher| subject.tool(&ToolLaunch { directory: sandbox.path(), launcher, number: Some(0) });
            tool(0)?;
            let checker = LineChecker::new(LINE, Vec::new(), cpu::monotonic_nanos);
            let stalled = ReaderOptions { stall: stalls, checker: Some(checker), ..ReaderOptions::default() };
            let out = Sink::Pipe(Box::new(stalled));
            plan.early.push((Box::new(move |launcher| tool(launcher).unwrap()), out));
        }
        Some(job::run(plan).map(|mut report| {
            let lines = report.received.checker.take().unwrap().end(write.lines(1)).0;
            let figures =
                vec![(Metric::RanksDone, report.elapsed.as_secs_f64()), (Metric::Memory, mib(report.memory))];
            let mut verdict = Verdict::of_tools(report.tools, write.lines(1));
            verdict.lines.add(&lines);
            Sample { figures, verdict }
        }))
    }
}
