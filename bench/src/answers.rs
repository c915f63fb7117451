//! The time until a tool has the answer to a pull while many ranks write as fast as they can,
//! beside an echo of one byte by another thread under the same load.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use iof_bench::load::{Load, WriteArgs};
use iof_bench::table::Figures;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, Tool};

use crate::latency::percentiles;
use crate::tools::{adopt, engine};

#[derive(clap::Args)]
pub struct Args {
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Number of pulls in a round
    #[arg(long, default_value_t = 1000)]
    pulls: u32,
    /// Number of ranks that write
    #[arg(long, default_value_t = 64)]
    ranks: u32,
}

/// The writes of each rank, which is killed before their end.
const WRITES: WriteArgs = WriteArgs { size: 65536, count: u64::MAX / 65536, pause: 0 };

/// Measures the answers and prints them.
pub fn run(args: &Args) {
    let mut figures: [Figures; 4] = Default::default();
    for _ in 0..args.rounds {
        let [echoed, answered] = measure(args);
        for (figures, figure) in figures.iter_mut().zip(echoed.into_iter().chain(answered)) {
            figures.add(figure);
        }
    }
    let [echo50, echo99, pull50, pull99] = figures;
    println!("a pull's answer beside {} ranks that write, microseconds", args.ranks);
    println!("  p50: echo {echo50}, pull {pull50}, {:.2} of it", pull50.median() / echo50.median());
    println!("  p99: echo {echo99}, pull {pull99}, {:.2} of it", pull99.median() / echo99.median());
}

/// Returns the percentiles of echoes and of answers. They are taken in turn.
fn measure(args: &Args) -> [[f64; 2]; 2] {
    let engine = engine();
    let mut load = Load::new(args.ranks as usize, 0, WRITES);
    let _job = adopt(&engine, std::mem::take(&mut load.pipes));
    let load = load.release();
    let mut tool = Tool::connect(engine.socket().unwrap(), "bench").unwrap();
    let (mut echo, far_end) = UnixStream::pair().unwrap();
    let echoing = thread::spawn(move || echo_bytes(far_end));
    let (mut echoes, mut answers) = (Vec::new(), Vec::new());
    for rank in (0..args.ranks).cycle().take(args.pulls as usize) {
        let start = Instant::now();
        echo.write_all(b"x").unwrap();
        echo.read_exact(&mut [0]).unwrap();
        echoes.push(start.elapsed());
        answers.push(answer(&mut tool, Rank(rank)));
    }
    load.kill();
    drop(echo);
    echoing.join().unwrap();
    [percentiles(echoes), percentiles(answers)]
}

/// Sends back each byte.
fn echo_bytes(mut stream: UnixStream) {
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 {
        stream.write_all(&byte).unwrap();
    }
}

/// Returns the time until the pull of one rank is answered. Ends the pull.
fn answer(tool: &mut Tool, rank: Rank) -> Duration {
    let pull = Pull::new(vec![Proc::new(Nspace::new("bench").unwrap(), rank)], Channels::STDOUT);
    let start = Instant::now();
    let granted = tool.pull(&pull).unwrap();
    let spent = start.elapsed();
    tool.deregister(granted.handler).unwrap();
    spent
}
