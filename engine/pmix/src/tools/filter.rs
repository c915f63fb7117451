//! The requests in the bytes that a tool sends: those that nothing here carries out are refused
//! before libpmix sees them. It would answer some with a false success, and some never.

use std::collections::BTreeMap;

use iof_proto::Rank;

use crate::tools::tool_upcalls::tool_proc;

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
/// The commands of `PMIx_Fence`, `PMIx_Get`, `PMIx_Spawn`, `PMIx_Job_control`, `PMIx_IOF_pull` and
/// `PMIx_IOF_deregister`.
const FENCE: u8 = 3;
const GET: u8 = 4;
const SPAWN: u8 = 9;
const JOB_CONTROL: u8 = 18;
const PULL: u8 = 22;
const END_PULL: u8 = 29;
/// The commands that are carried out: the data of the job, `PMIx_Abort`, the end of the tool, the
/// handlers of events, queries, logs, pushes, and those above except `PMIx_Fence`.
const SERVED: [u8; 13] = [0, 1, GET, 5, SPAWN, 13, 14, 15, 16, JOB_CONTROL, PULL, 23, END_PULL];
/// The beginning of the keys by which job control registers files to be removed. libpmix accepts
/// them, but removes nothing before its process ends.
const CLEANUP: &[u8] = b"pmix.reg.cleanup";
/// The statuses of answers as libpmix encodes them: success, and `PMIX_ERR_NOT_SUPPORTED`.
const SUCCESS: u8 = 0;
const NOT_SUPPORTED: u8 = 93;

/// A request that waits for its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldRequest {
    /// The end of a pull, with libpmix's number.
    EndOfPull(u32),
    /// A pull. Its upcall follows, and libpmix does nothing else until that has an answer.
    Pull,
    /// A request about jobs, which libpmix must know.
    Jobs,
}

/// Reads the messages of a tool.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    messages: Messages,
    /// The byte that passed last.
    previous: u8,
    held: Option<HeldRequest>,
    /// Set when the request that was held may pass.
    is_released: bool,
    /// The beginning of a request for a fence, from its command on.
    fence: Vec<u8>,
    /// The number of bytes of [`CLEANUP`] that have passed.
    cleanup: usize,
    /// The requests whose answers get another status, which they must have.
    answers: Vec<(u32, u8)>,
    /// Set when a request has passed.
    has_requests: bool,
}

impl Filter {
    /// Lets bytes pass, up to a request that is held. Returns their number.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) -> usize {
        if self.held.is_some() {
            return 0;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let is_request = self.messages.is_request();
            self.has_requests |= is_request;
            let held = if is_request { self.hold(*byte) } else { None };
            if held.is_some() && !std::mem::take(&mut self.is_released) {
                self.held = held;
                return index;
            }
            if is_request {
                self.read(byte);
            }
            self.previous = *byte;
            self.messages.advance(*byte);
        }
        bytes.len()
    }

    /// Returns how the request waits before its next byte passes.
    fn hold(&self, byte: u8) -> Option<HeldRequest> {
        if self.messages.position == HEAD + 1 {
            return match byte {
                PULL => Some(HeldRequest::Pull),
                GET | JOB_CONTROL => Some(HeldRequest::Jobs),
                _ => None,
            };
        }
        let is_end = self.messages.command() == Some(END_PULL) && self.messages.is_at_last();
        // Numbers take one byte up to 127, and two bytes then.
        let (low, high) = (u32::from(self.previous), u32::from(byte));
        is_end.then_some(HeldRequest::EndOfPull(if low & 0x80 == 0 {
            high
        } else {
            (low & 0x7f) | (high << 7)
        }))
    }

    /// Reads the next byte of a request. Changes its command if nothing carries it out, and notes
    /// the status of its answer if libpmix would give another one.
    fn read(&mut self, byte: &mut u8) {
        let tag = self.messages.tag();
        if self.messages.position == HEAD + 1 {
            self.fence.clear();
            self.fence.extend((*byte == FENCE).then_some(FENCE));
            self.cleanup = 0;
            if !SERVED.contains(byte) {
                *byte = UNKNOWN;
            }
        } else if !self.fence.is_empty() {
            // A fence of the tool alone is complete. libpmix would never answer one of other
            // processes, which have servers of their own.
            self.fence.extend((self.fence.len() < FENCE_BYTES).then_some(*byte));
            if self.messages.is_at_last() && is_fence_of(tool_proc(), &self.fence) {
                self.answers.push((tag, SUCCESS));
            }
        } else if self.messages.command() == Some(JOB_CONTROL) {
            let is_next = CLEANUP.get(self.cleanup) == Some(byte);
            self.cleanup = if is_next { self.cleanup.saturating_add(1) } else { (*byte == b'p').into() };
            if self.cleanup == CLEANUP.len() {
                self.answers.push((tag, NOT_SUPPORTED));
            }
        }
    }

    /// Returns the request that waits.
    pub(crate) fn held(&self) -> Option<HeldRequest> {
        self.held
    }

    /// Lets the request pass that waits. Returns the tag of its answer.
    pub(crate) fn release(&mut self) -> u32 {
        self.is_released = self.held.take().is_some();
        self.messages.tag()
    }

    /// Returns the tags of answers to requests that have passed, with their statuses, once.
    pub(crate) fn take_answers(&mut self) -> Vec<(u32, u8)> {
        std::mem::take(&mut self.answers)
    }

    /// Returns whether a request has passed. Only messages follow then in either direction.
    pub(crate) fn has_requests(&self) -> bool {
        self.has_requests
    }
}

/// The most bytes of a request for a fence that are looked at: the number of its processes, and the
/// name and the rank of the first.
const FENCE_BYTES: usize = 300;

