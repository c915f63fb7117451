//! What the commands that answer a question print, and what terminals are spared.

use std::io::{self, ErrorKind, Write};

use iof_proto::names::shown;
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

/// Columns as wide as their widest cell, two blanks between them. Cells are [`shown`].
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows = rows.map(|row| row.iter().map(|cell| shown(cell)).collect());
    let rows: Vec<Vec<String>> =
        std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect()).chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
