//! The tests of the C library that need no process of their own. They are one executable, because each one has the
//! whole workspace in it. `.ci/test` looks for files that are in none.

mod edges;
mod engines;
mod formats;
mod header;
mod install;
mod keys;
mod lost;
mod macros;
mod printing;
mod programs;
mod spawn;
