//! The latency of a line from its rank to the reader of the launcher's output, while each rank
//! writes a line, pauses, and writes the next.

use super::flow::tags;
use super::{LINE, Outcome, RankWrites, Workload, boxed, mib};
use crate::job::{self, JobPlan, Sandbox};
use crate::line::LineChecker;
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject};
use iof_bench::cpu;

/// The pause between two lone lines, in microseconds.
const LONE: u64 = 1000;
/// The pauses between two lines of a rank while several ranks write, in microseconds.
const PAUSES: [u64; 3] = [100, 1000, 10_000];
/// The time for which the ranks write, in microseconds, if no write takes any time.
const TIME: u64 = 3_000_000;

struct Latency {
    tagged: bool,
    ranks: u32,
    /// The pause between two lines of a rank, in microseconds.
    pause: u64,
    /// The number of lines of each rank.
    lines: u64,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    let workload =
        |tagged, ranks, pause| boxed(Latency { tagged, ranks, pause, lines: scale.part(TIME / pause) });
    let lone = [false, true].map(|tagged| workload(tagged, 1, LONE));
    let ranks = scale.sizes(&[4, 8, 64]).iter();
    let many = ranks.flat_map(|ranks| PAUSES.map(|pause| workload(false, *ranks, pause)));
    lone.into_iter().chain(many).collect()
}

impl Workload for Latency {
    fn family(&self) -> String {
        match (self.tagged, self.ranks) {
            (true, _) => "latency of a lone tagged line".to_owned(),
            (false, 1) => "latency of a lone line".to_owned(),
            (false, _) => format!("latency of a line every {} us", self.pause),
        }
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let write = RankWrites { size: LINE, count: self.lines, pause: self.pause, line: Some(LINE) };
        let rank = write.command(subject, barrier.path());
        let launch = Launch { tagged: self.tagged, ..Launch::new(sandbox.path(), self.ranks, &rank) };
        let tags = if self.tagged { tags(subject, self.ranks) } else { Vec::new() };
        let out = Sink::checked(LineChecker::new(LINE, tags, cpu::monotonic_nanos));
        let report = job::run(JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, self.ranks, out));
        Some(report.map(|mut report| {
            let written = self.lines * u64::from(self.ranks);
            let (lines, latency) = report.received.checker.take().unwrap().end(written);
            let percentile = |percent| latency.value_at_percentile(percent) as f64 / 1e3;
            let figures = vec![
                (Metric::P50, percentile(50.0)),
                (Metric::P99, percentile(99.0)),
                (Metric::P999, percentile(99.9)),
                (Metric::CpuPerMillionLines, report.cpu.as_secs_f64() / (written as f64 / 1e6)),
                (Metric::Memory, mib(report.memory)),
            ];
            Sample { figures, verdict: Verdict { lines, ..Verdict::default() } }
        }))
    }
}
