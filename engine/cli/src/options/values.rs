//! Parsers of option values.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use iof_engine::{MAX_RANKS, MIN_CACHE_SIZE};
use iof_output::MAX_KEPT_FILES;
use iof_proto::ranges::ranges;
use iof_proto::{Channel, Channels, Rank};

/// The ranks of an option, sorted and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(pub Vec<Rank>);

impl Ranks {
    pub fn contain(&self, rank: Rank) -> bool {
        self.0 == [Rank::WILDCARD] || self.0.binary_search(&rank).is_ok()
    }
}

impl fmt::Display for Ranks {
    /// Writes the list in the form that [`ranks`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == [Rank::WILDCARD] {
            return f.write_str("all");
        }
        f.write_str(&ranges(&self.0).join(","))
    }
}

/// Parses `all`, or a list of ranks and ranges.
pub fn ranks(text: &str) -> Result<Ranks, String> {
    if text == "all" {
        return Ok(Ranks(vec![Rank::WILDCARD]));
    }
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number < MAX_RANKS);
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = number(first).zip(number(last));
        let (first, last) = range.ok_or_else(|| {
            format!("invalid rank '{part}': expected 'all' or ranks and ranges such as 0,3-5")
        })?;
        if first > last {
            return Err(format!("invalid range '{part}': the first rank is greater than the last"));
        }
        ranks.extend((first..=last).map(Rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(Ranks(ranks))
}

/// A parser of texts, with names for shell completion. It may accept other texts as well.
#[derive(Clone)]
pub struct Named<T> {
    pub parse: fn(&str) -> Result<T, String>,
    pub names: fn() -> Vec<&'static str>,
}

/// A parser of channel lists.
pub const CHANNELS: Named<Channels> =
    Named { parse: channels, names: || Channel::OUTPUTS.map(Channel::as_str).into() };

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        TypedValueParser::parse_ref(&self.parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.names)().into_iter().map(PossibleValue::new)))
    }
}

/// A word that an option takes, what shell completion tells of it, and its value.
pub type Choice<T> = (&'static str, &'static str, T);

/// Returns a parser of one of these words.
pub fn choice<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(words).try_map(|text| {
        let found = choices.iter().find(|(word, ..)| *word == text);
        found.map(|(.., value)| *value).ok_or("no such word")
    })
}

/// Parses a list of output channels.
pub fn channels(text: &str) -> Result<Channels, String> {
    let mut channels = Channels::empty();
    for name in text.split(',') {
        match Channel::KNOWN.into_iter().find(|channel| channel.as_str() == name.trim()) {
            Some(Channel::Stdin) => {
                return Err("invalid channel 'stdin': stdin can be pushed, but not pulled".into());
            }
            Some(channel) => channels |= Channels::from(channel),
            None => {
                let outputs = Channel::OUTPUTS.map(Channel::as_str).join(", ");
                return Err(format!("invalid channel '{name}': expected one of {outputs}"));
            }
        }
    }
    Ok(channels)
}

/// The units of times, in seconds. `ms` comes before `s`, which it ends in.
const TIME_UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Parses a time: in seconds, with suffix ms, s, m or h, or as `MINUTES:SECONDS` or
/// `HOURS:MINUTES:SECONDS`. The number of seconds or before the suffix may have a fraction.
pub fn duration(text: &str) -> Result<Duration, String> {
    let with_unit = |(suffix, unit)| Some((text.strip_suffix(suffix)?, unit));
    let (number, unit) = TIME_UNITS.into_iter().find_map(with_unit).unwrap_or((text, 1.0));
    let seconds = match text.contains(':') {
        true => clock_seconds(text),
        false => number.parse::<f64>().ok().map(|number| number * unit),
    };
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| {
        format!(
            "invalid time '{text}': expected seconds, such as 0.5 or 10, a number with suffix ms, s, m or h, \
             minutes:seconds or hours:minutes:seconds"
        )
    })
}

/// Returns `true` if `text` is a time with colons, as srun has it.
pub fn is_clock_time(text: &str) -> bool {
    clock_seconds(text).is_some()
}

