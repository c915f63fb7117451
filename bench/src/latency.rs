//! How long a line takes from its write(2) to whoever waits for it: through a bare pipe, and through capture, ring and
//! doorbell. And until it can be had, whoever is told of it: see `visible`.

use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use iof_capture::{Capture, SourceId};
use iof_shm_ring::{Area, Bell, Peek, Policy, Reader, Start, Stream, StreamConfig, doorbell};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::table::Figures;

mod visible;

#[derive(clap::Args)]
pub struct Args {
    /// Lines
    #[arg(long, default_value_t = 2000)]
    lines: u32,
    /// Rounds, each of which runs every kind once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// When the next line is written.
#[derive(Clone, Copy)]
enum Pace {
    /// Now and then.
    Lone,
    /// As soon as the last was seen.
    Conversation,
}

const EVERY: Duration = Duration::from_millis(1);
const LINE: usize = 80;

/// Measures and prints what it saw.
pub fn run(args: &Args) {
    println!("microseconds, median of {} rounds (least to most); ratios of medians", args.rounds);
    for (name, pace) in [("a line each ms", Pace::Lone), ("a conversation", Pace::Conversation)] {
        let mut figures: [Figures; 4] = Default::default();
        for _ in 0..args.rounds {
            let [bare50, bare99] = measure(args.lines, pace, bare);
            let [ours50, ours99] = measure(args.lines, pace, ours);
            for (figures, figure) in figures.iter_mut().zip([bare50, ours50, bare99, ours99]) {
                figures.add(figure);
            }
        }
        print(name, &figures);
    }
    visible::run(args);
}

/// What a bare pipe and iof took: p50 of both, p99 of both.
fn print(name: &str, [bare50, ours50, bare99, ours99]: &[Figures; 4]) {
    println!("{name}");
    println!("  p50: bare {bare50}, iof {ours50}, {:.2} of it", ours50.median() / bare50.median());
    println!("  p99: bare {bare99}, iof {ours99}, {:.2} of it", ours99.median() / bare99.median());
}

/// The 50th and 99th of a hundred, in microseconds.
fn percentiles(mut spent: Vec<Duration>) -> [f64; 2] {
    spent.sort_unstable();
    [50, 99].map(|percent| spent[spent.len() * percent / 100].as_secs_f64() * 1e6)
}

/// The 50th and 99th of a hundred of `lines` lines that are written now and then, in microseconds, through what `reader`
/// makes of a pipe.
pub fn lone(lines: u32, reader: fn(OwnedFd, Sender<Instant>)) -> [f64; 2] {
    measure(lines, Pace::Lone, reader)
}

/// The 50th and 99th of a hundred of `lines` lines, in microseconds, through what `reader` makes of a pipe.
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

/// A thread that waits in read(2).
pub fn bare(pipe: OwnedFd, seen: Sender<Instant>) {
    let mut pipe = File::from(pipe);
    while pipe.read(&mut [0; LINE]).unwrap() > 0 {
        seen.send(Instant::now()).unwrap();
    }
}

fn ours(pipe: OwnedFd, seen: Sender<Instant>) {
    let (ringer, bell) = doorbell().unwrap();
    let area = Arc::new(Area::create(ringer).unwrap());
    let (_capture, mut reader) = captured(pipe, &area, 1 << 20);
    loop {
        match reader.peek() {
            Peek::Bytes => {
                reader.consume(LINE);
                seen.send(Instant::now()).unwrap();
            }
            Peek::Ended => return,
            _ => sleep(&area, &bell),
        }
    }
}

/// A capture of `pipe`, and a reader of what comes into a ring of so many bytes.
fn captured(pipe: OwnedFd, area: &Arc<Area>, capacity: u64) -> (Capture, Reader) {
    let capture = Capture::start(|_| {}).unwrap();
    let config = StreamConfig { capacity, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "bench").unwrap();
    let given = stream.attach(area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
    // SAFETY: nobody detaches or moves the one reader.
    let reader = unsafe { Reader::new(given, Arc::clone(area), Start::Oldest) }.unwrap();
    capture.add(SourceId(0), pipe, stream).unwrap();
    (capture, reader)
}

/// Until there is news.
fn sleep(area: &Area, bell: &Bell) {
    let mut news = false;
    area.take_ready(1, |_| news = true);
    if !news && area.arm(1) {
        poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        area.disarm();
        bell.silence();
    }
}
