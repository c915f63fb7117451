//! The contents of the screen: the streams of the last samples with their rates, and the cursor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::{Nspace, Proc, ReaderStats};
use ratatui::crossterm::event::KeyCode;

use super::engine::{ANSWER_TIMEOUT, EngineBoard};
use super::filter::RowFilter;
use super::prompt::Prompt;
use super::rank::{NO_ANSWER, RankInfo, count_states};
use super::row::{EngineId, RowKind, Sort, StreamKey, StreamRow, add_readers, by_name, sums};
use super::view::{StreamView, scrolled};

/// Sums over all streams that the filter selects.
#[derive(Default)]
pub struct Totals {
    pub jobs: usize,
    pub ranks: usize,
    pub streams: usize,
    pub complete: usize,
    /// Bytes per second; `None` before the second sample.
    pub rate: Option<u64>,
    pub cached: u64,
    pub dropped: u64,
    /// The tools, each with the sum of its lags in all streams.
    pub readers: Vec<ReaderStats>,
}

/// From this number of ranks on, idle rows are hidden by default.
const MANY_RANKS: usize = 20;

/// The contents of the screen.
#[derive(Default)]
pub struct Board {
    pub engines: BTreeMap<EngineId, EngineBoard>,
    /// The number of engines beyond the limit.
    pub not_shown: usize,
    /// The time from one sample to the next.
    pub interval: Duration,
    pub sort: Sort,
    /// The order of the rows is reversed.
    pub reversed: bool,
    pub totals: Totals,
    pub filter: RowFilter,
    /// Each row is the sum of a rank's streams.
    pub by_rank: bool,
    /// The decision of the user to hide idle rows, or to show them.
    pub idle_is_hidden: Option<bool>,
    /// The number of idle rows that are hidden.
    pub hidden: usize,
    /// The prompt for a filter, while the user types it.
    pub prompt: Option<Prompt>,
    /// A message to the user, until the next key.
    pub notice: Option<String>,
    /// The output that covers the table.
    pub view: Option<StreamView>,
    /// The list of keys that covers all else.
    pub help: Option<StreamView>,
    /// Is held by each thread that pulls for a view.
    pub viewers: Arc<()>,
    /// The jobs that are shown as one row.
    folded: BTreeSet<(EngineId, Nspace)>,
    /// The rows that are shown, in their order.
    rows: Vec<StreamRow>,
    first: usize,
    cursor: usize,
    /// The row that the cursor follows, unless it is at the top.
    followed: Option<StreamKey>,
    /// The number of rows that the screen has room for.
    page: usize,
}

impl Board {
    pub fn new(interval: Duration, filter: RowFilter, by_rank: bool) -> Board {
        Board { interval, filter, by_rank, ..Board::default() }
    }

    /// Returns whether the ranks are on more than one host.
    pub fn has_several_hosts(&self) -> bool {
        let hosts = self.all_ranks().map(|(_, rank)| &rank.host).filter(|host| !host.is_empty());
        hosts.collect::<BTreeSet<_>>().len() > 1
    }

    /// Returns the ranks of all engines.
    pub fn all_ranks(&self) -> impl Iterator<Item = (&Proc, &RankInfo)> {
        self.engines.values().flat_map(|engine| &engine.ranks)
    }

    /// Returns the text that the user types, if any.
    pub fn typed(&mut self) -> Option<&mut Prompt> {
        match self.help.as_mut().or(self.view.as_mut()) {
            Some(view) => view.prompt.as_mut(),
            None => self.prompt.as_mut(),
        }
    }

    /// Removes an engine that has ended.
    pub fn remove(&mut self, id: EngineId) {
        let ended = self.engines.remove(&id).filter(|engine| engine.answers > 0);
        if let Some(pid) = ended.and_then(|engine| engine.pid) {
            self.notice = Some(format!("the engine (pid {pid}) has ended"));
        }
        self.folded.retain(|(engine, _)| *engine != id);
    }

