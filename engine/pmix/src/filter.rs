//! The requests in the bytes that a tool sends: those that nothing here carries out are refused
//! before libpmix sees them. It would answer some with a false success, and some never.

use std::collections::BTreeSet;

/// The size of the head of a message: its sender, a tag, the size of the rest, and padding.
const HEAD: usize = 16;
/// The tag of the message with which a tool introduces itself.
const INTRODUCTION: u32 = u32::MAX;
/// The first tag of requests.
const FIRST_REQUEST: u32 = 100;
/// The number of commands in a request, which is 1, as libpmix encodes it.
const ONE: u8 = 2;
/// A command that no version of libpmix has, so that it refuses the request.
const UNKNOWN: u8 = u8::MAX;
/// The command of `PMIx_IOF_deregister`.
const END_PULL: u8 = 29;
/// The commands that are carried out: the data of the job, `PMIx_Abort`, `PMIx_Get`, the end of the
/// tool, the handlers of events, queries, logs, pulls, pushes.
const SERVED: [u8; 11] = [0, 1, 4, 5, 13, 14, 15, 16, 22, 23, END_PULL];

/// Reads the messages of a tool.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    messages: Messages,
    /// The byte that passed last.
    previous: u8,
    /// libpmix's number of the pull whose end waits.
    ending: Option<u32>,
    /// Set when the end of a pull may pass.
    is_released: bool,
    /// Set when a request has passed.
    has_requests: bool,
}

impl Filter {
    /// Lets bytes pass, up to the last one of a request to end a pull. Returns their number.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) -> usize {
        if self.ending.is_some() {
            return 0;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let is_request = self.messages.is_request();
            self.has_requests |= is_request;
            let is_end = is_request && self.messages.command() == Some(END_PULL);
            if is_end && self.messages.is_at_last() && !std::mem::take(&mut self.is_released) {
                // Numbers take one byte up to 127, and two bytes then.
                let (low, high) = (u32::from(self.previous), u32::from(*byte));
                self.ending = Some(if low & 0x80 == 0 { high } else { (low & 0x7f) | (high << 7) });
                return index;
            }
            if is_request && self.messages.position == HEAD + 1 && !SERVED.contains(byte) {
                *byte = UNKNOWN;
            }
            self.previous = *byte;
            self.messages.advance(*byte);
        }
        bytes.len()
    }

    /// Returns libpmix's number of the pull whose end waits.
    pub(crate) fn ending_pull(&self) -> Option<u32> {
        self.ending
    }

    /// Lets the end of the pull pass that waits. Returns the tag of its answer.
    pub(crate) fn release(&mut self) -> u32 {
        self.is_released = self.ending.take().is_some();
        self.messages.tag()
    }

    /// Returns whether a request has passed. Only messages follow then in either direction.
    pub(crate) fn has_requests(&self) -> bool {
        self.has_requests
    }
}

/// Reads the answers to a tool. The servers of libpmix 4.2.2 and 5.0.11 answer the end of a pull with
/// a status that they never set.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    messages: Messages,
    /// The tags of the answers whose status is a success.
    ends: BTreeSet<u32>,
}

impl Answers {
    /// Makes the status of the answer with this tag a success.
    pub(crate) fn expect(&mut self, tag: u32) {
        self.ends.insert(tag);
    }

    /// Sets the statuses in bytes of the server.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) {
        let mut passed = 0usize;
        while let Some(rest) = bytes.get_mut(passed..).filter(|rest| !rest.is_empty()) {
            passed = passed.saturating_add(self.pass_some(rest));
        }
    }

    /// Lets a byte pass, or what follows in a message whose bytes stay. Returns the number of bytes.
    fn pass_some(&mut self, bytes: &mut [u8]) -> usize {
        // The number of statuses precedes.
        let (tag, has_head) = (self.messages.tag(), self.messages.position > HEAD);
        if has_head && !self.ends.contains(&tag) {
            return self.messages.skip(bytes.len());
        }
        let Some(byte) = bytes.first_mut() else { return 0 };
        if has_head {
            let is_last = self.messages.is_at_last();
            // Zero, in as many bytes.
            *byte = if is_last { 0 } else { 0x80 };
            if is_last {
                self.ends.remove(&tag);
            }
        }
        self.messages.advance(*byte);
        1
    }
}

/// The place in a stream of messages.
#[derive(Debug, Default)]
struct Messages {
    /// The head of the present message, the number of its commands, and the command.
    start: [u8; HEAD + 2],
    /// The number of its bytes that have passed.
    position: usize,
}

impl Messages {
    /// Lets a byte pass.
    fn advance(&mut self, byte: u8) {
        if let Some(start) = self.start.get_mut(self.position) {
            *start = byte;
        }
        self.position = self.position.saturating_add(1);
        if self.position >= HEAD && self.position >= self.size() {
            self.position = 0;
        }
    }

