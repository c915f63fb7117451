//! Whoever reads the output stands still for a while, and then reads all; or a tool does that.

use std::time::Duration;

use super::{Outcome, Work, Write, boxed, mib};
use crate::compare::job::{self, Plan, Site};
use crate::compare::line::Checker;
use crate::compare::output::{Consumer, Out};
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Attach, Launch, System, Tools};
use crate::cpu;

/// How long nothing is read.
const STALL: Duration = Duration::from_secs(4);
/// Bytes of a write, of a line in it, and of all.
const SIZE: usize = 64 * 1024;
const LINE: usize = 64;
const BYTES: u64 = 1 << 29;

/// Who does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Reader,
    Tool,
}

struct Stalled {
    who: Who,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    [Who::Reader, Who::Tool].map(|who| boxed(Stalled { who, scale })).into()
}

impl Work for Stalled {
    fn family(&self) -> String {
        let who = if self.who == Who::Reader { "reader" } else { "tool" };
        format!("a {who} that stands still for {:?}", self.scale.time(STALL))
    }

    fn size(&self) -> (u32, &'static str) {
        (1, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let gate = site.gate();
        let write = Write { line: Some(LINE), ..Write::new(SIZE, self.scale.part(BYTES / SIZE as u64)) };
        let rank = write.command(system, gate.path());
        let checker = Checker::new(LINE, Vec::new(), cpu::monotonic);
        let stalls = self.scale.time(STALL);
        let stall = if self.who == Who::Reader { stalls } else { Duration::ZERO };
        let consumer = Consumer { checker: Some(checker), stall, ..Consumer::default() };
        let tools = if self.who == Who::Tool { Tools::Early(1) } else { Tools::None };
        let launch = Launch { tools, ..Launch::new(site.path(), 1, &rank) };
        let mut plan = Plan::new(site, &gate, system.launch(&launch)?, 1, Out::Pipe(Box::new(consumer)));
        if self.who == Who::Tool {
            let tool = |launcher| system.tool(&Attach { site: site.path(), launcher, number: Some(0) });
            tool(0)?;
            let checker = Checker::new(LINE, Vec::new(), cpu::monotonic);
            let stalled = Consumer { stall: stalls, checker: Some(checker), ..Consumer::default() };
            let out = Out::Pipe(Box::new(stalled));
            plan.early.push((Box::new(move |launcher| tool(launcher).unwrap()), out));
        }
        Some(job::run(plan).map(|mut ran| {
            let lines = ran.taken.checker.take().unwrap().end(write.lines(1)).0;
            let figures =
                vec![(Figure::RanksDone, ran.elapsed.as_secs_f64()), (Figure::Memory, mib(ran.memory))];
            let mut verdict = Verdict::of_tools(ran.tools, write.lines(1));
            verdict.lines.add(&lines);
            Sample { figures, verdict }
        }))
    }
}
