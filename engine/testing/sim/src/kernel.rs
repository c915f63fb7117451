//! The simulated kernel: the pipes are real, but when, how and in which order each request is
//! answered is random.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use iof_capture::test_utils::{Answer, Backend, Pause, SimulatedCapture, Token};
use iof_capture::{BackendKind, Command, NewProcess, NewSource, SourceId, StreamRequest};
use iof_shm_ring::{Lent, Span, Stream};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};

use crate::rng::Rng;

/// The way in which the next turn answers requests.
#[derive(Clone, Debug)]
pub struct Mood {
    /// The source of its random decisions.
    pub rng: Rng,
    /// The number of requests that are answered, of 256.
    pub answers: u64,
    /// The number of requests that fail, of 256.
    pub faults: u64,
    /// Set if the kernel may lack memory.
    pub may_lack_memory: bool,
}

/// The kernel's knowledge of a file.
#[derive(Clone, Copy, Debug)]
struct File {
    fd: RawFd,
    /// The number of the pipe, as the simulation counts them.
    pipe: Option<usize>,
}

#[derive(Debug)]
enum Operation {
    Read(Span),
    Write(Lent),
    Poll,
    Pause,
}

#[derive(Debug)]
struct Request {
    operation: Operation,
    cancelled: bool,
}

/// The kernel's actions on one pipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipeRecord {
    /// Bytes that were read from it.
    pub given: u64,
    /// Set if the reader was given an error that ends its source.
    pub failed: bool,
    /// Set if each read returns one packet, which must not be cut.
    pub packets: bool,
}

/// The kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The way in which the next turn answers requests.
    pub mood: Mood,
    /// Set if the next turn fails.
    pub fails: bool,
    time: u64,
    files: BTreeMap<u64, File>,
    requests: BTreeMap<u64, Request>,
    answers: Vec<Answer>,
    pipes: Vec<PipeRecord>,
    /// The pipes whose files are not closed, by descriptor.
    open: BTreeMap<RawFd, usize>,
}