    /// Lets at most `limit` bytes of the message pass, whose head has passed. Returns their number.
    fn skip(&mut self, limit: usize) -> usize {
        let count = self.size().saturating_sub(self.position).min(limit);
        self.position = self.position.saturating_add(count);
        if self.position >= self.size() {
            self.position = 0;
        }
        count
    }

    /// Returns whether the next byte is the last one of the message, whose head has passed.
    fn is_at_last(&self) -> bool {
        self.position.saturating_add(1) == self.size()
    }

    /// Returns whether the number of commands has passed, and the message is a request.
    fn is_request(&self) -> bool {
        self.position > HEAD && (FIRST_REQUEST..INTRODUCTION).contains(&self.tag()) && self.start[HEAD] == ONE
    }

    /// Returns the command, if it has passed.
    fn command(&self) -> Option<u8> {
        (self.position > HEAD + 1).then_some(self.start[HEAD + 1])
    }

    fn tag(&self) -> u32 {
        u32::from_be_bytes(self.number(4))
    }

    /// Returns the size of the message, whose head has passed.
    fn size(&self) -> usize {
        let rest = self.number(8);
        // The introduction has it in the order of the machine.
        let rest =
            if self.tag() == INTRODUCTION { u32::from_ne_bytes(rest) } else { u32::from_be_bytes(rest) };
        HEAD.saturating_add(usize::try_from(rest).unwrap_or(usize::MAX))
    }

    /// Returns the bytes of a number in the head.
    fn number(&self, offset: usize) -> [u8; 4] {
        self.start.get(offset..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Returns a message as libpmix sends it.
    fn message(tag: u32, rest: &[u8]) -> Vec<u8> {
        let size = u32::try_from(rest.len()).unwrap();
        let size = if tag == INTRODUCTION { size.to_ne_bytes() } else { size.to_be_bytes() };
        [&[0; 4], &tag.to_be_bytes()[..], &size, &[0; 4], rest].concat()
    }

    /// Passes bytes in parts of this size. Returns what has passed up to the end of a pull.
    fn pass(filter: &mut Filter, bytes: &[u8], part: usize) -> Vec<u8> {
        let mut passed = Vec::new();
        for part in bytes.chunks(part) {
            let mut part = part.to_vec();
            let count = filter.pass(&mut part);
            passed.extend_from_slice(&part[..count]);
        }
        passed
    }

    #[test]
    fn only_requests_that_are_served_pass_however_their_bytes_arrive() {
        let fence = [2, 3, 2, 3];
        let sent = [
            message(INTRODUCTION, &fence.repeat(100)),
            message(101, &[2, 15, 2, 3]),
            message(102, &fence),
            message(1, &[]),
            message(103, &[2]),
            message(104, &[2, 200]),
            message(2, &fence),
            message(105, &[2, 5]),
        ];
        let mut expected = sent.clone();
        expected[2][HEAD + 1] = UNKNOWN;
        expected[5][HEAD + 1] = UNKNOWN;
        for part in [1, 2, 7, 17, 18, 10_000] {
            assert_eq!(pass(&mut Filter::default(), &sent.concat(), part), expected.concat(), "{part}");
        }
    }

    #[test]
    fn the_status_of_an_end_of_a_pull_is_a_success_and_other_answers_stay() {
        let statuses: [&[u8]; 3] = [&[2, 0], &[2, 0x5a], &[2, 0xab, 0xd5, 0xaa, 0xd5, 0x0a]];
        let successes: [&[u8]; 3] = [&[2, 0], &[2, 0], &[2, 0x80, 0x80, 0x80, 0x80, 0]];
        for (status, success) in statuses.into_iter().zip(successes) {
            let stream = |end: &[u8], again: &[u8]| {
                let around = [message(2, b"output"), message(106, status)];
                [&around.concat()[..], &message(107, end), &message(107, again)].concat()
            };
            for part in [1, 3, 19, 1000] {
                let mut answers = Answers::default();
                answers.expect(107);
                let mut sent = stream(status, status);
                sent.chunks_mut(part).for_each(|part| answers.pass(part));
                assert_eq!(sent, stream(success, status), "{part}");
            }
        }
    }

    #[test]
    fn the_end_of_a_pull_waits_until_it_is_released() {
        for (number, bytes) in [(0, &[0][..]), (127, &[127]), (300, &[0xac, 2])] {
            let end = message(107, &[&[2, END_PULL, 2, 0, 2], bytes].concat());
            let next = message(108, &[2, 5]);
            let mut sent = [end.clone(), next].concat();
            let mut filter = Filter::default();
            let held = end.len() - 1;
            assert_eq!((filter.pass(&mut sent), filter.ending_pull()), (held, Some(number)));
            assert_eq!(filter.pass(&mut sent[held..]), 0);
            assert!(filter.has_requests());
            assert_eq!(filter.release(), 107);
            assert_eq!(filter.pass(&mut sent[held..]), sent.len() - held);
            assert_eq!((filter.ending_pull(), filter.messages.position), (None, 0));
        }
    }
}
