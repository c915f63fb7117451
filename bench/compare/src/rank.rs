//! The ranks of compared jobs, which wait at the barrier and then write or read.

use std::io::{Read as _, stdin};
use std::path::{Path, PathBuf};

use super::barrier::Token;
use super::line;
use iof_bench::{cpu, load};

/// The size of one read, in bytes.
const PIECE: usize = 64 * 1024;

/// The arguments of a rank.
#[derive(clap::Args)]
pub struct RankArgs {
    /// Socket of the barrier at which to wait
    #[arg(long)]
    barrier: PathBuf,
    #[command(subcommand)]
    task: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Write to stdout
    Write(Lines),
    /// Read from stdin
    Read {
        /// Number of bytes to read
        #[arg(long)]
        bytes: u64,
    },
}

#[derive(clap::Args)]
struct Lines {
    #[command(flatten)]
    write: load::WriteArgs,
    /// Length of the lines to number, in bytes
    #[arg(long, requires = "rank_from")]
    line: Option<usize>,
    /// Environment variable with the rank's number
    #[arg(long)]
    rank_from: Option<String>,
}

/// Runs as a rank.
pub fn run(args: &RankArgs) {
    match &args.task {
        Task::Write(what) => write(&args.barrier, what),
        Task::Read { bytes } => read(&args.barrier, *bytes),
    }
}

fn write(barrier: &Path, args: &Lines) {
    let number = args.rank_from.as_ref().map(|name| std::env::var(name).unwrap().parse().unwrap());
    let token = Token::wait(barrier);
    match args.line {
        None => load::to_stdout(&args.write, |_| {}),
        Some(length) => {
            let fits = length >= line::MIN_LENGTH && args.write.size.is_multiple_of(length);
            assert!(fits, "lines of {length} bytes do not fit into writes of {} bytes", args.write.size);
            let mut lines = 0..;
            load::to_stdout(&args.write, |piece| {
                for (line, sequence) in piece.chunks_exact_mut(length).zip(&mut lines) {
                    line::fill(line, number.unwrap(), sequence, cpu::monotonic_nanos());
                }
            });
        }
    }
    token.finish(args.write.total(), 0);
}

fn read(barrier: &Path, expected: u64) {
    let token = Token::wait(barrier);
    let (mut bytes, mut sum, mut piece) = (0, 0, Vec::with_capacity(PIECE));
    // Do not read until the end: the forwarder may exit at the end of its input, and must be
    // measured before.
    while bytes < expected {
        piece.clear();
        stdin().lock().take(PIECE as u64).read_to_end(&mut piece).unwrap();
        if piece.is_empty() {
            break;
        }
        bytes += piece.len() as u64;
        sum = add(sum, &piece);
    }
    token.finish(bytes, sum);
}

/// Returns the checksum of `block` repeated `blocks` times.
pub fn sum_of(block: &[u8], blocks: u64) -> u64 {
    assert!(block.len().is_multiple_of(PIECE));
    (0..blocks).fold(0, |sum, _| block.chunks(PIECE).fold(sum, add))
}

/// Adds `piece` to a checksum that depends on the values and the positions of all bytes.
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
    fn the_checksum_depends_on_the_position_of_each_byte() {
        let mut block: Vec<u8> = (0..PIECE).map(|index| (index % 251) as u8).collect();
        let before = sum_of(&block, 3);
        block.swap(8, 16);
        assert_ne!(sum_of(&block, 3), before);
        block.swap(8, 16);
        assert_eq!(sum_of(&block, 3), before);
        assert_ne!(sum_of(&block, 2), before);
    }
}
