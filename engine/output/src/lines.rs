//! The decision which bytes of a stream are written now: whole lines, and a part of a line only for
//! a reason. Pure.

use std::time::{Duration, Instant};

use memchr::{memchr, memrchr};

/// The limits beyond which a part of a line is written without its end, so that prompts and
/// progress bars appear.
///
/// A part of a line is written
/// * when it reaches `max_line` bytes;
/// * when its stream was quiet for `max_time`: no byte arrived, and none was held back by a full
///   ring. A part of 4,096 bytes (`PIPE_BUF`, pipe(7)) or more waits ten times as long, because its
///   rank may be in the middle of a write;
/// * when it has waited for ten times `max_time` and still grows, as a row of dots does.
///
/// Both times count only while the printer runs and can write. A pause of the printer, because its
/// output blocks, its process is stopped or its thread is not scheduled, counts as one short step.
/// The quiet time of every stream starts anew after a pause, because ranks that were held back or
/// stopped as well have not run since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTimeout {
    /// The longest line that is written in one piece, in bytes. A longer line is written in parts.
    pub max_line: usize,
    /// The time for which the stream must be quiet before a part of its line is written.
    pub max_time: Duration,
}

impl Default for FlushTimeout {
    /// Returns 64 KiB and 0.1 seconds.
    fn default() -> FlushTimeout {
        FlushTimeout { max_line: 64 << 10, max_time: Duration::from_millis(100) }
    }
}

/// The largest write that a pipe takes whole or not at all (`PIPE_BUF`, pipe(7)).
const PIPE_BUF: usize = 4096;
/// The factor by which a part waits longer than `max_time` if it has `PIPE_BUF` bytes or grows.
const LONG_WAIT: u32 = 10;
/// The number of checks of a part during `max_time`. What happens between two checks counts as one
/// step of time.
const CHECKS: u32 = 4;
/// The longest time between two checks of a part.
const MAX_STEP: Duration = Duration::from_millis(250);
/// The number of steps after which a check is so late that the printer must have paused.
const PAUSE_STEPS: u32 = 2;

impl FlushTimeout {
    /// Returns how long the stream of a part of `len` bytes must be quiet.
    pub(crate) fn quiet_time(&self, len: usize) -> Duration {
        if len < PIPE_BUF { self.max_time } else { self.longest() }
    }

    /// Returns how long a part that grows waits.
    pub(crate) fn longest(&self) -> Duration {
        self.max_time.saturating_mul(LONG_WAIT)
    }
}

/// The clock of a printer. It advances only while the printer checks its streams, in short steps.
#[derive(Debug)]
pub struct FlushClock {
    /// The time since the printer began, without its pauses.
    now: Duration,
    /// The time at which the printer continued after its last pause.
    resumed: Duration,
    /// The real time of the last check.
    checked: Instant,
    /// The longest time that counts between two checks.
    step: Duration,
}

impl FlushClock {
    /// Starts the clock at `checked`, for parts that wait for `timeout`.
    pub fn new(timeout: &FlushTimeout, checked: Instant) -> FlushClock {
        let step = (timeout.max_time / CHECKS).min(MAX_STEP);
        FlushClock { now: Duration::ZERO, resumed: Duration::ZERO, checked, step }
    }

    /// Records that the printer checks its streams at the real time `now`.
    pub fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.checked);
        self.checked = now;
        self.now = self.now.saturating_add(elapsed.min(self.step));
        if elapsed > self.step.saturating_mul(PAUSE_STEPS) {
            self.resumed = self.now;
        }
    }

    /// Returns when to check a waiting part again, or `None` for never.
    pub fn next_check(&self) -> Option<Instant> {
        self.checked.checked_add(self.step)
    }
}

/// The wait of a part of a line for its rest, measured by a [`FlushClock`].
#[derive(Clone, Copy, Debug)]
pub struct PartWait {
    /// When the part was first seen.
    began: Duration,
    /// When its last byte was first seen.
    grew: Duration,
    len: usize,
}

