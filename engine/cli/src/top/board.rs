//! The contents of the screen: the streams of the last sample with their rates, and the scroll
//! position.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use iof_proto::{Channel, Proc, StreamStats};

use super::filter::RowFilter;
use super::row::{Sort, StreamRow, by_name, sums};

/// A scroll command.
#[derive(Clone, Copy)]
pub enum Scroll {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// The lag of one tool over all streams that it reads.
pub struct ToolLag {
    pub tool: String,
    pub pid: u32,
    /// The sum of its lags in all streams, in bytes.
    pub lag: u64,
}

/// The line in which the user types a filter.
#[derive(Default)]
pub struct Prompt {
    pub text: String,
    /// The reason why the filter that was typed is invalid.
    pub error: Option<String>,
}

impl Prompt {
    /// Returns a prompt that shows the present filter, ready for the next word.
    pub fn of(filter: &RowFilter) -> Prompt {
        let mut text = filter.to_string();
        if !text.is_empty() {
            text.push(' ');
        }
        Prompt { text, error: None }
    }
}

/// Sums over all streams that the filter selects.
#[derive(Default)]
pub struct Totals {
    pub jobs: usize,
    pub streams: usize,
    pub complete: usize,
    /// Bytes per second; `None` before the second sample.
    pub rate: Option<u64>,
    pub cached: u64,
    pub dropped: u64,
    /// The tools, slowest first.
    pub readers: Vec<ToolLag>,
}

/// How long an answer of the engine may be overdue before the engine is shown as silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The contents of the screen.
pub struct Board {
    pub engine: u32,
    /// The hosts of the ranks.
    pub hosts: BTreeMap<Proc, String>,
    /// The time from one sample to the next.
    pub interval: Duration,
    pub sort: Sort,
    /// The order of the rows is reversed.
    pub reversed: bool,
    pub totals: Totals,
    pub filter: RowFilter,
    /// Each row is the sum of a rank's streams.
    pub by_rank: bool,
    /// Idle rows are hidden.
    pub hides_idle: bool,
    /// The prompt for a filter, while the user types it.
    pub prompt: Option<Prompt>,
    /// All streams of the last sample.
    streams: Vec<StreamRow>,
    /// The rows that are shown, in their order.
    rows: Vec<StreamRow>,
    sampled: Option<Instant>,
    first: usize,
    /// The number of rows that the screen has room for.
    page: usize,
}

impl Board {
    pub fn new(engine: u32, interval: Duration) -> Board {
        Board {
            engine,
            hosts: BTreeMap::new(),
            interval,
            sort: Sort::Name,
            reversed: false,
            totals: Totals::default(),
            filter: RowFilter::default(),
            by_rank: false,
            hides_idle: false,
            prompt: None,
            streams: Vec::new(),
            rows: Vec::new(),
            sampled: None,
            first: 0,
            page: 1,
        }
    }

    /// Returns whether the ranks are on more than one host.
    pub fn has_several_hosts(&self) -> bool {
        let mut hosts = self.hosts.values().filter(|host| !host.is_empty());
        let first = hosts.next();
        hosts.any(|host| Some(host) != first)
    }

    /// Returns `true` once the engine has answered.
    pub fn is_sampled(&self) -> bool {
        self.sampled.is_some()
    }

    /// Returns the time since the last answer, if an answer is overdue.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.sampled?);
        (age > self.interval.saturating_add(ANSWER_TIMEOUT)).then_some(age)
    }

    /// Replaces the streams by a new sample. The rates follow from the bytes since the last sample;
    /// a stream that was not in it counts from its first byte.
    pub fn update(&mut self, time: Instant, streams: Vec<StreamStats>) {
        let elapsed = self.sampled.map(|before| time.saturating_duration_since(before));
        let before: HashMap<(&Proc, Channel, bool), u64> =
            self.streams.iter().map(|StreamRow { stats, .. }| (name(stats), stats.produced)).collect();
        let rate = |stats: &StreamStats| {
            let before = before.get(&name(stats)).copied().unwrap_or(0);
            per_second(stats.produced.saturating_sub(before), elapsed?)
        };
        let row = |stats: StreamStats| StreamRow { rate: rate(&stats), stats, is_sum: false };
        let streams = streams.into_iter().map(row).collect();
        self.streams = streams;
        self.sampled = Some(time);
        self.choose();
    }

