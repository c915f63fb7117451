//! How long to let traffic pile up before it is looked at, as a network driver moderates its
//! interrupts.
//!
//! Ranks that write line by line would wake the capture thread for every line. While traffic is
//! dense, waiting a little lets each read bring many lines, at a fraction of the cost. But a lone
//! line must go through at once, and so must the lines of a conversation, where the next comes only
//! when the last was answered. So patience is tried, and kept up only if it pays: if a turn that
//! waited brings a multiple of the bytes of one that did not.

use std::time::Duration;

/// The longest wait.
const MOST: Duration = Duration::from_micros(200);
/// The first wait that is tried, and the shortest that is kept.
const FIRST: Duration = Duration::from_micros(50);
/// Traffic is dense while no turn takes longer than this, or than this on top of its wait.
const DENSE: Duration = Duration::from_micros(100);
/// Nor is it when a turn that takes longer brings so many bytes.
const MUCH: u64 = 4096;
/// Turns whose yield is measured without a wait, and then with one.
const SAMPLE: u32 = 8;
/// Turns until patience that did not pay is tried again: at first, and at most, after it has not
/// paid many times.
const HOLD_OFF: u32 = 512;
const HOLD_OFF_MOST: u32 = 64 * 1024;
/// What the yield of a turn must be multiplied by for its wait to pay.
const PAYS: u64 = 2;
/// A read of so many bytes, half of what pipes hold, needs no patience: more would keep its writer
/// waiting.
const LARGE: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No wait, for so many turns whatever comes.
    HoldOff(u32),
    /// No wait; the yield is measured.
    Measuring,
    /// The first wait, beside a yield without it.
    Trying { before: u64 },
    /// It pays.
    Coalescing,
}

/// What a turn brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    /// Bytes read.
    pub bytes: u64,
    /// The largest read's.
    pub largest: usize,
    /// How long the turn took, from the one before.
    pub elapsed: Duration,
}

/// Decides on the wait of each turn by what those before brought.
pub(crate) struct Coalescing {
    phase: Phase,
    wait: Duration,
    /// For how long patience is not tried if it does not pay the next time.
    hold_off: u32,
    /// Turns and bytes of the sample so far.
    turns: u32,
    bytes: u64,
}

impl Coalescing {
    pub(crate) fn new() -> Coalescing {
        Coalescing { phase: Phase::Measuring, wait: Duration::ZERO, hold_off: HOLD_OFF, turns: 0, bytes: 0 }
    }

    /// How long the next turn is to let traffic pile up; zero: not at all.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Takes note of a turn.
    pub(crate) fn turned(&mut self, brought: Yield) {
        // A late turn that brought much was not quiet: others had the processor.
        let quiet = brought.elapsed > self.wait.saturating_add(DENSE) && brought.bytes < MUCH;
        match self.phase {
            Phase::Trying { .. } if quiet => self.give_up(),
            Phase::Measuring | Phase::Coalescing if quiet => self.enter(Phase::Measuring, Duration::ZERO),
            Phase::HoldOff(0) => self.enter(Phase::Measuring, Duration::ZERO),
            Phase::HoldOff(turns) => self.phase = Phase::HoldOff(turns.saturating_sub(1)),
            Phase::Measuring | Phase::Trying { .. } if brought.largest >= LARGE => {
                self.enter(Phase::HoldOff(SAMPLE), Duration::ZERO);
            }
            Phase::Measuring => {
                if let Some(before) = self.sample(brought.bytes) {
                    self.enter(Phase::Trying { before }, FIRST);
                }
            }
            Phase::Trying { before } => match self.sample(brought.bytes) {
                Some(after) if after >= before.saturating_mul(PAYS) => {
                    self.hold_off = HOLD_OFF;
                    self.enter(Phase::Coalescing, FIRST);
                }
                Some(_) => self.give_up(),
                None => {}
            },
            Phase::Coalescing => self.adjust(brought.largest),
        }
    }

