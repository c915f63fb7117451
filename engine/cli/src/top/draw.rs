//! The layout of the screen: two lines of sums, the table, and one line of keys. Its own text is
//! ASCII, for any terminal. Names from other processes are shown as far as the locale allows.

use std::env;
use std::sync::LazyLock;
use std::time::Instant;

use iof_proto::{StreamStats, names};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table};

use super::board::{Board, Prompt};
use super::row::{Sort, StreamRow};

/// The largest width of the column with job names.
const MAX_NSPACE: usize = 20;

/// The largest width of the column with hosts, which is shown if there are several.
const MAX_HOST: usize = 16;

const KEYS: &str = "q quit  sort n r c d l  f filter  i hide idle  s sum ranks  Up Down PgUp PgDn";

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, board: &mut Board) {
    let parts = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    // The table has one line of titles.
    let room = usize::from(body.height).saturating_sub(1);
    let table = table(board, room);
    frame.render_widget(Text::from(vec![sums(board, room), readers(board)]), head);
    frame.render_widget(table, body);
    frame.render_widget(bottom(board), foot);
}

/// Returns the last line: the prompt for a filter, or what is hidden, and the keys.
fn bottom(board: &Board) -> Line<'static> {
    if let Some(Prompt { text, error }) = &board.prompt {
        let hint = error.as_deref().unwrap_or("ranks, channels, job; Enter: apply, Esc: cancel");
        return Line::from(format!("filter: {}_  ({})", shown(text), shown(hint)));
    }
    let filter = shown(&board.filter.to_string());
    let active = [
        (!filter.is_empty()).then(|| format!("only {filter}")),
        board.hides_idle.then(|| "idle hidden".into()),
        board.by_rank.then(|| "sums".into()),
    ];
    let active: Vec<String> = active.into_iter().flatten().collect();
    match active.is_empty() {
        true => Line::from(KEYS).style(Modifier::DIM),
        false => Line::from(format!("[{}]  {KEYS}", active.join("; "))),
    }
}

fn sums(board: &mut Board, room: usize) -> Line<'static> {
    let (first, rows) = board.page(room);
    let last = first.saturating_add(rows.len());
    let totals = &board.totals;
    if !board.is_sampled() {
        return Line::from(format!("iof top: asking the engine {}", board.engine));
    }
    if let Some(silence) = board.silence(Instant::now()) {
        return Line::from(format!("engine {} is silent for {} s", board.engine, silence.as_secs()));
    }
    // The most important figures come first, because a narrow terminal cuts the line.
    Line::from(format!(
        "engine {}: {}/s, {} cached, {} dropped; {}, {}, {} complete; {}-{last} shown",
        board.engine,
        rate(totals.rate),
        short(totals.cached),
        short(totals.dropped),
        number(totals.jobs, "job"),
        number(totals.streams, "stream"),
        totals.complete,
        first.saturating_add(1).min(last),
    ))
}

fn number(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn readers(board: &Board) -> Line<'static> {
    let one = |reader: &super::board::ToolLag| {
        format!("{}:{} ({})", shown(&reader.tool), reader.pid, short(reader.lag))
    };
    let all: Vec<String> = board.totals.readers.iter().map(one).collect();
    Line::from(format!("{}: {}", number(all.len(), "reader"), all.join(", ")))
}

