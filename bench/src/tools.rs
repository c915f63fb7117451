//! The engine's cost of tools, and the latency that tools see: CPU time with no tool, one tool and
//! many; a line from its writer to a callback; a late tool that attaches to many sources.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use iof_capture::raise_file_limit;
use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Exit, Job, Process, Rendezvous};
use iof_proto::query::key::IOF_QUERY_STATS;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank, Value};
use iof_tool::{Delivery, Pull, Tool};

use crate::latency;
use iof_bench::cpu;
use iof_bench::load::{Load, WriteArgs};
use iof_bench::table::Figures;

#[derive(clap::Args)]
pub struct Args {
    /// Number of rounds; each runs every variant once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Number of lines for the latency
    #[arg(long, default_value_t = 2000)]
    lines: u32,
    /// Number of sources for the tool that attaches late
    #[arg(long, default_value_t = 1000)]
    sources: u32,
}

/// The number of ranks that write.
const RANKS: usize = 8;
const LOADS: [(&str, WriteArgs); 3] = [
    ("64 KiB writes, 2 ms apart", WriteArgs { size: 65536, count: 512, pause: 2000 }),
    ("64 KiB writes, as fast as they go", WriteArgs { size: 65536, count: 4096, pause: 0 }),
    ("80-byte lines, as fast as they go", WriteArgs { size: 80, count: 400_000, pause: 0 }),
];
/// The bytes in the cache of each source to which the late tool attaches.
const BACKLOG: usize = 16 * 1024;

/// Measures costs and latencies, and prints them.
pub fn run(args: &Args) {
    raise_file_limit().unwrap();
    println!("engine's CPU s/GB, median of {} rounds (least to most)", args.rounds);
    for (name, write) in LOADS {
        let mut costs: [Figures; 3] = Default::default();
        for _ in 0..args.rounds {
            for (figures, tools) in costs.iter_mut().zip([0, 1, 16]) {
                figures.add(cost(write, tools));
            }
        }
        let [none, one, many] = costs;
        println!("{RANKS} x {name}");
        println!(
            "  no tool {none}, 1 tool {one}, 16 tools {many}, {:.2} of one",
            many.median() / one.median()
        );
    }

    let [mut bare, mut iof] = <[Figures; 2]>::default();
    for _ in 0..args.rounds {
        bare.add(latency::lone(args.lines, latency::chain)[0]);
        iof.add(latency::lone(args.lines, callback)[0]);
    }
    println!("a line each ms to a tool's callback, microseconds, p50");
    println!("  bare {bare}, iof {iof}, {:.2} of it", iof.median() / bare.median());

    let mut attaching = Figures::default();
    for _ in 0..args.rounds {
        attaching.add(attach(args.sources).as_secs_f64() * 1e3);
    }
    println!("a tool attaches to {} sources and has {BACKLOG} bytes of each", args.sources);
    println!("  {attaching} ms");
}

/// Starts an engine with a socket.
pub fn engine() -> Engine {
    let rendezvous =
        Rendezvous::Session(Some(std::env::temp_dir().join(format!("iof-bench-{}", std::process::id()))));
    Engine::start(Config::new(rendezvous)).unwrap()
}

fn all() -> Pull {
    let nspace = Nspace::new("bench").unwrap();
    Pull::new(vec![Proc::all(nspace)], Channels::STDOUT)
}

/// Adopts ranks that have exited and whose stdout, one of `pipes` each, is still open.
pub fn adopt(engine: &Engine, pipes: Vec<OwnedFd>) -> Job {
    let ranks: Vec<AdoptedRank> = (0..)
        .map(Rank)
        .zip(pipes)
        .map(|(rank, pipe)| {
            AdoptedRank::new(rank, "bench", Process::Reported { pid: 0 }).with(Channel::Stdout, pipe)
        })
        .collect();
    let count = ranks.len() as u32;
    let job = engine.adopt(AdoptSpec::new(Nspace::new("bench").unwrap(), ranks)).unwrap();
    (0..count).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
    job
}

/// Returns the CPU seconds of the engine's two threads per GB, with `tools` tools that pull all
/// output and discard it.
fn cost(write: WriteArgs, tools: usize) -> f64 {
    let engine = engine();
    let mut load = Load::new(RANKS, 0, write);
    let readers: Vec<_> = (0..tools)
        .map(|_| {
            let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
            tool.pull(&all()).unwrap();
            thread::spawn(move || while tool.recv().unwrap().is_some() {})
        })
        .collect();
    let job = adopt(&engine, std::mem::take(&mut load.pipes));
    let threads = ["iof-capture", "iof-control"];
    let before = cpu::threads(threads);
    let mut load = load.release();
    load.wait();
    job.wait();
    let spent = cpu::threads(threads) - before;
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    spent.as_secs_f64() / ((write.total() * RANKS as u64) as f64 / 1e9)
}

/// Forwards lines through an engine to a tool's callback, and sends the time of each delivery.
fn callback(pipe: OwnedFd, seen: Sender<Instant>) {
    let engine = engine();
    let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
    tool.pull_with(&all(), move |delivery| {
        if let Delivery::Bytes(_) = delivery {
            seen.send(Instant::now()).unwrap();
        }
    })
    .unwrap();
    adopt(&engine, vec![pipe]);
    while tool.dispatch(None).unwrap() {}
}

/// Returns the time until a late tool has received the cached bytes of `sources` sources.
fn attach(sources: u32) -> Duration {
    let engine = engine();
    let (pipes, writers): (Vec<_>, Vec<_>) = (0..sources).map(|_| nix::unistd::pipe().unwrap()).unzip();
    let _job = adopt(&engine, pipes);
    for writer in &writers {
        File::from(writer.try_clone().unwrap()).write_all(&[b'x'; BACKLOG]).unwrap();
    }
    let expected = u64::from(sources) * BACKLOG as u64;
    let mut observer = Tool::connect(engine.socket().unwrap(), "observer").unwrap();
    while cached(&mut observer) < expected {
        thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
    tool.pull(&all()).unwrap();
    let mut received = 0;
    while received < expected {
        if let Some(Delivery::Bytes(bytes)) = tool.recv().unwrap() {
            received += bytes.len() as u64;
        }
    }
    start.elapsed()
}

/// Returns the bytes in the caches of all streams.
fn cached(observer: &mut Tool) -> u64 {
    let found = observer.query(&[IOF_QUERY_STATS]).unwrap();
    let Some(Value::Streams(streams)) = found.into_iter().next().map(|found| found.value) else { return 0 };
    streams.iter().map(|stream| stream.cached).sum()
}
