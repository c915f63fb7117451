use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::unistd::pipe2;

use super::*;

const SOURCE: Token = Token::Source(0);

/// A backend under test, with memory to read into.
struct Harness {
    epoll: Epoll,
    memory: Box<[u8]>,
    /// A file that is always readable. Its answer shows that the backend did not block on another
    /// file.
    ready: EventFd,
}

impl Harness {
    fn new() -> Harness {
        let (mut epoll, ready) = (Epoll::new().unwrap(), EventFd::from_value(1).unwrap());
        // SAFETY: `ready` is dropped after `epoll`, by the order of the fields.
        unsafe { epoll.register(Token::Bell, ready.as_fd()) };
        Harness { epoll, memory: vec![0; 4096].into(), ready }
    }

    fn register(&mut self, file: impl AsFd) {
        self.register_as(SOURCE, file);
    }

    fn register_as(&mut self, token: Token, file: impl AsFd) {
        // SAFETY: each test keeps its files open until it deregisters them, or as long as it uses
        // the backend.
        unsafe { self.epoll.register(token, file.as_fd()) }
    }

    fn read(&mut self, file: impl AsFd) {
        self.read_part(file, self.memory.len());
    }

    /// Requests a read of at most `len` bytes.
    fn read_part(&mut self, file: impl AsFd, len: usize) {
        let span = Span { ptr: self.memory.as_mut_ptr(), len };
        // SAFETY: the memory is neither moved, read nor written until `epoll` has answered or was
        // dropped.
        unsafe { self.epoll.read(SOURCE, file.as_fd(), span) }
    }

