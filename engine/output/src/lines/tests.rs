#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_proto::{Nspace, Proc, Rank};

use super::*;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A stream whose part waits in its ring, and the clock of its printer.
struct Rig {
    timeout: FlushTimeout,
    hold: Hold,
    audience: Audience,
    channel: Channel,
    last: LastRead,
    is_stalled: bool,
    source: Proc,
    clock: FlushClock,
    holder: LineHolder,
    bytes: Vec<u8>,
}

impl Rig {
    /// A part whose last read brought `len` bytes.
    fn new(len: u64, interaction: Interaction, audience: Audience) -> Rig {
        let timeout = FlushTimeout::default();
        Rig {
            timeout,
            hold: Hold::Lines,
            audience,
            channel: Channel::Stdout,
            last: LastRead { len, interaction, is_answer: false },
            is_stalled: false,
            source: Proc::new(Nspace::new("job").unwrap(), Rank(0)),
            clock: FlushClock::new(&timeout, Instant::now()),
            holder: LineHolder::default(),
            bytes: b"part".to_vec(),
        }
    }

    fn with_time(max_time: Duration) -> Rig {
        let mut rig = Rig::new(4, Interaction::None, Audience::Program);
        rig.timeout.max_time = Some(max_time);
        rig.clock = FlushClock::new(&rig.timeout, Instant::now());
        rig
    }

    fn decide(&mut self) -> Decision {
        let Rig { timeout, hold, audience, channel, last, is_stalled, source, clock, holder, bytes } = self;
        let origin = Origin { handler: 0, source, channel: *channel, logged: false };
        let rules = HoldRules { hold: *hold, timeout, clock, audience: *audience, origin };
        let found = FoundBytes {
            bytes,
            limit: 1 << 20,
            is_last: false,
            has_more: false,
            max_stay: 1 << 20,
            is_stalled: *is_stalled,
        };
        holder.decide(&found, &rules, || Some(*last))
    }

    /// Decides on the part after `time`; returns the number of bytes that are written.
    fn check_after(&mut self, time: Duration) -> usize {
        let now = self.clock.checked.checked_add(time);
        now.into_iter().for_each(|now| self.clock.advance(now));
        let write = self.decide().write;
        self.bytes.drain(..write);
        write
    }

    /// Decides repeatedly, calling `change` before each check. Returns the time after which
    /// something is written; `None` if that is more than a minute.
    fn written_after(&mut self, mut change: impl FnMut(&mut Rig)) -> Option<Duration> {
        self.check_after(Duration::ZERO);
        let mut times = (1..=3000).map(|check| 20 * MILLI * check);
        times.find(|_| {
            change(self);
            self.check_after(20 * MILLI) > 0
        })
    }
}

fn wait(len: u64, interaction: Interaction, audience: Audience) -> Option<Duration> {
    Rig::new(len, interaction, audience).written_after(|_| {})
}

#[test]
fn the_end_of_a_flushed_buffer_waits_for_its_newline_and_other_parts_for_a_second() {
    for audience in [Audience::Nobody, Audience::Program, Audience::Person] {
        for len in [1, 511] {
            assert_eq!(wait(len, Interaction::None, audience), Some(SECOND), "{len} {audience:?}");
        }
        for len in [512, 1000, 4096, 8190, 65536] {
            assert_eq!(wait(len, Interaction::None, audience), None, "{len} {audience:?}");
        }
    }
}

#[test]
fn a_part_on_stderr_waits_for_a_second_however_long_it_is() {
    for channel in [Channel::Stderr, Channel::Stddiag] {
        let mut rig = Rig::new(4096, Interaction::None, Audience::Program);
        rig.channel = channel;
        assert_eq!(rig.written_after(|_| {}), Some(SECOND));
    }
}

#[test]
fn a_part_of_a_rank_that_may_be_answered_never_waits_for_ever() {
    for (interaction, audience) in [
        (Interaction::Piped, Audience::Program),
        (Interaction::Piped, Audience::Person),
        (Interaction::Typed, Audience::Program),
    ] {
        assert_eq!(wait(100, interaction, audience), Some(SECOND));
        assert_eq!(wait(5000, interaction, audience), Some(10 * SECOND), "{interaction:?} {audience:?}");
        let mut answer = Rig::new(5000, interaction, audience);
        answer.last.is_answer = true;
        assert_eq!(answer.written_after(|_| {}), Some(SECOND));
    }
    assert_eq!(wait(5000, Interaction::Piped, Audience::Nobody), None, "a file answers nothing");
    let mut asked_later = Rig::new(5000, Interaction::Piped, Audience::Program);
    assert_eq!(asked_later.check_after(3 * SECOND), 0);
    asked_later.last.is_answer = true;
    assert_eq!(asked_later.written_after(|_| {}), Some(SECOND), "stdin was given after the part");
}

