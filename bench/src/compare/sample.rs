//! What runs gave: figures of several rounds, and who lost, mixed or cut what.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::line::Found;
use super::output::Taken;
use super::trouble::Trouble;
use crate::table::Figures;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// CPU time of the forwarder, in seconds for each GB (10^9 bytes).
    CpuPerGb,
    /// CPU time of the forwarder, in seconds for each million lines.
    CpuPerMillionLines,
    /// CPU time of a tool, in seconds for each million lines.
    ToolsCpuPerMillionLines,
    /// CPU time of the launcher and all ranks, in seconds.
    CpuOfAll,
    /// From the launcher's start to its end, in seconds.
    Wall,
    /// GB that the ranks write or read a second.
    Throughput,
    /// Million lines that the ranks write a second.
    LineRate,
    /// Until the ranks had written all, in seconds.
    RanksDone,
    /// From a tool's start until it had all that was kept, in milliseconds.
    Attached,
    /// From the write to the reader behind the launcher, in microseconds: half of the lines.
    P50,
    /// The same: 99 of 100.
    P99,
    /// The same: 999 of 1,000.
    P999,
    /// The most memory of the forwarder, in MiB.
    Memory,
}

impl Figure {
    /// What stands above it.
    pub fn label(self) -> &'static str {
        match self {
            Figure::CpuPerGb => "CPU s/GB",
            Figure::CpuPerMillionLines => "CPU s/M lines",
            Figure::ToolsCpuPerMillionLines => "a tool's CPU s/M lines",
            Figure::CpuOfAll => "CPU s, ranks included",
            Figure::Wall => "wall s",
            Figure::Throughput => "ranks GB/s",
            Figure::LineRate => "ranks M lines/s",
            Figure::RanksDone => "ranks done after s",
            Figure::Attached => "attached in ms",
            Figure::P50 => "p50 us",
            Figure::P99 => "p99 us",
            Figure::P999 => "p99.9 us",
            Figure::Memory => "peak MiB",
        }
    }
}

/// What one run gave.
pub struct Sample {
    /// The figures.
    pub figures: Vec<(Figure, f64)>,
    /// What was seen of the lines.
    pub verdict: Verdict,
}

/// What was seen of the bytes and lines of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Of the runs in which lines were looked at.
    pub lines: Found,
    /// Bytes that were written and did not come, of runs in which they were counted.
    pub bytes_lost: u64,
    /// Bytes of which the system itself said that they did not come.
    pub bytes_reported: u64,
    /// What else went wrong, and how often.
    pub troubles: BTreeMap<String, u32>,
}

impl Verdict {
    /// Adds another run's.
    pub fn add(&mut self, other: &Verdict) {
        self.lines.add(&other.lines);
        self.bytes_lost += other.bytes_lost;
        self.bytes_reported += other.bytes_reported;
        for (trouble, times) in &other.troubles {
            *self.troubles.entry(trouble.clone()).or_default() += times;
        }
    }

    /// Of tools to each of which so many lines were due, whose lines were looked at.
    pub fn of_tools(tools: Vec<(Taken, u64)>, lines: u64) -> Verdict {
        let mut all = Verdict::default();
        for (taken, reported) in tools {
            all.bytes_reported += reported;
            if let Some(checker) = taken.checker {
                all.lines.add(&checker.end(lines).0);
            }
        }
        all
    }

    /// Notes something else that went wrong once.
    pub fn note(&mut self, trouble: &str) {
        *self.troubles.entry(trouble.to_owned()).or_default() += 1;
    }
}

impl From<&Trouble> for Verdict {
    fn from(trouble: &Trouble) -> Verdict {
        Verdict { troubles: BTreeMap::from([(trouble.to_string(), 1)]), ..Verdict::default() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { written, out_of_order, mixed, cut, .. } = self.lines;
        let mut said = Vec::new();
        if written > 0 {
            let counts = [
                (self.lines.missing(), "not whole"),
                (out_of_order, "out of order"),
                (mixed, "pieces mixed"),
                (cut, "pieces cut"),
            ];
            let wrong: Vec<String> =
                counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            said.push(match self.lines.is_exact() {
                true => format!("all of {written} lines whole"),
                false => format!("of {written} lines {}", wrong.join(", ")),
            });
        }
        if self.bytes_lost > 0 || self.bytes_reported > 0 {
            said.push(match (self.bytes_lost, self.bytes_reported) {
                (lost, 0) => format!("{lost} bytes lost"),
                // Where lines are looked at, what did not come is counted in lines.
                (0, reported) => format!("{reported} bytes reported as lost"),
                (lost, reported) if lost == reported => format!("{lost} bytes lost, each reported"),
                (lost, reported) => format!("{lost} bytes lost, {reported} reported"),
            });
        }
        said.extend(self.troubles.iter().map(|(what, times)| match times {
            1 => what.clone(),
            _ => format!("{times} times {what}"),
        }));
        if said.is_empty() {
            said.push("nothing wrong".to_owned());
        }
        f.write_str(&said.join("; "))
    }
}

/// All rounds of one system at one work.
#[derive(Default)]
pub struct Rounds {
    /// What was measured.
    pub figures: BTreeMap<Figure, Figures>,
    /// What was seen.
    pub verdict: Verdict,
}

impl Rounds {
    /// Notes one.
    pub fn add(&mut self, ran: Result<Sample, Trouble>) {
        match ran {
            Ok(sample) => {
                for (figure, value) in sample.figures {
                    self.figures.entry(figure).or_default().add(value);
                }
                self.verdict.add(&sample.verdict);
            }
            Err(trouble) => self.verdict.add(&Verdict::from(&trouble)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_verdict_says_only_what_went_wrong() {
        let exact = Found { written: 5, whole: 5, ..Found::default() };
        let verdict = Verdict { lines: exact, ..Verdict::default() };
        assert_eq!(verdict.to_string(), "all of 5 lines whole");
        let wrong = Found { written: 5, whole: 3, mixed: 1, ..Found::default() };
        let verdict = Verdict { lines: wrong, bytes_lost: 7, ..Verdict::default() };
        assert_eq!(verdict.to_string(), "of 5 lines 2 not whole, 1 pieces mixed; 7 bytes lost");
        assert_eq!(Verdict::default().to_string(), "nothing wrong");
    }

    #[test]
    fn rounds_that_failed_are_counted_and_have_no_figures() {
        let mut rounds = Rounds::default();
        for _ in 0..2 {
            rounds.add(Err(Trouble::Hung("at work", Duration::from_secs(9))));
        }
        let lines = Found { written: 1, whole: 1, ..Found::default() };
        let verdict = Verdict { lines, ..Verdict::default() };
        rounds.add(Ok(Sample { figures: vec![(Figure::P50, 3.0)], verdict }));
        assert_eq!(rounds.figures[&Figure::P50].median(), 3.0);
        assert_eq!(rounds.verdict.to_string(), "all of 1 lines whole; 2 times hung at work, killed after 9s");
    }
}
