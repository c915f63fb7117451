//! What the systems are made to do.

use super::job::{Site, Trouble};
use super::sample::Sample;
use super::systems::System;

mod flow;
mod latency;

/// Something to do, and how it is measured.
pub trait Work {
    /// What belongs into one plot.
    fn family(&self) -> String;

    /// How many ranks do it.
    fn ranks(&self) -> u32;

    /// Has a system do it once; none if it can't.
    fn run(&self, system: &dyn System, site: &Site) -> Option<Result<Sample, Trouble>>;

    /// What the tables call it.
    fn name(&self) -> String {
        let ranks = self.ranks();
        format!("{}, {ranks} rank{}", self.family(), if ranks == 1 { "" } else { "s" })
    }
}

/// All that there are, with one `less`th of their bytes and lines.
pub fn all(less: u64) -> Vec<Box<dyn Work>> {
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    works.extend(flow::all(less).map(|flow| Box::new(flow) as Box<dyn Work>));
    works.extend(latency::all(less).map(|latency| Box::new(latency) as Box<dyn Work>));
    works
}

/// The command line of ranks that write: `size` bytes, `count` times; numbered lines of `line` bytes if that is said.
fn rank(
    system: &dyn System,
    gate: &std::path::Path,
    size: usize,
    count: u64,
    pause: u64,
    line: Option<usize>,
) -> Vec<String> {
    let mut words = vec![
        std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        "rank".to_owned(),
        format!("--gate={}", gate.display()),
        format!("--size={size}"),
        format!("--count={count}"),
        format!("--pause={pause}"),
    ];
    if let Some(line) = line {
        words.push(format!("--line={line}"));
        words.push(format!("--rank-from={}", system.rank_variable()));
    }
    words
}
