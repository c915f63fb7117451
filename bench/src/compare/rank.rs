//! What ranks do: write what the work says, when the gate is opened.

use std::path::PathBuf;

use super::gate::Ticket;
use super::line;
use crate::{cpu, load};

/// The command line of a rank.
#[derive(clap::Args)]
pub struct Rank {
    /// The gate at which to wait
    #[arg(long)]
    gate: PathBuf,
    #[command(flatten)]
    write: load::Write,
    /// Write numbered lines of so many bytes each
    #[arg(long, requires = "rank_from")]
    line: Option<usize>,
    /// The environment variable that has the rank's number
    #[arg(long)]
    rank_from: Option<String>,
}

/// Runs it.
pub fn run(args: &Rank) {
    let number = args.rank_from.as_ref().map(|name| std::env::var(name).unwrap().parse().unwrap());
    let ticket = Ticket::wait(&args.gate);
    match args.line {
        None => load::to_stdout(&args.write, |_| {}),
        Some(length) => {
            assert!(
                length >= line::LEAST && args.write.size.is_multiple_of(length),
                "lines of {length} bytes do not fit"
            );
            let mut lines = 0..;
            load::to_stdout(&args.write, |piece| {
                for (line, sequence) in piece.chunks_exact_mut(length).zip(&mut lines) {
                    line::fill(line, number.unwrap(), sequence, cpu::monotonic());
                }
            });
        }
    }
    ticket.leave(args.write.total(), 0);
}
