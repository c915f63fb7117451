//! Interrupt coalescing: how long a turn lets bytes accumulate before it reads them, as a network
//! driver coalesces the interrupts of its card.
//!
//! Ranks that write line by line would wake the capture thread for every line. While traffic is
//! dense, a short delay lets each read return many lines, at a fraction of the cost. But a lone
//! line must pass without delay, and so must the lines of a dialogue, where each line is written
//! only after the one before was answered. So a delay is tried, and kept only while it pays: while
//! a turn with the delay reads a multiple of the bytes of a turn without it.

use std::time::Duration;

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_micros(200);
/// The first delay that is tried, and the shortest that is kept.
const MIN_DELAY: Duration = Duration::from_micros(50);
/// Traffic is dense while no turn takes longer than this in addition to its delay.
const DENSE: Duration = Duration::from_micros(100);
/// A turn that takes longer still counts as dense if it reads this many bytes.
const DENSE_BYTES: u64 = 4096;
/// The number of turns in a sample. One sample is taken without a delay, the next with one.
const SAMPLE_TURNS: u32 = 8;
/// The number of turns after a delay that did not pay until the next attempt. It starts at
/// `HOLD_OFF` and doubles with each failure, up to `HOLD_OFF_MAX`.
const HOLD_OFF: u32 = 512;
const HOLD_OFF_MAX: u32 = 64 * 1024;
/// A delay pays if it multiplies the bytes of a sample by at least this factor.
const GAIN: u64 = 2;
/// The size, in bytes, of a read that needs no delay: half of what pipes hold by default. A delay
/// would only make the writer of a full pipe wait.
const LARGE_READ: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No delay for this many turns, whatever they read.
    HoldOff(u32),
    /// No delay; a sample is being taken.
    Measuring,
    /// The first delay; a sample is being taken, to be compared with `before`, the bytes of the
    /// sample without a delay.
    Trying { before: u64 },
    /// The delay pays and is being adjusted.
    Coalescing,
}

/// The bytes that a turn read and wrote, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    /// Bytes of all reads and writes.
    pub bytes: u64,
    /// Bytes of the largest read or write.
    pub largest: usize,
    /// Time since the previous turn.
    pub elapsed: Duration,
}

/// Chooses the coalescing delay of each turn from the yield of the turns before it.
#[derive(Debug)]
pub(crate) struct Coalescing {
    phase: Phase,
    delay: Duration,
    /// The number of turns to hold off if the next attempt does not pay.
    hold_off: u32,
    /// Turns and bytes of the current sample.
    turns: u32,
    bytes: u64,
}

impl Coalescing {
    pub(crate) fn new() -> Coalescing {
        Coalescing { phase: Phase::Measuring, delay: Duration::ZERO, hold_off: HOLD_OFF, turns: 0, bytes: 0 }
    }

    /// Returns the coalescing delay of the next turn; zero for none.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Records the yield of a turn and updates the delay.
    pub(crate) fn record_turn(&mut self, turn: Yield) {
        // A long turn that read many bytes was not quiet: other threads had the processor.
        let quiet = turn.elapsed > self.delay.saturating_add(DENSE) && turn.bytes < DENSE_BYTES;
        match self.phase {
            Phase::Trying { .. } if quiet => self.give_up(),
            Phase::Measuring | Phase::Coalescing if quiet => self.enter(Phase::Measuring, Duration::ZERO),
            Phase::HoldOff(0) => self.enter(Phase::Measuring, Duration::ZERO),
            Phase::HoldOff(turns) => self.phase = Phase::HoldOff(turns.saturating_sub(1)),
            Phase::Measuring | Phase::Trying { .. } if turn.largest >= LARGE_READ => {
                self.enter(Phase::HoldOff(SAMPLE_TURNS), Duration::ZERO);
            }
            Phase::Measuring => {
                if let Some(before) = self.add_to_sample(turn.bytes) {
                    self.enter(Phase::Trying { before }, MIN_DELAY);
                }
            }
            Phase::Trying { before } => match self.add_to_sample(turn.bytes) {
                Some(after) if after >= before.saturating_mul(GAIN) => {
                    self.hold_off = HOLD_OFF;
                    self.enter(Phase::Coalescing, MIN_DELAY);
                }
                Some(_) => self.give_up(),
                None => {}
            },
            Phase::Coalescing => self.adjust(turn.largest),
        }
    }

