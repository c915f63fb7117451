//! A tool that comes when the ranks have written, and gets what was kept of it.

use std::time::Duration;

use super::{Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Site};
use crate::compare::line::Checker;
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Attach as Finds, Launch, System, Tools, cache};
use crate::cpu;

/// Bytes of a write, of a line in it, and writes of each rank.
const SIZE: usize = 4096;
const LINE: usize = 64;
const WRITES: u64 = 4;

struct Attach {
    ranks: u32,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    scale.sizes(&[8, 64, 256]).iter().map(|ranks| boxed(Attach { ranks: *ranks })).collect()
}

impl Work for Attach {
    fn family(&self) -> String {
        format!("attaching late to {} KiB of each rank", SIZE as u64 * WRITES / 1024)
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let write = Write { line: Some(LINE), ..Write::new(SIZE, WRITES) };
        let rank = write.command(system, gate.path());
        let launch = Launch { tools: Tools::Late, ..Launch::new(site.path(), self.ranks, &rank) };
        let out = Out::File(cache(site.path()));
        let mut plan = Plan::new(site, &gate, system.launch(&launch)?, self.ranks, out);
        let tool = |launcher| system.tool(&Finds { site: site.path(), launcher, number: None });
        tool(0)?;
        let checker = Checker::new(LINE, Vec::new(), cpu::monotonic);
        plan.late =
            Some((Box::new(move |launcher| tool(launcher).unwrap()), write.bytes(self.ranks), checker));
        Some(job::run(plan).map(|ran| {
            let attached = ran.attached.as_ref().map_or(0.0, Duration::as_secs_f64);
            let figures = vec![(Figure::Attached, attached * 1e3), (Figure::Memory, mib(ran.memory))];
            Sample { figures, verdict: Verdict::of_tools(ran.tools, write.lines(self.ranks)) }
        }))
    }
}
