//! Where what a launcher or a tool writes goes: nowhere, into a file, or through a pipe to us.

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

use super::line::Checker;

/// Bytes that are taken at once.
const PIECE: usize = 64 * 1024;

/// Where it goes.
pub enum Out {
    /// To /dev/null.
    Null,
    /// Into this file.
    File(PathBuf),
    /// Into a pipe that we read.
    Pipe(Box<Consumer>),
}

/// How we read.
#[derive(Default)]
pub struct Consumer {
    /// Who looks at the lines, if anybody does; else the bytes are counted.
    pub checker: Option<Checker>,
    /// How long nothing is read from the opening of the gate on.
    pub stall: Duration,
    /// So many bytes a second at most from then on, and none before.
    pub rate: Option<u64>,
    /// Who is told when so many bytes have come.
    pub tell: Option<(u64, Sender<Instant>)>,
    /// Whether the bytes are kept.
    pub keep: bool,
}

/// What came.
#[derive(Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: u64,
    /// Who looked at them.
    pub checker: Option<Checker>,
    /// The bytes themselves, if they were to be kept.
    pub kept: Vec<u8>,
}

impl Out {
    /// Read as fast as it comes, and counted.
    pub fn counted() -> Out {
        Out::Pipe(Box::default())
    }

    /// Read as fast as it comes, and looked at.
    pub fn checked(checker: Checker) -> Out {
        Out::Pipe(Box::new(Consumer { checker: Some(checker), ..Consumer::default() }))
    }

    /// Read as fast as it comes, and looked at; says when so many bytes have come.
    pub fn until(bytes: u64, checker: Checker) -> (Out, Receiver<Instant>) {
        let (tell, told) = channel();
        let consumer = Consumer { checker: Some(checker), tell: Some((bytes, tell)), ..Consumer::default() };
        (Out::Pipe(Box::new(consumer)), told)
    }

    /// What is given to the process, and who reads the other end.
    pub fn open(self) -> (Stdio, Option<Reader>) {
        match self {
            Out::Null => (Stdio::null(), None),
            Out::File(path) => (File::create(path).unwrap().into(), None),
            Out::Pipe(consumer) => {
                let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
                let (gate, opened) = channel();
                (
                    write.into(),
                    Some(Reader { thread: thread::spawn(move || consumer.take(read, &opened)), gate }),
                )
            }
        }
    }
}

/// Who reads.
pub struct Reader {
    thread: JoinHandle<Taken>,
    gate: Sender<()>,
}

impl Reader {
    /// Says that the gate is opened now.
    pub fn open(&self) {
        // One that does not wait for it may have ended.
        let _ = self.gate.send(());
    }

    /// Waits until the last writer is gone.
    pub fn join(self) -> Taken {
        drop(self.gate);
        self.thread.join().unwrap()
    }
}

impl Consumer {
    fn take(mut self, pipe: OwnedFd, opened: &Receiver<()>) -> Taken {
        if !self.stall.is_zero() || self.rate.is_some() {
            // If nobody is there any more to open it, what there is, is read.
            let _ = opened.recv();
        }
        thread::sleep(self.stall);
        let (mut pipe, mut piece, begun) = (File::from(pipe), vec![0; PIECE], Instant::now());
        let (mut bytes, mut kept) = (0, Vec::new());
        loop {
            let read = pipe.read(&mut piece).unwrap();
            if read == 0 {
                return Taken { bytes, checker: self.checker, kept };
            }
            bytes += read as u64;
            if let Some(checker) = &mut self.checker {
                checker.feed(&piece[..read]);
            }
            if self.keep {
                kept.extend_from_slice(&piece[..read]);
            }
            if let Some((_, tell)) = self.tell.take_if(|(wanted, _)| bytes >= *wanted) {
                // Nobody who has given up waits for it.
                let _ = tell.send(Instant::now());
            }
            if let Some(rate) = self.rate {
                let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn written(out: Out, bytes: u32) -> Taken {
        let (stdout, reader) = out.open();
        reader.iter().for_each(Reader::open);
        let script = format!("head -c {bytes} /dev/zero");
        assert!(Command::new("sh").args(["-c", &script]).stdout(stdout).status().unwrap().success());
        reader.unwrap().join()
    }

    #[test]
    fn all_that_is_written_is_counted_and_kept_if_that_is_wanted() {
        assert_eq!(written(Out::counted(), 200_000).bytes, 200_000);
        let keeping = Consumer { keep: true, ..Consumer::default() };
        assert_eq!(written(Out::Pipe(Box::new(keeping)), 200_000).kept, vec![0; 200_000]);
    }

    #[test]
    fn who_waits_for_so_many_bytes_is_told_when_they_have_come_and_not_before() {
        for (written_bytes, told) in [(99_999, false), (100_000, true)] {
            let (out, arrived) = Out::until(100_000, Checker::new(80, Vec::new(), || 0));
            written(out, written_bytes);
            assert_eq!(arrived.try_recv().is_ok(), told);
        }
    }

    #[test]
    fn who_stands_still_does_so_from_the_opening_of_the_gate_on() {
        let stalled = Consumer { stall: Duration::from_millis(1), keep: true, ..Consumer::default() };
        let (stdout, reader) = Out::Pipe(Box::new(stalled)).open();
        let mut writer = Command::new("sh").args(["-c", "head -c 200000 /dev/zero"]).stdout(stdout).spawn();
        let writer = writer.as_mut().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(writer.try_wait().unwrap().is_none(), "its pipe is full");
        let reader = reader.unwrap();
        reader.open();
        assert!(writer.wait().unwrap().success());
        assert_eq!(reader.join().bytes, 200_000);
    }

    #[test]
    fn a_slow_reader_takes_its_time() {
        let slow = Consumer { rate: Some(1_000_000), ..Consumer::default() };
        let begun = Instant::now();
        written(Out::Pipe(Box::new(slow)), 300_000);
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }
}
