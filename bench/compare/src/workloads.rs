//! The workloads that the subjects run.

use std::path::Path;

use super::error::JobError;
use super::job::Sandbox;
use super::sample::Sample;
use super::scale::Scale;
use super::subjects::Subject;

mod attach;
mod failures;
mod flow;
mod latency;
mod overload;
mod short;
mod stalled;
mod stdin;
mod tools;

/// The divisor for runs in which each line is checked. They run beside the measured ones, so that
/// checking does not affect the figures.
const CHECKED_PART: u64 = 8;

/// The length of a line, in bytes. It is not a power of two, so that a buffer's boundary does not
/// coincide with the end of a line.
const LINE: usize = 80;
/// The lines that all ranks of a run write together.
const LINES: u64 = 1_000_000;

/// The outcome of one run of a workload.
pub type Outcome = Result<Sample, JobError>;

/// A workload, and the way to measure it.
pub trait Workload {
    /// Returns the family: the workloads that share a plot.
    fn family(&self) -> String;

    /// Returns the size: a count and its unit, as in "8 ranks".
    fn size(&self) -> (u32, &'static str);

    /// Runs the workload once with a subject. Returns `None` if the subject does not support it.
    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome>;

    /// Returns the name for the tables.
    fn name(&self) -> String {
        let (size, unit) = self.size();
        format!("{}, {size} {unit}{}", self.family(), if size == 1 { "" } else { "s" })
    }
}

/// Returns all workloads.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
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

/// Boxes a workload.
fn boxed(workload: impl Workload + 'static) -> Box<dyn Workload> {
    Box::new(workload)
}

/// The writes of one rank.
#[derive(Clone, Copy)]
struct RankWrites {
    /// The size of one write, in bytes.
    size: usize,
    /// The number of writes.
    count: u64,
    /// The pause between two writes, in microseconds.
    pause: u64,
    /// The length of the numbered lines, in bytes. `None`: the lines are not numbered.
    line: Option<usize>,
}

impl RankWrites {
    /// Returns writes without pauses and without numbered lines.
    fn new(size: usize, count: u64) -> RankWrites {
        RankWrites { size, count, pause: 0, line: None }
    }

    /// Returns the bytes that `ranks` ranks write.
    fn bytes(&self, ranks: u32) -> u64 {
        self.size as u64 * self.count * u64::from(ranks)
    }

    /// Returns the numbered lines that `ranks` ranks write.
    fn lines(&self, ranks: u32) -> u64 {
        self.line.map_or(0, |line| self.bytes(ranks) / line as u64)
    }

    /// Returns the command line of a rank that makes these writes.
    fn command(&self, subject: &dyn Subject, barrier: &Path) -> Vec<String> {
        let mut words = rank(barrier, "write");
        words.push(format!("--size={}", self.size));
        words.push(format!("--count={}", self.count));
        words.push(format!("--pause={}", self.pause));
        if let Some(line) = self.line {
            words.push(format!("--line={line}"));
            words.push(format!("--rank-from={}", subject.rank_variable()));
        }
        words
    }
}

/// Returns the command line of a rank with this task.
fn rank(barrier: &Path, task: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    [program.to_str().unwrap(), "rank", "--barrier", barrier.to_str().unwrap(), task]
        .map(str::to_owned)
        .to_vec()
}

/// Converts bytes to MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_quick_run_has_fewer_workloads() {
        let names = |scale| {
            let mut names: Vec<String> = all(scale).iter().map(|workload| workload.name()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all(scale).len());
            names.len()
        };
        assert!(names(Scale::Quick) < names(Scale::Full));
    }
}
