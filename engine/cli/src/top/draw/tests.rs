//! Tests of the drawing, by the cells of a buffer.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use iof_proto::{Channel, ProcState};

use super::super::board::tests::{add_engine, answer, board, stream, update};
use super::super::filter::RowFilter;
use super::super::row::EngineId;
use super::*;
use crate::args::TOP_HELP;

fn drawn(board: &mut Board, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, board)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row: u16| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    (0..rows).map(line).map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn the_screen_shows_sums_tools_and_as_many_streams_as_fit() {
    let (mut board, start) = (board(), Instant::now());
    assert_eq!(drawn(&mut board, 80, 5)[0], "iof top: asking the engine 7");
    let first = vec![stream(0, 0, 0, &[]), stream(1, 0, 0, &[]), stream(2, 0, 0, &[])];
    update(&mut board, start, first);
    let mut ended = stream(1, 20, 0, &[]);
    ended.complete = true;
    let second = vec![stream(0, 3 << 20, 1 << 20, &[0, 2048]), ended, stream(2, 0, 0, &[])];
    update(&mut board, start + Duration::from_secs(1), second);
    let wanted = [
        "engine 7: 3.0M/s, 2.0M cached, 1.0M dropped; 1 job, 3 streams, 1 complete; 1-2 shown",
        "2 readers: tool2:2 (2.0K), tool1:1 (0)",
        "NSPACE v   RANK HOST  CHANNEL STATE     RATE/s   CACHED   DROPPED READERS (LAG)",
        "job           0 node0 stdout  running     3.0M     2.0M      1.0M tool2:2 (2.0K), tool1:1 (0)",
        "job           1 node1 stdout  running complete       20         0",
        KEYS,
    ];
    assert_eq!(drawn(&mut board, 100, 6), wanted);
    board.by_rank = !board.by_rank;
    board.filter = RowFilter::parse("0 stdout").unwrap();
    let filtered = drawn(&mut board, 90, 6);
    assert!(filtered[3].starts_with("job           0 node0 all     running"), "{filtered:?}");
    assert!(filtered[5].starts_with("[only 0 stdout; sums]  q quit "), "{filtered:?}");
    board.prompt = Some(Prompt::of(&board.filter));
    assert!(drawn(&mut board, 90, 6)[5].starts_with("filter: 0 stdout _  (ranks, channels, job;"));
    board.prompt = None;
    board.by_rank = !board.by_rank;
    board.filter = RowFilter::default();
    board.sort_by(Sort::Cached);
    assert!(drawn(&mut board, 90, 6)[2].contains("CACHED v"));
    board.sort_by(Sort::Cached);
    assert!(drawn(&mut board, 90, 6)[2].contains("CACHED ^"));
}

#[test]
fn the_hosts_of_ranks_are_shown_if_there_are_several() {
    let mut board = board();
    update(&mut board, Instant::now(), vec![stream(0, 0, 0, &[])]);
    assert!(drawn(&mut board, 80, 6)[2].starts_with("NSPACE v   RANK CHANNEL"));
    update(&mut board, Instant::now(), (0..2).map(|rank| stream(rank, 0, 0, &[])).collect());
    let engine = board.engines.values_mut().next().unwrap();
    engine.ranks.values_mut().for_each(|rank| rank.host = "evil\x1bnode".into());
    assert!(drawn(&mut board, 80, 6)[2].starts_with("NSPACE v   RANK CHANNEL"), "one host");
    update(&mut board, Instant::now(), (0..2).map(|rank| stream(rank, 0, 0, &[])).collect());
    let lines = drawn(&mut board, 80, 6);
    assert!(lines[2].starts_with("NSPACE v   RANK HOST  CHANNEL"), "{lines:?}");
    assert!(lines[3].starts_with("job           0 node0 stdout"), "{lines:?}");
    assert!(lines[4].starts_with("job           1 node1 stdout"), "{lines:?}");
}

#[test]
fn the_number_of_hidden_rows_and_of_silent_engines_is_shown() {
    let (mut board, start) = (board(), Instant::now());
    let sample: Vec<_> = (0..30).map(|rank| stream(rank, 5, 0, &[])).collect();
    let state = |rank| if rank == 4 { (ProcState::Failed, Some(3)) } else { (ProcState::Running, None) };
    for seconds in 0..2 {
        let time = start + Duration::from_secs(seconds);
        answer(&mut board, EngineId(0), time, sample.clone(), state);
    }
    let lines = drawn(&mut board, 80, 10);
    assert!(lines[3].starts_with("job           4 node4 stdout  exited 3"), "{lines:?}");
    assert!(lines[4].is_empty() && lines[9].starts_with("[29 idle rows hidden]  q quit"), "{lines:?}");
    add_engine(&mut board, EngineId(1), 8);
    let failed = board.engines.get_mut(&EngineId(1)).unwrap();
    failed.failure = Some("version 9\x1b".into());
    let lines = drawn(&mut board, 100, 10);
    assert!(lines[0].starts_with("2 engines, 1 silent: "), "{lines:?}");
    assert!(
        lines[4].starts_with("job           *       all     does not answer        -        0"),
        "{lines:?}"
    );
    assert!(lines[4].ends_with("version 9?"), "{lines:?}");
}

