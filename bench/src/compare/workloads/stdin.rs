//! What comes to the launcher's stdin goes to rank 0 or to all ranks.

use std::sync::LazyLock;
use std::time::Duration;

use super::{Outcome, Work, boxed, mib, rank};
use crate::compare::job::{self, Plan, Site};
use crate::compare::output::Out;
use crate::compare::rank::sum_of;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Launch, Stdin as Fed, System};

/// Bytes in all.
const BYTES: u64 = 1 << 28;
/// What takes longer has stood still: the peers do.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes that come again and again: an odd number of them before they repeat, so that no piece looks like another.
static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1 << 20).map(|at| (at % 251) as u8).collect());

struct Stdin {
    ranks: u32,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    [1, 8].map(|ranks| boxed(Stdin { ranks, scale })).into()
}

impl Work for Stdin {
    fn family(&self) -> String {
        "stdin from a pipe".to_owned()
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let blocks = self.scale.part(BYTES / BLOCK.len() as u64);
        let each = blocks * BLOCK.len() as u64;
        let mut reader = rank(gate.path(), "read");
        reader.push(format!("--bytes={each}"));
        let stdin = if self.ranks == 1 { Fed::Rank0 } else { Fed::All };
        let launch = Launch { stdin, ..Launch::new(site.path(), self.ranks, &reader) };
        let mut plan = Plan::new(site, &gate, system.launch(&launch)?, self.ranks, Out::Null);
        plan.input = Some((&BLOCK, blocks));
        plan.limit = self.scale.time(LIMIT);
        Some(job::run(plan).map(|ran| {
            let gb = (each * u64::from(self.ranks)) as f64 / 1e9;
            let figures = vec![
                (Figure::CpuPerGb, ran.cpu.as_secs_f64() / gb),
                (Figure::Throughput, gb / ran.elapsed.as_secs_f64()),
                (Figure::Memory, mib(ran.memory)),
            ];
            let mut verdict = Verdict::default();
            let sum = sum_of(&BLOCK, blocks);
            for done in &ran.done {
                verdict.bytes_lost += each.saturating_sub(done.bytes);
                if done.bytes >= each && done.sum != sum {
                    verdict.note("a rank that got other bytes");
                }
            }
            Sample { figures, verdict }
        }))
    }
}
