//! The rows of the screen: streams, or the sums of ranks, and their order.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use iof_proto::{Channel, Nspace, Proc, Rank, ReaderStats, StreamStats};

use super::rank::RankInfo;

/// An engine, and a source, a channel and whether the stream has messages.
pub type StreamKey = (EngineId, Proc, Channel, bool);

/// An engine, by the number in which it was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EngineId(pub u32);

/// The streams that a row stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowKind {
    Stream,
    /// All streams of a rank that the filter selects.
    Rank,
    /// All streams of a job that the filter selects, or a job whose engine has never answered.
    Job,
}

/// The row of one stream, or the sum of several.
#[derive(Clone)]
pub struct StreamRow {
    pub engine: EngineId,
    /// The counters. In a sum, they are added up, and the channel is that of the first stream.
    pub stats: StreamStats,
    /// Bytes per second between the last two samples; `None` after the first sample.
    pub rate: Option<u64>,
    pub kind: RowKind,
    /// The rank; `None` in a row of a job, and for what belongs to a job as a whole.
    pub rank: Option<RankInfo>,
    /// The state of the rank, or of the ranks of a job.
    pub state: String,
    /// When the stream was last seen to grow.
    pub grew: Option<Instant>,
    /// The stream has ended, or has not grown for a while.
    pub is_idle: bool,
}

impl StreamRow {
    pub fn new(engine: EngineId, stats: StreamStats) -> StreamRow {
        StreamRow {
            engine,
            stats,
            rate: None,
            kind: RowKind::Stream,
            rank: None,
            state: String::new(),
            grew: None,
            is_idle: false,
        }
    }

    /// Returns what distinguishes a stream from all others.
    pub fn key(&self) -> StreamKey {
        (self.engine, self.stats.source.clone(), self.stats.channel, self.stats.logged)
    }

    /// Returns the engine and the job.
    pub fn job(&self) -> (EngineId, Nspace) {
        (self.engine, self.stats.source.nspace.clone())
    }

    /// Returns whether the row is hidden with the idle ones. A rank that needs attention keeps its stdout
    /// and what it has written to.
    pub fn may_be_hidden(&self) -> bool {
        let needs_attention = self.rank.as_ref().is_some_and(RankInfo::needs_attention);
        let is_kept = needs_attention && (self.stats.produced > 0 || self.stats.channel == Channel::Stdout);
        self.is_idle && self.kind != RowKind::Job && !is_kept
    }

    /// Adds the counters of another stream.
    fn add(&mut self, other: &StreamRow) {
        let (stats, more) = (&mut self.stats, &other.stats);
        self.is_idle &= other.is_idle;
        self.rate = self.rate.zip(other.rate).map(|(rate, more)| rate.saturating_add(more));
        stats.produced = stats.produced.saturating_add(more.produced);
        stats.cached = stats.cached.saturating_add(more.cached);
        stats.dropped = stats.dropped.saturating_add(more.dropped);
        stats.complete &= more.complete;
        stats.missing = match (stats.missing, more.missing) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        add_readers(&mut stats.readers, &more.readers);
    }

    /// Returns the lag of the slowest reader, in bytes.
    pub fn lag(&self) -> u64 {
        self.stats.readers.iter().map(|reader| reader.lag).max().unwrap_or(0)
    }
}

/// The sort key of the rows. Rows with equal keys are sorted by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// By job, rank and channel, in ascending order. All other keys sort in descending order.
    #[default]
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

/// Adds the lags of readers to those of the same tools.
pub fn add_readers(sum: &mut Vec<ReaderStats>, more: &[ReaderStats]) {
    for reader in more {
        let is_same = |known: &&mut ReaderStats| known.tool == reader.tool && known.pid == reader.pid;
        match sum.iter_mut().find(is_same) {
            Some(known) => known.lag = known.lag.saturating_add(reader.lag),
            None => sum.push(reader.clone()),
        }
    }
}

pub fn by_name(a: &StreamRow, b: &StreamRow) -> Ordering {
    let name = |row: &StreamRow| (row.engine, row.stats.source.rank, row.stats.channel);
    a.stats.source.nspace.cmp(&b.stats.source.nspace).then_with(|| name(a).cmp(&name(b)))
}

/// Returns the sums of the rows of each rank or of each job.
pub fn sums(rows: Vec<StreamRow>, kind: RowKind) -> Vec<StreamRow> {
    let mut sums: BTreeMap<(EngineId, Proc), StreamRow> = BTreeMap::new();
    for mut row in rows {
        if kind == RowKind::Job {
            (row.stats.source.rank, row.rank) = (Rank::WILDCARD, None);
        }
        match sums.entry((row.engine, row.stats.source.clone())) {
            Entry::Occupied(sum) => sum.into_mut().add(&row),
            Entry::Vacant(place) => drop(place.insert(StreamRow { kind, ..row })),
        }
    }
    sums.into_values().collect()
}
