//! The decision which bytes of a stream are written now: whole lines, and a part of a line only for
//! a reason. Pure. Printers, the printer of a C program and the agents of nodes decide by it.

use std::time::{Duration, Instant};

use iof_proto::Channel;
use iof_tool::{Interaction, LastRead, Origin};
use memchr::{memchr, memrchr};

use crate::output::Audience;

/// The limits beyond which a part of a line is written without its end, so that prompts and
/// progress bars appear.
///
/// A part of a line is written when it reaches `max_line` bytes, or when its stream was quiet for
/// some time: no byte arrived, and none was held back by a full ring. A part that grows all the
/// time, as a row of dots does, is written after 1 second, or after that time if it is longer. The
/// time is `max_time`. Without it, the time is
/// * without limit for the end of a flushed buffer: a part on stdout whose last read brought 512
///   bytes or more. Most programs write to pipes in such buffers, which end anywhere. If a program
///   or a person may [answer](Interaction) the rank, and the output is not a file, it is 10 seconds,
///   and 1 second if the part may itself be an [answer](LastRead::is_answer);
/// * 1 second for all other parts.
///
/// If a person may answer and the output is a terminal, only reads of a multiple of 4,096 bytes
/// count as flushed buffers, and other parts wait for 0.1 seconds. So do parts of
/// streams that are [delivered or come from a terminal](Interaction::Unbuffered).
///
/// An incomplete UTF-8 character at the end of what would be written waits for its rest for 1
/// second.
///
/// All times count only while the printer runs and can write. A pause of the printer, because its
/// output blocks, its process is stopped or its thread is not scheduled, counts as one short step.
/// The quiet time of every stream starts anew after a pause, because ranks that were held back or
/// stopped as well have not run since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTimeout {
    /// The longest line that is written in one piece, in bytes. A longer line is written in parts.
    pub max_line: usize,
    /// The time for which the stream must be quiet before a part of its line is written; `None` for
    /// the times above.
    pub max_time: Option<Duration>,
}

impl Default for FlushTimeout {
    /// Returns 64 KiB and the times that depend on the part.
    fn default() -> FlushTimeout {
        FlushTimeout { max_line: 64 << 10, max_time: None }
    }
}

/// The fewest bytes of a read that count as a flushed buffer.
const MIN_BUFFER: u64 = 512;
/// The size of which a buffer is a multiple if the output is a person's terminal: that of the C
/// library's for pipes.
const TERMINAL_BUFFER: u64 = 4096;
/// The wait of a prompt at a person's terminal.
const PROMPT_WAIT: Duration = Duration::from_millis(100);
/// The wait of other parts, of characters, and of parts that grow all the time.
const PART_WAIT: Duration = Duration::from_secs(1);
/// The wait of a flushed buffer's part if a rank may be answered.
const BUFFER_WAIT: Duration = Duration::from_secs(10);
/// The longest UTF-8 character, in bytes. A part that ends in one may exceed the longest line by this.
pub const LONGEST_CHARACTER: usize = 4;
/// The number of checks of a part during the shortest wait. What happens between two checks counts
/// as one step of time.
const CHECKS: u32 = 4;
/// The shortest time between two checks of a part.
const MIN_STEP: Duration = Duration::from_millis(10);
/// The longest time between two checks of a part.
const MAX_STEP: Duration = Duration::from_millis(250);
/// The number of steps after which a check is so late that the printer must have paused.
const PAUSE_STEPS: u32 = 2;

