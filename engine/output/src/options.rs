//! The options of a printer.

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
    /// Whether parts of lines are written immediately, regardless of `flush_timeout`.
    pub raw: bool,
}

impl Default for Options {
    /// Returns options that leave the bytes unchanged and write whole lines.
    fn default() -> Options {
        let style = Style::new(&Choice::default(), &StyleExtras::default());
        Options { style, flush_timeout: FlushTimeout::default(), raw: false }
    }
}
