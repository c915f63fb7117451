//! `iof top --once`: one table or JSON in place of the screen.

use std::io;
use std::time::Instant;

use serde_json::{Value, json};

use super::board::Board;
use super::draw::{TITLES, cells};
use super::engine::ANSWER_TIMEOUT;
use super::engines::Engines;
use super::rank::{NO_ANSWER, RankInfo};
use super::row::{RowKind, StreamRow};
use crate::args::TopArgs;
use crate::commands::attach::attach;
use crate::commands::query::{have_ranks, stream_json};
use crate::error::Failure;
use crate::terminal::print::{json_lines, table, write};

/// Prints all rows of `board` with the rates of one interval.
pub fn print_once(args: &TopArgs, board: &mut Board, engines: &Engines) -> Result<(), Failure> {
    board.idle_is_hidden = Some(false);
    if board.engines.is_empty() {
        // Fails with the reason, unless an engine has begun meanwhile.
        drop(attach(&args.engine.select(), "iof top")?);
        engines.find(board)?;
    }
    let has_answered =
        |board: &Board| board.engines.values().all(|engine| engine.answers > 1 || engine.failure.is_some());
    let deadline = Instant::now().checked_add(args.interval.saturating_add(ANSWER_TIMEOUT));
    while !has_answered(board) {
        let event = deadline.and_then(|deadline| engines.events.recv_deadline(deadline).ok());
        let Some(event) = event else { break };
        if engines.handle(board, event)? {
            return Err(Failure::running("the engine has ended"));
        }
    }
    for engine in board.engines.values_mut().filter(|engine| engine.answers < 2) {
        engine.failure.get_or_insert_with(|| format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
    }
    let silent = board.choose(Instant::now());
    let procs = board.all_ranks().map(|(proc, _)| proc);
    have_ranks(procs, board.filter.ranks.as_ref(), board.filter.job.as_ref())?;
    let rows = board.page(usize::MAX).1.to_vec();
    let text = match args.json {
        true => json_lines(&rows.iter().map(|row| object(board, row)).collect()),
        false => table(&TITLES, rows.iter().map(|row| cells(board, row))),
    };
    write(io::stdout(), text.as_bytes())?;
    // JSON has no reasons.
    let reason = board.engines.values().find_map(|engine| engine.failure.as_deref()).unwrap_or_default();
    match silent {
        0 => Ok(()),
        1 => Err(Failure::running(format!("1 engine does not answer: {reason}"))),
        count => Err(Failure::running(format!("{count} engines do not answer, one of them: {reason}"))),
    }
}

/// Returns a row as JSON.
fn object(board: &Board, row: &StreamRow) -> Value {
    let (rank, is_silent) = (row.rank.as_ref(), row.state == NO_ANSWER);
    json!({
        "engine": board.engines.get(&row.engine).and_then(|engine| engine.pid),
        "nspace": row.stats.source.nspace.as_str(),
        "state": if is_silent { Some(NO_ANSWER) } else { rank.map(RankInfo::word) },
        "code": rank.and_then(RankInfo::code),
        "signal": rank.and_then(RankInfo::signal),
        "rate": row.rate,
        "stream": (row.kind != RowKind::Job).then(|| stream_json(&row.stats)),
    })
}
