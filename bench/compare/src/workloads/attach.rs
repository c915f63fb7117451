//! A late tool, which attaches after the ranks have written and receives the backlog.

use std::time::Duration;

use super::{Outcome, RankWrites, Workload, boxed, mib};
use crate::job::{self, JobPlan, Sandbox};
use crate::line::LineChecker;
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject, ToolLaunch, ToolTiming, cache};
use iof_bench::cpu;

/// The size of a write, in bytes.
const SIZE: usize = 4096;
/// The length of a line, in bytes.
const LINE: usize = 64;
/// The number of writes of each rank.
const WRITES: u64 = 4;

struct Attach {
    ranks: u32,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    scale.sizes(&[8, 64, 256]).iter().map(|ranks| boxed(Attach { ranks: *ranks })).collect()
}

impl Workload for Attach {
    fn family(&self) -> String {
        format!("attaching late to {} KiB of each rank", SIZE as u64 * WRITES / 1024)
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let write = RankWrites { line: Some(LINE), ..RankWrites::new(SIZE, WRITES) };
        let rank = write.command(subject, barrier.path());
        let launch = Launch { tools: ToolTiming::Late, ..Launch::new(sandbox.path(), self.ranks, &rank) };
        let out = Sink::File(cache(sandbox.path()));
        let mut plan = JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, self.ranks, out);
        let tool = |launcher| subject.tool(&ToolLaunch { directory: sandbox.path(), launcher, number: None });
        tool(0)?;
        let checker = LineChecker::new(LINE, Vec::new(), cpu::monotonic_nanos);
        plan.late =
            Some((Box::new(move |launcher| tool(launcher).unwrap()), write.bytes(self.ranks), checker));
        Some(job::run(plan).map(|report| {
            let attached = report.attached.as_ref().map_or(0.0, Duration::as_secs_f64);
            let figures = vec![(Metric::Attached, attached * 1e3), (Metric::Memory, mib(report.memory))];
            Sample { figures, verdict: Verdict::of_tools(report.tools, write.lines(self.ranks)) }
        }))
    }
}
