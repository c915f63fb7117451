//! The library for tools: programs that attach to an engine, receive the output of jobs in place,
//! push stdin, send queries and log messages.
//!
//! A [`Tool`] is a connection to an engine. [`Tool::pull`] registers for the output of processes,
//! which need not exist yet. [`Tool::recv`] returns the next delivery of any registration: bytes in
//! the engine's shared memory, a gap with its exact position and size, the end of a stream with its
//! byte counters, or the end of a job. There are three ways to receive deliveries.
//!
//! # Blocking
//! ```
//! # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
//! use iof_proto::{Channels, Nspace, Proc, Rank};
//! use iof_tool::{Delivery, Pull};
//!
//! # let engine = Engine::start(Config::new(Rendezvous::None))?;
//! # let mut tool = engine.attach("example", Grant::Never)?;
//! // In another process: let mut tool = Tool::find(&Search::default(), "my-tool")?;
//! let all = Proc::all(Nspace::new("job1")?);
//! tool.pull(&Pull::new(vec![all.clone()], Channels::STDOUT))?;
//! # let app = App::new("echo", ["hello"]).ranks(2);
//! # let job = engine.spawn(&JobSpec::new(all.nspace, vec![app]))?;
//! let mut complete = 0;
//! // `recv` blocks, and returns None when nothing more will be delivered.
//! while let Some(delivery) = tool.recv()? {
//!     match delivery {
//!         Delivery::Bytes(bytes) => println!("{}: {} bytes", bytes.origin().source, bytes.len()),
//!         Delivery::Gap { origin, gap } => println!("{}: {} bytes are missing", origin.source, gap.lost),
//!         Delivery::Complete { counts, .. } => {
//!             assert_eq!((counts.produced, counts.delivered, counts.lost), (6, 6, 0));
//!             complete += 1;
//!         }
//!         Delivery::JobEnded { nspace, exit_code, .. } => println!("{nspace} ended with {exit_code:?}"),
//!         _ => {}
//!     }
//! }
//! assert_eq!(complete, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Callbacks
//! ```
//! # use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
//! # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
//! # use iof_proto::{Channels, Nspace, Proc, Rank};
//! # use iof_tool::{Delivery, Pull, poll_timeout};
//! # let engine = Engine::start(Config::new(Rendezvous::None))?;
//! # let mut tool = engine.attach("example", Grant::Never)?;
//! # let all = Proc::all(Nspace::new("job1")?);
//! let total = Arc::new(AtomicUsize::new(0));
//! let counted = Arc::clone(&total);
//! tool.pull_with(&Pull::new(vec![all.clone()], Channels::STDOUT), move |delivery| {
//!     if let Delivery::Bytes(bytes) = delivery {
//!         counted.fetch_add(bytes.len(), Ordering::Relaxed);
//!     }
//! })?;
//! # let job = engine.spawn(&JobSpec::new(all.nspace, vec![App::new("echo", ["hello"])]))?;
//! while tool.dispatch(None)? {}
//! assert_eq!(total.load(Ordering::Relaxed), 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In the event loop of the tool
//! ```
//! use std::os::fd::AsFd;
//! use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
//! # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
//! # use iof_proto::{Channels, Nspace, Proc, Rank};
//! use iof_tool::{Delivery, Pull, poll_timeout};
//! # let engine = Engine::start(Config::new(Rendezvous::None))?;
//! # let mut tool = engine.attach("example", Grant::Never)?;
//! # let all = Proc::all(Nspace::new("job1")?);
//! # let mut total = 0;
//! tool.pull(&Pull::new(vec![all.clone()], Channels::STDOUT))?;
//! # let job = engine.spawn(&JobSpec::new(all.nspace, vec![App::new("echo", ["hello"])]))?;
//! while !tool.is_done() {
//!     let timeout = PollTimeout::try_from(poll_timeout(tool.timeout()))?;
//!     // The tool's other descriptors can be added here.
//!     poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], timeout)?;
//!     while let Some(delivery) = tool.try_recv()? {
//!         if let Delivery::Bytes(bytes) = delivery {
//!             total += bytes.len();
//!         }
//!     }
//! }
//! assert_eq!(total, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To write output to a file or terminal, use `Printer` of `iof-output`. To pass the bytes of many
//! streams on in batches, use [`BatchReader`].
//!
//! # Stdin
//! [`Tool::push`] pushes a slice and blocks; [`Tool::begin_push`] is for event loops; a [`Pusher`]
//! reads a file, such as the tool's own stdin, on its own thread until its end.
//!
//! # Queries and logs
//! [`Tool::query`] and [`Tool::queries`] ask the engine and its host about jobs, processes and
//! streams. [`Tool::log`] logs a message through the engine.
//!
//! # Non-blocking requests
//! Each request has a method that waits for the engine's answer, and one that begins with `submit_`
//! and does not wait. The latter's answer is delivered as a [`Reply`].
//!
//! # Errors
//! | operation | error | consequence |
//! |---|---|---|
//! | [`Tool::connect`] | [`AttachError`] | no tool is created |
//! | [`Tool::pull`], [`Tool::query`], [`Tool::log`], [`Tool::deregister`] | [`RequestError::Denied`], [`RequestError::Unsendable`] | nothing has changed |
//! | the same | [`RequestError::Lost`] | the connection has ended; output that is in memory is still delivered |
//! | `Tool::submit_*` | [`RequestError::Unsendable`], [`RequestError::Lost`]; a denial arrives as [`Delivery::Reply`] | as above |
//! | [`Tool::push`], [`Pusher`] | [`PushError`] | [`PushError::Request`]: as above |
//! | [`Tool::recv`], [`Tool::dispatch`] | [`LostError`], once | the engine violated the protocol, and the connection has ended; output that is in memory is still delivered |
//! | [`Tool::fill`], [`Tool::take_report`] | [`LostError`] | the connection has ended; it is unknown how many bytes arrived |
//!
//! An engine that ends is not an error of [`Tool::recv`]: each stream that is not complete ends
//! with [`Delivery::Gone`], and then [`Tool::recv`] returns `None`.
//!
//! # Threads
//! A tool is used by one thread at a time and may move between threads. Another thread may wait
//! until its descriptor is readable.

