//! One writer, many readers: a byte stream in shared memory that never overwrites what a reader
//! holds.
//!
//! The engine (the writer's side) makes a [`Stream`] for each source and channel. Readers map its
//! [`Ring`]s read-only and read in place, each with its own cursor, whose words live in the
//! reader's own [`ReaderPage`]. A slow, stopped or dead reader costs nobody else anything: when it
//! is in the way, the stream goes on in a new generation and the reader keeps the old one.
//!
//! | module | concept |
//! |---|---|
//! | `layout` | what lies where in shared memory |
//! | `file`, `map` | sealed memory files and the double map (unsafe) |
//! | `ring` | one generation: control words, data, marks |
//! | `marks`, `index`, `times` | what the bytes can't say of themselves: gaps, and when they were read |
//! | `attach` | what passes from the writer's side to a reader that comes |
//! | `writer` | claiming, committing, sealing one generation |
//! | `stream` | policies, generations, readers |
//! | `reader` | looking, borrowing, consuming, following, grouping |
//! | `inlet` | the other direction: a ring that a tool fills and the engine reads (unsafe) |
//! | `inspect` | looking at a ring from outside, whatever its writer does |
//! | `copy` | reading bytes that may change meanwhile (unsafe) |
//! | `reader_page`, `notify`, `doorbell` | slots, ready bits, waking who sleeps |
//!
//! The modules are private: all that is public is listed below. `examples/two_processes.rs` is a
//! whole writer and a whole reader. Nothing here does I/O: the bytes come from whoever writes into
//! a [`Span`].

#[cfg(not(target_pointer_width = "64"))]
compile_error!("iof needs a target with 64-bit pointers: offsets and sizes are 64-bit everywhere");

mod attach;
mod copy;
mod doorbell;
mod error;
mod file;
mod index;
mod inlet;
mod inspect;
mod layout;
mod map;
mod marks;
mod notify;
mod reader;
mod reader_page;
mod ring;
mod stream;
mod sync;
mod times;
mod writer;

pub use attach::{Attached, Start};
pub use doorbell::{Bell, Ringer, bell, doorbell};
pub use error::{CreateError, InspectError, OpenError};
pub use inlet::{Filler, Inlet, Lent};
pub use inspect::Snapshot;
pub use layout::{MAX_CAPACITY, MAX_LABEL, MAX_SLOTS};
pub use marks::Mark;
pub use notify::notify;
pub use reader::{Behind, Copied, Gap, Grouping, Peek, Reader};
pub use reader_page::ReaderPage;
pub use ring::Ring;
pub use stream::{Policy, Reserve, Span, Stream, StreamConfig, StreamStats};

#[cfg(loom)]
#[doc(hidden)]
pub use sync::{Point, known_bad::break_at};
