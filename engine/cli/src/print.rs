//! What the commands that answer a question print, and what terminals are spared.

use std::io::{self, ErrorKind, Write};

use iof_proto::names::sanitize;
use nix::sys::signal::Signal;

use crate::Failure;

/// Writes all of an answer.
pub fn write(mut to: impl Write, bytes: &[u8]) -> Result<(), Failure> {
    to.write_all(bytes).and_then(|()| to.flush()).map_err(failed)
}

/// What it means that an answer can't be written.
pub fn failed(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Signal(Signal::SIGPIPE),
        _ => Failure::running(format!("writing the answer: {error}")),
    }
}

/// The widest column, in characters: formatting panics beyond 65,535.
const MAX_WIDTH: usize = 1024;

/// Returns columns as wide as their widest cell, [`MAX_WIDTH`] at most, two blanks between them.
/// Cells are [sanitized](sanitize). The last column is not padded.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows = rows.map(|row| row.iter().map(|cell| sanitize(cell)).collect());
    let rows: Vec<Vec<String>> =
        std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect()).chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).min(MAX_WIDTH)).collect();
    let mut text = String::new();
    for row in &rows {
        let (last, padded) = row.split_last().map_or(("", &[][..]), |(last, padded)| (last.as_str(), padded));
        let cells = padded.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        let line = cells.collect::<String>() + last;
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_fits_into_a_table() {
        let long = "x".repeat(100_000);
        let rows = [vec![long.clone(), "a".into()], vec!["b".into(), long.clone()]];
        let table = table(&["ONE", "TWO"], rows.into_iter());
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1] == format!("{long}  a") && lines[2].starts_with("b ") && lines[2].ends_with(&long));
    }
}
