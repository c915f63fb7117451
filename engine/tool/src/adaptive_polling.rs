//! Adaptive polling: how a tool that reads dense traffic sleeps without asking to be woken.
//!
//! A tool that waits on its doorbell costs the engine a system call for each batch, and with many
//! tools these calls cost more than everything else the engine does. When new data arrives soon
//! anyway, the tool instead sleeps for a fixed time, on its own timer, and then finds several
//! batches at once. The [`Governor`] decides which kind of sleep follows. The length of a timed
//! sleep is adjusted here: it is kept so short that each sleep yields only a small part of a ring,
//! and the reader does not fall behind.
//!
//! A reader in the engine's process that may hold sources back, such as a printer, writes what
//! users see, so each line matters more to it than a system call. It sleeps on the timer only while
//! it is busy or reads bulk data, and only for a short time.

use std::time::{Duration, Instant};

use iof_shm_ring::{Governor, Traffic, Utilization, current_thread_cpu};

/// The longest timed sleep. Traffic with longer pauses is read with doorbell waits.
pub(crate) const MAX_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// The longest timed sleep of a printer.
const MAX_PRINTER_INTERVAL: Duration = Duration::from_micros(50);
/// The longest timed sleep of a printer that reads bulk data. A longer one lets the processor's
/// cache lose what the printer reads next.
const MAX_BULK_INTERVAL: Duration = Duration::from_micros(100);
/// The shortest timed sleep of other tools.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(60);
/// The number of doorbell waits after timed sleeps that did not pay. It doubles with each failure.
const MIN_HOLD_OFF: u32 = 256;
/// A printer that finds this many bytes after each sleep reads bulk data.
const BULK_READ: u64 = 32 * 1024;
/// A read of at least this part of a ring, in percent, counts as large. After a longer sleep the
/// reader could not catch up.
const LARGE_PERCENT: u64 = 33;
/// The same for a printer, which loses nothing: its sources would have to wait.
const LARGE_PRINTER_PERCENT: u64 = 75;

/// The decision before each sleep of a tool: a timed sleep, or a wait for the doorbell.
pub(crate) struct AdaptivePolling {
    governor: Governor,
    /// The utilization of the thread of a printer; `None` for other tools.
    utilization: Option<Utilization>,
    /// The present length of a timed sleep.
    interval: Duration,
    /// The duration of the last sleep, if it was not evaluated yet.
    last: Option<Duration>,
    /// The bytes read since the last sleep.
    read: u64,
    /// Set if one of these reads was large.
    large: bool,
}

impl AdaptivePolling {
    /// Creates the decision for a tool. `printer`: it is in the engine's process and may hold
    /// sources back.
    pub(crate) fn new(printer: bool) -> AdaptivePolling {
        let utilization = || Utilization::new(Instant::now(), current_thread_cpu());
        AdaptivePolling {
            governor: Governor::new(MIN_HOLD_OFF),
            utilization: printer.then(utilization),
            interval: MAX_POLL_INTERVAL,
            last: None,
            read: 0,
            large: false,
        }
    }

    /// Records a read of `bytes`. Those of one stream were at most `percent` of its ring.
    pub(crate) fn record_read(&mut self, bytes: u64, percent: u64) {
        let large = if self.utilization.is_some() { LARGE_PRINTER_PERCENT } else { LARGE_PERCENT };
        self.read = self.read.saturating_add(bytes);
        self.large |= percent >= large;
    }

    /// Records the duration of the sleep that [`AdaptivePolling::next_interval`] decided.
    pub(crate) fn record_sleep(&mut self, time: Duration) {
        self.last = Some(time);
    }

    /// Evaluates the last sleep and decides the next one. Returns the duration of a timed sleep, or
    /// `None` for a wait on the doorbell.
    pub(crate) fn next_interval(&mut self) -> Option<Duration> {
        let timed = self.governor.waits();
        let busy = self.utilization.as_mut().is_none_or(|utilization| {
            utilization.is_busy(Instant::now(), self.read, timed, current_thread_cpu)
        });
        self.next(busy)
    }

    /// Decides the next sleep of a tool that is busy or not.
    fn next(&mut self, busy: bool) -> Option<Duration> {
        let reads_bulk = self.read >= BULK_READ;
        if let Some(time) = self.last.take() {
            self.evaluate(time, busy || reads_bulk);
        }
        (self.read, self.large) = (0, false);
        let longest = match self.utilization {
            Some(_) if reads_bulk => MAX_BULK_INTERVAL,
            Some(_) => MAX_PRINTER_INTERVAL,
            None => MAX_POLL_INTERVAL,
        };
        self.governor.waits().then_some(self.interval.min(longest))
    }

    /// Evaluates the last sleep, of the duration `time`, by what it has yielded.
    fn evaluate(&mut self, time: Duration, busy: bool) {
        let (timed, had_gained) = (self.governor.waits(), self.governor.has_gained());
        let traffic = if busy { self.traffic(time) } else { Traffic::Sparse };
        match traffic {
            Traffic::Full if timed => self.interval = (self.interval / 2).max(MIN_POLL_INTERVAL),
            Traffic::Bytes(_) if had_gained => {
                self.interval = self.interval.saturating_add(self.interval / 16).min(MAX_POLL_INTERVAL);
            }
            _ => {}
        }
        self.governor.record(traffic);
    }

