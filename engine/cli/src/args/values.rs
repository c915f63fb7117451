//! Parsers of option values.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use iof_engine::MAX_RANKS;
use iof_output::MAX_KEPT_FILES;
use iof_proto::{Channel, Channels, Rank};

/// The ranks that an option names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(pub Vec<Rank>);

/// Parses a list of ranks.
pub fn ranks(text: &str) -> Result<Ranks, String> {
    if text == "all" {
        return Ok(Ranks(vec![Rank::WILDCARD]));
    }
    let number = |part: &str| {
        let number = part.trim().parse::<u32>().ok().filter(|number| *number < MAX_RANKS);
        number
            .ok_or_else(|| format!("invalid rank '{part}': expected 'all' or ranks and ranges such as 0,3-5"))
    };
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("invalid range '{part}': the first rank is greater than the last"));
        }
        ranks.extend((first..=last).map(Rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(Ranks(ranks))
}

/// Parses a list of channels. Shells complete its words.
#[derive(Clone)]
pub struct ChannelList;

impl TypedValueParser for ChannelList {
    type Value = Channels;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Channels, clap::Error> {
        TypedValueParser::parse_ref(&channels, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];
        Some(Box::new(words.into_iter().map(|channel| PossibleValue::new(channel.as_str()))))
    }
}

fn channels(text: &str) -> Result<Channels, String> {
    let mut channels = Channels::empty();
    for word in text.split(',') {
        match word.trim().parse() {
            Ok(Channel::Stdin) => return Err("stdin can only be pushed, not pulled".into()),
            Ok(channel) => channels |= Channels::from(channel),
            Err(_) => return Err(format!("invalid channel '{word}': expected stdout, stderr or stddiag")),
        }
    }
    Ok(channels)
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("invalid time '{text}': expected seconds, such as 0, 0.5 or 10"))
}

/// The shortest time between two updates.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest.
const MAX_INTERVAL: Duration = Duration::from_hours(24);

pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let refused = || {
        format!(
            "invalid interval '{text}': expected {} to {} seconds",
            MIN_INTERVAL.as_secs_f64(),
            MAX_INTERVAL.as_secs()
        )
    };
    (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval).then_some(interval).ok_or_else(refused)
}

pub fn cache_size(text: &str) -> Result<u32, String> {
    let bytes = bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| {
        format!(
            "invalid cache size '{text}': expected 1 to {} bytes, optionally with suffix K, M or G",
            u32::MAX
        )
    })
}

/// The smallest size at which a new file is begun: each time, all kept files are renamed.
const MIN_FILE_SIZE: u64 = 4 << 10;

pub fn file_size(text: &str) -> Result<u64, String> {
    let size = bytes(text)?;
    let refused = || format!("invalid file size '{text}': expected 4K or more");
    (size >= MIN_FILE_SIZE).then_some(size).ok_or_else(refused)
}

pub fn file_count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count <= MAX_KEPT_FILES);
    count.ok_or_else(|| format!("invalid number of files '{text}': expected 0 to {MAX_KEPT_FILES}"))
}

pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (text.get(..text.len().saturating_sub(1)), 1u64 << 10),
        Some(b'm' | b'M') => (text.get(..text.len().saturating_sub(1)), 1 << 20),
        Some(b'g' | b'G') => (text.get(..text.len().saturating_sub(1)), 1 << 30),
        _ => (Some(text), 1),
    };
    let bytes = digits.and_then(|digits| digits.parse::<u64>().ok()).and_then(|n| n.checked_mul(unit));
    let bytes = bytes.filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        format!("invalid size '{text}': expected a positive number, optionally with suffix K, M or G")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_are_sorted_sets_of_ranks_and_ranges() {
        assert_eq!(ranks("all").unwrap().0, [Rank::WILDCARD]);
        assert_eq!(ranks("3-5,0,4").unwrap().0, [0, 3, 4, 5].map(Rank));
        for wrong in ["", "x", "5-3", "-1", "1-", "4294967295", "1,,2"] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn channel_lists_name_output_channels() {
        assert_eq!(channels("stdout,stddiag").unwrap(), Channels::STDOUT | Channels::STDDIAG);
        for wrong in ["", "stdin", "stdout,", "output"] {
            assert!(channels(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cache_sizes_have_units_and_a_limit() {
        assert_eq!(cache_size("1"), Ok(1));
        assert_eq!(cache_size("64K"), Ok(65536));
        assert_eq!(cache_size("3G"), Ok(3 << 30));
        for wrong in ["", "0", "K", "4G", "-1", "1.5M", "99999999999999999999G"] {
            assert!(cache_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_seconds_from_0_on() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "-1", "x", "1s", "inf", "nan", "1e300"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_are_neither_too_short_nor_longer_than_a_day() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("86400"), Ok(Duration::from_hours(24)));
        for wrong in ["0", "0.09", "86401", "soon"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
