//! Text of a carrier, such as that of ssh(1) or of a shell's start-up file: what arrives before the first
//! frame, and on stderr.

use std::{io, mem};

use iof_nodes::limits::{MAX_CARRIER_TEXT, MAX_GREETING};
use iof_nodes::{FrameDecoder, HEADER};
use iof_proto::names::escape;

/// A stream of a carrier that may have text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStream {
    /// Its stdout, before the first frame.
    Output,
    /// Its stderr.
    Errors,
}

/// The text of a node's carriers. It waits until the agent speaks, as a part of the reason for which it may
/// not start. Then it is shown line by line.
pub struct CarrierText {
    host: String,
    /// The number of bytes of the current carrier.
    length: usize,
    /// The lines that are not shown.
    held: Vec<u8>,
    /// The beginnings of the last lines of both streams.
    output: Vec<u8>,
    errors: Vec<u8>,
    is_shown: bool,
}

impl CarrierText {
    pub fn new(host: &str) -> CarrierText {
        let (held, output, errors) = (Vec::new(), Vec::new(), Vec::new());
        CarrierText { host: host.into(), length: 0, held, output, errors, is_shown: false }
    }

    /// Begins with the text of another carrier, which is not shown if it `is_silent`.
    pub fn begin(&mut self, is_silent: bool) {
        self.length = if is_silent { usize::MAX } else { 0 };
    }

    /// Adds text. What exceeds [`MAX_GREETING`] bytes of a carrier is not shown.
    pub fn add(&mut self, stream: TextStream, text: &[u8]) {
        let before = self.length;
        let room = MAX_GREETING.saturating_sub(before);
        self.length = before.saturating_add(text.len());
        let part = match stream {
            TextStream::Output => &mut self.output,
            TextStream::Errors => &mut self.errors,
        };
        part.extend(text.get(..room).unwrap_or(text));
        if before <= MAX_GREETING && self.length > MAX_GREETING {
            part.extend(format!("\nmore than {MAX_GREETING} bytes: the rest is not shown\n").bytes());
        }
        let whole = part.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last.saturating_add(1));
        self.held.extend(part.drain(..whole));
        if self.is_shown {
            self.show(false);
        }
    }

    /// Ends the last lines of both streams.
    fn end_lines(&mut self) {
        for part in [&mut self.output, &mut self.errors].into_iter().filter(|part| !part.is_empty()) {
            self.held.append(part);
            self.held.push(b'\n');
        }
    }

    /// Shows what is held: all of it at the end of a text, otherwise whole lines. Shows what follows as it
    /// arrives.
    pub fn show(&mut self, is_end: bool) {
        self.is_shown = true;
        if is_end {
            self.end_lines();
        }
        let text = mem::take(&mut self.held);
        for line in String::from_utf8_lossy(&text).lines() {
            // Agents begin with the name of their command, and of their node.
            let line = line.strip_prefix("iof: ").unwrap_or(line);
            let own = line.strip_prefix(&self.host).and_then(|rest| rest.strip_prefix(": "));
            tracing::warn!("{}: {}", self.host, own.unwrap_or(line));
        }
    }

    /// Returns what the reason for which the agent does not speak ends with: the last lines, at most
    /// [`MAX_CARRIER_TEXT`] bytes with whole characters and escaped control characters, unless they are
    /// shown.
    pub fn take(&mut self) -> String {
        if self.is_shown {
            self.show(true);
        }
        self.end_lines();
        let held = mem::take(&mut self.held);
        let text = String::from_utf8_lossy(&held);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let text = lines.join("; ");
        let (mut start, mut length) = (text.len(), 0usize);
        for (index, letter) in text.char_indices().rev() {
            length = length.saturating_add(escape(letter.encode_utf8(&mut [0; 4])).len());
            if length > MAX_CARRIER_TEXT {
                break;
            }
            start = index;
        }
        match escape(text.get(start..).unwrap_or_default()) {
            end if end.is_empty() => end,
            end => format!(": {}{end}", if start > 0 { "..." } else { "" }),
        }
    }

    /// Adds the text that `decoder` has received, after `skipped` bytes before the first header. Returns
    /// whether that follows it.
    ///
    /// # Errors
    /// More than [`MAX_GREETING`] bytes precede the header.
    pub fn skip(&mut self, decoder: &mut FrameDecoder, skipped: &mut usize) -> io::Result<bool> {
        let text = decoder.skip_text();
        *skipped = skipped.saturating_add(text.len());
        if *skipped > MAX_GREETING {
            let limit = format!("more than {MAX_GREETING} bytes (MAX_GREETING) precede the first frame");
            return Err(io::Error::other(limit));
        }
        self.add(TextStream::Output, text);
        let has_header = decoder.held() >= HEADER;
        if has_header {
            self.show(true);
        }
        Ok(has_header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_its_end_on_one_stream_is_not_joined_with_one_on_the_other() {
        let mut text = CarrierText::new("a");
        text.add(TextStream::Output, b"no newline");
        text.add(TextStream::Errors, b"motd\npart");
        text.add(TextStream::Output, b" yet\n");
        assert_eq!(text.take(), ": motd; no newline yet; part");
    }

    #[test]
    fn the_end_of_a_long_text_begins_with_a_whole_character_or_escape() {
        let taken = |letter: &str, count: usize| {
            let mut text = CarrierText::new("a");
            text.add(TextStream::Errors, letter.repeat(count).as_bytes());
            text.take()
        };
        assert_eq!(taken("x", MAX_CARRIER_TEXT), format!(": {}", "x".repeat(MAX_CARRIER_TEXT)));
        for (letter, escaped) in
            [("x", "x"), ("\u{20ac}", "\u{20ac}"), ("\0", "\\u{0}"), ("\u{1b}", "\\u{1b}")]
        {
            let whole = escaped.repeat(MAX_CARRIER_TEXT / escaped.len());
            assert_eq!(taken(letter, MAX_CARRIER_TEXT + 1), format!(": ...{whole}"));
        }
    }

    #[test]
    fn text_beyond_the_limit_is_told_also_behind_a_piece_that_ends_at_the_limit() {
        let mut text = CarrierText::new("a");
        text.add(TextStream::Errors, &[b'x'; MAX_GREETING]);
        text.add(TextStream::Errors, b"y");
        text.add(TextStream::Errors, b"z");
        assert!(text.take().ends_with("; more than 65536 bytes: the rest is not shown"));
    }
}
