//! The layout of the screen: two lines of sums, the table, and one line of keys, or the output of a
//! stream. Its own text is ASCII, for any terminal. Text from other processes is shown as far as the
//! locale allows.

use std::env;
use std::sync::LazyLock;
use std::time::Instant;

use iof_proto::{ReaderStats, names};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::board::Board;
use super::prompt::Prompt;
use super::row::{RowKind, Sort, StreamRow};
use super::view::{StreamView, ViewLine};

/// The largest width of the column with job names.
const MAX_NSPACE: usize = 20;

/// The largest width of the column with hosts, which is shown if there are several.
const MAX_HOST: usize = 16;

/// The largest width of the column with states. That of a folded job has several.
const MAX_STATE: usize = 32;

const KEYS: &str = "q quit  ? help  Enter output  Space fold  f filter  i idle  s sum  sort nrcdl";

const VIEW_KEYS: &str = "q back  ? help  / n N search  F follow  arrows PgUp PgDn g G";

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, board: &mut Board) {
    if let Some(view) = board.help.as_mut().or(board.view.as_mut()) {
        return draw_view(frame, view);
    }
    let silent = board.choose(Instant::now());
    let parts = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    // The table has one line of titles.
    let room = usize::from(body.height).saturating_sub(1);
    let table = table(board, room, body.width.into());
    frame.render_widget(Text::from(vec![sums(board, room, silent), readers(board)]), head);
    frame.render_widget(table, body);
    frame.render_widget(bottom(board), foot);
}

/// Returns the last line: the prompt for a filter, or what is hidden, and the keys.
fn bottom(board: &Board) -> Line<'static> {
    if let Some(notice) = &board.notice {
        return Line::from(shown(notice));
    }
    if let Some(Prompt { text, error }) = &board.prompt {
        let hint = error.as_deref().unwrap_or("ranks, channels, job; Enter: apply, Esc: cancel");
        return Line::from(format!("filter: {}_  ({})", shown(text), shown(hint)));
    }
    let filter = shown(&board.filter.to_string());
    let active = [
        (!filter.is_empty()).then(|| format!("only {filter}")),
        (board.hidden > 0).then(|| format!("{} hidden", number(board.hidden, "idle row"))),
        board.by_rank.then(|| "sums".into()),
    ];
    let active: Vec<String> = active.into_iter().flatten().collect();
    match active.is_empty() {
        true => Line::from(KEYS).style(Modifier::DIM),
        false => Line::from(format!("[{}]  {KEYS}", active.join("; "))),
    }
}

/// Draws the output of a stream between a title and a line of keys.
fn draw_view(frame: &mut Frame<'_>, view: &mut StreamView) {
    let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    let search = view.search.clone();
    let columns = view.left.saturating_add(body.width.into());
    let page = view.page(body.height.into());
    let lines: Vec<Line<'static>> = page.map(|line| view_line(line, &search, columns)).collect();
    let (first, last) = (view.first, view.first.saturating_add(lines.len()));
    let dropped = (view.dropped > 0).then(|| format!(", {} older lines dropped", view.dropped));
    let follows = if view.follows { ", following" } else { "" };
    let (title, from, all) = (shown(&view.title), first.saturating_add(1).min(last), view.lines.len());
    let title = format!("{title}: lines {from}-{last} of {all}{follows}{}", dropped.unwrap_or_default());
    let keys = match (&view.prompt, &view.notice) {
        (Some(prompt), _) => Line::from(format!("/{}_", shown(&prompt.text))),
        (None, Some(notice)) => Line::from(shown(notice)),
        (None, None) => Line::from(VIEW_KEYS).style(Modifier::DIM),
    };
    let left = u16::try_from(view.left).unwrap_or(u16::MAX);
    frame.render_widget(Line::from(title).style(Modifier::REVERSED), head);
    frame.render_widget(Paragraph::new(lines).scroll((0, left)), body);
    frame.render_widget(keys, foot);
}

