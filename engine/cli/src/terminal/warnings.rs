//! Warnings of the engine, such as that ranks of Open MPI 4 are alone, as messages of this command.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Metadata, Subscriber};

use crate::terminal::message::print_message;

/// Prints each warning and each error of the engine from now on.
pub fn print_warnings() {
    // Fails only on a second call.
    let _ = set_global_default(Warnings);
}

/// A subscriber of warnings and errors. Spans have no effect.
struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut warning = Warning::default();
        event.record(&mut warning);
        print_message(format_args!("{warning}"));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of a warning.
#[derive(Default)]
struct Warning {
    message: String,
    error: String,
    /// The names and values of all other fields.
    others: String,
}

impl Visit for Warning {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.error, "{value:?}"),
            name => {
                let separator = if self.others.is_empty() { "" } else { ", " };
                write!(self.others, "{separator}{name} {value:?}")
            }
        };
    }
}

impl fmt::Display for Warning {
    /// Formats the warning as `MESSAGE (NAME VALUE, NAME VALUE): ERROR`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.others.is_empty() {
            write!(f, " ({})", self.others)?;
        }
        if self.error.is_empty() { Ok(()) } else { write!(f, ": {}", self.error) }
    }
}
