//! Tools that pull all of the output while the ranks write as fast as they can.

use super::{LOOKED_AT, Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Ran, Site, StartTool};
use crate::compare::line::Checker;
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Attach, Launch, System, Tools as Attached};
use crate::compare::trouble::Trouble;
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

    /// What the launcher and the tools write goes to /dev/null; in another run the tools' lines are looked at.
    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let count = self.scale.part(LINES / u64::from(RANKS));
        let write = Write { line: Some(LINE), ..Write::new(LINE, count) };
        let measured = self.job(system, site, write, false)?;
        let short = Write { count: count / LOOKED_AT, ..write };
        let looked_at = self.job(system, site, short, true)?;
        Some(measured.and_then(|ran| {
            let verdict = Verdict::of_tools(looked_at?.tools, short.lines(RANKS));
            let (cpu, tools_cpu) = (ran.cpu.as_secs_f64(), ran.tools_cpu.as_secs_f64());
            let millions = write.lines(RANKS) as f64 / 1e6;
            let figures = vec![
                (Figure::CpuPerMillionLines, cpu / millions),
                (Figure::ToolsCpuPerMillionLines, tools_cpu / f64::from(self.tools) / millions),
                (Figure::LineRate, millions / ran.elapsed.as_secs_f64()),
                (Figure::Memory, mib(ran.memory)),
            ];
            Ok(Sample { figures, verdict })
        }))
    }
}

impl Tools {
    fn job(
        &self,
        system: &dyn System,
        site: &Site,
        write: Write,
        look: bool,
    ) -> Option<Result<Ran, Trouble>> {
        let gate = site.gate();
        let rank = write.command(system, gate.path());
        let launch = Launch { tools: Attached::Early(self.tools), ..Launch::new(site.path(), RANKS, &rank) };
        let mut plan = Plan::new(site, &gate, system.launch(&launch)?, RANKS, Out::Null);
        let tool =
            |launcher, number| system.tool(&Attach { site: site.path(), launcher, number: Some(number) });
        // Who can't says so for any.
        tool(0, 0)?;
        for number in 0..self.tools {
            let start: StartTool = Box::new(move |launcher| tool(launcher, number).unwrap());
            let checker = || Checker::new(LINE, Vec::new(), cpu::monotonic);
            plan.early.push((start, if look { Out::checked(checker()) } else { Out::Null }));
        }
        Some(job::run(plan))
    }
}
