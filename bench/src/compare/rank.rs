//! What ranks do when the gate is opened.

use std::io::{Read as _, stdin};
use std::path::{Path, PathBuf};

use super::gate::Ticket;
use super::line;
use crate::{cpu, load};

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The command line of a rank.
#[derive(clap::Args)]
pub struct Rank {
    /// The gate at which to wait
    #[arg(long)]
    gate: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Write to stdout
    Write(Lines),
    /// Read from stdin
    Read {
        /// So many bytes
        #[arg(long)]
        bytes: u64,
    },
}

#[derive(clap::Args)]
struct Lines {
    #[command(flatten)]
    write: load::Write,
    /// Numbered lines of so many bytes each
    #[arg(long, requires = "rank_from")]
    line: Option<usize>,
    /// The environment variable that has the rank's number
    #[arg(long)]
    rank_from: Option<String>,
}

/// Runs it.
pub fn run(args: &Rank) {
    match &args.what {
        What::Write(what) => write(&args.gate, what),
        What::Read { bytes } => read(&args.gate, *bytes),
    }
}

fn write(gate: &Path, args: &Lines) {
    let number = args.rank_from.as_ref().map(|name| std::env::var(name).unwrap().parse().unwrap());
    let ticket = Ticket::wait(gate);
    match args.line {
        None => load::to_stdout(&args.write, |_| {}),
        Some(length) => {
            let fits = length >= line::LEAST && args.write.size.is_multiple_of(length);
            assert!(fits, "lines of {length} bytes do not fit");
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

fn read(gate: &Path, wanted: u64) {
    let ticket = Ticket::wait(gate);
    let (mut bytes, mut sum, mut piece) = (0, 0, Vec::with_capacity(PIECE));
    // Not to the end: who feeds us may end with its input, and is to be looked at before.
    while bytes < wanted {
        piece.clear();
        stdin().lock().take(PIECE as u64).read_to_end(&mut piece).unwrap();
        if piece.is_empty() {
            break;
        }
        bytes += piece.len() as u64;
        sum = add(sum, &piece);
    }
    ticket.leave(bytes, sum);
}

/// The sum of all that comes to stdin when it is `blocks` times the same `block`.
pub fn sum_of(block: &[u8], blocks: u64) -> u64 {
    assert!(block.len().is_multiple_of(PIECE));
    (0..blocks).fold(0, |sum, _| block.chunks(PIECE).fold(sum, add))
}

/// A sum that changes when a byte does or changes its place.
fn add(sum: u64, piece: &[u8]) -> u64 {
    let (words, rest) = piece.as_chunks::<8>();
    let step = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = words.iter().fold(sum, |sum, word| step(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_notices_what_changes_its_place() {
        let mut block: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8).collect();
        let before = sum_of(&block, 3);
        block.swap(8, 16);
        assert_ne!(sum_of(&block, 3), before);
        block.swap(8, 16);
        assert_eq!(sum_of(&block, 3), before);
        assert_ne!(sum_of(&block, 2), before);
    }
}
