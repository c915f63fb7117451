//! The program `iof-serve` on engines of this process, as its clients see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod access;
mod api;
mod dependencies;
mod hostile;
mod page;
mod resume;
mod site;
