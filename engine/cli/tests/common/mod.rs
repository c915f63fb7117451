//! Helpers of the integration tests: the real `iof` on real programs, in a rendezvous directory for
//! each test.
//!
//! No helper sleeps to let something happen. Tests wait for an observable state, and fail after a
//! deadline. All processes that a test started are killed when the test ends, even if it panics.
#![allow(dead_code, reason = "each test binary uses a part of the helpers")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

pub mod bytes;
pub mod cuts;
pub mod front;
pub mod lease;
pub mod nodes;
pub mod noise;
pub mod output;
pub mod process;
pub mod site;
pub mod terminal;

use std::io::BufRead;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for an expected state.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// How long a test waits for the transfer of a gigabyte, in a build without optimisation on a busy
/// machine.
pub const BULK_DEADLINE: Duration = Duration::from_secs(240);

/// Waits until `poll` returns a value.
pub fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_up_to(DEADLINE, what, poll)
}

/// Waits until `poll` returns a value, for at most `timeout`.
pub fn wait_up_to<T>(timeout: Duration, what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_or(timeout, poll, || what.to_owned())
}

/// Waits until `poll` returns a value, for at most `timeout`. After that, panics with the text of
/// `explain`.
pub fn wait_or<T>(
    timeout: Duration,
    mut poll: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        if Instant::now() >= deadline {
            panic!("waited {timeout:?} in vain: {}", explain());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `attempt` with longer and longer times until it succeeds, and returns its result. For time
/// limits within which a busy machine may not do what a test needs.
pub fn with_longer_times<T>(mut attempt: impl FnMut(&str) -> Result<T, String>) -> T {
    let mut failures = Vec::new();
    for seconds in ["0.5", "2", "8", "32"] {
        match attempt(seconds) {
            Ok(done) => return done,
            Err(failure) => failures.push(format!("within {seconds} s: {failure}")),
        }
    }
    panic!("{failures:#?}")
}

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
