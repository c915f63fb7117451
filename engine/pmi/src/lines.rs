//! The lines in the bytes that a rank sends.

use crate::error::{MAX_LINE, ProtocolError};

/// The bytes of a rank that are not handled yet.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// The number of these bytes that were returned in lines.
    returned: usize,
}

impl LineBuffer {
    /// Adds bytes that have arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.returned);
        self.returned = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next line, without its line feed. Returns `None` if it is not complete.
    ///
    /// # Errors
    /// The line is too long or not text.
    pub(crate) fn next(&mut self) -> Result<Option<String>, ProtocolError> {
        let rest = self.bytes.get(self.returned..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(rest.len()) > MAX_LINE {
            return Err(ProtocolError::LineTooLong);
        }
        let Some((line, end)) = end.and_then(|end| rest.get(..end).zip(end.checked_add(1))) else {
            return Ok(None);
        };
        let line = std::str::from_utf8(line).map_err(|_| ProtocolError::NotText)?.to_owned();
        self.returned = self.returned.saturating_add(end);
        Ok(Some(line))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_the_bytes_are_cut() {
        let text = b"cmd=get_maxes\n\ncmd=x\nrest";
        for size in 1..=text.len() {
            let (mut lines, mut found) = (LineBuffer::default(), Vec::new());
            for piece in text.chunks(size) {
                lines.push(piece);
                while let Some(line) = lines.next().unwrap() {
                    found.push(line);
                }
            }
            assert_eq!(found, ["cmd=get_maxes", "", "cmd=x"], "pieces of {size}");
        }
    }

    #[test]
    fn a_line_is_refused_as_soon_as_it_is_too_long() {
        let mut lines = LineBuffer::default();
        lines.push(&[b'a'; MAX_LINE]);
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"\n");
        assert_eq!(lines.next().unwrap().map(|line| line.len()), Some(MAX_LINE));
        lines.push(&[b'a'; MAX_LINE + 1]);
        assert_eq!(lines.next(), Err(ProtocolError::LineTooLong));
        let mut lines = LineBuffer::default();
        lines.push(b"\xff\n");
        assert_eq!(lines.next(), Err(ProtocolError::NotText));
    }
}