    /// Returns what the last sleep, of the duration `time`, has shown about the traffic.
    fn traffic(&self, time: Duration) -> Traffic {
        let timed = self.governor.waits();
        // Before the first timed sleep, shorter ones are tried first.
        let full = self.large && (timed || self.interval <= MIN_POLL_INTERVAL);
        let sparse = if timed { self.read == 0 } else { time >= MAX_POLL_INTERVAL };
        if full {
            Traffic::Full
        } else if sparse {
            Traffic::Sparse
        } else {
            Traffic::Bytes(self.read)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of sleeps that the governor measures before it tries others.
    const SAMPLE_SLEEPS: u32 = 8;

    /// The yield of a sleep in a test.
    struct Yield {
        bytes: u64,
        /// The time that the sleep lasted.
        time: Duration,
        percent: u64,
    }

    /// Sleeps `sleeps` times; `yields` gives each sleep's yield, given whether it is a timed sleep.
    /// Returns the number of timed sleeps.
    fn sleep(polling: &mut AdaptivePolling, sleeps: u32, yields: impl Fn(bool) -> Yield) -> u32 {
        (0..sleeps)
            .map(|_| {
                let timed = polling.next(true).is_some();
                let Yield { bytes, time, percent } = yields(timed);
                polling.record_sleep(time);
                polling.record_read(bytes, percent);
                u32::from(timed)
            })
            .sum()
    }

    const MICRO: Duration = Duration::from_micros(1);

    /// A batch of 100 bytes each 50 µs.
    fn dense(timed: bool) -> Yield {
        let (bytes, time) = if timed { (1000, MAX_POLL_INTERVAL) } else { (100, 50 * MICRO) };
        Yield { bytes, time, percent: 1 }
    }

    #[test]
    fn dense_traffic_is_read_with_timed_sleeps() {
        let mut polling = AdaptivePolling::new(false);
        assert!(sleep(&mut polling, 1000, dense) > 950);
    }

    #[test]
    fn a_printer_sleeps_on_a_timer_only_while_busy_and_only_for_a_short_time() {
        let mut polling = AdaptivePolling::new(true);
        sleep(&mut polling, 100, dense);
        let mut next = |busy| {
            polling.record_sleep(MAX_PRINTER_INTERVAL);
            polling.record_read(100, 1);
            polling.next(busy)
        };
        assert_eq!(next(true), Some(MAX_PRINTER_INTERVAL));
        assert!((0..1000).all(|_| next(false).is_none()));
    }

    #[test]
    fn a_printer_sleeps_on_a_timer_while_it_reads_bulk_data() {
        let mut polling = AdaptivePolling::new(true);
        let mut timed_sleeps = |bytes: fn(bool) -> u64| {
            let sleeps = (0..100).map(|_| {
                let timed = polling.next(false).is_some();
                polling.record_sleep(MAX_PRINTER_INTERVAL);
                // Not so much that its sources would have to wait.
                polling.record_read(bytes(timed), LARGE_PRINTER_PERCENT - 1);
                u32::from(timed)
            });
            sleeps.sum::<u32>()
        };
        let bulk = |timed| if timed { 4 * BULK_READ } else { BULK_READ };
        assert!(timed_sleeps(bulk) > 90 - SAMPLE_SLEEPS);
        assert!(timed_sleeps(|_| BULK_READ - 1) <= 1, "the first of these sleeps shows the change");
    }

    #[test]
    fn lone_lines_are_read_with_doorbell_waits() {
        let mut polling = AdaptivePolling::new(false);
        let lone = |_| Yield { bytes: 80, time: 1000 * MICRO, percent: 1 };
        assert_eq!(sleep(&mut polling, 1000, lone), 0);
    }

    #[test]
    fn a_conversation_is_rarely_delayed_by_timed_sleeps() {
        let mut polling = AdaptivePolling::new(false);
        // The next line is written once the last was read, however long the reader slept.
        let turns =
            |timed| Yield { bytes: 80, time: if timed { MAX_POLL_INTERVAL } else { 30 * MICRO }, percent: 1 };
        let first = sleep(&mut polling, 10_000, turns);
        assert!(first <= 6 * SAMPLE_SLEEPS, "{first}");
        let later = sleep(&mut polling, 100_000, turns);
        assert!(later <= 3 * SAMPLE_SLEEPS, "{later}");
    }

    #[test]
    fn timed_sleeps_end_when_they_yield_nothing_or_too_much() {
        let mut polling = AdaptivePolling::new(false);
        sleep(&mut polling, 100, dense);
        let nothing = |_| Yield { bytes: 0, time: MAX_POLL_INTERVAL, percent: 1 };
        assert_eq!(sleep(&mut polling, 1, nothing), 1);
        assert_eq!(sleep(&mut polling, 1, dense), 0, "a sample of doorbell waits comes first");
        sleep(&mut polling, 100, dense);
        let much = |_| Yield { bytes: 1 << 20, time: MAX_POLL_INTERVAL, percent: 100 };
        assert_eq!(sleep(&mut polling, 1, much), 1);
        assert_eq!(sleep(&mut polling, SAMPLE_SLEEPS, dense), 0);
    }

    #[test]
    fn floods_are_read_with_doorbell_waits() {
        let mut polling = AdaptivePolling::new(false);
        let flood = |_| Yield { bytes: 1 << 20, time: 20 * MICRO, percent: 100 };
        assert!(sleep(&mut polling, 1000, flood) <= 8, "ever shorter intervals are tried");
        assert_eq!(sleep(&mut polling, 1000, flood), 0);
    }
}
