//! Ranks grouped by how they ended, and lists of ranks, for messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use iof_engine::Exit;
use iof_proto::ranges::listed;
use iof_proto::{ProcState, Rank};

use crate::error::Failure;

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
/// Returns the exit status of a row of the process table.
pub fn exit(code: Option<i32>, state: ProcState) -> Exit {
    if state == ProcState::Unfinalized {
        return Exit::Unfinalized;
    }
    let raw = match (code, state) {
        (Some(code), ProcState::Killed) => code.checked_sub(128),
        (Some(code), _) => code.checked_shl(8),
        (None, _) => None,
    };
    raw.map_or(Exit::Unknown, |raw| Exit::Status(ExitStatus::from_raw(raw)))
}
