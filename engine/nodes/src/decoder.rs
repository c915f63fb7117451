//! The parser of frames.

use std::io::{self, Read};

use crate::frame::{CONTROL, Frame, FrameError, HEADER, HELLO, Header, RESUME};
use crate::limits::{MAX_ANSWER, MAX_CONTROL, MAX_RECORD};

/// Returns the number of bytes before the first header of those with which an agent may begin: a
/// hello, a resume or a control message. The bytes may end in a part of it. Text contains neither.
pub fn first_header(bytes: &[u8]) -> usize {
    let is_first = |start: &usize| {
        let rest = bytes.get(*start..).unwrap_or_default();
        let [HELLO | RESUME | CONTROL, fields @ ..] = rest else { return false };
        fields.iter().take(3).all(|field| *field == 0)
            && rest.first_chunk().map(Header::decode).is_none_or(|header| {
                header.payload(MAX_ANSWER).is_ok() && header.without_payload().frame(&[]).is_ok()
            })
    };
    (0..bytes.len()).find(is_first).unwrap_or(bytes.len())
}

/// The memory of a decoder that has received a part of a frame, in bytes, unless the frame is longer.
const MEMORY: usize = 4 * MAX_RECORD;

/// A parser of the frames on a byte stream, which may arrive in pieces of any length.
///
/// Frames are read into its memory and parsed there. It holds at most one incomplete frame and what
/// was read behind it.
///
/// ```
/// use iof_nodes::{FrameDecoder, Frame};
/// let mut decoder = FrameDecoder::of_front_end();
/// let hello = Frame::HELLO.header().unwrap_or_default();
/// for byte in hello {
///     assert_eq!(decoder.decode(), Ok(None));
///     decoder.receive(&[byte]);
/// }
/// assert_eq!(decoder.decode(), Ok(Some(Frame::HELLO)));
/// # assert_eq!(decoder.decode(), Ok(None));
/// ```
#[derive(Debug)]
pub struct FrameDecoder {
    /// Memory for what is read.
    bytes: Vec<u8>,
    /// The position of the next frame.
    start: usize,
    /// The end of what was read. Room follows.
    end: usize,
    /// The longest control message, in bytes.
    max_control: usize,
}

impl FrameDecoder {
    /// Creates a parser of what a front end sends.
    pub fn of_front_end() -> FrameDecoder {
        FrameDecoder { bytes: Vec::new(), start: 0, end: 0, max_control: MAX_CONTROL }
    }

    /// Creates a parser of what an agent sends. Its control messages are shorter.
    pub fn of_agent() -> FrameDecoder {
        FrameDecoder { max_control: MAX_ANSWER, ..FrameDecoder::of_front_end() }
    }

    /// Reads once, and returns the number of bytes; 0 at the end of `input`. Frames that were
    /// returned are forgotten.
    ///
    /// # Errors
    /// Those of `input`.
    pub fn read_from(&mut self, input: &mut impl Read) -> io::Result<usize> {
        let room = self.room();
        let (length, most) = (input.read(room)?, room.len());
        self.end = self.end.saturating_add(length.min(most));
        Ok(length)
    }

    /// Adds bytes that were read, as [`FrameDecoder::read_from`].
    pub fn receive(&mut self, mut bytes: &[u8]) {
        // A slice is read without an error, and the room is never empty.
        while !bytes.is_empty() && self.read_from(&mut bytes).is_ok() {}
    }

    /// Returns memory of at least [`MAX_RECORD`] bytes behind what was read.
    fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // A large control message does not keep its memory.
            if self.bytes.len() > MEMORY {
                self.bytes = Vec::new();
            }
        }
        // A part of a frame moves to the front only if it leaves too little room.
        if self.bytes.len().saturating_sub(self.end) < MAX_RECORD {
            let held = self.held();
            // A long message that arrives in small pieces is not copied with each of them.
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, held);
            }
            let least = if held == 0 { MAX_RECORD } else { MEMORY.max(held.saturating_add(MAX_RECORD)) };
            if self.bytes.len() < least {
                self.bytes.resize(least, 0);
            }
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Returns the next frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]. The decoder then returns the same error again.
    pub fn decode(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        loop {
            let rest = self.bytes.get(self.start..self.end).unwrap_or_default();
            let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
            let header = Header::decode(header);
            let length = header.payload(self.max_control)?;
            let Some(payload) = rest.get(..length) else { return Ok(None) };
            let frame = header.frame(payload)?;
            self.start = self.start.saturating_add(HEADER).saturating_add(length);
            if frame.is_some() {
                return Ok(frame);
            }
        }
    }

    /// Forgets the bytes before the first header ([`first_header`]), and returns them.
    pub fn skip_text(&mut self) -> &[u8] {
        let start = self.start;
        self.start = start.saturating_add(first_header(self.rest()));
        self.bytes.get(start..self.start).unwrap_or_default()
    }

    /// Returns the bytes that were received and not decoded.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns whether the last read has filled the memory, so that more may follow at once.
    pub fn is_full(&self) -> bool {
        self.end == self.bytes.len()
    }

    /// Returns the number of bytes that it holds.
    pub fn held(&self) -> usize {
        debug_assert!(self.start <= self.end, "frame {} begins behind {}", self.start, self.end);
        self.end.saturating_sub(self.start)
    }
}
