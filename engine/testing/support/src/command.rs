//! The command `iof` on real programs, in a rendezvous directory for each test.

pub mod lease;
pub mod nodes;
pub mod site;
pub mod terminal;

use std::io::BufRead;

/// Reads the messages of `iof` up to the report that a push waits for `rank`, which does not read.
/// On a busy machine other ranks may be reported before it, or with it.
pub fn wait_for_slow_rank(stderr: &mut impl BufRead, rank: u32) {
    let rank = rank.to_string();
    loop {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let ranks = line.strip_prefix("iof: waiting for rank ");
        let ranks = ranks.and_then(|line| line.strip_suffix(": it does not read its stdin\n"));
        let ranks = ranks.unwrap_or_else(|| panic!("not a report of slow ranks: {line:?}"));
        if ranks.split(',').any(|slow| slow == rank) {
            return;
        }
    }
}

/// Returns the messages of `iof` without the reports of ranks that a push waits for. On a busy
/// machine these reports name ranks that do read as well.
pub fn without_waits(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.starts_with("iof: waiting for rank ")).collect()
}
