//! The hand-off of readers to other processes, and what a receiver and an owner make of peers that
//! break the protocol.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iof_shm_ring::handoff::{self, Gating, ReceivedReader, SentReader};
use iof_shm_ring::{OpenError, Peek, Policy, ReceiveError, ServeError, Start, Stream, StreamConfig, notify};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, sendmsg};

/// Environment variable with the role of a process that the tests started.
const ROLE: &str = "IOF_HANDOFF_ROLE";
const CAPACITY: u64 = 16 * 1024;
const PRODUCED: u64 = 3_000_000;
/// Length of a message of the hand-off in bytes, and offsets of its version and kind.
const LEN: usize = 40;
const VERSION: usize = 8;
const KIND: usize = 12;
const FLAGS: usize = 20;

fn stream(policy: Policy) -> Stream {
    Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap()
}

/// Returns `n` bytes from `position` on. Their period is not a power of two, so a byte from another
/// lap of the ring differs.
fn pattern(position: u64, n: usize) -> Vec<u8> {
    (position..).take(n).map(|position| (position % 251) as u8).collect()
}

fn receive(socket: &UnixStream) -> Result<ReceivedReader, ReceiveError> {
    // SAFETY: the tests' owners send with `handoff::send`, possibly altered on the way so that the
    // call fails, and neither detach nor move readers in use. Nothing else uses this end.
    unsafe { handoff::receive(socket) }
}

fn receive_error(socket: &UnixStream) -> ReceiveError {
    receive(socket).unwrap_err()
}

/// Starts this test's program again, in another role, with one end of a connection as stdin.
fn start(role: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["process_of_the_tests", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

#[test]
#[ignore = "the program of the tests' processes, not a test"]
fn process_of_the_tests() {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match std::env::var(ROLE).unwrap().as_str() {
        "read to the end" => assert_eq!(read(receive(&socket).unwrap()), (Peek::Ended, PRODUCED)),
        "read until the writer is gone" => {
            assert_eq!(read(receive(&socket).unwrap()), (Peek::Gone, CAPACITY / 2));
        }
        "receive without room for descriptors" => {
            let lowest_free = socket.try_clone().unwrap().as_raw_fd() as u64;
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, lowest_free + 2, hard).unwrap();
            let error = receive_error(&socket);
            assert!(matches!(error, ReceiveError::TruncatedDescriptors { received: 2 }), "{error:?}");
            // The two received descriptors were closed, so there is room for two others.
            let _two = [socket.try_clone().unwrap(), socket.try_clone().unwrap()];
            socket.try_clone().unwrap_err();
        }
        role => panic!("no such role: {role}"),
    }
}

/// Reads to the end and compares every byte. Returns what is there, and the number of bytes that
/// were delivered or reported as lost.
fn read(mut received: ReceivedReader) -> (Peek, u64) {
    let mut position = 0;
    loop {
        let reader = received.reader();
        match reader.peek() {
            Peek::Bytes => {
                let n = reader.bytes().len().min(1000);
                assert!(reader.bytes()[..n] == pattern(position, n), "at {position}");
                reader.consume(n);
                position += n as u64;
            }
            Peek::Gap(gap) => {
                assert_eq!(gap.offset, position);
                position += gap.lost;
            }
            Peek::Empty => received.wait().unwrap(),
            Peek::Sealed => received.follow().unwrap(),
            end @ (Peek::Ended | Peek::Broken { .. } | Peek::Gone) => {
                return (end, reader.delivered() + reader.lost());
            }
        }
    }
}

/// Writes all of `PRODUCED` for `readers`, and waits whenever a reader holds the stream back. Calls
/// `between` after each piece.
fn write(stream: &mut Stream, readers: &mut [SentReader], mut between: impl FnMut(&mut Stream)) {
    while stream.stats().produced < PRODUCED {
        let position = stream.stats().produced;
        let n = (PRODUCED - position).min(CAPACITY / 8) as usize;
        let pushed = stream.push(&pattern(position, n), 1);
        notify([&*stream]);
        if pushed < n {
            readers[0].wait().unwrap();
        }
        for reader in &mut *readers {
            assert!(reader.serve(stream).unwrap(), "the reader is still reading");
        }
        between(stream);
    }
    stream.complete();
    notify([&*stream]);
    for reader in readers {
        while reader.serve(stream).unwrap() {
            reader.wait().unwrap();
        }
        assert_eq!(stream.lag(reader.page(), reader.id()), None, "the reader is detached");
    }
}

#[test]
fn a_reader_in_another_process_follows_the_stream_and_loses_nothing() {
    let mut stream = stream(Policy::Block);
    let (mut child, socket) = start("read to the end");
    let reader = handoff::send(&socket, &mut stream, Start::Oldest, Gating::Block).unwrap();
    let mut turn = 0;
    write(&mut stream, &mut [reader], |stream| {
        turn += 1;
        if turn % 100 == 0 {
            let capacity = if turn % 200 == 0 { CAPACITY } else { 2 * CAPACITY };
            stream.reconfigure(StreamConfig { capacity, policy: Policy::Block }).unwrap();
        }
    });
    assert!(child.wait().unwrap().success());
    assert!(stream.stats().generation > 1);
    assert_eq!(stream.stats().dropped, 0);
}

#[test]
fn readers_of_every_kind_account_for_every_byte_in_their_processes() {
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let mut stream = stream(policy);
        let (mut children, mut readers) = (Vec::new(), Vec::new());
        for gating in [Gating::Gate, Gating::None, Gating::Block] {
            let (child, socket) = start("read to the end");
            readers.push(handoff::send(&socket, &mut stream, Start::Oldest, gating).unwrap());
            children.push(child);
        }
        write(&mut stream, &mut readers, |_| {});
        assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    }
}

