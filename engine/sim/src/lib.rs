//! A simulator: random runs of ranks, capture, streams and tools, with faults. A run is determined by
//! one seed, and checks after each step that every byte is delivered or reported as lost, in order
//! and unchanged.
//!
//! What runs is the code that ships: the streams and readers of `iof-shm-ring` (with rings on the
//! heap), the capture thread's state machines, and the reading side of `iof-tool`. Simulated are the
//! ranks, the times and results of kernel calls, the memory, and the engine's tables.
//!
//! | module | concept |
//! |---|---|
//! | `rng`, `bytes` | randomness; bytes that can be checked from their offsets |
//! | `script` | the decisions of a run |
//! | `kernel` | when and how requests are answered |
//! | `source`, `tool` | ranks' channels; tools, honest or not |
//! | `stdin` | pushes, and the ranks that read them |
//! | `server` | the engine's part: attaching, following, detaching |
//! | `world`, `settle` | one action after the other, with all checks; the end of a run |
//! | `run` | runs, failures, shrinking |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check ends a run")]

mod bytes;
mod kernel;
mod rng;
mod run;
mod script;
mod server;
mod source;
mod stdin;
mod tool;
mod world;

pub use run::{Failure, run, shrink};
pub use script::{Action, Kind, Setting};
pub use tool::Summary;
