//! Ranks that write as fast as they can.

use super::Work;
use crate::compare::job::{self, Out, Ran, Site, Trouble};
use crate::compare::line::Checker;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::systems::{Launch, System};
use crate::{cpu, load};

/// Bytes of a write in bulk.
const BULK: usize = 64 * 1024;
/// Bytes of the numbered lines in it.
const BULK_LINE: usize = 64;
/// Bytes of a line that is a write of its own.
const LINE: usize = 80;
/// What all ranks of a run write together: bytes in bulk, lines.
const BULK_BYTES: u64 = 1 << 30;
const LINES: u64 = 2_000_000;
/// The runs in which each line is looked at have this part of it.
const LOOKED_AT: u64 = 8;

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

pub struct Flow {
    what: What,
    to: To,
    ranks: u32,
    less: u64,
}

/// All that there are, with one `less`th of their bytes and lines.
pub fn all(less: u64) -> impl Iterator<Item = Flow> {
    let several: [(What, &[u32]); 3] =
        [(What::Bulk, &[1, 8, 64, 256]), (What::Plain, &[1, 8, 64]), (What::Tagged, &[1, 8, 64])];
    several.into_iter().flat_map(move |(what, ranks)| {
        [To::Null, To::Pipe]
            .into_iter()
            .flat_map(move |to| ranks.iter().map(move |ranks| Flow { what, to, ranks: *ranks, less }))
    })
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

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Result<Sample, Trouble>> {
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
    fn write(&self, part: u64) -> load::Write {
        let (size, all) = match self.what {
            What::Bulk => (BULK, BULK_BYTES / BULK as u64),
            What::Plain | What::Tagged => (LINE, LINES),
        };
        load::Write { size, count: (all / self.less / part / u64::from(self.ranks)).max(1), pause: 0 }
    }

    fn job(
        &self,
        system: &dyn System,
        site: &Site,
        write: load::Write,
        line: Option<usize>,
        out: Out,
    ) -> Option<Result<Ran, Trouble>> {
        let gate = site.gate();
        let rank = super::rank(system, gate.path(), write.size, write.count, write.pause, line);
        let launch = Launch { ranks: self.ranks, tagged: self.what == What::Tagged, command: &rank };
        Some(job::run(site, &gate, system.launch(&launch)?, self.ranks, out))
    }

    fn measured(&self, system: &dyn System, site: &Site) -> Option<Result<Sample, Trouble>> {
        let write = self.write(1);
        let out = if self.to == To::Null { Out::Null } else { Out::Pipe(None) };
        let ran = self.job(system, site, write, None, out)?;
        Some(ran.map(|ran| {
            let bytes = write.total() * u64::from(self.ranks);
            let counted = self.to == To::Pipe;
            let verdict = Verdict {
                // Tags are bytes, too; lines that are lost behind tags are found when lines are looked at.
                bytes_lost: if counted { bytes.saturating_sub(ran.bytes) } else { 0 },
                ..Verdict::default()
            };
            Sample { figures: self.figures(&ran, bytes, write.count * u64::from(self.ranks)), verdict }
        }))
    }

    fn figures(&self, ran: &Ran, bytes: u64, writes: u64) -> Vec<(Figure, f64)> {
        let (cpu, elapsed) = (ran.cpu.as_secs_f64(), ran.elapsed.as_secs_f64());
        let (gb, millions) = (bytes as f64 / 1e9, writes as f64 / 1e6);
        let memory = (Figure::Memory, ran.memory as f64 / f64::from(1 << 20));
        match self.what {
            What::Bulk => {
                vec![(Figure::CpuPerGb, cpu / gb), (Figure::Throughput, gb / elapsed), memory]
            }
            What::Plain | What::Tagged => vec![
                (Figure::CpuPerMillionLines, cpu / millions),
                (Figure::LineRate, millions / elapsed),
                memory,
            ],
        }
    }

    /// Another run, into a pipe, whose lines are numbered and looked at.
    fn looked_at(&self, system: &dyn System, site: &Site) -> Option<Result<Verdict, Trouble>> {
        let write = self.write(LOOKED_AT);
        let length = if self.what == What::Bulk { BULK_LINE } else { LINE };
        let tags: Vec<String> = match self.what {
            What::Tagged => (0..=self.ranks).map(|rank| system.tag(rank)).collect(),
            What::Bulk | What::Plain => Vec::new(),
        };
        let checker = Checker::new(length, tags, cpu::monotonic);
        let ran = self.job(system, site, write, Some(length), Out::Pipe(Some(Box::new(checker))))?;
        Some(ran.map(|ran| {
            let written = write.total() / length as u64 * u64::from(self.ranks);
            let (lines, _) = ran.checker.unwrap().end(written);
            Verdict { lines, ..Verdict::default() }
        }))
    }
}