#[test]
fn a_reader_gets_the_last_bytes_of_an_owner_that_is_gone() {
    let mut stream = stream(Policy::Block);
    let (mut child, socket) = start("read until the writer is gone");
    let reader = handoff::send(&socket, &mut stream, Start::Oldest, Gating::Block).unwrap();
    stream.push(&pattern(0, CAPACITY as usize / 2), 1);
    drop((reader, socket));
    assert!(child.wait().unwrap().success());
}

#[test]
fn descriptors_beyond_the_receivers_limit_are_an_error_and_the_others_are_closed() {
    let mut stream = stream(Policy::DropNewest);
    let (mut child, socket) = start("receive without room for descriptors");
    handoff::send(&socket, &mut stream, Start::Oldest, Gating::Gate).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_room_bell_that_the_reader_has_closed_wakes_the_owner_once() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut stream = stream(Policy::Block);
    let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
    let mut message = Intercepted::take(&theirs);
    drop(message.fds.pop().unwrap());
    let is_readable = |sent: &SentReader| {
        let mut polled: Vec<_> = sent.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
    };
    assert!(is_readable(&sent));
    assert!(sent.serve(&mut stream).unwrap(), "the connection remains");
    assert!(!is_readable(&sent), "the owner would spin");
    drop(theirs);
    sent.wait().unwrap();
    assert!(!sent.serve(&mut stream).unwrap());
}

/// A message of a hand-off, taken from the connection before the receiver gets it.
struct Intercepted {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Intercepted {
    fn new() -> Intercepted {
        let (ours, theirs) = UnixStream::pair().unwrap();
        handoff::send(&ours, &mut stream(Policy::DropNewest), Start::Oldest, Gating::Gate).unwrap();
        let message = Intercepted::take(&theirs);
        assert_eq!(message.fds.len(), 4);
        message
    }

    fn take(socket: &UnixStream) -> Intercepted {
        let (mut bytes, mut room) = (vec![0; 2 * LEN], nix::cmsg_space!([RawFd; 8]));
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let received =
            recvmsg::<()>(socket.as_raw_fd(), &mut buffer, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC);
        let received = received.unwrap();
        let mut fds = Vec::new();
        for control in received.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel just created these descriptors for this process.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let n = received.bytes;
        bytes.truncate(n);
        assert_eq!(bytes.len(), LEN);
        Intercepted { bytes, fds }
    }

    /// Returns the message with byte `index` changed.
    fn altered(index: usize) -> Intercepted {
        let mut message = Intercepted::new();
        message.bytes[index] ^= 0x80;
        message
    }

    fn send(&self, socket: &UnixStream) {
        let raw: Vec<RawFd> = self.fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[_] = if raw.is_empty() { &[] } else { &rights };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&self.bytes)], control, MsgFlags::empty(), None)
            .unwrap();
    }

    /// Sends the message, closes the connection, and returns what the receiver makes of it.
    fn error(self) -> ReceiveError {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.send(&ours);
        drop(ours);
        receive_error(&theirs)
    }
}

#[test]
fn a_message_that_is_cut_short_is_an_error_with_the_number_of_bytes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    assert!(matches!(receive_error(&theirs), ReceiveError::Closed));
    for received in [1, LEN - 1] {
        let mut message = Intercepted::new();
        message.bytes.truncate(received);
        let error = message.error();
        assert!(
            matches!(error, ReceiveError::Truncated { received: n, expected: LEN } if n == received),
            "{error:?}"
        );
    }
}

