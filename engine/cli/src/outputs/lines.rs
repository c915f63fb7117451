//! The appearance of lines.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

/// Returns `true` for a terminal that shows colours, unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub fn has_colours(file: impl AsFd + IsTerminal) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    file.is_terminal() && !refused && env::var_os("TERM").is_none_or(|term| term != "dumb")
}