impl PartWait {
    /// Begins the wait of a part of `len` bytes.
    pub fn begin(len: usize, clock: &FlushClock) -> PartWait {
        PartWait { began: clock.now, grew: clock.now, len }
    }

    /// Records that the part now has `len` bytes. `is_stalled` specifies whether its stream has to
    /// wait for a reader, which restarts the wait.
    pub fn update(&mut self, len: usize, is_stalled: bool, clock: &FlushClock) {
        if is_stalled {
            *self = PartWait::begin(len, clock);
        } else if len != self.len {
            (self.grew, self.len) = (clock.now, len);
        }
    }

    /// Returns whether the part is to be written without its end.
    pub fn has_expired(&self, timeout: &FlushTimeout, clock: &FlushClock) -> bool {
        let quiet = clock.now.saturating_sub(self.grew.max(clock.resumed));
        let waited = clock.now.saturating_sub(self.began);
        quiet >= timeout.quiet_time(self.len) || waited >= timeout.longest()
    }
}

/// The division of a stream's bytes into those to be written and the beginning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The number of bytes to be written now.
    pub ready: usize,
    /// The number of bytes after them that begin a line without its end.
    pub part: usize,
}

/// Divides `bytes`, which follow `before` bytes of the same line that already wait. `ready` is
/// about `limit` at most, but no line is cut for that.
pub(crate) fn cut(bytes: &[u8], before: usize, limit: usize, max_line: usize) -> Cut {
    let window = bytes.get(..limit).unwrap_or(bytes);
    let after = |index: usize| index.saturating_add(1);
    let lines = memrchr(b'\n', window).map(after).or_else(|| {
        let rest = bytes.get(window.len()..)?;
        memchr(b'\n', rest).map(|index| after(index).saturating_add(window.len()))
    });
    match lines {
        Some(ready) if window.len() < bytes.len() => Cut { ready, part: 0 },
        Some(ready) => {
            let part = bytes.len().saturating_sub(ready);
            if part >= max_line { Cut { ready: bytes.len(), part: 0 } } else { Cut { ready, part } }
        }
        None if bytes.len().saturating_add(before) >= max_line => Cut { ready: bytes.len(), part: 0 },
        None => Cut { ready: 0, part: bytes.len() },
    }
}

/// The part of a stream's line that was not written yet. It waits in the ring, or here if it can't
/// stay there.
#[derive(Debug, Default)]
pub(crate) struct PartialLine {
    /// The bytes that were copied out of the ring.
    pub bytes: Vec<u8>,
    /// The number of bytes that the source had produced before them.
    pub offset: u64,
    /// When the first of them was read.
    pub time: Option<u64>,
    /// The wait of the part, here or in the ring, for its rest.
    pub wait: Option<PartWait>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_16(bytes: &[u8], before: usize) -> (usize, usize) {
        let Cut { ready, part } = cut(bytes, before, 16, 32);
        (ready, part)
    }

    #[test]
    fn whole_lines_are_written_and_parts_wait_up_to_the_longest_line() {
        assert_eq!(cut_16(b"one\ntwo\n", 0), (8, 0));
        assert_eq!(cut_16(b"one\ntw", 0), (4, 2));
        assert_eq!(cut_16(b"one", 0), (0, 3));
        assert_eq!(cut_16(b"one", 28), (0, 3));
        assert_eq!(cut_16(b"one", 29), (3, 0), "too long together with the bytes before");
        assert_eq!(cut_16(b"one\n", 29), (4, 0));
        assert_eq!(cut_16(b"one\ntw", 29), (4, 2), "the long line ends");
        assert_eq!(cut_16(&[b'x'; 31], 0), (0, 31));
        assert_eq!(cut_16(&[b'x'; 32], 0), (32, 0));
    }

    const MILLI: Duration = Duration::from_millis(1);

    /// A printer with a part of a line, checked at intervals.
    struct Rig {
        timeout: FlushTimeout,
        clock: FlushClock,
        wait: PartWait,
        len: usize,
        is_stalled: bool,
    }

