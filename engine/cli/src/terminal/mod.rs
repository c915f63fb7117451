//! The terminal and standard streams of the command: messages, answers, keys and full screens.

pub(crate) mod closed;
pub(crate) mod full_screen;
pub(crate) mod give_up;
pub(crate) mod keyboard;
pub(crate) mod message;
pub(crate) mod print;
pub(crate) mod warnings;
