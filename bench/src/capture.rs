//! The cost of draining pipes into rings, beside the bare loop. Both run in turn on the same cases,
//! in one run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use Fate::{Dropped, Stored};
use iof_capture::{Capture, Command, Event, NewProcess, NewSource, SourceId, raise_file_limit};
use iof_shm_ring::{Policy, ReaderPage, Start, Stream, StreamConfig, doorbell};

use iof_bench::bare::{self, Buffers};
use iof_bench::cpu;
use iof_bench::load::{Load, WriteArgs};
use iof_bench::table::Figures;

/// The capacity of a ring, in bytes: iof's default.
const CAPACITY: u64 = 1 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// Run only the cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Number of rounds; each runs every variant once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Divide the bytes of each case by this
    #[arg(long, default_value_t = 1)]
    less: u64,
}

/// One case to measure.
struct Case {
    fate: Fate,
    /// Pipes with a writer.
    active: usize,
    /// Pipes without a writer.
    idle: usize,
    /// Bytes of one write.
    size: usize,
    /// MiB of all writers together.
    total: u64,
}

/// The fate of the bytes.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// They are stored in rings without readers.
    Stored,
    /// They are dropped, because the rings are full of bytes that a reader does not consume.
    Dropped,
}

const CASES: &[Case] = &[
    Case { fate: Stored, active: 1, idle: 0, size: 65536, total: 4096 },
    Case { fate: Stored, active: 8, idle: 0, size: 65536, total: 4096 },
    Case { fate: Stored, active: 64, idle: 0, size: 65536, total: 4096 },
    Case { fate: Stored, active: 512, idle: 0, size: 65536, total: 16 * 1024 },
    // Only the first lap of each ring, which touches its memory for the first time.
    Case { fate: Stored, active: 512, idle: 0, size: 32768, total: 512 },
    Case { fate: Stored, active: 8, idle: 0, size: 80, total: 512 },
    Case { fate: Stored, active: 64, idle: 0, size: 80, total: 1024 },
    Case { fate: Stored, active: 41, idle: 0, size: 65536, total: 2048 },
    Case { fate: Stored, active: 41, idle: 4055, size: 65536, total: 2048 },
    Case { fate: Dropped, active: 8, idle: 0, size: 65536, total: 4096 },
    Case { fate: Stored, active: 0, idle: 4096, size: 0, total: 0 },
];

impl Case {
    fn name(&self) -> String {
        let Case { fate, active, idle, size, .. } = self;
        let all = if *idle == 0 { String::new() } else { format!(" of {}", active + idle) };
        format!("{active}{all} x {size}{}", if *fate == Dropped { ", dropped" } else { "" })
    }
}

/// The cost of one run: CPU seconds and elapsed seconds per GB.
struct Cost {
    cpu: f64,
    elapsed: f64,
}

impl Cost {
    fn new(bytes: u64, cpu: Duration, elapsed: Duration) -> Cost {
        let gb = bytes as f64 / 1e9;
        Cost { cpu: cpu.as_secs_f64() / gb, elapsed: elapsed.as_secs_f64() / gb }
    }
}

/// Measures the cases and prints the results.
pub fn run(args: &Args) {
    raise_file_limit().unwrap();
    println!("CPU s/GB, median of {} rounds (least to most); ratios of medians", args.rounds);
    for case in CASES {
        if args.only.as_ref().is_some_and(|only| !case.name().contains(only)) {
            continue;
        }
        if case.active == 0 { idle(case.idle) } else { busy(case, args) }
    }
}

