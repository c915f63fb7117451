//! The format of lines, as the options choose it: labels, tags, time stamps, markup.

pub(crate) mod choice;
pub(crate) mod filter;
pub(crate) mod label;
pub(crate) mod mark;
pub(crate) mod markup;
pub(crate) mod pattern;
pub(crate) mod placeholder;
pub(crate) mod stamp;
pub(crate) mod style;
pub(crate) mod template;
