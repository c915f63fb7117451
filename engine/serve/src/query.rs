//! The parameters of requests, and the ids of events.

use std::collections::BTreeMap;
use std::fmt;

use iof_proto::{Channel, Channels, Position, Rank};
use serde::Deserialize;

use crate::limits::MAX_RANKS;

/// The parameter of requests about one job.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobParams {
    /// The pid of the engine, if several engines have a job of this name.
    pub engine: Option<u32>,
}

/// The parameters of the bytes of one stream.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesParams {
    /// See [`JobParams::engine`].
    pub engine: Option<u32>,
    /// The first byte. By default, the oldest one that is cached.
    pub offset: Option<u64>,
    /// The number of lines from the end with which to begin.
    pub tail: Option<u64>,
    /// Follow the stream until its end.
    #[serde(default)]
    pub follow: bool,
}

/// The parameters of events.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsParams {
    /// See [`JobParams::engine`].
    pub engine: Option<u32>,
    /// The ranks, see [`ranks`].
    pub ranks: Option<String>,
    /// The channels, see [`channels`].
    pub channels: Option<String>,
    /// The number of lines from the end with which each stream begins.
    pub tail: Option<u64>,
    /// The time of the first read, in nanoseconds since 1970.
    pub since: Option<u64>,
}

/// The parameters of a push of stdin.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinParams {
    /// See [`JobParams::engine`].
    pub engine: Option<u32>,
    /// The ranks, see [`ranks`].
    pub ranks: Option<String>,
    /// Close the stdin of the ranks behind the bytes.
    #[serde(default)]
    pub complete: bool,
}

/// The parameters of a signal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalParams {
    /// See [`JobParams::engine`].
    pub engine: Option<u32>,
    /// The ranks, see [`ranks`].
    pub ranks: Option<String>,
    /// The name of the signal, such as `TERM`.
    pub signal: String,
}

/// Returns the ranks in a list such as `0,3-5`. No list, or `all`, means all ranks.
///
/// # Errors
/// The text is not such a list, or names too many ranks.
pub fn ranks(list: Option<&str>) -> Result<Vec<Rank>, String> {
    let Some(list) = list.filter(|list| *list != "all") else { return Ok(vec![Rank::WILDCARD]) };
    let number = |text: &str| text.parse().ok().filter(|number| *number < Rank::WILDCARD.0);
    let mut ranks = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) =
            number(first).zip(number(last)).filter(|(first, last)| first <= last).ok_or_else(|| {
                format!("invalid rank '{part}': expected 'all' or ranks and ranges such as 0,3-5")
            })?;
        if (last - first) as usize >= MAX_RANKS.saturating_sub(ranks.len()) {
            return Err(format!("more than {MAX_RANKS} ranks: name fewer, or all"));
        }
        ranks.extend((first..=last).map(Rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(ranks)
}

/// Returns the output channels in a list such as `stdout,stderr`. No list means all.
///
/// # Errors
/// The text is not such a list.
pub fn channels(list: Option<&str>) -> Result<Channels, String> {
    let Some(list) = list else { return Ok(Channels::OUTPUTS) };
    list.split(',').try_fold(Channels::empty(), |all, name| Ok(all | Channels::from(channel(name)?)))
}

/// Returns the output channel of this name.
///
/// # Errors
/// There is none.
pub fn channel(name: &str) -> Result<Channel, String> {
    Channel::OUTPUTS.into_iter().find(|channel| channel.as_str() == name).ok_or_else(|| {
        let names = Channel::OUTPUTS.map(Channel::as_str).join(", ");
        format!("invalid channel '{name}': expected one of {names}")
    })
}

/// Returns the number of a rank, and `None` for the job as a whole.
pub fn number(rank: Rank) -> Option<u32> {
    (rank.0 < Rank::WILDCARD.0).then_some(rank.0)
}

/// A stream of a job: rank, channel, and whether it consists of what was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    /// The rank, or [`Rank::UNDEF`] for the job.
    pub rank: Rank,
    /// The channel.
    pub channel: Channel,
    /// Set if it consists of what was logged.
    pub logged: bool,
}

/// The positions behind the events that a client has, as in the id of an event and in `Last-Event-ID`:
/// `RUN:RANK.CHANNEL.OFFSET,...`, or `RUN:exit` behind the last event.
///
/// The run is a hexadecimal number, the rank of what was logged for the whole job is `-`, and the channel of what was
/// logged begins with `log-`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// The run of the job.
    pub run: u128,
    /// The offset of the next byte of each stream; other streams are at 0.
    pub offsets: BTreeMap<StreamId, u64>,
    /// Set behind the last event.
    pub is_over: bool,
}

