//! Text that a carrier delivers before the first frame, such as that of a shell's start-up file.

use std::fs::File;
use std::io::{self, Cursor, ErrorKind, LineWriter, Read, Write};

use iof_nodes::limits::MAX_GREETING;
use iof_nodes::{HEADER, first_header};

/// The first header that a carrier delivers, and the text before it.
pub struct FirstHeader {
    bytes: [u8; HEADER],
    length: usize,
    skipped: usize,
    is_in_line: bool,
    shown: LineWriter<Box<dyn Write>>,
}

impl FirstHeader {
    /// Creates the reader of a header. Text before it is written to stderr, as what the carrier itself
    /// writes there, unless `is_silent`.
    pub fn new(is_silent: bool) -> FirstHeader {
        let shown: Box<dyn Write> = if is_silent { Box::new(io::sink()) } else { Box::new(io::stderr()) };
        FirstHeader {
            bytes: [0; HEADER],
            length: 0,
            skipped: 0,
            is_in_line: false,
            shown: LineWriter::new(shown),
        }
    }

    /// Reads once, and nothing behind the header. Returns the header when it is whole.
    ///
    /// # Errors
    /// Those of `up`, also at its end. More than [`MAX_GREETING`] bytes precede the header.
    pub fn read_from(&mut self, up: &mut impl Read) -> io::Result<Option<[u8; HEADER]>> {
        let count = up.read(self.bytes.get_mut(self.length..).unwrap_or_default())?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let held = self.bytes.get(..self.length.saturating_add(count)).unwrap_or_default();
        let (text, rest) = held.split_at(first_header(held));
        let skipped = text.len();
        self.length = rest.len();
        // As if the carrier could not write it.
        let _ = self.shown.write_all(text);
        self.is_in_line = text.last().map_or(self.is_in_line, |last| *last != b'\n');
        self.bytes.copy_within(skipped.., 0);
        self.skipped = self.skipped.saturating_add(skipped);
        if self.skipped > MAX_GREETING {
            let limit = format!("more than {MAX_GREETING} bytes (MAX_GREETING) precede the first frame");
            return Err(io::Error::other(limit));
        }
        if self.length < HEADER {
            return Ok(None);
        }
        if self.is_in_line {
            let _ = self.shown.write_all(b"\n");
        }
        Ok(Some(self.bytes))
    }
}

/// Waits for the first frame of an agent. Returns what its carrier delivers from there on.
///
/// # Errors
/// Those of [`FirstHeader::read_from`], except the end.
pub fn skip_greeting(mut up: File) -> Result<impl Read, String> {
    let mut first = FirstHeader::new(false);
    let header = loop {
        match first.read_from(&mut up) {
            Ok(None) => {}
            Ok(Some(header)) => break header.to_vec(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The reader of the rest finds the end.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break Vec::new(),
            Err(error) => return Err(format!("cannot read from its carrier: {error}")),
        }
    };
    Ok(Cursor::new(header).chain(up))
}
