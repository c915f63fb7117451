//! Values of options, and options that several commands have.

pub(crate) mod ending;
pub(crate) mod engine;
pub(crate) mod position;
pub(crate) mod similar;
pub(crate) mod values;