#[test]
fn the_output_of_a_stream_is_escaped_cut_and_searched() {
    let mut board = board();
    let mut view = StreamView::of_text("job.0 stdout", "");
    assert_eq!(view.page(3).count(), 0);
    view.push((Some(Channel::Stdout), b"one\x1b[31m\ttwo\nlong line with an end\nthree\nfour".into()));
    view.push((None, b"5 bytes are missing here\n".into()));
    view.push((Some(Channel::Stdout), b"six\xff\n".into()));
    board.view = Some(view);
    let title = "job.0 stdout: lines 1-3 of 6";
    let lines = drawn(&mut board, 40, 5);
    assert_eq!(lines[..4], [title, "one\\u{1b}[31m    two", "long line with an end", "three"]);
    assert!(lines[4].starts_with("q back"), "{lines:?}");
    for key in [KeyCode::Char('G'), KeyCode::Right] {
        board.view.as_mut().unwrap().pressed(key);
    }
    let lines = drawn(&mut board, 40, 5);
    assert_eq!(lines[..3], ["job.0 stdout: lines 4-6 of 6, following", "", "es are missing here --"]);
    let view = board.view.as_mut().unwrap();
    view.pressed(KeyCode::Left);
    assert!("/line".chars().all(|letter| !view.pressed(KeyCode::Char(letter))));
    assert_eq!(drawn(&mut board, 40, 5)[4], "/line_");
    board.view.as_mut().unwrap().pressed(KeyCode::Enter);
    assert_eq!(drawn(&mut board, 8, 5)[1], "long lin");
    board.help = Some(StreamView::of_text("keys", TOP_HELP));
    assert!(drawn(&mut board, 40, 10)[1].starts_with("Keys in the table:"));
    assert!(TOP_HELP.lines().all(|line| line.len() < 80 && line.is_ascii()));
}

#[test]
fn a_terminal_of_any_size_can_be_drawn_to() {
    let mut board = board();
    update(&mut board, Instant::now(), (0..5).map(|rank| stream(rank, 0, 0, &[1, 2, 3])).collect());
    for (columns, rows) in [(1, 1), (1, 24), (80, 1), (80, 2), (80, 3), (10, 4), (300, 100)] {
        drawn(&mut board, columns, rows);
    }
}

#[test]
fn a_narrow_terminal_shows_whole_columns_only() {
    let mut board = board();
    let killed = |_| (ProcState::Killed, Some(128 + 9));
    answer(&mut board, EngineId(0), Instant::now(), vec![stream(0, 1234, 0, &[])], killed);
    for (columns, title, row) in [
        (20, "NSPACE v   RANK", "job           0"),
        (40, "NSPACE v   RANK CHANNEL STATE", "job           0 stdout  killed by SIGKILL"),
        (
            51,
            "NSPACE v   RANK CHANNEL STATE               RATE/s",
            "job           0 stdout  killed by SIGKILL        -",
        ),
    ] {
        let lines = drawn(&mut board, columns, 6);
        let cut: String = row.chars().take(columns.into()).collect();
        assert_eq!((lines[2].as_str(), lines[3].as_str()), (title, cut.as_str()), "{columns}");
    }
}

#[test]
fn names_from_other_processes_reach_the_terminal_without_control_characters() {
    assert_eq!(shown("evil\x1b[2Jtool\n\u{9b}"), "evil?[2Jtool??");
    let mut board = board();
    let mut evil = stream(0, 0, 0, &[1]);
    evil.readers[0].tool = "a\x1b]0;x\x07b".into();
    update(&mut board, Instant::now(), vec![evil]);
    let lines = drawn(&mut board, 80, 6);
    assert!(lines[1].contains("a?]0;x?b:1"), "{lines:?}");
    assert!(lines.iter().all(|line| line.is_ascii() && !line.contains(char::is_control)), "{lines:?}");
}

#[test]
fn a_number_of_bytes_has_at_most_five_characters() {
    let formatted = [0, 999, 1000, 10_239, 10_240, 1_022_976, 1 << 20, 1 << 40, u64::MAX].map(short);
    assert_eq!(formatted, ["0", "999", "1.0K", "10K", "10K", "999K", "1.0M", "1.0T", "16E"]);
    for bits in 0..64 {
        assert!(short(1 << bits).len() <= 5 && short((1 << bits) - 1).len() <= 5, "{bits}");
    }
}

#[test]
fn the_line_of_keys_fits_80_columns() {
    assert!(KEYS.len() <= 80);
}
