//! What a tool links to read the output of a job: attach to an engine, pull, read in place.
//!
//! A [`Tool`] is one connection. Each [`Tool::pull`] registers for the output of some processes; from then on
//! [`Tool::poll`] tells which [`Feed`]s (one for each source and channel) have news, and [`Feed::next`] gives
//! bytes that lie in the engine's shared memory, gaps with their exact size, and the end. A [`Sink`] does all of
//! this for whoever just wants the bytes in a file.
//!
//! ```no_run
//! use iof_proto::rendezvous::{Search, Target};
//! use iof_proto::{Channels, Nspace, Proc, Rank};
//! use iof_tool::{Item, Poll, Pull, Tool};
//!
//! let nspace = Nspace::new("job1")?;
//! let search = Search { target: Target::Nspace(nspace.clone()), ..Search::default() };
//! let mut tool = Tool::find(&search, "my-tool")?;
//! let all = Proc { nspace, rank: Rank::WILDCARD };
//! tool.pull(&Pull::new(vec![all], Channels::STDOUT))?;
//! while tool.poll(None)? != Poll::Done {
//!     for id in tool.active().to_vec() {
//!         let Some(feed) = tool.feed_mut(id) else { continue };
//!         match feed.next() {
//!             Item::Bytes => {
//!                 let n = feed.bytes().len();
//!                 println!("{} {}: {n} bytes", feed.source(), feed.channel());
//!                 feed.consume(n);
//!             }
//!             Item::Gap(gap) => println!("{} bytes are missing at {}", gap.lost, gap.offset),
//!             Item::Ended | Item::Gone | Item::Quiet => {}
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod feed;
mod link;
mod sink;
mod tool;

pub use error::{AttachError, LostError, RequestError};
pub use feed::{Feed, FeedId, Item};
pub use iof_shm_ring::Gap;
pub use sink::{Sink, SinkError, SinkReport};
pub use tool::{Poll, Pull, Tool};
