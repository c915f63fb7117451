//! The options of a printer.

use iof_proto::ProcInfo;

use crate::fold::Fold;
use crate::format::choice::Choice;
use crate::format::style::{Style, StyleExtras};
use crate::lines::FlushTimeout;

/// The options of a printer.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format of lines, such as tags and time stamps.
    pub style: Style,
    /// The limits of length and time beyond which a part of a line is written without its end.
    pub flush_timeout: FlushTimeout,
    /// Set if parts of lines are written immediately, regardless of `flush_timeout`.
    pub raw: bool,
    /// The folding of what a [`Printer`](crate::Printer) writes to an [`Output`](crate::Output) in text. Elsewhere,
    /// nothing is folded.
    pub fold: Option<Fold>,
    /// Returns the text that a [`Printer`](crate::Printer) writes to an [`Output`](crate::Output) for each
    /// [`Delivery::Rank`](iof_tool::Delivery::Rank): whole lines. Files do not get it.
    pub rank_object: Option<fn(&Style, &ProcInfo) -> String>,
}

impl Default for Options {
    /// Returns options that leave the bytes unchanged and write whole lines.
    fn default() -> Options {
        let style = Style::new(&Choice::default(), &StyleExtras::default());
        Options { style, flush_timeout: FlushTimeout::default(), raw: false, fold: None, rank_object: None }
    }
}
