//! Which bytes of a stream are passed on now: whole lines, and a part of one only for a reason.
//! Pure.

use std::time::{Duration, Instant};

use memchr::{memchr, memrchr};

/// When a part of a line is passed on without its end, so that prompts and progress bars appear.
///
/// A part is passed on
/// * when it reaches `max_line` bytes;
/// * when its stream was quiet for `max_time`: no byte came, and none was held back by a full ring.
///   A part of 4,096 bytes (`PIPE_BUF`, pipe(7)) or more waits ten times as long, because its rank
///   may be in the middle of a write;
/// * when it has waited for ten times `max_time` although it grows, as a row of dots does.
///
/// Both times count only while the printer runs and can write. A pause of the printer, because its
/// output blocks, its process is stopped or its thread is not scheduled, counts as one short step,
/// and the quiet time of every stream starts anew after it: ranks that were held back or stopped as
/// well have not run since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The longest line that is written in one piece, in bytes.
    pub max_line: usize,
    /// How long the stream of a part of a line must be quiet.
    pub max_time: Duration,
}

impl Default for Patience {
    /// 64 KiB, a tenth of a second.
    fn default() -> Patience {
        Patience { max_line: 64 << 10, max_time: Duration::from_millis(100) }
    }
}

/// What a pipe takes whole or not at all (`PIPE_BUF`, pipe(7)).
const PIPE_BUF: usize = 4096;
/// How many times `max_time` a part waits that has `PIPE_BUF` bytes or grows.
const LONG_WAIT: u32 = 10;
/// Looks at a part during `max_time`: what happens between two of them counts as one step of time.
const LOOKS: u32 = 4;
/// The longest time between two looks at a part.
const MAX_STEP: Duration = Duration::from_millis(250);
/// Steps after which a look is so late that the printer has paused.
const PAUSE: u32 = 2;

impl Patience {
    /// How long the stream of a part of `len` bytes must be quiet.
    fn quiet_time(&self, len: usize) -> Duration {
        if len < PIPE_BUF { self.max_time } else { self.longest() }
    }

    /// How long a part that grows waits.
    fn longest(&self) -> Duration {
        self.max_time.saturating_mul(LONG_WAIT)
    }
}

/// The clock of a printer: it advances only while the printer looks at its streams, by short steps.
#[derive(Debug)]
pub(crate) struct Attention {
    /// Time since the printer began, without its pauses.
    now: Duration,
    /// When the printer went on after its last pause.
    resumed: Duration,
    looked: Instant,
    step: Duration,
}

impl Attention {
    /// Starts the clock at `looked`, for parts that wait by `patience`.
    pub fn new(patience: &Patience, looked: Instant) -> Attention {
        let step = (patience.max_time / LOOKS).min(MAX_STEP);
        Attention { now: Duration::ZERO, resumed: Duration::ZERO, looked, step }
    }

    /// Notes that the printer looks at its streams at `at`.
    pub fn look(&mut self, at: Instant) {
        let elapsed = at.saturating_duration_since(self.looked);
        self.looked = at;
        self.now = self.now.saturating_add(elapsed.min(self.step));
        if elapsed > self.step.saturating_mul(PAUSE) {
            self.resumed = self.now;
        }
    }

    /// Returns when to look at a part again that has to wait. `None` is never.
    pub fn next_look(&self) -> Option<Instant> {
        self.looked.checked_add(self.step)
    }
}

/// The wait of a part of a line for the rest, on the clock of an [`Attention`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// When the part was seen first.
    began: Duration,
    /// When its last byte was seen first.
    grew: Duration,
    len: usize,
}

impl Wait {
    /// Begins the wait of a part of `len` bytes.
    pub fn begin(len: usize, clock: &Attention) -> Wait {
        Wait { began: clock.now, grew: clock.now, len }
    }

    /// Notes that the part has `len` bytes now; `is_stalled` if its stream has to wait for a
    /// reader.
    pub fn go_on(&mut self, len: usize, is_stalled: bool, clock: &Attention) {
        if is_stalled {
            *self = Wait::begin(len, clock);
        } else if len != self.len {
            (self.grew, self.len) = (clock.now, len);
        }
    }

    /// Whether the part is to be passed on.
    pub fn is_over(&self, patience: &Patience, clock: &Attention) -> bool {
        let quiet = clock.now.saturating_sub(self.grew.max(clock.resumed));
        let waited = clock.now.saturating_sub(self.began);
        quiet >= patience.quiet_time(self.len) || waited >= patience.longest()
    }
}

/// What is to be done with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// So many are passed on.
    pub pass: usize,
    /// And of the others, so many begin lines of which the end is not there.
    pub part: usize,
}

/// Decides about `bytes` behind `before` bytes of the same line that wait already. At most about
/// `most` are passed on at once, but a line is not cut for that.
pub(crate) fn cut(bytes: &[u8], before: usize, most: usize, max_line: usize) -> Cut {
    let window = bytes.get(..most).unwrap_or(bytes);
    let behind = |at: usize| at.saturating_add(1);
    let whole = memrchr(b'\n', window).map(behind).or_else(|| {
        let rest = bytes.get(window.len()..)?;
        memchr(b'\n', rest).map(|at| behind(at).saturating_add(window.len()))
    });
    match whole {
        Some(pass) if window.len() < bytes.len() => Cut { pass, part: 0 },
        Some(pass) => {
            let part = bytes.len().saturating_sub(pass);
            if part >= max_line { Cut { pass: bytes.len(), part: 0 } } else { Cut { pass, part } }
        }
        None if bytes.len().saturating_add(before) >= max_line => Cut { pass: bytes.len(), part: 0 },
        None => Cut { pass: 0, part: bytes.len() },
    }
}

