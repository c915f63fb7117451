//! Text that a carrier delivers before the first frame, such as that of a shell's start-up file.

use std::io::{self, LineWriter, Write};

use iof_nodes::limits::MAX_GREETING;
use iof_nodes::{FrameDecoder, HEADER};

/// The text before the first header that a carrier delivers.
pub struct Greeting {
    skipped: usize,
    is_in_line: bool,
    shown: LineWriter<Box<dyn Write + Send>>,
}

impl Greeting {
    /// Expects text that is written to stderr, as what the carrier itself writes there, unless
    /// `is_silent`.
    pub fn new(is_silent: bool) -> Greeting {
        let shown: Box<dyn Write + Send> =
            if is_silent { Box::new(io::sink()) } else { Box::new(io::stderr()) };
        Greeting { skipped: 0, is_in_line: false, shown: LineWriter::new(shown) }
    }

    /// Shows the text that `decoder` has received. Returns whether the first header follows it.
    ///
    /// # Errors
    /// More than [`MAX_GREETING`] bytes precede the header.
    pub fn skip(&mut self, decoder: &mut FrameDecoder) -> io::Result<bool> {
        let text = decoder.skip_text();
        // As if the carrier could not write it.
        let _ = self.shown.write_all(text.get(..MAX_GREETING).unwrap_or(text));
        self.is_in_line = text.last().map_or(self.is_in_line, |last| *last != b'\n');
        self.skipped = self.skipped.saturating_add(text.len());
        if self.skipped > MAX_GREETING {
            let limit = format!("more than {MAX_GREETING} bytes (MAX_GREETING) precede the first frame");
            return Err(io::Error::other(limit));
        }
        let has_header = decoder.held() >= HEADER;
        if has_header && self.is_in_line {
            let _ = self.shown.write_all(b"\n");
        }
        Ok(has_header)
    }
}
