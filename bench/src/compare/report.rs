//! What is told of it: a table on the terminal, JSON, plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use super::sample::{Figure, Rounds, Verdict};
use super::systems::BARE;
use super::works::Work;

pub mod machine;
pub mod plot;

/// All of a run of the command.
#[derive(Serialize)]
pub struct Report {
    /// Where it was.
    machine: BTreeMap<&'static str, String>,
    /// Rounds.
    rounds: u32,
    /// The systems that were there, with what they are.
    pub systems: BTreeMap<&'static str, String>,
    /// What was seen.
    pub rows: Vec<Row>,
}

/// One system at one work.
#[derive(Clone, Serialize)]
pub struct Row {
    /// The work.
    pub work: String,
    /// The works that are plotted together.
    pub family: String,
    /// How much of what.
    pub size: (u32, &'static str),
    /// The system.
    pub system: &'static str,
    /// What was measured.
    pub figures: BTreeMap<Figure, Told>,
    /// What was seen of bytes and lines.
    pub verdict: Verdict,
}

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Told {
    /// The one in the middle.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// The median by that of the bare loop, if that was measured.
    pub to_bare: Option<f64>,
}

impl Row {
    /// The rows of one work: those of systems that could do it.
    pub fn of(work: &dyn Work, seen: impl Iterator<Item = (&'static str, Option<Rounds>)>) -> Vec<Row> {
        let seen: Vec<(&'static str, Rounds)> =
            seen.filter_map(|(system, rounds)| Some((system, rounds?))).collect();
        let bare = |figure| {
            let (_, rounds) = seen.iter().find(|(system, _)| *system == BARE)?;
            Some(rounds.figures.get(figure)?.median()).filter(|median| *median > 0.0)
        };
        let rows = seen.iter().map(|(system, rounds)| Row {
            work: work.name(),
            family: work.family(),
            size: work.size(),
            system,
            figures: rounds
                .figures
                .iter()
                .map(|(figure, figures)| {
                    let median = figures.median();
                    let to_bare = bare(figure).map(|bare| median / bare);
                    let told = Told { median, least: figures.least(), most: figures.most(), to_bare };
                    (*figure, told)
                })
                .collect(),
            verdict: rounds.verdict.clone(),
        });
        rows.collect()
    }
}

impl Report {
    /// Of a run that begins.
    pub fn new(machine: BTreeMap<&'static str, String>, rounds: u32) -> Report {
        Report { machine, rounds, systems: BTreeMap::new(), rows: Vec::new() }
    }

    /// Prints what is compared and where.
    pub fn print_head(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        for (what, is) in &self.machine {
            writeln!(stdout, "{what}: {is}")?;
        }
        for (system, version) in &self.systems {
            writeln!(stdout, "{system}: {version}")?;
        }
        writeln!(stdout, "median of {} rounds (least to most), and by that of the {BARE}", self.rounds)
    }

    /// Prints the rows of one work.
    pub fn print(&self, rows: &[Row]) -> io::Result<()> {
        io::stdout().write_all(table(rows).as_bytes())
    }

    /// Writes what there is as JSON into a directory.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::write(directory.join("report.json"), serde_json::to_vec_pretty(self)?)
    }
}

/// The rows of one work as a table.
fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let figures: BTreeMap<Figure, ()> =
        rows.iter().flat_map(|row| row.figures.keys().map(|figure| (*figure, ()))).collect();
    let mut lines = vec![vec![String::new()]];
    lines[0].extend(figures.keys().map(|figure| figure.label().to_owned()));
    lines[0].push("seen".to_owned());
    for row in rows {
        let mut line = vec![row.system.to_owned()];
        line.extend(figures.keys().map(|figure| row.figures.get(figure).map_or("-".to_owned(), cell)));
        line.push(row.verdict.to_string());
        lines.push(line);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = format!("\n{}\n", first.work);
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            write!(padded, "  {cell:width$}").unwrap();
        }
        writeln!(text, "{}", padded.trim_end()).unwrap();
    }
    text
}

fn cell(told: &Told) -> String {
    let Told { median, least, most, to_bare } = told;
    let by_bare = to_bare.map_or(String::new(), |ratio| format!(" {ratio:.2}x"));
    let range =
        if least < most { format!(" ({} to {})", short(*least), short(*most)) } else { String::new() };
    format!("{}{range}{by_bare}", short(*median))
}

/// With three digits that say something.
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
    use crate::compare::job::Site;
    use crate::compare::sample::Sample;
    use crate::compare::systems::System;
    use crate::compare::works::Outcome;

    struct SomeWork;

    impl Work for SomeWork {
        fn family(&self) -> String {
            "some work".to_owned()
        }

        fn size(&self) -> (u32, &'static str) {
            (8, "rank")
        }

        fn run(&self, _: &dyn System, _: &Site) -> Option<Outcome> {
            None
        }
    }

    fn rounds(figures: &[f64]) -> Option<Rounds> {
        let mut rounds = Rounds::default();
        for figure in figures {
            let sample = Sample { figures: vec![(Figure::P50, *figure)], verdict: Verdict::default() };
            rounds.add(Ok(sample));
        }
        Some(rounds)
    }

    fn rows() -> Vec<Row> {
        let seen = [(BARE, rounds(&[2.0, 4.0, 3.0])), ("cat", rounds(&[6.0, 4.5, 5.0])), ("can't", None)];
        Row::of(&SomeWork, seen.into_iter())
    }

    #[test]
    fn figures_are_medians_and_by_the_bare_loops() {
        let rows = rows();
        assert_eq!(rows.len(), 2);
        let told = Told { median: 5.0, least: 4.5, most: 6.0, to_bare: Some(5.0 / 3.0) };
        assert_eq!(rows[1].figures[&Figure::P50], told);
    }

    #[test]
    fn without_the_bare_loop_there_is_no_ratio() {
        let rows = Row::of(&SomeWork, [("it", rounds(&[6.0]))].into_iter());
        assert_eq!(rows[0].figures[&Figure::P50].to_bare, None);
    }

    #[test]
    fn the_table_has_a_line_for_each_system() {
        let table = table(&rows());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "some work, 8 ranks");
        assert_eq!(
            lines[3].split_whitespace().collect::<Vec<_>>().join(" "),
            "bare loop 3.00 (2.00 to 4.00) 1.00x nothing wrong"
        );
        assert_eq!(
            lines[4].split_whitespace().collect::<Vec<_>>().join(" "),
            "cat 5.00 (4.50 to 6.00) 1.67x nothing wrong"
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
        let plot = fs::read_to_string(directory.path().join("some-work-p50-us.svg")).unwrap();
        assert!(plot.contains("<svg") && plot.contains("some work") && plot.contains("bare loop"));
    }
}
