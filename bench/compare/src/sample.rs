//! The results of runs: figures of several rounds, and the lines that were lost, mixed or cut.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::error::JobError;
use super::line::LineCounts;
use super::output::Received;
use iof_bench::table::Figures;

/// The kind of a measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// CPU time of the forwarder, in seconds per GB (10^9 bytes).
    CpuPerGb,
    /// CPU time of the forwarder, in seconds per million lines.
    CpuPerMillionLines,
    /// CPU time of one tool, in seconds per million lines.
    ToolsCpuPerMillionLines,
    /// CPU time of the launcher and all ranks, in seconds.
    CpuOfAll,
    /// Time from the launcher's start to its end, in seconds.
    Wall,
    /// Bytes that the ranks write or read, in GB per second.
    Throughput,
    /// Lines that the ranks write, in millions per second.
    LineRate,
    /// Time until the ranks have written all their output, in seconds.
    RanksDone,
    /// Time from a tool's start until it has received the backlog, in milliseconds.
    Attached,
    /// Median time from the write of a line to its arrival at the launcher's reader, in
    /// microseconds.
    P50,
    /// 99th percentile of that time.
    P99,
    /// 99.9th percentile of that time.
    P999,
    /// Peak memory of the forwarder, in MiB.
    Memory,
}

impl Metric {
    /// Returns the column header.
    pub fn label(self) -> &'static str {
        match self {
            Metric::CpuPerGb => "CPU s/GB",
            Metric::CpuPerMillionLines => "CPU s/M lines",
            Metric::ToolsCpuPerMillionLines => "a tool's CPU s/M lines",
            Metric::CpuOfAll => "CPU s, ranks included",
            Metric::Wall => "wall s",
            Metric::Throughput => "ranks GB/s",
            Metric::LineRate => "ranks M lines/s",
            Metric::RanksDone => "ranks done after s",
            Metric::Attached => "attached in ms",
            Metric::P50 => "p50 us",
            Metric::P99 => "p99 us",
            Metric::P999 => "p99.9 us",
            Metric::Memory => "peak MiB",
        }
    }
}

/// The result of one run.
pub struct Sample {
    /// The measured figures.
    pub figures: Vec<(Metric, f64)>,
    /// The bytes and lines that arrived or were lost, and other problems.
    pub verdict: Verdict,
}

/// The bytes and lines that arrived or were lost, and other problems.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// The lines of the runs in which lines were checked.
    pub lines: LineCounts,
    /// The bytes that were written and did not arrive, in runs in which bytes were counted.
    pub bytes_lost: u64,
    /// The bytes that the subject itself reported missing.
    pub bytes_reported: u64,
    /// Other problems, each with the number of its occurrences.
    #[serde(rename = "troubles")]
    pub problems: BTreeMap<String, u32>,
}

impl Verdict {
    /// Adds the verdict of another run.
    pub fn add(&mut self, other: &Verdict) {
        self.lines.add(&other.lines);
        self.bytes_lost += other.bytes_lost;
        self.bytes_reported += other.bytes_reported;
        for (error, times) in &other.problems {
            *self.problems.entry(error.clone()).or_default() += times;
        }
    }

    /// Returns the verdict on tools that were each due `lines` lines, from their checkers.
    pub fn of_tools(tools: Vec<(Received, u64)>, lines: u64) -> Verdict {
        let mut all = Verdict::default();
        for (received, reported) in tools {
            all.bytes_reported += reported;
            if let Some(checker) = received.checker {
                all.lines.add(&checker.end(lines).0);
            }
        }
        all
    }

    /// Counts one occurrence of another problem.
    pub fn add_problem(&mut self, error: &str) {
        *self.problems.entry(error.to_owned()).or_default() += 1;
    }
}

