//! The streams that the screen shows: a selection by ranks, channels and job.

use std::fmt;

use iof_proto::{Channels, Nspace, StreamStats};

use crate::options::values::{Ranks, channels, ranks};

/// A selection of streams. `None` selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFilter {
    pub ranks: Option<Ranks>,
    pub channels: Option<Channels>,
    pub job: Option<Nspace>,
}

impl RowFilter {
    /// Parses words separated by blanks: ranks such as `0,3-5`, channels such as `stdout,stderr`,
    /// or the name of a job.
    pub fn parse(text: &str) -> Result<RowFilter, String> {
        let mut filter = RowFilter::default();
        for word in text.split_whitespace() {
            let is_second = if let Ok(ranks) = ranks(word) {
                filter.ranks.replace(ranks).is_some()
            } else if let Ok(channels) = channels(word) {
                filter.channels.replace(channels).is_some()
            } else {
                let job = Nspace::new(word).map_err(|error| error.to_string())?;
                filter.job.replace(job).is_some()
            };
            if is_second {
                return Err(format!(
                    "'{word}' is the second of its kind: expected ranks, channels and a job"
                ));
            }
        }
        Ok(filter)
    }

    pub fn matches(&self, stream: &StreamStats) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.contain(stream.source.rank))
            && self.channels.is_none_or(|channels| channels.contains(stream.channel.into()))
            && self.job.as_ref().is_none_or(|job| *job == stream.source.nspace)
    }
}

impl fmt::Display for RowFilter {
    /// Writes the words that [`RowFilter::parse`] takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = |channels: &Channels| {
            channels.outputs().map(|channel| channel.as_str()).collect::<Vec<_>>().join(",")
        };
        let words = [
            self.ranks.as_ref().map(ToString::to_string),
            self.channels.as_ref().map(channels),
            self.job.as_ref().map(ToString::to_string),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::stream;
    use super::*;

    #[test]
    fn a_filter_consists_of_ranks_channels_and_a_job_in_any_order() {
        let filter = RowFilter::parse(" stderr,stdout 4,0-2  a.out ").unwrap();
        assert_eq!(filter.to_string(), "0-2,4 stdout,stderr a.out");
        assert_eq!(RowFilter::parse(&filter.to_string()), Ok(filter));
        assert_eq!(RowFilter::parse(""), Ok(RowFilter::default()));
        for invalid in ["0 1", "stdout stderr", "a b", "a/b"] {
            assert!(RowFilter::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_stream_matches_if_all_parts_of_the_filter_match() {
        let matches = |filter: &str| RowFilter::parse(filter).unwrap().matches(&stream(3, 0, 0, &[]));
        assert!(["", "all", "3", "0,2-4", "stdout", "job", "job stdout 3"].into_iter().all(matches));
        assert!(!["0", "stderr", "jo", "job stdout 4", "stderr 3"].into_iter().any(matches));
    }
}
