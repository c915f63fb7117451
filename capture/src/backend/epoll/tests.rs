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

/// An epoll, and a file that is always readable, so that whoever should wait for nothing else can
/// be found waiting.
struct World {
    epoll: Epoll,
    memory: Box<[u8]>,
    ready: EventFd,
}

impl World {
    fn new() -> World {
        let (mut epoll, ready) = (Epoll::new().unwrap(), EventFd::from_value(1).unwrap());
        // SAFETY: it goes with the epoll, after it.
        unsafe { epoll.register(Token::Bell, ready.as_fd()) };
        World { epoll, memory: vec![0; 4096].into(), ready }
    }

    fn register(&mut self, file: impl AsFd) {
        self.register_as(SOURCE, file);
    }

    fn register_as(&mut self, token: Token, file: impl AsFd) {
        // SAFETY: each test keeps its files open until it deregisters them, or for as long as it uses the
        // epoll.
        unsafe { self.epoll.register(token, file.as_fd()) }
    }

    fn read(&mut self, file: impl AsFd) {
        let span = Span { ptr: self.memory.as_mut_ptr(), len: self.memory.len() };
        // SAFETY: the memory stays as it is until `epoll` has gone or has answered, and is not looked at
        // before.
        unsafe { self.epoll.read(SOURCE, file.as_fd(), span) }
    }

    /// What is answered until nothing is in flight, at least one answer.
    fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while !self.epoll.is_quiet() {
            self.epoll.turn(Duration::ZERO).unwrap();
            self.epoll.take(&mut answers);
        }
        answers
    }

    /// What is answered to what is there, though something else waits on.
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

/// A FIFO, opened for reading and for writing.
fn fifo() -> (OwnedFd, File) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Non-blocking to open it without a writer.
    let read = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let write = File::options().write(true).open(&path).unwrap();
    fcntl(&read, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (read.into(), write)
}

#[test]
fn files_of_all_kinds_are_read_to_their_ends_and_stay_as_blocking_as_they_were() {
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
        let mut world = World::new();
        world.register(&file);
        assert_eq!(world.read_to_end(&file), b"twelve bytes"[..length], "{kind}");
        assert_eq!(flags(&file), before, "{kind}");
    }
}

#[test]
fn a_read_of_a_blocking_file_with_nothing_in_it_keeps_nobody_waiting() {
    for (read, mut write) in [pipe(OFlag::empty()), fifo()] {
        let mut world = World::new();
        world.register(&read);
        for _ in 0..3 {
            world.read(&read);
            assert_eq!(world.answers_now(), []);
            write.write_all(b"x").unwrap();
            assert!(matches!(world.answers()[..], [(SOURCE, Ok(1))]));
        }
    }
}

#[test]
fn a_short_read_is_not_taken_for_an_empty_pipe() {
    // In packet mode, which a rank may switch on, each read gives one write. Their edges are one.
    let (read, mut write) = pipe(OFlag::O_DIRECT);
    let mut world = World::new();
    world.register(&read);
    for packet in [b"one", b"two"] {
        write.write_all(packet).unwrap();
    }
    for _ in 0..2 {
        world.read(&read);
        assert!(matches!(world.answers()[..], [(SOURCE, Ok(3))]));
    }
    world.read(&read);
    assert_eq!(world.answers_now(), []);
}

#[test]
fn a_poll_is_answered_as_long_as_there_are_bytes() {
    let (read, mut write) = pipe(OFlag::empty());
    let mut world = World::new();
    world.register(&read);
    world.epoll.poll(SOURCE, read.as_fd());
    assert_eq!(world.answers_now(), []);
    write.write_all(b"x").unwrap();
    assert!(matches!(world.answers()[..], [(SOURCE, Ok(1))]));
    world.epoll.poll(SOURCE, read.as_fd());
    assert!(matches!(world.answers()[..], [(SOURCE, Ok(1))]), "the byte is still there");
    assert_eq!(world.epoll.discard(read.as_fd()).unwrap(), 1);
    world.epoll.poll(SOURCE, read.as_fd());
    assert_eq!(world.answers_now(), []);
}

#[test]
fn what_is_cancelled_is_answered_once_and_what_was_answered_is_not_cancelled() {
    let (read, mut write) = pipe(OFlag::empty());
    let mut world = World::new();
    world.register(&read);
    let cancelled = |answers: Vec<Answer>| match &answers[..] {
        [(SOURCE, Err(error))] => error.raw_os_error() == Some(libc::ECANCELED),
        _ => false,
    };
    world.read(&read);
    world.epoll.cancel(SOURCE);
    assert!(cancelled(world.answers()));
    world.epoll.poll(SOURCE, read.as_fd());
    world.epoll.cancel(SOURCE);
    assert!(cancelled(world.answers()));
    world.epoll.pause(SOURCE);
    world.epoll.cancel(SOURCE);
    assert!(cancelled(world.answers()));

    write.write_all(b"x").unwrap();
    world.read(&read);
    world.epoll.turn(Duration::ZERO).unwrap();
    world.epoll.cancel(SOURCE);
    assert!(matches!(world.answers()[..], [(SOURCE, Ok(1))]));
    assert!(world.epoll.is_quiet());
}

