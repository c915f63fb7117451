//! I/O forwarding for launchers and tools: one crate to depend on.
//!
//! A *launcher* starts the processes of a job, the *ranks*. This crate moves their stdout, stderr,
//! stddiag (a channel for diagnostics) and stdin, exactly and in bounded memory. A *tool* is
//! another process (a debugger, a log shipper) that reads the output of a running job in place,
//! from shared memory.
//!
//! | feature | default | contents |
//! |---|---|---|
//! | `engine` | yes | [`engine`]: the engine, which a launcher embeds, and [`log`], the channels of its log requests (RFC0032); with `output` also [`Launcher`], a launcher in one call |
//! | `tool` | yes | [`tool`]: the library for tools |
//! | `output` | yes | [`output`]: printers that write a job's output to terminals, pipes and files |
//! | `nodes` | yes | [`nodes`]: jobs on several nodes |
//! | `mail` | no | a mail client for the email channel of log requests |
//!
//! Every engine answers log requests, so `log` has no feature of its own.
//!
//! Each module is a separate crate, which is re-exported here. The most common names are in the
//! [`prelude`].
//!
//! # A launcher
//!
//! ```
//! use iof::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hello = App::new("sh", ["-c", "echo hello from rank $IOF_RANK"]).ranks(4);
//! let status = Launcher::new("demo".parse()?).app(hello).run()?;
//! assert_eq!(status.code(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # A tool
//!
//! ```no_run
//! use iof::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let demo: Nspace = "demo".parse()?;
//! let mut tool = Tool::find(&Search::nspace(demo.clone()), "my-tool")?;
//! tool.pull(&Pull::new(vec![Proc::all(demo)], Channels::STDOUT))?;
//! // `recv` blocks, and returns `None` when the job has ended and all its output was delivered.
//! while let Some(delivery) = tool.recv()? {
//!     println!("{delivery:?}");
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(all(feature = "engine", feature = "output"))]
mod closed;
#[cfg(all(feature = "engine", feature = "output"))]
mod error;
#[cfg(all(feature = "engine", feature = "output"))]
mod launcher;
pub mod prelude;
#[cfg(all(feature = "engine", feature = "output"))]
mod printers;

#[cfg(all(feature = "engine", feature = "output"))]
pub use error::RunError;
#[cfg(feature = "engine")]
pub use iof_engine as engine;
#[cfg(feature = "engine")]
pub use iof_log as log;
#[cfg(feature = "output")]
pub use iof_output as output;
pub use iof_proto as proto;
#[cfg(feature = "nodes")]
pub use iof_remote as nodes;
#[cfg(feature = "tool")]
pub use iof_tool as tool;
#[cfg(all(feature = "engine", feature = "output"))]
pub use launcher::Launcher;
#[cfg(all(feature = "engine", feature = "output"))]
pub use printers::JobPrinters;
