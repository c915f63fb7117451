//! Frames: how a message becomes bytes on a stream socket, and back.
//!
//! | offset | size | what                                                          |
//! |-------:|-----:|---------------------------------------------------------------|
//! | 0      | 4    | length of the body in bytes, little endian                    |
//! | 4      | 1    | how many file descriptors come with this frame                |
//! | 5      | *n*  | the body: one message in [postcard](https://postcard.jamesmunns.com/wire-format) |
//!
//! File descriptors travel beside the bytes (`SCM_RIGHTS`, unix(7)). The sender attaches them to
//! the call that sends the first byte of the frame; so once a frame is complete, they are there.
//! Which message has how many is fixed ([`Message::fds`]). The header says it again, so that two
//! builds that disagree stop with an error before one of them takes a descriptor for another.

use std::marker::PhantomData;
use std::mem;

use crate::limits::{Excess, MAX_FDS};
use crate::message::Message;

/// Bytes before the body.
const HEADER: usize = 5;

/// Why a message cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// It breaks a limit.
    #[error("{0}: split the request")]
    Limit(#[from] Excess),
    /// Its body is longer than the receiver takes.
    #[error("a message of {length} bytes, and the limit is {cap}: split the request")]
    TooLong {
        /// The length of its body.
        length: usize,
        /// The most it may be.
        cap: usize,
    },
    /// It cannot be serialized.
    #[error("cannot serialize a message: {0}")]
    Body(postcard::Error),
}

/// Why bytes are not the frame of a message. Close the connection: its framing is lost, or its
/// peer is not what it says.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The announced body is longer than this side takes. Nothing of it was buffered.
    #[error("the peer announces a message of {length} bytes, and the limit is {cap}")]
    TooLong {
        /// The announced length.
        length: usize,
        /// The most it may be.
        cap: usize,
    },
    /// The header announces more descriptors than any message has.
    #[error("the peer announces {announced} file descriptors, and the limit is {MAX_FDS}")]
    TooManyFds {
        /// The announced count.
        announced: u8,
    },
    /// The header announces another number of descriptors than this message has.
    #[error("the peer announces {announced} file descriptors with a message that comes with {due}")]
    WrongFds {
        /// The announced count.
        announced: u8,
        /// What the message comes with.
        due: u8,
    },
    /// The body is no message.
    #[error("a body of {length} bytes is no message: {reason}")]
    Body {
        /// The length of the body.
        length: usize,
        /// What the deserializer says.
        reason: postcard::Error,
    },
    /// The body goes on after its message.
    #[error("a body of {length} bytes goes on for {left} bytes after its message")]
    Trailing {
        /// The length of the body.
        length: usize,
        /// The bytes too many.
        left: usize,
    },
    /// The message breaks a limit.
    #[error("the peer sends {0}")]
    Limit(#[from] Excess),
}

/// The frame of a message. Send [`Message::fds`] file descriptors with its first byte.
///
/// # Errors
/// The message breaks a limit, or is longer than [`Message::CAP`].
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, EncodeError> {
    message.check()?;
    let body = postcard::to_stdvec(message).map_err(EncodeError::Body)?;
    let too_long = EncodeError::TooLong { length: body.len(), cap: M::CAP };
    let Ok(length) = u32::try_from(body.len()) else { return Err(too_long) };
    if body.len() > M::CAP {
        return Err(too_long);
    }
    let mut frame = Vec::with_capacity(HEADER.saturating_add(body.len()));
    frame.extend_from_slice(&length.to_le_bytes());
    frame.push(message.fds());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Turns the bytes of a stream into messages, however they are cut.
///
/// It keeps the one frame that is not complete yet and nothing else, so it never holds more than
/// the header and [`Message::CAP`] bytes, whatever the peer sends and however its owner calls it.
///
/// ```
/// use iof_proto::{Decoder, FromTool, encode};
///
/// let mut decoder = Decoder::<FromTool>::new();
/// let sent = FromTool::Follow { slot: 7 };
/// let frame = encode(&sent)?;
/// let (mut first, mut second) = frame.split_at(3);
/// assert_eq!(decoder.decode(&mut first)?, None);
/// assert_eq!(decoder.decode(&mut second)?, Some(sent));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Decoder<M> {
    /// The start of a frame, header included.
    partial: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Decoder { partial: Vec::new(), message: PhantomData }
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes off the front of `input` until a message is complete or `input` is empty.
    /// Call it until it returns `None`; then `input` is used up.
    ///
    /// The message's file descriptors, [`Message::fds`] of them, are then at the front of the
    /// queue that [`receive`](crate::socket::receive) filled. If they are not, the peer is broken.
    ///
    /// # Errors
    /// The bytes are not the frame of a message: close the connection.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<M>, DecodeError> {
        if !self.fill(HEADER, input) {
            return Ok(None);
        }
        let Some(&[a, b, c, d, announced]) = self.partial.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > M::CAP {
            return Err(DecodeError::TooLong { length, cap: M::CAP });
        }
        if usize::from(announced) > MAX_FDS {
            return Err(DecodeError::TooManyFds { announced });
        }
        if !self.fill(HEADER.saturating_add(length), input) {
            return Ok(None);
        }

        let frame = mem::take(&mut self.partial);
        let body = frame.get(HEADER..).unwrap_or_default();
        let (message, rest) =
            postcard::take_from_bytes::<M>(body).map_err(|reason| DecodeError::Body { length, reason })?;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing { length, left: rest.len() });
        }
        if message.fds() != announced {
            return Err(DecodeError::WrongFds { announced, due: message.fds() });
        }
        message.check()?;
        Ok(Some(message))
    }

    /// Moves bytes from `input` until `partial` has `size` of them; whether it has.
    fn fill(&mut self, size: usize, input: &mut &[u8]) -> bool {
        let lack = size.saturating_sub(self.partial.len());
        // Exactly: doubling would take up to twice the cap.
        self.partial.reserve_exact(lack);
        let (now, later) = input.split_at(lack.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = later;
        now.len() == lack
    }
}
