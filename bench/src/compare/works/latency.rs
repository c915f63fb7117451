//! A lone line: from its rank to whoever reads what the launcher writes.

use super::Work;
use crate::compare::job::{self, Out, Site, Trouble};
use crate::compare::line::Checker;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::systems::{Launch, System};
use crate::cpu;

/// Bytes of a line.
const LINE: usize = 80;
/// Microseconds between two lines of a rank.
const PAUSE: u64 = 1000;
/// Lines of a run.
const LINES: u64 = 3000;

pub struct Latency {
    tagged: bool,
    lines: u64,
}

/// All that there are, with one `less`th of their lines.
pub fn all(less: u64) -> impl Iterator<Item = Latency> {
    [false, true].into_iter().map(move |tagged| Latency { tagged, lines: (LINES / less).max(100) })
}

impl Work for Latency {
    fn family(&self) -> String {
        format!("latency of a lone {}line", if self.tagged { "tagged " } else { "" })
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Result<Sample, Trouble>> {
        let gate = site.gate();
        let rank = super::rank(system, gate.path(), LINE, self.lines, PAUSE, Some(LINE));
        let command = system.launch(&Launch { ranks: 1, tagged: self.tagged, command: &rank })?;
        let tags = if self.tagged { (0..=1).map(|rank| system.tag(rank)).collect() } else { Vec::new() };
        let checker = Checker::new(LINE, tags, cpu::monotonic);
        let ran = job::run(site, &gate, command, 1, Out::Pipe(Some(Box::new(checker))));
        Some(ran.map(|ran| {
            let (lines, latency) = ran.checker.unwrap().end(self.lines);
            let percentile = |figure, percent| (figure, latency.value_at_percentile(percent) as f64 / 1e3);
            let figures = vec![
                percentile(Figure::P50, 50.0),
                percentile(Figure::P99, 99.0),
                percentile(Figure::P999, 99.9),
                (Figure::Memory, ran.memory as f64 / f64::from(1 << 20)),
            ];
            Sample { figures, verdict: Verdict { lines, ..Verdict::default() } }
        }))
    }
}
