//! The C library: what a launcher or a tool that is written in C links, shaped as PMIx is.
//!
//! `include/iof.h`, which is made of this crate, is its documentation. Names are PMIx's with
//! another prefix, and so are the order of arguments, structures and numbers. The crate `iof-pmix`
//! exports the same functions by PMIx's own names.
//!
//! | module | concept |
//! |---|---|
//! | `types`, `callbacks`, `constants`, `keys` | what the header declares |
//! | `guard` | the door of every entry point: no panic gets out, nobody waits in a callback |
//! | `read`, `make` | what C hands over, made into values of Rust; and back |
//! | `memory`, `value`, `owned` | malloc's memory; values with all that they point to; what is lent to C |
//! | `call` | calling back into C |
//! | `library`, `init` | what the process has, a tool or a server; the infos of an init |
//! | `session`, `core`, `turns` | one connection: who progresses it, what is under way |
//! | `pushes`, `print`, `events` | pushes under way; output without a callback; event handlers |
//! | `tool`, `progress`, `helpers`, `strings` | entry points of tools |
//! | `server`, `host` | entry points of launchers; the engine's upcalls |
//!
//! # Safety
//! What an entry point asks of C is in the header: pointers that are not NULL point to what their
//! type says. What can be looked at without that is: NULL, alignment, lengths, terminators,
//! numbers.
#![allow(non_camel_case_types, reason = "names are C's")]
#![allow(non_snake_case, reason = "names are PMIx's")]
#![allow(clippy::missing_safety_doc, reason = "it would stand in the header, whose head says it once")]

mod call;
mod callbacks;
mod constants;
mod core;
mod events;
mod guard;
mod helpers;
mod host;
mod init;
mod keys;
mod library;
mod make;
mod memory;
mod owned;
mod print;
mod progress;
mod pushes;
mod read;
mod server;
mod session;
mod strings;
mod tool;
mod turns;
mod types;
mod value;

pub use callbacks::*;
pub use constants::*;
pub use helpers::*;
pub use keys::*;
pub use progress::*;
pub use server::*;
pub use strings::*;
pub use tool::*;
pub use types::*;
