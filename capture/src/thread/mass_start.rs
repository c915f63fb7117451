//! Starts of many processes, and the delays of the threads that follow them.
//!
//! While a launcher starts a thousand ranks, each of them would wake the threads that follow it
//! several times: for its pipes, its readers and its exit. With a short delay, one turn handles the
//! changes of several ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The least number of processes whose start delays turns. To start as many takes some 20 ms.
const MANY: usize = 64;
/// The length of a delay.
const DELAY: Duration = Duration::from_millis(1);

/// The number of starts of many processes that are under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MassStarts(Arc<AtomicU32>);

/// A start of many processes, from its creation to its drop, see
/// [`Capture::begin_mass_start`](crate::Capture::begin_mass_start).
#[derive(Debug)]
#[must_use = "the start ends when this is dropped"]
pub struct MassStart(MassStarts);

impl MassStarts {
    /// Begins a start of `processes` processes. Returns `None` if they are too few for delays.
    pub(crate) fn begin(&self, processes: usize) -> Option<MassStart> {
        (processes >= MANY).then(|| {
            // Relaxed, like the other uses: a thread that misses a change has one delay more or
            // less.
            self.0.fetch_add(1, Ordering::Relaxed);
            MassStart(self.clone())
        })
    }

    /// Returns for how long a thread waits before its next turn: 1 ms while such a start is under
    /// way, otherwise zero.
    pub(crate) fn delay(&self) -> Duration {
        if self.0.load(Ordering::Relaxed) == 0 { Duration::ZERO } else { DELAY }
    }
}

impl Drop for MassStart {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_delayed_until_the_last_start_of_many_processes_has_ended() {
        let starts = MassStarts::default();
        assert!(starts.begin(MANY - 1).is_none());
        assert_eq!(starts.delay(), Duration::ZERO);
        let (first, second) = (starts.begin(MANY), starts.begin(1 << 20));
        assert_eq!(starts.delay(), DELAY);
        drop(first);
        assert_eq!(starts.delay(), DELAY);
        drop(second);
        assert_eq!(starts.delay(), Duration::ZERO);
    }
}