    /// Adjusts the delay so that the largest read stays below half of what its pipe holds. No
    /// writer has to wait then.
    fn adjust(&mut self, largest: usize) {
        let (quarter, half) = (self.delay / 4, self.delay / 2);
        if largest < LARGE_READ / 2 {
            self.delay = self.delay.saturating_add(quarter).min(LONGEST_DELAY);
        } else if largest >= LARGE_READ && half < MIN_DELAY {
            self.enter(Phase::HoldOff(SAMPLE_TURNS), Duration::ZERO);
        } else if largest >= LARGE_READ {
            self.delay = half;
        }
    }

    /// Drops a delay that did not pay, and holds off twice as long the next time.
    fn give_up(&mut self) {
        self.enter(Phase::HoldOff(self.hold_off), Duration::ZERO);
        self.hold_off = self.hold_off.saturating_mul(2).min(HOLD_OFF_MAX);
    }

    /// Adds a turn to the sample. Returns the bytes of the sample once it has enough turns.
    fn add_to_sample(&mut self, bytes: u64) -> Option<u64> {
        self.turns = self.turns.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        (self.turns >= SAMPLE_TURNS).then_some(self.bytes)
    }

    /// Begins `phase` with an empty sample.
    fn enter(&mut self, phase: Phase, delay: Duration) {
        *self = Coalescing { phase, delay, turns: 0, bytes: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 80;

    /// Records turns that each read `bytes(delay)`, `quiet` after the end of the delay.
    fn run(coalescing: &mut Coalescing, turns: u32, quiet: Duration, bytes: impl Fn(Duration) -> u64) {
        for _ in 0..turns {
            let (delay, bytes) = (coalescing.delay(), bytes(coalescing.delay()));
            coalescing.record_turn(Yield { bytes, largest: bytes as usize, elapsed: delay + quiet });
        }
    }

    /// Returns the bytes of a turn if a line is written each microsecond.
    fn dense(delay: Duration) -> u64 {
        LINE * (5 + delay.as_micros() as u64)
    }

    const SOON: Duration = Duration::from_micros(5);

    #[test]
    fn dense_lines_raise_the_delay_up_to_the_limit() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        assert_eq!(coalescing.delay(), LONGEST_DELAY);
    }

    #[test]
    fn dense_lines_are_delayed_although_other_threads_have_the_processor_in_between() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, DENSE * 20, |delay| DENSE_BYTES + dense(delay) * 4);
        assert!(coalescing.delay() >= MIN_DELAY);
    }

    #[test]
    fn a_line_after_a_silence_is_not_delayed() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.delay(), Duration::ZERO);
        // Nor are lines that follow it at long intervals.
        run(&mut coalescing, 10_000, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.delay(), Duration::ZERO);
    }

    /// Returns how many of `total` turns are delayed if lines are written one by one, with a pause
    /// after every `burst` turns.
    fn delayed_turns(total: u32, burst: u32) -> u32 {
        let mut coalescing = Coalescing::new();
        let mut delayed = 0;
        for turn in 1..=total {
            run(&mut coalescing, 1, if turn % burst == 0 { DENSE * 2 } else { SOON }, |_| LINE);
            delayed += u32::from(!coalescing.delay().is_zero());
        }
        delayed
    }

    #[test]
    fn at_most_one_turn_in_five_hundred_of_a_dialogue_is_delayed() {
        const TURNS: u32 = 100_000;
        for burst in [u32::MAX, 1000, 50, 12, 10, 5] {
            let delayed = delayed_turns(TURNS, burst);
            assert!(delayed <= TURNS / 500, "{delayed} of {TURNS} turns were delayed, in bursts of {burst}");
        }
    }

    #[test]
    fn large_reads_are_not_delayed() {
        let mut coalescing = Coalescing::new();
        for _ in 0..1000 {
            run(&mut coalescing, 1, SOON, |_| LARGE_READ as u64);
            assert_eq!(coalescing.delay(), Duration::ZERO);
        }
    }

    #[test]
    fn the_delay_is_halved_when_a_writer_fills_half_of_its_pipe_meanwhile() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, SOON, |_| LARGE_READ as u64);
        assert_eq!(coalescing.delay(), LONGEST_DELAY / 2);
        run(&mut coalescing, 2, SOON, |_| LARGE_READ as u64);
        assert_eq!(coalescing.delay(), Duration::ZERO);
    }
}
