//! AdaptivePolling: how a tool that reads dense traffic sleeps without asking to be woken.
//!
//! A tool that waits on its doorbell costs the engine a system call for each batch, and with many
//! tools that is more than all else it does. Where the next news come soon anyway, a tool sleeps
//! for a moment by its own clock, and finds several batches then. But a lone line must be there at
//! once, and so must the lines of a conversation, where the next comes only when the last was
//! answered; and no reader may fall behind by sleeping. So, as the capture does with its own waits,
//! naps are tried, and kept only as long as they bring a multiple of what a wait brings; and they
//! are only so long that they bring little of what a ring holds.

use std::time::Duration;

/// The longest nap. News that come less often are waited for.
pub(crate) const NAP: Duration = Duration::from_micros(500);
/// The shortest.
const NAP_LEAST: Duration = Duration::from_micros(60);
/// Waits or naps in a row whose yields are compared.
const SAMPLE: u32 = 8;
/// What the yield of a wait must be multiplied by for a nap to pay.
const PAYS: u64 = 2;
/// Waits until naps that did not pay are tried again: at first, and at most, after they have not
/// paid many times.
const HOLD_OFF: u32 = 256;
const HOLD_OFF_MOST: u32 = 64 * 1024;
/// The part of a ring that a nap may find filled, as a divisor. More could not be caught up with.
pub(crate) const LARGE_PART: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So many waits, whatever comes.
    HoldOff(u32),
    /// Waits, whose yield is measured.
    Measuring,
    /// The first naps, beside a yield of waits.
    Trying { before: u64 },
    /// They pay.
    Napping,
}

/// Decides before each sleep of a tool whether it is a nap.
pub(crate) struct AdaptivePolling {
    phase: Phase,
    /// How long naps are at the moment.
    nap: Duration,
    /// For how long naps are not tried if they do not pay the next time.
    hold_off: u32,
    /// Sleeps of the sample so far, and bytes.
    sleeps: u32,
    bytes: u64,
    /// How long the last sleep took, and what it brought so far.
    last: Option<Duration>,
    brought: u64,
    large: bool,
}

impl AdaptivePolling {
    pub(crate) fn new() -> AdaptivePolling {
        AdaptivePolling {
            phase: Phase::Measuring,
            nap: NAP,
            hold_off: HOLD_OFF,
            sleeps: 0,
            bytes: 0,
            last: None,
            brought: 0,
            large: false,
        }
    }

    /// Notes what was read; `large` if that was a large part of a ring.
    pub(crate) fn read(&mut self, bytes: u64, large: bool) {
        self.brought = self.brought.saturating_add(bytes);
        self.large |= large;
    }

    /// Notes a sleep, after [`AdaptivePolling::next`].
    pub(crate) fn slept(&mut self, time: Duration) {
        self.last = Some(time);
    }

