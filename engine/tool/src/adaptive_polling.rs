//! Adaptive polling: how a tool that reads dense traffic sleeps without asking to be woken.
//!
//! A tool that waits on its doorbell costs the engine a system call for each batch, and with many
//! tools these calls cost more than everything else the engine does. When new data arrives soon
//! anyway, the tool instead sleeps for a fixed time, on its own timer, and then finds several
//! batches at once. Such a timed sleep must not delay a lone line, nor the lines of a conversation,
//! where the next line is written only after the last was answered. It must not let the reader fall
//! behind either. Therefore timed sleeps are tried, and kept only while each yields a multiple of
//! what a doorbell wait yields. They are kept so short that each yields only a small part of a
//! ring. The capture coalesces its own wake-ups by the same rule.

use std::time::Duration;

/// The longest timed sleep. Traffic with longer pauses is read with doorbell waits.
pub(crate) const MAX_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// The shortest timed sleep.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(60);
/// The number of consecutive sleeps of one kind whose yields are added up and compared.
const SAMPLE_SLEEPS: u32 = 8;
/// The lowest ratio of a timed sleep's yield to a doorbell wait's yield at which timed sleeps are
/// kept.
const MIN_GAIN: u64 = 2;
/// The number of doorbell waits before timed sleeps that did not pay are tried again.
const MIN_HOLD_OFF: u32 = 256;
/// The limit of that number, which doubles each time timed sleeps do not pay.
const MAX_HOLD_OFF: u32 = 64 * 1024;
/// A read of at least the ring's capacity divided by this number counts as large. After a longer
/// sleep the reader could not catch up.
pub(crate) const LARGE_READ_DIVISOR: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// This many further doorbell waits, whatever they yield.
    HoldOff(u32),
    /// Doorbell waits whose yield is measured.
    Measuring,
    /// The first timed sleeps, compared with the yield of the doorbell waits.
    Trying { wait_yield: u64 },
    /// Timed sleeps, which have paid.
    Polling,
}

/// The decision before each sleep of a tool: a timed sleep, or a wait for the doorbell.
pub(crate) struct AdaptivePolling {
    phase: Phase,
    /// The present length of a timed sleep.
    interval: Duration,
    /// The number of doorbell waits that follow if timed sleeps do not pay the next time.
    hold_off: u32,
    /// The number of sleeps in the sample so far.
    sleeps: u32,
    /// The bytes read in the sample so far.
    bytes: u64,
    /// The duration of the last sleep, if it was not evaluated yet.
    last: Option<Duration>,
    /// The bytes read since the last sleep.
    read: u64,
    /// Whether one of these reads was large.
    large: bool,
}

impl AdaptivePolling {
    pub(crate) fn new() -> AdaptivePolling {
        AdaptivePolling {
            phase: Phase::Measuring,
            interval: MAX_POLL_INTERVAL,
            hold_off: MIN_HOLD_OFF,
            sleeps: 0,
            bytes: 0,
            last: None,
            read: 0,
            large: false,
        }
    }

    /// Records a read of `bytes`; `large` if they were a large part of their ring.
    pub(crate) fn record_read(&mut self, bytes: u64, large: bool) {
        self.read = self.read.saturating_add(bytes);
        self.large |= large;
    }

    /// Records the duration of the sleep that [`AdaptivePolling::next_interval`] decided.
    pub(crate) fn record_sleep(&mut self, time: Duration) {
        self.last = Some(time);
    }

    /// Evaluates the last sleep and decides the next one. Returns the duration of a timed sleep, or
    /// `None` for a wait on the doorbell.
    pub(crate) fn next_interval(&mut self) -> Option<Duration> {
        if let Some(time) = self.last.take() {
            self.evaluate(time);
        }
        (self.read, self.large) = (0, false);
        matches!(self.phase, Phase::Trying { .. } | Phase::Polling).then_some(self.interval)
    }

    /// Chooses the next phase by what the last sleep, of the duration `time`, has yielded.
    fn evaluate(&mut self, time: Duration) {
        match self.phase {
            Phase::HoldOff(0) => self.enter(Phase::Measuring),
            Phase::HoldOff(sleeps) => self.phase = Phase::HoldOff(sleeps.saturating_sub(1)),
            Phase::Measuring if self.large && self.interval <= MIN_POLL_INTERVAL => {
                self.enter(Phase::HoldOff(SAMPLE_SLEEPS));
            }
            Phase::Trying { .. } | Phase::Polling if self.large => {
                self.interval = (self.interval / 2).max(MIN_POLL_INTERVAL);
                self.enter(Phase::HoldOff(SAMPLE_SLEEPS));
            }
            // The traffic has pauses: the sample begins again.
            Phase::Measuring if time >= MAX_POLL_INTERVAL => self.enter(Phase::Measuring),
            Phase::Measuring => {
                if let Some(wait_yield) = self.sample() {
                    self.enter(Phase::Trying { wait_yield });
                }
            }
            Phase::Trying { .. } if self.read == 0 => self.give_up(),
            Phase::Trying { wait_yield } => match self.sample() {
                Some(timed_yield) if timed_yield >= wait_yield.saturating_mul(MIN_GAIN) => {
                    self.hold_off = MIN_HOLD_OFF;
                    self.enter(Phase::Polling);
                }
                Some(_) => self.give_up(),
                None => {}
            },
            Phase::Polling if self.read == 0 => self.enter(Phase::Measuring),
            Phase::Polling => {
                self.interval = self.interval.saturating_add(self.interval / 16).min(MAX_POLL_INTERVAL);
            }
        }
    }

