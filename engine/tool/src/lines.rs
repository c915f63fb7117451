//! The output of ranks as lines, for tools that work with text.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use iof_proto::{Channel, Proc};
use memchr::memchr;

use crate::error::LostError;
use crate::owned::OwnedDelivery;
use crate::session::delivery::{Delivery, Origin};
use crate::tool::Tool;

/// The longest line that [`Lines`] returns in one piece, in bytes.
pub const LONGEST_LINE: usize = 64 << 10;
/// The largest number of bytes that [`Lines`] divides at once. Their lines are kept until they are returned.
const MAX_DIVIDED: usize = 256 << 10;

/// A line of a rank's output, or a part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The process that wrote the line.
    pub source: Proc,
    /// The channel that the line was written to.
    pub channel: Channel,
    /// The number of bytes that the process had written to the stream before these.
    pub offset: u64,
    /// The bytes, without the newline. They need not be UTF-8.
    pub bytes: Vec<u8>,
    /// Set if a newline followed the bytes. If not, this is a part of a line longer than
    /// [`LONGEST_LINE`], or the bytes before a gap or before the end of the stream.
    pub ends: bool,
    /// The number of bytes lost immediately before these bytes. After a loss at the end of a
    /// stream, `bytes` is empty.
    pub lost: u64,
    /// When the first of the bytes was read from its source, in nanoseconds since 1970, or `None` if
    /// unknown.
    pub time: Option<u64>,
}

/// A line that [`LineDivider`] has found, in place if it lies in one delivery. The fields are those of
/// [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "described at Line")]
pub struct BorrowedLine<'a> {
    pub origin: Origin<'a>,
    pub offset: u64,
    pub bytes: &'a [u8],
    pub ends: bool,
    pub lost: u64,
    pub time: Option<u64>,
}

impl BorrowedLine<'_> {
    /// Copies the line.
    pub fn to_line(&self) -> Line {
        let BorrowedLine { origin, offset, bytes, ends, lost, time } = *self;
        let (source, channel) = (origin.source.clone(), origin.channel);
        Line { source, channel, offset, bytes: bytes.to_vec(), ends, lost, time }
    }
}

/// An item of [`Lines`].
#[derive(Clone, Debug)]
pub enum LineItem {
    /// A line of a rank, or a part of one.
    Line(Line),
    /// A delivery that is neither bytes nor a gap: the end of a rank's stream with its counts, the start or the
    /// end of a rank ([`Pull::reports_ranks`](crate::Pull::reports_ranks)), the end of a job with its exit code, or
    /// streams that were missed. It follows the lines before it.
    Other(OwnedDelivery),
}

impl LineItem {
    /// Returns the line, if it is one.
    pub fn line(self) -> Option<Line> {
        match self {
            LineItem::Line(line) => Some(line),
            LineItem::Other(_) => None,
        }
    }

    /// Returns the number of streams that the item tells not to be whole, except for gaps.
    pub fn incomplete(&self) -> u64 {
        match self {
            LineItem::Other(OwnedDelivery::Broken { .. } | OwnedDelivery::Gone { .. }) => 1,
            LineItem::Other(OwnedDelivery::Missed { missed, .. }) if missed.bytes > 0 => missed.streams,
            _ => 0,
        }
    }
}

/// An iterator over the lines of all streams that a tool has registered for, including streams of
/// logged messages, and over the ends of these streams and of jobs.
///
/// [`Iterator::next`] blocks until there is another item, and returns `None` when nothing more will
/// be delivered. Lines of one stream keep their order. A line longer than [`LONGEST_LINE`] is
/// returned in parts. Each line is copied; [`Tool::recv`] lends bytes without a copy. In an event loop,
/// wait for the [descriptor](AsFd) for [`Lines::timeout`] at most, then call [`Lines::try_next`] until it
/// returns `None`.
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Proc};
/// use iof_tool::{LineItem, Lines, OwnedDelivery, Pull};
///
/// # let engine = Engine::start(Config::new(Rendezvous::None))?;
/// # let mut tool = engine.attach("example", Grant::Never)?;
/// tool.pull(&Pull::new(vec![Proc::all("job1".parse()?)], Channels::STDOUT))?;
/// # let app = App::new("sh", ["-c", "echo one; printf two"]);
/// # engine.spawn(&JobSpec::new("job1".parse()?, vec![app]))?;
/// let mut texts = Vec::new();
/// for item in Lines::new(tool) {
///     match item? {
///         LineItem::Line(line) => texts.push(String::from_utf8(line.bytes)?),
///         LineItem::Other(OwnedDelivery::JobEnded { exit_code, .. }) => assert_eq!(exit_code, Some(0)),
///         LineItem::Other(_) => {}
///     }
/// }
/// assert_eq!(texts, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lines {
    tool: Tool,
    divider: LineDivider,
    ready: VecDeque<LineItem>,
}

