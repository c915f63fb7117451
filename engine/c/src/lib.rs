//! The C library, for launchers and tools written in C. Its functions have the form of PMIx's.
//!
//! `include/iof.h` is its documentation, and is generated from this crate. Names differ from PMIx's
//! in the prefix. The order of arguments, the structures and the numbers are the same. The crate
//! `iof-pmix` exports the same functions by PMIx's own names.
//!
//! | module | concept |
//! |---|---|
//! | `ffi::types`, `ffi::callbacks`, `ffi::constants` | the declarations of the header, beside the tables of `iof-proto` |
//! | `ffi::guard` | the border around entry points: no panic crosses it, and no callback blocks |
//! | `ffi::read`, `ffi::make` | conversion of C's values into Rust's, and back |
//! | `ffi::memory`, `ffi::value`, `ffi::owned` | memory of malloc(3); values with what they own; arrays lent to C |
//! | `session::call` | calls of C's callbacks |
//! | `library`, `infos::init`, `infos` | the process: nothing, a tool or a server; its initialization; infos by key |
//! | `infos::spec` | the infos of jobs and their programs |
//! | `session::command`, `session::shared` | requests of the program; the queue that hands them to the core |
//! | `session`, `session::core`, `session::turns` | one connection: the thread that progresses it, pending requests |
//! | `session::pushes`, `session::events` | pushes in progress; event handlers |
//! | `session::print`, `infos::format` | output without a callback; its attributes |
//! | `session::stdio` | the program's own stdin, stdout and stderr |
//! | `functions::tool`, `functions::spawn`, `functions::forwarding`, `functions::servers`, `functions::progress` | entry points of tools |
//! | `functions::helpers`, `functions::argv`, `ffi::strings`, `ffi::pretty` | functions for values, lists and names |
//! | `functions::local_answers` | queries that need no engine |
//! | `functions::server`, `functions::jobs`, `functions::host` | entry points of launchers: the engine, its jobs, its upcalls |
//! | `functions::job_output` | output of a job that the library writes without a registration of the program |
//!
//! # Safety
//! The header states the contract of the entry points: pointers that are not NULL point to values
//! of their type. The library checks what can be checked without that: NULL, alignment, lengths,
//! terminators and numbers.
#![allow(non_camel_case_types, reason = "C's names")]
#![allow(non_snake_case, reason = "PMIx's names")]
#![allow(missing_debug_implementations, reason = "the values of C's unions are known to C alone")]
#![allow(clippy::missing_safety_doc, reason = "the head of the header states the contract once")]

mod ffi;
mod functions;
mod infos;
mod library;
mod session;

pub use ffi::callbacks::*;
pub use ffi::constants::*;
pub use ffi::guard::fail;
pub use ffi::pretty::*;
pub use ffi::strings::*;
pub use ffi::types::*;
pub use functions::argv::*;
pub use functions::forwarding::*;
pub use functions::helpers::*;
pub use functions::jobs::*;
pub use functions::progress::*;
pub use functions::server::*;
pub use functions::servers::*;
pub use functions::spawn::*;
pub use functions::tool::*;
