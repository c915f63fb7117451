//! Messages to the user on stderr. Each is written as whole lines, even if forwarded output goes to
//! the same file, and without control characters.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{RecvTimeoutError, Sender, bounded, unbounded};
use iof_output::Notes;

use crate::give_up::{WatchedOutput, WriteWait};
use crate::signals;
use crate::threads::start_thread;

/// Stderr as the printers share it, set once output may be written to it or beside it.
static SHARED: OnceLock<SharedStderr> = OnceLock::new();

/// How long the end of the command waits for a reader of stderr before it lets signals end the
/// process.
const SIGNALS_AFTER: Duration = Duration::from_millis(200);

/// A stderr that is shared with printers. Its reader may stop reading, so a separate thread writes
/// the messages of this command, which continues to handle signals.
struct SharedStderr {
    notes: Notes,
    /// The messages to write. `None` if the thread could not be started.
    queue: Option<Sender<Queued>>,
    watched: WatchedOutput,
    /// How long stderr may accept nothing at the end of the command.
    give_up: Mutex<Option<Duration>>,
}

enum Queued {
    Lines(Vec<u8>),
    /// All messages before this are written.
    End(Sender<()>),
}

/// Makes later messages start on a line of their own, instead of within a line of output.
pub fn beside_output(notes: Notes, watched: WatchedOutput) {
    let (queue, messages) = unbounded();
    let mut stderr = notes.clone();
    let write = move || {
        for message in messages {
            match message {
                // An error of stderr cannot be reported.
                Queued::Lines(lines) => drop(stderr.write_all(&lines)),
                Queued::End(written) => drop(written.send(())),
            }
        }
    };
    let queue = start_thread("iof-messages", write).ok().map(|()| queue);
    // Fails only on a second call, and a command starts its output once.
    let _ = SHARED.set(SharedStderr { notes, queue, watched, give_up: Mutex::new(None) });
}

/// Returns a stderr for messages, which does not wait for a reader while output is written.
pub fn stderr() -> Box<dyn Write> {
    Box::new(Stderr)
}

struct Stderr;

impl Write for Stderr {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        match SHARED.get() {
            Some(SharedStderr { queue: Some(queue), .. }) => {
                // The thread runs as long as the process.
                let _ = queue.send(Queued::Lines(lines.to_vec()));
                Ok(lines.len())
            }
            Some(SharedStderr { notes, .. }) => notes.clone().write(lines),
            None => io::stderr().write(lines),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Limits how long [`wait_until_written`] waits while stderr accepts nothing.
pub fn give_up_after(limit: Duration) {
    if let Some(shared) = SHARED.get() {
        shared.give_up.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(limit);
    }
}

/// Blocks until all messages are written, or until stderr is [given up](give_up_after). Called
/// once, at the end of the command: if the messages are not written soon, signals end the process.
pub fn wait_until_written() {
    let Some(SharedStderr { queue: Some(queue), watched, give_up, .. }) = SHARED.get() else { return };
    let (written, end) = bounded(1);
    let _ = queue.send(Queued::End(written));
    if end.recv_timeout(SIGNALS_AFTER) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    signals::unblock();
    let mut write_wait = WriteWait::new(vec![watched.clone()]);
    if let Some(limit) = *give_up.lock().unwrap_or_else(PoisonError::into_inner) {
        write_wait.limit(limit);
    }
    loop {
        let waited = match write_wait.next_check() {
            Some(time) => end.recv_deadline(time),
            None => end.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if waited != Err(RecvTimeoutError::Timeout) || write_wait.check(Instant::now()).is_some() {
            return;
        }
    }
}

/// Prints a message to the user, in one line. Does not wait for a reader of stderr while output is
/// written. An error of stderr is ignored, because it cannot be reported.
pub fn print_message(message: fmt::Arguments<'_>) {
    let _ = stderr().write_all(line(message).as_bytes());
}

/// Prints a message, and blocks until it is written.
pub fn write_message(message: fmt::Arguments<'_>) {
    let _ = match SHARED.get() {
        Some(shared) => shared.notes.clone().write_all(line(message).as_bytes()),
        None => io::stderr().write_all(line(message).as_bytes()),
    };
}

/// Prints a message with a list, one entry on each line.
pub fn print_list(message: &str) {
    let lines: Vec<String> = message.split('\n').map(escape).collect();
    let _ = stderr().write_all(format!("iof: {}\n", lines.join("\n")).as_bytes());
}

fn line(message: fmt::Arguments<'_>) -> String {
    format!("iof: {}\n", escape(&message.to_string()))
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
