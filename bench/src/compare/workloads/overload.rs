//! A reader that is slower than the ranks, under each policy of what then becomes of the bytes.

use super::{Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Site};
use crate::compare::line::Checker;
use crate::compare::output::{Consumer, Out};
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Full, Launch, System};
use crate::cpu;

const RANKS: u32 = 8;
/// Bytes of a line, and of all.
const LINE: usize = 80;
const BYTES: u64 = 160_000_000;
/// Bytes a second that are read.
const RATE: u64 = 40_000_000;

struct Overload {
    full: Full,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    [Full::Wait, Full::DropNewest, Full::DropOldest].map(|full| boxed(Overload { full, scale })).into()
}

impl Work for Overload {
    fn family(&self) -> String {
        let policy = match self.full {
            Full::Wait => "nothing dropped",
            Full::DropNewest => "the newest dropped",
            Full::DropOldest => "the oldest dropped",
        };
        format!("a reader that takes {} MB/s, {policy}", RATE / 1_000_000)
    }

    fn size(&self) -> (u32, &'static str) {
        (RANKS, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let count = self.scale.part(BYTES / LINE as u64 / u64::from(RANKS));
        let write = Write { line: Some(LINE), ..Write::new(LINE, count) };
        let rank = write.command(system, gate.path());
        let launch = Launch { full: self.full, ..Launch::new(site.path(), RANKS, &rank) };
        let checker = Some(Checker::new(LINE, Vec::new(), cpu::monotonic));
        let slow = Consumer { rate: Some(RATE), checker, ..Consumer::default() };
        let out = Out::Pipe(Box::new(slow));
        let ran = job::run(Plan::new(site, &gate, system.launch(&launch)?, RANKS, out));
        Some(ran.map(|mut ran| {
            let bytes = write.bytes(RANKS);
            let figures = vec![
                (Figure::Throughput, bytes as f64 / 1e9 / ran.elapsed.as_secs_f64()),
                (Figure::CpuPerGb, ran.cpu.as_secs_f64() / (bytes as f64 / 1e9)),
                (Figure::Memory, mib(ran.memory)),
            ];
            let verdict = Verdict {
                lines: ran.taken.checker.take().unwrap().end(write.lines(RANKS)).0,
                bytes_lost: bytes.saturating_sub(ran.taken.bytes),
                bytes_reported: ran.reported,
                ..Verdict::default()
            };
            Sample { figures, verdict }
        }))
    }
}