#[test]
fn garbage_and_other_versions_kinds_and_flags_are_errors() {
    assert!(matches!(Intercepted::altered(0).error(), ReceiveError::Magic { .. }));
    let version = Intercepted::altered(VERSION).error();
    assert!(matches!(version, ReceiveError::Version { found: 0x81, expected: 1 }), "{version:?}");
    let kind = Intercepted::altered(KIND).error();
    assert!(matches!(kind, ReceiveError::Kind { found: 0x81, expected: 1 }), "{kind:?}");
    let flags = Intercepted::altered(FLAGS).error();
    assert!(matches!(flags, ReceiveError::Flags { found: 0x80 }), "{flags:?}");
    let garbage = Intercepted { bytes: vec![0xff; 4 * LEN], fds: Vec::new() };
    assert!(matches!(garbage.error(), ReceiveError::Magic { found: u64::MAX }));
}

#[test]
fn too_few_or_too_many_descriptors_are_an_error_and_are_closed() {
    for count in [0, 1, 3] {
        let mut message = Intercepted::new();
        message.fds.truncate(count);
        let error = message.error();
        assert!(
            matches!(error, ReceiveError::Descriptors { found, expected: 4 } if found == count),
            "{error:?}"
        );
    }
    for count in [5, 6, 100] {
        let (mut read, write) = std::io::pipe().unwrap();
        let mut message = Intercepted::new();
        message.fds = (0..count).map(|_| write.try_clone().unwrap().into()).collect();
        drop(write);
        let error = message.error();
        assert!(
            matches!(
                error,
                ReceiveError::Descriptors { found: 5.., expected: 4 }
                    | ReceiveError::TruncatedDescriptors { received: 4.. }
            ),
            "{error:?}"
        );
        // Ends only when every copy of the writing end is closed.
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn files_without_seals_and_files_in_the_wrong_order_are_rejected() {
    for index in [0, 1] {
        let mut message = Intercepted::new();
        let unsealed = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC).unwrap();
        File::from(unsealed.try_clone().unwrap()).set_len(1 << 20).unwrap();
        message.fds[index] = unsealed;
        let error = message.error();
        assert!(matches!(error, ReceiveError::Open(OpenError::Unsealed { .. })), "{error:?}");
        let mut message = Intercepted::new();
        message.fds[index] = File::open("/proc/self/exe").unwrap().into();
        let error = message.error();
        assert!(matches!(error, ReceiveError::Open(OpenError::Seals { .. })), "{error:?}");
    }
    let mut message = Intercepted::new();
    message.fds.swap(0, 1);
    assert!(matches!(message.error(), ReceiveError::Open(_)));
}

#[test]
fn a_reader_that_closes_its_connection_is_detached() {
    let mut stream = stream(Policy::Block);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
    let received = receive(&theirs).unwrap();
    assert!(stream.push(&pattern(0, 2 * CAPACITY as usize), 1) < 2 * CAPACITY as usize);
    assert!(sent.serve(&mut stream).unwrap());
    drop((received, theirs));
    sent.wait().unwrap();
    assert!(!sent.serve(&mut stream).unwrap());
    assert_eq!(stream.push(&pattern(0, CAPACITY as usize), 1), CAPACITY as usize);
}

#[test]
fn an_unknown_request_is_an_error_and_one_too_many_is_ignored() {
    let mut stream = stream(Policy::DropNewest);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Gate).unwrap();
    (&theirs).write_all(&[1, 7]).unwrap();
    assert!(sent.serve(&mut stream).unwrap());
    assert!(matches!(sent.serve(&mut stream), Err(ServeError::Request { found: 7 })));
}

#[test]
fn a_hand_off_that_fails_leaves_no_reader_behind() {
    let mut stream = stream(Policy::Block);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap_err();
    assert_eq!(stream.push(&pattern(0, 2 * CAPACITY as usize), 1), 2 * CAPACITY as usize);
}

#[test]
fn a_flood_of_requests_does_not_keep_the_owner() {
    let mut stream = stream(Policy::DropNewest);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Gate).unwrap();
    (&theirs).write_all(&[1; 100]).unwrap();
    for served in 1..=3 {
        sent.wait().unwrap();
        assert!(sent.serve(&mut stream).unwrap());
        assert_eq!(unread(&ours), 100 - served);
    }
}

/// Returns the number of bytes that have arrived at `socket`, at most 200.
fn unread(socket: &UnixStream) -> usize {
    recv(socket.as_raw_fd(), &mut [0; 200], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).unwrap_or(0)
}

/// Continues `stream` in a new generation of a greater capacity, with one byte.
fn grow(stream: &mut Stream, capacity: u64) {
    let (position, generation) = (stream.stats().produced, stream.stats().generation);
    stream.reconfigure(StreamConfig { capacity, policy: Policy::Block }).unwrap();
    assert_eq!(stream.push(&pattern(position, 1), 1), 1);
    assert_eq!(stream.stats().generation, generation + 1);
}