    /// Chooses the rows that are shown.
    fn choose(&mut self) {
        let mut rows: Vec<StreamRow> =
            self.streams.iter().filter(|row| self.filter.matches(&row.stats)).cloned().collect();
        self.totals = totals(&rows);
        if self.by_rank {
            rows = sums(rows);
        }
        if self.hides_idle {
            rows.retain(|row| !row.is_idle());
        }
        self.rows = rows;
        self.order();
    }

    /// Shows only the streams that `filter` selects.
    pub fn select(&mut self, filter: RowFilter) {
        self.filter = filter;
        self.choose();
    }

    /// Hides idle rows, or shows them again.
    pub fn toggle_idle(&mut self) {
        self.hides_idle = !self.hides_idle;
        self.choose();
    }

    /// Sums the streams of each rank, or shows them singly again.
    pub fn toggle_sums(&mut self) {
        self.by_rank = !self.by_rank;
        self.choose();
    }

    /// Sorts the rows by `sort`. If they are already sorted by it, reverses their order.
    pub fn sort_by(&mut self, sort: Sort) {
        self.reversed = self.sort == sort && !self.reversed;
        self.sort = sort;
        self.first = 0;
        self.order();
    }

    fn order(&mut self) {
        let (sort, reversed) = (self.sort, self.reversed);
        self.rows.sort_by(|a, b| {
            let order = sort.compare(a, b);
            if reversed { order.reverse() } else { order }.then_with(|| by_name(a, b))
        });
    }

    pub fn scroll(&mut self, command: Scroll) {
        self.first = match command {
            Scroll::Up => self.first.saturating_sub(1),
            Scroll::Down => self.first.saturating_add(1),
            Scroll::PageUp => self.first.saturating_sub(self.page),
            Scroll::PageDown => self.first.saturating_add(self.page),
            Scroll::First => 0,
            Scroll::Last => usize::MAX,
        }
        .min(self.last_first());
    }

    /// Returns the index of the first row of the last page.
    fn last_first(&self) -> usize {
        self.rows.len().saturating_sub(self.page)
    }

    /// Returns the visible rows if there is room for `room` rows, with the index of the first.
    pub fn page(&mut self, room: usize) -> (usize, &[StreamRow]) {
        self.page = room.max(1);
        self.first = self.first.min(self.last_first());
        let end = self.first.saturating_add(room).min(self.rows.len());
        (self.first, self.rows.get(self.first..end).unwrap_or_default())
    }
}