    /// Chooses the rows that are shown, and finds which engines do not answer. Returns the number of these.
    pub fn choose(&mut self, now: Instant) -> usize {
        let limit = self.interval.saturating_add(ANSWER_TIMEOUT);
        for engine in self.engines.values_mut() {
            engine.is_silent = engine.failure.is_some() || engine.silence(now) > limit;
        }
        let filter = &self.filter;
        let matches = |row: &StreamRow| match row.kind {
            RowKind::Job => filter.job.as_ref().is_none_or(|job| *job == row.stats.source.nspace),
            _ => filter.matches(&row.stats),
        };
        let rows: Vec<StreamRow> =
            self.engines.iter().flat_map(|(id, engine)| engine.rows(*id)).filter(matches).collect();
        self.totals = totals(&rows);
        let (folded, rows): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| self.folded.contains(&row.job()));
        let (mut shown, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.kind == RowKind::Job);
        for mut row in sums(folded, RowKind::Job) {
            if row.state != NO_ANSWER {
                let ranks = self.engines.get(&row.engine).into_iter().flat_map(|engine| &engine.ranks);
                let in_job = ranks.filter(|(proc, _)| proc.nspace == row.stats.source.nspace);
                row.state = count_states(in_job.map(|(_, rank)| rank));
            }
            shown.push(row);
        }
        shown.extend(if self.by_rank { sums(rows, RowKind::Rank) } else { rows });
        let all = shown.len();
        if self.hides_idle() {
            shown.retain(|row| !row.may_be_hidden());
        }
        self.hidden = all.saturating_sub(shown.len());
        let (sort, reversed) = (self.sort, self.reversed);
        shown.sort_by(|a, b| {
            let order = sort.compare(a, b);
            if reversed { order.reverse() } else { order }.then_with(|| by_name(a, b))
        });
        if let Some(followed) = &self.followed
            && let Some(index) = shown.iter().position(|row| row.key() == *followed)
        {
            self.cursor = index;
        }
        self.rows = shown;
        self.engines.values().filter(|engine| engine.is_silent && engine.pid.is_some()).count()
    }

    /// Returns whether idle rows are hidden.
    fn hides_idle(&self) -> bool {
        self.idle_is_hidden.unwrap_or(self.totals.ranks >= MANY_RANKS)
    }

    /// Hides idle rows, or shows them again.
    pub fn toggle_idle(&mut self) {
        self.idle_is_hidden = Some(!self.hides_idle());
    }

    /// Shows the job under the cursor as one row, or its streams again. The cursor moves to its first row.
    pub fn toggle_fold(&mut self) {
        let Some(job) = self.at_cursor().map(StreamRow::job) else { return };
        if !self.folded.remove(&job) {
            self.folded.insert(job.clone());
        }
        self.followed = None;
        self.choose(Instant::now());
        self.move_to(self.rows.iter().position(|row| row.job() == job).unwrap_or(0));
    }

    /// Sorts the rows by `sort`. If they are already sorted by it, reverses their order.
    pub fn sort_by(&mut self, sort: Sort) {
        self.reversed = self.sort == sort && !self.reversed;
        self.sort = sort;
        (self.cursor, self.followed) = (0, None);
    }

    /// Returns the row under the cursor.
    pub fn at_cursor(&self) -> Option<&StreamRow> {
        self.rows.get(self.cursor)
    }

    pub fn is_folded_at_cursor(&self) -> bool {
        self.at_cursor().is_some_and(|row| self.folded.contains(&row.job()))
    }

    /// Moves the cursor if `key` is one that scrolls.
    pub fn scroll(&mut self, key: KeyCode) {
        scrolled(key, self.cursor, self.page).into_iter().for_each(|index| self.move_to(index));
    }

    /// Moves the cursor to a row, or to the last one.
    fn move_to(&mut self, index: usize) {
        self.cursor = index.min(self.rows.len().saturating_sub(1));
        self.followed = self.at_cursor().filter(|_| self.cursor > 0).map(StreamRow::key);
    }

    /// Returns the visible rows if there is room for `room` rows, with the index of the first, and the
    /// index of the row under the cursor.
    pub fn page(&mut self, room: usize) -> (usize, &[StreamRow], usize) {
        self.page = room.max(1);
        self.cursor = self.cursor.min(self.rows.len().saturating_sub(1));
        let lowest = self.cursor.saturating_add(1).saturating_sub(self.page);
        self.first = self.first.clamp(lowest, self.cursor).min(self.rows.len().saturating_sub(self.page));
        let end = self.first.saturating_add(room).min(self.rows.len());
        (self.first, self.rows.get(self.first..end).unwrap_or_default(), self.cursor)
    }
}

fn totals(rows: &[StreamRow]) -> Totals {
    let is_stream = |row: &&StreamRow| row.kind == RowKind::Stream;
    let is_rank = |row: &&StreamRow| row.rank.is_some();
    let jobs: BTreeSet<_> = rows.iter().map(StreamRow::job).collect();
    let ranks: BTreeSet<_> = rows.iter().filter(is_rank).map(|row| (row.engine, &row.stats.source)).collect();
    let streams = rows.iter().filter(is_stream).count();
    let mut totals = Totals { jobs: jobs.len(), ranks: ranks.len(), streams, ..Totals::default() };
    for StreamRow { stats, rate, .. } in rows {
        totals.complete = totals.complete.saturating_add(usize::from(stats.complete));
        totals.rate = rate.map(|rate| totals.rate.unwrap_or(0).saturating_add(rate)).or(totals.rate);
        totals.cached = totals.cached.saturating_add(stats.cached);
        totals.dropped = totals.dropped.saturating_add(stats.dropped);
        add_readers(&mut totals.readers, &stats.readers);
    }
    totals
}

#[cfg(test)]
pub mod tests;
