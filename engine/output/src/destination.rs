//! The destination of a printer.

use crate::files::{FileId, Files, LockedFiles, OpenFiles};
use crate::format::style::OpenLine;
use crate::options::Options;
use crate::output::{Audience, Output};

/// The destination of a printer.
#[derive(Debug)]
pub enum Destination {
    /// One file, pipe or terminal for all streams.
    Output(Output),
    /// A file for each rank.
    Files(Files),
    /// The same, with files that are locked already.
    LockedFiles(LockedFiles),
}

impl From<Output> for Destination {
    fn from(output: Output) -> Destination {
        Destination::Output(output)
    }
}

impl From<Files> for Destination {
    fn from(files: Files) -> Destination {
        Destination::Files(files)
    }
}

impl From<LockedFiles> for Destination {
    fn from(files: LockedFiles) -> Destination {
        Destination::LockedFiles(files)
    }
}

/// A destination that is being written.
#[derive(Debug)]
pub(crate) enum OpenDestination {
    Output(Output),
    Files(OpenFiles),
}

impl OpenDestination {
    /// Returns the reader of what is written, and the line in the middle of which it is. `file` is
    /// the file of the stream that is written.
    pub(crate) fn reader_and_line(&mut self, file: Option<FileId>) -> (Audience, OpenLine) {
        match (self, file) {
            (OpenDestination::Output(output), _) => (output.audience(), *output.lock().0),
            (OpenDestination::Files(files), Some(file)) => (files.audience(file), files.open_line(file)),
            (OpenDestination::Files(_), None) => (Audience::Nobody, None),
        }
    }
}

impl Destination {
    /// Prepares to write with `options`.
    pub(crate) fn open(self, options: &Options) -> OpenDestination {
        let mut files = match self {
            Destination::Output(output) => return OpenDestination::Output(output),
            Destination::Files(files) => OpenFiles::new(files),
            Destination::LockedFiles(files) => files.open,
        };
        // An element of XML or JSON must not be cut.
        if options.style.joins_parts() {
            files.max_line = options.flush_timeout.max_line;
        }
        OpenDestination::Files(files)
    }
}
