//! What the command says to its user on stderr: lines of their own, also where output goes to the
//! same place.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use iof_output::Notes;
use iof_proto::names::sanitize;

/// Stderr, once output may be written there or beside it.
static NOTES: OnceLock<Notes> = OnceLock::new();

/// From now on messages keep out of the lines of an output.
pub fn beside_output(stderr: Notes) {
    // A command begins to write output once.
    let _ = NOTES.set(stderr);
}

/// Stderr for messages, each written at once.
pub fn stderr() -> Box<dyn Write> {
    match NOTES.get() {
        Some(notes) => Box::new(notes.clone()),
        None => Box::new(io::stderr()),
    }
}

/// Says something to the user, in one line but for lists. If stderr can't be written there is
/// nobody to tell.
pub fn print_message(words: fmt::Arguments<'_>) {
    // Some of them are others'.
    let lines: Vec<String> = words.to_string().split('\n').map(sanitize).collect();
    let _ = stderr().write_all(format!("iof: {}\n", lines.join("\n")).as_bytes());
}
