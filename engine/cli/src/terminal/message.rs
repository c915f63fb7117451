//! Messages to the user on stderr. Each is written as whole lines, even if forwarded output goes to
//! the same file, and without control characters. Beside output in JSON, they are objects on stdout.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use iof_engine::TIMEOUT_CODE;
use iof_output::{Notes, Style};
use iof_proto::names::escape;
use serde_json::{Value, json};

use crate::error::Failure;
use crate::processes::signals;
use crate::processes::threads::{recv_until, start_thread};
use crate::terminal::give_up::{WatchedOutput, WriteWait};

/// Stderr as the printers share it, set once output may be written to it or beside it. In JSON, stdout.
static SHARED: OnceLock<SharedStderr> = OnceLock::new();

/// The time for which the end of the command waits for a reader of stderr before it lets signals
/// end the process.
const SIGNALS_AFTER: Duration = Duration::from_millis(200);

/// The largest number of bytes of messages that wait for a reader of stderr. Messages about what
/// tools and ranks do could otherwise fill the memory.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Writes whole lines. Blocks until that is done.
type WriteLines = Arc<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

/// A stderr that is shared with printers. Its reader may stop reading, so a separate thread writes
/// the messages of this command, which continues to handle signals.
struct SharedStderr {
    write: WriteLines,
    /// The messages to write, and the output to which they go. `None` if the thread could not be started, or if
    /// each message is to be written before what follows it.
    queue: Option<(Queue, WatchedOutput)>,
    /// The style of objects, if messages are objects.
    objects: Option<Style>,
    /// The time for which stderr may accept nothing at the end of the command.
    give_up: Mutex<Option<Duration>>,
}

enum Queued {
    Lines(Vec<u8>),
    /// All messages before this are written.
    End(Sender<()>),
}

/// The messages that wait for a reader of stderr.
struct Queue {
    sender: Sender<Queued>,
    /// The size of these messages. Relaxed, as `dropped`: a counter on which nothing else depends.
    bytes: Arc<AtomicUsize>,
    /// The number of messages that were dropped, and are not reported yet.
    dropped: AtomicU64,
}

impl Queue {
    /// Starts the thread that writes the messages. Returns `None` if it cannot be started.
    fn start(write: WriteLines) -> Option<Queue> {
        let (sender, messages) = unbounded();
        let bytes = Arc::<AtomicUsize>::default();
        let waiting = Arc::clone(&bytes);
        let write = move || {
            for message in messages {
                match message {
                    Queued::Lines(lines) => {
                        report_unwritten(&lines, write(&lines));
                        waiting.fetch_sub(lines.len(), Relaxed);
                    }
                    Queued::End(written) => drop(written.send(())),
                }
            }
        };
        start_thread("iof-messages", write).ok()?;
        Some(Queue { sender, bytes, dropped: AtomicU64::new(0) })
    }