impl FlushTimeout {
    /// Returns the wait of a part of a line of `origin` if its last read was `last`, and if `audience`
    /// reads the output. `None` means without limit.
    fn wait(&self, origin: &Origin<'_>, last: LastRead, audience: Audience) -> Option<Duration> {
        let LastRead { len, interaction, is_answer } = last;
        let may_be_answered =
            matches!(interaction, Interaction::Piped | Interaction::Typed) && audience != Audience::Nobody;
        let is_typed = interaction == Interaction::Typed && audience == Audience::Person;
        let is_buffer = origin.channel == Channel::Stdout
            && !origin.logged
            && len >= MIN_BUFFER
            && (!is_typed || len.is_multiple_of(TERMINAL_BUFFER));
        match self.max_time {
            Some(time) => Some(time),
            None if interaction == Interaction::Unbuffered => Some(PROMPT_WAIT),
            None if is_buffer && !may_be_answered => None,
            None if is_buffer && !is_answer => Some(BUFFER_WAIT),
            None if is_typed && !is_buffer => Some(PROMPT_WAIT),
            None => Some(PART_WAIT),
        }
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
        let step = (timeout.max_time.unwrap_or(PROMPT_WAIT) / CHECKS).clamp(MIN_STEP, MAX_STEP);
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
struct PartWait {
    /// When the part was first seen.
    began: Duration,
    /// When it was first to wait for a short time.
    short_since: Option<Duration>,
    /// When its last byte was first seen.
    grew: Duration,
    len: usize,
    /// How long it waits; `None` for without limit.
    limit: Option<Duration>,
    /// Whether it waits where it was found.
    stays: bool,
}

impl PartWait {
    fn begin(len: usize, limit: Option<Duration>, clock: &FlushClock) -> PartWait {
        let now = clock.now;
        PartWait { began: now, short_since: None, grew: now, len, limit, stays: false }.until(limit, clock)
    }

    /// Returns the wait with another limit.
    fn until(self, limit: Option<Duration>, clock: &FlushClock) -> PartWait {
        let wait = PartWait { limit, ..self };
        let short_since = self.short_since.or_else(|| wait.is_short().then_some(clock.now));
        PartWait { short_since, ..wait }
    }

    fn is_short(&self) -> bool {
        self.limit.is_some_and(|limit| limit <= PART_WAIT)
    }

    fn has_expired(&self, at_least: Duration, clock: &FlushClock) -> bool {
        let Some(limit) = self.limit.map(|limit| limit.max(at_least)) else { return false };
        let quiet = clock.now.saturating_sub(self.grew.max(clock.resumed));
        let began = self.short_since.filter(|_| self.is_short()).unwrap_or(self.began);
        quiet >= limit || clock.now.saturating_sub(began) >= limit.max(PART_WAIT)
    }
}

/// The part of a stream's output that has to wait for its rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None, and the ends of lines are not searched.
    Nothing,
    /// None, but what is written ends with a line where possible.
    Never,
    /// An incomplete character.
    Characters,
    /// An incomplete line, unless it continues the line that is open at the output: then an
    /// incomplete character.
    Continued,
    /// An incomplete line.
    Lines,
}

impl Hold {
    /// Returns what has to wait of a part behind `lines` bytes of whole lines.
    fn behind(self, lines: usize) -> Hold {
        match self {
            Hold::Continued if lines > 0 => Hold::Lines,
            Hold::Continued => Hold::Characters,
            hold => hold,
        }
    }
}

/// The bytes of a stream on which [`LineHolder::decide`] decides.
#[derive(Clone, Copy, Debug)]
pub struct FoundBytes<'a> {
    /// The bytes, which follow those that the holder has.
    pub bytes: &'a [u8],
    /// The number of bytes that are written at a time, approximately.
    pub limit: usize,
    /// Whether nothing follows that continues their line: a gap or the end does.
    pub is_last: bool,
    /// Whether more bytes are there, which must not be written yet.
    pub has_more: bool,
    /// The longest part that may stay where it is, in bytes.
    pub max_stay: usize,
    /// Whether the stream has to wait for a reader, which restarts the wait of a part.
    pub is_stalled: bool,
}

/// The rules by which a [`LineHolder`] decides.
#[derive(Clone, Copy, Debug)]
pub struct HoldRules<'a> {
    /// The part that has to wait.
    pub hold: Hold,
    /// How long it waits at most.
    pub timeout: &'a FlushTimeout,
    /// The clock for that.
    pub clock: &'a FlushClock,
    /// The reader of the output.
    pub audience: Audience,
    /// The stream.
    pub origin: Origin<'a>,
}

/// The fate of the bytes that are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// There are none, or more of them are looked at in the next round.
    Next,
    /// They stay where they are.
    Stay,
    /// They are [copied](LineHolder::copy) to the holder.
    Copy,
}