/// Parses `MINUTES:SECONDS` and `HOURS:MINUTES:SECONDS`. All parts but the first are below 60.
fn clock_seconds(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split(':').collect();
    let whole = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u32>().ok());
    let (first, middle, last) = match parts.as_slice() {
        [minutes, seconds] => (0, whole(minutes)??, seconds),
        [hours, minutes, seconds] => (whole(hours)??, whole(minutes)??, seconds),
        _ => return None,
    };
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = last.parse::<f64>().ok().filter(|seconds| is_number && *seconds < 60.0)?;
    let is_valid = parts.len() == 2 || middle < 60;
    is_valid.then(|| f64::from(first) * 3600.0 + f64::from(middle) * 60.0 + seconds)
}

/// Formats a time as [`duration`] parses it, such as `90s`.
pub fn show_duration(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

/// Parses the pid of an engine.
pub fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("invalid pid '{text}': expected a number, as `iof ps` prints it"))
}

/// Parses the number of ranks of a program.
pub fn nprocs(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_RANKS).contains(count));
    count.ok_or_else(|| format!("expected a number of ranks from 1 to {MAX_RANKS}"))
}

/// Parses a time limit, which is greater than 0.
pub fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration(text)?;
    let too_short = || format!("invalid timeout '{text}': expected more than 0 seconds");
    (!timeout.is_zero()).then_some(timeout).ok_or_else(too_short)
}

/// The shortest value of `--give-up`.
const MIN_GIVE_UP: Duration = Duration::from_millis(100);

/// Parses the time after which an output that accepts nothing is given up.
pub fn give_up(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let least = MIN_GIVE_UP.as_secs_f64();
    let too_short = || format!("invalid duration '{text}': expected {least} seconds or more");
    (time >= MIN_GIVE_UP).then_some(time).ok_or_else(too_short)
}

/// The shortest time between two updates of `iof top`.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time between two updates of `iof top`.
const MAX_INTERVAL: Duration = Duration::from_hours(24);

/// Parses the time between two updates, in seconds.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let out_of_range = || {
        format!(
            "invalid interval '{text}': expected {} to {} seconds",
            MIN_INTERVAL.as_secs_f64(),
            MAX_INTERVAL.as_secs()
        )
    };
    (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval).then_some(interval).ok_or_else(out_of_range)
}

/// Parses a cache size in bytes, which the engine must accept as it is.
pub fn cache_size(text: &str) -> Result<u32, String> {
    let size = u32::try_from(bytes(text)?).ok().filter(|size| *size >= MIN_CACHE_SIZE);
    let out_of_range = || {
        let least = MIN_CACHE_SIZE >> 10;
        format!("invalid cache size '{text}': expected {least}K or more, and less than 4G")
    };
    size.ok_or_else(out_of_range)
}

/// Parses the bound on the sum of all caches, which is at least one cache.
pub fn cache_total(text: &str) -> Result<u64, String> {
    let total = bytes(text)?;
    let too_small = || format!("invalid sum of caches '{text}': expected {}K or more", MIN_CACHE_SIZE >> 10);
    (total >= u64::from(MIN_CACHE_SIZE)).then_some(total).ok_or_else(too_small)
}

/// The smallest size at which a new file is started. Each start renames all kept files.
const MIN_FILE_SIZE: u64 = 4 << 10;

/// Parses the size at which a new file is started.
pub fn file_size(text: &str) -> Result<u64, String> {
    let size = bytes(text)?;
    let too_small = || format!("invalid file size '{text}': expected 4K or more");
    (size >= MIN_FILE_SIZE).then_some(size).ok_or_else(too_small)
}

/// Parses the number of full files to keep.
pub fn file_count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count <= MAX_KEPT_FILES);
    count.ok_or_else(|| format!("invalid number of files '{text}': expected 0 to {MAX_KEPT_FILES}"))
}

/// The units of sizes, without an optional `B` for bytes.
const UNITS: [(&str, u64); 6] =
    [("K", 1 << 10), ("KI", 1 << 10), ("M", 1 << 20), ("MI", 1 << 20), ("G", 1 << 30), ("GI", 1 << 30)];