/// Returns a rate in bytes per second, or `None` if no time has elapsed.
fn per_second(bytes: u64, elapsed: Duration) -> Option<u64> {
    let nanos = elapsed.as_nanos();
    let rate = u128::from(bytes).saturating_mul(1_000_000_000).checked_div(nanos)?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Returns what distinguishes a stream from all others.
fn name(stats: &StreamStats) -> (&Proc, Channel, bool) {
    (&stats.source, stats.channel, stats.logged)
}

fn totals(rows: &[StreamRow]) -> Totals {
    let mut totals = Totals { streams: rows.len(), ..Totals::default() };
    let mut jobs: Vec<_> = rows.iter().map(|row| &row.stats.source.nspace).collect();
    jobs.sort_unstable();
    jobs.dedup();
    totals.jobs = jobs.len();
    let mut lags: HashMap<(&str, u32), u64> = HashMap::new();
    for StreamRow { stats, rate, .. } in rows {
        totals.complete = totals.complete.saturating_add(usize::from(stats.complete));
        totals.rate = rate.map(|rate| totals.rate.unwrap_or(0).saturating_add(rate)).or(totals.rate);
        totals.cached = totals.cached.saturating_add(stats.cached);
        totals.dropped = totals.dropped.saturating_add(stats.dropped);
        for reader in &stats.readers {
            let lag = lags.entry((&reader.tool, reader.pid)).or_default();
            *lag = lag.saturating_add(reader.lag);
        }
    }
    totals.readers =
        lags.into_iter().map(|((tool, pid), lag)| ToolLag { tool: tool.to_owned(), pid, lag }).collect();
    totals.readers.sort_by(|a, b| b.lag.cmp(&a.lag).then(a.tool.cmp(&b.tool)).then(a.pid.cmp(&b.pid)));
    totals
}

#[cfg(test)]
pub mod tests {
    use iof_proto::{Nspace, Rank, ReaderStats};

    use super::*;

    /// Returns a stream of the job `job`, with one reader for each lag.
    pub fn stream(rank: u32, produced: u64, dropped: u64, lags: &[u64]) -> StreamStats {
        let reader =
            |(pid, lag): (u32, &u64)| ReaderStats { tool: format!("tool{pid}"), pid, handler: 1, lag: *lag };
        StreamStats {
            source: Proc { nspace: Nspace::new("job").unwrap(), rank: Rank(rank) },
            channel: Channel::Stdout,
            produced,
            cached: produced - dropped,
            dropped,
            generation: 0,
            complete: false,
            missing: None,
            logged: false,
            readers: (1..).zip(lags).map(reader).collect(),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn ranks(board: &mut Board, room: usize) -> Vec<u32> {
        board.page(room).1.iter().map(|row| row.stats.source.rank.0).collect()
    }

    fn rates(board: &mut Board) -> Vec<Option<u64>> {
        board.page(100).1.iter().map(|row| row.rate).collect()
    }

    #[test]
    fn a_rate_is_the_bytes_between_two_samples_over_the_time() {
        let (mut board, start) = (Board::new(1, SECOND), Instant::now());
        board.update(start, vec![stream(0, 1000, 0, &[]), stream(1, 0, 0, &[])]);
        assert_eq!((rates(&mut board), board.totals.rate), (vec![None, None], None));
        // The third stream is new.
        let second = vec![stream(0, 6000, 0, &[]), stream(1, 0, 0, &[]), stream(2, 500, 0, &[])];
        board.update(start + Duration::from_millis(500), second);
        assert_eq!(rates(&mut board), [Some(10_000), Some(0), Some(1000)]);
        assert_eq!(board.totals.rate, Some(11_000));
        // A new job with the same name.
        board.update(start + Duration::from_secs(1), vec![stream(0, 10, 0, &[])]);
        assert_eq!(rates(&mut board), [Some(0)]);
        board.update(start + Duration::from_secs(1), vec![stream(0, 20, 0, &[])]);
        assert_eq!(rates(&mut board), [None], "no time has elapsed");
    }

    #[test]
    fn each_key_sorts_the_rows_and_pressed_again_reverses_them() {
        let (mut board, start) = (Board::new(1, SECOND), Instant::now());
        board.update(start, [2, 0, 1].map(|rank| stream(rank, 0, 0, &[])).to_vec());
        assert_eq!(ranks(&mut board, 9), [0, 1, 2]);
        let second = vec![stream(0, 50, 9, &[3, 1]), stream(1, 70, 69, &[4]), stream(2, 60, 3, &[0, 9])];
        board.update(start + Duration::from_secs(1), second);
        for (key, order) in
            [('r', [1, 2, 0]), ('c', [2, 0, 1]), ('d', [1, 0, 2]), ('l', [2, 1, 0]), ('n', [0, 1, 2])]
        {
            board.sort_by(Sort::of_key(key).unwrap());
            assert_eq!(ranks(&mut board, 9), order, "{key}");
            board.sort_by(Sort::of_key(key).unwrap());
            assert_eq!(ranks(&mut board, 9), [order[2], order[1], order[0]], "{key} again");
        }
        assert_eq!(Sort::of_key('x'), None);
    }

    #[test]
    fn a_word_typed_at_the_prompt_is_not_glued_to_the_present_filter() {
        let filter = RowFilter::parse("T").unwrap();
        let typed = Prompt::of(&filter).text + "0-1";
        assert_eq!(RowFilter::parse(&typed), RowFilter::parse("0-1 T"));
        assert_eq!(Prompt::of(&RowFilter::default()).text, "");
    }

    #[test]
    fn the_filter_and_hidden_idle_streams_limit_the_rows_and_the_filter_the_sums() {
        let (mut board, start) = (Board::new(1, SECOND), Instant::now());
        let sample =
            |produced: u64| (0..4).map(move |rank| stream(rank, u64::from(rank % 2) * produced, 0, &[]));
        board.update(start, sample(10).collect());
        board.toggle_idle();
        assert_eq!(ranks(&mut board, 9), [0, 1, 2, 3], "no rate is known yet");
        board.update(start + SECOND, sample(30).collect());
        assert_eq!((ranks(&mut board, 9), board.totals.streams), (vec![1, 3], 4));
        board.select(RowFilter::parse("2-3").unwrap());
        assert_eq!((ranks(&mut board, 9), board.totals.streams), (vec![3], 2));
        board.toggle_idle();
        assert_eq!(ranks(&mut board, 9), [2, 3]);
        let mut ended = stream(3, 90, 0, &[]);
        ended.complete = true;
        board.toggle_idle();
        board.update(start + SECOND * 2, vec![ended]);
        assert_eq!(ranks(&mut board, 9), [0; 0], "a complete stream is idle");
    }

    #[test]
    fn the_streams_of_a_rank_are_summed() {
        let (mut board, start) = (Board::new(1, SECOND), Instant::now());
        let error = |produced, lags: &[u64]| StreamStats {
            channel: Channel::Stderr,
            complete: true,
            ..stream(0, produced, 2, lags)
        };
        board.toggle_sums();
        board.update(start, vec![stream(0, 10, 0, &[1]), error(20, &[2, 3]), stream(1, 5, 0, &[])]);
        board.update(start + SECOND, vec![stream(0, 15, 0, &[1]), error(22, &[2, 3]), stream(1, 5, 0, &[])]);
        let rows: Vec<_> = board.page(9).1.to_vec();
        assert_eq!(rows.len(), 2);
        let StreamRow { stats, rate, is_sum } = &rows[0];
        assert_eq!(
            (stats.cached, stats.dropped, stats.complete, *rate, *is_sum),
            (35, 2, false, Some(7), true)
        );
        let lags: Vec<(u32, u64)> = stats.readers.iter().map(|reader| (reader.pid, reader.lag)).collect();
        assert_eq!(lags, [(1, 3), (2, 3)]);
        assert_eq!(board.totals.streams, 3);
        board.toggle_sums();
        assert_eq!(board.page(9).1.len(), 3);
    }

    #[test]
    fn scrolling_stops_at_the_first_and_the_last_row() {
        let mut board = Board::new(1, SECOND);
        board.update(Instant::now(), (0..10).map(|rank| stream(rank, 0, 0, &[])).collect());
        let mut after = |command: Scroll| {
            board.scroll(command);
            ranks(&mut board, 4)
        };
        assert_eq!(after(Scroll::First), [0, 1, 2, 3]);
        assert_eq!(after(Scroll::Up), [0, 1, 2, 3]);
        assert_eq!(after(Scroll::Down), [1, 2, 3, 4]);
        assert_eq!(after(Scroll::PageDown), [5, 6, 7, 8]);
        assert_eq!(after(Scroll::PageDown), [6, 7, 8, 9]);
        assert_eq!(after(Scroll::PageUp), [2, 3, 4, 5]);
        assert_eq!(after(Scroll::Last), [6, 7, 8, 9]);
        board.update(Instant::now(), (0..2).map(|rank| stream(rank, 0, 0, &[])).collect());
        assert_eq!(ranks(&mut board, 4), [0, 1]);
        assert_eq!(ranks(&mut board, 0), [0; 0]);
    }

    #[test]
    fn the_lag_of_a_tool_is_the_sum_over_its_streams() {
        let mut board = Board::new(1, SECOND);
        board.update(
            Instant::now(),
            vec![stream(0, 9, 2, &[1, 5]), stream(1, 9, 1, &[1]), stream(2, 9, 0, &[])],
        );
        let readers: Vec<_> = board
            .totals
            .readers
            .iter()
            .map(|reader| (reader.tool.as_str(), reader.pid, reader.lag))
            .collect();
        assert_eq!(readers, [("tool2", 2, 5), ("tool1", 1, 2)]);
        let Totals { jobs, streams, complete, cached, dropped, .. } = board.totals;
        assert_eq!((jobs, streams, complete, cached, dropped), (1, 3, 0, 24, 3));
    }

    #[test]
    fn an_engine_is_silent_when_its_answer_is_overdue() {
        let (mut board, start) = (Board::new(1, SECOND), Instant::now());
        assert_eq!(board.silence(start + SECOND * 10), None, "it has never answered");
        board.update(start, Vec::new());
        assert_eq!(board.silence(start + SECOND * 3), None);
        assert_eq!(board.silence(start + SECOND * 4), Some(SECOND * 4));
        board.update(start + SECOND * 4, Vec::new());
        assert_eq!(board.silence(start + SECOND * 5), None);
    }
}
