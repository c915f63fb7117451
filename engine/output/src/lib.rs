//! Formats the output of jobs (tags, time stamps, XML and JSON around lines), and writes it: whole
//! lines of many streams to one file, pipe or terminal, or to a file for each rank.
//!
//! A launcher needs a [`Printer`], a thread that writes everything that an [`iof_tool::Tool`] pulls
//! to an [`Output`] or to [`Files`], directly from the engine's rings. A [`Choice`] is the format
//! that a user requests, in the grammar of prterun's `--output`. [`Style::new`] turns it into a
//! [`Style`], which is a part of the printer's [`Options`].
//!
//! A program that receives the bytes itself passes them to a [`LinePrinter`], which has no thread.
//!
//! The formats can also be used without a printer. They do no I/O:
//!
//! ```
//! use iof_output::{Batch, Choice, StyleExtras, Run, LabelSource, Style};
//! use iof_proto::{Channel, Nspace, Rank};
//!
//! let choice: Choice = "tag".parse()?;
//! let style = Style::new(&choice, &StyleExtras::default());
//! let nspace = Nspace::new("prterun-node1-77@1")?;
//! let source = LabelSource { nspace, rank: Rank(3), channel: Channel::Stdout, logged: false, host: None, pid: None };
//! let mut label = style.label(&source);
//! let mut batch = Batch::default();
//! // The key of this stream, and the line that is open at the destination: none.
//! let (key, mut open) = (0, None);
//! let run = Run { bytes: b"one\ntwo\n", offset: 0, times: &[] };
//! style.write(&run, &mut label, (key, &mut open), &mut batch, Batch::add);
//! assert_eq!(batch.to_vec(), b"[1,3]<stdout>: one\n[1,3]<stdout>: two\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod destination;
mod files;
mod fold;
mod format;
mod line_printer;
mod lines;
mod options;
mod order;
mod output;
mod printer;
mod processes;
mod stream;
mod watch;

pub use batch::{Batch, MIN_LENT};
pub use destination::Destination;
pub use files::{
    CacheDrops, FileError, Files, LockedFiles, MAX_KEPT_FILES, MAX_OPEN_FILES, NewFiles, Rotation, find_clash,
};
pub use fold::Fold;
pub use format::choice::{Choice, ChoiceError, FilePlace, OUTPUT_QUALIFIERS, format_words, output_words};
pub use format::filter::{LineFilter, LinePattern, PatternSyntaxError};
pub use format::label::{Label, LabelSource};
pub use format::markup::Markup;
pub use format::pattern::{Pattern, PatternError};
pub use format::placeholder::PatternValues;
pub use format::stamp::Stamp;
pub use format::style::{OpenLine, Run, Style, StyleExtras};
pub use format::template::{LabelTemplate, TemplateError};
pub use line_printer::LinePrinter;
pub use lines::{
    Decision, FlushClock, FlushTimeout, FoundBytes, Hold, HoldRules, LONGEST_CHARACTER, LineHolder, Rest,
};
pub use options::Options;
pub use output::{Audience, LaterOutput, Notes, Output};
pub use printer::{PrintError, PrintReport, Printer};
pub use processes::Processes;
pub use watch::{WriteProgress, WriteWatch};