/// Parses a positive number of bytes with an optional unit: K, KB or KiB, and so on, in any case.
/// All are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let unit = unit.to_ascii_uppercase();
    let factor = match unit.strip_suffix('B').unwrap_or(&unit) {
        "" => Some(1),
        name => UNITS.iter().find(|(known, _)| *known == name).map(|(_, factor)| *factor),
    };
    let bytes = digits.parse::<u64>().ok().zip(factor).and_then(|(count, factor)| count.checked_mul(factor));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!(
            "invalid size '{text}': expected a positive number of bytes, optionally with a unit such as K, M, G or KiB"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_list_is_parsed_into_a_sorted_set() {
        assert_eq!(ranks("all").unwrap().0, [Rank::WILDCARD]);
        assert_eq!(ranks("9,3-5,0,4,1").unwrap().to_string(), "0-1,3-5,9");
        assert_eq!(ranks("3-5,0,4").unwrap().0, [0, 3, 4, 5].map(Rank));
        for invalid in ["", "x", "5-3", "-1", "1-", "4294967295", "1,,2"] {
            assert!(ranks(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_channel_list_accepts_output_channels_only() {
        assert_eq!(channels("stdout,stddiag").unwrap(), Channels::STDOUT | Channels::STDDIAG);
        for invalid in ["", "stdin", "stdout,", "output"] {
            assert!(channels(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_size_has_an_optional_unit_of_1024_in_several_spellings() {
        for (text, wanted) in
            [("1", 1), ("7B", 7), ("16KiB", 16 << 10), ("16kb", 16 << 10), ("16K", 16 << 10)]
        {
            assert_eq!(bytes(text), Ok(wanted), "{text}");
        }
        assert_eq!([bytes("2MiB"), bytes("2m"), bytes("2Mb")], [Ok(2 << 20), Ok(2 << 20), Ok(2 << 20)]);
        assert_eq!([bytes("3GiB"), bytes("3G"), bytes("3gb")], [Ok(3 << 30), Ok(3 << 30), Ok(3 << 30)]);
        for invalid in
            ["", "0", "0KiB", "K", "KiB", "-1", "1.5M", "1 K", "1KK", "1i", "1iB", "1KiBB", "1T", "1é"]
        {
            assert!(bytes(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_cache_size_has_a_least_and_a_greatest_value() {
        assert_eq!(cache_size("16KiB"), Ok(MIN_CACHE_SIZE));
        assert_eq!(cache_size("4294967295"), Ok(u32::MAX));
        for invalid in ["16383", "1", "4G", "99999999999999999999G"] {
            assert!(cache_size(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_time_is_a_number_not_below_zero_with_an_optional_unit() {
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(timeout("0").is_err() && timeout("0m").is_err());
        assert_eq!(timeout("5m"), duration("300"));
        for invalid in ["", "-1", "x", "s", "1d", "-1m", "inf", "infm", "nan", "1e300"] {
            assert!(duration(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_time_with_colons_is_minutes_and_seconds_or_hours_minutes_and_seconds() {
        assert_eq!(duration("1:00"), duration("60"));
        assert_eq!(duration("90:05.5"), duration("5405.5"));
        assert_eq!(duration("1:00:00"), duration("1h"));
        for invalid in
            [":", "1:", ":1", "1:60", "1:-1", "-1:00", "1:60:00", "1:0:0:0", "+1:00", "1:00s", "1:inf"]
        {
            assert!(duration(invalid).is_err() && !is_clock_time(invalid), "{invalid}");
        }
    }

    #[test]
    fn a_time_is_shown_in_a_form_that_is_understood() {
        for text in ["90s", "0.5s", "0.0001s", "86400s"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn an_interval_is_between_a_tenth_of_a_second_and_a_day() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("86400"), Ok(Duration::from_hours(24)));
        for invalid in ["0", "0.09", "86401", "soon"] {
            assert!(interval(invalid).is_err(), "{invalid}");
        }
    }
}
