//! Output formats and their writing: tags, time stamps, XML and JSON around lines; whole lines of
//! many streams to one output; a file for each rank.
//!
//! The first half is pure, from bytes to bytes. A [`Choice`] is what a user requests, in prterun's
//! grammar. A [`Style`] is derived from it and determines what surrounds each line. The second half
//! does I/O: a [`Printer`] writes what an [`iof_tool::Tool`] pulls to an [`Output`] or to
//! [`Files`], straight from the engine's rings.
//!
//! ```
//! use iof_output::{Batch, Choice, StyleExtras, Run, Source, Style};
//! use iof_proto::{Channel, Nspace, Rank};
//!
//! let choice: Choice = "tag".parse()?;
//! let style = Style::new(&choice, &StyleExtras::default());
//! let nspace = Nspace::new("prterun-node1-77@1")?;
//! let source = Source { nspace, rank: Rank(3), channel: Channel::Stdout, logged: false, host: None, pid: None };
//! let mut label = style.label(&source);
//! let mut batch = Batch::default();
//! let run = Run { bytes: b"one\ntwo\n", offset: 0, times: &[] };
//! style.write(&run, &mut label, (0, &mut None), &mut batch, Batch::add);
//! assert_eq!(batch.to_vec(), b"[1,3]<stdout>: one\n[1,3]<stdout>: two\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod choice;
mod files;
mod lines;
mod options;
mod output;
mod pattern;
mod printer;
mod processes;
mod stamp;
mod stream;
mod style;

pub use batch::{Batch, MIN_LENT};
pub use choice::{Choice, ChoiceError, Markup, Place};
pub use files::{FileError, Files, MAX_KEPT_FILES, MAX_OPEN_FILES, Rotation};
pub use lines::FlushTimeout;
pub use options::Options;
pub use output::{Notes, Output};
pub use pattern::{Pattern, PatternError, PatternValues};
pub use printer::{Destination, PrintError, PrintReport, Printer};
pub use stamp::Stamp;
pub use style::{Label, OpenLine, Run, Source, Style, StyleExtras};
