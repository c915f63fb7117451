//! Interrupt coalescing: how long a turn lets bytes accumulate before it reads them, as a network
//! driver coalesces the interrupts of its card.
//!
//! Ranks that write line by line would wake the capture thread for every line. While traffic is
//! dense and the thread is busy, a short delay lets each read return many lines, at a fraction of
//! the cost. The [`Governor`] decides whether there is a delay. There is a longer one while many
//! processes are started, see [`crate::thread::mass_start`].

use std::time::Duration;

use iof_shm_ring::{Governor, Traffic};

/// The length of a delay.
const DELAY: Duration = Duration::from_micros(50);
/// Traffic is dense while no turn takes longer than this in addition to its delay.
const DENSE: Duration = Duration::from_micros(100);
/// A turn that takes longer still counts as dense if it reads this many bytes.
const DENSE_BYTES: u64 = 4096;
/// The number of turns without a delay after one that did not pay. It doubles with each failure.
const MIN_HOLD_OFF: u32 = 512;
/// The size, in bytes, of a read that needs no delay: half of what pipes hold by default. A delay
/// would only make the writer of a full pipe wait.
const LARGE_READ: usize = 32 * 1024;
/// If a read returns at least this, its writer may fill the pipe within the delay of a start of many
/// processes. The smallest pipes, of users with many of them, hold 8 KiB, see pipe(7).
const FILLING_READ: usize = 4 * 1024;
/// The number of turns after such a read that have no delay for the start of processes.
const FILLING_TURNS: u32 = 64;

/// The bytes that a turn read and wrote, the time that it took, and how busy the thread is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    /// Bytes of all reads and writes.
    pub bytes: u64,
    /// Bytes of the largest read or write.
    pub largest: usize,
    /// Time since the previous turn.
    pub elapsed: Duration,
    /// The thread uses so much of a processor that a delay may pay, see
    /// [`iof_shm_ring::Utilization`].
    pub busy: bool,
}

/// Chooses the coalescing delay of each turn from the yield of the turns before it.
#[derive(Debug)]
pub(crate) struct Coalescing {
    governor: Governor,
    /// The number of turns to come in which pipes may fill.
    filling_turns: u32,
}

impl Coalescing {
    pub(crate) fn new() -> Coalescing {
        Coalescing { governor: Governor::new(MIN_HOLD_OFF), filling_turns: 0 }
    }

    /// Returns whether the next turn has a coalescing delay.
    pub(crate) fn is_waiting(&self) -> bool {
        self.governor.waits()
    }

    /// Returns the coalescing delay of the next turn; zero for none.
    fn coalescing_delay(&self) -> Duration {
        if self.governor.waits() { DELAY } else { Duration::ZERO }
    }

    /// Returns the delay of the next turn, given that of the
    /// [start of many processes](crate::thread::mass_start) that is under way; zero for none.
    pub(crate) fn delay(&self, mass_start: Duration) -> Duration {
        let mass_start = if self.filling_turns == 0 { mass_start } else { Duration::ZERO };
        mass_start.max(self.coalescing_delay())
    }

    /// Records the yield of a turn and updates the delay.
    pub(crate) fn record_turn(&mut self, turn: Yield) {
        self.governor.record(self.traffic(turn));
        let fills = turn.largest >= FILLING_READ;
        self.filling_turns = if fills { FILLING_TURNS } else { self.filling_turns.saturating_sub(1) };
    }

    /// Returns what `turn` has shown about the traffic.
    fn traffic(&self, turn: Yield) -> Traffic {
        // A long turn that read many bytes was not quiet: other threads had the processor.
        let quiet = turn.elapsed > self.coalescing_delay().saturating_add(DENSE) && turn.bytes < DENSE_BYTES;
        if quiet || !turn.busy {
            Traffic::Sparse
        } else if turn.largest >= LARGE_READ {
            Traffic::Full
        } else {
            Traffic::Bytes(turn.bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 80;

    /// Records turns that each read `bytes(delay)`, `quiet` after the end of the delay.
    fn run(coalescing: &mut Coalescing, turns: u32, quiet: Duration, bytes: impl Fn(Duration) -> u64) {
        for _ in 0..turns {
            let (delay, bytes) = (coalescing.coalescing_delay(), bytes(coalescing.coalescing_delay()));
            let elapsed = delay + quiet;
            coalescing.record_turn(Yield { bytes, largest: bytes as usize, elapsed, busy: true });
        }
    }

    /// Returns the bytes of a turn if a line is written each microsecond.
    fn dense(delay: Duration) -> u64 {
        LINE * (5 + delay.as_micros() as u64)
    }

    const SOON: Duration = Duration::from_micros(5);

    #[test]
    fn dense_lines_are_delayed() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        assert_eq!(coalescing.coalescing_delay(), DELAY);
    }

    #[test]
    fn an_idle_thread_delays_nothing_however_dense_the_lines_are() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        let idle = Yield { bytes: LINE, largest: LINE as usize, elapsed: SOON, busy: false };
        for _ in 0..1000 {
            coalescing.record_turn(idle);
            assert_eq!(coalescing.coalescing_delay(), Duration::ZERO);
        }
    }

    #[test]
    fn dense_lines_are_delayed_although_other_threads_have_the_processor_in_between() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, DENSE * 20, |delay| DENSE_BYTES + dense(delay) * 4);
        assert_eq!(coalescing.coalescing_delay(), DELAY);
    }

    #[test]
    fn a_line_after_a_silence_is_not_delayed() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.coalescing_delay(), Duration::ZERO);
        // Nor are lines that follow it at long intervals.
        run(&mut coalescing, 10_000, DENSE * 2, |_| LINE);
        assert_eq!(coalescing.coalescing_delay(), Duration::ZERO);
    }

    /// Returns how many of `total` turns are delayed if lines are written one by one, with a pause
    /// after every `burst` turns.
    fn delayed_turns(total: u32, burst: u32) -> u32 {
        let mut coalescing = Coalescing::new();
        let mut delayed = 0;
        for turn in 1..=total {
            run(&mut coalescing, 1, if turn % burst == 0 { DENSE * 2 } else { SOON }, |_| LINE);
            delayed += u32::from(!coalescing.coalescing_delay().is_zero());
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
            assert_eq!(coalescing.coalescing_delay(), Duration::ZERO);
        }
    }

    #[test]
    fn a_start_of_many_processes_delays_no_turn_while_a_pipe_may_fill() {
        let mut coalescing = Coalescing::new();
        let start = Duration::from_millis(1);
        let mut after_turn = |largest: usize| {
            let bytes = largest as u64;
            coalescing.record_turn(Yield { bytes, largest, elapsed: SOON, busy: false });
            coalescing.delay(start)
        };
        assert_eq!(after_turn(FILLING_READ - 1), start);
        for _ in 0..3 {
            assert_eq!(after_turn(FILLING_READ), Duration::ZERO);
            assert_eq!(after_turn(0), Duration::ZERO, "another pipe had a line meanwhile");
        }
        let delayed = |_: &u32| after_turn(80) == start;
        assert_eq!((0..100).filter(delayed).count(), 100 - FILLING_TURNS as usize + 2);
        assert_eq!(coalescing.delay(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn delays_end_when_a_writer_fills_half_of_its_pipe_meanwhile() {
        let mut coalescing = Coalescing::new();
        run(&mut coalescing, 100, SOON, dense);
        run(&mut coalescing, 1, SOON, |_| LARGE_READ as u64);
        assert_eq!(coalescing.coalescing_delay(), Duration::ZERO);
    }
}
