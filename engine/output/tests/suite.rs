//! The tests of the printer. They are one executable, because each one has the
//! whole workspace in it. `.ci/test` looks for files that are in none.

mod golden;
mod scripted;
mod xml;
