//! The matrix of cases and launchers, as text, JSON and SVG.

use std::fmt::Write as _;

use serde::Serialize;

use crate::case::{Case, Verdict};

/// The results of a launcher in each case, in the order of the cases.
#[derive(Debug, Serialize)]
pub struct Column {
    pub launcher: String,
    pub version: String,
    pub verdicts: Vec<Verdict>,
}

/// A row of the JSON report.
#[derive(Serialize)]
struct Row<'report> {
    case: &'static str,
    promise: &'static str,
    launcher: &'report str,
    version: &'report str,
    #[serde(flatten)]
    verdict: &'report Verdict,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail { .. } => "FAIL",
            Self::Cannot { .. } => "-",
        }
    }
}

impl Column {
    /// Returns the numbers of passed and failed cases, and of those that the launcher cannot run.
    fn counts(&self) -> (usize, usize, usize) {
        let of = |word| self.verdicts.iter().filter(|verdict| verdict.word() == word).count();
        (of("pass"), of("FAIL"), of("-"))
    }

    pub fn has_failed(&self) -> bool {
        self.counts().1 > 0
    }
}

/// Returns the matrix, then each failure with the smallest job that shows it.
pub fn text(cases: &[&Case], columns: &[Column]) -> String {
    let mut text = format!("{:34}", "");
    for column in columns {
        let _ = write!(text, "{:>11}", column.launcher);
    }
    text.push('\n');
    for (at, case) in cases.iter().enumerate() {
        let _ = write!(text, "{:34}", case.name);
        for column in columns {
            let _ = write!(text, "{:>11}", column.verdicts[at].word());
        }
        text.push('\n');
    }
    for column in columns {
        let (passed, failed, cannot) = column.counts();
        let _ = writeln!(
            text,
            "\n{} ({}): {passed} passed, {failed} failed, {cannot} not run",
            column.launcher, column.version
        );
        for (case, verdict) in cases.iter().zip(&column.verdicts) {
            if let Verdict::Fail { why, ranks, count, command } = verdict {
                let _ = writeln!(text, "  {}: {}\n    {why}", case.name, case.promise);
                let again = format!(
                    "--launcher {} --case {} --ranks {ranks} --count {count}",
                    column.launcher, case.name
                );
                let _ = writeln!(text, "    again: iof-conformance {again}\n    job: {command}");
            }
        }
    }
    text
}

/// Returns one JSON object a line for each case and launcher.
pub fn json(cases: &[&Case], columns: &[Column]) -> String {
    let mut text = String::new();
    for column in columns {
        for (case, verdict) in cases.iter().zip(&column.verdicts) {
            let (launcher, version) = (column.launcher.as_str(), column.version.as_str());
            let row = Row { case: case.name, promise: case.promise, launcher, version, verdict };
            text.push_str(&serde_json::to_string(&row).unwrap_or_default());
            text.push('\n');
        }
    }
    text
}

/// Returns the matrix as a picture.
pub fn svg(cases: &[&Case], columns: &[Column]) -> String {
    const ROW: usize = 16;
    const COLUMN: usize = 80;
    const NAMES: usize = 250;
    let (width, height) = (NAMES + COLUMN * columns.len() + 10, ROW * (cases.len() + 2));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut label = |x: usize, row: usize, text: &str, fill: &str| {
        let y = ROW * (row + 1) - 4;
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{text}</text>");
    };
    for (row, case) in cases.iter().enumerate() {
        label(6, row + 1, case.name, "black");
    }
    for (at, column) in columns.iter().enumerate() {
        let x = NAMES + COLUMN * at;
        label(x, 0, &column.launcher, "black");
        for (row, verdict) in column.verdicts.iter().enumerate() {
            let (word, fill) = match verdict {
                Verdict::Pass => ("pass", "#1a7f37"),
                Verdict::Fail { .. } => ("fail", "#cf222e"),
                Verdict::Cannot { .. } => ("cannot", "#8c959f"),
            };
            label(x, row + 1, word, fill);
        }
    }
    svg.push_str("</svg>\n");
    svg
}
