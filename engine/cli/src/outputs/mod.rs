//! The outputs that the options describe: standard output, files and FIFOs, and their printers.

mod combinations;
pub(crate) mod file_args;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod printers;
pub(crate) mod redirect;
