//! A writer and a reader that race on a ring on the heap, for Miri to find undefined behaviour
//! (`.ci/miri`).
//!
//! Copying readers are not covered here: a copy races with the writer on purpose and is discarded
//! if it is torn. The language has no plain store that may race, so Miri sees copies only in
//! single-threaded histories (`accounting`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{spawn, yield_now};
use std::time::{Duration, Instant};

use iof_shm_ring::{
    Attached, Peek, Policy, Reader, ReaderId, ReaderPage, Start, Stream, StreamConfig, bell, notify,
};

const CAPACITY: u64 = 4096;

/// Returns the bytes to be written: under Miri at least two laps of the ring, and more on request
/// (`.ci/miri`).
fn produced() -> Arc<Vec<u8>> {
    let scale = || std::env::var("IOF_MIRI_SCALE").map_or(1, |scale| scale.parse().unwrap());
    let n = if cfg!(miri) { 10_000 * scale() } else { 2_000_000 };
    Arc::new((0..n).map(|i: usize| (i % 251) as u8).collect())
}

/// The reader's side of the requests for the next generation, which the thread with the stream
/// answers.
struct Requests {
    sealed: Sender<ReaderId>,
    answers: Receiver<Attached>,
}

struct Engine {
    stream: Stream,
    page: Arc<ReaderPage>,
    requests: Receiver<ReaderId>,
    answers: Sender<Attached>,
}

fn start(policy: Policy) -> (Engine, Reader, Requests) {
    let page = Arc::new(ReaderPage::on_heap(bell().unwrap().0));
    let mut stream = Stream::on_heap(StreamConfig { capacity: CAPACITY, policy }).unwrap();
    let id = page.take_slot().unwrap();
    let given = stream.attach(&page, id, Start::Oldest, policy == Policy::Block).unwrap();
    // SAFETY: this test owns the stream, and moves and detaches readers only when they are done.
    let reader = unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.unwrap();
    let ((sealed, requests), (answers, answered)) = (channel(), channel());
    (Engine { stream, page, requests, answers }, reader, Requests { sealed, answers: answered })
}

impl Engine {
    /// Pushes all of `bytes` in pieces of many sizes, completes the stream, and serves the reader
    /// until it is gone.
    fn run(mut self, bytes: &[u8]) {
        let (mut rest, mut piece) = (bytes, 1);
        while !rest.is_empty() {
            piece = piece * 7 % 1021;
            let taken = self.stream.push(&rest[..piece.min(rest.len())], 1);
            rest = &rest[taken..];
            notify([&self.stream]);
            self.serve();
            yield_now();
        }
        self.stream.complete();
        notify([&self.stream]);
        while self.serve() {
            yield_now();
        }
    }

    fn serve(&mut self) -> bool {
        match self.requests.try_recv() {
            Ok(old) => {
                let id = self.page.take_slot().unwrap();
                self.answers.send(self.stream.follow(&self.page, old, id).unwrap()).unwrap();
                self.page.return_slot(old);
                true
            }
            Err(error) => error == TryRecvError::Empty,
        }
    }
}

/// Yields long enough for the writer to lap the ring, unless the protocol stops it. On a busy machine each
/// yield takes long.
fn linger() {
    let began = Instant::now();
    (0..400).take_while(|_| began.elapsed() < Duration::from_millis(1)).for_each(|_| yield_now());
}

/// Reads to the end, consumes all or part of what is borrowed, and compares every byte. Returns the
/// number of lost bytes.
fn drain(reader: &mut Reader, requests: &Requests, produced: &[u8]) -> u64 {
    let (mut position, mut lost, mut turn) = (0, 0, 0);
    loop {
        turn += 1;
        if turn % 8 == 4 {
            linger();
        }
        match reader.peek() {
            Peek::Bytes => {
                let bytes = reader.bytes();
                if turn % 8 == 0 {
                    linger();
                }
                assert_eq!(bytes, &produced[position..position + bytes.len()], "a borrowed byte changed");
                let n = if turn % 3 == 0 { bytes.len().div_ceil(2) } else { bytes.len() };
                reader.consume(n);
                position += n;
            }
            Peek::Gap(gap) => {
                assert_eq!(gap.offset, position as u64);
                position += gap.lost as usize;
                lost += gap.lost;
            }
            Peek::Empty => yield_now(),
            Peek::Sealed => {
                requests.sealed.send(reader.id()).unwrap();
                let next = requests.answers.recv().unwrap();
                // SAFETY: this test owns the stream, and moves and detaches readers only when they
                // are done.
                unsafe { reader.follow(next) }.unwrap();
            }
            Peek::Ended => {
                assert_eq!(position, produced.len(), "delivered + lost == produced");
                return lost;
            }
            Peek::Broken { .. } | Peek::Gone => panic!("the writer is not gone"),
        }
    }
}

fn race(policy: Policy) -> u64 {
    let (engine, mut reader, requests) = start(policy);
    let produced = produced();
    let written = Arc::clone(&produced);
    let writer = spawn(move || engine.run(&written));
    let lost = drain(&mut reader, &requests, &produced);
    drop(requests);
    writer.join().unwrap();
    lost
}

#[test]
fn a_blocking_reader_gets_every_byte_as_it_was_written() {
    assert_eq!(race(Policy::Block), 0);
}

#[test]
fn borrowed_bytes_do_not_change_while_the_writer_overwrites_the_rest() {
    race(Policy::DropOldest);
}

#[test]
fn bytes_that_a_full_ring_drops_are_missing_at_the_gap() {
    race(Policy::DropNewest);
}

#[test]
fn a_reader_that_reads_only_when_its_ready_bit_is_set_gets_every_byte() {
    let (engine, mut reader, requests) = start(Policy::Block);
    let (page, produced) = (Arc::clone(&engine.page), produced());
    let written = Arc::clone(&produced);
    let writer = spawn(move || engine.run(&written));
    let mut position = 0;
    while position < produced.len() {
        let mut ready = false;
        page.take_ready(reader.id().slots(), |id| ready |= id == reader.id());
        if !ready {
            yield_now();
            continue;
        }
        while reader.peek() == Peek::Bytes {
            assert_eq!(reader.bytes(), &produced[position..position + reader.bytes().len()]);
            position += reader.bytes().len();
            reader.consume(usize::MAX);
        }
    }
    drop(requests);
    writer.join().unwrap();
}
