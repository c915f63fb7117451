//! The options for the appearance of lines, and for those that are shown.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use iof_output::{Fold, LabelTemplate, LineFilter, LinePattern};

use crate::options::values::{Choice, choice};
use crate::terminal::message::print_message;

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args, Default)]
pub struct LineArgs {
    /// Put this text before each line
    ///
    /// With placeholders: {nspace}, {rank}, {rank:4} (with zeros, here 4 digits), {host}, {channel}, {pid}, {time} or
    /// {time:%H:%M:%S} (in the local time zone, in the format of strftime), {elapsed} (seconds since this
    /// command began, negative for older output). {{ and }} are braces. In place of tags and timestamp.
    #[arg(long, help_heading = OUTPUT, value_name = "TEMPLATE", value_parser = label, allow_hyphen_values = true)]
    pub label: Option<LabelTemplate>,

    /// Colour tags and labels: auto, always or never
    ///
    /// With auto, the default, on a terminal whose TERM is not dumb, or if CLICOLOR_FORCE is set and not 0, but
    /// not if NO_COLOR is set. Files have no colours.
    #[arg(long, help_heading = OUTPUT, value_name = "WHEN", value_parser = choice(COLOURS), default_value = "auto")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    color: Colour,

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

    /// Show equal lines of ranks once, with these ranks
    ///
    /// Such as [0-3,7]<stdout>: ready. A line waits for 0.25 seconds for further ranks that write it. With pull
    /// --no-follow, equal whole outputs of ranks are one block, as with clush -b. Up to 64 MiB are held. Files
    /// contain all lines.
    #[arg(long, help_heading = OUTPUT)]
    fold: bool,
}

/// Set if tags are coloured, or not; `None` if that depends on the output and the environment.
type Colour = Option<bool>;

const COLOURS: &[Choice<Colour>] = &[
    ("auto", "On terminals", None),
    ("always", "Everywhere but in files", Some(true)),
    ("never", "Nowhere", Some(false)),
];

/// Parses a label. Its time begins now.
fn label(text: &str) -> Result<LabelTemplate, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let began = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    LabelTemplate::new(text, began).map_err(|error| format!("invalid label '{text}': {error}"))
}

/// Reports once that not all lines can wait.
fn report_full(limit: usize) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        print_message(format_args!(
            "--fold: output of more than {} MiB cannot wait: it is written before further ranks may have written the same",
            limit >> 20
        ));
    });
}

impl LineArgs {
    /// Returns how lines are folded, if they are.
    pub fn fold(&self) -> Option<Fold> {
        self.fold.then_some(Fold { whole: false, on_full: report_full })
    }

    /// Returns `--fold` if it was given.
    pub fn fold_option(&self) -> Option<&'static str> {
        self.fold.then_some("--fold")
    }

    /// Returns whether tags that are shown on `file` have colours (<https://no-color.org>,
    /// <https://bixense.com/clicolors>).
    pub fn has_colours(&self, file: impl AsFd + IsTerminal) -> bool {
        let is_set =
            |name: &str, off: &str| env::var_os(name).is_some_and(|value| !value.is_empty() && value != off);
        self.color.unwrap_or_else(|| {
            let by_default = || file.is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb");
            !is_set("NO_COLOR", "") && (is_set("CLICOLOR_FORCE", "0") || by_default())
        })
    }

    /// Returns the lines that are shown, if not all are.
    pub fn filter(&self) -> Option<LineFilter> {
        self.filter_option()?;
        Some(LineFilter { matched: self.matched.clone(), excluded: self.excluded.clone() })
    }

    /// Returns the option that selects lines, if any.
    pub fn filter_option(&self) -> Option<&'static str> {
        let matched = self.matched.as_ref().map(|_| "--match");
        matched.or(self.excluded.as_ref().map(|_| "--exclude"))
    }
}