/// The decision on the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The number of bytes that are written now. If there are any, those that the holder has are
    /// written before them.
    pub write: usize,
    /// The fate of the others.
    pub rest: Rest,
}

/// The part of a stream's line that was not written yet. It waits where it was found, such as in a
/// ring, or here if it can't stay there.
#[derive(Debug, Default)]
pub struct LineHolder {
    bytes: Vec<u8>,
    /// The number of bytes that the source had produced before them.
    offset: u64,
    /// When the first of them was read.
    time: Option<u64>,
    /// The wait of the part, here or where it was found.
    wait: Option<PartWait>,
}

impl LineHolder {
    /// Returns the bytes that were copied here.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether a part waits.
    pub fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Restarts the wait of a part, because the output could not be written meanwhile.
    pub(crate) fn restart(&mut self) {
        self.wait = None;
    }

    /// Returns whether a part is to be looked at again at [`FlushClock::next_check`]: it waits for a
    /// limited time, or is to be copied if it does not grow soon.
    pub fn is_timed(&self) -> bool {
        self.wait.is_some_and(|wait| wait.stays || wait.limit.is_some())
    }

    /// Decides what becomes of `found`. `last` is called if a part may wait; it returns the newest
    /// read of the stream, `None` if that is unknown.
    pub fn decide(
        &mut self,
        found: &FoundBytes<'_>,
        rules: &HoldRules<'_>,
        last: impl FnOnce() -> Option<LastRead>,
    ) -> Decision {
        let FoundBytes { bytes, limit, is_last, has_more, max_stay, is_stalled } = *found;
        if rules.hold == Hold::Nothing {
            self.wait = None;
            return Decision { write: bytes.len().min(limit), rest: Rest::Next };
        }
        let lines = lines_end(bytes, limit);
        if lines > 0 {
            // A part that waits from now on belongs to another line.
            self.wait = None;
        }
        let mut decision = Decision { write: lines, rest: Rest::Next };
        if lines == bytes.len() || (lines > 0 && limit < bytes.len()) {
            return decision;
        }
        let rules = &HoldRules { hold: rules.hold.behind(lines), ..*rules };
        let part = bytes.get(lines..).unwrap_or_default();
        let is_long = self.bytes.len().saturating_add(part.len()) >= rules.timeout.max_line;
        let has_more = has_more && !is_last;
        if has_more && !is_long && rules.hold == Hold::Lines {
            // The rest of the line may be there already.
            return decision;
        }
        let waiting = match rules.hold {
            Hold::Lines | Hold::Characters if !is_last && !has_more => {
                self.waiting(part, lines == 0, is_stalled, rules, last)
            }
            _ => 0,
        };
        if waiting == 0 {
            self.wait = None;
        }
        decision.write = bytes.len().saturating_sub(waiting);
        if let Some(wait) = &mut self.wait {
            // A part that waits for long must not keep a flush of the job waiting.
            wait.stays = waiting <= max_stay && (wait.is_short() || wait.grew == rules.clock.now);
            decision.rest = if wait.stays { Rest::Stay } else { Rest::Copy };
        }
        decision
    }

    /// Returns whether the bytes here still wait although nothing follows them yet.
    pub fn still_waits(
        &mut self,
        is_stalled: bool,
        rules: &HoldRules<'_>,
        last: impl FnOnce() -> Option<LastRead>,
    ) -> bool {
        let rules = &HoldRules { hold: rules.hold.behind(0), ..*rules };
        matches!(rules.hold, Hold::Lines | Hold::Characters)
            && self.waiting(&[], true, is_stalled, rules, last) > 0
    }

