//! Whole parts of iof beside the least that could do the same work, in one run: `cargo run --release -p iof-bench --
//! capture`. The parts' own benches are criterion's: `cargo bench -p iof-bench`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a bench is run by people who read it"
)]

mod bare;
mod capture;
mod compare;
mod cpu;
mod latency;
mod load;
mod stdin;
mod table;
mod tools;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "iof-bench", about = "Measures iof beside the least that could do the same work")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Draining pipes: CPU time beside a bare epoll and read(2) loop
    Capture(capture::Args),
    /// A line from its writer to whoever waits for it, beside a bare pipe
    Latency(latency::Args),
    /// A file into the stdin of ranks: CPU time beside tee(1) and a bare loop
    Stdin(stdin::Args),
    /// Tools: what they cost the engine, and what they wait for
    Tools(tools::Args),
    /// Whole systems: iof, other launchers and the least that the kernel needs, on the same work
    Compare(compare::Args),
    /// What the writers of the load run
    #[command(hide = true)]
    Write(load::Write),
    /// What the ranks of compared systems run
    #[command(hide = true)]
    Rank(compare::Rank),
    /// The least that is a launcher
    #[command(hide = true)]
    Bare(bare::Launch),
}

fn main() {
    match Args::parse().what {
        What::Capture(args) => capture::run(&args),
        What::Latency(args) => latency::run(&args),
        What::Stdin(args) => stdin::run(&args),
        What::Tools(args) => tools::run(&args),
        What::Compare(args) => compare::run(&args),
        What::Write(args) => load::write(&args),
        What::Rank(args) => compare::rank(&args),
        What::Bare(args) => bare::launch(&args),
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