#[test]
fn a_prompt_at_a_terminal_is_early_whatever_was_written_before_it() {
    for len in [1, 512, 700, 1024, 5000, 5120] {
        assert_eq!(wait(len, Interaction::Typed, Audience::Person), Some(100 * MILLI), "{len}");
    }
    assert_eq!(wait(4096, Interaction::Typed, Audience::Person), Some(10 * SECOND));
    assert_eq!(wait(3, Interaction::Unbuffered, Audience::Program), Some(100 * MILLI));
    assert_eq!(wait(4096, Interaction::Unbuffered, Audience::Nobody), Some(100 * MILLI));
}

#[test]
fn one_time_that_is_given_replaces_all_waits() {
    for len in [4, 4096] {
        let mut rig = Rig::with_time(300 * MILLI);
        rig.last.len = len;
        assert_eq!(rig.written_after(|_| {}), Some(300 * MILLI));
    }
    assert_eq!(Rig::with_time(Duration::ZERO).check_after(Duration::ZERO), 4);
}

#[test]
fn a_part_that_grows_is_not_quiet_but_waits_for_a_bounded_time() {
    let mut rig = Rig::with_time(100 * MILLI);
    rig.check_after(20 * MILLI);
    rig.bytes.push(b'.');
    assert_eq!(rig.written_after(|_| {}), Some(100 * MILLI));
    for mut rig in [Rig::with_time(100 * MILLI), Rig::new(1, Interaction::None, Audience::Person)] {
        assert_eq!(rig.written_after(|rig| rig.bytes.push(b'.')), Some(SECOND));
    }
}

#[test]
fn a_small_read_behind_a_long_wait_for_a_buffer_begins_a_wait_of_its_own() {
    let mut rig = Rig::new(4096, Interaction::None, Audience::Program);
    for _ in 0..500 {
        assert_eq!(rig.check_after(20 * MILLI), 0);
    }
    rig.bytes.push(b'x');
    rig.last.len = 1;
    assert_eq!(rig.written_after(|_| {}), Some(SECOND));
}

#[test]
fn a_part_to_which_buffers_and_small_reads_are_added_in_turn_is_written_in_a_second() {
    let mut rig = Rig::new(1, Interaction::None, Audience::Program);
    let mut large = false;
    let written = rig.written_after(|rig| {
        rig.bytes.push(b'.');
        large = !large;
        rig.last.len = if large { 4096 } else { 1 };
    });
    assert_eq!(written, Some(SECOND));
}

#[test]
fn only_a_part_that_continues_the_open_line_is_written_at_once() {
    for (bytes, write) in [(&b"more"[..], 4), (b"end\nnext", 4)] {
        let mut rig = Rig::new(4096, Interaction::None, Audience::Program);
        rig.hold = Hold::Continued;
        rig.bytes = bytes.to_vec();
        assert_eq!(rig.decide().write, write);
    }
}

#[test]
fn a_pause_of_the_printer_is_not_waiting_and_restarts_the_quiet_time() {
    let mut rig = Rig::with_time(100 * MILLI);
    rig.check_after(20 * MILLI);
    assert_eq!(rig.check_after(20 * MILLI), 0);
    assert_eq!(rig.check_after(Duration::from_secs(3600)), 0);
    assert_eq!(rig.written_after(|_| {}), Some(100 * MILLI));
}

#[test]
fn a_printer_that_pauses_repeatedly_still_writes_a_part_eventually() {
    let mut rig = Rig::with_time(100 * MILLI);
    rig.check_after(Duration::ZERO);
    let checks = (1..1000).take_while(|_| rig.check_after(SECOND) == 0).count();
    assert_eq!(checks, 39, "each second counts as a step of 25 ms, up to a second in all");
}

#[test]
fn a_part_of_a_stream_that_waits_for_a_reader_is_not_quiet() {
    let mut rig = Rig::with_time(100 * MILLI);
    rig.is_stalled = true;
    let mut checks = 0;
    let written = rig.written_after(|rig| {
        checks += 1;
        rig.is_stalled = checks <= 500;
    });
    assert_eq!(written, Some((500 * 20 + 100) * MILLI));
}

