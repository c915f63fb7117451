//! A lone line: from its rank to whoever reads what the launcher writes.

use super::flow::tags;
use super::{Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Site};
use crate::compare::line::Checker;
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Launch, System};
use crate::cpu;

/// Bytes of a line.
const LINE: usize = 80;
/// Microseconds between two lines.
const PAUSE: u64 = 1000;
/// Lines of a run.
const LINES: u64 = 3000;

struct Latency {
    tagged: bool,
    lines: u64,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    [false, true].map(|tagged| boxed(Latency { tagged, lines: scale.part(LINES) })).into()
}

impl Work for Latency {
    fn family(&self) -> String {
        format!("latency of a lone {}line", if self.tagged { "tagged " } else { "" })
    }

    fn size(&self) -> (u32, &'static str) {
        (1, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let write = Write { size: LINE, count: self.lines, pause: PAUSE, line: Some(LINE) };
        let rank = write.command(system, gate.path());
        let launch = Launch { tagged: self.tagged, ..Launch::new(site.path(), 1, &rank) };
        let tags = if self.tagged { tags(system, 1) } else { Vec::new() };
        let out = Out::checked(Checker::new(LINE, tags, cpu::monotonic));
        let ran = job::run(Plan::new(site, &gate, system.launch(&launch)?, 1, out));
        Some(ran.map(|mut ran| {
            let (lines, latency) = ran.taken.checker.take().unwrap().end(self.lines);
            let percentile = |percent| latency.value_at_percentile(percent) as f64 / 1e3;
            let figures = vec![
                (Figure::P50, percentile(50.0)),
                (Figure::P99, percentile(99.0)),
                (Figure::P999, percentile(99.9)),
                (Figure::Memory, mib(ran.memory)),
            ];
            Sample { figures, verdict: Verdict { lines, ..Verdict::default() } }
        }))
    }
}
