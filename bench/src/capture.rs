//! What draining pipes into rings costs, beside the bare loop: both in turn, on the same work, in one run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use What::{Dropped, Stored};
use iof_capture::{Capture, Event, SourceId, raise_file_limit};
use iof_shm_ring::{Area, Policy, Start, Stream, StreamConfig, doorbell};

use crate::bare::{self, Into};
use crate::cpu;
use crate::load::{Load, Write};
use crate::table::Figures;

/// Bytes of a ring: iof's default cache.
const CAPACITY: u64 = 1 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// Only works whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Rounds, each of which runs every kind once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Divides the bytes of each work
    #[arg(long, default_value_t = 1)]
    less: u64,
}

/// One row of the table.
struct Work {
    what: What,
    active: usize,
    idle: usize,
    size: usize,
    /// MiB in all.
    total: u64,
}

/// What becomes of the bytes.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Stored,
    /// The rings are full of what a reader does not read, and the newest bytes are dropped.
    Dropped,
}

const WORKS: &[Work] = &[
    Work { what: Stored, active: 1, idle: 0, size: 65536, total: 4096 },
    Work { what: Stored, active: 8, idle: 0, size: 65536, total: 4096 },
    Work { what: Stored, active: 64, idle: 0, size: 65536, total: 4096 },
    Work { what: Stored, active: 512, idle: 0, size: 65536, total: 16 * 1024 },
    // The first lap of each ring, in which its memory is first touched.
    Work { what: Stored, active: 512, idle: 0, size: 32768, total: 512 },
    Work { what: Stored, active: 8, idle: 0, size: 80, total: 512 },
    Work { what: Stored, active: 64, idle: 0, size: 80, total: 1024 },
    Work { what: Stored, active: 41, idle: 0, size: 65536, total: 2048 },
    Work { what: Stored, active: 41, idle: 4055, size: 65536, total: 2048 },
    Work { what: Dropped, active: 8, idle: 0, size: 65536, total: 4096 },
    Work { what: Stored, active: 0, idle: 4096, size: 0, total: 0 },
];

impl Work {
    fn name(&self) -> String {
        let Work { what, active, idle, size, .. } = self;
        let of = if *idle == 0 { String::new() } else { format!(" of {}", active + idle) };
        format!("{active}{of} x {size}{}", if *what == Dropped { ", dropped" } else { "" })
    }
}

/// One run: CPU seconds and elapsed seconds a GB.
struct Cost {
    cpu: f64,
    elapsed: f64,
}

impl Cost {
    fn of(bytes: u64, cpu: Duration, elapsed: Duration) -> Cost {
        let gb = bytes as f64 / 1e9;
        Cost { cpu: cpu.as_secs_f64() / gb, elapsed: elapsed.as_secs_f64() / gb }
    }
}

/// Measures every work and prints what it saw.
pub fn run(args: &Args) {
    raise_file_limit().unwrap();
    println!("CPU s/GB, median of {} rounds (least to most); ratios of medians", args.rounds);
    for work in WORKS {
        if args.only.as_ref().is_some_and(|only| !work.name().contains(only)) {
            continue;
        }
        if work.active == 0 { idle(work.idle) } else { busy(work, args) }
    }
}

fn busy(work: &Work, args: &Args) {
    let each = (work.total << 20) / args.less / work.active as u64 / work.size as u64;
    let write = Write { size: work.size, count: each.max(1), pause: 0 };
    let (mut ours, mut each, mut one) = Default::default();
    let (mut our_time, mut bare_time) = (Figures::default(), Figures::default());
    for _ in 0..args.rounds {
        for (figures, kind) in [(&mut ours, None), (&mut each, Some(Into::Each)), (&mut one, Some(Into::One))]
        {
            let load = Load::new(work.active, work.idle, write);
            let cost = match kind {
                None => by_us(load, work.what, work.active, write),
                Some(into) => by_bare(load, work.active, write, into),
            };
            Figures::add(figures, cost.cpu);
            match kind {
                None => our_time.add(cost.elapsed),
                Some(Into::Each) => bare_time.add(cost.elapsed),
                Some(Into::One) => {}
            }
        }
    }
    println!("{}", work.name());
    println!("  iof                       {ours}");
    println!("  bare, 1 MiB for each      {each}   iof is {:.2} of it", ours.median() / each.median());
    println!("  bare, 64 KiB for all      {one}   iof is {:.2} of it", ours.median() / one.median());
    let faster = bare_time.median() / our_time.median();
    println!("  ranks' throughput         {faster:.2} of that under the bare loop, 1 MiB for each");
}

fn capture(load: &mut Load, what: What) -> (Capture, Receiver<Event>) {
    let (tell, events) = channel();
    let capture = Capture::start(move |event| drop(tell.send(event))).unwrap();
    let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
    for (at, pipe) in (0..).zip(load.pipes.drain(..)) {
        let mut stream =
            Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest }, "bench").unwrap();
        if what == Dropped {
            stream.attach(&area, area.take_slot().unwrap(), Start::Oldest, false).unwrap();
        }
        capture.add(SourceId(at), pipe, stream).unwrap();
    }
    (capture, events)
}

fn by_us(mut load: Load, what: What, active: usize, write: Write) -> Cost {
    let (capture, events) = capture(&mut load, what);
    let before = capture.with_streams(|_| cpu::of_this_thread()).unwrap();
    let start = Instant::now();
    let mut load = load.release();
    let mut bytes = 0;
    for event in events.iter().take(active) {
        let Event::Complete { produced, .. } = event else { panic!("{event:?}") };
        bytes += produced;
    }
    let elapsed = start.elapsed();
    let spent = capture.with_streams(|_| cpu::of_this_thread()).unwrap() - before;
    load.wait();
    assert_eq!(bytes, write.total() * active as u64);
    Cost::of(bytes, spent, elapsed)
}

fn by_bare(mut load: Load, active: usize, write: Write, into: Into) -> Cost {
    let pipes = std::mem::take(&mut load.pipes);
    let (tell, ready) = channel();
    let drained = std::thread::spawn(move || bare::drain(&pipes, active, into, || tell.send(()).unwrap()));
    ready.recv().unwrap();
    let start = Instant::now();
    let mut load = load.release();
    let spent = drained.join().unwrap();
    let elapsed = start.elapsed();
    load.wait();
    Cost::of(write.total() * active as u64, spent, elapsed)
}

/// How often the capture thread wakes while nobody writes.
fn idle(pipes: usize) {
    const TIME: Duration = Duration::from_secs(3);
    let mut load = Load::new(0, pipes, Write { size: 0, count: 0, pause: 0 });
    let (capture, _events) = capture(&mut load, Stored);
    let look = || capture.with_streams(|_| (cpu::sleeps_of_this_thread(), cpu::of_this_thread())).unwrap();
    let (sleeps, spent) = look();
    std::thread::sleep(TIME);
    let (sleeps_now, spent_now) = look();
    // One is the second look's own.
    let (woken, cpu) = (sleeps_now - sleeps - 1, spent_now - spent);
    println!("{pipes} idle, {TIME:?}\n  woken {woken} times, {cpu:?} of CPU time, looking at it included");
}