    /// How long the next sleep is to be, if it is to be a nap.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        if let Some(time) = self.last.take() {
            self.learn(time);
        }
        (self.brought, self.large) = (0, false);
        matches!(self.phase, Phase::Trying { .. } | Phase::Napping).then_some(self.nap)
    }

    /// Takes note of the last sleep.
    fn learn(&mut self, time: Duration) {
        match self.phase {
            Phase::HoldOff(0) => self.enter(Phase::Measuring),
            Phase::HoldOff(sleeps) => self.phase = Phase::HoldOff(sleeps.saturating_sub(1)),
            Phase::Measuring if self.large && self.nap <= NAP_LEAST => self.enter(Phase::HoldOff(SAMPLE)),
            Phase::Trying { .. } | Phase::Napping if self.large => {
                // Sooner the next time.
                self.nap = (self.nap / 2).max(NAP_LEAST);
                self.enter(Phase::HoldOff(SAMPLE));
            }
            // Quiet.
            Phase::Measuring if time >= NAP => self.enter(Phase::Measuring),
            Phase::Measuring => {
                if let Some(before) = self.sample() {
                    self.enter(Phase::Trying { before });
                }
            }
            Phase::Trying { .. } if self.brought == 0 => self.give_up(),
            Phase::Trying { before } => match self.sample() {
                Some(after) if after >= before.saturating_mul(PAYS) => {
                    self.hold_off = HOLD_OFF;
                    self.enter(Phase::Napping);
                }
                Some(_) => self.give_up(),
                None => {}
            },
            Phase::Napping if self.brought == 0 => self.enter(Phase::Measuring),
            Phase::Napping => self.nap = self.nap.saturating_add(self.nap / 16).min(NAP),
        }
    }

    /// They did not pay.
    fn give_up(&mut self) {
        self.enter(Phase::HoldOff(self.hold_off));
        self.hold_off = self.hold_off.saturating_mul(2).min(HOLD_OFF_MOST);
    }

    /// Adds a sleep to the sample; its bytes, when it is large enough.
    fn sample(&mut self) -> Option<u64> {
        self.sleeps = self.sleeps.saturating_add(1);
        self.bytes = self.bytes.saturating_add(self.brought);
        (self.sleeps >= SAMPLE).then_some(self.bytes)
    }

    fn enter(&mut self, phase: Phase) {
        *self = AdaptivePolling { phase, sleeps: 0, bytes: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps `sleeps` times, each of which brings what `brings` says of a nap or a wait; gives how
    /// many were naps.
    fn sleep(
        polling: &mut AdaptivePolling,
        sleeps: u32,
        brings: impl Fn(bool) -> (u64, Duration, bool),
    ) -> u32 {
        (0..sleeps)
            .map(|_| {
                let nap = polling.next().is_some();
                let (bytes, time, large) = brings(nap);
                polling.slept(time);
                polling.read(bytes, large);
                u32::from(nap)
            })
            .sum()
    }

    const MICRO: Duration = Duration::from_micros(1);

    /// A batch of 100 bytes each 50 µs.
    fn dense(nap: bool) -> (u64, Duration, bool) {
        if nap { (1000, NAP, false) } else { (100, 50 * MICRO, false) }
    }

    #[test]
    fn dense_traffic_is_napped_through() {
        let mut polling = AdaptivePolling::new();
        assert!(sleep(&mut polling, 1000, dense) > 950);
    }

    #[test]
    fn lone_lines_are_waited_for() {
        let mut polling = AdaptivePolling::new();
        assert_eq!(sleep(&mut polling, 1000, |_| (80, 1000 * MICRO, false)), 0);
    }

    #[test]
    fn a_conversation_is_hardly_slowed_down() {
        let mut polling = AdaptivePolling::new();
        // The next line comes when the last was read, however long that took.
        let turns = |nap| (80, if nap { NAP } else { 30 * MICRO }, false);
        let first = sleep(&mut polling, 10_000, turns);
        assert!(first <= 6 * SAMPLE, "{first}");
        let later = sleep(&mut polling, 100_000, turns);
        assert!(later <= 3 * SAMPLE, "{later}");
    }

    #[test]
    fn naps_end_when_nothing_comes_or_too_much_does() {
        let mut polling = AdaptivePolling::new();
        sleep(&mut polling, 100, dense);
        assert_eq!(sleep(&mut polling, 1, |_| (0, NAP, false)), 1);
        assert_eq!(sleep(&mut polling, 1, dense), 0, "it looks for a while first");
        sleep(&mut polling, 100, dense);
        assert_eq!(sleep(&mut polling, 1, |_| (1 << 20, NAP, true)), 1);
        assert_eq!(sleep(&mut polling, SAMPLE, dense), 0);
    }

    #[test]
    fn floods_are_not_napped_through() {
        let mut polling = AdaptivePolling::new();
        let flood = |_| (1 << 20, 20 * MICRO, true);
        assert!(sleep(&mut polling, 1000, flood) <= 8, "shorter and shorter ones are tried");
        assert_eq!(sleep(&mut polling, 1000, flood), 0);
    }
}