#[test]
fn whole_lines_are_written_and_parts_wait_up_to_the_longest_line() {
    let decide = |before: usize, bytes: &str| {
        let mut rig = Rig::new(4, Interaction::None, Audience::Program);
        rig.timeout.max_line = 32;
        rig.holder.bytes = vec![b'x'; before];
        rig.bytes = bytes.into();
        let Decision { write, rest } = rig.decide();
        (write, rest)
    };
    assert_eq!(decide(0, "one\ntwo\n"), (8, Rest::Next));
    assert_eq!(decide(0, "one\ntw"), (4, Rest::Stay));
    assert_eq!(decide(0, "one"), (0, Rest::Stay));
    assert_eq!(decide(28, "one"), (0, Rest::Stay));
    assert_eq!(decide(29, "one"), (3, Rest::Next), "too long together with the bytes before");
    assert_eq!(decide(29, "one\n"), (4, Rest::Next));
    assert_eq!(decide(29, "one\ntw"), (4, Rest::Stay), "the long line ends");
    assert_eq!(decide(0, &"x".repeat(31)), (0, Rest::Stay));
    assert_eq!(decide(0, &"x".repeat(32)), (32, Rest::Next));
}

#[test]
fn a_part_that_waits_for_long_is_copied_so_that_the_ring_is_consumed() {
    for (len, later) in [(4, Rest::Stay), (4096, Rest::Copy)] {
        let mut rig = Rig::new(len, Interaction::None, Audience::Program);
        assert_eq!(rig.decide(), Decision { write: 0, rest: Rest::Stay });
        assert!(rig.holder.is_timed());
        assert_eq!(rig.check_after(20 * MILLI), 0);
        assert_eq!(rig.decide(), Decision { write: 0, rest: later });
        assert_eq!(rig.holder.is_timed(), later == Rest::Stay);
    }
}

#[test]
fn about_as_much_is_written_in_one_piece_as_the_limit_permits() {
    let lines = b"a line\n".repeat(10);
    assert_eq!(lines_end(&lines, 16), 14, "the rest follows with the next check");
    let long = [&[b'x'; 20][..], b"\nrest"].concat();
    assert_eq!(lines_end(&long, 16), 21, "no line is cut for the limit");
}

#[test]
fn a_character_is_not_divided_by_the_longest_line_or_a_wait() {
    let euros = "\u{20ac}".repeat(20).into_bytes();
    for max_line in 10..=20 {
        let mut rig = Rig::new(4, Interaction::None, Audience::Program);
        rig.timeout.max_line = max_line;
        rig.bytes = euros[..max_line].to_vec();
        assert_eq!(rig.decide().write, max_line / 3 * 3, "{max_line}");
        let held = max_line - 1;
        rig.holder.copy(&euros[..held], 0, None);
        rig.bytes = euros[held..max_line].to_vec();
        let expected = if max_line % 3 == 2 { 0 } else { usize::from(max_line % 3 == 0) };
        assert_eq!(rig.decide().write, expected, "{max_line} of which one is in the ring");
    }
    for hold in [Hold::Lines, Hold::Characters] {
        let mut rig = Rig::with_time(100 * MILLI);
        rig.hold = hold;
        rig.bytes = [b"prompt", &euros[..2]].concat();
        while rig.bytes.len() > 2 {
            rig.check_after(20 * MILLI);
        }
        assert_eq!(rig.written_after(|_| {}), Some(SECOND), "its rest does not arrive");
    }
}

#[test]
fn a_lone_character_behind_copied_bytes_waits_for_a_limited_time() {
    for len in [4, 4096] {
        let mut rig = Rig::new(len, Interaction::None, Audience::Program);
        rig.holder.copy(b"part", 0, None);
        rig.bytes = b"\xe9".to_vec();
        let expected = (len < MIN_BUFFER).then_some(SECOND);
        assert_eq!(rig.written_after(|_| {}), expected);
    }
    let mut rig = Rig::with_time(Duration::ZERO);
    rig.bytes = b"caf\xe9".to_vec();
    assert_eq!(rig.check_after(Duration::ZERO), 3);
    assert!(rig.written_after(|_| {}).is_some(), "the clock advances");
}

#[test]
fn only_bytes_that_begin_a_character_count_as_one() {
    let incomplete = |bytes: &[u8]| {
        let counts = (0..=bytes.len()).map(|split| {
            let (before, part) = bytes.split_at(split);
            incomplete_character(before, part)
        });
        let mut counts: Vec<_> = counts.collect();
        counts.dedup();
        assert_eq!(counts.len(), 1, "{bytes:x?} {counts:?}");
        counts[0]
    };
    assert_eq!(incomplete(b""), 0);
    assert_eq!(incomplete(b"abc"), 0);
    assert_eq!(incomplete("a\u{20ac}".as_bytes()), 0);
    assert_eq!(incomplete(b"a\xc3"), 1);
    assert_eq!(incomplete(b"a\xe2\x82"), 2);
    assert_eq!(incomplete(b"\xf0\x9f\x98"), 3);
    for binary in [&b"a\x80"[..], b"\xff", b"\xc0", b"\xe0\x80", b"\x82\xac", b"\xf0\x9f\x98\xff"] {
        assert_eq!(incomplete(binary), 0, "{binary:x?}");
    }
}
