//! The governor: whether a thread that reads streams lets bytes accumulate before its next read.
//!
//! While traffic is dense, a short wait lets one read return what would otherwise take many reads
//! or wake-ups. But a lone line must pass without a wait, and so must the lines of a dialogue,
//! where each line is written only after the one before was answered. Nor may a wait let a writer
//! fill its pipe, or a reader fall behind. So waits are tried, and kept only while they pay: while
//! a turn with a wait yields a multiple of the bytes of a turn without one. A thread that is mostly
//! idle ([`Utilization`](crate::Utilization)) has little to gain and does not try.
//!
//! The capture thread and tools are governed by the same rule. Each decides how long it waits, and
//! which turns count as sparse or full ([`Traffic`]). This module does no I/O and reads no clock.

/// The number of turns in a sample. One sample is taken without waits, the next with waits.
const SAMPLE_TURNS: u32 = 8;
/// Waits pay if they multiply the bytes of a sample by at least this factor.
const MIN_GAIN: u64 = 2;
/// The limit of the number of turns for which waits that did not pay are held off. The number
/// doubles with each failure.
const LONGEST_HOLD_OFF: u32 = 64 * 1024;

/// The traffic that a turn has shown. A turn is a read of everything available, with a wait before
/// it or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The turn found nothing or came after a pause, or the thread is mostly idle: a wait would
    /// only delay the bytes.
    Sparse,
    /// The turn read a large part of a buffer: a longer wait could block a writer or let a
    /// reader fall behind.
    Full,
    /// The turn read this many bytes.
    Bytes(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No waits for this many further turns, whatever they yield.
    HoldOff(u32),
    /// No waits; a sample is being taken.
    Measuring,
    /// The first waits; a sample is being taken, to be compared with `before`, the bytes of the
    /// sample without waits.
    Trying { before: u64 },
    /// Waits, which have paid.
    Waiting,
}

/// Decides before each turn of a thread whether the thread waits first, from the traffic that the
/// turns before it have shown.
///
/// ```
/// use iof_shm_ring::{Governor, Traffic};
///
/// let mut governor = Governor::new(256);
/// for _ in 0..100 {
///     // Ten times as many bytes arrive during a wait.
///     let bytes = if governor.waits() { 1000 } else { 100 };
///     governor.record(Traffic::Bytes(bytes));
/// }
/// assert!(governor.waits());
/// governor.record(Traffic::Sparse);
/// assert!(!governor.waits());
/// ```
#[derive(Debug)]
pub struct Governor {
    phase: Phase,
    /// The number of turns to hold off if the next attempt does not pay.
    hold_off: u32,
    /// The number of turns to hold off if an attempt does not pay and the one before did.
    min_hold_off: u32,
    /// Turns and bytes of the current sample.
    turns: u32,
    bytes: u64,
}

impl Governor {
    /// Creates a governor that begins without waits. After an attempt that did not pay, waits are
    /// held off for `min_hold_off` turns. With each further such attempt, this number doubles.
    pub fn new(min_hold_off: u32) -> Governor {
        Governor { phase: Phase::Measuring, hold_off: min_hold_off, min_hold_off, turns: 0, bytes: 0 }
    }

    /// Returns whether the thread waits before its next turn.
    pub fn waits(&self) -> bool {
        matches!(self.phase, Phase::Trying { .. } | Phase::Waiting)
    }