/// The division of deliveries into lines, for programs that receive the deliveries themselves.
/// [`Lines`] does both.
#[derive(Debug, Default)]
pub struct LineDivider {
    streams: BTreeMap<StreamKey, Partial>,
    /// Room for the offsets and times of the bytes that are divided.
    times: Vec<(u64, u64)>,
}

/// A stream of a registration: handler, process, channel, and whether it was logged.
type StreamKey = (u32, Proc, Channel, bool);

/// The beginning of a line whose end has not arrived.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// Bytes lost before it.
    lost: u64,
    /// When its first byte was read.
    time: Option<u64>,
    /// The bytes that the source had produced before it.
    offset: u64,
}

impl Lines {
    /// Creates an iterator over the lines of the registrations of `tool`. Registrations with a
    /// callback ([`Tool::pull_with`]) are not included; their callbacks are called by
    /// [`Iterator::next`].
    pub fn new(tool: Tool) -> Lines {
        Lines { tool, divider: LineDivider::default(), ready: VecDeque::new() }
    }

    /// Returns the next item if there is one now. Does not block. `None` also means that nothing more
    /// will be delivered; [`Lines::is_done`] tells the two cases apart.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn try_next(&mut self) -> Result<Option<LineItem>, LostError> {
        self.next_within(|_| Some(Duration::ZERO))
    }

    /// Returns the next item. Blocks until there is one, until `deadline` at most. `None` also means that
    /// nothing more will be delivered; [`Lines::is_done`] tells the two cases apart.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn next_until(&mut self, deadline: Instant) -> Result<Option<LineItem>, LostError> {
        self.next_within(|now| Some(deadline.saturating_duration_since(now)))
    }

    /// Returns whether nothing more will be delivered.
    pub fn is_done(&self) -> bool {
        self.ready.is_empty() && self.tool.is_done()
    }

    /// Returns the longest time for which an event loop may wait for the descriptor, see
    /// [`Tool::timeout`].
    pub fn timeout(&self) -> Option<Duration> {
        if self.ready.is_empty() { self.tool.timeout() } else { Some(Duration::ZERO) }
    }

    /// Returns the next item that arrives within the time that is left, without limit if that is `None`.
    fn next_within(
        &mut self,
        left: impl Fn(Instant) -> Option<Duration>,
    ) -> Result<Option<LineItem>, LostError> {
        while self.ready.is_empty() {
            let delivery = match left(Instant::now()) {
                Some(left) => self.tool.recv_timeout(left)?,
                None => self.tool.recv()?,
            };
            let Some(delivery) = delivery else { return Ok(None) };
            let divided = self.divider.divide(&delivery, MAX_DIVIDED, |line| {
                self.ready.push_back(LineItem::Line(line.to_line()));
            });
            if !matches!(delivery, Delivery::Bytes(_) | Delivery::Gap { .. }) {
                self.ready.push_back(LineItem::Other(delivery.into_owned()));
            }
            self.tool.consume(divided);
        }
        Ok(self.ready.pop_front())
    }
}

impl Iterator for Lines {
    type Item = Result<LineItem, LostError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_within(|_| None).transpose()
    }
}

/// A descriptor for event loops, see [`Tool`].
impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tool.as_fd()
    }
}

