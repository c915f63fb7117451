//! The share of a processor that a thread uses, and whether it is enough for waits to pay.
//!
//! A thread that sleeps most of the time has nothing to gain from waiting: the processor time that
//! it would save is small, and each line would arrive later.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The shortest period over which the use is measured.
const PERIOD: Duration = Duration::from_millis(5);
/// A thread becomes busy if it uses at least this percentage of a processor.
const BUSY_PERCENT: u32 = 40;
/// A busy thread becomes idle if it uses less than this percentage.
const IDLE_PERCENT: u32 = 25;

/// The utilization of a processor by one thread, measured over periods of at least 5 ms.
///
/// Waits that pay lower the use, and must not end for that reason. So while the thread waits, its
/// use counts as what the same bytes would cost without waits, by the last period without any.
///
/// ```
/// use std::time::{Duration, Instant};
/// use iof_shm_ring::Utilization;
///
/// let start = Instant::now();
/// let mut utilization = Utilization::new(start, Duration::ZERO);
/// let millis = Duration::from_millis;
/// // Half of the first ten milliseconds, then a tenth of the next ten.
/// assert!(utilization.is_busy(start + millis(10), 1000, false, || millis(5)));
/// assert!(!utilization.is_busy(start + millis(20), 200, false, || millis(6)));
/// ```
#[derive(Debug)]
pub struct Utilization {
    /// The beginning of the present period, and the CPU time of the thread at that moment.
    since: Instant,
    cpu: Duration,
    /// The bytes of the present period.
    bytes: u64,
    /// The thread has waited in the present period.
    waited: bool,
    /// The CPU time and the bytes of the last period without waits.
    without_waits: (Duration, u64),
    busy: bool,
}

impl Utilization {
    /// Creates a measurement that begins at `now`, when the thread has used the CPU time `cpu`. The
    /// thread is not busy until the first period has ended.
    pub fn new(now: Instant, cpu: Duration) -> Utilization {
        Utilization { since: now, cpu, bytes: 0, waited: false, without_waits: (cpu, 0), busy: false }
    }

    /// Records a turn of the thread that has ended at `now`: its bytes, and whether the thread
    /// waited before it to let them accumulate. Returns whether the thread is busy: it has used two
    /// fifths of a processor in a period, and not less than a quarter in any period since. `cpu`
    /// returns the CPU time of the thread, and is called if a period has ended.
    pub fn is_busy(
        &mut self,
        now: Instant,
        bytes: u64,
        waited: bool,
        cpu: impl FnOnce() -> Duration,
    ) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.waited |= waited;
        let period = now.saturating_duration_since(self.since);
        if period >= PERIOD {
            let cpu = cpu();
            let spent = cpu.saturating_sub(self.cpu);
            let used = if self.waited { spent.max(self.cost_without_waits()) } else { spent };
            let percent = if self.busy { IDLE_PERCENT } else { BUSY_PERCENT };
            self.busy = used.saturating_mul(100) >= period.saturating_mul(percent);
            if !self.waited {
                self.without_waits = (spent, self.bytes);
            }
            (self.since, self.cpu, self.bytes, self.waited) = (now, cpu, 0, false);
        }
        self.busy
    }

    /// Returns the CPU time that the bytes of this period would have cost without waits.
    fn cost_without_waits(&self) -> Duration {
        let (spent, bytes) = self.without_waits;
        let nanos = spent.as_nanos().saturating_mul(self.bytes.into());
        let nanos = nanos.checked_div(bytes.into()).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Returns the CPU time that the calling thread has used so far, see clock_gettime(2). Returns zero
/// if the kernel does not tell.
pub fn current_thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn as long as a period.
    struct Turn {
        percent: u32,
        bytes: u64,
        waited: bool,
    }

    /// Measures `turns` equal turns. Returns whether the thread is busy at the end.
    fn run(utilization: &mut Utilization, turns: u32, turn: &Turn) -> bool {
        (0..turns).fold(utilization.busy, |_, _| {
            let (now, cpu) = (utilization.since + PERIOD, utilization.cpu + PERIOD * turn.percent / 100);
            utilization.is_busy(now, turn.bytes, turn.waited, || cpu)
        })
    }

    fn without_waits(percent: u32) -> Turn {
        Turn { percent, bytes: 1000, waited: false }
    }

    fn idle() -> Utilization {
        Utilization::new(Instant::now(), Duration::from_secs(7))
    }

    #[test]
    fn a_thread_is_busy_from_the_upper_limit_until_below_the_lower_one() {
        let mut utilization = idle();
        assert!(!run(&mut utilization, 100, &without_waits(BUSY_PERCENT - 1)));
        assert!(run(&mut utilization, 1, &without_waits(BUSY_PERCENT)));
        assert!(run(&mut utilization, 100, &without_waits(IDLE_PERCENT)));
        assert!(!run(&mut utilization, 1, &without_waits(IDLE_PERCENT - 1)));
        assert!(!run(&mut utilization, 100, &without_waits(BUSY_PERCENT - 1)));
    }

    #[test]
    fn a_thread_whose_waits_save_time_stays_busy_until_its_bytes_get_fewer() {
        let mut utilization = idle();
        run(&mut utilization, 1, &without_waits(50));
        // A tenth of the cost of the same bytes.
        assert!(run(&mut utilization, 100, &Turn { percent: 5, bytes: 1000, waited: true }));
        assert!(run(&mut utilization, 100, &Turn { percent: 3, bytes: 500, waited: true }));
        assert!(!run(&mut utilization, 1, &Turn { percent: 3, bytes: 499, waited: true }));
    }

    #[test]
    fn waits_without_any_bytes_leave_a_thread_idle() {
        let mut utilization = idle();
        assert!(!run(&mut utilization, 10, &Turn { percent: 1, bytes: 0, waited: true }));
        run(&mut utilization, 1, &Turn { percent: 50, bytes: 0, waited: false });
        assert!(!run(&mut utilization, 1, &Turn { percent: 1, bytes: u64::MAX, waited: true }));
    }

    #[test]
    fn a_period_includes_the_time_for_which_the_thread_slept() {
        let mut utilization = idle();
        assert!(run(&mut utilization, 1, &without_waits(100)));
        let (now, cpu) = (utilization.since + 100 * PERIOD, utilization.cpu + PERIOD);
        assert!(!utilization.is_busy(now, 1000, false, || cpu));
    }

    #[test]
    fn the_cpu_clock_is_read_once_in_a_period() {
        let (mut utilization, start) = (idle(), Instant::now());
        let mut reads = 0;
        for micros in 0..100_000 {
            utilization.is_busy(start + Duration::from_micros(micros), 1, false, || {
                reads += 1;
                Duration::ZERO
            });
        }
        assert!((19..=20).contains(&reads), "{reads}");
    }

    #[test]
    fn the_clock_of_this_thread_counts_its_work() {
        let before = current_thread_cpu();
        while current_thread_cpu() == before {
            std::hint::spin_loop();
        }
        assert!(current_thread_cpu() > before);
    }
}
