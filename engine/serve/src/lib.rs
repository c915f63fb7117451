//! The program `iof-serve`: the output of jobs over HTTP, exact and resumable, and a page to look at it.
//!
//! Each client has its own connection to the engine, a [tool](iof_tool::Tool). Its body is polled only while its
//! socket takes bytes, and keeps at most one event. So a client that does not read costs its own connection: the
//! engine overwrites its cache, and the client finds a gap with position and size when it reads again.

mod access;
mod api;
mod args;
mod bytes;
mod engines;
mod error;
mod events;
mod follow;
mod input;
mod limits;
mod listen;
pub mod query;
mod server;
mod state;

pub use args::run;
