//! Time stamps.

use std::io::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The format of a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The format of ctime(3) in the local time zone: `Sat Nov 21 13:17:58 2026`.
    Calendar,
    /// Nanoseconds since 1970.
    Nanoseconds,
    /// Microseconds since 1970.
    Microseconds,
    /// Milliseconds since 1970.
    Milliseconds,
    /// `2026-11-21T13:17:58.123456789Z` (RFC 3339).
    Rfc3339,
    /// The time of day in the local time zone: `13:17:58.123`.
    Local,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl Stamp {
    /// The formats with their names in `timestamp=NAME`.
    pub(crate) const NAMED: [(&str, Stamp); 5] = [
        ("ns", Stamp::Nanoseconds),
        ("us", Stamp::Microseconds),
        ("ms", Stamp::Milliseconds),
        ("rfc3339", Stamp::Rfc3339),
        ("local", Stamp::Local),
    ];

    /// Returns the format with this name, in any case; `None` if there is none.
    pub(crate) fn named(name: &str) -> Option<Stamp> {
        Stamp::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, stamp)| *stamp)
    }

    /// Returns the part of `time`, in nanoseconds since 1970, that the format shows: times with
    /// equal parts look the same.
    pub(crate) fn part(self, time: u64) -> u64 {
        match self {
            Stamp::Calendar => time / NANOS_PER_SECOND,
            Stamp::Milliseconds | Stamp::Local => time / 1_000_000,
            Stamp::Microseconds => time / 1000,
            Stamp::Nanoseconds | Stamp::Rfc3339 => time,
        }
    }

    /// Returns whether the format is a plain number.
    pub(crate) fn is_number(self) -> bool {
        matches!(self, Stamp::Nanoseconds | Stamp::Microseconds | Stamp::Milliseconds)
    }

    /// Appends `time`, in nanoseconds since 1970, to `buffer`. `zone` is the local time zone.
    pub(crate) fn write(self, time: u64, zone: &TimeZone, buffer: &mut Vec<u8>) {
        let stamp = || Timestamp::from_nanosecond(time.into()).unwrap_or_default();
        // Writing to memory does not fail.
        let _ = match self {
            Stamp::Calendar => {
                write!(buffer, "{}", stamp().to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y"))
            }
            Stamp::Nanoseconds | Stamp::Microseconds | Stamp::Milliseconds => {
                write!(buffer, "{}", self.part(time))
            }
            Stamp::Rfc3339 => write!(buffer, "{:.9}", stamp()),
            Stamp::Local => {
                write!(buffer, "{}", stamp().to_zoned(zone.clone()).strftime("%H:%M:%S%.3f"))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_by_ctime_as_numbers_and_as_by_rfc_3339() {
        let time = 1_588_844_439_012_345_678;
        for (stamp, shown) in [
            (Stamp::Calendar, "Thu May  7 09:40:39 2020"),
            (Stamp::Nanoseconds, "1588844439012345678"),
            (Stamp::Microseconds, "1588844439012345"),
            (Stamp::Milliseconds, "1588844439012"),
            (Stamp::Rfc3339, "2020-05-07T09:40:39.012345678Z"),
            (Stamp::Local, "09:40:39.012"),
        ] {
            let mut text = Vec::new();
            stamp.write(time, &TimeZone::UTC, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), shown);
            stamp.write(u64::MAX, &TimeZone::UTC, &mut text);
        }
    }
}
