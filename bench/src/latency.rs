//! The latency of a line from its write(2) to a waiting reader: through a bare chain of a pipe, a
//! thread and a doorbell to another thread, and through capture, ring and doorbell. Both wake two
//! threads. The module `visible` measures the time until a line is visible in the ring, without
//! waking a reader.

use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use iof_capture::{Capture, Command, NewProcess, NewSource, SourceId};
use iof_shm_ring::{Bell, Peek, Policy, Reader, ReaderPage, Start, Stream, StreamConfig, doorbell};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use iof_bench::table::Figures;

mod visible;

#[derive(clap::Args)]
pub struct Args {
    /// Number of lines in a round
    #[arg(long, default_value_t = 2000)]
    lines: u32,
    /// Number of rounds; each runs every variant once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// When the next line is written.
#[derive(Clone, Copy)]
enum Pace {
    /// One line every [`EVERY`].
    Lone,
    /// As soon as the reader has seen the previous line.
    Conversation,
}

/// The pause between lone lines.
const EVERY: Duration = Duration::from_millis(1);
/// The length of a line, in bytes.
const LINE: usize = 80;

/// Measures the latencies and prints them.
pub fn run(args: &Args) {
    println!("microseconds, median of {} rounds (least to most); ratios of medians", args.rounds);
    for (name, pace) in [("a line each ms", Pace::Lone), ("a conversation", Pace::Conversation)] {
        let mut figures: [Figures; 4] = Default::default();
        for _ in 0..args.rounds {
            let [bare50, bare99] = measure(args.lines, pace, chain);
            let [iof50, iof99] = measure(args.lines, pace, iof);
            for (figures, figure) in figures.iter_mut().zip([bare50, iof50, bare99, iof99]) {
                figures.add(figure);
            }
        }
        print(name, &figures);
    }
    visible::run(args);
}

/// Prints the latencies of a bare chain and of iof: the p50 of both, then the p99 of both.
fn print(name: &str, [bare50, iof50, bare99, iof99]: &[Figures; 4]) {
    println!("{name}");
    println!("  p50: bare {bare50}, iof {iof50}, {:.2} of it", iof50.median() / bare50.median());
    println!("  p99: bare {bare99}, iof {iof99}, {:.2} of it", iof99.median() / bare99.median());
}

/// Returns the 50th and 99th percentile, in microseconds.
pub fn percentiles(mut spent: Vec<Duration>) -> [f64; 2] {
    spent.sort_unstable();
    [50, 99].map(|percent| spent[spent.len() * percent / 100].as_secs_f64() * 1e6)
}

/// Measures `lines` lone lines through `reader`, and returns the 50th and 99th percentile in
/// microseconds.
pub fn lone(lines: u32, reader: fn(OwnedFd, Sender<Instant>)) -> [f64; 2] {
    measure(lines, Pace::Lone, reader)
}

/// Measures `lines` lines through `reader`, and returns the 50th and 99th percentile in
/// microseconds. `reader` reads the pipe and sends the arrival time of each line.
fn measure(lines: u32, pace: Pace, reader: fn(OwnedFd, Sender<Instant>)) -> [f64; 2] {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let (tell, seen) = channel();
    let reading = std::thread::spawn(move || reader(read, tell));
    let spent = write_lines(File::from(write), lines, pace, &seen);
    reading.join().unwrap();
    percentiles(spent)
}

fn write_lines(mut pipe: File, lines: u32, pace: Pace, seen: &Receiver<Instant>) -> Vec<Duration> {
    (0..lines)
        .map(|_| {
            if let Pace::Lone = pace {
                std::thread::sleep(EVERY);
            }
            let written = Instant::now();
            pipe.write_all(&[b'x'; LINE]).unwrap();
            seen.recv().unwrap() - written
        })
        .collect()
}

/// Reads a pipe in a thread, which rings a doorbell for this one: what [`iof`] does, without its ring.
pub fn chain(pipe: OwnedFd, seen: Sender<Instant>) {
    let (ringer, bell) = doorbell().unwrap();
    let (hand_over, lines) = channel();
    let reading = std::thread::spawn(move || {
        let (mut pipe, mut line) = (File::from(pipe), [0; LINE]);
        while pipe.read(&mut line).unwrap() > 0 {
            hand_over.send(line).unwrap();
            ringer.ring();
        }
        drop(hand_over);
        ringer.ring();
    });
    loop {
        match lines.try_recv() {
            Ok(_line) => seen.send(Instant::now()).unwrap(),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
                bell.silence();
            }
        }
    }
    reading.join().unwrap();
}

fn iof(pipe: OwnedFd, seen: Sender<Instant>) {
    let (ringer, bell) = doorbell().unwrap();
    let page = Arc::new(ReaderPage::create(ringer).unwrap());
    let (_capture, mut reader) = captured(pipe, &page, 1 << 20);
    loop {
        match reader.peek() {
            Peek::Bytes => {
                reader.consume(LINE);
                seen.send(Instant::now()).unwrap();
            }
            Peek::Ended => return,
            _ => wait_ready(&page, &bell),
        }
    }
}

/// Starts a capture of `pipe` into a ring of `capacity` bytes, and attaches a reader to it.
fn captured(pipe: OwnedFd, page: &Arc<ReaderPage>, capacity: u64) -> (Capture, Reader) {
    let capture = Capture::start(|_| {}).unwrap();
    let config = StreamConfig { capacity, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bench").unwrap();
    let attached = stream.attach(page, page.take_slot().unwrap(), Start::Oldest, false).unwrap();
    // SAFETY: the only reader is never detached or moved.
    let reader = unsafe { Reader::new(attached, Arc::clone(page), Start::Oldest) }.unwrap();
    let sources = vec![NewSource { id: SourceId(0), pipe, stream, first: None }];
    capture.send([Command::Add(NewProcess { sources, ..NewProcess::default() })]).unwrap();
    (capture, reader)
}

/// Blocks until the stream's ready bit is set.
fn wait_ready(page: &ReaderPage, bell: &Bell) {
    let mut ready = false;
    page.take_ready(1, |_| ready = true);
    if !ready && page.arm(1) {
        poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        page.disarm();
        bell.silence();
    }
}