    /// Queues lines, or drops them if too much waits. The next lines that are queued follow a
    /// report of the number of messages that were dropped before.
    fn send(&self, lines: &[u8]) {
        let add = |waiting: usize| waiting.checked_add(lines.len()).filter(|sum| *sum <= MAX_MESSAGE_BYTES);
        if self.bytes.fetch_update(Relaxed, Relaxed, add).is_err() {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.report_dropped();
        // The thread runs as long as the process.
        let _ = self.sender.send(Queued::Lines(lines.to_vec()));
    }

    fn report_dropped(&self) {
        let dropped = self.dropped.swap(0, Relaxed);
        if dropped > 0 {
            let report = line(format_args!(
                "{dropped} messages were dropped here: {} did not take {} MiB of earlier ones",
                SHARED.get().and_then(|shared| Some(shared.queue.as_ref()?.1.name)).unwrap_or("stderr"),
                MAX_MESSAGE_BYTES >> 20
            ));
            self.bytes.fetch_add(report.len(), Relaxed);
            let _ = self.sender.send(Queued::Lines(report.into_bytes()));
        }
    }

    /// Returns a channel on which a message arrives when all messages so far are written.
    fn end(&self) -> Receiver<()> {
        self.report_dropped();
        let (written, end) = bounded(1);
        let _ = self.sender.send(Queued::End(written));
        end
    }
}

/// Makes later messages start on a line of their own, instead of within a line of output.
/// They are objects of this style, if there is one.
pub fn beside_output(notes: Notes, watched: WatchedOutput, objects: Option<Style>) {
    let write: WriteLines = Arc::new(move |lines| notes.clone().write_all(lines));
    let queue = Queue::start(Arc::clone(&write)).map(|queue| (queue, watched));
    // Fails only on a second call, and a command starts its output once.
    let _ = SHARED.set(SharedStderr { write, queue, objects, give_up: Mutex::new(None) });
}

/// Passes later messages to `tell`, which blocks until a line is taken: they precede the end of the edge. It returns
/// `false` for one that goes to stderr.
pub fn beside_edge(tell: impl Fn(String) -> bool + Send + Sync + 'static) {
    let write = move |lines: &[u8]| {
        let text = String::from_utf8_lossy(lines);
        let mut rest =
            text.lines().filter(|line| !tell(line.strip_prefix("iof: ").unwrap_or(line).to_owned()));
        rest.try_for_each(|line| writeln!(io::stderr(), "{line}"))
    };
    let (write, give_up) = (Arc::new(write), Mutex::new(None));
    // Fails only on a second call.
    let _ = SHARED.set(SharedStderr { write, queue: None, objects: None, give_up });
}

/// The error of the first object that stdout did not take. Its reader is not gone.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Writes objects that stdout does not take to stderr, unless its reader is gone.
fn report_unwritten(lines: &[u8], written: io::Result<()>) {
    let Err(error) = written else { return };
    if error.kind() != io::ErrorKind::BrokenPipe && has_objects() {
        let _ = UNWRITTEN.set(error);
        // An error of stderr cannot be reported.
        let _ = io::stderr().write_all(lines);
    }
}

/// Returns whether messages are objects on stdout.
pub fn has_objects() -> bool {
    object_style().is_some()
}

fn object_style() -> Option<&'static Style> {
    SHARED.get()?.objects.as_ref()
}

