//! A byte stream in shared memory with one writer and many readers, which never overwrites the
//! bytes that a reader pins.
//!
//! The engine (the writer's side) creates a [`Stream`] for each source, such as one output channel
//! of a process. Readers map its [`Ring`]s read-only and read in place. Each reader has its own
//! cursor and publishes it in its tool's [`ReaderPage`]. A slow, stopped or dead reader costs the
//! other readers nothing: when it is in the way, the stream continues in a new generation and the
//! reader keeps the old one.
//!
//! | module | concept |
//! |---|---|
//! | `layout` | the layout of shared memory |
//! | `memory::file`, `memory::map` | sealed memory files and the double map (unsafe) |
//! | `ring` | one generation: control words, data, marks |
//! | `ring::marks`, `ring::index`, `ring::times` | metadata of the bytes: gaps and read times |
//! | `reader::attach` | what a reader receives when it attaches: its id, ring and start |
//! | `ring::writer` | claiming, committing, sealing one generation |
//! | `stream` | policies, generations, readers |
//! | `reader` | peeking, borrowing, consuming, following, grouping |
//! | `memory::inlet` | the opposite direction: memory that a tool fills and the engine reads (unsafe) |
//! | `reader::inspect` | reading a ring from outside, concurrently with its writer |
//! | `memory::copy` | copying bytes that may change concurrently (unsafe) |
//! | `reader_page`, `stream::notify`, `wakeup::doorbell` | slots, ready bits, waking sleeping tools |
//! | `memory::budget` | the sum of the sizes of rings |
//! | `wakeup::governor` | whether a thread lets bytes accumulate before it reads them |
//! | `wakeup::utilization` | whether a thread uses so much of a processor that waits may pay |
//!
//! All modules are private; the public items are listed below. Apart from doorbells, this crate does
//! no I/O: its user, or the kernel, writes the bytes into a [`Span`].
//!
//! # Readers in other processes
//!
//! [`Stream::attach`] returns all that a reader needs ([`Attached`]). For a reader in another
//! process, send it the file of the ring, that of the page and the doorbell with a protocol of your
//! own, as iof's engine does. There [`Ring::open`], [`ReaderPage::open`] and [`Reader::new`] make a
//! reader of them. When a reader finds the end of its generation, [`Stream::follow`] returns the
//! next one.
//!
//! ```
//! use std::sync::Arc;
//!
//! use iof_shm_ring::{Peek, Policy, Reader, ReaderPage, Start, Stream, StreamConfig, doorbell};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = StreamConfig { capacity: 64 << 10, policy: Policy::Block };
//! let mut stream = Stream::create(config, "example")?;
//! let (ringer, _bell) = doorbell()?;
//! let page = Arc::new(ReaderPage::create(ringer)?);
//! let given = stream.attach(&page, page.take_slot()?, Start::Oldest, true)?;
//! // SAFETY: `attach` returned this ring for this reader, and the stream is neither moved nor
//! // detached from it while it exists.
//! let mut reader = unsafe { Reader::new(given, page, Start::Oldest)? };
//!
//! stream.push(b"hello", 0);
//! assert_eq!(reader.peek(), Peek::Bytes);
//! assert_eq!(reader.bytes(), b"hello");
//! reader.consume(usize::MAX);
//! stream.complete();
//! assert_eq!(reader.peek(), Peek::Ended);
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_pointer_width = "64"))]
compile_error!("iof needs a target with 64-bit pointers: offsets and sizes are 64-bit everywhere");

mod error;
mod layout;
mod memory;
mod offset;
mod reader;
mod reader_id;
mod reader_page;
mod ring;
mod stream;
mod sync;
mod wakeup;

pub use error::{CreateError, InspectError, OpenError};
pub use layout::{MAX_CAPACITY, MAX_LABEL, MAX_SLOTS};
pub use memory::budget::CacheBudget;
pub use memory::inlet::{Filler, Inlet, Lent};
pub use memory::map::maps_in_use;
pub use offset::Offset;
pub use reader::attach::{Attached, Start};
pub use reader::inspect::Snapshot;
pub use reader::{Behind, CachedLines, Copied, Gap, Grouping, Peek, Reader};
pub use reader_id::ReaderId;
pub use reader_page::ReaderPage;
pub use reader_page::slots::Slots;
#[cfg(any(loom, feature = "test-utils"))]
pub use ring::HeapMemory;
pub use ring::Ring;
pub use ring::interaction::{InputState, Interaction, LastRead};
pub use ring::marks::Mark;
pub use stream::notify::notify;
pub use stream::{Growth, Policy, Reserve, Span, Stream, StreamConfig, StreamStats};
pub use wakeup::doorbell::{Bell, Ringer, bell, doorbell};
pub use wakeup::governor::{Governor, Traffic};
pub use wakeup::stepper::Stepper;
pub use wakeup::utilization::{Utilization, current_thread_cpu};

#[cfg(loom)]
#[doc(hidden)]
pub use sync::{Point, known_bad::break_at};
