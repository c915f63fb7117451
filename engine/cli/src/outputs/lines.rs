//! The options for the appearance of lines, and for those that are shown.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use clap::Args;
use iof_output::{LineFilter, LinePattern};

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args, Default)]
pub struct LineArgs {
    /// Show only lines that match
    ///
    /// A regular expression in the syntax of Rust's crate regex, such as 'loss|error', '^step 10' or '(?i)nan'. It is searched in
    /// the line as the rank wrote it, without its newline and without tags. A line waits for its end, or for
    /// --max-line. Files contain all lines.
    #[arg(id = "match", long, help_heading = OUTPUT, value_name = "REGEX", value_parser = LinePattern::new, allow_hyphen_values = true)]
    matched: Option<LinePattern>,

    /// Do not show lines that match this
    ///
    /// With --match, of the lines that match that.
    #[arg(id = "exclude", long, help_heading = OUTPUT, value_name = "REGEX", value_parser = LinePattern::new, allow_hyphen_values = true)]
    excluded: Option<LinePattern>,
}

impl LineArgs {
    /// Returns the lines that are shown, if not all are.
    pub fn filter(&self) -> Option<LineFilter> {
        let LineArgs { matched, excluded, .. } = self;
        let filter = LineFilter { matched: matched.clone(), excluded: excluded.clone() };
        self.filter_option().map(|_| filter)
    }

    /// Returns the option that selects lines, if any.
    pub fn filter_option(&self) -> Option<&'static str> {
        let matched = self.matched.as_ref().map(|_| "--match");
        matched.or(self.excluded.as_ref().map(|_| "--exclude"))
    }
}

/// Returns `true` for a terminal that shows colours, unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub fn has_colours(file: impl AsFd + IsTerminal) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    file.is_terminal() && !refused && env::var_os("TERM").is_none_or(|term| term != "dumb")
}
