//! Tools that pull all of the output while the ranks write as fast as they can.

use super::{Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Site, StartTool};
use crate::compare::line::Checker;
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Attach, Launch, System, Tools as Attached};
use crate::cpu;

const RANKS: u32 = 8;
/// Bytes of a line.
const LINE: usize = 80;
/// Lines of all ranks together.
const LINES: u64 = 1_000_000;

struct Tools {
    tools: u32,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    scale.sizes(&[1, 4, 16]).iter().map(|tools| boxed(Tools { tools: *tools, scale })).collect()
}

impl Work for Tools {
    fn family(&self) -> String {
        format!("80-byte lines of {RANKS} ranks, pulled")
    }

    fn size(&self) -> (u32, &'static str) {
        (self.tools, "tool")
    }

    /// The launcher's own output goes to /dev/null. The lines of the first tool are looked at, the others' go to
    /// /dev/null.
    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let count = self.scale.part(LINES / u64::from(RANKS));
        let write = Write { line: Some(LINE), ..Write::new(LINE, count) };
        let rank = write.command(system, gate.path());
        let launch = Launch { tools: Attached::Early(self.tools), ..Launch::new(site.path(), RANKS, &rank) };
        let mut plan = Plan::new(site, &gate, system.launch(&launch)?, RANKS, Out::Null);
        let tool =
            |launcher, number| system.tool(&Attach { site: site.path(), launcher, number: Some(number) });
        // Who can't says so for any.
        tool(0, 0)?;
        for number in 0..self.tools {
            let start: StartTool = Box::new(move |launcher| tool(launcher, number).unwrap());
            let out = match number {
                0 => Out::checked(Checker::new(LINE, Vec::new(), cpu::monotonic)),
                _ => Out::Null,
            };
            plan.early.push((start, out));
        }
        Some(job::run(plan).map(|mut ran| {
            let (first, reported) = &mut ran.tools[0];
            let lines = first.checker.take().unwrap().end(write.lines(RANKS)).0;
            let (cpu, tools_cpu) = (ran.cpu.as_secs_f64(), ran.tools_cpu.as_secs_f64());
            let millions = write.lines(RANKS) as f64 / 1e6;
            let figures = vec![
                (Figure::CpuPerMillionLines, cpu / millions),
                (Figure::ToolsCpuPerMillionLines, tools_cpu / f64::from(self.tools) / millions),
                (Figure::LineRate, millions / ran.elapsed.as_secs_f64()),
                (Figure::Memory, mib(ran.memory)),
            ];
            let verdict = Verdict { lines, bytes_reported: *reported, ..Verdict::default() };
            Sample { figures, verdict }
        }))
    }
}