#[test]
fn a_pause_is_answered_when_it_is_over_and_not_before() {
    let mut world = World::new();
    let begun = Instant::now();
    world.epoll.pause(SOURCE);
    assert!(matches!(world.answers()[..], [(SOURCE, Ok(0))]));
    assert!(begun.elapsed() >= PAUSE);
}

#[test]
fn more_files_than_are_told_or_served_at_once_are_all_answered() {
    crate::raise_file_limit().unwrap();
    let files: Vec<EventFd> = (0..EVENTS + ROUND).map(|_| EventFd::from_value(1).unwrap()).collect();
    let mut epoll = Epoll::new().unwrap();
    let mut memory = vec![[0; 8]; files.len()];
    for (at, (file, place)) in files.iter().zip(&mut memory).enumerate() {
        // SAFETY: all stay open until the test ends.
        unsafe { epoll.register(Token::Source(at), file.as_fd()) };
        let span = Span { ptr: place.as_mut_ptr(), len: place.len() };
        // SAFETY: the memory stays, untouched, until `epoll` is quiet.
        unsafe { epoll.read(Token::Source(at), file.as_fd(), span) };
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
fn who_always_has_bytes_gets_one_read_a_turn_and_keeps_nobody_waiting() {
    let (read, mut write) = pipe(OFlag::empty());
    let endless = File::open("/dev/zero").unwrap();
    let mut world = World::new();
    world.register(&endless);
    world.register_as(Token::Source(1), &read);
    for _ in 0..100 {
        world.epoll.poll(Token::Source(1), read.as_fd());
        write.write_all(b"x").unwrap();
        let mut answers = Vec::new();
        for _ in 0..2 {
            let before = answers.len();
            world.read(&endless);
            world.epoll.turn(Duration::ZERO).unwrap();
            world.epoll.take(&mut answers);
            let of_endless = answers[before..].iter().filter(|(token, _)| *token == SOURCE);
            assert_eq!(of_endless.count(), 1);
        }
        assert!(answers.iter().any(|(token, _)| *token == Token::Source(1)));
        assert_eq!(world.epoll.discard(read.as_fd()).unwrap(), 1);
    }
}

#[test]
fn a_file_that_was_let_go_is_heard_of_no_more_though_others_share_it() {
    let (read, mut write) = pipe(OFlag::empty());
    let _shared = read.try_clone().unwrap();
    let mut world = World::new();
    world.register(&read);
    world.epoll.deregister(SOURCE);
    drop(read);
    let (read, _write) = pipe(OFlag::empty());
    world.register(&read);
    world.epoll.poll(SOURCE, read.as_fd());
    write.write_all(b"x").unwrap();
    assert_eq!(world.answers_now(), []);
}

#[test]
fn a_name_without_a_file_is_answered_with_an_error() {
    let (read, _write) = pipe(OFlag::empty());
    let mut world = World::new();
    world.read(&read);
    let [(SOURCE, Err(error))] = &world.answers()[..] else { panic!("no error") };
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

const TARGET: Token = Token::Target(0);

fn lent(bytes: &[u8]) -> Lent {
    Lent { ptr: bytes.as_ptr(), len: bytes.len() }
}

#[test]
fn a_full_pipe_keeps_nobody_waiting_and_takes_the_rest_when_there_is_room() {
    for (kind, (read, write)) in [("pipe", pipe(OFlag::empty())), ("FIFO", fifo())] {
        let mut world = World::new();
        world.register_as(TARGET, &write);
        let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
        let (mut written, mut got, mut buffer) = (0, Vec::new(), vec![0; 10_000]);
        while written < sent.len() {
            // SAFETY: the bytes outlive the epoll's last answer for them, and nobody changes them.
            unsafe { world.epoll.write(TARGET, write.as_fd(), lent(&sent[written..])) }
            // The second look comes after an edge that was not true any more.
            let mut full = true;
            for _ in 0..2 {
                world.epoll.poll(Token::Bell, world.ready.as_fd());
                let mut answers = Vec::new();
                while !answers.iter().any(|(token, _)| *token == Token::Bell) {
                    world.epoll.turn(Duration::ZERO).unwrap();
                    world.epoll.take(&mut answers);
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
                got.extend_from_slice(&buffer[..n]);
                world.epoll.turn(Duration::ZERO).unwrap_or_else(|error| panic!("{kind}: {error}"));
                let mut answers = Vec::new();
                world.epoll.take(&mut answers);
                for (_, result) in answers {
                    written += result.unwrap();
                    full = false;
                }
            }
        }
        world.epoll.deregister(TARGET);
        drop(write);
        std::io::Read::read_to_end(&mut File::from(read), &mut got).unwrap();
        assert!(got == sent, "{kind}");
    }
}

#[test]
fn a_write_that_waits_is_answered_when_the_reader_goes() {
    for (kind, (read, write)) in [("pipe", pipe(OFlag::empty())), ("FIFO", fifo())] {
        let mut world = World::new();
        world.register_as(TARGET, &write);
        let bytes = vec![1; 1 << 20];
        let mut answered = 0;
        loop {
            // SAFETY: as above.
            unsafe { world.epoll.write(TARGET, write.as_fd(), lent(&bytes)) }
            if world.answers_now().is_empty() && world.answers_now().is_empty() {
                break;
            }
            answered += 1;
        }
        assert!(answered > 0, "{kind}");
        drop(read);
        let [(TARGET, Err(error))] = &world.answers()[..] else { panic!("{kind}") };
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE), "{kind}");
    }
}
