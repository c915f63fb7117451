//! The latency of a lone line from its rank to the reader of the launcher's output.

use super::flow::tags;
use super::{Outcome, RankWrites, Workload, boxed, mib};
use crate::job::{self, JobPlan, Sandbox};
use crate::line::LineChecker;
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject};
use iof_bench::cpu;

/// The length of a line, in bytes.
const LINE: usize = 80;
/// The pause between two lines, in microseconds.
const PAUSE: u64 = 1000;
/// The number of lines of a run.
const LINES: u64 = 3000;

struct Latency {
    tagged: bool,
    lines: u64,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    [false, true].map(|tagged| boxed(Latency { tagged, lines: scale.part(LINES) })).into()
}

impl Workload for Latency {
    fn family(&self) -> String {
        format!("latency of a lone {}line", if self.tagged { "tagged " } else { "" })
    }

    fn size(&self) -> (u32, &'static str) {
        (1, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let write = RankWrites { size: LINE, count: self.lines, pause: PAUSE, line: Some(LINE) };
        let rank = write.command(subject, barrier.path());
        let launch = Launch { tagged: self.tagged, ..Launch::new(sandbox.path(), 1, &rank) };
        let tags = if self.tagged { tags(subject, 1) } else { Vec::new() };
        let out = Sink::checked(LineChecker::new(LINE, tags, cpu::monotonic_nanos));
        let report = job::run(JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, 1, out));
        Some(report.map(|mut report| {
            let (lines, latency) = report.received.checker.take().unwrap().end(self.lines);
            let percentile = |percent| latency.value_at_percentile(percent) as f64 / 1e3;
            let figures = vec![
                (Metric::P50, percentile(50.0)),
                (Metric::P99, percentile(99.0)),
                (Metric::P999, percentile(99.9)),
                (Metric::Memory, mib(report.memory)),
            ];
            Sample { figures, verdict: Verdict { lines, ..Verdict::default() } }
        }))
    }
}