fn table(board: &mut Board, room: usize) -> Table<'static> {
    let (sort, reversed) = (board.sort, board.reversed);
    let title = |name: &str, key: Option<Sort>| {
        let mark = match (key == Some(sort), reversed) {
            (false, _) => "",
            (true, false) => " v",
            (true, true) => " ^",
        };
        format!("{name}{mark}")
    };
    let keys = "n  rcdl".chars().map(Sort::of_key);
    let titles = TITLES.iter().zip(keys).map(|(name, key)| title(name, key));
    let mut head: Vec<Cell<'static>> = titles.enumerate().map(aligned).collect();
    let rows = board.page(room).1.to_vec();
    let nspaces = rows.iter().map(|row| row.stats.source.nspace.as_str().chars().count());
    let nspace = nspaces.max().unwrap_or(0).clamp("NSPACE v".len(), MAX_NSPACE);
    let mut widths = vec![
        Constraint::Length(u16::try_from(nspace).unwrap_or(u16::MAX)),
        Constraint::Length(6),
        Constraint::Length(if rows.iter().any(|row| row.stats.logged) { 12 } else { 7 }),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Fill(1),
    ];
    let host_of = |row: &StreamRow| board.hosts.get(&row.stats.source).map_or("", String::as_str);
    let has_hosts = board.has_several_hosts();
    if has_hosts {
        let longest = rows.iter().map(|row| host_of(row).chars().count()).max().unwrap_or(0);
        let width = longest.clamp("HOST".len(), MAX_HOST);
        head.insert(2, left(title("HOST", None)));
        widths.insert(2, Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    }
    let cells = |stream: &StreamRow| row(stream, has_hosts.then(|| host_of(stream)));
    let rows: Vec<TableRow<'static>> = rows.iter().map(cells).collect();
    let head = TableRow::new(head).style(Style::new().add_modifier(Modifier::REVERSED));
    Table::new(rows, widths).header(head).column_spacing(1)
}

/// The titles of the cells of a row.
pub const TITLES: [&str; 7] = ["NSPACE", "RANK", "CHANNEL", "RATE/s", "CACHED", "DROPPED", "READERS (LAG)"];

/// Returns the texts of a row.
pub fn cells(row: &StreamRow) -> Vec<String> {
    let stats = &row.stats;
    vec![
        shown(stats.source.nspace.as_str()),
        stats.source.rank.to_string(),
        match (row.is_sum, stats.logged) {
            (true, _) => "all".into(),
            (false, true) => format!("{} (log)", stats.channel),
            (false, false) => stats.channel.to_string(),
        },
        match (stats.complete, stats.missing) {
            (_, Some(_)) => "broken".into(),
            (true, None) => "complete".into(),
            (false, None) => rate(row.rate),
        },
        short(stats.cached),
        short(stats.dropped),
        tools(stats),
    ]
}

fn row(row: &StreamRow, host: Option<&str>) -> TableRow<'static> {
    let mut cells: Vec<Cell<'static>> = cells(row).into_iter().enumerate().map(aligned).collect();
    if let Some(host) = host {
        cells.insert(2, left(shown(host)));
    }
    let cells = TableRow::new(cells);
    // Makes losses stand out.
    if row.stats.dropped > 0 { cells.style(Style::new().add_modifier(Modifier::BOLD)) } else { cells }
}

/// Lists the readers of a stream. The slowest comes first, because a narrow terminal cuts the line.
fn tools(stats: &StreamStats) -> String {
    let mut readers: Vec<_> = stats.readers.iter().collect();
    readers.sort_by(|a, b| b.lag.cmp(&a.lag).then(a.pid.cmp(&b.pid)));
    let one = |reader: &&iof_proto::ReaderStats| {
        format!("{}:{} ({})", shown(&reader.tool), reader.pid, short(reader.lag))
    };
    readers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the cell of a column: numbers stand on the right.
fn aligned((column, text): (usize, String)) -> Cell<'static> {
    if matches!(column, 1 | 3..=5) { right(text) } else { left(text) }
}

fn left(text: String) -> Cell<'static> {
    Cell::from(text)
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Text::from(text).alignment(Alignment::Right))
}

fn rate(rate: Option<u64>) -> String {
    rate.map_or_else(|| "-".into(), short)
}

/// Formats a number of bytes in at most five characters. K, M and so on are powers of 1024, as in
/// options.
fn short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit.is_empty() || value >= 9.95 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
}

/// Returns a name from another process without control characters, and without characters that the
/// locale does not have.
fn shown(name: &str) -> String {
    static UTF8: LazyLock<bool> = LazyLock::new(locale_has_utf8);
    let has_letter = |letter: char| letter.is_ascii() || *UTF8;
    names::sanitize(name).chars().map(|letter| if has_letter(letter) { letter } else { '?' }).collect()
}