impl From<&JobError> for Verdict {
    fn from(error: &JobError) -> Verdict {
        Verdict { problems: BTreeMap::from([(error.to_string(), 1)]), ..Verdict::default() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineCounts { written, out_of_order, mixed, cut, .. } = self.lines;
        let mut parts = Vec::new();
        if written > 0 {
            let counts = [
                (self.lines.missing(), "not whole"),
                (out_of_order, "out of order"),
                (mixed, "pieces mixed"),
                (cut, "pieces cut"),
            ];
            let wrong: Vec<String> =
                counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            parts.push(match self.lines.is_exact() {
                true => format!("all of {written} lines whole"),
                false => format!("of {written} lines {}", wrong.join(", ")),
            });
        }
        if self.bytes_lost > 0 || self.bytes_reported > 0 {
            parts.push(match (self.bytes_lost, self.bytes_reported) {
                (lost, 0) => format!("{lost} bytes lost"),
                // Where lines are checked, losses are counted in lines.
                (0, reported) => format!("{reported} bytes reported as lost"),
                (lost, reported) if lost == reported => format!("{lost} bytes lost, each reported"),
                (lost, reported) => format!("{lost} bytes lost, {reported} reported"),
            });
        }
        parts.extend(self.problems.iter().map(|(what, times)| match times {
            1 => what.clone(),
            _ => format!("{times} times {what}"),
        }));
        if parts.is_empty() {
            parts.push("nothing wrong".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

/// All rounds of one subject on one workload.
#[derive(Default)]
pub struct Rounds {
    /// The measured figures of each round, none of a round that failed.
    rounds: Vec<BTreeMap<Metric, f64>>,
    /// The sum of the rounds' verdicts.
    pub verdict: Verdict,
}

impl Rounds {
    /// Adds the result of one round.
    pub fn add(&mut self, outcome: Result<Sample, JobError>) {
        match outcome {
            Ok(sample) => {
                self.rounds.push(sample.figures.into_iter().collect());
                self.verdict.add(&sample.verdict);
            }
            Err(error) => {
                self.rounds.push(BTreeMap::new());
                self.verdict.add(&Verdict::from(&error));
            }
        }
    }

    /// Returns the figures of all rounds.
    pub fn figures(&self) -> BTreeMap<Metric, Figures> {
        let mut all: BTreeMap<Metric, Figures> = BTreeMap::new();
        for (metric, figure) in self.rounds.iter().flatten() {
            all.entry(*metric).or_default().add(*figure);
        }
        all
    }

    /// Returns the ratios of a figure to that of `other` in the same round.
    pub fn ratios(&self, metric: Metric, other: &Rounds) -> Option<Figures> {
        let mut ratios: Option<Figures> = None;
        for (own, other) in self.rounds.iter().zip(&other.rounds) {
            if let (Some(own), Some(other)) = (own.get(&metric), other.get(&metric).filter(|it| **it > 0.0)) {
                ratios.get_or_insert_default().add(own / other);
            }
        }
        ratios
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_verdict_lists_only_what_went_wrong() {
        let exact = LineCounts { written: 5, whole: 5, ..LineCounts::default() };
        let verdict = Verdict { lines: exact, ..Verdict::default() };
        assert_eq!(verdict.to_string(), "all of 5 lines whole");
        let wrong = LineCounts { written: 5, whole: 3, mixed: 1, ..LineCounts::default() };
        let verdict = Verdict { lines: wrong, bytes_lost: 7, ..Verdict::default() };
        assert_eq!(verdict.to_string(), "of 5 lines 2 not whole, 1 pieces mixed; 7 bytes lost");
        assert_eq!(Verdict::default().to_string(), "nothing wrong");
    }

    #[test]
    fn failed_rounds_are_counted_and_have_no_figures() {
        let mut rounds = Rounds::default();
        for _ in 0..2 {
            rounds.add(Err(JobError::Hung("at work", Duration::from_secs(9))));
        }
        let lines = LineCounts { written: 1, whole: 1, ..LineCounts::default() };
        let verdict = Verdict { lines, ..Verdict::default() };
        rounds.add(Ok(Sample { figures: vec![(Metric::P50, 3.0)], verdict }));
        assert_eq!(rounds.figures()[&Metric::P50].median(), 3.0);
        assert_eq!(rounds.verdict.to_string(), "all of 1 lines whole; 2 times hung at work, killed after 9s");
    }
}
