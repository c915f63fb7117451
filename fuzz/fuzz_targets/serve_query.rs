//! No text of a request to `iof serve` does more than select streams within the limits.

#![no_main]

use iof_serve::query::{ByteRange, Positions, channels, position, ranks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, u64, Option<u64>)| {
    let (text, end, tail) = input;
    if let Ok(ranks) = ranks(Some(text)) {
        assert!(!ranks.is_empty() && ranks.is_sorted() && ranks.len() <= 4096);
    }
    if let Ok(channels) = channels(Some(text)) {
        assert!(!channels.is_empty());
    }
    if let Ok(positions) = Positions::parse(text) {
        assert_eq!(Positions::parse(&positions.to_string()), Ok(positions));
    }
    if let Some((first, last)) = ByteRange::parse(text).and_then(|range| range.within(end)) {
        assert!(first < last && last <= end);
    }
    assert_eq!(position(tail, None).is_err(), tail == Some(0));
});
