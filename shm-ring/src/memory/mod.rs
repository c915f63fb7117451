//! Memory that processes share: files, maps and copies, and the budget of their sizes.

pub(crate) mod budget;
pub(crate) mod copy;
pub(crate) mod file;
pub(crate) mod inlet;
pub(crate) mod map;