/// Returns whether `request`, from its command on, is for a fence of one process, which is `tool`,
/// or of all processes of its name. A tool has its name for itself.
fn is_fence_of(tool: Option<(String, u32)>, request: &[u8]) -> bool {
    let Some((name, rank)) = tool else { return false };
    // The number of processes, each number with the number of its values, and the length of the
    // name with its final zero.
    let length = encoded(u32::try_from(name.len().saturating_add(1)).unwrap_or(u32::MAX).saturating_mul(2));
    let start = [&[FENCE, ONE, 1, ONE][..], &length, name.as_bytes(), &[0]].concat();
    let rest = request.strip_prefix(&*start).unwrap_or_default();
    [rank, Rank::WILDCARD.0].into_iter().any(|rank| rest.starts_with(&encoded(rank)))
}

/// Returns a number as libpmix encodes it: seven bits in each byte, the lowest first.
fn encoded(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Reads the answers to a tool, and sets the status of some. The servers of libpmix 4.2.2 and 5.0.11
/// answer the end of a pull with a status that they never set.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    messages: Messages,
    /// The tags of the answers whose status is set, with the status.
    set: BTreeMap<u32, u8>,
}

impl Answers {
    /// Sets the status of the answer with this tag.
    pub(crate) fn expect(&mut self, tag: u32, status: u8) {
        self.set.insert(tag, status);
    }

    /// Makes the status of the answer with this tag a success.
    pub(crate) fn expect_success(&mut self, tag: u32) {
        self.expect(tag, SUCCESS);
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
        let status = self.set.get(&tag).copied().filter(|_| has_head);
        if has_head && status.is_none() {
            return self.messages.skip(bytes.len());
        }
        let Some(byte) = bytes.first_mut() else { return 0 };
        if let Some(status) = status {
            let is_last = self.messages.is_at_last();
            // The first byte has the status, and zeros follow in as many bytes as there are.
            let value = if self.messages.position == HEAD + 1 { status } else { 0 };
            *byte = value | if is_last { 0 } else { 0x80 };
            if is_last {
                self.set.remove(&tag);
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
                answers.expect_success(107);
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
            assert_eq!((filter.pass(&mut sent), filter.held()), (held, Some(HeldRequest::EndOfPull(number))));
            assert_eq!(filter.pass(&mut sent[held..]), 0);
            assert!(filter.has_requests());
            assert_eq!(filter.release(), 107);
            assert_eq!(filter.pass(&mut sent[held..]), sent.len() - held);
            assert_eq!((filter.held(), filter.messages.position), (None, 0));
        }
    }

    #[test]
    fn requests_about_jobs_and_pulls_wait_before_their_command() {
        for (command, held) in
            [(GET, HeldRequest::Jobs), (JOB_CONTROL, HeldRequest::Jobs), (PULL, HeldRequest::Pull)]
        {
            let sent = message(107, &[2, command, 2, 3]);
            let mut bytes = [sent.clone(), sent.clone()].concat();
            let mut filter = Filter::default();
            for passed in [HEAD + 1, sent.len() + HEAD + 1] {
                let start = passed.saturating_sub(sent.len());
                assert_eq!(filter.pass(&mut bytes[start..]), passed - start);
                assert_eq!(filter.held(), Some(held));
                filter.release();
            }
        }
    }

    #[test]
    fn only_a_fence_of_the_tool_itself_is_complete() {
        let tool = || Some(("iof-7.tool.9".to_owned(), 300));
        let fence = |count: u8, name: &str, rank: &[u8]| {
            let length = u8::try_from(name.len() + 1).unwrap() * 2;
            [&[FENCE, ONE, count, ONE, length], name.as_bytes(), &[0], rank, &[ONE, 0]].concat()
        };
        let (all, own) = ([0xfe, 0xff, 0xff, 0xff, 0x0f], [0xac, 2]);
        for rank in [&all[..], &own] {
            assert!(is_fence_of(tool(), &fence(1, "iof-7.tool.9", rank)));
            assert!(!is_fence_of(tool(), &fence(1, "demo", rank)));
            assert!(!is_fence_of(tool(), &fence(2, "iof-7.tool.9", rank)));
            assert!(!is_fence_of(None, &fence(1, "iof-7.tool.9", rank)));
        }
        assert!(!is_fence_of(tool(), &fence(1, "iof-7.tool.9", &[1])));
    }

    #[test]
    fn a_request_to_remove_files_is_refused_whatever_libpmix_answers() {
        let text = b"pppmix.reg.cleanup";
        let sent = message(107, &[&[2, JOB_CONTROL, 2][..], text].concat());
        let answer = [message(107, &[2, 0]), message(107, &[2, 0xb9, 2])];
        let refused = [message(107, &[2, NOT_SUPPORTED]), message(107, &[2, NOT_SUPPORTED | 0x80, 0])];
        for part in [1, 7, 1000] {
            let mut filter = Filter { is_released: true, ..Filter::default() };
            assert_eq!(pass(&mut filter, &sent, part), sent);
            let statuses = filter.take_answers();
            assert_eq!(statuses, [(107, NOT_SUPPORTED)]);
            for (answer, refused) in answer.iter().zip(&refused) {
                let mut answers = Answers::default();
                statuses.iter().for_each(|(tag, status)| answers.expect(*tag, *status));
                let mut bytes = answer.clone();
                bytes.chunks_mut(part).for_each(|part| answers.pass(part));
                assert_eq!(bytes, *refused);
            }
        }
        let mut other = Filter { is_released: true, ..Filter::default() };
        pass(&mut other, &message(107, b"\x02\x12pmix.reg.clean"), 1000);
        assert_eq!(other.take_answers(), []);
    }
}
