//! What output looks like, and writing it.
mod batch;
mod choice;
mod pattern;
mod stamp;
mod style;

pub use batch::{Batch, LEND_AT};
pub use choice::{Choice, ChoiceError, Markup, Place};
pub use pattern::{Pattern, PatternError, Words};
pub use stamp::Stamp;
pub use style::{Finish, Label, Open, Run, Source, Style};
