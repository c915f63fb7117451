//! `iof top --once`: one table or JSON in place of the screen.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use iof_tool::Tool;
use serde_json::json;

use super::board::Board;
use super::draw::{TITLES, cells};
use super::row::StreamRow;
use crate::args::TopArgs;
use crate::commands::attach::query_streams;
use crate::commands::query::stream_json;
use crate::error::Failure;
use crate::terminal::print::{json_lines, table, write};

/// Prints the rows of `board` with the rates of one interval.
pub fn print_once(args: &TopArgs, tool: &mut Tool, board: &mut Board) -> Result<(), Failure> {
    for wait in [Duration::ZERO, args.interval] {
        thread::sleep(wait);
        let streams = query_streams(tool).map_err(Failure::running)?;
        board.update(Instant::now(), streams);
    }
    let rows = board.page(usize::MAX).1;
    let text = match args.json {
        true => {
            let object = |row: &StreamRow| json!({"rate": row.rate, "stream": stream_json(&row.stats)});
            json_lines(&rows.iter().map(object).collect())
        }
        false => table(&TITLES, rows.iter().map(cells)),
    };
    write(io::stdout(), text.as_bytes())
}