/// The part of a stream's line that is not passed on yet: it waits in the ring, or here if it can't
/// stay there.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Taken out of the ring.
    pub bytes: Vec<u8>,
    /// How many bytes the source had produced before them.
    pub offset: u64,
    /// When the first of them was read.
    pub time: Option<u64>,
    /// How long a part of a line, here or in the ring, has waited for the rest.
    pub wait: Option<Wait>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], before: usize) -> (usize, usize) {
        let Cut { pass, part } = cut(bytes, before, 16, 32);
        (pass, part)
    }

    #[test]
    fn whole_lines_are_passed_on_and_parts_of_lines_wait_up_to_the_longest() {
        assert_eq!(of(b"one\ntwo\n", 0), (8, 0));
        assert_eq!(of(b"one\ntw", 0), (4, 2));
        assert_eq!(of(b"one", 0), (0, 3));
        assert_eq!(of(b"one", 28), (0, 3));
        assert_eq!(of(b"one", 29), (3, 0), "too long with what came before");
        assert_eq!(of(b"one\n", 29), (4, 0));
        assert_eq!(of(b"one\ntw", 29), (4, 2), "the long line is over");
        assert_eq!(of(&[b'x'; 31], 0), (0, 31));
        assert_eq!(of(&[b'x'; 32], 0), (32, 0));
    }

    const MILLI: Duration = Duration::from_millis(1);

    /// A printer with a part of a line, seen at each of its looks.
    struct Rig {
        patience: Patience,
        clock: Attention,
        wait: Wait,
        len: usize,
        is_stalled: bool,
    }

    impl Rig {
        fn new(len: usize) -> Rig {
            let patience = Patience::default();
            let clock = Attention::new(&patience, Instant::now());
            let wait = Wait::begin(len, &clock);
            Rig { patience, clock, wait, len, is_stalled: false }
        }

        /// Looks at the part after `time`; whether it is passed on.
        fn look_after(&mut self, time: Duration) -> bool {
            let at = self.clock.looked.checked_add(time);
            at.into_iter().for_each(|at| self.clock.look(at));
            self.wait.go_on(self.len, self.is_stalled, &self.clock);
            self.wait.is_over(&self.patience, &self.clock)
        }

        /// Lets the printer look again and again, `change` the part before each look, and gives the
        /// time after which it was passed on.
        fn passed_after(&mut self, mut change: impl FnMut(&mut Rig)) -> Duration {
            let mut time = Duration::ZERO;
            while time < Duration::from_secs(60) {
                change(self);
                time += 20 * MILLI;
                if self.look_after(20 * MILLI) {
                    return time;
                }
            }
            Duration::MAX
        }
    }

    #[test]
    fn a_part_is_passed_on_when_its_stream_was_quiet_for_the_time() {
        assert_eq!(Rig::new(1).passed_after(|_| {}), 100 * MILLI);
        assert_eq!(Rig::new(PIPE_BUF - 1).passed_after(|_| {}), 100 * MILLI);
    }

    #[test]
    fn a_part_that_its_rank_may_be_in_the_middle_of_writing_waits_longer_than_a_prompt() {
        assert_eq!(Rig::new(PIPE_BUF).passed_after(|_| {}), 1000 * MILLI);
        assert_eq!(Rig::new(60_000).passed_after(|_| {}), 1000 * MILLI);
    }

    #[test]
    fn a_part_that_grows_is_not_quiet_but_waits_for_a_bounded_time() {
        let mut rig = Rig::new(1);
        assert!(!rig.look_after(20 * MILLI) && !rig.look_after(20 * MILLI));
        rig.len += 1;
        assert_eq!(rig.passed_after(|_| {}), 120 * MILLI, "it grew at the first of these looks");
        assert_eq!(Rig::new(1).passed_after(|rig| rig.len += 1), 1000 * MILLI);
    }

    #[test]
    fn a_pause_of_the_printer_is_not_waiting_and_the_quiet_time_starts_anew_after_it() {
        let mut rig = Rig::new(1);
        assert!(!rig.look_after(20 * MILLI) && !rig.look_after(20 * MILLI));
        assert!(!rig.look_after(Duration::from_secs(3600)));
        assert_eq!(rig.passed_after(|_| {}), 100 * MILLI);
    }

    #[test]
    fn a_printer_that_pauses_again_and_again_passes_a_part_on_in_the_end() {
        let mut rig = Rig::new(1);
        let looks = (1..1000).take_while(|_| !rig.look_after(Duration::from_secs(1))).count();
        assert_eq!(looks, 39, "each second counts as a step of 25 ms, up to ten times the time");
    }

    #[test]
    fn a_part_of_a_stream_that_waits_for_a_reader_is_not_quiet() {
        let mut rig = Rig::new(1);
        rig.is_stalled = true;
        let mut looks = 0;
        let passed = rig.passed_after(|rig| {
            looks += 1;
            rig.is_stalled = looks <= 500;
        });
        assert_eq!(passed, (500 * 20 + 100) * MILLI);
    }

    #[test]
    fn without_a_time_no_part_waits() {
        let patience = Patience { max_time: Duration::ZERO, ..Patience::default() };
        let clock = Attention::new(&patience, Instant::now());
        assert!(Wait::begin(1, &clock).is_over(&patience, &clock));
    }

    #[test]
    fn what_is_passed_on_at_once_is_about_as_much_as_was_asked_for() {
        let lines = b"a line\n".repeat(10);
        assert_eq!(of(&lines, 0), (14, 0), "more comes with the next look");
        let long = [&[b'x'; 20][..], b"\nrest"].concat();
        assert_eq!(of(&long, 0), (21, 0), "no line is cut for it");
    }
}
