//! The destination of a launcher's or a tool's stdout: /dev/null, a file, or a pipe that is read
//! and checked here.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::line::LineChecker;

/// The size of one read, in bytes.
const PIECE: usize = 64 * 1024;

/// The destination of an output.
pub enum Sink {
    /// /dev/null.
    Null,
    /// A file.
    File(PathBuf),
    /// A pipe that a thread of this process reads.
    Pipe(Box<ReaderOptions>),
}

/// The options of the thread that reads a pipe.
#[derive(Default)]
pub struct ReaderOptions {
    /// The checker of the lines. `None`: the bytes are only counted.
    pub checker: Option<LineChecker>,
    /// The time for which nothing is read after the ranks are released.
    pub stall: Duration,
    /// The bytes read per second after that, at most. Nothing is read before.
    pub rate: Option<u64>,
    /// A number of bytes, and the channel that gets the time at which they have arrived.
    pub notify: Option<(u64, Sender<Instant>)>,
    /// Keep the bytes.
    pub keep: bool,
}

/// The received output.
#[derive(Default)]
pub struct Received {
    /// The number of bytes.
    pub bytes: u64,
    /// The checker that received them.
    pub checker: Option<LineChecker>,
    /// The bytes, with [`ReaderOptions::keep`].
    pub kept: Vec<u8>,
}

impl Sink {
    /// Returns a pipe that is read without delay. Its bytes are counted.
    pub fn counted() -> Sink {
        Sink::Pipe(Box::default())
    }

    /// Returns a pipe that is read without delay. Its lines are checked.
    pub fn checked(checker: LineChecker) -> Sink {
        Sink::Pipe(Box::new(ReaderOptions { checker: Some(checker), ..ReaderOptions::default() }))
    }

    /// Returns a pipe like [`Sink::checked`], and a channel that gets the time at which `bytes`
    /// bytes have arrived.
    pub fn notifying(bytes: u64, checker: LineChecker) -> (Sink, Receiver<Instant>) {
        let (notify, arrived) = channel();
        let notify = Some((bytes, notify));
        let options = ReaderOptions { checker: Some(checker), notify, ..ReaderOptions::default() };
        (Sink::Pipe(Box::new(options)), arrived)
    }

    /// Opens the destination. Returns the stdout for the process, and the reader of a pipe.
    pub fn open(self) -> (Stdio, Option<SinkReader>) {
        match self {
            Sink::Null => (Stdio::null(), None),
            Sink::File(path) => (File::create(path).unwrap().into(), None),
            Sink::Pipe(options) => {
                let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
                let (start, started) = channel();
                let thread = thread::spawn(move || options.read(read, &started));
                (write.into(), Some(SinkReader { thread, start }))
            }
        }
    }
}

/// The thread that reads a pipe.
pub struct SinkReader {
    thread: JoinHandle<Received>,
    start: Sender<()>,
}

impl SinkReader {
    /// Starts the delays of [`ReaderOptions`]: the ranks are released now.
    pub fn start(&self) {
        // A reader without delays may have ended already.
        let _ = self.start.send(());
    }

    /// Blocks until the last writer has closed the pipe.
    pub fn join(self) -> Received {
        drop(self.start);
        self.thread.join().unwrap()
    }
}

impl ReaderOptions {
    fn read(mut self, pipe: OwnedFd, started: &Receiver<()>) -> Received {
        if !self.stall.is_zero() || self.rate.is_some() {
            // Without a start, because the job failed before, the rest of the pipe is read.
            let _ = started.recv();
        }
        thread::sleep(self.stall);
        let (mut pipe, mut piece, start) = (File::from(pipe), vec![0; PIECE], Instant::now());
        let (mut bytes, mut kept) = (0, Vec::new());
        loop {
            let read = pipe.read(&mut piece).unwrap();
            if read == 0 {
                return Received { bytes, checker: self.checker, kept };
            }
            bytes += read as u64;
            if let Some(checker) = &mut self.checker {
                checker.feed(&piece[..read]);
            }
            if self.keep {
                kept.extend_from_slice(&piece[..read]);
            }
            if let Some((_, notify)) = self.notify.take_if(|(expected, _)| bytes >= *expected) {
                // The receiver may have given up.
                let _ = notify.send(Instant::now());
            }
            if let Some(rate) = self.rate {
                let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
                thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn written(out: Sink, bytes: u32) -> Received {
        let (stdout, reader) = out.open();
        reader.iter().for_each(SinkReader::start);
        let script = format!("head -c {bytes} /dev/zero");
        assert!(Command::new("sh").args(["-c", &script]).stdout(stdout).status().unwrap().success());
        reader.unwrap().join()
    }

    #[test]
    fn all_bytes_are_counted_and_kept_on_request() {
        assert_eq!(written(Sink::counted(), 200_000).bytes, 200_000);
        let keeping = ReaderOptions { keep: true, ..ReaderOptions::default() };
        assert_eq!(written(Sink::Pipe(Box::new(keeping)), 200_000).kept, vec![0; 200_000]);
    }

    #[test]
    fn a_notification_is_sent_when_enough_bytes_have_arrived_and_not_before() {
        for (written_bytes, notified) in [(99_999, false), (100_000, true)] {
            let (out, arrived) = Sink::notifying(100_000, LineChecker::new(80, Vec::new(), || 0));
            written(out, written_bytes);
            assert_eq!(arrived.try_recv().is_ok(), notified);
        }
    }

    #[test]
    fn a_stalled_reader_reads_nothing_before_it_is_started() {
        let stalled =
            ReaderOptions { stall: Duration::from_millis(1), keep: true, ..ReaderOptions::default() };
        let (stdout, reader) = Sink::Pipe(Box::new(stalled)).open();
        let mut writer = Command::new("sh").args(["-c", "head -c 200000 /dev/zero"]).stdout(stdout).spawn();
        let writer = writer.as_mut().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(writer.try_wait().unwrap().is_none(), "its pipe is full");
        let reader = reader.unwrap();
        reader.start();
        assert!(writer.wait().unwrap().success());
        assert_eq!(reader.join().bytes, 200_000);
    }

    #[test]
    fn a_slow_reader_does_not_exceed_its_rate() {
        let slow = ReaderOptions { rate: Some(1_000_000), ..ReaderOptions::default() };
        let start = Instant::now();
        written(Sink::Pipe(Box::new(slow)), 300_000);
        assert!(start.elapsed() >= Duration::from_millis(300));
    }
}