/// Returns `true` if the locale's character set is UTF-8, see locale(7).
fn locale_has_utf8() -> bool {
    let value = |name: &&str| env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(value).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::tests::stream;
    use super::super::filter::RowFilter;
    use super::*;

    fn drawn(board: &mut Board, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, board)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..rows).map(line).map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_sums_tools_and_as_many_streams_as_fit() {
        let (mut board, start) = (Board::new(7, Duration::from_secs(1)), Instant::now());
        assert_eq!(drawn(&mut board, 80, 5)[0], "iof top: asking the engine 7");
        let first = vec![stream(0, 0, 0, &[]), stream(1, 0, 0, &[]), stream(2, 0, 0, &[])];
        board.update(start, first);
        let mut ended = stream(1, 20, 0, &[]);
        ended.complete = true;
        let second = vec![stream(0, 3 << 20, 1 << 20, &[0, 2048]), ended, stream(2, 0, 0, &[])];
        board.update(start + Duration::from_secs(1), second);
        let wanted = [
            "engine 7: 3.0M/s, 2.0M cached, 1.0M dropped; 1 job, 3 streams, 1 complete; 1-2 shown",
            "2 readers: tool2:2 (2.0K), tool1:1 (0)",
            "NSPACE v   RANK CHANNEL   RATE/s   CACHED   DROPPED READERS (LAG)",
            "job           0 stdout      3.0M     2.0M      1.0M tool2:2 (2.0K), tool1:1 (0)",
            "job           1 stdout  complete       20         0",
            KEYS,
        ];
        assert_eq!(drawn(&mut board, 90, 6), wanted);
        board.toggle_sums();
        board.select(RowFilter::parse("0 stdout").unwrap());
        let filtered = drawn(&mut board, 90, 6);
        assert!(filtered[3].starts_with("job           0 all "), "{filtered:?}");
        assert!(filtered[5].starts_with("[only 0 stdout; sums]  q quit "), "{filtered:?}");
        board.prompt = Some(Prompt::of(&board.filter));
        assert!(drawn(&mut board, 90, 6)[5].starts_with("filter: 0 stdout _  (ranks, channels, job;"));
        board.prompt = None;
        board.toggle_sums();
        board.select(RowFilter::default());
        board.sort_by(Sort::Cached);
        assert!(drawn(&mut board, 90, 6)[2].contains("CACHED v"));
        board.sort_by(Sort::Cached);
        assert!(drawn(&mut board, 90, 6)[2].contains("CACHED ^"));
    }

    #[test]
    fn the_hosts_of_ranks_are_shown_if_there_are_several() {
        let mut board = Board::new(7, Duration::from_secs(1));
        board.update(Instant::now(), (0..2).map(|rank| stream(rank, 0, 0, &[])).collect());
        let proc = |rank| stream(rank, 0, 0, &[]).source;
        board.hosts = [(proc(0), "node1".into()), (proc(1), "node1".into())].into();
        assert!(drawn(&mut board, 80, 6)[2].starts_with("NSPACE v   RANK CHANNEL"));
        board.hosts.insert(proc(1), "evil\x1bnode".into());
        let lines = drawn(&mut board, 80, 6);
        assert!(lines[2].starts_with("NSPACE v   RANK HOST      CHANNEL"), "{lines:?}");
        assert!(lines[3].starts_with("job           0 node1     stdout"), "{lines:?}");
        assert!(lines[4].starts_with("job           1 evil?node stdout"), "{lines:?}");
    }

    #[test]
    fn a_terminal_of_any_size_can_be_drawn_to() {
        let mut board = Board::new(7, Duration::from_secs(1));
        board.update(Instant::now(), (0..5).map(|rank| stream(rank, 0, 0, &[1, 2, 3])).collect());
        for (columns, rows) in [(1, 1), (1, 24), (80, 1), (80, 2), (80, 3), (10, 4), (300, 100)] {
            drawn(&mut board, columns, rows);
        }
    }

    #[test]
    fn names_from_other_processes_reach_the_terminal_without_control_characters() {
        assert_eq!(shown("evil\x1b[2Jtool\n\u{9b}"), "evil?[2Jtool??");
        let mut board = Board::new(7, Duration::from_secs(1));
        let mut evil = stream(0, 0, 0, &[1]);
        evil.readers[0].tool = "a\x1b]0;x\x07b".into();
        board.update(Instant::now(), vec![evil]);
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
}
