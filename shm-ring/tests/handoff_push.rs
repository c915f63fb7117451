//! The owner of a stream writes it for one reader that it has handed off.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::net::UnixStream;
use std::thread;

use iof_shm_ring::handoff::{self, Gating, SentReader};
use iof_shm_ring::{Peek, Policy, ServeError, Start, Stream, StreamConfig};

const CAPACITY: u64 = 4096;
/// The number of bytes that are written, many times the capacity.
const PRODUCED: usize = 100 * CAPACITY as usize + 7;

/// Creates a stream with a reader, and returns the other end of the reader's connection.
fn handed_off() -> (Stream, SentReader, UnixStream) {
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::Block };
    let mut stream = Stream::create(config, "test").unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let sent = handoff::send(&ours, &mut stream, Start::Oldest, Gating::Block).unwrap();
    (stream, sent, theirs)
}

/// Receives the reader and reads to the end of the stream. Returns the number of bytes.
fn read(socket: &UnixStream) -> u64 {
    // SAFETY: the test serves the reader until this thread has closed the connection, and nothing
    // else in this process uses the socket.
    let mut received = unsafe { handoff::receive(socket) }.unwrap();
    loop {
        let reader = received.reader();
        match reader.peek() {
            Peek::Bytes => reader.consume(usize::MAX),
            Peek::Empty => received.wait().unwrap(),
            Peek::Sealed => received.follow().unwrap(),
            Peek::Ended => return reader.delivered(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_bytes_reach_a_reader_that_is_slower_than_the_writer() {
    let (mut stream, mut sent, theirs) = handed_off();
    let reader = thread::spawn(move || read(&theirs));
    sent.push_all(&mut stream, &vec![b'x'; PRODUCED], 1).unwrap();
    sent.finish(&mut stream).unwrap();
    assert_eq!(reader.join().unwrap(), PRODUCED as u64);
    assert_eq!(stream.stats().dropped, 0);
}

#[test]
fn the_writer_learns_that_its_reader_has_ended_early() {
    let (mut stream, mut sent, theirs) = handed_off();
    drop(theirs);
    let pushed = sent.push_all(&mut stream, &vec![b'x'; PRODUCED], 1);
    assert!(matches!(pushed, Err(ServeError::Closed)), "{pushed:?}");
    assert!(stream.push(&vec![b'x'; PRODUCED], 1) == PRODUCED, "the reader is detached");
}
