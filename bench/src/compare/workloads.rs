//! What the systems are made to do.

use std::path::Path;

use super::job::Site;
use super::sample::Sample;
use super::scale::Scale;
use super::systems::System;
use super::trouble::Trouble;

mod attach;
mod failures;
mod flow;
mod latency;
mod overload;
mod short;
mod stalled;
mod stdin;
mod tools;

/// Runs in which each line is looked at, beside those that are measured, have this part of the work.
const LOOKED_AT: u64 = 8;

/// What one run of a work gave.
pub type Outcome = Result<Sample, Trouble>;

/// Something to do, and how it is measured.
pub trait Work {
    /// What belongs into one plot.
    fn family(&self) -> String;

    /// How much of what, as in "8 ranks".
    fn size(&self) -> (u32, &'static str);

    /// Has a system do it once; none if it can't.
    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome>;

    /// What the tables call it.
    fn name(&self) -> String {
        let (size, unit) = self.size();
        format!("{}, {size} {unit}{}", self.family(), if size == 1 { "" } else { "s" })
    }
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    [
        flow::all(scale),
        latency::all(scale),
        tools::all(scale),
        attach::all(scale),
        stalled::all(scale),
        overload::all(scale),
        stdin::all(scale),
        short::all(scale),
        failures::all(scale),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Any of them.
fn boxed(work: impl Work + 'static) -> Box<dyn Work> {
    Box::new(work)
}

/// What one rank writes.
#[derive(Clone, Copy)]
struct Write {
    /// Bytes a write.
    size: usize,
    /// Writes.
    count: u64,
    /// Microseconds between two.
    pause: u64,
    /// Bytes of the numbered lines in them, if they are numbered.
    line: Option<usize>,
}

impl Write {
    /// As fast as it goes.
    fn new(size: usize, count: u64) -> Write {
        Write { size, count, pause: 0, line: None }
    }

    /// Bytes that so many ranks write.
    fn bytes(&self, ranks: u32) -> u64 {
        self.size as u64 * self.count * u64::from(ranks)
    }

    /// Numbered lines that so many ranks write.
    fn lines(&self, ranks: u32) -> u64 {
        self.line.map_or(0, |line| self.bytes(ranks) / line as u64)
    }

    /// The command line of a rank that does it.
    fn command(&self, system: &dyn System, gate: &Path) -> Vec<String> {
        let mut words = rank(gate, "write");
        words.push(format!("--size={}", self.size));
        words.push(format!("--count={}", self.count));
        words.push(format!("--pause={}", self.pause));
        if let Some(line) = self.line {
            words.push(format!("--line={line}"));
            words.push(format!("--rank-from={}", system.rank_variable()));
        }
        words
    }
}

/// The command line of a rank that does this.
fn rank(gate: &Path, what: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    [program.to_str().unwrap(), "rank", "--gate", gate.to_str().unwrap(), what].map(str::to_owned).to_vec()
}

/// Bytes in MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_a_quick_run_has_less_of_each_kind() {
        let names = |scale| {
            let mut names: Vec<String> = all(scale).iter().map(|work| work.name()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all(scale).len());
            names.len()
        };
        assert!(names(Scale::Quick) < names(Scale::Full));
    }
}
