//! What the integration tests share: the real `iof` on real programs, in a rendezvous directory of
//! their own.
//!
//! Nothing here sleeps to let something happen: tests wait for what they can see, and fail loudly
//! if it does not come. Whatever a test started is killed when the test ends, however it ends.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

pub mod bytes;
pub mod noise;
pub mod output;
pub mod process;
pub mod site;
pub mod terminal;

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for what must come.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The same where a gigabyte is on its way, in a build without optimisation, on a machine that does
/// other things.
pub const BULK_DEADLINE: Duration = Duration::from_secs(240);

/// Waits until `found` gives something.
pub fn wait_for<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    wait_up_to(DEADLINE, what, found)
}

/// Waits until `found` gives something, for `patience` at most.
pub fn wait_up_to<T>(patience: Duration, what: &str, found: impl FnMut() -> Option<T>) -> T {
    wait_or(patience, found, || what.to_owned())
}

/// Waits until `found` gives something, for `patience` at most; if nothing comes, `explain` says
/// what was there.
pub fn wait_or<T>(
    patience: Duration,
    mut found: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = found() {
            return found;
        }
        if Instant::now() >= deadline {
            panic!("waited {patience:?} in vain: {}", explain());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// What `iof` says, but for whom a push waits: that is said of those who read, too, on a machine
/// that has no time for them.
pub fn without_waits(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.starts_with("iof: waiting for rank ")).collect()
}
