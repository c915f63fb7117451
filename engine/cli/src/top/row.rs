//! The rows of the screen: streams, or the sums of ranks, and their order.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use iof_proto::{Proc, ReaderStats, StreamStats};

/// The row of one stream, or the sum of a rank's streams.
#[derive(Clone)]
pub struct StreamRow {
    /// The counters. In a sum, they are added up, and the channel is that of the first stream.
    pub stats: StreamStats,
    /// Bytes per second between the last two samples; `None` after the first sample.
    pub rate: Option<u64>,
    pub is_sum: bool,
}

impl StreamRow {
    /// Returns `true` if the stream has ended or wrote nothing between the last two samples.
    pub fn is_idle(&self) -> bool {
        self.stats.complete || self.rate == Some(0)
    }

    /// Adds the counters of another stream of the same rank.
    fn add(&mut self, other: &StreamRow) {
        let (stats, more) = (&mut self.stats, &other.stats);
        self.is_sum = true;
        self.rate = self.rate.zip(other.rate).map(|(rate, more)| rate.saturating_add(more));
        stats.produced = stats.produced.saturating_add(more.produced);
        stats.cached = stats.cached.saturating_add(more.cached);
        stats.dropped = stats.dropped.saturating_add(more.dropped);
        stats.complete &= more.complete;
        stats.missing = match (stats.missing, more.missing) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        for reader in &more.readers {
            let is_same = |known: &&mut ReaderStats| known.tool == reader.tool && known.pid == reader.pid;
            match stats.readers.iter_mut().find(is_same) {
                Some(known) => known.lag = known.lag.saturating_add(reader.lag),
                None => stats.readers.push(reader.clone()),
            }
        }
    }

    /// Returns the lag of the slowest reader, in bytes.
    pub fn lag(&self) -> u64 {
        self.stats.readers.iter().map(|reader| reader.lag).max().unwrap_or(0)
    }
}

/// The sort key of the rows. Rows with equal keys are sorted by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// By job, rank and channel, in ascending order. All other keys sort in descending order.
    Name,
    Rate,
    Cached,
    Dropped,
    Lag,
}

impl Sort {
    /// Returns the sort key that a letter selects.
    pub fn of_key(letter: char) -> Option<Sort> {
        Some(match letter {
            'n' => Sort::Name,
            'r' => Sort::Rate,
            'c' => Sort::Cached,
            'd' => Sort::Dropped,
            'l' => Sort::Lag,
            _ => return None,
        })
    }

    pub fn compare(self, a: &StreamRow, b: &StreamRow) -> Ordering {
        match self {
            Sort::Name => by_name(a, b),
            Sort::Rate => b.rate.cmp(&a.rate),
            Sort::Cached => b.stats.cached.cmp(&a.stats.cached),
            Sort::Dropped => b.stats.dropped.cmp(&a.stats.dropped),
            Sort::Lag => b.lag().cmp(&a.lag()),
        }
    }
}

pub fn by_name(a: &StreamRow, b: &StreamRow) -> Ordering {
    let name = |row: &StreamRow| (row.stats.source.rank, row.stats.channel);
    a.stats.source.nspace.cmp(&b.stats.source.nspace).then_with(|| name(a).cmp(&name(b)))
}

/// Returns the sum of the rows of each rank.
pub fn sums(rows: Vec<StreamRow>) -> Vec<StreamRow> {
    let mut sums: BTreeMap<Proc, StreamRow> = BTreeMap::new();
    for row in rows {
        match sums.get_mut(&row.stats.source) {
            Some(sum) => sum.add(&row),
            None => drop(sums.insert(row.stats.source.clone(), StreamRow { is_sum: true, ..row })),
        }
    }
    sums.into_values().collect()
}