fn busy(case: &Case, args: &Args) {
    let count = (case.total << 20) / args.less / case.active as u64 / case.size as u64;
    let write = WriteArgs { size: case.size, count: count.max(1), pause: 0 };
    let (mut iof, mut per_pipe, mut shared) = Default::default();
    let (mut iof_time, mut bare_time) = (Figures::default(), Figures::default());
    for _ in 0..args.rounds {
        for (figures, kind) in
            [(&mut iof, None), (&mut per_pipe, Some(Buffers::PerPipe)), (&mut shared, Some(Buffers::Shared))]
        {
            let load = Load::new(case.active, case.idle, write);
            let cost = match kind {
                None => measure_iof(load, case.fate, case.active, write),
                Some(buffers) => measure_bare(load, case.active, write, buffers),
            };
            Figures::add(figures, cost.cpu);
            match kind {
                None => iof_time.add(cost.elapsed),
                Some(Buffers::PerPipe) => bare_time.add(cost.elapsed),
                Some(Buffers::Shared) => {}
            }
        }
    }
    println!("{}", case.name());
    println!("  iof                       {iof}");
    println!("  bare, 1 MiB for each      {per_pipe}   iof is {:.2} of it", iof.median() / per_pipe.median());
    println!("  bare, 64 KiB for all      {shared}   iof is {:.2} of it", iof.median() / shared.median());
    let faster = bare_time.median() / iof_time.median();
    println!("  ranks' throughput         {faster:.2} of that under the bare loop, 1 MiB for each");
}

fn capture(load: &mut Load, fate: Fate) -> (Capture, Receiver<Event>) {
    let (tell, events) = channel();
    let capture = Capture::start(move |event| drop(tell.send(event))).unwrap();
    let page = Arc::new(ReaderPage::create(doorbell().unwrap().0).unwrap());
    for (index, pipe) in (0..).zip(load.pipes.drain(..)) {
        let mut stream =
            Stream::create(StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest }, "bench").unwrap();
        if fate == Dropped {
            stream.attach(&page, page.take_slot().unwrap(), Start::Oldest, false).unwrap();
        }
        let sources = vec![NewSource { id: SourceId(index), pipe, stream, first: None }];
        capture.send([Command::Add(NewProcess { sources, ..NewProcess::default() })]).unwrap();
    }
    (capture, events)
}

fn measure_iof(mut load: Load, fate: Fate, active: usize, write: WriteArgs) -> Cost {
    let (capture, events) = capture(&mut load, fate);
    let before = capture.with_streams(|_| cpu::current_thread()).unwrap();
    let start = Instant::now();
    let mut load = load.release();
    let mut bytes = 0;
    for event in events.iter().take(active) {
        let Event::Complete { produced, .. } = event else { panic!("{event:?}") };
        bytes += produced;
    }
    let elapsed = start.elapsed();
    let spent = capture.with_streams(|_| cpu::current_thread()).unwrap() - before;
    load.wait();
    assert_eq!(bytes, write.total() * active as u64);
    Cost::new(bytes, spent, elapsed)
}

fn measure_bare(mut load: Load, active: usize, write: WriteArgs, buffers: Buffers) -> Cost {
    let pipes = std::mem::take(&mut load.pipes);
    let (tell, ready) = channel();
    let drained = std::thread::spawn(move || bare::drain(&pipes, active, buffers, || tell.send(()).unwrap()));
    ready.recv().unwrap();
    let start = Instant::now();
    let mut load = load.release();
    let spent = drained.join().unwrap();
    let elapsed = start.elapsed();
    load.wait();
    Cost::new(write.total() * active as u64, spent, elapsed)
}

/// Measures how often the capture thread wakes up while all pipes are idle.
fn idle(pipes: usize) {
    const TIME: Duration = Duration::from_secs(3);
    let mut load = Load::new(0, pipes, WriteArgs { size: 0, count: 0, pause: 0 });
    let (capture, _events) = capture(&mut load, Stored);
    let sample = || capture.with_streams(|_| (cpu::current_thread_sleeps(), cpu::current_thread())).unwrap();
    let (sleeps, spent) = sample();
    std::thread::sleep(TIME);
    let (sleeps_now, spent_now) = sample();
    // The second sample itself wakes the thread once.
    let (woken, cpu) = (sleeps_now - sleeps - 1, spent_now - spent);
    println!("{pipes} idle, {TIME:?}\n  woken {woken} times, {cpu:?} of CPU time, looking at it included");
}