fn fails<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Kernel {
    /// Creates a kernel without files.
    pub fn new() -> Kernel {
        let mood = Mood { rng: Rng::new(0), answers: 256, faults: 0, may_lack_memory: false };
        Kernel {
            mood,
            fails: false,
            time: 0,
            files: BTreeMap::new(),
            requests: BTreeMap::new(),
            answers: Vec::new(),
            pipes: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// Adds the descriptor of a pipe that the capture is about to get. Returns the pipe's number.
    pub fn add_pipe(&mut self, fd: RawFd, packets: bool) -> usize {
        self.pipes.push(PipeRecord { packets, ..PipeRecord::default() });
        self.open.insert(fd, self.pipes.len() - 1);
        self.pipes.len() - 1
    }

    /// Returns what was done to a pipe.
    pub fn pipe(&self, number: usize) -> PipeRecord {
        self.pipes[number]
    }

    fn request(&mut self, token: Token, operation: Operation) {
        let word = u64::from(token);
        let before = self.requests.insert(word, Request { operation, cancelled: false });
        assert!(before.is_none(), "{token:?} already has a request in flight");
    }

    fn check_file(&self, token: Token, file: BorrowedFd<'_>) {
        let registered = self.files.get(&token.into()).map(|file| file.fd);
        assert_eq!(registered, Some(file.as_raw_fd()), "{token:?} names another file than it registered");
    }

    /// Answers the request of `token`, if the state of its file and the mood allow it.
    fn answer(&mut self, word: u64, request: Request) {
        let token = Token::from(word);
        // A source without a pipe pauses, too.
        let File { fd, pipe } = self.files.get(&word).copied().unwrap_or(File { fd: 0, pipe: None });
        // SAFETY: the driver keeps a registered file open, and so does this process its stdin.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let mood = &mut self.mood;
        let is_bell = matches!(token, Token::Bell);
        let fault = !is_bell && mood.rng.chance(mood.faults);
        if request.cancelled && (is_bell || mood.rng.chance(128)) {
            self.answers.push((token, fails(libc::ECANCELED)));
            return;
        }
        let result = match request.operation {
            Operation::Pause if fault => Ok(0),
            Operation::Pause => fails(libc::ETIME),
            Operation::Poll if fault => Ok(1),
            Operation::Poll if is_ready(file, token) => Ok(1),
            Operation::Read(_) | Operation::Write(_) if fault => self.fault(token, pipe),
            Operation::Read(Span { ptr, len }) => {
                // SAFETY: the request is in flight, so `len` bytes at `ptr` are mapped, and only
                // the kernel writes them.
                let span = unsafe { std::slice::from_raw_parts_mut(ptr, len) };
                match self.give(file, pipe, span) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => fails(libc::EAGAIN),
                    result => result,
                }
            }
            Operation::Write(lent) => {
                let len =
                    if mood.rng.chance(64) { mood.rng.size(lent.len as u64) as usize } else { lent.len };
                // SAFETY: the request is in flight, so `len` bytes at `ptr` are mapped.
                let bytes = unsafe { std::slice::from_raw_parts(lent.ptr, len) };
                write(file, bytes).map_err(io::Error::from)
            }
            Operation::Poll => fails(libc::EAGAIN),
        };
        let would_block = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        match (would_block && !fault, request.cancelled) {
            // The kernel waits.
            (true, false) => drop(self.requests.insert(word, request)),
            (true, true) => self.answers.push((token, fails(libc::ECANCELED))),
            (false, _) => self.answers.push((token, result)),
        }
    }

    /// Makes up an error.
    fn fault(&mut self, token: Token, pipe: Option<usize>) -> io::Result<usize> {
        let mood = &mut self.mood;
        let errno = match mood.rng.below(16) {
            0..8 => libc::EINTR,
            8..12 => libc::EAGAIN,
            12..15 if mood.may_lack_memory && matches!(token, Token::Source(_)) => {
                mood.rng.pick(&[libc::EFAULT, libc::ENOMEM])
            }
            12..15 => libc::EINTR,
            _ if mood.rng.chance(32) => {
                if let Some(pipe) = pipe {
                    self.pipes[pipe].failed = true;
                }
                libc::EBADF
            }
            _ => libc::EINTR,
        };
        fails(errno)
    }

    /// Reads from a pipe, at times less than there is.
    fn give(&mut self, file: BorrowedFd<'_>, pipe: Option<usize>, memory: &mut [u8]) -> io::Result<usize> {
        let record = pipe.map(|pipe| self.pipes[pipe]).unwrap_or_default();
        let rng = &mut self.mood.rng;
        let short = !record.packets && rng.chance(64);
        let len = if short { rng.size(memory.len() as u64) as usize } else { memory.len() };
        let n = read(file, &mut memory[..len])?;
        if let Some(pipe) = pipe {
            self.pipes[pipe].given += n as u64;
        }
        Ok(n)
    }

    fn pipe_of(&self, file: BorrowedFd<'_>) -> Option<usize> {
        self.open.get(&file.as_raw_fd()).copied()
    }
}

/// Calls `f` with the kernel of `capture`. `f` must not move it.
pub fn with_kernel<R>(capture: &mut SimulatedCapture<Kernel>, f: impl FnOnce(&mut Kernel) -> R) -> R {
    // SAFETY: the callers in this crate set the mood, add pipes and read records.
    f(unsafe { capture.kernel() }.expect("the capture runs"))
}

/// Sends a command to a capture that runs.
pub fn send(capture: &SimulatedCapture<Kernel>, command: Command) {
    capture.send([command]).expect("the capture runs");
}

/// Returns the command that adds a source.
pub fn add(id: SourceId, pipe: OwnedFd, stream: Stream, first: Option<StreamRequest>) -> Command {
    let sources = vec![NewSource { id, pipe, stream, first }];
    Command::Add(NewProcess { sources, ..NewProcess::default() })
}

/// Returns whether a poll of the file of `token` is answered now.
fn is_ready(file: BorrowedFd<'_>, token: Token) -> bool {
    let flags = if matches!(token, Token::Target(_)) { PollFlags::POLLOUT } else { PollFlags::POLLIN };
    poll(&mut [PollFd::new(file, flags)], PollTimeout::ZERO).is_ok_and(|found| found > 0)
}

impl Backend for Kernel {
    const KIND: BackendKind = BackendKind::Epoll;

    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>) {
        let pipe = self.pipe_of(file);
        let before = self.files.insert(token.into(), File { fd: file.as_raw_fd(), pipe });
        assert!(before.is_none(), "{token:?} is already registered");
    }

    fn deregister(&mut self, token: Token) {
        assert!(!self.requests.contains_key(&token.into()), "{token:?} still has a request in flight");
        let file = self.files.remove(&token.into());
        let file = file.unwrap_or_else(|| panic!("{token:?} is not registered"));
        self.open.remove(&file.fd);
    }

    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span) {
        self.check_file(token, pipe);
        self.request(token, Operation::Read(span));
    }

    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent) {
        self.check_file(token, pipe);
        self.request(token, Operation::Write(bytes));
    }

    fn poll(&mut self, token: Token, file: BorrowedFd<'_>) {
        self.check_file(token, file);
        self.request(token, Operation::Poll);
    }

    fn pause(&mut self, token: Token, _: Pause) {
        self.request(token, Operation::Pause);
    }

    fn cancel(&mut self, token: Token) {
        if let Some(request) = self.requests.get_mut(&token.into()) {
            request.cancelled = true;
        }
    }

    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        self.fetch(pipe, &mut bytes)
    }

    fn fetch(&mut self, pipe: BorrowedFd<'_>, memory: &mut [u8]) -> io::Result<usize> {
        let number = self.pipe_of(pipe);
        if self.mood.rng.chance(self.mood.faults) {
            return fails(if self.mood.rng.chance(128) { libc::EINTR } else { libc::EAGAIN });
        }
        self.give(pipe, number, memory)
    }

    unsafe fn read_now(&mut self, pipe: BorrowedFd<'_>, span: &Span) -> io::Result<usize> {
        if self.mood.may_lack_memory && self.mood.rng.chance(self.mood.faults) {
            return fails(self.mood.rng.pick(&[libc::EFAULT, libc::ENOMEM]));
        }
        // SAFETY: `len` bytes at `ptr` are mapped, and only this call writes them.
        let memory = unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) };
        self.fetch(pipe, memory)
    }

    fn turn(&mut self, _: Duration) -> io::Result<()> {
        if std::mem::take(&mut self.fails) {
            return fails(libc::EIO);
        }
        self.time += 1 + self.mood.rng.below(200_000);
        for (word, request) in std::mem::take(&mut self.requests) {
            let is_bell = word == u64::from(Token::Bell);
            if is_bell || request.cancelled || self.mood.rng.chance(self.mood.answers) {
                self.answer(word, request);
            } else {
                self.requests.insert(word, request);
            }
        }
        // Answers come in any order.
        for end in (1..self.answers.len()).rev() {
            let other = self.mood.rng.index(end + 1);
            self.answers.swap(end, other);
        }
        Ok(())
    }

    fn take(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.answers);
    }

    fn is_quiet(&self) -> bool {
        self.requests.is_empty() && self.answers.is_empty()
    }

    fn now(&self) -> u64 {
        self.time
    }
}
