//! The report of a comparison: tables on the terminal, JSON and plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use super::sample::{Metric, Rounds, Verdict};
use super::subjects::BARE;
use super::workloads::Workload;

pub mod machine;
pub mod plot;

/// The report of one run of the command.
#[derive(Serialize)]
pub struct Report {
    /// The description of the machine.
    machine: BTreeMap<&'static str, String>,
    /// The number of rounds.
    rounds: u32,
    /// The subjects that were available, each with its version.
    #[serde(rename = "systems")]
    pub subjects: BTreeMap<&'static str, String>,
    /// The measured rows.
    pub rows: Vec<Row>,
}

/// The results of one subject on one workload.
#[derive(Clone, Serialize)]
pub struct Row {
    /// The workload's name.
    #[serde(rename = "work")]
    pub workload: String,
    /// The family of workloads that share a plot.
    pub family: String,
    /// The workload's size: a count and its unit.
    pub size: (u32, &'static str),
    /// The subject's name.
    #[serde(rename = "system")]
    pub subject: &'static str,
    /// The measured figures.
    pub figures: BTreeMap<Metric, Summary>,
    /// The bytes and lines that arrived or were lost, and other problems.
    pub verdict: Verdict,
}

/// A figure summarized over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The smallest figure.
    pub least: f64,
    /// The largest figure.
    pub most: f64,
    /// The median of the ratios to the bare loop in the same round, if that was measured.
    pub to_bare: Option<f64>,
}

impl Row {
    /// Returns the rows of one workload, without the subjects that do not support it.
    pub fn of(
        workload: &dyn Workload,
        seen: impl Iterator<Item = (&'static str, Option<Rounds>)>,
    ) -> Vec<Row> {
        let seen: Vec<(&'static str, Rounds)> =
            seen.filter_map(|(subject, rounds)| Some((subject, rounds?))).collect();
        let bare = seen.iter().find(|(subject, _)| *subject == BARE).map(|(_, rounds)| rounds);
        let rows = seen.iter().map(|(subject, rounds)| Row {
            workload: workload.name(),
            family: workload.family(),
            size: workload.size(),
            subject,
            figures: rounds
                .figures()
                .into_iter()
                .map(|(metric, figures)| {
                    let ratios = bare.and_then(|bare| rounds.ratios(metric, bare));
                    let (median, to_bare) = (figures.median(), ratios.map(|ratios| ratios.median()));
                    (metric, Summary { median, least: figures.least(), most: figures.most(), to_bare })
                })
                .collect(),
            verdict: rounds.verdict.clone(),
        });
        rows.collect()
    }
}

impl Report {
    /// Creates the report of a run that starts now.
    pub fn new(machine: BTreeMap<&'static str, String>, rounds: u32) -> Report {
        Report { machine, rounds, subjects: BTreeMap::new(), rows: Vec::new() }
    }

    /// Prints the machine and the versions of the subjects.
    pub fn print_head(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        for (property, value) in &self.machine {
            writeln!(stdout, "{property}: {value}")?;
        }
        for (subject, version) in &self.subjects {
            writeln!(stdout, "{subject}: {version}")?;
        }
        writeln!(
            stdout,
            "median of {} rounds (least to most), and that of the ratios to the {BARE} in the same round",
            self.rounds
        )
    }

    /// Prints the rows of one workload.
    pub fn print(&self, rows: &[Row]) -> io::Result<()> {
        io::stdout().write_all(table(rows).as_bytes())
    }

    /// Writes the report so far as `report.json` into a directory.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::write(directory.join("report.json"), serde_json::to_vec_pretty(self)?)
    }
}

/// Formats the rows of one workload as a table.
fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let metrics: BTreeMap<Metric, ()> =
        rows.iter().flat_map(|row| row.figures.keys().map(|metric| (*metric, ()))).collect();
    let mut lines = vec![vec![String::new()]];
    lines[0].extend(metrics.keys().map(|metric| metric.label().to_owned()));
    lines[0].push("seen".to_owned());
    for row in rows {
        let mut line = vec![row.subject.to_owned()];
        line.extend(metrics.keys().map(|metric| row.figures.get(metric).map_or("-".to_owned(), cell)));
        line.push(row.verdict.to_string());
        lines.push(line);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = format!("\n{}\n", first.workload);
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            write!(padded, "  {cell:width$}").unwrap();
        }
        writeln!(text, "{}", padded.trim_end()).unwrap();
    }
    text
}

