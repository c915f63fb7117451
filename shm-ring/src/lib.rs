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
//! | `file`, `map` | sealed memory files and the double map (unsafe) |
//! | `ring` | one generation: control words, data, marks |
//! | `marks`, `index`, `times` | metadata of the bytes: gaps and read times |
//! | `attach` | what a reader receives when it attaches: its id, ring and start |
//! | `writer` | claiming, committing, sealing one generation |
//! | `stream` | policies, generations, readers |
//! | `reader` | peeking, borrowing, consuming, following, grouping |
//! | `inlet` | the opposite direction: memory that a tool fills and the engine reads (unsafe) |
//! | `inspect` | reading a ring from outside, concurrently with its writer |
//! | `copy` | copying bytes that may change concurrently (unsafe) |
//! | `reader_page`, `notify`, `doorbell` | slots, ready bits, waking sleeping tools |
//! | `budget` | the sum of the sizes of rings |
//! | `governor` | whether a thread lets bytes accumulate before it reads them |
//! | `utilization` | whether a thread uses so much of a processor that waits may pay |
//! | [`handoff`] | giving a reader to another process over a socket (unsafe) |
//!
//! All modules except `handoff` are private; the public items are listed below. Apart from
//! doorbells and the hand-off, this crate does no I/O: its user, or the kernel, writes the bytes
//! into a
//! [`Span`].
//!
//! # Two processes
//!
//! The owner of a stream adds a reader and sends it over a Unix socket with [`handoff::send`]. The
//! other process attaches with [`handoff::receive`], and follows the stream to its next generations
//! with [`ReceivedReader::follow`](handoff::ReceivedReader::follow). `examples/two_processes.rs`
//! is a complete writer and a complete reader. A program with its own protocol, such as iof's
//! engine, sends the parts of [`Attached`] itself.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("iof needs a target with 64-bit pointers: offsets and sizes are 64-bit everywhere");

mod attach;
mod budget;
mod copy;
mod doorbell;
mod error;
mod file;
mod governor;
pub mod handoff;
mod index;
mod inlet;
mod inspect;
mod interaction;
mod layout;
mod map;
mod marks;
mod notify;
mod reader;
mod reader_id;
mod reader_page;
mod ring;
mod slots;
mod stepper;
mod stream;
mod sync;
mod times;
mod utilization;
mod writer;

pub use attach::{Attached, Start};
pub use budget::CacheBudget;
pub use doorbell::{Bell, Ringer, bell, doorbell};
pub use error::{CreateError, InspectError, OpenError, ReceiveError, SendError, ServeError};
pub use governor::{Governor, Traffic};
pub use inlet::{Filler, Inlet, Lent};
pub use inspect::Snapshot;
pub use interaction::{Interaction, LastRead};
pub use layout::{MAX_CAPACITY, MAX_LABEL, MAX_SLOTS};
pub use map::maps_in_use;
pub use marks::Mark;
pub use notify::notify;
pub use reader::{Behind, Copied, Gap, Grouping, Peek, Reader};
pub use reader_id::ReaderId;
pub use reader_page::ReaderPage;
#[cfg(any(loom, feature = "test-utils"))]
pub use ring::HeapMemory;
pub use ring::Ring;
pub use slots::Slots;
pub use stepper::Stepper;
pub use stream::{Growth, Policy, Reserve, Span, Stream, StreamConfig, StreamStats};
pub use utilization::{Utilization, current_thread_cpu};

#[cfg(loom)]
#[doc(hidden)]
pub use sync::{Point, known_bad::break_at};
