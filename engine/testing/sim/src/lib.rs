//! A simulator: random runs of ranks, capture, streams, the engine's core and tools, with faults. A
//! run is determined by one seed, and checks after each step that every byte is delivered or
//! reported as lost, in order and unchanged.
//!
//! The code that runs is the code that ships: the streams and readers of `iof-shm-ring` (with rings
//! on the heap), the capture thread's state machines, the reading side of `iof-tool`, and in three
//! of four runs the engine's core, `iof-core`. Simulated are the launcher, the ranks, the host,
//! sockets, the times and results of kernel calls, and the memory.
//!
//! | module | concept |
//! |---|---|
//! | `rng`, `bytes` | randomness; bytes that can be checked from their offsets |
//! | `script` | the decisions of a run |
//! | `kernel` | when and how requests are answered |
//! | `source`, `tool`, `stdin`, `server`, `world` | runs of streams: ranks' channels; tools; pushes; a stand-in for the core; one action after the other, with all checks |
//! | `engine` | runs of the engine's core, with modules `jobs`, `exits`, `elsewhere`, `embedder`, `host`, `tool`, `requests`, `pusher`, `hostile`, and `limits`, `truth`, `registration`, `configurations`, `finishes`, `stdins` with `push_answers`, `queries` with `rows`, `logs` and `ends`, which know what each tool must receive and how each job must end |
//! | `driver` | a driver of the core without threads, sockets and a clock, with checks of the core's tables (`checks`, `limit_checks`, `peer_checks`) |
//! | `settle` in both | the end of a run |
//! | `agents` | runs of a front end with agents on other nodes, with modules `pipe`, `source`, `agent` and `front` |
//! | `run`, `counts` | runs, failures, shrinking; what runs have covered |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check ends a run")]

mod agents;
mod bytes;
mod counts;
mod driver;
mod engine;
mod kernel;
mod rng;
mod run;
mod script;
mod server;
mod source;
mod stdin;
mod tool;
mod world;

pub use agents::{AgentsReport, NodeSet, run_agents};
pub use counts::Counts;
pub use run::{Failure, Outcome, run, shrink};
pub use script::{Action, Kind, Setting, Subject};
pub use tool::Summary;
