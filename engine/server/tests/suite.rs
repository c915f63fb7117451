//! The tests of the engine that need no process of their own. They are one executable, because each one has the
//! whole workspace in it. `.ci/test` looks for files that are in none.

mod accounting;
mod adopt;
mod app;
mod buffering;
mod directives;
mod early_end;
mod event_loop;
mod examples;
mod fences;
mod grace;
#[path = "host/main.rs"]
mod host;
mod host_deliveries;
mod log;
#[cfg(feature = "mail")]
mod log_servers;
mod on_nodes;
mod positions;
mod ptys;
mod pusher;
mod queries;
mod reused_names;
mod room_bell;
mod spawn;
#[path = "stdin/main.rs"]
mod stdin;
mod stdin_elsewhere;
mod stdin_hostile;
mod stdin_starting;
mod steps;
mod submit;
mod tool_deliveries;