    impl Rig {
        fn new(len: usize) -> Rig {
            let timeout = FlushTimeout::default();
            let clock = FlushClock::new(&timeout, Instant::now());
            let wait = PartWait::begin(len, &clock);
            Rig { timeout, clock, wait, len, is_stalled: false }
        }

        /// Checks the part after `time`; returns whether it is written.
        fn check_after(&mut self, time: Duration) -> bool {
            let now = self.clock.checked.checked_add(time);
            now.into_iter().for_each(|now| self.clock.advance(now));
            self.wait.update(self.len, self.is_stalled, &self.clock);
            self.wait.has_expired(&self.timeout, &self.clock)
        }

        /// Checks the part repeatedly, calling `change` before each check. Returns the time after
        /// which it is written.
        fn written_after(&mut self, mut change: impl FnMut(&mut Rig)) -> Duration {
            let mut time = Duration::ZERO;
            while time < Duration::from_secs(60) {
                change(self);
                time += 20 * MILLI;
                if self.check_after(20 * MILLI) {
                    return time;
                }
            }
            Duration::MAX
        }
    }

    #[test]
    fn a_part_is_written_when_its_stream_was_quiet_for_the_time() {
        assert_eq!(Rig::new(1).written_after(|_| {}), 100 * MILLI);
        assert_eq!(Rig::new(PIPE_BUF - 1).written_after(|_| {}), 100 * MILLI);
    }

    #[test]
    fn a_part_of_a_possibly_unfinished_write_waits_longer_than_a_prompt() {
        assert_eq!(Rig::new(PIPE_BUF).written_after(|_| {}), 1000 * MILLI);
        assert_eq!(Rig::new(60_000).written_after(|_| {}), 1000 * MILLI);
    }

    #[test]
    fn a_part_that_grows_is_not_quiet_but_waits_for_a_bounded_time() {
        let mut rig = Rig::new(1);
        assert!(!rig.check_after(20 * MILLI) && !rig.check_after(20 * MILLI));
        rig.len += 1;
        assert_eq!(rig.written_after(|_| {}), 120 * MILLI, "the first of these checks sees the growth");
        assert_eq!(Rig::new(1).written_after(|rig| rig.len += 1), 1000 * MILLI);
    }

    #[test]
    fn a_pause_of_the_printer_is_not_waiting_and_restarts_the_quiet_time() {
        let mut rig = Rig::new(1);
        assert!(!rig.check_after(20 * MILLI) && !rig.check_after(20 * MILLI));
        assert!(!rig.check_after(Duration::from_secs(3600)));
        assert_eq!(rig.written_after(|_| {}), 100 * MILLI);
    }

    #[test]
    fn a_printer_that_pauses_repeatedly_still_writes_a_part_eventually() {
        let mut rig = Rig::new(1);
        let checks = (1..1000).take_while(|_| !rig.check_after(Duration::from_secs(1))).count();
        assert_eq!(checks, 39, "each second counts as a step of 25 ms, up to ten times the time");
    }

    #[test]
    fn a_part_of_a_stream_that_waits_for_a_reader_is_not_quiet() {
        let mut rig = Rig::new(1);
        rig.is_stalled = true;
        let mut checks = 0;
        let written = rig.written_after(|rig| {
            checks += 1;
            rig.is_stalled = checks <= 500;
        });
        assert_eq!(written, (500 * 20 + 100) * MILLI);
    }

    #[test]
    fn no_part_waits_if_the_time_is_zero() {
        let timeout = FlushTimeout { max_time: Duration::ZERO, ..FlushTimeout::default() };
        let clock = FlushClock::new(&timeout, Instant::now());
        assert!(PartWait::begin(1, &clock).has_expired(&timeout, &clock));
    }

    #[test]
    fn about_as_much_is_written_in_one_piece_as_the_limit_permits() {
        let lines = b"a line\n".repeat(10);
        assert_eq!(cut_16(&lines, 0), (14, 0), "the rest follows with the next check");
        let long = [&[b'x'; 20][..], b"\nrest"].concat();
        assert_eq!(cut_16(&long, 0), (21, 0), "no line is cut for the limit");
    }
}
