//! Benchmarks of whole parts of iof, each beside a minimal baseline in the same run: `cargo run
//! --release -p iof-bench -- capture`. Benchmarks of single data structures use criterion: `cargo
//! bench -p iof-bench`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a benchmark may panic")]

mod answers;
mod capture;
mod fence;
mod latency;
mod stdin;
mod tools;

use clap::{Parser, Subcommand};
use iof_bench::load;

#[derive(Parser)]
#[command(name = "iof-bench", about = "Measure iof beside minimal baselines")]
struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Measure the time until a pull is answered while many ranks write, beside an echo
    Answers(answers::Args),
    /// Measure the CPU time of draining pipes, beside a bare epoll and read(2) loop
    Capture(capture::Args),
    /// Measure the CPU time of the front end for a fence, with agents that are played
    Fence(fence::Args),
    /// Measure the latency of a line from its writer to a waiting reader, beside a bare pipe
    Latency(latency::Args),
    /// Measure the CPU time of sending a file to the stdin of ranks, beside tee(1) and a bare loop
    Stdin(stdin::Args),
    /// Measure the engine's cost of tools, and the latency that tools see
    Tools(tools::Args),
    /// Run as a writer of a load
    #[command(hide = true)]
    Write(load::WriteArgs),
}

fn main() {
    match Args::parse().benchmark {
        Benchmark::Answers(args) => answers::run(&args),
        Benchmark::Capture(args) => capture::run(&args),
        Benchmark::Fence(args) => fence::run(&args),
        Benchmark::Latency(args) => latency::run(&args),
        Benchmark::Stdin(args) => stdin::run(&args),
        Benchmark::Tools(args) => tools::run(&args),
        Benchmark::Write(args) => load::write(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Args;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