impl LineDivider {
    /// Passes the lines that a delivery completes to `take`: those that end in its first `limit` bytes, and
    /// what lacks its newline before a gap and at the end of a stream. Returns the number of bytes that it has
    /// divided; unless it is all of them, pass it to [`Tool::consume`].
    pub fn divide(
        &mut self,
        delivery: &Delivery<'_>,
        limit: usize,
        mut take: impl FnMut(BorrowedLine<'_>),
    ) -> usize {
        let Some(origin) = delivery.origin() else { return 0 };
        let key = (origin.handler, origin.source.clone(), origin.channel, origin.logged);
        match delivery {
            Delivery::Bytes(bytes) => {
                self.times.clear();
                bytes.times(&mut self.times);
                let (mut times, mut time) = (self.times.iter().peekable(), None);
                let (partial, mut offset) = (self.streams.entry(key).or_default(), bytes.offset());
                let bytes = bytes.get(..limit).unwrap_or(bytes);
                let mut rest = bytes;
                while !rest.is_empty() {
                    let end = memchr(b'\n', rest).map_or(rest.len(), |index| index.saturating_add(1));
                    let (piece, after) = rest.split_at(end);
                    while let Some((_, next)) = times.next_if(|(from, _)| *from <= offset) {
                        time = Some(*next);
                    }
                    partial.add(piece, (offset, time), &origin, &mut take);
                    (rest, offset) = (after, offset.saturating_add(piece.len() as u64));
                }
                return bytes.len();
            }
            Delivery::Gap { gap, .. } => {
                let partial = self.streams.entry(key).or_default();
                partial.finish(&origin, &mut take);
                partial.lost = partial.lost.saturating_add(gap.lost);
                partial.offset = gap.offset.saturating_add(gap.lost);
            }
            _ => {
                if let Some(mut partial) = self.streams.remove(&key) {
                    partial.finish(&origin, &mut take);
                }
            }
        }
        0
    }
}

impl Partial {
    /// Adds bytes. Only the last one may be a newline.
    fn add(
        &mut self,
        piece: &[u8],
        (offset, time): (u64, Option<u64>),
        origin: &Origin<'_>,
        take: &mut impl FnMut(BorrowedLine<'_>),
    ) {
        let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
        let mut rest = text;
        if self.bytes.is_empty() {
            (self.offset, self.time) = (offset, time);
        }
        while self.bytes.len().saturating_add(rest.len()) > LONGEST_LINE {
            let (part, after) = rest.split_at(LONGEST_LINE.saturating_sub(self.bytes.len()).min(rest.len()));
            self.pass(part, false, origin, take);
            let consumed = text.len().saturating_sub(after.len()) as u64;
            (rest, self.offset, self.time) = (after, offset.saturating_add(consumed), time);
        }
        if ends {
            self.pass(rest, true, origin, take);
        } else {
            self.bytes.extend_from_slice(rest);
        }
    }

    /// Passes the bytes on, if there are any, or if bytes were lost after the last line.
    fn finish(&mut self, origin: &Origin<'_>, take: &mut impl FnMut(BorrowedLine<'_>)) {
        if !self.bytes.is_empty() || self.lost > 0 {
            self.pass(&[], false, origin, take);
        }
    }

    /// Passes the bytes and the `last` ones on as a line, or as a part of one if it does not end.
    fn pass(
        &mut self,
        last: &[u8],
        ends: bool,
        origin: &Origin<'_>,
        take: &mut impl FnMut(BorrowedLine<'_>),
    ) {
        let Partial { mut bytes, lost, time, offset } = std::mem::take(self);
        let bytes = if bytes.is_empty() {
            last
        } else {
            bytes.extend_from_slice(last);
            &bytes
        };
        take(BorrowedLine { origin: *origin, offset, bytes, ends, lost, time });
    }
}

#[cfg(test)]
mod tests {
    use iof_proto::Nspace;

    use super::*;

    /// Divides `pieces` and returns the texts of the lines, with whether they end. Their offsets are right.
    fn lines(pieces: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let source = Proc::new(Nspace::new("job").unwrap(), 0);
        let origin = Origin { handler: 1, source: &source, channel: Channel::Stdout, logged: false };
        let (mut partial, mut ready) = (Partial::default(), Vec::new());
        let (mut offset, mut next) = (0, 0);
        let mut take = |line: BorrowedLine<'_>| {
            assert_eq!(line.offset, next);
            next += line.bytes.len() as u64 + u64::from(line.ends);
            ready.push((line.bytes.to_vec(), line.ends));
        };
        for piece in pieces.iter().flat_map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n')) {
            partial.add(piece, (offset, None), &origin, &mut take);
            offset += piece.len() as u64;
        }
        partial.finish(&origin, &mut take);
        ready
    }

    #[test]
    fn lines_are_joined_across_deliveries_and_the_last_may_lack_its_end() {
        let found = lines(&[b"a", b"b\n\nc", b"", b"\nd"]);
        let expected = [("ab", true), ("", true), ("c", true), ("d", false)];
        assert_eq!(found, expected.map(|(text, ends)| (text.as_bytes().to_vec(), ends)));
        assert_eq!(lines(&[]), []);
    }

    #[test]
    fn a_line_beyond_the_limit_arrives_in_parts_of_the_limit() {
        let long = vec![b'x'; 2 * LONGEST_LINE + 1];
        for size in [1000, LONGEST_LINE, LONGEST_LINE + 1, long.len()] {
            let mut pieces: Vec<&[u8]> = long.chunks(size).collect();
            pieces.push(b"\n");
            let lengths: Vec<(usize, bool)> =
                lines(&pieces).into_iter().map(|(bytes, ends)| (bytes.len(), ends)).collect();
            assert_eq!(lengths, [(LONGEST_LINE, false), (LONGEST_LINE, false), (1, true)], "{size}");
        }
        let exact = [vec![b'x'; LONGEST_LINE], b"\n".to_vec()].concat();
        assert_eq!(lines(&[&exact]), [(vec![b'x'; LONGEST_LINE], true)]);
    }
}
