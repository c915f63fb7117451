//! The options that select a part of the output by lines, time or offset.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use iof_proto::{Position, Proc};
use iof_tool::{FeedId, Tool};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::options::values::duration;

/// The heading of these options in help.
const PART: &str = "Part of the output";

#[derive(Args, Default)]
pub struct PositionArgs {
    /// End after the cached output
    #[arg(long, help_heading = PART)]
    pub no_follow: bool,

    /// Begin with the last N lines of each rank
    ///
    /// With N:all, with the last N lines of all ranks together, by the times at which they were read.
    /// 0 skips all output that is cached.
    #[arg(long, help_heading = PART, value_name = "N[:all]", value_parser = tail, group = "position", allow_hyphen_values = true)]
    pub tail: Option<Tail>,

    /// Begin with output read since then
    ///
    /// A time ago, such as 10s or 5m, or a date and time, such as 2026-11-29T06:00:00 or
    /// 2026-11-29T06:00:00Z. Times are those at which the rank's node has read the output.
    #[arg(long, help_heading = PART, value_name = "TIME", value_parser = since, group = "position", allow_hyphen_values = true)]
    pub since: Option<u64>,

    /// Begin one stream at an offset
    ///
    /// An offset is a number of bytes that the rank has written to the channel. Dropped bytes behind it
    /// are reported as a gap.
    #[arg(long, help_heading = PART, value_name = "OFFSET", group = "position", allow_hyphen_values = true)]
    #[arg(value_parser = offset)]
    pub from: Option<u64>,

    /// Continue a file of --output json
    ///
    /// Begins each stream behind what FILE has of it, so that FILE and the output together are the whole
    /// stream: iof pull --output json --resume FILE >> FILE. An incomplete line at the end of FILE is
    /// cut off. FILE need not exist.
    #[arg(long, help_heading = PART, value_name = "FILE", group = "position")]
    pub resume: Option<PathBuf>,

    /// End with output read until then
    ///
    /// A date and time, such as 2026-11-29T06:00:00Z.
    #[arg(long, help_heading = PART, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub until: Option<u64>,
}

/// A number of lines.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    count: u64,
    /// Of all ranks together.
    all: bool,
}

impl PositionArgs {
    /// Returns the position at which to register.
    pub fn position(&self) -> Position {
        let tail = || self.tail.filter(|tail| tail.count == 0).map(|_| Position::Newest);
        let since = self.since.map(Position::Time);
        since.or(self.from.map(Position::Offset)).or_else(tail).unwrap_or_default()
    }

    /// Returns whether no output is selected: it ends where it begins.
    pub fn is_empty(&self) -> bool {
        self.no_follow && self.position() == Position::Newest
    }

    /// Returns the lines that are to be found in the streams.
    pub fn lines(&self) -> Option<Tail> {
        self.tail.filter(|tail| tail.count > 0)
    }
}

impl Tail {
    /// Returns this number of lines of each rank.
    pub fn of_each(count: u64) -> Tail {
        Tail { count, all: false }
    }

    /// Makes the streams of `tools` begin with these lines. If `ends`, they end with them, too.
    pub fn apply(self, tools: &mut [Tool], ends: bool) {
        let mut begins: BTreeMap<(usize, FeedId), u64> = BTreeMap::new();
        let mut groups: BTreeMap<Option<Proc>, BinaryHeap<_>> = BTreeMap::new();
        let mut streams = Vec::new();
        for tool in tools.iter_mut().filter(|_| ends) {
            tool.streams().collect::<Vec<_>>().into_iter().for_each(|stream| tool.end_here(stream));
        }
        for (tool, attached) in tools.iter().enumerate() {
            for stream in attached.streams() {
                let mut lines = attached.cached_lines(stream);
                let source = attached.origin(stream).map(|origin| origin.source.clone());
                // The first item is the end: a stream without a line that is shown begins there.
                begins.extend(lines.next().map(|(end, _)| ((tool, stream), end)));
                let newest = lines.next().map(|(offset, time)| (time, Reverse(streams.len()), offset));
                groups.entry(source.filter(|_| !self.all)).or_default().extend(newest);
                streams.push(((tool, stream), lines));
            }
        }
        for mut newest in groups.into_values() {
            for _ in 0..self.count {
                let Some((_, Reverse(index), offset)) = newest.pop() else { break };
                let Some((stream, lines)) = streams.get_mut(index) else { break };
                begins.insert(*stream, offset);
                newest.extend(lines.next().map(|(offset, time)| (time, Reverse(index), offset)));
            }
        }
        drop(streams);
        for ((tool, stream), offset) in begins {
            tools.get_mut(tool).into_iter().for_each(|tool| tool.begin_at(stream, offset));
        }
    }
}

/// Parses a number of lines.
fn tail(text: &str) -> Result<Tail, String> {
    let (count, all) = text.strip_suffix(":all").map_or((text, false), |count| (count, true));
    let count = count.parse().map_err(|_| {
        format!("invalid number of lines '{text}': expected a number such as 10, or with all ranks, 10:all")
    })?;
    Ok(Tail { count, all })
}

fn offset(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("invalid offset '{text}': expected a number of bytes"))
}

/// Parses a duration before now, or a time. Returns nanoseconds since 1970.
fn since(text: &str) -> Result<u64, String> {
    match duration(text) {
        Ok(ago) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(u64::try_from(now.saturating_sub(ago).as_nanos()).unwrap_or(u64::MAX))
        }
        Err(_) => time(text)
            .map_err(|_| format!("invalid time '{text}': expected a time ago, such as 10s or 5m, or {TIME}")),
    }
}

/// The forms of a time.
const TIME: &str = "a date and time, such as 2026-11-29T06:00:00 (local) or 2026-11-29T06:00:00Z";

/// Parses a date with a time. Returns nanoseconds since 1970.
fn time(text: &str) -> Result<u64, String> {
    let local = || Some(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok()?.timestamp());
    let timestamp = text.parse::<Timestamp>().ok().or_else(local);
    // Reads have times between 1970 and 2554.
    let nanoseconds = |time: Timestamp| u64::try_from(time.as_nanosecond().max(0)).unwrap_or(u64::MAX);
    timestamp.map(nanoseconds).ok_or_else(|| format!("invalid time '{text}': expected {TIME}"))
}
