//! Ranks that write as fast as they can.

use super::{LOOKED_AT, Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Ran, Site};
use crate::compare::line::Checker;
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Launch, System};
use crate::compare::trouble::Trouble;
use crate::cpu;

/// Bytes of a write in bulk.
const BULK: usize = 64 * 1024;
/// Bytes of a line that is a write of its own, and of those that are looked at in bulk: no power of two, so that pieces of
/// output that are taken for whole lines are none.
const LINE: usize = 80;
/// What all ranks of a run write together: bytes in bulk, lines.
const BULK_BYTES: u64 = 1 << 30;
const LINES: u64 = 1_000_000;

/// Where it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Null,
    Pipe,
}

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Bulk,
    Plain,
    Tagged,
}

struct Flow {
    what: What,
    to: To,
    ranks: u32,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    let mut works = Vec::new();
    for what in [What::Bulk, What::Plain, What::Tagged] {
        for to in if scale == Scale::Full { &[To::Null, To::Pipe][..] } else { &[To::Pipe] } {
            let many: &[u32] = if what == What::Bulk { &[1, 8, 64, 256] } else { &[1, 8, 64] };
            works.extend(
                scale.sizes(many).iter().map(|ranks| boxed(Flow { what, to: *to, ranks: *ranks, scale })),
            );
        }
    }
    works
}

impl Work for Flow {
    fn family(&self) -> String {
        let what = match self.what {
            What::Bulk => "bulk of 64 KiB writes",
            What::Plain => "80-byte lines",
            What::Tagged => "tagged 80-byte lines",
        };
        let to = match self.to {
            To::Null => "/dev/null",
            To::Pipe => "a pipe",
        };
        format!("{what} to {to}")
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let measured = self.measured(system, site)?;
        let looked_at = self.looked_at(system, site)?;
        Some(measured.and_then(|mut sample| {
            sample.verdict.add(&looked_at?);
            Ok(sample)
        }))
    }
}

impl Flow {
    /// What each rank writes of one `part`th of the work.
    fn write(&self, part: u64) -> Write {
        let (size, all) = match self.what {
            What::Bulk => (BULK, BULK_BYTES / BULK as u64),
            What::Plain | What::Tagged => (LINE, LINES),
        };
        Write::new(size, self.scale.part(all / part / u64::from(self.ranks)))
    }

    fn job(&self, system: &dyn System, site: &Site, write: Write, out: Out) -> Option<Result<Ran, Trouble>> {
        let gate = site.gate();
        let rank = write.command(system, gate.path());
        let launch =
            Launch { tagged: self.what == What::Tagged, ..Launch::new(site.path(), self.ranks, &rank) };
        Some(job::run(Plan::new(site, &gate, system.launch(&launch)?, self.ranks, out)))
    }

    fn measured(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let write = self.write(1);
        let out = if self.to == To::Null { Out::Null } else { Out::counted() };
        let ran = self.job(system, site, write, out)?;
        Some(ran.map(|ran| {
            let bytes = write.bytes(self.ranks);
            // Tags are bytes, too: lines that are lost among them are found when lines are looked at.
            let lost = if self.to == To::Pipe { bytes.saturating_sub(ran.taken.bytes) } else { 0 };
            let verdict = Verdict { bytes_lost: lost, ..Verdict::default() };
            Sample { figures: self.figures(&ran, bytes, write.count * u64::from(self.ranks)), verdict }
        }))
    }

    fn figures(&self, ran: &Ran, bytes: u64, writes: u64) -> Vec<(Figure, f64)> {
        let (cpu, elapsed) = (ran.cpu.as_secs_f64(), ran.elapsed.as_secs_f64());
        let (gb, millions) = (bytes as f64 / 1e9, writes as f64 / 1e6);
        let [cost, speed] = match self.what {
            What::Bulk => [(Figure::CpuPerGb, cpu / gb), (Figure::Throughput, gb / elapsed)],
            What::Plain | What::Tagged => {
                [(Figure::CpuPerMillionLines, cpu / millions), (Figure::LineRate, millions / elapsed)]
            }
        };
        vec![cost, speed, (Figure::Memory, mib(ran.memory))]
    }

    /// Another run, into a pipe, whose lines are numbered and looked at.
    fn looked_at(&self, system: &dyn System, site: &Site) -> Option<Result<Verdict, Trouble>> {
        let write = self.write(LOOKED_AT);
        let write = Write { line: Some(LINE), size: write.size / LINE * LINE, ..write };
        let tags = if self.what == What::Tagged { tags(system, self.ranks) } else { Vec::new() };
        let checker = Checker::new(LINE, tags, cpu::monotonic);
        let ran = self.job(system, site, write, Out::checked(checker))?;
        Some(ran.map(|mut ran| {
            let lines = ran.taken.checker.take().unwrap().end(write.lines(self.ranks)).0;
            Verdict { lines, ..Verdict::default() }
        }))
    }
}

/// The tags of so many ranks, whose numbers begin at 0 or 1.
pub fn tags(system: &dyn System, ranks: u32) -> Vec<String> {
    (0..=ranks).map(|rank| system.tag(rank)).collect()
}
