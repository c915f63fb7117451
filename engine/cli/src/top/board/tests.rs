//! Tests of the contents of the screen.

use iof_proto::rendezvous::Search;
use iof_proto::{Channel, ProcInfo, ProcState, Rank, ReaderStats, StreamStats};

use super::super::engine::Sample;
use super::*;

/// Returns a stream of the job `job`, with one reader for each lag.
pub fn stream(rank: u32, produced: u64, dropped: u64, lags: &[u64]) -> StreamStats {
    let reader =
        |(pid, lag): (u32, &u64)| ReaderStats { tool: format!("tool{pid}"), pid, handler: 1, lag: *lag };
    let source = Proc { nspace: Nspace::new("job").unwrap(), rank: Rank(rank) };
    let readers = (1..).zip(lags).map(reader).collect();
    StreamStats {
        produced,
        cached: produced - dropped,
        dropped,
        readers,
        ..StreamStats::new(source, Channel::Stdout, false)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const ENGINE: EngineId = EngineId(0);

/// Returns a board with the engine 7, which has not answered.
pub fn board() -> Board {
    let mut board = Board { interval: SECOND, ..Board::default() };
    add_engine(&mut board, ENGINE, 7);
    board
}

pub fn add_engine(board: &mut Board, id: EngineId, pid: u32) {
    let jobs = vec![Nspace::new("job").unwrap()];
    board.engines.insert(id, EngineBoard::new(Search::default(), Some(pid), jobs));
}

/// Applies an answer of the engine with these streams, whose ranks are in the states that
/// `state` returns.
pub fn answer(
    board: &mut Board,
    id: EngineId,
    time: Instant,
    streams: Vec<StreamStats>,
    state: impl Fn(u32) -> (ProcState, Option<i32>),
) {
    let rank = |proc: Proc| {
        let (state, exit_code) = state(proc.rank.0);
        let host = format!("node{}", proc.rank);
        let info = ProcInfo { host, exit_code, ..ProcInfo::new(proc.clone(), state) };
        (proc, RankInfo::new(info, ""))
    };
    let ranks = streams.iter().map(|stream| rank(stream.source.clone())).collect();
    let pid = board.engines[&id].pid.unwrap();
    board.engines.get_mut(&id).unwrap().update(id, Sample { time, pid, streams, ranks });
}

pub fn update(board: &mut Board, time: Instant, streams: Vec<StreamStats>) {
    answer(board, ENGINE, time, streams, |_| (ProcState::Running, None));
}

/// Returns the rows that fit into `room` rows now.
fn shown(board: &mut Board, room: usize) -> Vec<StreamRow> {
    board.choose(Instant::now());
    board.page(room).1.to_vec()
}

fn ranks(board: &mut Board, room: usize) -> Vec<u32> {
    shown(board, room).iter().map(|row| row.stats.source.rank.0).collect()
}

fn rates(board: &mut Board) -> Vec<Option<u64>> {
    shown(board, 100).iter().map(|row| row.rate).collect()
}

#[test]
fn a_rate_is_the_bytes_between_two_samples_over_the_time() {
    let (mut board, start) = (board(), Instant::now());
    update(&mut board, start, vec![stream(0, 1000, 0, &[]), stream(1, 0, 0, &[])]);
    assert_eq!((rates(&mut board), board.totals.rate), (vec![None, None], None));
    // The third stream is new.
    let second = vec![stream(0, 6000, 0, &[]), stream(1, 0, 0, &[]), stream(2, 500, 0, &[])];
    update(&mut board, start + Duration::from_millis(500), second);
    assert_eq!(rates(&mut board), [Some(10_000), Some(0), Some(1000)]);
    assert_eq!(board.totals.rate, Some(11_000));
    // A new job with the same name.
    update(&mut board, start + SECOND, vec![stream(0, 10, 0, &[])]);
    assert_eq!(rates(&mut board), [Some(0)]);
    update(&mut board, start + SECOND, vec![stream(0, 20, 0, &[])]);
    assert_eq!(rates(&mut board), [None], "no time has elapsed");
}

#[test]
fn each_key_sorts_the_rows_and_pressed_again_reverses_them() {
    let (mut board, start) = (board(), Instant::now());
    update(&mut board, start, [2, 0, 1].map(|rank| stream(rank, 0, 0, &[])).to_vec());
    assert_eq!(ranks(&mut board, 9), [0, 1, 2]);
    let second = vec![stream(0, 50, 9, &[3, 1]), stream(1, 70, 69, &[4]), stream(2, 60, 3, &[0, 9])];
    update(&mut board, start + SECOND, second);
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
    let (mut board, start) = (board(), Instant::now());
    let sample = |produced: u64| (0..4).map(move |rank| stream(rank, u64::from(rank % 2) * produced, 0, &[]));
    update(&mut board, start, sample(10).collect());
    board.toggle_idle();
    assert_eq!(ranks(&mut board, 9), [0, 1, 2, 3], "no rate is known yet");
    update(&mut board, start + SECOND, sample(30).collect());
    assert_eq!((ranks(&mut board, 9), board.totals.streams, board.hidden), (vec![1, 3], 4, 2));
    update(&mut board, start + SECOND * 2, sample(30).collect());
    assert_eq!(ranks(&mut board, 9), [1, 3], "a row does not flicker");
    board.filter = RowFilter::parse("2-3").unwrap();
    assert_eq!((ranks(&mut board, 9), board.totals.streams), (vec![3], 2));
    board.toggle_idle();
    assert_eq!(ranks(&mut board, 9), [2, 3]);
    let mut ended = stream(3, 90, 0, &[]);
    ended.complete = true;
    board.toggle_idle();
    update(&mut board, start + SECOND * 3, vec![ended.clone()]);
    assert_eq!(ranks(&mut board, 9), [0; 0], "a complete stream is idle");
    let failed = |_| (ProcState::Failed, Some(3));
    answer(&mut board, ENGINE, start + SECOND * 4, vec![ended], failed);
    assert_eq!((ranks(&mut board, 9), board.hidden), (vec![3], 0), "a rank that failed is shown");
}

#[test]
fn from_20_ranks_on_idle_rows_are_hidden_unless_the_user_shows_them() {
    for (ranks, hidden) in [(19, 0), (20, 19)] {
        let (mut board, start) = (board(), Instant::now());
        let sample = |time, first| {
            let streams = (0..ranks).map(|rank| stream(rank, if rank == 0 { first } else { 5 }, 0, &[]));
            (start + time, streams.collect())
        };
        for (time, streams) in [sample(Duration::ZERO, 0), sample(SECOND, 9)] {
            update(&mut board, time, streams);
        }
        shown(&mut board, 0);
        assert_eq!(board.hidden, hidden, "{ranks}");
        let (time, streams) = sample(SECOND * 12, 9);
        update(&mut board, time, streams);
        shown(&mut board, 0);
        assert_eq!(board.hidden, if hidden > 0 { 20 } else { 0 }, "the first has not grown for 11 s");
        board.toggle_idle();
        shown(&mut board, 0);
        assert_eq!(board.hidden, if hidden > 0 { 0 } else { 19 }, "{ranks}");
    }
}

#[test]
fn the_streams_of_a_rank_are_summed() {
    let (mut board, start) = (board(), Instant::now());
    let error = |produced, lags: &[u64]| StreamStats {
        channel: Channel::Stderr,
        complete: true,
        ..stream(0, produced, 2, lags)
    };
    board.by_rank = true;
    update(&mut board, start, vec![stream(0, 10, 0, &[1]), error(20, &[2, 3]), stream(1, 5, 0, &[])]);
    let second = vec![stream(0, 15, 0, &[1]), error(22, &[2, 3]), stream(1, 5, 0, &[])];
    update(&mut board, start + SECOND, second);
    let sums = shown(&mut board, 9);
    assert_eq!(sums.len(), 2);
    let StreamRow { stats, rate, kind, state, .. } = &sums[0];
    assert_eq!((stats.cached, stats.dropped, stats.complete, *rate), (35, 2, false, Some(7)));
    assert_eq!((*kind, state.as_str()), (RowKind::Rank, "running"));
    let lags: Vec<(u32, u64)> = stats.readers.iter().map(|reader| (reader.pid, reader.lag)).collect();
    assert_eq!(lags, [(1, 3), (2, 3)]);
    assert_eq!(board.totals.streams, 3);
    board.by_rank = false;
    assert_eq!(shown(&mut board, 9).len(), 3);
}

#[test]
fn the_cursor_stops_at_the_first_and_the_last_row_and_stays_on_the_page() {
    let mut board = board();
    update(&mut board, Instant::now(), (0..10).map(|rank| stream(rank, 0, 0, &[])).collect());
    let mut after = |key: KeyCode| {
        shown(&mut board, 4);
        board.scroll(key);
        let (first, _, cursor) = board.page(4);
        (first, cursor)
    };
    for (command, wanted) in [
        (KeyCode::Home, (0, 0)),
        (KeyCode::Up, (0, 0)),
        (KeyCode::Down, (0, 1)),
        (KeyCode::PageDown, (2, 5)),
        (KeyCode::PageDown, (6, 9)),
        (KeyCode::Down, (6, 9)),
        (KeyCode::PageUp, (5, 5)),
        (KeyCode::End, (6, 9)),
    ] {
        assert_eq!(after(command), wanted);
    }
    update(&mut board, Instant::now(), (0..2).map(|rank| stream(rank, 0, 0, &[])).collect());
    assert_eq!(ranks(&mut board, 4), [0, 1]);
    assert_eq!(ranks(&mut board, 0), [0; 0]);
}

#[test]
fn the_cursor_stays_on_its_row_when_the_order_changes_but_at_the_top() {
    let (mut board, start) = (board(), Instant::now());
    let sample = |sizes: [u64; 3]| (0..).zip(sizes).map(|(rank, size)| stream(rank, size, 0, &[])).collect();
    let rank = |board: &mut Board| {
        shown(board, 9);
        board.at_cursor().unwrap().stats.source.rank.0
    };
    board.sort_by(Sort::Cached);
    update(&mut board, start, sample([3, 2, 1]));
    assert_eq!(rank(&mut board), 0);
    update(&mut board, start + SECOND, sample([3, 4, 5]));
    assert_eq!(rank(&mut board), 2, "the top row");
    board.scroll(KeyCode::Down);
    assert_eq!(rank(&mut board), 1);
    update(&mut board, start + SECOND * 2, sample([3, 9, 5]));
    assert_eq!((rank(&mut board), board.cursor), (1, 0));
}

#[test]
fn a_folded_job_is_one_row_with_sums_and_the_number_of_ranks_in_each_state() {
    let (mut board, start) = (board(), Instant::now());
    add_engine(&mut board, EngineId(1), 8);
    let state = |rank| match rank {
        0 => (ProcState::Failed, Some(3)),
        1 => (ProcState::Killed, Some(128 + 9)),
        _ => (ProcState::Running, None),
    };
    let streams: Vec<_> = (0..4).map(|rank| stream(rank, 10, 1, &[5])).collect();
    answer(&mut board, ENGINE, start, streams.clone(), state);
    answer(&mut board, EngineId(1), start, streams, state);
    let states: Vec<_> = shown(&mut board, 9).into_iter().map(|row| row.state).collect();
    assert_eq!(states[..3], ["exited 3", "killed by SIGKILL", "running"]);
    board.page(9);
    board.scroll(KeyCode::Down);
    board.toggle_fold();
    let (_, rows, cursor) = board.page(9);
    assert_eq!((rows.len(), cursor), (5, 0), "the job of the other engine is not folded");
    let StreamRow { stats, state, kind, .. } = &rows[0];
    assert_eq!((stats.produced, stats.dropped, stats.readers[0].lag, *kind), (40, 4, 20, RowKind::Job));
    assert_eq!(state, "2 running, 1 exited 3, 1 killed by SIGKILL");
    assert!(board.is_folded_at_cursor());
    board.toggle_fold();
    assert_eq!(shown(&mut board, 9).len(), 8);
}

#[test]
fn the_lag_of_a_tool_is_the_sum_over_its_streams() {
    let mut board = board();
    let streams = vec![stream(0, 9, 2, &[1, 5]), stream(1, 9, 1, &[1]), stream(2, 9, 0, &[])];
    update(&mut board, Instant::now(), streams);
    shown(&mut board, 9);
    let readers: Vec<_> =
        board.totals.readers.iter().map(|reader| (reader.tool.as_str(), reader.pid, reader.lag)).collect();
    assert_eq!(readers, [("tool1", 1, 2), ("tool2", 2, 5)]);
    let Totals { jobs, streams, complete, cached, dropped, .. } = board.totals;
    assert_eq!((jobs, streams, complete, cached, dropped), (1, 3, 0, 24, 3));
}

#[test]
fn an_engine_is_silent_when_its_answer_is_overdue() {
    let (mut board, start) = (board(), Instant::now());
    let states =
        |board: &mut Board| -> Vec<String> { board.page(9).1.iter().map(|row| row.state.clone()).collect() };
    assert_eq!((board.choose(start + SECOND), states(&mut board).len()), (0, 0));
    assert_eq!(board.choose(start + SECOND * 10), 1);
    assert_eq!(states(&mut board), ["does not answer"], "its job, although its streams are unknown");
    update(&mut board, start, vec![stream(0, 1, 0, &[]), stream(1, 1, 0, &[])]);
    assert_eq!(board.choose(start + SECOND * 3), 0);
    assert_eq!(states(&mut board), ["running", "running"]);
    assert_eq!(board.choose(start + SECOND * 4), 1);
    assert_eq!(states(&mut board), ["does not answer", "does not answer"]);
    update(&mut board, start + SECOND * 4, Vec::new());
    assert_eq!(board.choose(start + SECOND * 5), 0);
    board.remove(ENGINE);
    assert_eq!(board.notice.as_deref(), Some("the engine (pid 7) has ended"));
}