    /// Returns to doorbell waits, because timed sleeps did not pay.
    fn give_up(&mut self) {
        self.enter(Phase::HoldOff(self.hold_off));
        self.hold_off = self.hold_off.saturating_mul(2).min(MAX_HOLD_OFF);
    }

    /// Adds the last sleep to the sample. Returns the bytes of the sample once it is complete.
    fn sample(&mut self) -> Option<u64> {
        self.sleeps = self.sleeps.saturating_add(1);
        self.bytes = self.bytes.saturating_add(self.read);
        (self.sleeps >= SAMPLE_SLEEPS).then_some(self.bytes)
    }

    fn enter(&mut self, phase: Phase) {
        *self = AdaptivePolling { phase, sleeps: 0, bytes: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a sleep yields in a test.
    struct Yield {
        bytes: u64,
        /// How long the sleep lasted.
        time: Duration,
        large: bool,
    }

    /// Sleeps `sleeps` times; `yields` gives each sleep's yield, given whether it is a timed sleep.
    /// Returns the number of timed sleeps.
    fn sleep(polling: &mut AdaptivePolling, sleeps: u32, yields: impl Fn(bool) -> Yield) -> u32 {
        (0..sleeps)
            .map(|_| {
                let timed = polling.next_interval().is_some();
                let Yield { bytes, time, large } = yields(timed);
                polling.record_sleep(time);
                polling.record_read(bytes, large);
                u32::from(timed)
            })
            .sum()
    }

    const MICRO: Duration = Duration::from_micros(1);

    /// A batch of 100 bytes each 50 µs.
    fn dense(timed: bool) -> Yield {
        let (bytes, time) = if timed { (1000, MAX_POLL_INTERVAL) } else { (100, 50 * MICRO) };
        Yield { bytes, time, large: false }
    }

    #[test]
    fn dense_traffic_is_read_with_timed_sleeps() {
        let mut polling = AdaptivePolling::new();
        assert!(sleep(&mut polling, 1000, dense) > 950);
    }

    #[test]
    fn lone_lines_are_read_with_doorbell_waits() {
        let mut polling = AdaptivePolling::new();
        let lone = |_| Yield { bytes: 80, time: 1000 * MICRO, large: false };
        assert_eq!(sleep(&mut polling, 1000, lone), 0);
    }

    #[test]
    fn a_conversation_is_rarely_delayed_by_timed_sleeps() {
        let mut polling = AdaptivePolling::new();
        // The next line is written once the last was read, however long the reader slept.
        let turns = |timed| Yield {
            bytes: 80,
            time: if timed { MAX_POLL_INTERVAL } else { 30 * MICRO },
            large: false,
        };
        let first = sleep(&mut polling, 10_000, turns);
        assert!(first <= 6 * SAMPLE_SLEEPS, "{first}");
        let later = sleep(&mut polling, 100_000, turns);
        assert!(later <= 3 * SAMPLE_SLEEPS, "{later}");
    }

    #[test]
    fn timed_sleeps_end_when_they_yield_nothing_or_too_much() {
        let mut polling = AdaptivePolling::new();
        sleep(&mut polling, 100, dense);
        let nothing = |_| Yield { bytes: 0, time: MAX_POLL_INTERVAL, large: false };
        assert_eq!(sleep(&mut polling, 1, nothing), 1);
        assert_eq!(sleep(&mut polling, 1, dense), 0, "a sample of doorbell waits comes first");
        sleep(&mut polling, 100, dense);
        let much = |_| Yield { bytes: 1 << 20, time: MAX_POLL_INTERVAL, large: true };
        assert_eq!(sleep(&mut polling, 1, much), 1);
        assert_eq!(sleep(&mut polling, SAMPLE_SLEEPS, dense), 0);
    }

    #[test]
    fn floods_are_read_with_doorbell_waits() {
        let mut polling = AdaptivePolling::new();
        let flood = |_| Yield { bytes: 1 << 20, time: 20 * MICRO, large: true };
        assert!(sleep(&mut polling, 1000, flood) <= 8, "ever shorter intervals are tried");
        assert_eq!(sleep(&mut polling, 1000, flood), 0);
    }
}