    /// Returns whether the waits have paid. The thread may adjust their length then. Before, while
    /// they are tried, all waits have the same length.
    pub fn has_gained(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Records the traffic of a turn, and decides the next turn.
    pub fn record(&mut self, traffic: Traffic) {
        match (self.phase, traffic) {
            (Phase::HoldOff(0), _) => self.enter(Phase::Measuring),
            (Phase::HoldOff(turns), _) => self.phase = Phase::HoldOff(turns.saturating_sub(1)),
            (_, Traffic::Full) => self.enter(Phase::HoldOff(SAMPLE_TURNS)),
            (Phase::Trying { .. }, Traffic::Sparse) => self.give_up(),
            (Phase::Measuring | Phase::Waiting, Traffic::Sparse) => self.enter(Phase::Measuring),
            (Phase::Measuring, Traffic::Bytes(bytes)) => {
                if let Some(before) = self.add_to_sample(bytes) {
                    self.enter(Phase::Trying { before });
                }
            }
            (Phase::Trying { before }, Traffic::Bytes(bytes)) => match self.add_to_sample(bytes) {
                Some(after) if after >= before.saturating_mul(MIN_GAIN) => {
                    self.hold_off = self.min_hold_off;
                    self.enter(Phase::Waiting);
                }
                Some(_) => self.give_up(),
                None => {}
            },
            (Phase::Waiting, Traffic::Bytes(_)) => {}
        }
    }

    /// Ends waits that did not pay, and holds off twice as long the next time.
    fn give_up(&mut self) {
        self.enter(Phase::HoldOff(self.hold_off));
        self.hold_off = self.hold_off.saturating_mul(2).min(LONGEST_HOLD_OFF);
    }

    /// Adds a turn to the sample. Returns the bytes of the sample once it has enough turns.
    fn add_to_sample(&mut self, bytes: u64) -> Option<u64> {
        self.turns = self.turns.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        (self.turns >= SAMPLE_TURNS).then_some(self.bytes)
    }

    /// Begins `phase` with an empty sample.
    fn enter(&mut self, phase: Phase) {
        *self = Governor { phase, turns: 0, bytes: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD_OFF: u32 = 16;

    /// Records `turns` turns, whose traffic depends on whether the governor waits before. Returns
    /// the number of waits.
    fn run(governor: &mut Governor, turns: u32, traffic: impl Fn(bool) -> Traffic) -> u32 {
        (0..turns)
            .map(|_| {
                let waits = governor.waits();
                governor.record(traffic(waits));
                u32::from(waits)
            })
            .sum()
    }

    /// A wait yields the smallest gain at which waits pay.
    fn paying(waits: bool) -> Traffic {
        Traffic::Bytes(if waits { 100 * MIN_GAIN } else { 100 })
    }

    /// A wait yields slightly less than that.
    fn failing(waits: bool) -> Traffic {
        Traffic::Bytes(if waits { 100 * MIN_GAIN - 1 } else { 100 })
    }

    /// Returns a governor whose waits have paid.
    fn gained() -> Governor {
        let mut governor = Governor::new(HOLD_OFF);
        run(&mut governor, 2 * SAMPLE_TURNS, paying);
        assert!(governor.has_gained());
        governor
    }

    #[test]
    fn waits_are_tried_after_one_sample_and_kept_if_they_pay() {
        let mut governor = Governor::new(HOLD_OFF);
        assert_eq!(run(&mut governor, SAMPLE_TURNS, paying), 0);
        assert_eq!(run(&mut governor, SAMPLE_TURNS, paying), SAMPLE_TURNS);
        assert!(governor.has_gained());
        // Once they have paid, they are not compared any more.
        assert_eq!(run(&mut governor, 1000, failing), 1000);
    }

    #[test]
    fn waits_that_do_not_pay_are_held_off_twice_as_long_each_time() {
        let mut governor = Governor::new(HOLD_OFF);
        for hold_off in [HOLD_OFF, 2 * HOLD_OFF, 4 * HOLD_OFF] {
            assert_eq!(run(&mut governor, SAMPLE_TURNS, failing), 0);
            assert_eq!(run(&mut governor, SAMPLE_TURNS, failing), SAMPLE_TURNS);
            assert_eq!(run(&mut governor, hold_off + 1, failing), 0);
        }
        // Long enough to reach the limit; then one attempt follows each longest hold-off.
        run(&mut governor, 4 * LONGEST_HOLD_OFF, failing);
        let cycle = 2 * SAMPLE_TURNS + LONGEST_HOLD_OFF + 1;
        assert_eq!(run(&mut governor, cycle, failing), SAMPLE_TURNS, "the hold-off has a limit");
    }

    #[test]
    fn a_success_shortens_the_next_hold_off_to_the_first() {
        let mut governor = Governor::new(HOLD_OFF);
        run(&mut governor, 2 * SAMPLE_TURNS + HOLD_OFF + 1, failing);
        run(&mut governor, 2 * SAMPLE_TURNS, paying);
        assert!(governor.has_gained());
        governor.record(Traffic::Sparse);
        run(&mut governor, 2 * SAMPLE_TURNS, failing);
        assert_eq!(run(&mut governor, HOLD_OFF + 1 + SAMPLE_TURNS, failing), 0);
        assert!(governor.waits());
    }

    #[test]
    fn sparse_traffic_ends_waits_and_restarts_a_sample() {
        let mut governor = gained();
        governor.record(Traffic::Sparse);
        assert_eq!(run(&mut governor, SAMPLE_TURNS - 1, paying), 0);
        governor.record(Traffic::Sparse);
        assert_eq!(run(&mut governor, SAMPLE_TURNS, paying), 0);
        assert!(governor.waits());
    }

    #[test]
    fn sparse_traffic_during_the_first_waits_counts_as_a_failure() {
        let mut governor = Governor::new(HOLD_OFF);
        run(&mut governor, SAMPLE_TURNS, paying);
        governor.record(Traffic::Sparse);
        assert_eq!(run(&mut governor, HOLD_OFF + 1 + SAMPLE_TURNS, paying), 0);
        assert!(governor.waits());
    }

    #[test]
    fn full_reads_hold_waits_off_for_one_sample_and_are_no_failure() {
        let mut measuring = Governor::new(HOLD_OFF);
        let mut trying = Governor::new(HOLD_OFF);
        run(&mut trying, SAMPLE_TURNS, paying);
        for governor in [&mut measuring, &mut trying, &mut gained()] {
            governor.record(Traffic::Full);
            assert_eq!(run(governor, SAMPLE_TURNS + 1 + SAMPLE_TURNS, failing), 0);
            assert_eq!(run(governor, SAMPLE_TURNS, failing), SAMPLE_TURNS);
            // The hold-off after this first failure is the shortest.
            assert_eq!(run(governor, HOLD_OFF + 1 + SAMPLE_TURNS, failing), 0);
            assert!(governor.waits());
        }
    }
}
