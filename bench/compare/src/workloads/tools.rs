//! Tools that pull all output while the ranks write as fast as they can.

use super::{CHECKED_PART, LINE, LINES, Outcome, RankWrites, Workload, boxed, mib};
use crate::error::JobError;
use crate::job::{self, JobPlan, JobReport, Sandbox, StartTool};
use crate::line::LineChecker;
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject, ToolLaunch, ToolTiming};
use iof_bench::cpu;

const RANKS: u32 = 8;

struct Tools {
    tools: u32,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    scale.sizes(&[1, 4, 16]).iter().map(|tools| boxed(Tools { tools: *tools, scale })).collect()
}

impl Workload for Tools {
    fn family(&self) -> String {
        format!("80-byte lines of {RANKS} ranks, pulled")
    }

    fn size(&self) -> (u32, &'static str) {
        (self.tools, "tool")
    }

    /// Measures with all output going to /dev/null. A second run checks the lines of the tools.
    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let count = self.scale.part(LINES / u64::from(RANKS));
        let write = RankWrites { line: Some(LINE), ..RankWrites::new(LINE, count) };
        let measured = self.job(subject, sandbox, write, false)?;
        let short = RankWrites { count: count / CHECKED_PART, ..write };
        let checked = self.job(subject, sandbox, short, true)?;
        Some(measured.and_then(|report| {
            let verdict = Verdict::of_tools(checked?.tools, short.lines(RANKS));
            let (cpu, tools_cpu) = (report.cpu.as_secs_f64(), report.tools_cpu.as_secs_f64());
            let millions = write.lines(RANKS) as f64 / 1e6;
            let figures = vec![
                (Metric::CpuPerMillionLines, cpu / millions),
                (Metric::ToolsCpuPerMillionLines, tools_cpu / f64::from(self.tools) / millions),
                (Metric::LineRate, millions / report.elapsed.as_secs_f64()),
                (Metric::Memory, mib(report.memory)),
            ];
            Ok(Sample { figures, verdict })
        }))
    }
}

impl Tools {
    fn job(
        &self,
        subject: &dyn Subject,
        sandbox: &Sandbox,
        write: RankWrites,
        check: bool,
    ) -> Option<Result<JobReport, JobError>> {
        let barrier = sandbox.barrier();
        let rank = write.command(subject, barrier.path());
        let launch =
            Launch { tools: ToolTiming::Early(self.tools), ..Launch::new(sandbox.path(), RANKS, &rank) };
        let mut plan = JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, RANKS, Sink::Null);
        let tool = |launcher, number| {
            subject.tool(&ToolLaunch { directory: sandbox.path(), launcher, number: Some(number) })
        };
        // A subject without tools returns `None` for any number.
        tool(0, 0)?;
        for number in 0..self.tools {
            let start: StartTool = Box::new(move |launcher| tool(launcher, number).unwrap());
            let checker = || LineChecker::new(LINE, Vec::new(), cpu::monotonic_nanos);
            plan.early.push((start, if check { Sink::checked(checker()) } else { Sink::Null }));
        }
        Some(job::run(plan))
    }
}
