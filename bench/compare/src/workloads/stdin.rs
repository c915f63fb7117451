//! Forwarding the launcher's stdin to rank 0 or to all ranks.

use std::sync::LazyLock;
use std::time::Duration;

use super::{Outcome, Workload, boxed, mib, rank};
use crate::job::{self, JobPlan, Sandbox};
use crate::output::Sink;
use crate::rank::sum_of;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, StdinTarget, Subject};

/// The bytes of the input.
const BYTES: u64 = 1 << 28;
/// The time limit, after which a job counts as hung. Some subjects do hang.
const LIMIT: Duration = Duration::from_secs(20);
/// The block that is repeated as input. Its pattern has an odd period, so that a misplaced piece
/// changes the checksum.
static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1 << 20).map(|index| (index % 251) as u8).collect());

struct Stdin {
    ranks: u32,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    [1, 8].map(|ranks| boxed(Stdin { ranks, scale })).into()
}

impl Workload for Stdin {
    fn family(&self) -> String {
        "stdin from a pipe".to_owned()
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let barrier = sandbox.barrier();
        let blocks = self.scale.part(BYTES / BLOCK.len() as u64);
        let each = blocks * BLOCK.len() as u64;
        let mut reader = rank(barrier.path(), "read");
        reader.push(format!("--bytes={each}"));
        let stdin = if self.ranks == 1 { StdinTarget::Rank0 } else { StdinTarget::All };
        let launch = Launch { stdin, ..Launch::new(sandbox.path(), self.ranks, &reader) };
        let mut plan = JobPlan::new(sandbox, &barrier, subject.launch(&launch)?, self.ranks, Sink::Null);
        plan.input = Some((&BLOCK, blocks));
        plan.limit = self.scale.time(LIMIT);
        Some(job::run(plan).map(|report| {
            let gb = (each * u64::from(self.ranks)) as f64 / 1e9;
            let figures = vec![
                (Metric::CpuPerGb, report.cpu.as_secs_f64() / gb),
                (Metric::Throughput, gb / report.elapsed.as_secs_f64()),
                (Metric::Memory, mib(report.memory)),
            ];
            let mut verdict = Verdict::default();
            let sum = sum_of(&BLOCK, blocks);
            for rank in &report.reports {
                verdict.bytes_lost += each.saturating_sub(rank.bytes);
                if rank.bytes >= each && rank.sum != sum {
                    verdict.add_problem("a rank that got other bytes");
                }
            }
            Sample { figures, verdict }
        }))
    }
}