/// The type, the time and the other fields of an object.
pub type Event = (&'static str, SystemTime, Value);

/// Prints an object if the output is JSON.
pub fn print_event(event: impl FnOnce() -> Event) {
    if let Some(style) = object_style() {
        print_lines(&object(style, event()));
    }
}

/// Returns the text of an object.
pub fn object(style: &Style, (kind, time, fields): Event) -> String {
    let fields = fields.to_string();
    let fields = fields.strip_prefix('{').and_then(|fields| fields.strip_suffix('}')).unwrap_or_default();
    style.event(kind, time, &format!(",{fields}"))
}

/// Writes lines to stderr, without waiting for a reader while output is written. An error of stderr
/// is ignored, because it cannot be reported.
fn print_lines(lines: &str) {
    let lines = lines.as_bytes();
    let _ = match SHARED.get() {
        Some(SharedStderr { queue: Some((queue, _)), .. }) => {
            queue.send(lines);
            Ok(())
        }
        Some(SharedStderr { write, .. }) => write(lines),
        None => io::stderr().write_all(lines),
    };
}

/// Limits how long [`wait_until_written`] waits while stderr accepts nothing.
pub fn give_up_after(limit: Duration) {
    if let Some(shared) = SHARED.get() {
        shared.give_up.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(limit);
    }
}

/// Blocks until all messages are written, or until stderr is [given up](give_up_after): returns `false` then. Called
/// once, at the end of the command: if the messages are not written soon, signals end the process.
pub fn wait_until_written() -> bool {
    let Some(SharedStderr { queue: Some((queue, watched)), give_up, .. }) = SHARED.get() else { return true };
    let end = queue.end();
    if end.recv_timeout(SIGNALS_AFTER) != Err(RecvTimeoutError::Timeout) {
        return true;
    }
    signals::unblock();
    let limit = *give_up.lock().unwrap_or_else(PoisonError::into_inner);
    let mut write_wait = WriteWait::new([watched.clone()], limit);
    loop {
        let waited = recv_until(&end, write_wait.next_check());
        if waited != Err(RecvTimeoutError::Timeout) || write_wait.check(Instant::now()).is_some() {
            return waited != Err(RecvTimeoutError::Timeout);
        }
    }
}

/// Prints a message to the user, in one line. Does not wait for a reader of stderr while output is
/// written.
pub fn print_message(message: fmt::Arguments<'_>) {
    print_lines(&line(message));
}

/// Prints a message, and blocks until it is written.
pub fn write_message(message: fmt::Arguments<'_>) {
    let line = line(message);
    let written = match SHARED.get() {
        Some(shared) => (shared.write)(line.as_bytes()),
        None => io::stderr().write_all(line.as_bytes()),
    };
    report_unwritten(line.as_bytes(), written);
}

/// Prints a line of text on stderr, even if messages are objects: bad input adds nothing to a file of them.
fn print_plain(lines: &str) {
    match has_objects() {
        true => drop(io::stderr().write_all(lines.as_bytes())),
        false => print_lines(lines),
    }
}

/// Prints a message with a list, one entry on each line.
pub fn print_list(message: &str) {
    let lines: Vec<String> = message.split('\n').map(escape).collect();
    print_plain(&format!("iof: {}\n", lines.join("\n")));
}

/// Prints the failure, if any, waits until all messages are written, and returns the exit code.
pub fn finish(result: Result<ExitCode, Failure>) -> ExitCode {
    let code = match result {
        Ok(code) => Ok(code),
        Err(Failure::Usage(message)) => {
            print_plain(&format!("iof: {}\n", escape(&message)));
            Ok(ExitCode::from(2))
        }
        Err(Failure::Choice(message)) => {
            print_list(&message);
            Ok(ExitCode::from(2))
        }
        Err(Failure::Running(message)) => {
            print_message(format_args!("{message}"));
            Ok(ExitCode::FAILURE)
        }
        Err(Failure::Timeout(message)) => {
            print_message(format_args!("{message}"));
            Ok(u8::try_from(TIMEOUT_CODE).map_or(ExitCode::FAILURE, ExitCode::from))
        }
        Err(Failure::Signal(signal)) => Err(signal),
    };
    let is_written = wait_until_written();
    // Objects are a part of the output.
    if let Some(error) = UNWRITTEN.get() {
        let failed = line(format_args!("cannot write the output: {error}: its last objects are on stderr"));
        if is_written {
            let _ = io::stderr().write_all(failed.as_bytes());
        }
        if code == Ok(ExitCode::SUCCESS) {
            return ExitCode::FAILURE;
        }
    }
    code.unwrap_or_else(signals::end_by)
}

/// Returns a message as a line. It may quote names from other processes and paths, so it is escaped.
fn line(message: fmt::Arguments<'_>) -> String {
    let text = message.to_string();
    match object_style() {
        Some(style) => object(style, ("message", SystemTime::now(), json!({ "text": text }))),
        None => format!("iof: {}\n", escape(&text)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// A stderr that takes nothing until the test allows it.
    struct Blocked {
        opened: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Blocked {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            // Disconnected once it is open.
            let _ = self.opened.recv();
            self.written.lock().unwrap().extend_from_slice(lines);
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_that_a_blocked_stderr_has_no_room_for_are_counted_in_one_line() {
        let (open, opened) = bounded(0);
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let blocked = Mutex::new(Blocked { opened, written: Arc::clone(&written) });
        let queue = Queue::start(Arc::new(move |lines| blocked.lock().unwrap().write_all(lines))).unwrap();
        let message = vec![b'x'; 1 << 20];
        (0..19).for_each(|_| queue.send(&message));
        drop(open);
        queue.end().recv().unwrap();
        queue.send(b"later\n");
        queue.end().recv().unwrap();
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let report = "iof: 3 messages were dropped here: stderr did not take 16 MiB of earlier ones\n";
        assert_eq!(written.trim_start_matches('x'), format!("{report}later\n"));
        assert_eq!(written.len(), (16 << 20) + report.len() + "later\n".len());
        assert_eq!(queue.bytes.load(Relaxed), 0);
    }
}