/// Returns at least the first `columns` columns of a line, with the text that was searched for marked.
fn view_line(line: &ViewLine, search: &str, columns: usize) -> Line<'static> {
    // A character has at most four bytes.
    let bytes = line.bytes.get(..columns.saturating_mul(4)).unwrap_or(&line.bytes);
    let text = String::from_utf8_lossy(bytes).replace('\t', TAB);
    let text = printable(&names::escape(&text));
    if line.channel.is_none() {
        return Line::from(format!("-- {text} --")).style(Modifier::DIM);
    }
    if search.is_empty() {
        return Line::from(text);
    }
    let found = Span::from(search.to_owned()).style(Modifier::REVERSED);
    let parts = text.split(search).flat_map(|part| [found.clone(), Span::from(part.to_owned())]);
    Line::from_iter(parts.skip(1))
}

/// The blanks in place of a tab.
const TAB: &str = "    ";

fn sums(board: &mut Board, room: usize, silent: usize) -> Line<'static> {
    let (first, rows, _) = board.page(room);
    let last = first.saturating_add(rows.len());
    let totals = &board.totals;
    let named: Vec<_> = board.engines.values().filter_map(|engine| Some((engine.pid?, engine))).collect();
    let engines = match named[..] {
        [] => return Line::from("no engine of this user is running; new ones are shown"),
        [(pid, engine)] => match (&engine.failure, engine.is_silent) {
            (Some(failure), _) => return Line::from(shown(&format!("engine {pid}: {failure}"))),
            (None, true) => {
                let silence = engine.silence(Instant::now()).as_secs();
                return Line::from(format!("engine {pid} is silent for {silence} s"));
            }
            _ if engine.answers == 0 => return Line::from(format!("iof top: asking the engine {pid}")),
            _ => format!("engine {pid}"),
        },
        _ if silent > 0 => format!("{} engines, {silent} silent", named.len()),
        _ => format!("{} engines", named.len()),
    };
    let not_shown =
        (board.not_shown > 0).then(|| format!("; {} not shown", number(board.not_shown, "more engine")));
    // The most important figures come first, because a narrow terminal cuts the line.
    Line::from(format!(
        "{engines}: {}/s, {} cached, {} dropped; {}, {}, {} complete; {}-{last} shown{}",
        rate(totals.rate),
        short(totals.cached),
        short(totals.dropped),
        number(totals.jobs, "job"),
        number(totals.streams, "stream"),
        totals.complete,
        first.saturating_add(1).min(last),
        not_shown.unwrap_or_default(),
    ))
}

fn number(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn readers(board: &Board) -> Line<'static> {
    let readers = &board.totals.readers;
    Line::from(format!("{}: {}", number(readers.len(), "reader"), tools(readers)))
}

