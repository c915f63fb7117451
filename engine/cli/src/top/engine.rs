//! An engine as its last answers show it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use iof_proto::rendezvous::Search;
use iof_proto::{Channel, Nspace, Proc, StreamStats};

use super::rank::{NO_ANSWER, RankInfo};
use super::row::{EngineId, RowKind, StreamKey, StreamRow};

/// The time by which an answer may be overdue before the engine is shown as silent.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which a stream has not grown if it is idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// An engine's answer.
pub struct Sample {
    pub time: Instant,
    pub pid: u32,
    pub streams: Vec<StreamStats>,
    pub ranks: BTreeMap<Proc, RankInfo>,
}

/// An engine with its last answer.
#[derive(Default)]
pub struct EngineBoard {
    /// The search by which tools find the engine.
    pub search: Search,
    pub pid: Option<u32>,
    /// The names of its jobs according to its directory.
    pub jobs: Vec<Nspace>,
    pub ranks: BTreeMap<Proc, RankInfo>,
    /// The reason why it could not be attached to.
    pub failure: Option<String>,
    /// The number of answers.
    pub answers: u64,
    /// A thread asks it.
    pub is_asked: bool,
    /// Its answer was overdue, or it could not be attached to, when rows were last chosen.
    pub is_silent: bool,
    /// All streams of the last sample.
    streams: Vec<StreamRow>,
    /// The time of the last answer, or that of the first attempt.
    heard: Option<Instant>,
}

impl EngineBoard {
    /// Creates an engine that has not answered.
    pub fn new(search: Search, pid: Option<u32>, jobs: Vec<Nspace>) -> EngineBoard {
        EngineBoard { search, pid, jobs, heard: Some(Instant::now()), ..EngineBoard::default() }
    }

    /// Returns the time since the last answer.
    pub fn silence(&self, now: Instant) -> Duration {
        self.heard.map_or(Duration::ZERO, |heard| now.saturating_duration_since(heard))
    }

    /// Replaces the streams by a new sample. The rates follow from the bytes since the last sample;
    /// a stream that was not in it counts from its first byte.
    pub fn update(&mut self, id: EngineId, Sample { time, pid, streams, ranks }: Sample) {
        let elapsed = (self.answers > 0).then(|| self.silence(time));
        let before: HashMap<StreamKey, (u64, Option<Instant>)> =
            self.streams.iter().map(|row| (row.key(), (row.stats.produced, row.grew))).collect();
        let row = |stats: StreamStats| {
            let mut row = StreamRow::new(id, stats);
            let (produced, grew) = before.get(&row.key()).copied().unwrap_or((0, None));
            let more = row.stats.produced.saturating_sub(produced);
            row.rate = elapsed.and_then(|elapsed| per_second(more, elapsed));
            row.grew = if more > 0 && elapsed.is_some() { Some(time) } else { grew };
            let is_quiet = row.grew.is_none_or(|grew| time.saturating_duration_since(grew) >= IDLE_AFTER);
            row.is_idle = row.stats.complete || (row.rate == Some(0) && is_quiet);
            row.rank = ranks.get(&row.stats.source).cloned();
            row.state = row.rank.as_ref().map_or_else(|| "-".into(), RankInfo::text);
            row
        };
        self.streams = streams.into_iter().map(row).collect();
        self.answers = self.answers.saturating_add(1);
        (self.pid, self.ranks, self.heard, self.failure) = (Some(pid), ranks, Some(time), None);
    }

    /// Returns its rows: its streams, or its jobs if it has never answered.
    pub fn rows(&self, id: EngineId) -> Vec<StreamRow> {
        let silent = |row| StreamRow { rate: None, state: NO_ANSWER.into(), ..row };
        if !self.is_silent {
            return self.streams.clone();
        }
        if self.answers > 0 {
            return self.streams.iter().cloned().map(silent).collect();
        }
        let unnamed = self.pid.filter(|_| self.jobs.is_empty()).map(Nspace::of_engine);
        let unknown = |job: &Nspace| StreamStats::new(Proc::all(job.clone()), Channel::Stdout, false);
        let row = |job| StreamRow { kind: RowKind::Job, ..StreamRow::new(id, unknown(job)) };
        self.jobs.iter().chain(&unnamed).map(row).map(silent).collect()
    }
}

/// Returns a rate in bytes per second, or `None` if no time has elapsed.
fn per_second(bytes: u64, elapsed: Duration) -> Option<u64> {
    let nanos = elapsed.as_nanos();
    let rate = u128::from(bytes).saturating_mul(1_000_000_000).checked_div(nanos)?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}
