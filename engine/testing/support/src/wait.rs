//! Waiting for conditions, and for threads.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a test waits for an expected state. No wait takes this long unless
/// something hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time that a test waits for the transfer of a gigabyte, in a build without
/// optimisation on a busy machine, or for a C program under valgrind.
pub const BULK_TIMEOUT: Duration = Duration::from_secs(240);

/// Waits until `poll` returns a value.
pub fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_up_to(TIMEOUT, what, poll)
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

/// The pending result of a thread.
pub struct Pending<T>(Receiver<T>);

impl<T: Send + 'static> Pending<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
        let (done, result) = channel();
        // The send fails only if the test has failed meanwhile.
        thread::spawn(move || drop(done.send(work())));
        Pending(result)
    }

    /// Waits for the result.
    pub fn get(self) -> T {
        self.get_within(TIMEOUT)
    }

    pub fn get_within(self, timeout: Duration) -> T {
        self.0.recv_timeout(timeout).expect("a thread of the test did not finish")
    }
}
