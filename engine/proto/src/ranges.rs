//! Lists of ranks for people.

use std::collections::BTreeSet;

use crate::names::Rank;

/// The number of ranges of ranks that a message lists.
const MAX_LISTED_RANGES: usize = 8;

/// Returns ranks as ranges, such as `0,3-5`. Ranges beyond the eighth are replaced by
/// `...`.
pub fn listed(ranks: &BTreeSet<Rank>) -> String {
    let mut parts = ranges(ranks);
    if parts.len() > MAX_LISTED_RANGES {
        parts.truncate(MAX_LISTED_RANGES);
        parts.push("...".into());
    }
    parts.join(",")
}

/// Returns sorted ranks as ranges, such as `0` and `3-5`.
pub fn ranges<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> Vec<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges_up_to_a_limit() {
        let text = |ranks: &[u32]| listed(&ranks.iter().copied().map(Rank).collect());
        assert_eq!(text(&[5, 0, 3, 4]), "0,3-5");
        assert_eq!(text(&[7]), "7");
        assert_eq!(text(&(0..10_000).collect::<Vec<u32>>()), "0-9999");
        let odd: Vec<u32> = (0..100).map(|number| number * 2 + 1).collect();
        assert_eq!(text(&odd), "1,3,5,7,9,11,13,15,...");
    }
}