    /// Runs the backend until nothing is in flight. Returns all answers.
    fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while !self.epoll.is_quiet() {
            self.epoll.turn(Duration::ZERO).unwrap();
            self.epoll.take(&mut answers);
        }
        answers
    }

    /// Returns the requests that the backend answers without waiting.
    fn answers_now(&mut self) -> Vec<Token> {
        self.epoll.poll(Token::Bell, self.ready.as_fd());
        let mut answers = Vec::new();
        while !answers.iter().any(|(token, _)| *token == Token::Bell) {
            self.epoll.turn(Duration::ZERO).unwrap();
            self.epoll.take(&mut answers);
        }
        answers.into_iter().map(|(token, _)| token).filter(|token| *token != Token::Bell).collect()
    }

    /// Reads the registered `file` to its end.
    fn read_to_end(&mut self, file: impl AsFd) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            self.read(&file);
            match &self.answers()[..] {
                [(SOURCE, Ok(0))] => return bytes,
                [(SOURCE, Ok(n))] => bytes.extend_from_slice(&self.memory[..*n]),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn pipe(flags: OFlag) -> (OwnedFd, File) {
    let (read, write) = pipe2(flags).unwrap();
    (read, write.into())
}

fn flags(file: impl AsFd) -> i32 {
    fcntl(file, FcntlArg::F_GETFL).unwrap()
}

/// Returns the read end and the write end of a FIFO.
fn fifo() -> (OwnedFd, File) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // O_NONBLOCK, because a blocking open would wait for a writer.
    let read = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let write = File::options().write(true).open(&path).unwrap();
    fcntl(&read, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (read.into(), write)
}

#[test]
fn files_of_all_kinds_are_read_to_their_ends_and_keep_their_flags() {
    let mut regular = tempfile::tempfile().unwrap();
    regular.write_all(b"twelve bytes").unwrap();
    std::io::Seek::rewind(&mut regular).unwrap();
    let (socket, peer) = UnixStream::pair().unwrap();
    let with_writer = |(read, write): (OwnedFd, File)| {
        (&write).write_all(b"twelve bytes").unwrap();
        read
    };
    (&peer).write_all(b"twelve bytes").unwrap();
    drop(peer);
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    for (kind, file, length) in [
        ("pipe", with_writer(pipe(OFlag::empty())), 12),
        ("non-blocking pipe", with_writer(pipe(OFlag::O_NONBLOCK)), 12),
        ("fifo", with_writer(fifo()), 12),
        ("socket", socket.into(), 12),
        ("regular file", regular.into(), 12),
        ("device", null, 0),
    ] {
        let before = flags(&file);
        let mut harness = Harness::new();
        harness.register(&file);
        assert_eq!(harness.read_to_end(&file), b"twelve bytes"[..length], "{kind}");
        assert_eq!(flags(&file), before, "{kind}");
    }
}

#[test]
fn a_read_of_an_empty_blocking_file_does_not_block_the_backend() {
    for (read, mut write) in [pipe(OFlag::empty()), fifo()] {
        let mut harness = Harness::new();
        harness.register(&read);
        for _ in 0..3 {
            harness.read(&read);
            assert_eq!(harness.answers_now(), []);
            write.write_all(b"x").unwrap();
            assert!(matches!(harness.answers()[..], [(SOURCE, Ok(1))]));
        }
    }
}

#[test]
fn a_short_read_does_not_mean_that_the_pipe_is_empty() {
    // In packet mode, which a rank may switch on, each read returns one write. Both writes make a
    // single event.
    let (read, mut write) = pipe(OFlag::O_DIRECT);
    let mut harness = Harness::new();
    harness.register(&read);
    for packet in [b"one", b"two"] {
        write.write_all(packet).unwrap();
    }
    for _ in 0..2 {
        harness.read(&read);
        assert!(matches!(harness.answers()[..], [(SOURCE, Ok(3))]));
    }
    harness.read(&read);
    assert_eq!(harness.answers_now(), []);
}

#[test]
fn a_poll_is_answered_as_long_as_the_pipe_has_bytes() {
    let (read, mut write) = pipe(OFlag::empty());
    let mut harness = Harness::new();
    harness.register(&read);
    harness.epoll.poll(SOURCE, read.as_fd());
    assert_eq!(harness.answers_now(), []);
    write.write_all(b"x").unwrap();
    assert!(matches!(harness.answers()[..], [(SOURCE, Ok(1))]));
    harness.epoll.poll(SOURCE, read.as_fd());
    assert!(matches!(harness.answers()[..], [(SOURCE, Ok(1))]), "the byte is still there");
    assert_eq!(harness.epoll.discard(read.as_fd()).unwrap(), 1);
    harness.epoll.poll(SOURCE, read.as_fd());
    assert_eq!(harness.answers_now(), []);
}

#[test]
fn a_cancelled_request_is_answered_once_and_an_answer_cannot_be_cancelled() {
    let (read, mut write) = pipe(OFlag::empty());
    let mut harness = Harness::new();
    harness.register(&read);
    let cancelled = |answers: Vec<Answer>| match &answers[..] {
        [(SOURCE, Err(error))] => error.raw_os_error() == Some(libc::ECANCELED),
        _ => false,
    };
    harness.read(&read);
    harness.epoll.cancel(SOURCE);
    assert!(cancelled(harness.answers()));
    harness.epoll.poll(SOURCE, read.as_fd());
    harness.epoll.cancel(SOURCE);
    assert!(cancelled(harness.answers()));
    harness.epoll.pause(SOURCE, Pause::Long);
    harness.epoll.cancel(SOURCE);
    assert!(cancelled(harness.answers()));

    write.write_all(b"x").unwrap();
    harness.read(&read);
    harness.epoll.turn(Duration::ZERO).unwrap();
    harness.epoll.cancel(SOURCE);
    assert!(matches!(harness.answers()[..], [(SOURCE, Ok(1))]));
    assert!(harness.epoll.is_quiet());
}

#[test]
fn a_pause_is_answered_at_its_deadline_and_not_before() {
    let mut harness = Harness::new();
    let started = Instant::now();
    harness.epoll.pause(SOURCE, Pause::Long);
    while !harness.epoll.is_quiet() {
        harness.epoll.turn(Duration::ZERO).unwrap();
        harness.epoll.take(&mut Vec::new());
    }
    assert!(started.elapsed() >= Pause::Long.length());
}

#[test]
fn more_files_than_one_call_or_one_round_handles_are_all_answered() {
    crate::raise_file_limit().unwrap();
    let files: Vec<EventFd> = (0..EVENTS + ROUND).map(|_| EventFd::from_value(1).unwrap()).collect();
    let mut epoll = Epoll::new().unwrap();
    let mut memory = vec![[0; 8]; files.len()];
    for (number, (file, buffer)) in files.iter().zip(&mut memory).enumerate() {
        // SAFETY: all files stay open until the test ends.
        unsafe { epoll.register(Token::Source(number), file.as_fd()) };
        let span = Span { ptr: buffer.as_mut_ptr(), len: buffer.len() };
        // SAFETY: the memory stays in place and is not accessed until `epoll` is quiet.
        unsafe { epoll.read(Token::Source(number), file.as_fd(), span) };
    }
    let mut answers = Vec::new();
    while !epoll.is_quiet() {
        epoll.turn(Duration::ZERO).unwrap();
        epoll.take(&mut answers);
    }
    assert!(answers.iter().all(|(_, result)| matches!(result, Ok(8))));
    let tokens: HashSet<u64> = answers.iter().map(|(token, _)| (*token).into()).collect();
    assert_eq!((tokens.len(), answers.len()), (files.len(), files.len()));
}

#[test]
fn a_file_that_always_has_bytes_is_read_once_a_turn_and_delays_no_other() {
    let (read, mut write) = pipe(OFlag::empty());
    let endless = File::open("/dev/zero").unwrap();
    let mut harness = Harness::new();
    harness.register(&endless);
    harness.register_as(Token::Source(1), &read);
    for _ in 0..100 {
        harness.epoll.poll(Token::Source(1), read.as_fd());
        write.write_all(b"x").unwrap();
        let mut answers = Vec::new();
        for _ in 0..2 {
            let before = answers.len();
            harness.read(&endless);
            harness.epoll.turn(Duration::ZERO).unwrap();
            harness.epoll.take(&mut answers);
            let endless_answers = answers[before..].iter().filter(|(token, _)| *token == SOURCE);
            assert_eq!(endless_answers.count(), 1);
        }
        assert!(answers.iter().any(|(token, _)| *token == Token::Source(1)));
        assert_eq!(harness.epoll.discard(read.as_fd()).unwrap(), 1);
    }
}

#[test]
fn a_file_with_older_bytes_that_was_just_read_comes_before_one_that_arrives() {
    const OTHER: Token = Token::Source(2);
    let mut harness = Harness::new();
    let [(older, mut to_older), (newer, mut to_newer)] = [(); 2].map(|()| pipe(OFlag::empty()));
    harness.register(&older);
    harness.register_as(OTHER, &newer);
    let mut bytes = [0; 4];
    let span = |part: &mut [u8]| Span { ptr: part.as_mut_ptr(), len: part.len() };
    let (one, other) = bytes.split_at_mut(2);
    // The older pipe counts as ready and has two bytes more than a read takes.
    to_older.write_all(b"abc").unwrap();
    harness.read_part(&older, 1);
    assert!(matches!(harness.answers()[..], [(SOURCE, Ok(1))]));
    // SAFETY: the memory outlives the answers.
    unsafe {
        harness.epoll.read(SOURCE, older.as_fd(), span(&mut one[..1]));
        harness.epoll.read(OTHER, newer.as_fd(), span(other));
    }
    to_newer.write_all(b"d").unwrap();
    let mut answers = Vec::new();
    let mut turn = |harness: &mut Harness| {
        harness.epoll.turn(Duration::ZERO).unwrap();
        harness.epoll.take(&mut answers);
        answers.drain(..).map(|(token, _)| token).collect::<Vec<_>>()
    };
    assert_eq!(turn(&mut harness), [SOURCE]);
    // SAFETY: as above.
    unsafe { harness.epoll.read(SOURCE, older.as_fd(), span(&mut one[1..])) };
    assert_eq!(turn(&mut harness), [SOURCE, OTHER]);
    assert_eq!(&bytes[..3], b"bcd");
}

#[test]
fn a_deregistered_file_causes_no_answers_even_if_its_description_is_shared() {
    let (read, mut write) = pipe(OFlag::empty());
    let _shared = read.try_clone().unwrap();
    let mut harness = Harness::new();
    harness.register(&read);
    harness.epoll.deregister(SOURCE);
    drop(read);
    let (read, _write) = pipe(OFlag::empty());
    harness.register(&read);
    harness.epoll.poll(SOURCE, read.as_fd());
    write.write_all(b"x").unwrap();
    assert_eq!(harness.answers_now(), []);
}

#[test]
fn a_request_for_an_unregistered_token_is_answered_with_ebadf() {
    let (read, _write) = pipe(OFlag::empty());
    let mut harness = Harness::new();
    harness.read(&read);
    let [(SOURCE, Err(error))] = &harness.answers()[..] else { panic!("no error") };
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

const TARGET: Token = Token::Target(0);

fn lent(bytes: &[u8]) -> Lent {
    Lent { ptr: bytes.as_ptr(), len: bytes.len() }
}

#[test]
fn a_write_to_a_full_pipe_does_not_block_and_continues_when_there_is_room() {
    for (kind, (read, write)) in [("pipe", pipe(OFlag::empty())), ("FIFO", fifo())] {
        let mut harness = Harness::new();
        harness.register_as(TARGET, &write);
        let sent: Vec<u8> = (0..300_000u32).map(|position| (position % 251) as u8).collect();
        let (mut written, mut received, mut buffer) = (0, Vec::new(), vec![0; 10_000]);
        while written < sent.len() {
            // SAFETY: the bytes outlive the last answer for them and are never changed.
            unsafe { harness.epoll.write(TARGET, write.as_fd(), lent(&sent[written..])) }
            // The first attempt may follow an event that is out of date.
            let mut full = true;
            for _ in 0..2 {
                harness.epoll.poll(Token::Bell, harness.ready.as_fd());
                let mut answers = Vec::new();
                while !answers.iter().any(|(token, _)| *token == Token::Bell) {
                    harness.epoll.turn(Duration::ZERO).unwrap();
                    harness.epoll.take(&mut answers);
                }
                for (token, result) in answers {
                    if token == TARGET {
                        written += result.unwrap();
                        full = false;
                    }
                }
                if !full {
                    break;
                }
            }
            while full {
                let n = nix::unistd::read(&read, &mut buffer).unwrap();
                received.extend_from_slice(&buffer[..n]);
                harness.epoll.turn(Duration::ZERO).unwrap_or_else(|error| panic!("{kind}: {error}"));
                let mut answers = Vec::new();
                harness.epoll.take(&mut answers);
                for (_, result) in answers {
                    written += result.unwrap();
                    full = false;
                }
            }
        }
        harness.epoll.deregister(TARGET);
        drop(write);
        std::io::Read::read_to_end(&mut File::from(read), &mut received).unwrap();
        assert!(received == sent, "{kind}");
    }
}

#[test]
fn a_pending_write_is_answered_with_epipe_when_the_reader_closes() {
    for (kind, (read, write)) in [("pipe", pipe(OFlag::empty())), ("FIFO", fifo())] {
        let mut harness = Harness::new();
        harness.register_as(TARGET, &write);
        let bytes = vec![1; 1 << 20];
        let mut answered = 0;
        loop {
            // SAFETY: the bytes outlive the last answer for them and are never changed.
            unsafe { harness.epoll.write(TARGET, write.as_fd(), lent(&bytes)) }
            if harness.answers_now().is_empty() && harness.answers_now().is_empty() {
                break;
            }
            answered += 1;
        }
        assert!(answered > 0, "{kind}");
        drop(read);
        let [(TARGET, Err(error))] = &harness.answers()[..] else { panic!("{kind}") };
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE), "{kind}");
    }
}