impl Positions {
    /// Parses an id. A stream that occurs several times is at the last one.
    ///
    /// # Errors
    /// The text is not an id.
    pub fn parse(id: &str) -> Result<Positions, String> {
        let invalid = || {
            "invalid Last-Event-ID: expected RUN:RANK.CHANNEL.OFFSET,... as in the ids of events".to_owned()
        };
        let (run, list) = id.trim().split_once(':').ok_or_else(invalid)?;
        let run = u128::from_str_radix(run, 16).map_err(|_| invalid())?;
        let mut positions = Positions { run, is_over: list == "exit", ..Positions::default() };
        for position in list.split(',').filter(|position| !position.is_empty() && *position != "exit") {
            let (stream, offset) = position.rsplit_once('.').ok_or_else(invalid)?;
            let (rank, name) = stream.split_once('.').ok_or_else(invalid)?;
            let rank = if rank == "-" { Rank::UNDEF } else { Rank(rank.parse().map_err(|_| invalid())?) };
            let (name, logged) = name.strip_prefix("log-").map_or((name, false), |name| (name, true));
            let stream = StreamId { rank, channel: channel(name)?, logged };
            positions.offsets.insert(stream, offset.parse().map_err(|_| invalid())?);
        }
        Ok(positions)
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:", self.run)?;
        if self.is_over {
            return f.write_str("exit");
        }
        let mut comma = "";
        for (StreamId { rank, channel, logged }, offset) in &self.offsets {
            let log = if *logged { "log-" } else { "" };
            write!(f, "{comma}{rank}.{log}{channel}.{offset}")?;
            comma = ",";
        }
        Ok(())
    }
}

/// Returns the position of a number of lines before the end, or the other one. Without both it is the oldest byte.
///
/// # Errors
/// The client asks for both, or for no line.
pub fn position(tail: Option<u64>, other: Option<Position>) -> Result<Position, String> {
    match (tail, other) {
        (None, other) => Ok(other.unwrap_or(Position::Oldest)),
        (Some(lines @ 1..), None) => Ok(Position::Lines(lines)),
        (Some(0), _) => Err("tail=0: expected 1 or more lines".into()),
        (Some(_), Some(_)) => Err("tail excludes offset and since: drop one".into()),
    }
}

/// A range of bytes that a client asks for by the header `Range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From the first offset to the last one, both included, or to the end.
    From(u64, Option<u64>),
    /// This number of bytes before the end.
    Last(u64),
}

impl ByteRange {
    /// Parses the value of the header. Returns `None` for other units, several ranges and any other text: the header
    /// is ignored then (RFC 9110).
    pub fn parse(value: &str) -> Option<ByteRange> {
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        match value.trim().strip_prefix("bytes=")?.split_once('-')? {
            ("", last) => Some(ByteRange::Last(number(last)?)),
            (first, "") => Some(ByteRange::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(ByteRange::From(first, Some(last)))
            }
        }
    }

    /// Returns the offset of the first byte and that behind the last one, in a stream that has `end` bytes. `None` if
    /// it has none of them.
    pub fn within(self, end: u64) -> Option<(u64, u64)> {
        let (first, last) = match self {
            ByteRange::From(first, last) => (first, last.map_or(end, |last| end.min(last.saturating_add(1)))),
            ByteRange::Last(count) => (end.saturating_sub(count), end),
        };
        (first < last).then_some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ranks_are_parsed_within_their_limit() {
        let parse =
            |list| ranks(Some(list)).map(|ranks| ranks.into_iter().map(|rank| rank.0).collect::<Vec<_>>());
        assert_eq!(ranks(None), Ok(vec![Rank::WILDCARD]));
        assert_eq!(parse("all"), Ok(vec![Rank::WILDCARD.0]));
        assert_eq!(parse("3,0-1,1"), Ok(vec![0, 1, 3]));
        assert_eq!(parse("0-4095").map(|ranks| ranks.len()), Ok(4096));
        for wrong in ["", "x", "1-0", "-1", "0-4096", "0-4095,9999", "4294967294", "0-4294967293", "1,,2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_id_is_parsed_to_what_it_was_written_from() {
        let stream = |rank, channel, logged| StreamId { rank: Rank(rank), channel, logged };
        let offsets = BTreeMap::from([
            (stream(0, Channel::Stdout, false), 7),
            (stream(1, Channel::Stderr, true), u64::MAX),
            (StreamId { rank: Rank::UNDEF, ..stream(0, Channel::Stdout, true) }, 0),
        ]);
        for positions in [
            Positions { run: 0xabc, offsets, is_over: false },
            Positions { run: u128::MAX, ..Positions::default() },
            Positions { run: 1, is_over: true, ..Positions::default() },
        ] {
            assert_eq!(Positions::parse(&positions.to_string()), Ok(positions));
        }
        for wrong in ["", "x:", "1", "1:0.stdout", "1:0.stdin.5", "1:0.stdout.-5", "1:0..5", "1:5"] {
            assert!(Positions::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_are_those_of_http() {
        let within = |value| ByteRange::parse(value).map(|range| range.within(10));
        assert_eq!(within("bytes=2-4"), Some(Some((2, 5))));
        assert_eq!(within("bytes=2-"), Some(Some((2, 10))));
        assert_eq!(within("bytes=-3"), Some(Some((7, 10))));
        assert_eq!(within("bytes=0-18446744073709551615"), Some(Some((0, 10))));
        assert_eq!(within("bytes=10-"), Some(None));
        assert_eq!(within("bytes=-0"), Some(None));
        for ignored in ["lines=1-2", "bytes=4-2", "bytes=1-2,4-5", "bytes=+1-2", "bytes=-"] {
            assert_eq!(within(ignored), None, "{ignored}");
        }
    }
}