fn assert_timeout(result: Result<(), ReceiveError>) {
    let kind = match &result {
        Err(ReceiveError::Socket { source }) => Some(source.kind()),
        _ => None,
    };
    assert_eq!(kind, Some(ErrorKind::WouldBlock), "{result:?}");
}

#[test]
fn a_reader_that_retries_after_a_timeout_sends_one_request() {
    let mut stream = stream(Policy::Block);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
    let mut received = receive(&theirs).unwrap();
    theirs.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    for generation in 1..4 {
        let position = received.reader().position();
        stream.push(&pattern(stream.stats().produced, 1000), 1);
        assert_eq!(received.reader().peek(), Peek::Bytes);
        grow(&mut stream, CAPACITY << generation);
        // The reader still borrows from the sealed generation.
        received.follow().unwrap();
        assert_eq!(unread(&ours), 0);
        let n = received.reader().bytes().len();
        assert!(received.reader().bytes() == pattern(position, n));
        received.reader().consume(n);
        assert_eq!(received.reader().peek(), Peek::Sealed);
        for _ in 0..3 {
            assert_timeout(received.follow());
            assert_eq!(unread(&ours), 1);
            assert_eq!(received.reader().peek(), Peek::Sealed);
        }
        assert!(sent.serve(&mut stream).unwrap());
        received.follow().unwrap();
        assert_eq!(unread(&ours), 0);
    }
    assert_eq!(received.reader().peek(), Peek::Bytes);
    received.reader().consume(1);
    assert_eq!((received.reader().delivered(), received.reader().lost()), (3003, 0));
}

/// A reader that has requested the next generation of its stream, over a connection on which the
/// test forwards the messages.
struct Forwarded {
    received: ReceivedReader,
    /// The end that is connected to the reader.
    to_reader: UnixStream,
    /// The owner's answer.
    answer: Intercepted,
    _owner: (Stream, SentReader),
}

impl Forwarded {
    fn new() -> Forwarded {
        let mut stream = stream(Policy::Block);
        let (ours, mut to_owner) = UnixStream::pair().unwrap();
        let (mut to_reader, theirs) = UnixStream::pair().unwrap();
        let mut sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
        Intercepted::take(&to_owner).send(&to_reader);
        let mut received = receive(&theirs).unwrap();
        theirs.set_nonblocking(true).unwrap();
        grow(&mut stream, 2 * CAPACITY);
        assert_eq!(received.reader().peek(), Peek::Sealed);
        assert_timeout(received.follow());
        let mut request = [0];
        to_reader.read_exact(&mut request).unwrap();
        to_owner.write_all(&request).unwrap();
        assert!(sent.serve(&mut stream).unwrap());
        let answer = Intercepted::take(&to_owner);
        Forwarded { received, to_reader, answer, _owner: (stream, sent) }
    }
}

#[test]
fn an_answer_in_pieces_is_received_by_several_calls() {
    let Forwarded { mut received, to_reader, answer, _owner } = Forwarded::new();
    let (first, rest) = answer.bytes.split_at(KIND);
    Intercepted { bytes: first.to_vec(), fds: answer.fds }.send(&to_reader);
    assert_timeout(received.follow());
    assert_timeout(received.follow());
    Intercepted { bytes: rest.to_vec(), fds: Vec::new() }.send(&to_reader);
    received.follow().unwrap();
    assert_eq!(received.reader().peek(), Peek::Bytes);
    assert_eq!(unread(&to_reader), 0, "no second request was sent");
}

#[test]
fn a_reader_that_cannot_use_an_answer_fails_for_good() {
    for fault in ["magic", "descriptors", "end"] {
        let Forwarded { mut received, to_reader, mut answer, _owner } = Forwarded::new();
        match fault {
            "magic" => answer.bytes[0] ^= 0x80,
            "descriptors" => answer.fds.clear(),
            _ => answer.bytes.truncate(LEN - 1),
        }
        answer.send(&to_reader);
        if fault == "end" {
            assert_timeout(received.follow());
            to_reader.shutdown(Shutdown::Write).unwrap();
        }
        let error = received.follow().unwrap_err();
        assert!(!matches!(error, ReceiveError::Socket { .. } | ReceiveError::Failed), "{error:?}");
        for _ in 0..2 {
            assert!(matches!(received.follow(), Err(ReceiveError::Failed)));
        }
        assert_eq!(received.reader().peek(), Peek::Sealed);
        assert_eq!(unread(&to_reader), 0, "no second request was sent");
    }
}