fn table(board: &mut Board, room: usize, columns: usize) -> Table<'static> {
    let mark = if board.reversed { " ^" } else { " v" };
    let title = |(name, key): (&&str, char)| {
        let is_key = Sort::of_key(key) == Some(board.sort);
        format!("{name}{}", if is_key { mark } else { "" })
    };
    let titles = TITLES.iter().zip("n   rcdl".chars()).map(title);
    let mut head: Vec<Cell<'static>> = titles.enumerate().map(aligned).collect();
    let (first, rows, cursor) = board.page(room);
    let rows = rows.to_vec();
    let width = |text: &dyn Fn(&StreamRow) -> usize, least: usize, most: usize| {
        rows.iter().map(text).max().unwrap_or(0).clamp(least, most.max(least))
    };
    let length = |text: &str| text.chars().count();
    let nspace = width(&|row| length(row.stats.source.nspace.as_str()), "NSPACE v".len(), MAX_NSPACE);
    let channel = if rows.iter().any(|row| row.stats.logged) { 12 } else { 7 };
    // The figures give way to the states.
    let room_for_state = columns.saturating_sub(nspace.saturating_add(channel).saturating_add(9));
    let state = width(&|row| length(&row.state), "running".len(), MAX_STATE.min(room_for_state));
    let mut widths = vec![nspace, 6, channel, state, 8, 8, 9];
    let has_hosts = board.has_several_hosts();
    if has_hosts {
        head.insert(2, Cell::from("HOST"));
        widths.insert(2, width(&|row| length(host_of(row)), "HOST".len(), MAX_HOST));
    }
    // A figure that is cut would be wrong: only whole columns are shown.
    let ends = widths.iter().scan(0_usize, |end, width| {
        *end = end.saturating_add(*width).saturating_add(1);
        Some(*end)
    });
    let whole = ends.take_while(|end| *end <= columns.saturating_add(1)).count();
    let fixed = widths.iter().take(whole).map(|width| u16::try_from(*width).unwrap_or(u16::MAX));
    let rest = (whole == widths.len()).then_some(Constraint::Fill(1));
    let widths: Vec<_> = fixed.map(Constraint::Length).chain(rest).collect();

    let table_row = |(index, stream): (usize, &StreamRow)| {
        let mut cells: Vec<Cell<'static>> =
            cells(board, stream).into_iter().enumerate().map(aligned).collect();
        if has_hosts {
            cells.insert(2, Cell::from(shown(host_of(stream))));
        }
        let mut style = Modifier::empty();
        // Makes losses stand out.
        style.set(Modifier::BOLD, stream.stats.dropped > 0);
        style.set(Modifier::REVERSED, first.saturating_add(index) == cursor);
        TableRow::new(cells).style(style)
    };
    let rows: Vec<TableRow<'static>> = rows.iter().enumerate().map(table_row).collect();
    let head = TableRow::new(head).style(Modifier::BOLD | Modifier::UNDERLINED);
    Table::new(rows, widths).header(head).column_spacing(1)
}

/// The titles of the cells of a row.
pub const TITLES: [&str; 8] =
    ["NSPACE", "RANK", "CHANNEL", "STATE", "RATE/s", "CACHED", "DROPPED", "READERS (LAG)"];

/// Returns the texts of a row.
pub fn cells(board: &Board, row: &StreamRow) -> Vec<String> {
    let failure = board.engines.get(&row.engine).and_then(|engine| engine.failure.as_deref());
    let stats = &row.stats;
    vec![
        shown(stats.source.nspace.as_str()),
        stats.source.rank.to_string(),
        match (row.kind, stats.logged) {
            (RowKind::Rank | RowKind::Job, _) => "all".into(),
            (RowKind::Stream, true) => format!("{} (log)", stats.channel),
            (RowKind::Stream, false) => stats.channel.to_string(),
        },
        row.state.clone(),
        match (stats.complete, stats.missing) {
            (_, Some(_)) => "broken".into(),
            (true, None) => "complete".into(),
            (false, None) => rate(row.rate),
        },
        short(stats.cached),
        short(stats.dropped),
        failure.map_or_else(|| tools(&stats.readers), shown),
    ]
}

fn host_of(row: &StreamRow) -> &str {
    row.rank.as_ref().map_or("", |rank| &rank.host)
}

/// Lists readers. The slowest comes first, because a narrow terminal cuts the line.
fn tools(readers: &[ReaderStats]) -> String {
    let mut readers: Vec<_> = readers.iter().collect();
    readers.sort_by(|a, b| b.lag.cmp(&a.lag).then(a.pid.cmp(&b.pid)));
    let one =
        |reader: &&ReaderStats| format!("{}:{} ({})", shown(&reader.tool), reader.pid, short(reader.lag));
    readers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the cell of a column: numbers stand on the right.
fn aligned((column, text): (usize, String)) -> Cell<'static> {
    let alignment = if matches!(column, 1 | 4..=6) { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(text).alignment(alignment))
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
    printable(&names::sanitize(name))
}

/// Returns a text without characters that the locale does not have.
fn printable(text: &str) -> String {
    static UTF8: LazyLock<bool> = LazyLock::new(locale_has_utf8);
    let has_letter = |letter: char| letter.is_ascii() || *UTF8;
    text.chars().map(|letter| if has_letter(letter) { letter } else { '?' }).collect()
}

/// Returns `true` if the locale's character set is UTF-8, see locale(7).
fn locale_has_utf8() -> bool {
    let value = |name: &&str| env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(value).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests;