    /// Returns the number of last bytes of `part` that wait for their rest. `continues` specifies
    /// that `part` follows the bytes here.
    fn waiting(
        &mut self,
        part: &[u8],
        continues: bool,
        is_stalled: bool,
        rules: &HoldRules<'_>,
        last: impl FnOnce() -> Option<LastRead>,
    ) -> usize {
        let HoldRules { hold, timeout, clock, audience, ref origin } = *rules;
        let before: &[u8] = if continues { &self.bytes } else { &[] };
        let len = before.len().saturating_add(part.len());
        let character = incomplete_character(before, part);
        let limit = match hold {
            _ if character == len => Some(Some(PART_WAIT)),
            Hold::Lines if timeout.max_time.is_some() => Some(timeout.max_time),
            Hold::Lines => last().map(|last| timeout.wait(origin, last, audience)),
            _ => Some(Some(Duration::ZERO)),
        };
        let limit = limit.unwrap_or_else(|| {
            let unknown = || timeout.wait(origin, LastRead::default(), audience);
            self.wait.map_or_else(unknown, |wait| wait.limit)
        });
        let wait = self.wait.get_or_insert_with(|| PartWait::begin(len, limit, clock));
        if is_stalled {
            *wait = PartWait::begin(len, limit, clock);
        } else if len != wait.len {
            *wait = PartWait { grew: clock.now, len, ..*wait };
        }
        *wait = wait.until(limit, clock);
        // An incomplete character that begins in the bytes here is not divided.
        let can_wait_alone = character < part.len();
        let (at_least, longest) = if can_wait_alone || character == 0 {
            (Duration::ZERO, timeout.max_line)
        } else {
            (PART_WAIT, timeout.max_line.saturating_add(LONGEST_CHARACTER))
        };
        if len < longest && !wait.has_expired(at_least, clock) {
            return if part.is_empty() { len } else { part.len() };
        }
        if character == 0 || !can_wait_alone {
            return 0;
        }
        *wait = PartWait::begin(character, Some(PART_WAIT), clock);
        character
    }

    /// Copies bytes that lie at `offset` of the stream, and were read at `time`, behind those here.
    pub fn copy(&mut self, bytes: &[u8], offset: u64, time: Option<u64>) {
        if self.bytes.is_empty() {
            (self.offset, self.time) = (offset, time);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds the beginning of `bytes` up to the first newline, or all, if it continues the line here.
    /// Returns the number of bytes that were added.
    pub fn complete(&mut self, bytes: &[u8]) -> usize {
        if self.bytes.is_empty() || bytes.is_empty() {
            return 0;
        }
        let end = memchr(b'\n', bytes).map_or(bytes.len(), |index| index.saturating_add(1));
        self.bytes.extend_from_slice(bytes.get(..end).unwrap_or_default());
        end
    }

    /// Notes that nothing waits any longer: what follows does not belong to the part.
    pub fn end(&mut self) {
        self.wait = None;
    }

    /// Passes the bytes here to `write`, with their offset and the time of the first one, and
    /// forgets them.
    pub fn flush<T>(&mut self, write: impl FnOnce(&[u8], u64, Option<u64>) -> T) -> T {
        let written = write(&self.bytes, self.offset, self.time);
        self.bytes.clear();
        written
    }
}

/// Returns where the last line ends that is to be written now, about `limit` bytes at most: no line
/// is cut for that.
fn lines_end(bytes: &[u8], limit: usize) -> usize {
    let window = bytes.get(..limit).unwrap_or(bytes);
    let after = |index: usize| index.saturating_add(1);
    let in_window = memrchr(b'\n', window).map(after);
    let behind = || {
        let rest = bytes.get(window.len()..)?;
        memchr(b'\n', rest).map(|index| after(index).saturating_add(window.len()))
    };
    in_window.or_else(behind).unwrap_or(0)
}

/// Returns the number of last bytes of `before` and `part` that begin a UTF-8 character and do not
/// complete it. Bytes that can't begin a character do not count.
fn incomplete_character(before: &[u8], part: &[u8]) -> usize {
    let mut tail = [0; LONGEST_CHARACTER - 1];
    let mut len = 0;
    for byte in part.iter().rev().chain(before.iter().rev()).take(tail.len()) {
        len += 1;
        if let Some(place) = tail.len().checked_sub(len).and_then(|index| tail.get_mut(index)) {
            *place = *byte;
        }
        // A character begins here at the latest.
        if byte & 0xc0 != 0x80 {
            break;
        }
    }
    let tail = tail.get(tail.len().saturating_sub(len)..).unwrap_or_default();
    match std::str::from_utf8(tail) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => len,
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
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
            let Rig { timeout, hold, audience, channel, last, is_stalled, source, clock, holder, bytes } =
                self;
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
}
