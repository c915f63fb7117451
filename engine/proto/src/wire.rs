//! Frames: the encoding of messages on a stream socket.
//!
//! | offset | size | contents                                                      |
//! |-------:|-----:|---------------------------------------------------------------|
//! | 0      | 4    | length of the body in bytes, little endian                    |
//! | 4      | 1    | number of file descriptors that accompany the frame           |
//! | 5      | *n*  | the body: one message in [postcard](https://postcard.jamesmunns.com/wire-format) |
//!
//! File descriptors travel beside the bytes (`SCM_RIGHTS`, unix(7)). The sender attaches them to
//! the call that sends the first byte of the frame, so the receiver has them when it has the whole
//! frame. Their number is fixed for each message ([`Message::fds`]). The header repeats the number,
//! so that two builds that disagree stop with an error before one of them confuses descriptors.

use std::marker::PhantomData;
use std::mem;

use crate::limits::{Excess, MAX_FDS};
use crate::message::Message;

/// Length of the header before the body, in bytes.
const HEADER: usize = 5;

/// The reason why a message cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message exceeds a limit.
    #[error("{0}: split the request")]
    Limit(#[from] Excess),
    /// The body is longer than the receiver accepts.
    #[error("a message of {length} bytes exceeds the limit of {cap}: split the request")]
    TooLong {
        /// The length of the body, in bytes.
        length: usize,
        /// The maximum length, in bytes.
        cap: usize,
    },
    /// The message cannot be serialized.
    #[error("cannot serialize a message: {0}")]
    Body(postcard::Error),
}

/// The reason why bytes are not the frame of a message. The receiver must close the connection: the
/// frame boundaries are lost, or the peer does not follow the protocol.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The announced body is longer than this side accepts. No byte of it was buffered.
    #[error("the peer announced a message of {length} bytes, which exceeds the limit of {cap}")]
    TooLong {
        /// The announced length, in bytes.
        length: usize,
        /// The maximum length, in bytes.
        cap: usize,
    },
    /// The header announces more descriptors than any message has.
    #[error("the peer announced {announced} file descriptors, which exceeds the limit of {MAX_FDS}")]
    TooManyFds {
        /// The announced count.
        announced: u8,
    },
    /// The header announces a number of descriptors that differs from the message's.
    #[error("the peer announced {announced} file descriptors for a message with {due}")]
    WrongFds {
        /// The announced count.
        announced: u8,
        /// The number that belongs to the message.
        due: u8,
    },
    /// The body is not a message.
    #[error("invalid message of {length} bytes: {reason}")]
    Body {
        /// The length of the body, in bytes.
        length: usize,
        /// The deserializer's error.
        reason: postcard::Error,
    },
    /// The body has bytes after its message.
    #[error("invalid message of {length} bytes: {left} trailing bytes")]
    Trailing {
        /// The length of the body, in bytes.
        length: usize,
        /// The number of trailing bytes.
        left: usize,
    },
    /// The message exceeds a limit.
    #[error("the peer sent an invalid message: {0}")]
    Limit(#[from] Excess),
}

/// Returns the frame of a message. The sender must send [`Message::fds`] file descriptors with its
/// first byte.
///
/// # Errors
/// The message exceeds a limit, or its body is longer than [`Message::CAP`].
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

/// A decoder of the messages on a byte stream, which may arrive in pieces of any length.
///
/// A decoder holds only the incomplete frame: at most the header and [`Message::CAP`] bytes,
/// whatever the peer sends.
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
    /// The received part of the current frame, including its header.
    partial: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Decoder { partial: Vec::new(), message: PhantomData }
    }
}

impl<M: Message> Decoder<M> {
    /// Returns a decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Consumes bytes from the front of `input` until a message is complete or `input` is empty.
    /// Returns `None` if `input` is empty and no message is complete, so the caller repeats the
    /// call until then.
    ///
    /// When a message is complete, its [`Message::fds`] file descriptors are at the front of the
    /// queue that [`receive`](crate::socket::receive) fills. If they are missing, the peer violates
    /// the protocol.
    ///
    /// # Errors
    /// The bytes are not the frame of a message. The caller must close the connection.
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

    /// Moves bytes from `input` to `partial` until that has `size` bytes. Returns whether it has.
    fn fill(&mut self, size: usize, input: &mut &[u8]) -> bool {
        let missing = size.saturating_sub(self.partial.len());
        // The usual doubling could reserve up to twice the cap.
        self.partial.reserve_exact(missing);
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.partial.extend_from_slice(taken);
        *input = rest;
        taken.len() == missing
    }
}
