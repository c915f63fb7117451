//! A reader that is slower than the ranks, under each drop policy.

use super::{LINE, Outcome, RankWrites, Workload, boxed, mib};
use crate::job::{self, JobPlan, Sandbox};
use crate::line::LineChecker;
use crate::output::{ReaderOptions, Sink};
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{FullPolicy, Launch, Subject};
use iof_bench::cpu;

const RANKS: u32 = 8;
/// The bytes that all ranks write together.
const BYTES: u64 = 160_000_000;
/// The reader's rate, in bytes per second.
const RATE: u64 = 40_000_000;

struct Overload {
    full: FullPolicy,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    [FullPolicy::Wait, FullPolicy::DropNewest, FullPolicy::DropOldest]
        .map(|full| boxed(Overload { full, scale }))
        .into()
}

impl Workload for Overload {
    fn family(&self) -> String {
        let policy = match self.full {
            FullPolicy::Wait => "nothing dropped",
            FullPolicy::DropNewest => "the newest dropped",
            FullPolicy::DropOldest => "the oldest dropped",
        };
        format!("a reader that takes {} MB/s, {policy}", RATE / 1_000_000)
    }

    fn size(&self) -> (u32, &'static str) {
        (RANKS, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let count = self.scale.part(BYTES / LINE as u64 / u64::from(RANKS));
        let write = RankWrites { line: Some(LINE), ..RankWrites::new(LINE, count) };
        let rank = write.command(subject, barrier.path());
        let launch = Launch { full: self.full, ..Launch::new(sandbox.path(), RANKS, &rank) };
        let checker = Some(LineChecker::new(LINE, Vec::new(), cpu::monotonic_nanos));
        let slow = ReaderOptions { rate: Some(RATE), checker, ..ReaderOptions::default() };
        let out = Sink::Pipe(Box::new(slow));
        let report = job::run(JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, RANKS, out));
        Some(report.map(|mut report| {
            let bytes = write.bytes(RANKS);
            let figures = vec![
                (Metric::Throughput, bytes as f64 / 1e9 / report.elapsed.as_secs_f64()),
                (Metric::CpuPerGb, report.cpu.as_secs_f64() / (bytes as f64 / 1e9)),
                (Metric::Memory, mib(report.memory)),
            ];
            let verdict = Verdict {
                lines: report.received.checker.take().unwrap().end(write.lines(RANKS)).0,
                bytes_lost: bytes.saturating_sub(report.received.bytes),
                bytes_reported: report.reported,
                ..Verdict::default()
            };
            Sample { figures, verdict }
        }))
    }
}
