//! Ranks grouped by how they ended, and lists of ranks, for messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use iof_engine::Exit;
use iof_proto::Rank;

use crate::error::Failure;

/// The number of ranges of ranks that a message lists.
const MAX_LISTED_RANGES: usize = 8;

/// Ranks by exit status. Core dumps are not distinguished.
#[derive(Default)]
pub struct ExitGroups(BTreeMap<Key, BTreeSet<Rank>>);

/// An exit status in the order of messages: exit codes, signals, others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Code(i32),
    Signal(i32, String),
    Other(String),
}

impl Key {
    fn of(exit: Exit) -> Key {
        match (exit, exit.signal()) {
            (Exit::Unknown | Exit::Unfinalized, _) => Key::Other(exit.to_string()),
            (_, Some(number)) => Key::Signal(number, exit.to_string()),
            (_, None) => Key::Code(exit.code()),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Code(code) => write!(f, "exit code {code}"),
            Key::Signal(_, name) | Key::Other(name) => f.write_str(name),
        }
    }
}

impl ExitGroups {
    pub fn insert(&mut self, rank: Rank, exit: Exit) {
        self.0.entry(Key::of(exit)).or_default().insert(rank);
    }

    /// Inserts a rank whose exit status does not tell how it ended.
    pub fn insert_cause(&mut self, rank: Rank, cause: String) {
        self.0.entry(Key::Other(cause)).or_default().insert(rank);
    }

    /// Returns the number of ranks.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

impl fmt::Display for ExitGroups {
    /// Formats all groups, such as `exit code 0: 3 ranks, SIGSEGV: 2 ranks (1,4)`. Ranks with exit
    /// code 0 are not listed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, ranks)) in self.0.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{key}: {}", number_of_ranks(ranks.len() as u64))?;
            if *key != Key::Code(0) {
                write!(f, " ({})", listed(ranks))?;
            }
        }
        Ok(())
    }
}

/// Returns `1 rank` or `5 ranks`.
pub fn number_of_ranks(ranks: u64) -> String {
    if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") }
}

/// Returns the failure for an option with a rank that a job of `nprocs` ranks does not have.
pub fn no_such_rank(rank: Rank, place: &str, nprocs: u64) -> Failure {
    let ranks = number_of_ranks(nprocs);
    Failure::Usage(format!("invalid rank {rank} {place}: the job has {ranks}, numbered from 0"))
}

/// Returns ranks as ranges, such as `0,3-5`. Ranges beyond [`MAX_LISTED_RANGES`] are replaced by
/// `...`.
pub fn listed(ranks: &BTreeSet<Rank>) -> String {
    let mut parts = ranges(ranks);
    if parts.len() > MAX_LISTED_RANGES {
        parts.truncate(MAX_LISTED_RANGES);
        parts.push("...".into());
    }
    parts.join(",")
}

/// Returns sorted ranks as ranges, such as `0` and `3-5`.
pub fn ranges<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> Vec<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges_up_to_a_limit() {
        let text = |ranks: &[u32]| listed(&ranks.iter().copied().map(Rank).collect());
        assert_eq!(text(&[5, 0, 3, 4]), "0,3-5");
        assert_eq!(text(&[7]), "7");
        assert_eq!(text(&(0..10_000).collect::<Vec<u32>>()), "0-9999");
        let odd: Vec<u32> = (0..100).map(|number| number * 2 + 1).collect();
        assert_eq!(text(&odd), "1,3,5,7,9,11,13,15,...");
    }
}
