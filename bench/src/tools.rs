//! What tools cost the engine, and what they wait for: CPU with one tool and with many, a line from its writer to a
//! callback, a tool that attaches to many sources at once.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use iof_capture::raise_file_limit;
use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Exit, Job, Process, Rendezvous};
use iof_proto::query::key::IOF_STATS;
use iof_proto::{Channels, Nspace, Proc, Rank, Value};
use iof_tool::{Delivery, Pull, Tool};

use crate::cpu;
use crate::latency;
use crate::load::{Load, Write};
use crate::table::Figures;

#[derive(clap::Args)]
pub struct Args {
    /// Rounds, each of which runs every kind once
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Lines, for the latency
    #[arg(long, default_value_t = 2000)]
    lines: u32,
    /// Sources, for the tool that attaches late
    #[arg(long, default_value_t = 1000)]
    sources: u32,
}

/// Ranks that write.
const RANKS: usize = 8;
const LOADS: [(&str, Write); 3] = [
    ("64 KiB writes, 2 ms apart", Write { size: 65536, count: 512, pause: 2000 }),
    ("64 KiB writes, as fast as they go", Write { size: 65536, count: 4096, pause: 0 }),
    ("80-byte lines, as fast as they go", Write { size: 80, count: 400_000, pause: 0 }),
];
/// Bytes in the cache of each source to which a tool attaches.
const BACKLOG: usize = 16 * 1024;

/// Measures and prints what it saw.
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

    let [mut bare, mut ours] = <[Figures; 2]>::default();
    for _ in 0..args.rounds {
        bare.add(latency::lone(args.lines, latency::bare)[0]);
        ours.add(latency::lone(args.lines, callback)[0]);
    }
    println!("a line each ms to a tool's callback, microseconds, p50");
    println!("  bare {bare}, iof {ours}, {:.2} of it", ours.median() / bare.median());

    let mut attaching = Figures::default();
    for _ in 0..args.rounds {
        attaching.add(attach(args.sources).as_secs_f64() * 1e3);
    }
    println!("a tool attaches to {} sources and has {BACKLOG} bytes of each", args.sources);
    println!("  {attaching} ms");
}

fn engine() -> Engine {
    let rendezvous =
        Rendezvous::Session(Some(std::env::temp_dir().join(format!("iof-bench-{}", std::process::id()))));
    Engine::start(Config { rendezvous, ..Config::default() }).unwrap()
}

fn all() -> Pull {
    let nspace = Nspace::new("bench").unwrap();
    Pull::new(vec![Proc { nspace, rank: Rank::WILDCARD }], Channels::STDOUT)
}

/// Ranks that have exited, whose stdout is still open.
fn adopt(engine: &Engine, pipes: Vec<OwnedFd>) -> Job {
    let ranks: Vec<AdoptedRank> = (0..)
        .map(Rank)
        .zip(pipes)
        .map(|(rank, pipe)| AdoptedRank {
            rank,
            executable: "bench".into(),
            stdin: None,
            stdout: Some(pipe),
            stderr: None,
            stddiag: None,
            process: Process::Reported { pid: 0 },
        })
        .collect();
    let count = ranks.len() as u32;
    let job = engine.adopt(AdoptSpec::new(Nspace::new("bench").unwrap(), ranks)).unwrap();
    (0..count).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
    job
}

/// CPU seconds of the engine's two threads for each GB, with `tools` that pull everything and look at nothing.
fn cost(write: Write, tools: usize) -> f64 {
    let engine = engine();
    let mut load = Load::new(RANKS, 0, write);
    let readers: Vec<_> = (0..tools)
        .map(|_| {
            let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
            tool.pull(&all()).unwrap();
            thread::spawn(move || while tool.next(None).unwrap().is_some() {})
        })
        .collect();
    let job = adopt(&engine, std::mem::take(&mut load.pipes));
    let threads = ["iof-capture", "iof-control"];
    let before = cpu::of_threads(threads);
    let mut load = load.release();
    load.wait();
    job.wait();
    let spent = cpu::of_threads(threads) - before;
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    spent.as_secs_f64() / ((write.total() * RANKS as u64) as f64 / 1e9)
}

/// Lines through an engine to a tool's callback.
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

/// How long it takes until a tool that comes late has what `sources` sources have cached.
fn attach(sources: u32) -> Duration {
    let engine = engine();
    let (pipes, writers): (Vec<_>, Vec<_>) = (0..sources).map(|_| nix::unistd::pipe().unwrap()).unzip();
    let _job = adopt(&engine, pipes);
    for writer in &writers {
        File::from(writer.try_clone().unwrap()).write_all(&[b'x'; BACKLOG]).unwrap();
    }
    let wanted = u64::from(sources) * BACKLOG as u64;
    let mut observer = Tool::connect(engine.socket().unwrap(), "observer").unwrap();
    while cached(&mut observer) < wanted {
        thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
    tool.pull(&all()).unwrap();
    let mut got = 0;
    while got < wanted {
        if let Some(Delivery::Bytes(bytes)) = tool.next(None).unwrap() {
            got += bytes.len() as u64;
        }
    }
    start.elapsed()
}

fn cached(observer: &mut Tool) -> u64 {
    let found = observer.query(&[IOF_STATS]).unwrap();
    let Some(Value::Streams(streams)) = found.into_iter().next().map(|found| found.value) else { return 0 };
    streams.iter().map(|stream| stream.cached).sum()
}
