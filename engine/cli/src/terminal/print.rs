//! The output of the commands that answer a question, safe to print on a terminal.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use iof_proto::names::{is_invisible, sanitize};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::error::Failure;

/// Writes a whole answer. Unlike the standard library's handles of stdout and stderr, this reports
/// an output that was [closed](crate::terminal::closed).
pub fn write(output: impl AsFd, bytes: &[u8]) -> Result<(), Failure> {
    let file = output.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|mut file| file.write_all(bytes)).map_err(failed)
}

/// Fails if `output` was [closed](crate::terminal::closed).
pub fn check(output: impl AsFd) -> Result<(), Failure> {
    nix::unistd::write(output, &[]).map(drop).map_err(|errno| failed(errno.into()))
}

/// Returns the failure for an answer that cannot be written: SIGPIPE if its reader is gone.
pub fn failed(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Signal(Signal::SIGPIPE),
        _ => Failure::running(format!("cannot write the answer: {error}")),
    }
}

/// Formats JSON for users, with a newline at the end.
pub fn json_lines(value: &Value) -> String {
    // JSON need not escape these characters, but a terminal interprets them.
    let escaped = |letter: char| match letter {
        letter if letter != '\n' && is_invisible(letter) => {
            letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
        _ => letter.to_string(),
    };
    format!("{value:#}\n").chars().map(escaped).collect()
}

/// The widest column, in characters: formatting panics beyond 65,535.
const MAX_WIDTH: usize = 1024;

/// Formats a table. A column is as wide as its widest cell, at most [`MAX_WIDTH`]; two blanks
/// separate columns. Control characters in cells are replaced ([sanitized](sanitize)). The last
/// column is not padded.
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
    fn a_cell_of_any_length_fits_into_the_table() {
        let long = "x".repeat(100_000);
        let rows = [vec![long.clone(), "a".into()], vec!["b".into(), long.clone()]];
        let table = table(&["ONE", "TWO"], rows.into_iter());
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1] == format!("{long}  a") && lines[2].starts_with("b ") && lines[2].ends_with(&long));
    }
}
