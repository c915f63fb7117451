//! Messages to the user on stderr. Each is written as whole lines, even if forwarded output goes to
//! the same file.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use iof_output::Notes;
use iof_proto::names::sanitize;

/// Stderr as the printers share it, set once output may be written to it or beside it.
static NOTES: OnceLock<Notes> = OnceLock::new();

/// Makes later messages start on a line of their own, instead of within a line of output.
pub fn beside_output(stderr: Notes) {
    // Fails only on a second call, and a command starts its output once.
    let _ = NOTES.set(stderr);
}

/// Returns the stderr for messages. It is not buffered.
pub fn stderr() -> Box<dyn Write> {
    match NOTES.get() {
        Some(notes) => Box::new(notes.clone()),
        None => Box::new(io::stderr()),
    }
}

/// Prints a message to the user: one line, except for lists. An error of stderr is ignored, because
/// it cannot be reported.
pub fn print_message(message: fmt::Arguments<'_>) {
    // A message may quote names from other processes, with control characters in them.
    let lines: Vec<String> = message.to_string().split('\n').map(sanitize).collect();
    let _ = stderr().write_all(format!("iof: {}\n", lines.join("\n")).as_bytes());
}