    /// The largest read stays below half of what its pipe holds, so that no writer has to wait.
    fn adjust(&mut self, largest: usize) {
        let (quarter, half) = (self.wait / 4, self.wait / 2);
        if largest < LARGE / 2 {
            self.wait = self.wait.saturating_add(quarter).min(MOST);
        } else if largest >= LARGE && half < FIRST {
            self.enter(Phase::HoldOff(SAMPLE), Duration::ZERO);
        } else if largest >= LARGE {
            self.wait = half;
        }
    }

    /// It did not pay.
    fn give_up(&mut self) {
        self.enter(Phase::HoldOff(self.hold_off), Duration::ZERO);
        self.hold_off = self.hold_off.saturating_mul(2).min(HOLD_OFF_MOST);
    }

    /// Adds a turn to the sample; its bytes, when it is large enough.
    fn sample(&mut self, bytes: u64) -> Option<u64> {
        self.turns = self.turns.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        (self.turns >= SAMPLE).then_some(self.bytes)
    }

    fn enter(&mut self, phase: Phase, wait: Duration) {
        *self = Coalescing { phase, wait, turns: 0, bytes: 0, ..*self };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 80;

    /// Traffic that brings `bytes(wait)` a turn, `quiet` after the wait is over.
    fn run(coalescing: &mut Coalescing, turns: u32, quiet: Duration, bytes: impl Fn(Duration) -> u64) {
        for _ in 0..turns {
            let (wait, bytes) = (coalescing.wait(), bytes(coalescing.wait()));
            coalescing.turned(Yield { bytes, largest: bytes as usize, elapsed: wait + quiet });
        }
    }

    /// A line each microsecond.
    fn dense(wait: Duration) -> u64 {
        LINE * (5 + wait.as_micros() as u64)
    }

    const SOON: Duration = Duration::from_micros(5);

    #[test]
    fn dense_lines_are_waited_for_longer_and_longer_up_to_the_limit() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        assert_eq!(coalescing.wait(), MOST);
    }

    #[test]
    fn dense_lines_are_waited_for_although_others_have_the_processor_in_between() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, DENSE * 20, |wait| MUCH + dense(wait) * 4);
        assert!(coalescing.wait() >= FIRST);
    }

    #[test]
    fn a_line_after_a_silence_is_not_waited_for() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.wait(), Duration::ZERO);
        // Nor are those that follow it now and then.
        run(&mut coalescing, 10_000, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.wait(), Duration::ZERO);
    }

    /// Turns of `total` that wait, if lines come one by one and every `burst` turns it is quiet.
    fn waits(total: u32, burst: u32) -> u32 {
        let mut coalescing = Coalescing::new();
        let mut waited = 0;
        for turn in 1..=total {
            run(&mut coalescing, 1, if turn % burst == 0 { DENSE * 2 } else { SOON }, |_| LINE);
            waited += u32::from(!coalescing.wait().is_zero());
        }
        waited
    }

    #[test]
    fn a_conversation_is_slowed_down_for_one_turn_in_five_hundred_at_most() {
        const TURNS: u32 = 100_000;
        for burst in [u32::MAX, 1000, 50, 12, 10, 5] {
            let waited = waits(TURNS, burst);
            assert!(waited <= TURNS / 500, "{waited} of {TURNS} turns waited, in bursts of {burst}");
        }
    }

    #[test]
    fn a_bulk_of_bytes_is_not_waited_for() {
        let mut coalescing = Coalescing::new();
        for _ in 0..1000 {
            run(&mut coalescing, 1, SOON, |_| LARGE as u64);
            assert_eq!(coalescing.wait(), Duration::ZERO);
        }
    }

    #[test]
    fn writers_that_fill_their_pipes_meanwhile_are_waited_for_less() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, SOON, |_| LARGE as u64);
        assert_eq!(coalescing.wait(), MOST / 2);
        run(&mut coalescing, 2, SOON, |_| LARGE as u64);
        assert_eq!(coalescing.wait(), Duration::ZERO);
    }
}
