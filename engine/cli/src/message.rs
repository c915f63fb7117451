//! Messages to the user on stderr. Each is written as whole lines, even if forwarded output goes to
//! the same file, and without control characters.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use iof_output::Notes;

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

/// Prints a message to the user, in one line. An error of stderr is ignored, because it cannot be
/// reported.
pub fn print_message(message: fmt::Arguments<'_>) {
    let _ = stderr().write_all(format!("iof: {}\n", escape(&message.to_string())).as_bytes());
}

/// Prints a message with a list, one entry on each line.
pub fn print_list(message: &str) {
    let lines: Vec<String> = message.split('\n').map(escape).collect();
    let _ = stderr().write_all(format!("iof: {}\n", lines.join("\n")).as_bytes());
}

/// Escapes control characters: a message may quote names from other processes and paths.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
}
