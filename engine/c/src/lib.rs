//! The C library, for launchers and tools written in C. Its functions have the form of PMIx's.
//!
//! `include/iof.h` is its documentation, and is generated from this crate. Names differ from PMIx's
//! in the prefix. The order of arguments, the structures and the numbers are the same. The crate
//! `iof-pmix` exports the same functions by PMIx's own names.
//!
//! | module | concept |
//! |---|---|
//! | `types`, `callbacks`, `constants` | the declarations of the header, beside the tables of `iof-proto` |
//! | `guard` | the border around entry points: no panic crosses it, and no callback blocks |
//! | `read`, `make` | conversion of C's values into Rust's, and back |
//! | `memory`, `value`, `owned` | memory of malloc(3); values with what they own; arrays lent to C |
//! | `call` | calls of C's callbacks |
//! | `library`, `init`, `infos` | the process: nothing, a tool or a server; its initialization; infos by key |
//! | `spec` | the infos of jobs and their programs |
//! | `command`, `shared` | requests of the program; the queue that hands them to the core |
//! | `session`, `core`, `turns` | one connection: the thread that progresses it, pending requests |
//! | `pushes`, `events` | pushes in progress; event handlers |
//! | `print`, `format` | output without a callback; its attributes |
//! | `stdio` | the program's own stdin, stdout and stderr |
//! | `tool`, `spawn`, `forwarding`, `servers`, `progress` | entry points of tools |
//! | `helpers`, `argv`, `strings`, `pretty` | functions for values, lists and names |
//! | `local_answers` | queries that need no engine |
//! | `server`, `jobs`, `host` | entry points of launchers: the engine, its jobs, its upcalls |
//! | `job_output` | output of a job that the library writes without a registration of the program |
//!
//! # Safety
//! The header states the contract of the entry points: pointers that are not NULL point to values
//! of their type. The library checks what can be checked without that: NULL, alignment, lengths,
//! terminators and numbers.
#![allow(non_camel_case_types, reason = "C's names")]
#![allow(non_snake_case, reason = "PMIx's names")]
#![allow(missing_debug_implementations, reason = "the values of C's unions are known to C alone")]
#![allow(clippy::missing_safety_doc, reason = "the head of the header states the contract once")]

mod argv;
mod call;
mod callbacks;
mod command;
mod constants;
mod core;
mod events;
mod format;
mod forwarding;
mod guard;
mod helpers;
mod host;
mod infos;
mod init;
mod job_output;
mod jobs;
mod library;
mod local_answers;
mod make;
mod memory;
mod own_stdin;
mod owned;
mod pretty;
mod print;
mod progress;
mod pushes;
mod read;
mod server;
mod servers;
mod session;
mod shared;
mod spawn;
mod spec;
mod stdio;
mod strings;
mod tool;
mod turns;
mod types;
mod value;

pub use argv::*;
pub use callbacks::*;
pub use constants::*;
pub use forwarding::*;
pub use guard::fail;
pub use helpers::*;
pub use jobs::*;
pub use pretty::*;
pub use progress::*;
pub use server::*;
pub use servers::*;
pub use spawn::*;
pub use strings::*;
pub use tool::*;
pub use types::*;
