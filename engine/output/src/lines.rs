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
    /// the times above, [`Duration::MAX`] for without limit.
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
/// Buffers are multiples of this size if the output is a person's terminal. It is the size of the C
/// library's buffer for pipes.
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
    /// The time for which it waits; `None` for without limit.
    limit: Option<Duration>,
    /// Set while it waits where it was found.
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
    /// Set if nothing follows that continues their line: a gap or the end does.
    pub is_last: bool,
    /// Set if more bytes are there, which must not be written yet.
    pub has_more: bool,
    /// The longest part that may stay where it is, in bytes.
    pub max_stay: usize,
    /// Set while the stream has to wait for a reader, which restarts the wait of a part.
    pub is_stalled: bool,
}

/// The rules by which a [`LineHolder`] decides.
#[derive(Clone, Copy, Debug)]
pub struct HoldRules<'a> {
    /// The part that has to wait.
    pub hold: Hold,
    /// The longest time for which it waits.
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
            Hold::Lines if timeout.max_time == Some(Duration::MAX) => Some(None),
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
mod tests;