fn cell(summary: &Summary) -> String {
    let Summary { median, least, most, to_bare } = summary;
    let by_bare = to_bare.map_or(String::new(), |ratio| format!(" {ratio:.2}x"));
    let range =
        if least < most { format!(" ({} to {})", short(*least), short(*most)) } else { String::new() };
    format!("{}{range}{by_bare}", short(*median))
}

/// Formats a figure with three significant digits.
fn short(figure: f64) -> String {
    let digits = match figure {
        figure if figure >= 99.95 => 0,
        figure if figure >= 9.995 => 1,
        figure if figure >= 0.9995 => 2,
        _ => 3,
    };
    format!("{figure:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Sandbox;
    use crate::sample::Sample;
    use crate::subjects::Subject;
    use crate::workloads::Outcome;

    struct SomeWork;

    impl Workload for SomeWork {
        fn family(&self) -> String {
            "some workload".to_owned()
        }

        fn size(&self) -> (u32, &'static str) {
            (8, "rank")
        }

        fn run(&self, _: &dyn Subject, _: &Sandbox) -> Option<Outcome> {
            None
        }
    }

    fn rounds(figures: &[f64]) -> Option<Rounds> {
        let mut rounds = Rounds::default();
        for figure in figures {
            let sample = Sample { figures: vec![(Metric::P50, *figure)], verdict: Verdict::default() };
            rounds.add(Ok(sample));
        }
        Some(rounds)
    }

    fn rows() -> Vec<Row> {
        let seen = [(BARE, rounds(&[2.0, 4.0, 3.0])), ("cat", rounds(&[6.0, 5.0, 4.5])), ("can't", None)];
        Row::of(&SomeWork, seen.into_iter())
    }

    #[test]
    fn a_summary_has_the_median_of_the_ratios_to_the_bare_loop_in_the_same_round() {
        let rows = rows();
        assert_eq!(rows.len(), 2);
        let summary = Summary { median: 5.0, least: 4.5, most: 6.0, to_bare: Some(1.5) };
        assert_eq!(rows[1].figures[&Metric::P50], summary);
    }

    #[test]
    fn without_the_bare_loop_there_is_no_ratio() {
        let rows = Row::of(&SomeWork, [("it", rounds(&[6.0]))].into_iter());
        assert_eq!(rows[0].figures[&Metric::P50].to_bare, None);
    }

    #[test]
    fn the_table_has_a_line_for_each_subject() {
        let table = table(&rows());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "some workload, 8 ranks");
        assert_eq!(
            lines[3].split_whitespace().collect::<Vec<_>>().join(" "),
            "bare loop 3.00 (2.00 to 4.00) 1.00x nothing wrong"
        );
        assert_eq!(
            lines[4].split_whitespace().collect::<Vec<_>>().join(" "),
            "cat 5.00 (4.50 to 6.00) 1.50x nothing wrong"
        );
    }

    #[test]
    fn the_report_is_written_as_json_and_plots() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = Report::new(BTreeMap::from([("kernel", "6".to_owned())]), 3);
        report.rows = rows();
        report.write(directory.path()).unwrap();
        plot::all(&report.rows, directory.path());
        let text = fs::read(directory.path().join("report.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["rows"][1]["figures"]["p50"]["median"], 5.0);
        let plot = fs::read_to_string(directory.path().join("some-workload-p50-us.svg")).unwrap();
        assert!(plot.contains("<svg") && plot.contains("some workload") && plot.contains("bare loop"));
    }
}
