//! The output of ranks as lines, for tools that work with text.

use std::collections::{BTreeMap, VecDeque};

use iof_proto::{Channel, Proc};

use crate::error::LostError;
use crate::session::delivery::{Delivery, Origin};
use crate::tool::Tool;

/// The longest line that [`Lines`] returns in one piece, in bytes.
pub const LONGEST_LINE: usize = 64 << 10;

/// A line of a rank's output, or a part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The process that wrote the line.
    pub source: Proc,
    /// The channel that the line was written to.
    pub channel: Channel,
    /// The bytes, without the newline. They need not be UTF-8.
    pub bytes: Vec<u8>,
    /// Whether a newline followed the bytes. If not, this is a part of a line longer than
    /// [`LONGEST_LINE`], or the bytes before a gap or before the end of the stream.
    pub ends: bool,
    /// The number of bytes lost immediately before these bytes. After a loss at the end of a
    /// stream, `bytes` is empty.
    pub lost: u64,
}

/// An iterator over the lines of all streams that a tool has registered for, including streams of
/// logged messages.
///
/// [`Iterator::next`] blocks until there is another line, and returns `None` when nothing more will
/// be delivered. Lines of one stream keep their order. A line longer than [`LONGEST_LINE`] is
/// returned in parts. Each line is copied; [`Tool::recv`] lends bytes without a copy. The ends of
/// jobs and of streams are not reported.
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use iof_proto::{Channels, Proc};
/// use iof_tool::{Lines, Pull};
///
/// # let engine = Engine::start(Config::new(Rendezvous::None))?;
/// # let mut tool = engine.attach("example", Grant::Never)?;
/// tool.pull(&Pull::new(vec![Proc::all("job1".parse()?)], Channels::STDOUT))?;
/// # let app = App::new("sh", ["-c", "echo one; printf two"]);
/// # engine.spawn(&JobSpec::new("job1".parse()?, vec![app]))?;
/// let mut texts = Vec::new();
/// for line in Lines::new(tool) {
///     texts.push(String::from_utf8(line?.bytes)?);
/// }
/// assert_eq!(texts, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lines {
    tool: Tool,
    streams: BTreeMap<StreamKey, Partial>,
    ready: VecDeque<Line>,
}

/// A stream of a registration: handler, process, channel, and whether it was logged.
type StreamKey = (u32, Proc, Channel, bool);

/// The beginning of a line whose end has not arrived.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// Bytes lost before it.
    lost: u64,
}

impl Lines {
    /// Creates an iterator over the lines of the registrations of `tool`. Registrations with a
    /// callback ([`Tool::pull_with`]) are not included; their callbacks are called by
    /// [`Iterator::next`].
    pub fn new(tool: Tool) -> Lines {
        Lines { tool, streams: BTreeMap::new(), ready: VecDeque::new() }
    }
}

impl Iterator for Lines {
    type Item = Result<Line, LostError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(Ok(line));
            }
            match self.tool.recv() {
                Ok(Some(delivery)) => divide(&delivery, &mut self.streams, &mut self.ready),
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Adds the lines that `delivery` completes to `ready`.
fn divide(delivery: &Delivery<'_>, streams: &mut BTreeMap<StreamKey, Partial>, ready: &mut VecDeque<Line>) {
    let key = |origin: &Origin<'_>| (origin.handler, origin.source.clone(), origin.channel, origin.logged);
    match delivery {
        Delivery::Bytes(bytes) => {
            let origin = bytes.origin();
            let partial = streams.entry(key(&origin)).or_default();
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                partial.add(piece, &origin, ready);
            }
        }
        Delivery::Gap { origin, gap } => {
            let partial = streams.entry(key(origin)).or_default();
            partial.finish(origin, ready);
            partial.lost = partial.lost.saturating_add(gap.lost);
        }
        Delivery::Complete { origin, .. }
        | Delivery::Broken { origin, .. }
        | Delivery::Gone { origin, .. } => {
            if let Some(mut partial) = streams.remove(&key(origin)) {
                partial.finish(origin, ready);
            }
        }
        _ => {}
    }
}

impl Partial {
    /// Adds bytes. Only the last one may be a newline.
    fn add(&mut self, piece: &[u8], origin: &Origin<'_>, ready: &mut VecDeque<Line>) {
        let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
        let mut rest = text;
        while self.bytes.len().saturating_add(rest.len()) > LONGEST_LINE {
            let (part, after) = rest.split_at(LONGEST_LINE.saturating_sub(self.bytes.len()).min(rest.len()));
            self.bytes.extend_from_slice(part);
            self.take(origin, false, ready);
            rest = after;
        }
        self.bytes.extend_from_slice(rest);
        if ends {
            self.take(origin, true, ready);
        }
    }

    /// Moves the bytes to `ready`, if there are any, or if bytes were lost after the last line.
    fn finish(&mut self, origin: &Origin<'_>, ready: &mut VecDeque<Line>) {
        if !self.bytes.is_empty() || self.lost > 0 {
            self.take(origin, false, ready);
        }
    }

    /// Moves the bytes to `ready` as a line, or as a part of one if it does not end.
    fn take(&mut self, origin: &Origin<'_>, ends: bool, ready: &mut VecDeque<Line>) {
        let Partial { bytes, lost } = std::mem::take(self);
        ready.push_back(Line { source: origin.source.clone(), channel: origin.channel, bytes, ends, lost });
    }
}

#[cfg(test)]
mod tests {
    use iof_proto::Nspace;

    use super::*;

    /// Divides `pieces` and returns the texts of the lines, with whether they end.
    fn lines(pieces: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let source = Proc::new(Nspace::new("job").unwrap(), 0);
        let origin = Origin { handler: 1, source: &source, channel: Channel::Stdout, logged: false };
        let (mut partial, mut ready) = (Partial::default(), VecDeque::new());
        for piece in pieces.iter().flat_map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n')) {
            partial.add(piece, &origin, &mut ready);
        }
        partial.finish(&origin, &mut ready);
        ready.into_iter().map(|line| (line.bytes, line.ends)).collect()
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
