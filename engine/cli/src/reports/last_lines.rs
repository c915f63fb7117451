//! The last lines of stderr of a rank that has failed, as messages at the end of its job.

use std::error::Error;

use iof_engine::{Engine, Grant};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{LineItem, Lines, Pull};

use crate::options::position::Tail;
use crate::terminal::message::print_message;

/// The largest number of lines that `--error-lines` takes.
pub const MAX_ERROR_LINES: i64 = 1000;

/// The bytes of a line that a message shows.
const MAX_ERROR_LINE_BYTES: usize = 4096;

/// Prints the last `count` lines that are cached of stderr of `rank`, whose job has ended, a message for each.
pub fn print_last_lines(engine: &Engine, nspace: &Nspace, rank: Rank, count: u32) {
    if count > 0
        && let Err(error) = try_print(engine, nspace, rank, count)
    {
        print_message(format_args!("cannot repeat the stderr of rank {rank}: {error}"));
    }
}

fn try_print(engine: &Engine, nspace: &Nspace, rank: Rank, count: u32) -> Result<(), Box<dyn Error>> {
    let mut tools = [engine.attach("iof run", Grant::Never)?];
    let [tool] = &mut tools;
    let handler = tool.pull(&Pull::new(vec![Proc::new(nspace.clone(), rank)], Channels::STDERR))?.handler;
    tool.wait_for_cached()?;
    Tail::of_each(count.into()).apply(&mut tools, false);
    let [mut tool] = tools;
    // A process that outlives the rank may hold the stream open.
    tool.deregister(handler)?;
    let mut is_begun = false;
    for line in Lines::new(tool).filter_map(|item| item.map(LineItem::line).transpose()) {
        let line = line?;
        // The beginning of a line that comes in parts is enough.
        if !is_begun && (line.ends || !line.bytes.is_empty()) {
            let bytes = line.bytes.get(..MAX_ERROR_LINE_BYTES).unwrap_or(&line.bytes);
            let (text, more) =
                (String::from_utf8_lossy(bytes), if bytes.len() < line.bytes.len() { "..." } else { "" });
            print_message(format_args!("job {nspace}: rank {rank} stderr: {text}{more}"));
        }
        is_begun = !line.ends && line.lost == 0;
    }
    Ok(())
}