mod adaptive_polling;
#[cfg(feature = "tokio")]
mod async_tool;
mod batch_reader;
mod direct;
mod error;
mod lines;
mod link;
mod local_rings;
mod own_proc;
mod owned;
mod pull;
mod push;
mod pusher;
mod session;
#[cfg(feature = "test-utils")]
pub mod test_utils;
mod tool;
mod wakeup;

#[cfg(feature = "tokio")]
pub use async_tool::AsyncTool;
pub use batch_reader::{BatchReader, PollReady};
pub use direct::{DirectBytes, DirectInput, DirectItem};
pub use error::{AttachError, CopyError, LostError, PushError, RequestError};
pub use iof_proto::limits::HANDSHAKE_LIMIT;
pub use iof_shm_ring::{Behind, Gap, Interaction, LastRead, Stepper};
pub use lines::{BorrowedLine, LONGEST_LINE, Line, LineDivider, LineItem, Lines};
pub use local_rings::LocalRings;
pub use own_proc::own_proc;
pub use owned::{OwnedDelivery, OwnedOrigin};
pub use pull::{Pull, StreamKey};
pub use push::{Push, STALL_TIMEOUT};
pub use pusher::{DetachedPusher, Pusher};
pub use session::delivery::{Bytes, Delivery, Origin};
pub use session::feed::{Counts, Peeked};
pub use session::feeds::FeedId;
pub use session::reply::Reply;
pub use tool::Tool;
pub use tool::poll::{PollCall, poll_timeout};
pub use wakeup::Sleeper;
